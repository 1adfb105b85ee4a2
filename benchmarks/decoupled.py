"""Rounds per hour with the learner beside the games against the learner between them.

    python benchmarks/decoupled.py --json decoupled.json            # about four minutes

`dagger_server.py` as it is, on a CPU with one thread a process, once with `run.learner=inline` and once with
`decoupled`. A client in a process of its own plays 64 generated games at once. Two parts only wait, as for other
machines: each step of an environment takes at least 0.5 s, like a simulator's, and a call of the policy takes 0.3 s and
0.03 s more for each observation, as docs/rollouts.md assumes of Vicuna-7B on an H200. The learner is real: it trains
the tiny model on what is played. (`--own-policy`: the tiny model answers, too, and shares the learner's processor.) All
episodes have `--steps` steps, and those of a round end together: the worst case for an inline learner. Three short
runs find the batch size with which a round's training takes as long as its games.

- `decoupled_speedup`: rounds per hour, from the end of the first round to the end of the last. The learner keeps pace:
  `run.max_staleness` is a round's updates, so the policy waits for a learner that falls behind.
- `whole_run_speedup`: from the first game to the end of the run; the decoupled run ends when the last episode is
  learned. Server and learner have started before.
- `policy_idle` (at most 0.1): the share of the decoupled run's rounds in which the policy answered nobody because of
  training: it waited for the learner, or read its weights. In the inline run: the time in which it trained.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _bench import Result, run
from _dagger import DaggerRuns, Played

GAMES = 64
STEP_S = 0.5
CALL = (0.3, 0.03)  # seconds of a call of the policy, and of each observation in it
SMALL, LARGE = 2, 6  # batch sizes of the short runs


class Comparison:
    """Runs that differ in the learner."""

    def __init__(self, runs: DaggerRuns, steps: int, own_policy: bool) -> None:
        self.runs = runs
        self.steps = steps
        self.latency = () if own_policy else CALL

    def row(self, learner: str, rounds: int, batch_size: int) -> dict[str, Any]:
        """A row of the table: one run."""
        played = self._play(
            GAMES, STEP_S, self.latency,
            learner=learner, num_rounds=rounds, batch_size=batch_size, max_staleness=GAMES,
        )  # fmt: skip
        parts = ("environment", "policy", "other", "training", "waiting")
        split = {part: played.a_round(f"seconds_{part}") for part in parts}
        seconds = played.a_round("seconds")
        return {
            "learner": learner,
            "batch size": batch_size,
            "rounds": rounds,
            "round, s": seconds,
            **{f"{part}, s": value for part, value in split.items()},
            "learner, s a round": played.training_s / rounds,
            "policy idle": (split["training"] + split["waiting"]) / seconds,
            "staleness": max(played.curves.get("max_staleness", [0.0])),
            "run, s": played.seconds,
            "rounds per hour": 3600 / seconds,
        }

    def equal_batch_size(self) -> int:
        """The batch size with which a round's training takes as long as its games: on the line through two points."""
        small, large = self._training_s(SMALL), self._training_s(LARGE)
        games = self._play(GAMES, STEP_S, self.latency, num_rounds=2, run_training="false").a_round("seconds")
        return max(1, round(SMALL + (games - small) * (LARGE - SMALL) / (large - small)))

    def _training_s(self, batch_size: int) -> float:
        """Seconds of a round's training, from half a round without any waiting."""
        return 2 * self._play(GAMES // 2, 0.0, (0.0, 0.0), num_rounds=1, batch_size=batch_size).training_s

    def _play(self, games: int, step_s: float, latency: Sequence[float], **settings: Any) -> Played:
        settings |= {"num_envs": games, "max_batch": games, "max_steps": self.steps}
        return self.runs.play(games, step_s, latency, accum_grad_steps=1, train_iters_per_epoch=1, **settings)


def measure(rounds: int, steps: int, own_policy: bool) -> Result:
    """Both learners."""
    with tempfile.TemporaryDirectory() as folder, DaggerRuns(Path(folder)) as runs:
        comparison = Comparison(runs, steps, own_policy)
        size = comparison.equal_batch_size()
        inline, decoupled = (comparison.row(learner, rounds, size) for learner in ("inline", "decoupled"))
    ratios = {
        "decoupled_speedup": decoupled["rounds per hour"] / inline["rounds per hour"],
        "whole_run_speedup": inline["run, s"] / decoupled["run, s"],
        "policy_idle": decoupled["policy idle"],
        "training_over_games": inline["training, s"] / (inline["round, s"] - inline["training, s"]),
    }
    return Result([inline, decoupled], ratios, {"decoupled_speedup": 1.7})


def add_options(parser: argparse.ArgumentParser) -> None:
    """What is played."""
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=3, help="of each episode")
    parser.add_argument("--own-policy", action="store_true", help="the tiny model answers on this processor")


if __name__ == "__main__":
    run("Learner beside the games against learner between them", measure, add_options)
