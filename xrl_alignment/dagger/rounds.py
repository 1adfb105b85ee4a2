"""The rounds of a run: which game is still to be played, what is counted, what a round's end leaves behind.

`Schedule` says who plays which game when; everything is keyed by game id, never by position. `Rounds` counts what was
played and ends a round (memories, results, logs). `LabelGuard` stops a run whose expert gives too few labels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from lavis.common.errors import EmacError
from xrl_alignment.agents.reflexion.base import Reflector, update_memories
from xrl_alignment.dagger.training import TrainingTime
from xrl_alignment.runs.directory import EpisodeRecord, RunDirectory

PARTS = ("environment", "policy", "expert", "training", "waiting")  # of a round's time
ENOUGH = 50  # states of a round from which on its share of missing labels is judged before the round ends


class ScheduleError(EmacError, ValueError):
    """A client's games do not fit this run; the text says how."""


class Schedule:
    """Rounds over `num_envs` games. A solved game is not played again; a game is in one session's hands at a time.

    The games are the first client's list (wire v2), or become known one by one as they appear (wire v1).
    """

    def __init__(self, *, num_rounds: int, num_envs: int) -> None:
        self.num_rounds = num_rounds
        self.num_envs = num_envs
        self.games: list[str] = []
        self.round = 0
        self.solved: set[str] = set()
        self.newly_solved = 0
        self._played: set[str] = set()
        self._holders: dict[str, str] = {}  # game -> session

    def offer(self, games: Sequence[str]) -> None:
        """Take a client's game list (v2 `hello`); every client of a run must offer the same first `num_envs`."""
        games = list(dict.fromkeys(games))[: self.num_envs]  # once each: everything is keyed by game id
        # More are no fault: the first ones are played. With fewer a round could never end.
        if len(games) < self.num_envs:
            raise ScheduleError(
                f"the client offers {len(games)} different games, the run has {self.num_envs} (run.num_envs)"
            )
        # In the same order, too: the place of a game is its `env` number in logs and shards.
        if self.games[: len(games)] != games[: len(self.games)]:
            raise ScheduleError("the client offers other games than this run has played so far; use the same list")
        self.games = games

    def withdraw(self) -> None:
        """Forget the game list if nothing has been played: whoever offered it has left, the next one may differ."""
        if not (self.round or self._played or self.solved or self._holders):
            self.games = []

    def env_of(self, game: str) -> int:
        """Index of a game, -1 when this run has no place for it; a new game takes the next free place (v1)."""
        if game not in self.games and len(self.games) < self.num_envs:
            self.games.append(game)
        return self.games.index(game) if game in self.games else -1

    def next_game(self, session: str) -> str | None:
        """Hand a session the first game of this round that nobody plays or has played; None if there is none."""
        # In order: with one session, a run is a function of settings and seed.
        return next((game for game in self.games if game not in self._holders and self.hold(game, session)), None)

    def hold(self, game: str, session: str) -> bool:
        """Note that a session plays `game`; False if the round does not need it any more, or another session has it.

        Clients of wire v1 choose their games by themselves.
        """
        if self.finished or game in self.solved or game in self._played:
            return False
        # The first session keeps it: two would write two episodes of one game into the journal's round.
        return self._holders.setdefault(game, session) == session

    def release(self, session: str) -> None:
        """Give back what a session held."""
        self._holders = {game: holder for game, holder in self._holders.items() if holder != session}

    def finish(self, game: str, *, solved: bool) -> None:
        """Note an episode's end."""
        # Played, whether solved or not: a failed game comes again in the next round, with its memory.
        self._played.add(game)
        self._holders.pop(game, None)
        if solved and game not in self.solved:
            self.solved.add(game)
            self.newly_solved += 1

    @property
    def round_over(self) -> bool:
        """Every game of this round is solved or played (and all games are known)."""
        # Not `len(self.games)`: a v1 client's games appear one by one, and after the first the round is not over.
        return not self.finished and self.played_in_round == self.num_envs

    @property
    def played_in_round(self) -> int:
        """Games of this round that need no more play: solved before, or played now."""
        return sum(game in self.solved or game in self._played for game in self.games)

    def advance(self) -> None:
        """Begin the next round."""
        self.round += 1
        self.newly_solved = 0
        self._played.clear()  # solved games stay solved: they are not played again

    @property
    def finished(self) -> bool:
        """All rounds have ended."""
        return self.round >= self.num_rounds


@dataclass
class TimeSplit:
    """Adds up the seconds of parts that follow each other; what belongs to none of them is `other`."""

    _seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time of this block to the part `name`; blocks must not be nested."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] += time.monotonic() - began

    def take(self, total_s: float) -> dict[str, float]:
        """The seconds of every part of `total_s`, `other` included; counting begins anew."""
        taken, self._seconds = self._seconds, dict.fromkeys(PARTS, 0.0)
        return {**taken, "other": max(0.0, total_s - sum(taken.values()))}


class Expenses(Protocol):
    """What the expert's calls cost (`experts.llm.accounting.Account`)."""

    def start_round(self, round: int) -> None:
        """Book calls to this round from now on."""

    def report(self, round: int) -> tuple[str, Mapping[str, float]]:
        """A round and the total in a line for the log; the round's calls, tokens, dollars and events for the curves."""

    def status(self) -> dict[str, object]:
        """What `/status` shows."""


class Rounds:
    """Counts the episodes of every round and ends it.

    Without a `reflector` failed games get no memories; without an `account` the expert's calls cost nothing. `say` is
    told what a round's time went into. The loop tells `times` how long each of its steps took.
    """

    def __init__(
        self,
        directory: RunDirectory,
        schedule: Schedule,
        *,
        reflector: Reflector | None = None,
        account: Expenses | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.directory = directory
        self.schedule = schedule
        self.reflector = reflector
        self.account = account
        self.say = say
        self.times = TimeSplit()
        self.memories: dict[str, list[str]] = {}  # by game; those with which the round began
        self.environments: list[str] = []  # where the run's games were played, as `engine split`
        self.records: list[EpisodeRecord] = []  # of this round
        self.episodes = 0  # finished ones, over all rounds
        # Episodes that reached the goal, also with the expert's help. `schedule.solved` are games that the policy has
        # won by itself.
        self.won = 0
        self.states = 0  # in which the expert was asked, over all rounds
        self.unlabelled = 0  # states for which the expert had no label
        self._lengths: dict[str, int] = {}  # game -> actions of its last episode
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

    def count(self, record: EpisodeRecord) -> None:
        """Take in one line of the journal."""
        self.schedule.finish(record.game, solved=record.solved)
        self.records.append(record)
        self._lengths[record.game] = record.actions
        self.episodes += 1
        self.won += record.won
        self.states += record.states
        self.unlabelled += record.unlabelled

    def close(self, training: TrainingTime) -> None:
        """End the round: memories for its failures, its results, its block in `world.log`, its points in the curves.

        Nothing here says that the round is over: a run that is killed now closes it once more.
        """
        directory = self.directory
        schedule = self.schedule
        round = schedule.round
        solved, total = len(schedule.solved), schedule.num_envs
        # Until the last episode ended; what the games stood still for training is not the games' time.
        rollout_s = time.monotonic() - self._started - training.standstill_s

        # Reflexion (Shinn et al. 2023, arXiv:2303.11366): each failed game gets a hint for its next attempt.
        # A trace that the reflector cannot read gives none: a client may have sent any text.
        if self.reflector:
            failed = [record.trace() for record in self.records if not record.won]
            self.memories = update_memories(failed, self.memories, self.reflector, skip_unreadable=True)

        # For the original's readers: one entry for each game, also for those that were solved in an earlier round.
        directory.write_results(
            round,
            {
                f"env_{i}": {
                    "game": game,
                    "type": game.split("-", 1)[0],
                    "is_success": game in schedule.solved,
                    "path_length": self._lengths.get(game, 0),
                    "memory": self.memories.get(game, []),
                }
                for i, game in enumerate(schedule.games)
            },
        )

        # `world.log`: the original's block, then lines of our own.
        seconds = time.monotonic() - self._started
        split = self.times.take(seconds)
        lines = [f"ROLLOUT: {rollout_s:.2f} s", f"TRAINING: {training.seconds:.2f} s"]
        lines += [f"TIME SPLIT: {', '.join(f'{part} {value:.2f} s' for part, value in split.items())}"]
        lines += training.lines
        # A state without a label has taught the model its own action (the original's rule): so their share is told.
        states, unlabelled = sum(r.states for r in self.records), sum(r.unlabelled for r in self.records)
        if states:
            lines += [f"MISSING LABELS: {unlabelled / states:.4f} ({unlabelled} of {states} states)"]
        times = f"rollout {rollout_s:.1f} s, training {training.seconds:.1f} s, total {seconds:.1f} s"
        self.say(f"round {round + 1}: {times}")
        spent: Mapping[str, float] = {}
        if self.account:
            expenses, spent = self.account.report(round)
            lines += [expenses]
            self.say(f"round {round + 1}: {expenses}")
        note, new = "\n".join(lines), schedule.newly_solved
        directory.write_round(round, solved=solved, newly_solved=new, total=total, seconds=seconds, note=note)

        # The same figures as curves, for TensorBoard and the report.
        scalars: dict[str, float] = {"round/accuracy": solved / total, "round/rollout_seconds": rollout_s}
        scalars |= {"round/training_seconds": training.seconds, "round/seconds": seconds}
        scalars |= {f"round/{name}": value for name, value in training.scalars.items()}
        scalars |= {f"round/seconds_{part}": value for part, value in split.items()}
        if self.records:
            scalars["round/won"] = sum(record.won for record in self.records) / len(self.records)
        if states:
            scalars["round/missing_labels"] = unlabelled / states
        scalars |= {f"expert/{name}": value for name, value in spent.items()}
        for name, value in scalars.items():
            directory.scalar(name, value, round)

    def begin_next(self) -> None:
        """Begin the next round."""
        self.schedule.advance()
        self.records = []
        self._started = time.monotonic()
        if self.account:
            self.account.start_round(self.schedule.round)


class MissingLabelsError(EmacError, ValueError):
    """Too many states of a run have no label of the expert; the text says how many and what to look at."""


@dataclass
class LabelGuard:
    """Judges the share of missing labels in the round in progress; only what this process has played counts.

    `limit` 1.0 never stops a run. An episode that was journaled before a resume is not judged again.
    """

    limit: float = 1.0
    _round: int = -1  # of the newest episode
    _states: int = 0
    _missing: int = 0

    def judge(self, record: EpisodeRecord, *, round_over: bool) -> None:
        """Take in a finished episode. Raises MissingLabelsError above the limit: at the round's end, or from ENOUGH on.

        A round with few states may miss several by chance, so a round is not judged by its first ones.
        """
        if record.round != self._round:  # the first episode of another round
            self._round, self._states, self._missing = record.round, 0, 0
        self._states += record.states
        self._missing += record.unlabelled
        if self._missing > self.limit * self._states and (round_over or self._states >= ENOUGH):
            raise MissingLabelsError(
                f"the expert gave no label for {self._missing} of {self._states} states of round {self._round + 1}, "
                f"more than expert.max_missing_labels={self.limit:g} allows; the model would learn its own actions. "
                "Look at the expert, or allow more"
            )
