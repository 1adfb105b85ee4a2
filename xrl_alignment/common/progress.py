"""Progress bars that count the episodes of a training run, and games."""

from __future__ import annotations

from typing import Any

from lavis.common.progress import Bar


class RoundProgress(Bar):
    """Shows what `DaggerLoop.status()` says."""

    def __init__(self) -> None:
        super().__init__("episodes")

    def update(self, status: dict[str, Any]) -> None:
        """Show a new status, after every episode."""
        done = status["round"] * status["num_envs"] + status["played_in_round"]
        text = f"round {status['round'] + 1}/{status['num_rounds']}, {status['solved']} solved by the policy"
        helped = status.get("won", 0) - status["solved"]  # a game that the policy solved is not played again
        if helped > 0:
            text += f", {helped} won with the expert's help"
        if missing := status.get("missing_labels", 0.0):
            text += f", {missing:.0%} of labels missing"
        if learner := status.get("learner"):
            text += f", the policy lacks {learner['staleness']} updates"
        if teacher := status.get("expert"):
            text += f", {teacher['total']['calls']} calls of the teacher"
            cost = teacher["total"]["cost_usd"]
            text += "" if cost is None else f" for {cost:.4f} USD"
        counts = not status.get("recovering")
        self.show(done, status["num_rounds"] * status["num_envs"], text, counts=counts)


class GameProgress(Bar):
    """Counts finished games and those that were solved."""

    def __init__(self, total: int, *, name: str = "games", quiet: bool = False) -> None:
        super().__init__(name, quiet=quiet)
        self._total = total
        self._won = self._played = 0

    def advance(self, won: bool) -> None:
        """Count one more finished game."""
        self._played += 1
        self._won += won
        self.show(self._played, max(self._total, self._played), f"{self._won} solved")
