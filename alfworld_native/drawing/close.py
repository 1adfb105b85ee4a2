"""The close view: the receptacle that the agent stands at, with what lies on or in it, as large as fits the frame.

`frames.render` shows a room from a standing agent's eyes; an egg across a counter is three pixels wide there. Here the
camera bends over the receptacle. The picture is laid out for looking: what is in reach stands in up to three rows, the
tall things behind, and the camera comes as near as all of it allows. So places of single objects are not those of the
game's ids, and change if an object is taken away. Light, camera, materials and the variants of objects (`looks`) come
from `seed`; the same arguments give the same frame.

If the agent stands at no receptacle, as before its first `go to`, there is no close view: `frames` shows the room.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import NamedTuple
from zlib import crc32

import numpy as np
from PIL import Image, ImageDraw

from alfworld_native.drawing.build import Variant
from alfworld_native.drawing.furniture import FURNITURE, Furniture, furniture
from alfworld_native.drawing.geometry import Box, oriented_box
from alfworld_native.drawing.hand import hand
from alfworld_native.drawing.ids import Pose, kind_of
from alfworld_native.drawing.looks import is_known, varied_shape
from alfworld_native.drawing.objects import FIXTURES, NOT_RENDERED, Shape
from alfworld_native.drawing.painter import Camera, Stroke, apply_strokes, paint, shaded
from alfworld_native.drawing.scene import Solid
from alfworld_native.drawing.shapes import Block, Colour, darkened
from alfworld_native.drawing.state import RoomState
from alfworld_native.drawing.view import SCALE

_FIELD_OF_VIEW = 58.0  # degrees, before jitter
_GAP = 0.025  # metres between things in a row
_ROWS = (0.55, 1.5)  # metres of things side by side, up to which one row, two rows are enough
_TALL = 0.45  # metres; the frame may cut off what is taller
_LIT = (255, 236, 130)
_FRONT = (0, -1)
_WALLS: tuple[Colour, ...] = (
    (222, 214, 198),
    (206, 214, 220),
    (190, 204, 184),
    (226, 206, 196),
    (180, 184, 200),
    (238, 236, 230),
)
_FLOORS: tuple[Colour, ...] = ((168, 136, 102), (150, 146, 140), (184, 164, 138), (110, 92, 76), (120, 124, 130))
# Views from above look steeply down, those into a cabinet less, those at a wall hardly.
_PITCH = {"surface": 38.0, "top": 58.0, "drawer": 55.0, "front": 27.0, "wall": 8.0}
_WALL_HEIGHT = {"top": 0.2, "drawer": 0.12, "front": 0.3}

unknown_kinds: Counter[str] = Counter()  # types without a drawing, which were drawn as an unknown box, and how often


class CloseThing(NamedTuple):
    """An object of a close view with its strokes, in pixels of the supersampled frame."""

    name: str
    strokes: list[Stroke]


class CloseScene(NamedTuple):
    """A close view as strokes: what is behind the objects, the objects far to near, what is in front of them.

    `light` is the lamp's colour: factors for red, green and blue.
    """

    behind: list[Stroke]
    things: list[CloseThing]
    before: list[Stroke]
    light: tuple[float, float, float]


def facing(state: RoomState) -> str | None:
    """The receptacle that a close view shows: of those at the agent's location one that shows something, if any."""
    here = sorted(key for key, location in state.receptacle_locations.items() if location == state.location)
    if not here:
        return None
    open_ = [key for key in here if key not in state.openable or key in state.opened]
    return max(here, key=lambda key: (key in open_ and bool(state.contents.get(key)), key in open_, state.names[key]))


def close_scene(state: RoomState, size: int, seed: int, held_out: bool) -> CloseScene | None:
    """The close view of `state`; None if the agent stands at no receptacle."""
    key = facing(state)
    if key is None:
        return None
    kind = kind_of(state.names[key])
    plan = furniture(kind)
    # One source of chance for the whole room, and one for this receptacle in it, so that light and wall stay the same.
    room, spot = random.Random(crc32(f"room {seed}".encode())), random.Random(crc32(f"spot {seed} {key}".encode()))
    wall, floor = room.choice(_WALLS), room.choice(_FLOORS)
    brightness, warmth = room.uniform(0.72, 1.08), room.uniform(-0.07, 0.07)
    lamp = (brightness * (1 + warmth), brightness, brightness * (1 - warmth))  # a warm lamp: more red, less blue
    turn = room.uniform(-2.2, 0.6)  # of the lamp around the vertical axis, radians
    light = (0.6 * math.sin(turn), 0.74, -0.6 * math.cos(turn) * 0.5 - 0.1)

    contents = [thing for thing in state.in_reach() if thing in state.names and thing != state.held]
    contents = [thing for thing in contents if kind_of(state.names[thing]) not in NOT_RENDERED]
    shut = key in state.openable and key not in state.opened and not contents
    shapes = {thing: _shape(state, thing, seed, held_out, place=key) for thing in contents}
    bases, width, depth = _rows(shapes)

    pitch = _PITCH[plan.kind] + spot.uniform(-5, 5)
    hung = plan.kind == "wall"
    corners = [(-0.21, 0.0, 0.0), (0.21, 0.0, 0.0), (0.0, 0.0, 0.18)]
    for thing, (x, z) in bases.items():
        w, h, d = shapes[thing].size
        h = min(h, _TALL)
        low, high = (-h, 0.0) if hung else (0.0, h)
        corners += [(x + sx * w / 2, y, z + sz * d / 2) for sx in (-1, 1) for sz in (-1, 1) for y in (low, high)]
    if shut:
        pitch, corners = 12.0 + spot.uniform(-4, 4), [(-0.3, 0, 0), (0.3, 0, 0), (-0.3, 0.45, 0), (0.3, 0.45, 0)]
    camera = _camera(corners, size * SCALE, pitch, spot, light, lower=0.34 if state.held else 0.06)

    held: list[Stroke] = []  # the hand with what it holds, in the lower right corner
    if state.held is not None:
        shape = _shape(state, state.held, seed, held_out, place="hand")
        held = hand(_solid(state, state.held, shape, (0.0, 0.0, 0.0)), size * SCALE)
    # The wall, the floor, and a skirting board between them; what hangs has the wall right behind it.
    base, far = -0.85, depth + spot.uniform(0.05, 0.9)
    far = 0.06 if hung else far
    behind = [
        *_quad(camera, [(-4, base, far), (4, base, far), (4, 2, far), (-4, 2, far)], wall),
        *_quad(camera, [(-4, base, -3), (4, base, -3), (4, base, far), (-4, base, far)], floor),
        *_quad(
            camera, [(-4, base, far), (4, base, far), (4, base + 0.1, far), (-4, base + 0.1, far)], shaded(wall, 0.8)
        ),
    ]
    # The furniture's own colour, or that of another piece of furniture, and then lighter or darker.
    colour = plan.colour if spot.random() < 0.5 else spot.choice([one.colour for one in FURNITURE.values()])
    factor = spot.uniform(0.75, 1.12)
    red, green, blue = (min(255, int(value * factor)) for value in colour)
    colour = (red, green, blue)
    if shut:
        behind += _front(camera, plan, kind, colour)
        return CloseScene(behind, [], held, lamp)
    stage, before = _stage(camera, plan, colour, max(width, 0.42), depth, spot)
    behind += stage
    things = []
    # Far to near, so that what stands in front hides what stands behind.
    for thing in sorted(bases, key=lambda one: -bases[one][1]):
        x, z = bases[thing]
        shape, y = shapes[thing], 0.0
        if hung:
            y = -shape.size[1]
        elif shape.size[1] > 0.03:  # what is flatter hides its own shadow
            # A dark octagon on the side away from the lamp, the farther the higher the thing.
            w, h, d = shape.size
            dx, dz = (-light[axis] * min(h, 0.15) * 0.5 for axis in (0, 2))
            corner_angles = [k * math.pi / 4 for k in range(8)]
            patch = [(x + dx + math.cos(a) * w * 0.48, 0.0, z + dz + math.sin(a) * d * 0.48) for a in corner_angles]
            behind += _quad(camera, patch, darkened(colour, 13, 20))
        things.append(CloseThing(state.names[thing], paint(camera, _solid(state, thing, shape, (x, y, z)))))
    return CloseScene(behind, things, before + held, lamp)


def paint_scene(scene: CloseScene, size: int) -> np.ndarray:
    """The frame: uint8, (size, size, 3), RGB."""
    side = size * SCALE
    large = Image.new("RGB", (side, side), (240, 240, 236))
    canvas = ImageDraw.Draw(large)
    apply_strokes(canvas, scene.behind)
    for thing in scene.things:
        apply_strokes(canvas, thing.strokes)
    apply_strokes(canvas, scene.before)
    frame = large.reduce(SCALE)
    # Pillow's `point` takes 256 entries for each band, one band after the other: value times light, at most 255.
    table = [min(255, int(value * factor)) for factor in scene.light for value in range(256)]
    return np.array(frame.point(table))


def owners(scene: CloseScene, size: int) -> np.ndarray:
    """Which object each pixel shows: uint8, (size, size), the place in `scene.things` counted from 1, or 0 for none."""
    mask = Image.new("L", (size * SCALE, size * SCALE), 0)
    canvas = ImageDraw.Draw(mask)
    for number, thing in enumerate(scene.things[:255], start=1):
        apply_strokes(canvas, thing.strokes, number)
    apply_strokes(canvas, scene.before, 0)
    return np.asarray(mask)[SCALE // 2 :: SCALE, SCALE // 2 :: SCALE]


def visible_boxes(scene: CloseScene, owner: np.ndarray) -> dict[str, tuple[int, int, int, int, int]]:
    """What can be seen of each object: name -> left, top, right, bottom in pixels (exclusive), and its visible pixels.

    `owner` is what `owners` gave. An object of which nothing is visible is missing.
    """
    found = {}
    for number, thing in enumerate(scene.things[:255], start=1):
        rows, columns = np.nonzero(owner == number)
        if len(rows):
            box = int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1
            found[thing.name] = (*box, len(rows))
    return found


# ---- parts of a scene -----------------------------------------------------------------------------------------------


def _shape(state: RoomState, thing: str, seed: int, held_out: bool, place: str) -> Shape:
    kind = kind_of(state.names[thing])
    if not is_known(kind):
        unknown_kinds[kind] += 1
    variant = Variant(crc32(f"{seed} {thing}".encode()), held_out)
    return varied_shape(kind, variant, crc32(f"{thing} {place}".encode()) % 97, thing in state.sliced)


def _solid(state: RoomState, thing: str, shape: Shape, base: tuple[float, float, float]) -> Solid:
    kind = kind_of(state.names[thing])
    lit = thing in state.toggled and kind in ("desklamp", "floorlamp", "lamp")
    marks = [mark for mark in ("clean", "hot", "cool") if thing in getattr(state, mark)] + ["lit"] * lit
    parts = (*shape.parts[:-1], shape.parts[-1]._replace(colour=_LIT)) if lit else shape.parts
    name = "" if kind in FIXTURES else state.names[thing]
    return Solid((thing, base), name, oriented_box(base, shape.size, _FRONT), _FRONT, parts, marks=tuple(marks))


def _rows(shapes: dict[str, Shape]) -> tuple[dict[str, tuple[float, float]], float, float]:
    """Where things stand: key -> x, z of the middle of its base; and the width and depth of all of it, metres."""
    total = sum(shape.size[0] + _GAP for shape in shapes.values())
    count = 1 + sum(total > limit for limit in _ROWS)
    # The tall ones are behind. Chance from the id alone decides the order of things that are alike in height.
    order = sorted(shapes, key=lambda key: (-round(shapes[key].size[1] / 0.06), crc32(key.encode())))
    rows: list[list[str]] = [[] for _ in range(count)]
    filled, at = 0.0, 0
    for key in order:
        if filled > total / count * (at + 1) - 1e-9 and at < count - 1:
            at += 1
        rows[at].append(key)
        filled += shapes[key].size[0] + _GAP
    bases: dict[str, tuple[float, float]] = {}
    front, widest = 0.03, 0.0
    for row in reversed(rows):
        row.sort(key=lambda key: crc32(key[::-1].encode()))
        deep = max((shapes[key].size[2] for key in row), default=0.0)
        width = sum(shapes[key].size[0] + _GAP for key in row)
        x = -width / 2
        for key in row:
            w, _, d = shapes[key].size
            # Nobody sets a table with a ruler.
            shift = (crc32(f"shift {key}".encode()) % 101 / 100 - 0.5) * (deep - d + 0.03)
            bases[key] = (x + (w + _GAP) / 2, front + deep / 2 + shift)
            x += w + _GAP
        front += deep + 0.02
        widest = max(widest, width)
    return bases, widest, front


def _camera(
    corners: list[tuple[float, float, float]],
    side: int,
    pitch: float,
    chance: random.Random,
    light: tuple[float, float, float],
    lower: float,
) -> Camera:
    """As near as `corners` allow; `lower` is the share of the frame that stays free at its lower edge."""
    yaw, zoom = chance.uniform(-9, 9), chance.uniform(1.0, 1.12)
    focal = side / 2 / math.tan(math.radians(_FIELD_OF_VIEW / 2))
    low = [min(c[axis] for c in corners) for axis in range(3)]
    high = [max(c[axis] for c in corners) for axis in range(3)]
    middle = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
    # The camera looks at `middle` from the distance at which every corner is inside: f r / (D + d) <= half, for a
    # corner r to the right of (or above) the line of sight and d behind the middle.
    at_middle = Camera((middle[0], middle[1], middle[2]), Pose(0, 0, 0, pitch), focal, (0, 0), aside=yaw)
    upper, half = side * 0.46, side * 0.46
    under = side * (0.5 - lower)
    distance = 0.35
    for corner in corners:
        right, above, ahead = at_middle.see(*corner)
        distance = max(
            distance, focal * abs(right) / half - ahead, focal * above / upper - ahead, -focal * above / under - ahead
        )
    distance *= zoom
    # The line of sight: forward and down.
    forward = math.cos(math.radians(pitch))
    eye = (
        middle[0] - distance * forward * at_middle.sin_yaw,
        middle[1] + distance * math.sin(math.radians(pitch)),
        middle[2] - distance * forward * at_middle.cos_yaw,
    )
    shift = (side / 2 + chance.uniform(-0.03, 0.03) * side, side / 2)
    return Camera(eye, Pose(0, 0, 0, pitch), focal, shift, aside=yaw, light=light)


def _quad(
    camera: Camera, corners: list[tuple[float, float, float]], fill: Colour, edge: Colour | None = None
) -> list[Stroke]:
    points = camera.polygon(corners)
    return [Stroke("polygon", points, fill, edge)] if len(points) > 2 else []


def _stage(
    camera: Camera, plan: Furniture, colour: Colour, width: float, depth: float, chance: random.Random
) -> tuple[list[Stroke], list[Stroke]]:
    """What things lie on or in: strokes behind them, and in front of them."""
    half, back = width / 2 + 0.05 + chance.uniform(0, 0.25), depth + 0.04
    ink = darkened(colour, 3, 4)
    if plan.kind == "wall":
        return _box(camera, (-half, -0.01, 0.0, half, 0.02, 0.05), colour), []
    if plan.kind == "surface":
        back += chance.uniform(0.0, 0.3)
        strokes = _box(camera, (-half, -0.06, -0.07, half, 0.0, back), colour)
        strokes += _pattern(camera, darkened(colour, 17, 20), half, back, chance)
        if plan.backed:
            strokes = _box(camera, (-half, -0.2, back, half, 0.35, back + 0.15), darkened(colour, 7, 8)) + strokes
        return strokes, []
    high = _WALL_HEIGHT[plan.kind]
    left, right, near = -half, half, -0.05
    inner = shaded(colour, 0.8)
    top = 0.55 if plan.kind == "front" else high
    strokes = [
        *_quad(
            camera, [(left, 0, back), (right, 0, back), (right, top, back), (left, top, back)], shaded(inner, 0.85), ink
        ),
        *_quad(
            camera, [(left, 0, near), (left, 0, back), (left, top, back), (left, top, near)], shaded(inner, 0.75), ink
        ),
        *_quad(
            camera,
            [(right, 0, near), (right, 0, back), (right, top, back), (right, top, near)],
            shaded(inner, 0.7),
            ink,
        ),
        *_quad(camera, [(left, 0, near), (right, 0, near), (right, 0, back), (left, 0, back)], inner, ink),
    ]
    if plan.kind == "front":
        strokes += _quad(
            camera,
            [(left, 0, near), (left - 0.1, 0, near - 0.3), (left - 0.1, top, near - 0.3), (left, top, near)],
            colour,
            ink,
        )
        return strokes, []
    rim = _box(camera, (left, -high, near - 0.02, right, 0.02, near), colour)
    return strokes, rim


def _box(camera: Camera, box: Box, colour: Colour) -> list[Stroke]:
    return paint(camera, Solid((box, colour), "", box, _FRONT, (Block(0, 0, 0, 1, 1, 1, colour),)))


def _pattern(camera: Camera, ink: Colour, half: float, back: float, chance: random.Random) -> list[Stroke]:
    """Grain, tiles or nothing on a surface."""
    kind = chance.choice(("plain", "grain", "tiles", "cloth"))
    lines: list[tuple[float, float, float, float]] = []
    if kind == "grain":
        lines = [(-half, z, half, z + chance.uniform(-0.02, 0.02)) for z in np.arange(-0.04, back, 0.06).tolist()]
    elif kind == "tiles":
        lines = [(x, -0.07, x, back) for x in np.arange(-half, half, 0.15).tolist()]
        lines += [(-half, z, half, z) for z in np.arange(0.0, back, 0.15).tolist()]
    elif kind == "cloth":
        x0, x1 = -half * 0.6, half * 0.6
        return _quad(
            camera, [(x0, 0, 0.0), (x1, 0, 0.0), (x1, 0, back - 0.02), (x0, 0, back - 0.02)], ink, darkened(ink, 9, 10)
        )
    strokes = []
    for x0, z0, x1, z1 in lines:
        points = camera.polygon([(x0, 0, z0), (x1, 0, z1)])
        if len(points) > 1:
            strokes.append(Stroke("line", points[:2], ink))
    return strokes


def _front(camera: Camera, plan: Furniture, kind: str, colour: Colour) -> list[Stroke]:
    """A closed container from outside: a front with a panel and a handle.

    Plates are x0, y0, x1, y1 in metres on a front of 0.8 x 0.7, whose lower left corner is (-0.4, -0.1).
    """
    edge, handle = darkened(colour, 4, 5), darkened(colour, 2, 5)
    strokes = _box(camera, (-0.4, -0.1, 0.0, 0.4, 0.6, 0.3), colour)
    if plan.kind == "drawer":
        plates = [(-0.34, 0.12, 0.34, 0.38, edge), (-0.1, 0.23, 0.1, 0.28, handle)]
    elif kind == "microwave":
        plates = [
            (-0.34, 0.02, 0.16, 0.46, (30, 34, 40)),
            (0.22, 0.3, 0.34, 0.44, (90, 200, 140)),
            (0.22, 0.04, 0.34, 0.26, edge),
        ]
    elif kind == "safe":
        plates = [(-0.34, -0.02, 0.34, 0.5, edge), (-0.1, 0.16, 0.1, 0.34, handle)]
    elif plan.kind == "top":  # a lid
        plates = [(-0.4, 0.44, 0.4, 0.5, edge)]
    else:
        plates = [(-0.34, -0.04, 0.34, 0.54, edge), (0.27, 0.18, 0.31, 0.32, handle)]
    for x0, y0, x1, y1, tint in plates:
        strokes += _box(camera, (x0, y0, -0.02, x1, y1, 0.0), tint)
    return strokes
