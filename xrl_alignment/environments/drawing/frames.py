"""What the agent sees, drawn: a first-person picture of a room's state where no simulator renders one.

A pinhole camera stands where the location id says (`geometry`); boxes, tubes and balls (`shapes`, `scene`) are painted
far to near (`painter`). All solids are axis-aligned, so for most pairs a plane between them tells exactly which may
hide the other; where they interpenetrate, the smaller is painted later.

Numbers of objects and receptacles cannot be seen in a rendered world, but the text speaks of "cabinet 2": `show_ids`
writes them on what is near, dark on what the agent can take from where it stands. Labels lie on a grid of 16 x 16
cells, the patches of InstructBLIP's vision model (14 pixels of 224): a word is cut into patches in one way only. What
is computed for a room and for a standing point is kept (the last `_ROOMS` and `_VIEWS` of them), so that a frame costs
little more than filling its polygons.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from xrl_alignment.environments.drawing.geometry import Pose, Room, stable
from xrl_alignment.environments.drawing.painter import Camera, Stroke, extent, paint
from xrl_alignment.environments.drawing.scene import Solid, held_solid, solids
from xrl_alignment.environments.drawing.state import RoomState

FIELD_OF_VIEW = 75.0  # degrees; ALFRED's 60 cuts off 6 % of the receptacles that the agent stands at, 75 only 1 %
CAMERA_HEIGHT = 1.575  # metres: AI2-THOR's agent, centre at 0.9 and camera 0.675 above it
CEILING = 2.7  # metres
SMALLEST = 32  # pixels
_SCALE = 2  # drawn twice as large, then averaged: smooth edges
_LABEL_DISTANCE = 2.6  # metres; what is farther is not labelled
_MOST_LABELS = 14  # what is in reach has a label even beyond that
_CELLS = 16  # of the grid of labels, each way
_SMALLEST_CELL = 8  # pixels, for letters
_LABEL_COLOURS = {  # background, writing
    "receptacle": ((250, 250, 246), (20, 20, 24)),
    "in reach": ((20, 24, 40), (255, 255, 255)),
    "object": ((126, 134, 150), (246, 246, 246)),
}
_ROOMS, _VIEWS = 32, 192  # kept at a time; a view takes about 0.2 MB
_DRAWINGS, _ORDERS = 512, 64  # kept for one view
_WALLS = ((222, 214, 198), (206, 214, 220), (214, 220, 204), (226, 210, 202), (212, 208, 220))
_FLOORS = ((168, 136, 102), (150, 146, 140), (184, 164, 138), (134, 112, 92), (176, 172, 164))
_SKIN, _SLEEVE = (222, 178, 146), (70, 96, 140)


class _Same:
    """A mapping as a key: by its keys, equal at once if it is the same object (an engine hands out one per game)."""

    __slots__ = ("of",)

    def __init__(self, of: Mapping[str, str]):
        self.of = of

    def __hash__(self) -> int:
        return hash(frozenset(self.of))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and (self.of is other.of or dict(self.of) == dict(other.of))


class _Drawing(NamedTuple):
    """A solid as seen from one place: its strokes, their extent in pixels, the distance to its middle in metres."""

    solid: Solid
    strokes: list[Stroke]
    extent: tuple[float, float, float, float]
    distance: float


class _View:
    """What a room looks like from one standing point, and everything already computed for it."""

    def __init__(self, room: Room, location: str, size: int, seed: int):
        self.pose, self.side = room.pose(location), size * _SCALE
        focal = self.side / 2 / np.tan(np.radians(FIELD_OF_VIEW / 2))
        eye = (self.pose.x, CAMERA_HEIGHT, self.pose.z)
        self.camera = Camera(eye, self.pose, float(focal), (self.side / 2, self.side / 2))
        self.backdrop = _backdrop(self.camera, room, seed)
        self._drawings: dict[tuple, _Drawing | None] = {}
        self._orders: dict[tuple, list[int]] = {}

    def drawing(self, solid: Solid) -> _Drawing | None:
        """`solid` as seen from here, None if it is out of sight."""
        found = self._drawings.get(solid.key, self)  # self: not known yet
        if found is self:
            if len(self._drawings) >= _DRAWINGS:
                self._drawings.clear()
            found = self._drawings[solid.key] = self._drawn(solid)
        return found

    def _drawn(self, solid: Solid) -> _Drawing | None:
        x0, y0, z0, x1, y1, z1 = solid.box
        reach = ((x1 - x0) ** 2 + (y1 - y0) ** 2 + (z1 - z0) ** 2) ** 0.5 / 2
        if solid.opening.startswith("front"):
            reach *= 2  # the door stands out
        seen = self.camera.see((x0 + x1) / 2, (y0 + y1) / 2, (z0 + z1) / 2)
        ahead = seen[2] + reach
        if ahead <= 0 or abs(seen[0]) > ahead + reach or abs(seen[1]) > ahead + reach:
            return None
        strokes = paint(self.camera, solid)
        if not strokes:
            return None
        left, top, right, bottom = box = extent(strokes)
        if right < 0 or bottom < 0 or left > self.side or top > self.side:
            return None
        return _Drawing(solid, strokes, box, sum(v * v for v in seen) ** 0.5)

    def in_order(self, drawings: list[_Drawing]) -> list[_Drawing]:
        """Far to near, so that what is painted later may hide what is painted before."""
        key = tuple(d.solid.key for d in drawings)
        order = self._orders.get(key)
        if order is None:
            if len(self._orders) >= _ORDERS:
                self._orders.clear()
            order = self._orders[key] = _far_to_near(self.camera.eye, drawings)
        return [drawings[i] for i in order]


def _far_to_near(eye: tuple[float, float, float], drawings: list[_Drawing]) -> list[int]:
    """Indices in painting order: depth-first over "must be painted before", farthest first."""
    if not drawings:
        return []
    before = _must_precede(eye, drawings)
    done, order = [False] * len(drawings), []

    def visit(index: int) -> None:
        if done[index]:
            return
        done[index] = True
        for other in before[index]:
            visit(other)
        order.append(index)

    for index in sorted(range(len(drawings)), key=lambda i: -drawings[i].distance):
        visit(index)
    return order


def _must_precede(eye: tuple[float, float, float], drawings: list[_Drawing]) -> list[list[int]]:
    """For each drawing the indices of those that it may hide, which are therefore painted before it."""
    boxes = np.array([d.solid.face or d.solid.box for d in drawings])
    slack = np.minimum(0.02, (boxes[:, 3:] - boxes[:, :3]) / 3)
    low, high, camera = boxes[:, :3] + slack, boxes[:, 3:] - slack, np.array(eye)
    apart = high[:, None, :] <= low[None, :, :]  # i ends below where j begins, by axis
    nearer = (apart & (camera <= low[None, :, :])).any(2) | (
        apart.transpose(1, 0, 2) & (camera >= low[:, None, :])
    ).any(2)
    hides = nearer & ~nearer.T
    touching = ~(apart.any(2) | apart.any(2).T)
    volume = (boxes[:, 3:] - boxes[:, :3]).prod(1)
    hides |= touching & (volume[:, None] < volume[None, :])
    seen = np.array([d.extent for d in drawings])
    overlap = (seen[:, None, 0] < seen[None, :, 2]) & (seen[:, None, 1] < seen[None, :, 3])
    hides &= overlap & overlap.T
    return [np.flatnonzero(row).tolist() for row in hides]


def _backdrop(camera: Camera, room: Room, seed: int) -> list[Stroke]:
    """Floor, ceiling and walls of the room's bounding box, with floor lines every half metre."""
    x0, z0, x1, z1 = room.bounds
    pick = stable(f"{seed} {min(room.names, default='')}", len(_WALLS) * len(_FLOORS))
    wall, floor = _WALLS[pick % len(_WALLS)], _FLOORS[pick // len(_WALLS)]
    line = tuple(c * 9 // 10 for c in floor)
    sides = [
        ([(x0, 0, z0), (x1, 0, z0), (x1, 0, z1), (x0, 0, z1)], floor, line),
        ([(x0, CEILING, z0), (x1, CEILING, z0), (x1, CEILING, z1), (x0, CEILING, z1)], (240, 240, 236), wall),
    ]
    for (ax, az), (bx, bz), light in (
        ((x0, z0), (x1, z0), 0.95),
        ((x0, z1), (x1, z1), 0.95),
        ((x0, z0), (x0, z1), 0.87),
        ((x1, z0), (x1, z1), 0.87),
    ):
        for low, high, share in ((0.0, CEILING, light), (0.0, 0.09, light * 0.8)):
            colour = tuple(int(c * share) for c in wall)
            sides.append(([(ax, low, az), (bx, low, bz), (bx, high, bz), (ax, high, az)], colour, colour))
    for k in range(1, int((x1 - x0) * 2) + 1):
        sides.insert(1, ([(x0 + k / 2, 0, z0), (x0 + k / 2, 0, z1)], line, None))
    for k in range(1, int((z1 - z0) * 2) + 1):
        sides.insert(1, ([(x0, 0, z0 + k / 2), (x1, 0, z0 + k / 2)], line, None))
    strokes = []
    for corners, fill, outline in sides:
        points = camera.polygon(corners)
        if len(points) >= len(corners[:3]):
            strokes.append(Stroke("polygon" if outline else "line", points, fill, outline))
    return strokes


def _apply(draw: ImageDraw.ImageDraw, strokes: list[Stroke]) -> None:
    for what, points, fill, outline in strokes:
        if what == "polygon":
            draw.polygon(points, fill=fill, outline=outline)
        elif what == "ellipse":
            draw.ellipse(points, fill=fill, outline=outline)
        else:
            draw.line(points, fill=fill, width=_SCALE)


@lru_cache(maxsize=_ROOMS)
def _room(names: _Same, locations: _Same, unreached: frozenset[str]) -> Room:
    return Room(names.of, locations.of, unreached.union(locations.of))


@lru_cache(maxsize=_VIEWS)
def _view(room: Room, location: str, size: int, seed: int) -> _View:
    return _View(room, location, size, seed)


@lru_cache(maxsize=512)
def _hand(solid: Solid, side: int) -> list[Stroke]:
    """What the hand holds, in the lower right corner, as large as fits there, on a hand and a sleeve."""
    size = max(solid.box[3] - solid.box[0], solid.box[4] - solid.box[1], solid.box[5] - solid.box[2])
    height = solid.box[4] - solid.box[1]
    pose = Pose(0.0, -2.0 * size, 0, 25.0)
    camera = Camera((0.0, height / 2 + 0.93 * size, -2.0 * size), pose, side * 0.62, (side * 0.79, side * 0.79))
    strokes = [
        Stroke(
            "polygon",
            [
                (side * 0.84, side),
                (side * 0.77, side * 0.86),
                (side * 0.9, side * 0.82),
                (side, side * 0.9),
                (side, side),
            ],
            _SLEEVE,
            (40, 56, 90),
        ),
        Stroke("ellipse", [(side * 0.71, side * 0.79), (side * 0.9, side * 0.94)], _SKIN, (150, 110, 86)),
    ]
    strokes += paint(camera, solid)
    for k in range(3):
        u = side * (0.74 + 0.045 * k)
        strokes.append(Stroke("ellipse", [(u, side * 0.865), (u + side * 0.05, side * 0.925)], _SKIN, (150, 110, 86)))
    return strokes


@lru_cache(maxsize=16)
def _font(pixels: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(pixels)


@lru_cache(maxsize=2048)
def _tag(text: str, cell: int, colours: str) -> Image.Image:
    """A label: one cell high, as many wide as it needs."""
    pixels = max(8, round(cell * 10 / 14))
    left, top, right, bottom = _font(pixels).getbbox(text)
    background, writing = _LABEL_COLOURS[colours]
    tag = Image.new("RGB", (cell * max(1, -int(-(right - left + 2) // cell)), cell), background)
    height = _font(pixels).getbbox("bdpq")  # the same line for all words
    at = ((tag.width - (right - left)) // 2 - left, (cell - (height[3] - height[1])) // 2 - height[1])
    ImageDraw.Draw(tag).text(at, text, font=_font(pixels), fill=writing)
    return tag


def _hidden(box: tuple[float, float, float, float], later: list[_Drawing]) -> bool:
    """Whether what is painted later covers the middle of `box` and the points halfway to its corners' edges."""
    left, top, right, bottom = box
    u, v = (left + right) / 2, (top + bottom) / 2
    return all(
        _covered(*point, later) for point in ((u, v), (u, (top + v) / 2), ((left + u) / 2, v), ((u + right) / 2, v))
    )


def _covered(u: float, v: float, later: list[_Drawing]) -> bool:
    for drawing in later:
        left, top, right, bottom = drawing.extent
        if left < u < right and top < v < bottom and any(_covers(stroke, u, v) for stroke in drawing.strokes):
            return True
    return False


def _covers(stroke: Stroke, u: float, v: float) -> bool:
    if stroke.what == "line":
        return False
    if stroke.what == "ellipse":
        (u0, v0), (u1, v1) = stroke.points
        return u0 < u < u1 and v0 < v < v1
    inside, (pu, pv) = False, stroke.points[-1]
    for cu, cv in stroke.points:
        if (cv > v) != (pv > v) and u < (pu - cu) * (v - cv) / (pv - cv) + cu:
            inside = not inside
        pu, pv = cu, cv
    return inside


class _Wish(NamedTuple):
    """A label to write; sorted, the most important comes first."""

    rank: int
    distance: float
    name: str
    kind: str  # object, closed or open
    extent: tuple[float, float, float, float]


def in_reach(state: RoomState) -> list[str]:
    """Ids of the objects that lie, visibly, on or in the receptacles at which the agent stands."""
    here = [key for key, location in state.receptacle_locations.items() if location == state.location]
    seen = [key for key in here if key not in state.openable or key in state.opened]
    return [key for receptacle in seen for key in state.contents.get(receptacle, ())]


def _label_wishes(view: _View, state: RoomState, ordered: list[_Drawing]) -> list[_Wish]:
    """What is near and in sight, what the agent stands at before the rest; what lies on a thing does not hide it."""
    here = {key for key, location in state.receptacle_locations.items() if location == state.location}
    reachable = set(in_reach(state))
    wishes = []
    for index, (solid, _, extent_, distance) in enumerate(ordered):
        key = solid.key[0]
        if key in reachable and solid.name:
            wishes.append(_Wish(1, distance, solid.name, "object", _cut_to(extent_, view.side)))
        elif distance <= _LABEL_DISTANCE and solid.name:
            shown = _cut_to(extent_, view.side)
            large = shown[2] - shown[0] > 7 and shown[3] - shown[1] > 3
            own = state.contents.get(key, ())
            if large and not _hidden(shown, [d for d in ordered[index + 1 :] if d.solid.key[0] not in own]):
                kind = "object" if not solid.receptacle else "open" if solid.opening else "closed"
                wishes.append(_Wish(0 if key in here else 2, distance, solid.name, kind, shown))
        for inner in solid.inside:
            drawn, rank = view.drawing(inner), 1 if inner.key[0] in reachable else 2
            box = _cut_to(drawn.extent if drawn else extent_, view.side)
            if inner.name and (drawn or rank == 1):
                wishes.append(_Wish(rank, drawn.distance if drawn else distance, inner.name, "object", box))
    written = {wish.name for wish in wishes}
    unseen = {name for key in reachable if (name := state.names.get(key)) and name not in written}
    below = (view.side / 2, view.side * 0.75, view.side / 2, view.side * 0.75)  # out of sight, but within reach
    return sorted(wishes + [_Wish(1, _LABEL_DISTANCE, name, "object", below) for name in unseen])


def _cut_to(box: tuple[float, float, float, float], side: int) -> tuple[float, float, float, float]:
    left, top, right, bottom = (min(max(edge, 0.0), side) for edge in box)
    return left, top, right, bottom


def _spots(wish: _Wish, width: int, cell: int) -> Iterator[tuple[int, int]]:
    """Cells (column, row) where a label of `width` cells may begin, best first.

    Under or over an object, in the middle or at the rim of a receptacle; for what is in reach then any other place.
    """
    left, top, right, bottom = (edge / _SCALE / cell for edge in wish.extent)
    column, middle = (left + right - width) / 2, (top + bottom - 1) / 2
    rows = [middle, middle + 1, middle - 1, bottom - 1, top]
    if wish.kind == "open":  # what lies inside shows in the middle
        rows = [bottom - 1, top]
    elif wish.kind == "object":
        rows = [bottom, top - 1, middle, bottom + 1, top - 2]
    for row in rows[: 1 if wish.rank == 2 else None]:
        for aside in (0.0, 0.35, -0.35):
            yield _clamped(column + aside * width, width), _clamped(row, 1)
    if wish.rank < 2:
        everywhere = ((u, v) for v in range(_CELLS) for u in range(_CELLS - width + 1))
        yield from sorted(everywhere, key=lambda spot: abs(spot[0] - column) + 2 * abs(spot[1] - rows[0]))


def _clamped(cell: float, width: int) -> int:
    return min(max(round(cell), 0), max(_CELLS - width, 0))


class Label(NamedTuple):
    """What is written where: `column` and `row` of its first cell on the grid of 16 x 16, `width` in cells."""

    name: str
    kind: str  # in reach, object or receptacle
    column: int
    row: int
    width: int


def _placed(wishes: list[_Wish], held: Solid | None, cell: int) -> list[Label]:
    """A free place for every label of what is in reach, and for others where there is one nearby."""
    free = np.ones((_CELLS, _CELLS), bool)  # row, column
    labels = []
    if held is not None:
        free[11:, 10:] = False  # where the hand is
        if held.name:
            width = _tag(held.name, cell, "object").width // cell
            labels.append(Label(held.name, "object", _CELLS - width, _CELLS - 1, width))
    for wish in wishes:
        if wish.rank == 2 and len(labels) >= _MOST_LABELS:
            break
        kind = "in reach" if wish.rank == 1 else "object" if wish.kind == "object" else "receptacle"
        width = _tag(wish.name, cell, kind).width // cell
        for column, row in _spots(wish, width, cell):
            if free[row, column : column + width].all():
                free[row, column : column + width] = False
                labels.append(Label(wish.name, kind, column, row, width))
                break
    return labels


def draw(state: RoomState, *, size: int = 224, show_ids: bool = True, seed: int = 0) -> np.ndarray:
    """The agent's view of `state`: uint8, (size, size, 3), RGB; always the same for the same arguments.

    `size` is in pixels, at least 32 (ValueError otherwise). `show_ids` writes the names of near things on them, where
    the picture is large enough for letters. `seed` chooses the colours of walls and floor. Never fails on ids that
    carry no geometry.
    """
    return draw_labelled(state, size=size, show_ids=show_ids, seed=seed)[0]


def draw_labelled(
    state: RoomState, *, size: int = 224, show_ids: bool = True, seed: int = 0
) -> tuple[np.ndarray, list[Label]]:
    """`draw`, and the labels that were written."""
    if size < SMALLEST:
        raise ValueError(f"frames.draw: size is {size}, the smallest picture is {SMALLEST} pixels")
    unreached = frozenset(state.contents.keys() - state.receptacle_locations.keys())
    room = _room(_Same(state.names), _Same(state.receptacle_locations), unreached)
    view = _view(room, state.location, size, seed)
    drawings = [d for solid in solids(room, state) if (d := view.drawing(solid)) is not None]
    ordered = view.in_order(drawings)
    large = Image.new("RGB", (view.side, view.side), (240, 240, 236))
    painter = ImageDraw.Draw(large)
    _apply(painter, view.backdrop)
    for drawing in ordered:
        _apply(painter, drawing.strokes)
    held = held_solid(room, state)
    if held is not None:
        _apply(painter, _hand(held, view.side))
    picture = large.reduce(_SCALE)
    cell = size // _CELLS
    legible = show_ids and cell >= _SMALLEST_CELL
    labels = _placed(_label_wishes(view, state, ordered), held, cell) if legible else []
    for label in labels:
        picture.paste(_tag(label.name, cell, label.kind), (label.column * cell, label.row * cell))
    return np.array(picture), labels
