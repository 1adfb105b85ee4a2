"""Figures of evaluations: success in a single trial and mean steps over solved games, by task type and by level.

Every success rate comes with Wilson's 95 % interval (Wilson 1927), so that a small number of games shows as a wide
interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from alfworld_native.household.levels import LEVELS, level_of_game
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
    """Success, interval, mean steps over solved games, share of rejected actions; the same for every task type.

    Games of a mixture of levels have them for every level, too (`per_level`).
    """
    summary = _figures(results)
    types = sorted({result.task_type for result in results})
    summary["per_task_type"] = {kind: _figures([r for r in results if r.task_type == kind]) for kind in types}
    by_level: dict[str, list[EpisodeResult]] = {}
    for result in results:
        if level := level_of_game(result.game):
            by_level.setdefault(level, []).append(result)
    if by_level:
        summary["per_level"] = {level: _figures(by_level[level]) for level in LEVELS if level in by_level}
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
    """The summary as fixed-width text, a line for each task type, and for each level of a mixture."""
    lines = [
        f"{'task type':34} {'games':>6} {'solved':>7} {'success':>8} {'95 % interval':>15} {'steps':>6} {'rejected':>9}"
    ]
    levels = [(f"level {level}", row) for level, row in summary.get("per_level", {}).items()]
    rows = [*summary["per_task_type"].items(), *levels, ("all", summary)]
    for name, row in rows:
        steps = f"{row['mean_steps']:.1f}" if row["mean_steps"] is not None else "-"
        interval = f"{row['interval'][0]:.2f} to {row['interval'][1]:.2f}"
        lines.append(
            f"{name:34} {row['games']:6d} {row['solved']:7d} {row['success']:8.3f} {interval:>15} {steps:>6} "
            f"{row['rejected']:9.3f}"
        )
    return "\n".join(lines)
