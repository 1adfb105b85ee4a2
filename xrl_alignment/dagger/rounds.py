"""The rounds of a run: which game is still to be played, what is counted, what a round's end leaves behind.

`Rounds` is the state of a run, `TimeSplit` says where a round's time went, and `LabelGuard` stops a run whose expert
gives too few labels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lavis.common.errors import EmacError
from xrl_alignment.agents.language.history import EpisodeTrace
from xrl_alignment.dagger.training import TrainingTime
from xrl_alignment.runs.directory import EpisodeRecord, RunDirectory, round_block

if TYPE_CHECKING:  # a run without a language model as expert needs no account
    from xrl_alignment.agents.experts.llm.accounting import Account

Memories = dict[str, list[str]]  # of each game, oldest first
PARTS = ("environment", "policy", "expert", "training", "waiting")  # of a round's time
ENOUGH = 50  # states of a round from which on its share of missing labels is judged before the round ends


class GamesError(EmacError, ValueError):
    """A client's games do not fit this run; the text says how."""


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


class Rounds:
    """The state of a run of `num_rounds` rounds over `num_envs` games; it follows from the journal.

    A solved game is not played again, and a game is in one session's hands at a time. Everything is keyed by game id,
    never by position.

    `reflect` gives the memories after a round, from the round's failures and the memories with which it began; without
    it no game gets a memory. Without an `account` the expert's calls cost nothing. `say` is told what a round's time
    went into. The loop tells `times` how long each of its steps took.
    """

    def __init__(
        self,
        directory: RunDirectory,
        *,
        num_rounds: int,
        num_envs: int,
        reflect: Callable[[Sequence[EpisodeTrace], Memories], Memories] | None = None,
        account: Account | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.directory = directory
        self.num_rounds = num_rounds
        self.num_envs = num_envs
        self.reflect = reflect
        self.account = account
        self.say = say
        self.times = TimeSplit()
        self._started = time.monotonic()

        # The games. Their order gives the `env` numbers: the first client's list (wire v2), or as they come (wire v1).
        self.games: list[str] = []
        self.environments: list[str] = []  # where they were played, as `engine split`
        # Games that the policy has won by itself. `won` also counts episodes in which the expert helped.
        self.solved: set[str] = set()
        self.memories: Memories = {}  # by game; those with which the round began

        # This round.
        self.round = 0
        self.left: dict[str, str] = {}  # games that are neither solved nor played yet -> session that plays it, or ""
        self.newly_solved = 0
        self.records: list[EpisodeRecord] = []

        # All rounds.
        self.episodes = 0  # finished ones
        self.won = 0
        self.states = 0  # in which the expert was asked
        self.unlabelled = 0  # states for which the expert had no label
        self._lengths: dict[str, int] = {}  # game -> actions of its last episode

    @property
    def finished(self) -> bool:
        """All rounds have ended."""
        return self.round >= self.num_rounds

    @property
    def round_over(self) -> bool:
        """Every game of this round is solved or played."""
        # All games must be known: a v1 client's appear one by one, and after the first the round is not over.
        return not self.finished and not self.left and len(self.games) == self.num_envs

    # --- who plays what --------------------------------------------------------------------------------------------

    def offer(self, games: Sequence[str]) -> None:
        """Take a client's game list (v2 `hello`); every client of a run must offer the same first `num_envs`."""
        games = list(dict.fromkeys(games))[: self.num_envs]  # once each: everything is keyed by game id
        # More are no fault: the first ones are played. With fewer a round could never end.
        if len(games) < self.num_envs:
            raise GamesError(
                f"the client offers {len(games)} different games, the run has {self.num_envs} (run.num_envs)"
            )
        # In the same order, too: the place of a game is its `env` number in logs and shards.
        if self.games[: len(games)] != games[: len(self.games)]:
            raise GamesError("the client offers other games than this run has played so far; use the same list")
        self.left |= dict.fromkeys(games[len(self.games) :], "")
        self.games = games

    def withdraw(self) -> None:
        """Forget the game list if nothing has been played: whoever offered it has left, the next one may differ."""
        if not (self.round or self.episodes or any(self.left.values())):
            self.games, self.left, self.environments = [], {}, []

    def hand_out(self, session: str, game: str = "") -> int:
        """Give a session `game`, or else the first one of this round that nobody plays; returns its `env` number.

        Returns -1 if there is none, or if `game` is not needed any more, another session's, or has no place here.
        """
        if self.finished:
            return -1
        # Clients of wire v1 choose their games by themselves: a new one takes the next free place.
        if game and game not in self.games and len(self.games) < self.num_envs:
            self.games.append(game)
            self.left[game] = ""
        # In order: with one session, a run is a function of settings and seed.
        game = game or next((game for game, player in self.left.items() if not player), "")
        # The first session keeps it: two would write two episodes of one game into the journal's round.
        if self.left.get(game) not in ("", session):
            return -1
        self.left[game] = session
        return self.games.index(game)

    def give_back(self, session: str) -> None:
        """Take back what a session plays; it goes to whoever asks next."""
        self.left = {game: "" if player == session else player for game, player in self.left.items()}

    # --- what was played -------------------------------------------------------------------------------------------

    def count(self, record: EpisodeRecord) -> None:
        """Take in one line of the journal."""
        # Played, whether solved or not: a failed game comes again in the next round, with its memory.
        self.left.pop(record.game, None)
        if record.solved and record.game not in self.solved:
            self.solved.add(record.game)
            self.newly_solved += 1
        self.records.append(record)
        self._lengths[record.game] = record.actions
        self.episodes += 1
        self.won += record.won
        self.states += record.states
        self.unlabelled += record.unlabelled

    def close(self, training: TrainingTime) -> None:
        """End the round: memories for its failures, its results, its block in `world.log`, its points in the curves."""
        round, solved, total = self.round, len(self.solved), self.num_envs
        # Until the last episode ended; what the games stood still for training is not the games' time.
        rollout_s = time.monotonic() - self._started - training.standstill_s

        # Reflexion (Shinn et al. 2023, arXiv:2303.11366): each failed game gets a hint for its next attempt.
        if self.reflect:
            self.memories = self.reflect([record.trace() for record in self.records if not record.won], self.memories)

        # For the original's readers: one entry for each game, also for those that were solved in an earlier round.
        results = {
            f"env_{i}": {
                "game": game,
                "type": game.split("-", 1)[0],
                "is_success": game in self.solved,
                "path_length": self._lengths.get(game, 0),
                "memory": self.memories.get(game, []),
            }
            for i, game in enumerate(self.games)
        }

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
        block = round_block(round, solved=solved, newly_solved=self.newly_solved, total=total, seconds=seconds)
        block += "\n".join(lines) + "\n"

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
        self.directory.end_round(round, results=results, block=block, scalars=scalars, memories=self.memories)

    def begin_next(self) -> None:
        """Begin the next round."""
        self.round += 1
        self.left = dict.fromkeys((game for game in self.games if game not in self.solved), "")
        self.newly_solved = 0
        self.records = []
        self._started = time.monotonic()
        if self.account:
            self.account.start_round(self.round)

    def status(self) -> dict[str, Any]:
        """How far the run is."""
        return {
            "round": min(self.round, self.num_rounds - 1),
            "num_rounds": self.num_rounds,
            "played_in_round": self.num_envs if self.finished else len(self.games) - len(self.left),
            "num_envs": self.num_envs,
            "solved": len(self.solved),
            "episodes": self.episodes,
            "won": self.won,
            "missing_labels": self.unlabelled / self.states if self.states else 0.0,
            "finished": self.finished,
            **({"expert": self.account.status()} if self.account else {}),
        }


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

    def judge(self, record: EpisodeRecord, *, round_over: bool, played: bool = True) -> None:
        """Take in a finished episode. Raises MissingLabelsError above the limit: at the round's end, or from ENOUGH on.

        A round with few states may miss several by chance, so a round is not judged by its first ones. `played`: an
        episode of this round, perhaps one before a resume, has a step; a game that was given up has none. Without one
        MissingLabelsError is raised at the round's end: no game is at fault then, but an expert that fails at each.
        """
        if record.round != self._round:  # the first episode of another round
            self._round, self._states, self._missing = record.round, 0, 0
        if round_over and not played and self.limit < 1:
            raise MissingLabelsError(
                f"every game of round {self._round + 1} was given up, so nothing was learned in it: running_nb01.log "
                "says why. Correct that (the expert, the policy, or what the client sends) and begin a new run, or go "
                "on with the next round"
            )
        self._states += record.states
        self._missing += record.unlabelled
        if self._missing > self.limit * self._states and (round_over or self._states >= ENOUGH):
            raise MissingLabelsError(
                f"the expert gave no label for {self._missing} of {self._states} states of round {self._round + 1}, "
                f"more than expert.max_missing_labels={self.limit:g} allows; the model would learn its own actions. "
                "Look at the expert, or allow more"
            )
