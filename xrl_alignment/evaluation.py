"""Plays whole episodes without learning: a policy over many games at once, or an expert alone; and counts.

Figures follow the field's habits: success in a single trial, mean steps over solved games, each by task type, with
Wilson's 95 % interval (Wilson 1927) so that a small number of games shows as a wide interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from xrl_alignment.actions import is_thought
from xrl_alignment.environments.base import MAX_STEPS, Environment, Game, TimeStep
from xrl_alignment.episode import MAX_THOUGHTS
from xrl_alignment.experts.base import Expert, act_all
from xrl_alignment.history import EnvironmentHistory, EpisodeTrace, build_prompt, opening
from xrl_alignment.policies import Policy, PolicyInput
from xrl_alignment.reflexion import NOTHING, Reflector, update_memories


@dataclass(frozen=True)
class EpisodeResult:
    """One game played once; thoughts are no actions. `rejected` of them were answered with `Nothing happens.`"""

    game: str
    task_type: str
    won: bool
    actions: int
    rejected: int


@dataclass
class Play:
    """A game in progress."""

    game: Game
    environment: Environment
    opening_text: str
    now: TimeStep
    history: EnvironmentHistory  # for its count of repeated actions
    memories: Sequence[str] = ()
    steps: list[tuple[str, str]] = field(default_factory=list)  # action, feedback; thoughts included
    actions: int = 0  # sent to the environment
    thoughts: int = 0  # in a row
    expert: Expert | None = None

    def think(self, thought: str) -> None:
        """Have a thought: the environment does not notice."""
        self.thoughts += 1
        self._hear(thought, "OK.")

    def act(self, action: str) -> None:
        """Carry out an action."""
        self.now = self.environment.step(action)
        self.thoughts = 0
        self.actions += 1
        self._hear(action, self.now.text)

    def over(self, max_steps: int) -> bool:
        """Ended by the environment, at its step limit, or stuck."""
        return self.now.done or self.actions >= max_steps or self.history.check_is_exhausted()

    def _hear(self, action: str, feedback: str) -> None:
        self.steps.append((action, feedback))
        self.history.add("action", action)

    def trace(self) -> EpisodeTrace:
        """The episode as a reflector reads it."""
        start = opening(self.opening_text)
        return EpisodeTrace(self.game.id, self.game.task_type, start, tuple(self.steps), self.now.won)


class Actor(Protocol):
    """Chooses the next action of each of several games."""

    def begin(self, play: Play) -> None:
        """A game starts."""
        ...

    def choose(self, plays: Sequence[Play]) -> list[str]:
        """One action for each game in progress."""
        ...

    def observe(self, play: Play, action: str) -> None:
        """The action was carried out; `play.now` is what followed."""
        ...


class PolicyActor:
    """A policy plays; it sees what `write_prompt` writes and the frame (black with `blank_frames`)."""

    def __init__(
        self,
        *,
        policy: Policy,
        write_prompt: Callable[..., str] = build_prompt,
        blank_frames: bool = False,
    ) -> None:
        self.policy = policy
        self.write_prompt = write_prompt
        self.blank_frames = blank_frames

    def begin(self, play: Play) -> None:
        """Nothing to prepare."""

    def choose(self, plays: Sequence[Play]) -> list[str]:
        """Ask the policy once for all games."""
        return self.policy.act([self._input(play) for play in plays])

    def observe(self, play: Play, action: str) -> None:
        """Nothing to remember: the prompt is built from `play.steps`."""

    def _input(self, play: Play) -> PolicyInput:
        prompt = self.write_prompt(play.opening_text, play.memories, play.steps)
        image = np.zeros((224, 224, 3), np.uint8) if self.blank_frames else play.environment.render()
        return PolicyInput(prompt, image, play.now.admissible_commands)


class ExpertActor:
    """An expert plays alone; a fresh one for every game. No answer (filtered) becomes `look`."""

    def __init__(self, make_expert: Callable[[Environment], Expert]) -> None:
        self.make_expert = make_expert

    def begin(self, play: Play) -> None:
        """Give the game its expert."""
        play.expert = self.make_expert(play.environment)
        play.expert.begin(play.opening_text, task_type=play.game.id, memories=play.memories)

    def choose(self, plays: Sequence[Play]) -> list[str]:
        """Ask every game's expert."""
        informations = [{"admissible_commands": play.now.admissible_commands} for play in plays]
        labels = act_all([play.expert for play in plays], informations)
        return [label.action or "look" for label in labels]

    def observe(self, play: Play, action: str) -> None:
        """Tell the game's expert what followed."""
        play.expert.observe(action, play.now.text)


def play_games(
    actor: Actor,
    games: Sequence[Game],
    make_environment: Callable[[], Environment],
    *,
    max_steps: int = MAX_STEPS,
    concurrency: int = 32,
    repeat_limit: int = 0,
    enable_tc: bool = False,
    memories: dict[str, list[str]] | None = None,
    on_result: Callable[[EpisodeResult, EpisodeTrace], None] = lambda result, trace: None,
) -> list[EpisodeResult]:
    """Play every game once, up to `concurrency` at a time in lock step; results in the order of `games`.

    With `enable_tc` thoughts (`think: …`) are answered `OK.` and cost no step, as in training.
    """
    results: dict[str, EpisodeResult] = {}
    environments = [make_environment() for _ in range(min(concurrency, len(games)))]
    queue, active, idle = list(games), [], list(environments)
    try:
        while queue or active:
            while queue and idle:
                active.append(_begin(actor, queue.pop(0), idle.pop(), memories or {}, repeat_limit))
            for play, action in zip(active, actor.choose(active), strict=True):
                if enable_tc and is_thought(action) and play.thoughts < MAX_THOUGHTS:
                    play.think(action)
                    continue
                play.act(action)
                actor.observe(play, action)
            going = []
            for play in active:
                if not play.over(max_steps):
                    going.append(play)
                    continue
                results[play.game.id] = result = _result(play)
                idle.append(play.environment)
                on_result(result, play.trace())
            active = going
    finally:
        for environment in environments:
            environment.close()
    return [results[game.id] for game in games]


class Trials:
    """The same games again and again: solved ones are not played again, failed ones get a memory from `reflector`."""

    def __init__(
        self,
        *,
        actor: Actor,
        games: Sequence[Game],
        make_environment: Callable[[], Environment],
        reflector: Reflector | None = None,
        **options: Any,
    ) -> None:
        self.actor = actor
        self.games = games
        self.make_environment = make_environment
        self.reflector = reflector
        self.options = options  # of `play_games`
        self.results: list[list[EpisodeResult]] = []
        self._memories: dict[str, list[str]] = {}
        self._traces: list[EpisodeTrace] = []  # of the last trial

    def play(self, on_result: Callable[[EpisodeResult, EpisodeTrace], None]) -> None:
        """One more trial of every game that is not solved yet."""
        solved = {result.game for trial in self.results for result in trial if result.won}
        # Now, not after the trial before: memories of the last trial would be written (and paid) for nobody.
        if self.reflector:
            self._memories = update_memories(self._traces, self._memories, self.reflector)
        self._traces = []

        def note(result: EpisodeResult, trace: EpisodeTrace) -> None:
            self._traces.append(trace)
            on_result(result, trace)

        games = [game for game in self.games if game.id not in solved]
        self.results.append(
            play_games(
                self.actor, games, self.make_environment, memories=self._memories, on_result=note, **self.options
            )
        )

    @property
    def first(self) -> list[EpisodeResult]:
        """The first trial: the figure to compare with others."""
        return self.results[0]

    @property
    def best(self) -> list[EpisodeResult]:
        """For each game its winning trial, else its last."""
        last = {result.game: result for trial in self.results for result in trial}
        return [last[game.id] for game in self.games]


def _begin(actor: Actor, game: Game, environment: Environment, memories: dict, repeat_limit: int) -> Play:
    now = environment.reset(game)
    history = EnvironmentHistory("", now.text, repeat_limit=repeat_limit)
    play = Play(game, environment, now.text, now, history, memories=memories.get(game.id, []))
    actor.begin(play)
    return play


def _result(play: Play) -> EpisodeResult:
    rejected = sum(feedback.strip() == NOTHING for _, feedback in play.steps)
    return EpisodeResult(play.game.id, play.game.task_type, play.now.won, play.actions, rejected)


def wilson_interval(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval of a success rate, 95 % by default; (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    rate = successes / trials
    centre = rate + z * z / (2 * trials)
    spread = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def summarise(results: Sequence[EpisodeResult]) -> dict[str, Any]:
    """Success, interval, mean steps over solved games, share of rejected actions; the same for every task type."""
    summary = _figures(results)
    types = sorted({result.task_type for result in results})
    summary["per_task_type"] = {kind: _figures([r for r in results if r.task_type == kind]) for kind in types}
    return summary


def _figures(results: Sequence[EpisodeResult]) -> dict[str, Any]:
    won = [result for result in results if result.won]
    actions = sum(result.actions for result in results)
    low, high = wilson_interval(len(won), len(results))
    return {
        "games": len(results),
        "solved": len(won),
        "success": len(won) / len(results) if results else 0.0,
        "interval": [low, high],
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
