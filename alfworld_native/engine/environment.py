"""The native engine as the project's `Environment`: canonical dialect, step limit, errors, frames."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from alfworld_native.base import MAX_STEPS, Game, TimeStep, check_count
from alfworld_native.drawing.state import RoomState
from alfworld_native.engine.game import NativeGame
from alfworld_native.engine.gamefile import GameText
from alfworld_native.engine.pddl import Fact
from alfworld_native.engine.state import Snapshot
from alfworld_native.engine.world import load_world, world_of
from alfworld_native.errors import EnvironmentFault
from alfworld_native.language.commands import canonical

if TYPE_CHECKING:
    import numpy as np


class NativeEnvironment:
    """ALFWorld's text games at full speed, in the canonical dialect; an `Environment`.

    Unlike the raw engine it ends: `done` when the goal is reached or after `max_steps` actions. A game of a mixture of
    levels ends at its own level's horizon, if that comes first.
    """

    name = "native"

    def __init__(
        self, max_steps: int = MAX_STEPS, show_ids: bool = True, games: Mapping[Path, GameText] | None = None
    ) -> None:
        """`games` were read beforehand, by path (`gamefile.read_games`); others are read when they are reset."""
        check_count("max_steps", max_steps)
        self.max_steps = max_steps
        self.show_ids = show_ids
        self._games = games or {}
        self._game: NativeGame | None = None
        self._limit = max_steps  # of the game that is loaded
        self._steps = 0
        self._done = False
        self._drawn: tuple[RoomState, np.ndarray] | None = None  # the state that was rendered last, and its frame

    def reset(self, game: Game) -> TimeStep:
        """Load `game` and return its opening text; MissingFileError or EnvironmentFault if that is impossible."""
        self._game = None
        text = self._games.get(game.path)
        world = load_world(game.path) if text is None else world_of(text)
        # The project's own dialect, whatever that of the game's file is (`put X in/on Y`, not `move X to Y`).
        self._game = NativeGame(world, dialect="put")
        self._limit = min(self.max_steps, game.horizon or self.max_steps)
        self._steps, self._done = 0, False
        return self._time_step(self._game.reset())

    def step(self, action: str) -> TimeStep:
        """Carry out `action` (canonical or the game's dialect).

        Raises EnvironmentFault before `reset`, after the end of the episode, or for an action that is no string.
        """
        game = self._playing()
        if self._done:
            raise EnvironmentFault("the episode is over; call reset(game) before the next step")
        if not isinstance(action, str):
            raise EnvironmentFault(f"an action is a string such as 'go to desk 1', not {type(action).__name__}")
        self._steps += 1
        return self._time_step(game.step(canonical(action.strip())))

    def render(self) -> np.ndarray:
        """The agent's view now: uint8, (height, width, 3), RGB."""
        from alfworld_native.drawing import frames

        state = self.room_state()
        if self._drawn is None or self._drawn[0] != state:  # a rejected action changes nothing
            self._drawn = state, frames.render(state, show_ids=self.show_ids)
        return self._drawn[1].copy()  # whoever draws on the frame must not change the kept one

    def view(self, size: int) -> np.ndarray:
        """The agent's view, `size` pixels wide and high, for people."""
        from alfworld_native.drawing import frames

        return frames.render(self.room_state(), size=size, show_ids=self.show_ids)

    def room_state(self) -> RoomState:
        """What holds in the room now, by PDDL id."""
        return self._playing().room_state()

    def facts(self) -> frozenset[Fact]:
        """All facts as TextWorld counts them, by PDDL id."""
        return self._playing().facts()

    def snapshot(self) -> tuple[Snapshot, int]:
        """The state of the episode now, with the number of its steps, for `restore`."""
        return self._playing().snapshot(), self._steps

    def restore(self, state: tuple[Snapshot, int]) -> TimeStep:
        """Go back (or forth) to a state of the same game; the time step's text is empty.

        EnvironmentFault for a state of another game.
        """
        snapshot, steps = state
        self._playing().restore(snapshot)
        self._steps = steps
        return self._time_step("")

    def clone(self) -> NativeEnvironment:
        """An independent environment in the same state."""
        # Not `type(self)`: the clone of an `AdvisedNativeEnvironment` has no expert.
        other = NativeEnvironment(self.max_steps, self.show_ids, self._games)
        other._game, other._limit = self._playing().clone(), self._limit
        other._steps, other._done = self._steps, self._done
        return other

    def close(self) -> None:
        """Forget the game."""
        self._game = None

    def _playing(self) -> NativeGame:
        if self._game is None:
            raise EnvironmentFault("no game is loaded; call reset(game) first")
        return self._game

    def _time_step(self, text: str) -> TimeStep:
        game = self._playing()
        won = game.won
        # After `restore` this is computed anew: a state before the end may be played on.
        self._done = won or self._steps >= self._limit
        return TimeStep(text, game.admissible_commands(), won, self._done)
