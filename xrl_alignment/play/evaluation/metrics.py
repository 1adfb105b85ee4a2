"""Figures of evaluations: success in a single trial and mean steps over solved games, each by task type.

Every success rate comes with Wilson's 95 % interval (Wilson 1927), so that a small number of games shows as a wide
interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xrl_alignment.common.intervals import wilson_interval


@dataclass(frozen=True)
class EpisodeResult:
    """One game played once; thoughts are no actions. `rejected` of them were answered with `Nothing happens.`

    `fault` says why a game could not be played to its end (its worker was lost again and again); it counts as not won.
    """

    game: str
    task_type: str
    won: bool
    actions: int
    rejected: int
    fault: str = ""


def summarise(results: Sequence[EpisodeResult]) -> dict[str, Any]:
    """Success, interval, mean steps over solved games, share of rejected actions; the same for every task type."""
    summary = _figures(results)
    types = sorted({result.task_type for result in results})
    summary["per_task_type"] = {kind: _figures([r for r in results if r.task_type == kind]) for kind in types}
    return summary


def share(solved: int, games: int) -> dict[str, Any]:
    """`solved` of `games` as a success rate with its interval."""
    low, high = wilson_interval(solved, games)
    return {"games": games, "solved": solved, "success": solved / games if games else 0.0, "interval": [low, high]}


def _figures(results: Sequence[EpisodeResult]) -> dict[str, Any]:
    won = [result for result in results if result.won]
    actions = sum(result.actions for result in results)
    return {
        **share(len(won), len(results)),
        # Of solved games only: a failed one mostly goes on to the step limit, whoever plays.
        "mean_steps": sum(result.actions for result in won) / len(won) if won else None,
        "rejected": sum(result.rejected for result in results) / actions if actions else 0.0,
    }


def table(summary: dict[str, Any]) -> str:
    """The summary as fixed-width text, one line a task type."""
    lines = [
        f"{'task type':34} {'games':>6} {'solved':>7} {'success':>8} {'95 % interval':>15} {'steps':>6} {'rejected':>9}"
    ]
    rows = [*summary["per_task_type"].items(), ("all", summary)]
    for name, row in rows:
        steps = f"{row['mean_steps']:.1f}" if row["mean_steps"] is not None else "-"
        interval = f"{row['interval'][0]:.2f} to {row['interval'][1]:.2f}"
        lines.append(
            f"{name:34} {row['games']:6d} {row['solved']:7d} {row['success']:8.3f} {interval:>15} {steps:>6} "
            f"{row['rejected']:9.3f}"
        )
    return "\n".join(lines)
