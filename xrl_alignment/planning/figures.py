"""The figures of an evaluation with a planner, and the table of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from xrl_alignment.planning.player import PlannedGame
from xrl_alignment.planning.reports import Sight
from xrl_alignment.play.evaluation.metrics import EpisodeResult, summarise


def figures(played: Sequence[PlannedGame]) -> dict[str, Any]:
    """The figures of an evaluation: success with its interval, what planning cost, and what reports were worth.

    `actions` and `step_tokens` are the calls and tokens of a teacher that is asked before every action. `valid_plans`
    is the share of all plans, to which a game that is stuck contributes the same plan again and again;
    `valid_first_plans` is that of the first ones, one a game. `replans` counts the others by trigger.
    `judgements` are the calls with the two questions of retrospective feedback, which are no `planner_calls`; their
    tokens are among `planner_tokens`. Those with an answer that is neither yes nor no are `unclear_judgements`, and
    `right_judgements` is the share of the others whose two answers are both true. `per_level` is empty unless the games
    are of a mixture of levels.
    """
    # Sums over the games; a share is None if there is nothing to divide by.
    results: list[EpisodeResult] = [one.result for one in played]
    calls = [call for one in played for call in one.calls]
    sight, triggers = Sight(), Counter[str]()
    for one in played:
        sight.merge(one.sight)
        triggers.update(one.triggers)
    summary, solved = summarise(results), sum(result.won for result in results)
    judged = [feedback for one in played for feedback in one.feedbacks]
    tokens = sum(call["tokens"] for call in [*calls, *judged])
    clear = len(judged) - sum(None in (one["executed"], one["solves"]) for one in judged)
    # An unclear answer (None) is never right: the true answers are yes or no.
    right = sum((one["executed"], one["solves"]) == (one["true_executed"], one["true_solves"]) for one in judged)
    return {
        "success": summary["success"],
        "interval": summary["interval"],
        "games": summary["games"],
        "planner_calls": len(calls),
        "planner_tokens": tokens,
        "judgements": len(judged),
        "unclear_judgements": len(judged) - clear,
        "right_judgements": right / clear if clear else None,
        "calls_per_solved": len(calls) / solved if solved else None,
        "tokens_per_solved": tokens / solved if solved else None,
        "actions": sum(result.actions for result in results),
        "step_tokens": sum(one.step_tokens for one in played),
        "valid_plans": _valid(calls),
        "valid_first_plans": _valid([one.calls[0] for one in played if one.calls]),
        "replans": {name: number for name, number in sorted(triggers.items()) if name != "start"},
        "ended": dict(sorted(Counter(one.ended for one in played).items())),
        "sight_precision": sight.precision,
        "sight_recall": sight.recall,
        "mean_steps": summary["mean_steps"],
        "rejected": summary["rejected"],
        "per_task_type": {kind: row["success"] for kind, row in summary["per_task_type"].items()},
        "per_level": {level: row["success"] for level, row in summary.get("per_level", {}).items()},
    }


def _valid(calls: Sequence[dict[str, Any]]) -> float | None:
    return sum(call["valid"] for call in calls) / len(calls) if calls else None


def table(summary: dict[str, Any]) -> str:
    """A heading, and one line for each evaluation in `summary`."""
    lines = [
        f"{'':34} {'games':>6} {'success':>8} {'95 % interval':>15} {'valid plans':>12} {'first ones':>11} "
        f"{'calls':>6} {'tokens':>8}"
    ]
    for name, row in summary.items():
        if isinstance(row, dict) and "success" in row:
            interval = f"{row['interval'][0]:.2f} to {row['interval'][1]:.2f}"
            shares = (row.get(key) for key in ("valid_plans", "valid_first_plans"))  # None: nobody has planned
            valid, first = ("-" if share is None else f"{share:.3f}" for share in shares)
            lines.append(
                f"{name:34} {row['games']:6d} {row['success']:8.3f} {interval:>15} {valid:>12} {first:>11} "
                f"{row['planner_calls']:6d} {row['planner_tokens']:8d}"
            )
    return "\n".join(lines)
