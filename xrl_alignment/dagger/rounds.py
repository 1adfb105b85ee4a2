"""The rounds of a run: what is counted in one, and what its end leaves behind (memories, results, logs)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from xrl_alignment.common.time_split import TimeSplit
from xrl_alignment.dagger.schedule import Schedule
from xrl_alignment.dagger.training import TrainingTime
from xrl_alignment.experts.llm.accounting import Account
from xrl_alignment.reflexion.base import Reflector, update_memories
from xrl_alignment.runs.directory import EpisodeRecord, RunDirectory


class Rounds:
    """Counts the episodes of every round and ends it.

    `reflector` None: failed games get no memories. `account` None: the expert's calls cost nothing. `say` is told what
    a round's time went into.
    """

    def __init__(
        self,
        directory: RunDirectory,
        schedule: Schedule,
        *,
        reflector: Reflector | None = None,
        account: Account | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.directory = directory
        self.schedule = schedule
        self.reflector = reflector
        self.account = account
        self.say = say
        self.memories: dict[str, list[str]] = {}
        self.episodes = 0  # finished, over all rounds
        self.won = 0  # of them, whoever acted; `schedule.solved` are games that the policy won by itself
        self.states = self.unlabelled = 0  # in which the expert was asked, and of them those without a label
        self._records: list[EpisodeRecord] = []  # of this round
        self._lengths: dict[str, int] = {}  # game -> actions of its last episode
        self._games_noted = 0
        self._started = time.monotonic()

    def status(self) -> dict[str, Any]:
        """How far the run is."""
        schedule = self.schedule
        return {
            "round": min(schedule.round, schedule.num_rounds - 1),
            "num_rounds": schedule.num_rounds,
            "played_in_round": schedule.num_envs if schedule.finished else schedule.played_in_round,
            "num_envs": schedule.num_envs,
            "solved": len(schedule.solved),
            "episodes": self.episodes,
            "won": self.won,
            "missing_labels": self.unlabelled / self.states if self.states else 0.0,
            "finished": schedule.finished,
            **({"expert": self.account.status()} if self.account else {}),
        }

    def note_games(self) -> None:
        """Keep the games' order on disk when some have become known: it is what `env` numbers mean."""
        if len(self.schedule.games) != self._games_noted:
            self.directory.save_games(self.schedule.games)
            self._games_noted = len(self.schedule.games)

    def count(self, record: EpisodeRecord) -> None:
        """Take in one line of the journal."""
        self.schedule.finish(record.game, solved=record.solved)
        self._records.append(record)
        self._lengths[record.game] = record.actions
        self.episodes += 1
        self.won += record.won
        self.states += record.states
        self.unlabelled += record.unlabelled

    def close(self, training: TrainingTime, times: TimeSplit) -> None:
        """End the round: reflect on its failures, write its results and its block in `world.log`.

        `times` says what the loop did since the round before.
        """
        rollout_s = time.monotonic() - self._started - training.standstill_s
        if self.reflector:
            failed = [record.trace() for record in self._records if not record.won]
            self.memories = update_memories(failed, self.memories, self.reflector, skip_unreadable=True)
        self.directory.write_results(self.schedule.round, self._results())
        self._log(rollout_s, training, times)

    def begin_next(self) -> None:
        """Begin the next round; the memories that it begins with are saved, which says that this one is over."""
        self.directory.save_memories(self.schedule.round + 1, self.memories)
        self._next()

    # --- resuming --------------------------------------------------------------------------------------------------

    def restore_games(self) -> None:
        """Give every game its place as the run directory has it."""
        self.schedule.games = self.directory.games()
        self._games_noted = len(self.schedule.games)

    def catch_up(self, round: int) -> None:
        """Skip to `round`: everything that ends the rounds before it is on disk."""
        while self.schedule.round < round:
            self._next()

    def restore_memories(self) -> None:
        """Skip to the round that the saved memories are for, and write its log anew.

        The log may lack the last episode: a kill can come between journal and log.
        """
        memories_round, self.memories = self.directory.memories()
        self.catch_up(memories_round)
        for number, record in enumerate(self._records):
            self.directory.write_trial(record, self.memories.get(record.game, []), afresh=number == 0)

    # --- a round's end ---------------------------------------------------------------------------------------------

    def _next(self) -> None:
        self.schedule.advance()
        self._records = []
        self._started = time.monotonic()
        if self.account:
            self.account.start_round(self.schedule.round)

    def _log(self, rollout_s: float, training: TrainingTime, times: TimeSplit) -> None:
        """`rollout_s`: of the round's time until its last episode ended, all in which the games did not stand still."""
        round, solved, total = self.schedule.round, len(self.schedule.solved), self.schedule.num_envs
        seconds = time.monotonic() - self._started
        new = self.schedule.newly_solved
        training_s, split = training.seconds, times.take(seconds)
        lines = [f"ROLLOUT: {rollout_s:.2f} s", f"TRAINING: {training_s:.2f} s"]
        lines += [f"TIME SPLIT: {', '.join(f'{part} {value:.2f} s' for part, value in split.items())}"]
        note = "\n".join([*lines, *training.lines])
        states, unlabelled = sum(r.states for r in self._records), sum(r.unlabelled for r in self._records)
        if states:
            share = unlabelled / states
            note += f"\nMISSING LABELS: {share:.4f} ({unlabelled} of {states} states)"
        self.say(f"round {round + 1}: rollout {rollout_s:.1f} s, training {training_s:.1f} s, total {seconds:.1f} s")
        if self.account:
            note += f"\n{self.account.line(round)}"
            self.say(f"round {round + 1}: {self.account.line(round)}")
        self.directory.write_round(round, solved=solved, newly_solved=new, total=total, seconds=seconds, note=note)
        scalars = {"round/accuracy": solved / total, "round/rollout_seconds": rollout_s}
        scalars |= {"round/training_seconds": training_s, "round/seconds": seconds}
        scalars |= {f"round/{name}": value for name, value in training.scalars.items()}
        scalars |= {f"round/seconds_{part}": value for part, value in split.items()}
        if self._records:
            scalars["round/won"] = sum(record.won for record in self._records) / len(self._records)
        if states:
            scalars["round/missing_labels"] = share
        if self.account:
            figures = {**self.account.figures(round), **self.account.events(round)}
            scalars |= {f"expert/{name}": value for name, value in figures.items() if value is not None}
        for name, value in scalars.items():
            self.directory.scalar(name, value, round)

    def _results(self) -> dict[str, dict[str, Any]]:
        return {
            f"env_{i}": {
                "game": game,
                "type": game.split("-", 1)[0],
                "is_success": game in self.schedule.solved,
                "path_length": self._lengths.get(game, 0),
                "memory": self.memories.get(game, []),
            }
            for i, game in enumerate(self.schedule.games)
        }
