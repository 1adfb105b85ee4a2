"""What a client's executor plays: one game after the other, each step an `Observation` for the server."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from xrl_alignment.environments.base import Environment, Game, TimeStep, information_of
from xrl_alignment.environments.reuse import ReusedEnvironments
from xrl_alignment.experts import make_expert
from xrl_alignment.experts.base import Expert
from xrl_alignment.language.prompt import build_prompt
from xrl_alignment.rollouts.episode import Episode
from xrl_alignment.wire.messages import Observation

EnvironmentFactory = Callable[[], Environment]
ExpertFactory = Callable[[Environment], Expert]


class EnvironmentDescription(NamedTuple):
    """What the server has to know of an environment: its name, and whether an expert beside it gives advice."""

    name: str
    advises: bool


class PlayedGame(NamedTuple):
    """How an episode ended."""

    won: bool
    actions: int


@dataclass(eq=False)
class ClientPlayer:
    """Plays games for an executor of `xrl_alignment.rollouts`; lives in the worker that has the environment.

    The rollout of a game yields an `Observation` and is sent the action, or None at the end; its value is a
    `PlayedGame`. Environments are kept for the next game until `close`. `make_expert` makes an expert that runs beside
    the environment; without it, an environment that offers `expert_action()` is asked. With `write_history`
    observations have the text of the whole episode (v1: the client writes what the model reads).
    """

    environments: ReusedEnvironments
    make_expert: ExpertFactory | None = None
    blank_frames: bool = False
    write_history: bool = False
    _blank: np.ndarray | None = field(default=None, init=False, repr=False)

    def __call__(self, game: Game) -> Generator[Observation, str | None, PlayedGame]:
        """Play one game."""
        with self.environments.lend() as environment:
            now = environment.reset(game)
            episode = Episode(game=game.id, text=now.text, won=bool(now.won), done=now.done)
            expert = self.make_expert(environment) if self.make_expert else None
            if expert:
                expert.begin(now.text, task_type=game.id)
            while (action := (yield self._observe(environment, episode, now, expert))) is not None:
                now = environment.step(episode.act(action))
                episode.hear(now.text, won=bool(now.won), done=now.done)
                if expert:
                    expert.observe(action, now.text)
            return PlayedGame(episode.won, episode.actions)

    def describe(self) -> EnvironmentDescription:
        """Describe the environments; makes one if there is none yet."""
        with self.environments.lend() as environment:
            advises = self.make_expert is not None or _advice_of(environment) is not None
            return EnvironmentDescription(environment.name, advises)

    def close(self) -> None:
        """Close the environments."""
        self.environments.close()

    def _observe(self, environment: Environment, episode: Episode, now: TimeStep, expert: Expert | None) -> Observation:
        information = information_of(environment, now)
        if expert:
            label = expert.act(information)
            information = {**information, "expert_action": label.action or "", "expert_thought": label.thought}
        elif advice := _advice_of(environment):
            information |= {"expert_action": advice() or "", "expert_thought": ""}
        return Observation(
            text=now.text,
            history=build_prompt(episode.text, [], episode.steps) if self.write_history else "",
            information=information,
            task_type="" if episode.steps else episode.game,
            done=episode.done,
            image=self._frame(environment),
        )

    def _frame(self, environment: Environment) -> np.ndarray:
        if self._blank is not None:
            return self._blank
        frame = environment.render()
        if self.blank_frames:
            self._blank = frame = np.zeros_like(frame)  # all frames have the same shape, so render only once
        return frame


def expert_beside(name: str, environment: Environment) -> Expert:
    """The expert called `name`, which reads what the environment says; here, because workers do not import programs."""
    return make_expert(name)


def _advice_of(environment: Environment) -> Callable[[], str | None] | None:
    """The environment's `expert_action`, if it has one; ours have it, but answer only where made with an `expert`."""
    return getattr(environment, "expert_action", None) if getattr(environment, "expert", "own") is not None else None
