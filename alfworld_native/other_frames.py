"""Frames of another game (`environment.other_frames`): the ablation that shows whether an agent looks at its own."""

from __future__ import annotations

import random

import numpy as np

from alfworld_native.base import Environment, Game, TimeStep, WrappedEnvironment
from alfworld_native.errors import EnvironmentFault
from alfworld_native.experts.explorer import Explorer
from alfworld_native.games import find_games


class OtherGamesFrames(WrappedEnvironment):
    """`environment` with the frames of another game of its split, of another task; all else is the game's own.

    The explorer plays the other game, a step for each step of the agent, so the frames are as such frames are: of
    places that somebody searches. If that game is over, it begins again. Which game it is depends on `seed` and the
    game's id alone.
    """

    frames_of_another_game = True  # what holds in the room says nothing of what a frame shows

    def __init__(self, environment: Environment, other: Environment, *, seed: int = 0) -> None:
        """`other` is an environment like `environment`, for the other game."""
        super().__init__(environment)
        self._other = other
        self._seed = seed
        self._game: Game | None = None  # the other game

    def reset(self, game: Game) -> TimeStep:
        """As the environment's; EnvironmentFault if the folder of the game holds no game of another task."""
        self._game = None  # if anything fails below, no game is loaded
        task, parents = game.id.split("/", 1)[0], game.path.parents
        if len(parents) < 5:  # <root>/json_2.1.1/<split>/<task>/<trial>/<file>
            raise EnvironmentFault(f"environment.other_frames: {game.path} is in no folder of ALFWorld's games")
        others = [each for each in find_games(game.split, parents[4]) if not each.id.startswith(f"{task}/")]
        if not others:
            message = f"environment.other_frames: {parents[4]} holds no game of another task than {game.id}"
            raise EnvironmentFault(message)
        now = super().reset(game)
        self._game = random.Random(f"{self._seed} {game.id}").choice(others)
        self._begin()
        return now

    def step(self, action: str) -> TimeStep:
        """See `Environment`."""
        if self._game is None:
            raise EnvironmentFault("no game is loaded; call reset(game) first")
        now = super().step(action)  # first, so that its error is raised before `reset` and after the end
        advice = self._expert.act().action or "look"
        heard = self._other.step(advice)
        if heard.done:
            self._begin()
        else:
            self._expert.observe(advice, heard.text)
        return now

    def render(self) -> np.ndarray:
        """The other game's frame: uint8, (height, width, 3), RGB."""
        return self._other.render()

    def view(self, size: int) -> np.ndarray:
        """The same, `size` pixels wide and high."""
        return self._other.view(size)  # type: ignore[attr-defined]

    def close(self) -> None:
        """See `Environment`."""
        self._other.close()
        super().close()

    def _begin(self) -> None:
        assert self._game is not None  # `reset` has drawn it
        self._expert = Explorer()
        self._expert.begin(self._other.reset(self._game).text)
