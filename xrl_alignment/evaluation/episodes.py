"""Plays whole episodes without learning: a policy over many games at once, or an expert alone; and counts.

Figures follow the field's habits: success in a single trial, mean steps over solved games, each by task type, with
Wilson's 95 % interval (Wilson 1927) so that a small number of games shows as a wide interval.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from xrl_alignment.common.intervals import wilson_interval
from xrl_alignment.environments.base import MAX_STEPS, Environment, Game, TimeStep
from xrl_alignment.experts.base import Expert, Label, act_all
from xrl_alignment.language.commands import MAX_THOUGHTS, is_thought
from xrl_alignment.language.history import EnvironmentHistory, EpisodeTrace
from xrl_alignment.language.prompt import build_prompt, opening
from xrl_alignment.language.sentences import NOTHING_HAPPENS
from xrl_alignment.policies.base import Policy, PolicyInput
from xrl_alignment.reflexion.base import Reflector, update_memories
from xrl_alignment.rollouts.executors import Outcome, RolloutExecutor, SequentialExecutor

Job = tuple[Game, Sequence[str]]  # a game and its memories


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


class View(NamedTuple):
    """What a policy may know of an episode: it travels from where the environment is to where the policy is."""

    opening: str
    memories: Sequence[str]
    steps: Sequence[tuple[str, str]]
    image: np.ndarray
    admissible_commands: Sequence[str]
    game: str = ""


class Consultation(NamedTuple):
    """An expert that waits for a network, and what it is told: answered with its `Label`, many at once."""

    expert: Expert
    information: dict[str, Any]


class Actor(Protocol):
    """Who plays: `make_expert` beside the environment, or where that is None, whoever answers `View`s."""

    make_expert: Callable[[Environment], Expert] | None
    blank_frames: bool

    def answer(self, questions: Sequence[Any]) -> Sequence[Any]:
        """Answer what `Episodes` ask, in order: an action for a `View`, a `Label` for a `Consultation`."""
        ...


class PolicyActor:
    """A policy plays; it sees what `write_prompt` writes and the frame (black with `blank_frames`)."""

    make_expert = None

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

    def answer(self, questions: Sequence[View]) -> list[str]:
        """Ask the policy once for all episodes."""
        return self.policy.act([self._input(view) for view in questions])

    def _input(self, view: View) -> PolicyInput:
        prompt = self.write_prompt(view.opening, view.memories, view.steps)
        return PolicyInput(prompt, view.image, view.admissible_commands, view.game)


class ExpertActor:
    """An expert plays alone; a fresh one for every game. No answer (filtered) becomes `look`."""

    blank_frames = False

    def __init__(self, make_expert: Callable[[Environment], Expert]) -> None:
        self.make_expert = make_expert

    def answer(self, questions: Sequence[Consultation]) -> list[Label]:
        """Ask all experts that wait for a network at once."""
        return act_all([asked.expert for asked in questions], [asked.information for asked in questions])


@dataclass(eq=False)
class Episodes:
    """Plays games for a `rollouts` executor: called with a game and its memories, an episode is a generator.

    It returns `(EpisodeResult, EpisodeTrace)`. Environments are kept for the next game until `close`.
    """

    make_environment: Callable[[], Environment]
    make_expert: Callable[[Environment], Expert] | None = None
    max_steps: int = MAX_STEPS
    repeat_limit: int = 0
    enable_tc: bool = False
    blank_frames: bool = False
    _idle: list[Environment] = field(default_factory=list, init=False, repr=False)

    def __call__(self, job: Job) -> Generator[Any, Any, tuple[EpisodeResult, EpisodeTrace]]:
        """Play one game."""
        game, memories = job
        environment = self._idle.pop() if self._idle else self.make_environment()
        try:
            now = environment.reset(game)
            history = EnvironmentHistory("", now.text, repeat_limit=self.repeat_limit)
            play = Play(game, environment, now.text, now, history, memories=memories)
            expert = self.make_expert(environment) if self.make_expert else None
            if expert:
                expert.begin(now.text, task_type=game.id, memories=memories)
            while not play.over(self.max_steps):
                action = yield from self._choose(play, expert)
                if self.enable_tc and is_thought(action) and play.thoughts < MAX_THOUGHTS:
                    play.think(action)
                    continue
                play.act(action)
                if expert:
                    expert.observe(action, play.now.text)
            return _result(play), play.trace()
        finally:
            self._idle.append(environment)

    def close(self) -> None:
        """Close the environments."""
        while self._idle:
            self._idle.pop().close()

    def _choose(self, play: Play, expert: Expert | None) -> Generator[Any, Any, str]:
        if expert is None:
            image = np.zeros((224, 224, 3), np.uint8) if self.blank_frames else play.environment.render()
            commands = play.now.admissible_commands
            return (yield View(play.opening_text, play.memories, play.steps, image, commands, play.game.id))
        information = {"admissible_commands": play.now.admissible_commands}
        if getattr(expert, "pool", None):
            label = yield Consultation(expert, information)
        else:
            label = expert.act(information)
            yield None
        return label.action or "look"


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
    """Play every game once; results, and calls of `on_result`, in the order of `games`.

    Without an `executor` the games are played in this process, up to `concurrency` at a time. `options` are those of
    `Episodes`; with `enable_tc` thoughts (`think: …`) are answered `OK.` and cost no step, as in training. A game that
    was lost with its workers has a `fault` and no trace.
    """
    episodes = Episodes(make_environment, actor.make_expert, blank_frames=actor.blank_frames, **options)
    if executor is None:
        with SequentialExecutor(concurrency) as own:
            return _play_all(own, episodes, actor, games, memories or {}, on_result)
    return _play_all(executor, episodes, actor, games, memories or {}, on_result)


def _play_all(
    executor: RolloutExecutor,
    episodes: Episodes,
    actor: Actor,
    games: Sequence[Game],
    memories: dict[str, list[str]],
    on_result: Callable[[EpisodeResult, EpisodeTrace | None], None],
) -> list[EpisodeResult]:
    jobs = [(game, memories.get(game.id, [])) for game in games]
    results = []
    for outcome in executor.run(episodes, jobs, answer=actor.answer, key=lambda job: job[0].id):
        result, trace = (_lost(outcome), None) if outcome.fault else outcome.value
        results.append(result)
        on_result(result, trace)
    return results


class Trials:
    """The same games again and again: solved ones are not played again, failed ones get a memory from `reflector`.

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
        concurrency: int = 32,
        **options: Any,
    ) -> None:
        """`options` are those of `Episodes`; `concurrency` counts only without an `executor`."""
        self.actor = actor
        self.games = games
        self.reflector = reflector
        self.executor = executor or SequentialExecutor(concurrency)
        self.results: list[list[EpisodeResult]] = []
        self._episodes = Episodes(make_environment, actor.make_expert, blank_frames=actor.blank_frames, **options)
        self._memories: dict[str, list[str]] = {}
        self._traces: list[EpisodeTrace] = []  # of the last trial

    def play(self, on_result: Callable[[EpisodeResult, EpisodeTrace | None], None]) -> None:
        """One more trial of every game that is not solved yet."""
        solved = {result.game for trial in self.results for result in trial if result.won}
        # Now, not after the trial before: memories of the last trial would be written (and paid) for nobody.
        if self.reflector:
            self._memories = update_memories(self._traces, self._memories, self.reflector)
        self._traces = []

        def note(result: EpisodeResult, trace: EpisodeTrace | None) -> None:
            if trace:
                self._traces.append(trace)
            on_result(result, trace)

        games = [game for game in self.games if game.id not in solved]
        self.results.append(_play_all(self.executor, self._episodes, self.actor, games, self._memories, note))

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
        last = {result.game: result for trial in self.results for result in trial}
        return [last[game.id] for game in self.games]


def _lost(outcome: Outcome) -> EpisodeResult:
    game, _ = outcome.job
    return EpisodeResult(game.id, game.task_type, False, 0, 0, outcome.fault)


def _result(play: Play) -> EpisodeResult:
    rejected = sum(feedback.strip() == NOTHING_HAPPENS for _, feedback in play.steps)
    return EpisodeResult(play.game.id, play.game.task_type, play.now.won, play.actions, rejected)


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
