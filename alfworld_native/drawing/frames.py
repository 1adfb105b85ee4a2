"""What the agent sees: a first-person frame of a room's state, for environments without a simulator that renders.

`render` is the entry. It lays the room out (`geometry`), collects the solids (`scene`), orders them far to near for a
pinhole camera at the agent's location (`view`), fills their polygons (`painter`) and writes names over them (`labels`).
What depends only on the room or only on the standing point is cached, so a frame costs little more than filling its
polygons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from numbers import Integral

import numpy as np
from PIL import Image, ImageDraw

from alfworld_native.drawing.geometry import RoomGeometry
from alfworld_native.drawing.hand import hand
from alfworld_native.drawing.labels import (
    CELLS,
    LABEL_DISTANCE,
    SMALLEST_CELL,
    FrameLabel,
    LabelCandidate,
    is_in_sight,
    label_candidates,
    label_image,
    place_labels,
)
from alfworld_native.drawing.painter import apply_strokes
from alfworld_native.drawing.scene import held_solid, solids
from alfworld_native.drawing.state import RoomState
from alfworld_native.drawing.view import SCALE, DrawnSolid, RoomView
from lavis.common.errors import ConfigError

Extent = tuple[float, float, float, float]  # left, top, right, bottom
SMALLEST, LARGEST = 32, 4096  # pixels
AROUND = 4  # frames that show the whole room, a quarter turn apart
_AROUND_DISTANCE = 5.0  # metres up to which labels reach in them
BLANK_FRAME = np.zeros((224, 224, 3), np.uint8)  # what a model sees instead, to measure what it takes from images
# Cached: of rooms as many as of worlds (`load_world`), because games that are played at once ask by turns. A room takes
# 0.01 to 0.08 MB, a view about 0.2 MB.
_ROOMS, _VIEWS = 512, 192


def render(state: RoomState, *, size: int = 224, show_ids: bool = True, seed: int = 0) -> np.ndarray:
    """The agent's view of `state`: uint8, (size, size, 3), RGB; always the same for the same arguments.

    `size` is in pixels, at least 32 (ConfigError otherwise). `show_ids` writes the names of near things on them, where
    the frame is large enough for letters. `seed` chooses the colours of walls and floor. Ids that carry no geometry
    are no error: the thing gets a place that depends on its id alone.
    """
    return render_labelled(state, size=size, show_ids=show_ids, seed=seed)[0]


def render_around(state: RoomState, *, size: int = 224, show_ids: bool = True, seed: int = 0) -> np.ndarray:
    """Frames in all four directions, one below the other: uint8, (4 * size, size, 3), RGB.

    The first is the agent's view, each next one a quarter turn clockwise. Labels reach farther than in `render`; what
    is in reach has its label in the first frame alone. ConfigError for a frame of less than 32 pixels.
    """
    return np.concatenate([_frame(state, size, show_ids, seed, turn, _AROUND_DISTANCE)[0] for turn in range(AROUND)])


def with_labels(frame: np.ndarray, things: Sequence[tuple[str, Extent]], state: RoomState) -> np.ndarray:
    """`frame` (uint8, size × size × 3) with the names of the `things` in it, and of what is in the hand.

    A thing is its name and its extent in pixels of the supersampled frame. A frame that is too small for letters gets
    none.
    """
    cell = len(frame) // CELLS
    if cell < SMALLEST_CELL:
        return frame
    candidates = [LabelCandidate(1, float(n), name, "object", box) for n, (name, box) in enumerate(things) if name]
    room, _, _ = _seen(state, len(frame), 0)
    written = Image.fromarray(frame)
    _write(written, place_labels(candidates, held_solid(room, state), cell), cell)
    return np.array(written)


def render_labelled(
    state: RoomState, *, size: int = 224, show_ids: bool = True, seed: int = 0
) -> tuple[np.ndarray, list[FrameLabel]]:
    """`render`, and the labels that were written."""
    return _frame(state, size, show_ids, seed, 0, LABEL_DISTANCE)


def check_size(size: int) -> None:
    """ConfigError for a frame of `size` pixels that shows nothing, or takes 50 MB and more."""
    if not isinstance(size, Integral) or not SMALLEST <= size <= LARGEST:
        raise ConfigError(f"frame size is {size!r}; frames are {SMALLEST} to {LARGEST} pixels wide and high")


def _frame(
    state: RoomState, size: int, show_ids: bool, seed: int, turn: int, farthest: float
) -> tuple[np.ndarray, list[FrameLabel]]:
    """The view after `turn` quarter turns, and its labels, which reach `farthest` metres."""
    check_size(size)
    # Everything is rendered SCALE times as large and then averaged, which smooths the edges of polygons.
    room, view, ordered = _seen(state, size, seed, turn)
    large = Image.new("RGB", (view.side, view.side), (240, 240, 236))
    canvas = ImageDraw.Draw(large)
    apply_strokes(canvas, view.backdrop)
    for drawing in ordered:
        apply_strokes(canvas, drawing.strokes)
    held = None if turn else held_solid(room, state)
    if held is not None:
        apply_strokes(canvas, hand(held, view.side))
    frame = large.reduce(SCALE)
    # Letters are written after the reduction: averaged ones would be blurred.
    labels = _labels(state, size, seed, turn, farthest) if show_ids else []
    cell = size // CELLS
    _write(frame, labels, cell)
    return np.array(frame), labels


def objects_in_view(state: RoomState, *, size: int = 224, seed: int = 0, turn: int = 0) -> dict[str, str]:
    """The objects that a frame of `state` shows: name -> name of the receptacle that holds it.

    `turn` counts quarter turns of the camera, clockwise.
    """
    _, view, ordered = _seen(state, size, seed, turn)
    shown: set[str] = set()
    for index, drawing in enumerate(ordered):
        own = state.contents.get(drawing.solid.key[0], ())  # what lies on a thing does not hide it
        later = [other for other in ordered[index + 1 :] if other.solid.key[0] not in own]
        inside = [inner for solid in drawing.solid.inside if (inner := view.drawing(solid)) is not None]
        shown.update(each.solid.name for each in (drawing, *inside) if is_in_sight(each, later, view))
    return {thing: place for thing, place in state.places().items() if thing in shown}


def objects_labelled(state: RoomState, *, size: int = 224, seed: int = 0, around: bool = False) -> dict[str, str]:
    """The objects that labels name: name -> name of the receptacle that holds it.

    They are those of `render`, or with `around` of `render_around`.
    """
    turns, farthest = (AROUND, _AROUND_DISTANCE) if around else (1, LABEL_DISTANCE)
    written = {label.name for turn in range(turns) for label in _labels(state, size, seed, turn, farthest)}
    return {thing: place for thing, place in state.places().items() if thing in written}


def _labels(state: RoomState, size: int, seed: int, turn: int, farthest: float) -> list[FrameLabel]:
    """The labels of a frame; none if it is too small for letters."""
    cell = size // CELLS
    if cell < SMALLEST_CELL:
        return []
    room, view, ordered = _seen(state, size, seed, turn)
    candidates, held = label_candidates(view, state, ordered, farthest), held_solid(room, state)
    if turn:  # the first frame shows what is in hand and in reach
        near = {state.names.get(key) for key in state.in_reach()}
        candidates, held = [each for each in candidates if each.name not in near], None
    return place_labels(candidates, held, cell)


def _seen(state: RoomState, size: int, seed: int, turn: int = 0) -> tuple[RoomGeometry, RoomView, list[DrawnSolid]]:
    """The room, the view from where the agent stands, and what is in it, far to near."""
    # Receptacles that hold something, but have no location of their own (a plate on a table).
    unreached = frozenset(state.contents.keys() - state.receptacle_locations.keys())
    room = _room(_MappingKey(state.names), _MappingKey(state.receptacle_locations), unreached)
    view = _view(room, state.location, size, seed, turn)
    drawings = [d for solid in solids(room, state) if (d := view.drawing(solid)) is not None]
    return room, view, view.in_order(drawings)


class _MappingKey:
    """A mapping as a cache key: hashed by its keys; comparing is fast if it is the same object."""

    __slots__ = ("of",)

    def __init__(self, of: Mapping[str, str]):
        self.of = of

    def __hash__(self) -> int:
        return hash(frozenset(self.of))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _MappingKey) and (self.of is other.of or dict(self.of) == dict(other.of))


@lru_cache(maxsize=_ROOMS)
def _room(names: _MappingKey, locations: _MappingKey, unreached: frozenset[str]) -> RoomGeometry:
    return RoomGeometry(names.of, locations.of, unreached.union(locations.of))


@lru_cache(maxsize=_VIEWS)
def _view(room: RoomGeometry, location: str, size: int, seed: int, turn: int) -> RoomView:
    return RoomView(room, location, size, seed, turn)


def forget_rooms() -> None:
    """Empty the caches of rooms and views (for measurements)."""
    _room.cache_clear()
    _view.cache_clear()


def _write(frame: Image.Image, labels: list[FrameLabel], cell: int) -> None:
    for label in labels:
        frame.paste(label_image(label.name, cell, label.kind), (label.column * cell, label.row * cell))
