"""Plays a whole game without learning, for an executor of `rollouts`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from xrl_alignment.environments.base import MAX_STEPS, Environment, Game, TimeStep, information_of
from xrl_alignment.environments.drawing.frames import BLANK_FRAME
from xrl_alignment.environments.reuse import ReusedEnvironments
from xrl_alignment.evaluation.actors import PolicyQuestion
from xrl_alignment.evaluation.metrics import EpisodeResult
from xrl_alignment.experts.base import Expert, ExpertQuestion
from xrl_alignment.language.history import EpisodeTrace
from xrl_alignment.rollouts.episode import Episode

Job = tuple[Game, Sequence[str]]  # a game and its memories


class EvaluationPlayer:
    """Called with a game and its memories, it returns `(EpisodeResult, EpisodeTrace)`.

    A generator, as executors want it: it yields a question when it needs an answer from the caller's process, None to
    show that it made a step. With `enable_tc` thoughts (`think: …`) are answered `OK.` and cost no step, as in
    training. Environments are kept for the next game until `close`.
    """

    def __init__(
        self,
        make_environment: Callable[[], Environment],
        make_expert: Callable[[Environment], Expert] | None = None,
        *,
        max_steps: int = MAX_STEPS,
        repeat_limit: int = 0,
        enable_tc: bool = False,
        blank_frames: bool = False,
    ) -> None:
        self.make_expert = make_expert
        self.max_steps = max_steps
        self.repeat_limit = repeat_limit
        self.enable_tc = enable_tc
        self.blank_frames = blank_frames
        self._environments = ReusedEnvironments(make_environment)

    def __call__(self, job: Job) -> Generator[Any, Any, tuple[EpisodeResult, EpisodeTrace]]:
        """Play one game."""
        game, memories = job
        with self._environments.lend() as environment:
            now = environment.reset(game)
            episode = Episode(game=game.id, text=now.text, memories=memories, repeat_limit=self.repeat_limit)
            expert = self.make_expert(environment) if self.make_expert else None
            if expert:
                expert.begin(now.text, task_type=game.id, memories=memories)
            while not episode.over(self.max_steps):
                action = yield from self._choose(environment, episode, now, expert)
                if self.enable_tc and episode.may_think(action):
                    episode.think(action)
                    continue
                now = environment.step(episode.act(action))
                episode.hear(now.text, won=now.won, done=now.done)
                if expert:
                    expert.observe(action, now.text)
        result = EpisodeResult(game.id, game.task_type, episode.won, episode.actions, episode.rejected)
        return result, episode.trace()

    def close(self) -> None:
        """Close the environments."""
        self._environments.close()

    def _choose(
        self, environment: Environment, episode: Episode, now: TimeStep, expert: Expert | None
    ) -> Generator[Any, Any, str]:
        if expert is None:
            image = BLANK_FRAME if self.blank_frames else environment.render()
            return (
                yield PolicyQuestion(
                    episode.text, episode.memories, episode.steps, image, now.admissible_commands, episode.game
                )
            )
        information = information_of(environment, now)
        if getattr(expert, "pool", None):
            label = yield ExpertQuestion(expert, information)
        else:
            label = expert.act(information)
            yield None
        return label.action or "look"
