"""What a client's executor plays: one game after the other, each step an `Observation` for the server."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from alfworld_native.base import Environment, Game
from alfworld_native.experts.alfworld import AlfworldExpert
from alfworld_native.experts.base import Expert
from alfworld_native.reuse import ReusedEnvironments
from xrl_alignment.agents.experts import make_expert
from xrl_alignment.agents.language.prompt import build_prompt
from xrl_alignment.play.rollouts.play import Turn, play
from xrl_alignment.wire.messages import Observation

EnvironmentFactory = Callable[[], Environment]
ExpertFactory = Callable[[Environment], Expert]


class EnvironmentDescription(NamedTuple):
    """What the server has to know of an environment: its name, and whether an expert beside it gives advice."""

    name: str
    advises: bool


@dataclass(eq=False)
class ClientPlayer:
    """Plays games for an executor of `xrl_alignment.play.rollouts`; lives in the worker that has the environment.

    The rollout of a game yields an `Observation` and is sent the action, or None at the end; its value is whether the
    game was won, and after how many actions it ended. Environments are kept for the next game until `close`.
    `make_expert` makes an expert that runs beside the environment; without it, an environment that offers
    `expert_action()` is asked. With `write_history` observations have the text of the whole episode (v1: the client
    writes what the model reads).
    """

    environments: ReusedEnvironments
    make_expert: ExpertFactory | None = None
    blank_frames: bool = False
    write_history: bool = False
    _blank: np.ndarray | None = field(default=None, init=False, repr=False)

    def __call__(self, game: Game) -> Generator[Observation | None, str | None, tuple[bool, int]]:
        """Play one game. Only the server ends it: it gets an observation of the last state, too."""
        with self.environments.lend() as environment:
            expert = self.make_expert(environment) if self.make_expert else _own_expert(environment)
            agent = partial(self._ask_server, expert)
            episode = yield from play(environment, game, agent, expert=expert, max_steps=None)
            return episode.won, episode.actions

    def describe(self) -> EnvironmentDescription:
        """Describe the environments; makes one if there is none yet."""
        with self.environments.lend() as environment:
            advises = self.make_expert is not None or _own_expert(environment) is not None
            return EnvironmentDescription(environment.name, advises)

    def close(self) -> None:
        """Close the environments."""
        self.environments.close()

    def _ask_server(self, expert: Expert | None, turn: Turn) -> Generator[Observation, str | None, str | None]:
        """Send the state with the expert's label; the answer is the action, or None when the episode is over."""
        episode, information = turn.episode, turn.information
        if expert:
            # Asked here, not through `ask_expert`: whoever answers the questions of this rollout is the server.
            label = expert.act(information)
            information = {**information, "expert_action": label.action or "", "expert_thought": label.thought}
        image = self._blank
        if image is None:
            image = turn.environment.render()
            if self.blank_frames:
                self._blank = image = np.zeros_like(image)  # all frames have the same shape, so render only once
        return (
            yield Observation(
                text=turn.now.text,
                history=build_prompt(episode.text, [], episode.steps) if self.write_history else "",
                information=information,
                task_type="" if episode.steps else episode.game,  # on the wire only a first observation names its game
                done=episode.done,
                image=image,
            )
        )


def expert_beside(name: str, environment: Environment) -> Expert:
    """The expert called `name`, which reads what the environment says; here, because workers do not import programs."""
    return make_expert(name)


def _own_expert(environment: Environment) -> Expert | None:
    """The expert that `environment` brings, if it brings one.

    Ours all have the method `expert_action`, but only those that were made with an `expert` can answer it, so their
    attribute `expert` tells. An environment of somebody's own needs no such attribute.
    """
    made_without = hasattr(environment, "expert") and environment.expert is None
    if made_without or not hasattr(environment, "expert_action"):
        return None
    return AlfworldExpert(environment)  # type: ignore[arg-type]  # it has the method, as was just asked
