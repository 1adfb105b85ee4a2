"""Frames of the receptacle that the agent stands at, its objects drawn big (`environment.camera=close`)."""

from __future__ import annotations

import logging
from collections import Counter
from zlib import crc32

import numpy as np

from alfworld_native.base import Environment, Game, TimeStep, WrappedEnvironment
from alfworld_native.drawing.close import close_scene, paint_scene
from alfworld_native.drawing.frames import check_size, render, with_labels
from alfworld_native.drawing.ids import kind_of
from alfworld_native.drawing.looks import is_known
from alfworld_native.drawing.objects import NOT_RENDERED
from alfworld_native.drawing.painter import extent
from alfworld_native.drawing.state import RoomState
from lavis.common.errors import ConfigError

logger = logging.getLogger(__name__)
# One warning for each type and process: a run begins thousands of games.
_told: set[str] = set()  # types without a drawing that this process has told of


class CloseEnvironment(WrappedEnvironment):
    """`environment` with frames from near; before the first `go to` they show the room.

    Light, materials and the variants of objects are drawn for each game, by `seed` and the game's id. Games of a split
    whose name says `train` have training variants, all others have variants that no training game shows. Objects of a
    type without a drawing (games of another generator) are unknown boxes; a warning counts them at the first game.

    Raises ConfigError for an environment that does not tell where things are: AI2-THOR, or one's own.
    """

    camera = "close"

    def __init__(self, environment: Environment, *, seed: int = 0) -> None:
        if not hasattr(environment, "room_state"):
            raise ConfigError(f"environment.camera=close: {environment.name} renders its own frames")
        super().__init__(environment)
        self._seed = seed
        self._looks = 0  # the game's own seed
        self._held_out = False
        self._drawn: tuple[RoomState, np.ndarray] | None = None  # the state that was rendered last, and its frame

    def reset(self, game: Game) -> TimeStep:
        """See `Environment`."""
        # A checksum and not `hash`, which differs in each Python process: a game looks the same in all of them.
        self._looks = crc32(f"{self._seed} {game.id}".encode())
        self._held_out = "train" not in game.split
        self._drawn = None
        now = super().reset(game)
        state = self.room_state()
        things = {thing for contents in state.contents.values() for thing in contents}
        kinds = Counter(kind_of(state.names.get(thing, thing)) for thing in things)
        drawn = {*_told, *NOT_RENDERED}
        if unknown := {kind: count for kind, count in kinds.items() if kind not in drawn and not is_known(kind)}:
            _told.update(unknown)
            named = ", ".join(f"{kind} ({count})" for kind, count in sorted(unknown.items()))
            logger.warning("%s: objects without a drawing, shown as unknown boxes: %s", game.id, named)
        return now

    def render(self) -> np.ndarray:
        """The view from near: uint8, (224, 224, 3), RGB (`render_close`)."""
        return self.view(224).copy()

    def view(self, size: int) -> np.ndarray:
        """The same view, `size` pixels wide and high."""
        state = self.room_state()
        # A rejected command changes nothing, and to draw a close view again takes longer than a step.
        if self._drawn is None or self._drawn[0] != state or len(self._drawn[1]) != size:
            frame = render_close(state, size=size, show_ids=self.show_ids, seed=self._looks, held_out=self._held_out)
            self._drawn = state, frame
        return self._drawn[1]


def render_close(
    state: RoomState, *, size: int = 224, show_ids: bool = True, seed: int = 0, held_out: bool = False
) -> np.ndarray:
    """The receptacle that the agent stands at, seen from near (`drawing.close`): uint8, (size, size, 3), RGB.

    Where it stands at none, as before its first `go to`, the frame shows the room. `seed` draws light, camera,
    materials and the variants of objects, `held_out` ones that no training game shows. `show_ids` writes the names of
    the objects. ConfigError for a `size` that `check_size` refuses.
    """
    check_size(size)
    scene = close_scene(state, size, seed, held_out)
    if scene is None:
        return render(state, size=size, show_ids=show_ids)
    frame = paint_scene(scene, size)
    if not show_ids:
        return frame
    return with_labels(frame, [(thing.name, extent(thing.strokes)) for thing in scene.things if thing.strokes], state)
