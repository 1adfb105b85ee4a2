"""Plays every game of a list once, or in several trials with memories of the failures between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from alfworld_native.base import Environment, Game
from lavis.common.errors import ConfigError
from xrl_alignment.agents.language.history import EpisodeTrace
from xrl_alignment.agents.reflexion.base import Reflector, update_memories
from xrl_alignment.play.evaluation.actors import Actor
from xrl_alignment.play.evaluation.metrics import EpisodeResult
from xrl_alignment.play.evaluation.player import EvaluationPlayer
from xrl_alignment.play.rollouts.base import JobOutcome, RolloutExecutor
from xrl_alignment.play.rollouts.sequential import SequentialExecutor


def play_games(
    actor: Actor,
    games: Sequence[Game],
    make_environment: Callable[[], Environment],
    *,
    executor: RolloutExecutor | None = None,
    concurrency: int = 32,
    memories: dict[str, list[str]] | None = None,
    on_result: Callable[[EpisodeResult, EpisodeTrace | None], None] = lambda result, trace: None,
    **options: Any,
) -> list[EpisodeResult]:
    """Play every game once; results in the order of `games`. `on_result` is called as soon as a game has ended.

    Without an `executor` the games are played in this process, up to `concurrency` at a time. `options` are those of
    `EvaluationPlayer`. A game that was lost with its workers has a `fault` and no trace.
    """
    player = _player(actor, make_environment, options)
    with nullcontext(executor) if executor else SequentialExecutor(concurrency) as used:
        return [result for result, _ in _play_all(used, player, actor, games, memories or {}, on_result)]


def _player(actor: Actor, make_environment: Callable[[], Environment], options: Mapping[str, Any]) -> EvaluationPlayer:
    shown: dict[str, Any] = {"blank_frames": actor.blank_frames, "reads": actor.reads, "frames": actor.frames}
    return EvaluationPlayer(make_environment, actor.make_expert, **shown, **options)


def _play_all(
    executor: RolloutExecutor,
    player: EvaluationPlayer,
    actor: Actor,
    games: Sequence[Game],
    memories: dict[str, list[str]],
    on_result: Callable[[EpisodeResult, EpisodeTrace | None], None],
) -> list[tuple[EpisodeResult, EpisodeTrace | None]]:
    # The key is the game: a worker that has loaded it in an earlier trial plays it again faster.
    jobs = [(game, memories.get(game.id, [])) for game in games]

    def played(outcome: JobOutcome) -> tuple[EpisodeResult, EpisodeTrace | None]:
        if outcome.fault:  # its worker was lost again and again: the game counts as not solved
            game, _ = outcome.job
            return EpisodeResult(game.id, game.task_type, False, 0, 0, outcome.fault), None
        return outcome.value

    outcomes = executor.run(
        player,
        jobs,
        answer=actor.answer,
        key=lambda job: job[0].id,
        on_end=lambda outcome: on_result(*played(outcome)),
    )
    return list(map(played, outcomes))


class Trials:
    """The same games again and again: solved ones are not played again, failed ones get a memory from `reflector`.

    Trials are counted in slots, of which each has one game. With `moving_slots`, as in EMMA's released runs, each trial
    gives slot i the game that slot i - 1 had, and a slot that was solved once is not played again, whatever game it
    would get: so memories are of another game, and a solved slot is no solved game. Else a slot keeps its game.

    Close it, or use it in a `with`: environments are kept from trial to trial.
    """

    def __init__(
        self,
        *,
        actor: Actor,
        games: Sequence[Game],
        make_environment: Callable[[], Environment],
        reflector: Reflector | None = None,
        executor: RolloutExecutor | None = None,
        swap_memories: bool = False,
        moving_slots: bool = False,
        tell_objects: bool = True,
        **options: Any,
    ) -> None:
        """`options` are those of `EvaluationPlayer`. Without an `executor` this process plays, 32 games at a time.

        With `swap_memories` every failed game is played with the memories of another one, a control experiment.
        Without `tell_objects` memories are of what an agent was told that has to see what lies where.
        """
        if len({game.id for game in games}) < len(games):
            raise ConfigError("a game is listed twice: what is solved, and every memory, is kept by the game's id")
        self.actor = actor
        self.games = games
        self.reflector = reflector
        self.swap_memories = swap_memories
        self.moving_slots = moving_slots
        self.tell_objects = tell_objects
        self.solved: set[int] = set()  # slots
        self.executor = executor or SequentialExecutor(32)
        self.results: list[list[EpisodeResult]] = []
        self._player = _player(actor, make_environment, options)
        self._memories: dict[str, list[str]] = {}  # by the name of the slot
        self._traces: list[EpisodeTrace] = []  # of the last trial; a slot's name stands for the game's id

    def play(self, on_result: Callable[[EpisodeResult, EpisodeTrace | None], None]) -> None:
        """One more trial of every game that is not solved yet; `on_result` is called as soon as a game has ended."""
        shift = len(self.results) if self.moving_slots else 0
        slots = [slot for slot in range(len(self.games)) if slot not in self.solved]
        games = [self.games[(slot - shift) % len(self.games)] for slot in slots]
        slot_of = {game.id: slot for game, slot in zip(games, slots, strict=True)}
        # Now, not after the trial before: memories of the last trial would be written (and paid) for nobody.
        if self.reflector:
            self._memories = update_memories(
                self._traces, self._memories, self.reflector, tell_objects=self.tell_objects
            )
        memories = swapped(self._memories, list(map(str, slots))) if self.swap_memories else self._memories
        memories = {game: memories.get(str(slot), []) for game, slot in slot_of.items()}
        played = _play_all(self.executor, self._player, self.actor, games, memories, on_result)
        self.results.append([result for result, _ in played])
        # A game that was lost with its workers has no trace, and so gets no memory.
        self._traces = [replace(trace, game_id=str(slot_of[trace.game_id])) for _, trace in played if trace]
        self.solved |= {slot_of[result.game] for result, _ in played if result.won}

    def close(self) -> None:
        """End the workers and close the environments."""
        self.executor.close()

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def first(self) -> list[EpisodeResult]:
        """The first trial: the figure to compare with others."""
        return self.results[0]

    @property
    def best(self) -> list[EpisodeResult]:
        """For each game its winning trial, else its last."""
        last: dict[str, EpisodeResult] = {}
        for result in (result for trial in self.results for result in trial):
            # A game that was won in one trial is not played again, unless slots move: then its win counts all the same.
            if not (result.game in last and last[result.game].won):
                last[result.game] = result
        return [last[game.id] for game in self.games]


def swapped(memories: Mapping[str, list[str]], games: Sequence[str]) -> dict[str, list[str]]:
    """`memories` with those of the `games` passed on: each game gets the next one's, the last one the first's.

    One game alone gets none: there is no other one's.
    """
    having = [game for game in games if memories.get(game)]
    if len(having) == 1:
        return {}
    return dict(zip(having, [memories[game] for game in [*having[1:], *having[:1]]], strict=True))
