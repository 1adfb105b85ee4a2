"""A room seen from one standing point: the camera, what is in sight, and the order in which to render it.

Visibility is solved by the painter's algorithm: solids are rendered far to near, each over what it hides.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from alfworld_native.drawing.geometry import RoomGeometry
from alfworld_native.drawing.ids import stable
from alfworld_native.drawing.painter import Camera, Stroke, extent, paint, shaded
from alfworld_native.drawing.scene import Solid
from alfworld_native.drawing.shapes import Colour, darkened

FIELD_OF_VIEW = 75.0  # degrees; ALFRED's 60 cuts off 6 % of the receptacles that the agent stands at, 75 only 1 %
CAMERA_HEIGHT = 1.575  # metres: AI2-THOR's agent, centre at 0.9 and camera 0.675 above it
CEILING = 2.7  # metres
SCALE = 2  # supersampling: rendered twice as large, then averaged, for smooth edges
_DRAWINGS, _ORDERS = 512, 64  # cached in one view
_WALLS: tuple[Colour, ...] = ((222, 214, 198), (206, 214, 220), (214, 220, 204), (226, 210, 202), (212, 208, 220))
_FLOORS: tuple[Colour, ...] = ((168, 136, 102), (150, 146, 140), (184, 164, 138), (134, 112, 92), (176, 172, 164))


class DrawnSolid(NamedTuple):
    """A solid as seen from one place: its strokes, their extent in pixels, the distance to its middle in metres."""

    solid: Solid
    strokes: list[Stroke]
    extent: tuple[float, float, float, float]
    distance: float


class RoomView:
    """What a room looks like from one standing point, and everything already computed for it.

    `turn` counts quarter turns of the camera, clockwise, from where the agent looks.
    """

    def __init__(self, room: RoomGeometry, location: str, size: int, seed: int, turn: int = 0):
        pose, self.side = room.pose(location), size * SCALE
        self.pose = pose._replace(turns=pose.turns + turn)
        focal = self.side / 2 / np.tan(np.radians(FIELD_OF_VIEW / 2))
        eye = (self.pose.x, CAMERA_HEIGHT, self.pose.z)
        self.camera = Camera(eye, self.pose, float(focal), (self.side / 2, self.side / 2))
        self.backdrop = _backdrop(self.camera, room, seed)
        self._drawn: dict[tuple, DrawnSolid | None] = {}
        self._orders: dict[tuple, list[int]] = {}

    def drawing(self, solid: Solid) -> DrawnSolid | None:
        """`solid` as seen from here, None if it is out of sight."""
        try:
            return self._drawn[solid.key]
        except KeyError:
            if len(self._drawn) >= _DRAWINGS:
                self._drawn.clear()
            drawn = self._drawn[solid.key] = self._draw(solid)
            return drawn

    def _draw(self, solid: Solid) -> DrawnSolid | None:
        x0, y0, z0, x1, y1, z1 = solid.box
        # The sphere around the box: half its diagonal. What lies wholly outside a cone of 45 degrees is out of sight,
        # since half the field of view is less.
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
        # The exact test in pixels comes last, because it needs the strokes.
        left, top, right, bottom = box = extent(strokes)
        if right < 0 or bottom < 0 or left > self.side or top > self.side:
            return None
        return DrawnSolid(solid, strokes, box, sum(v * v for v in seen) ** 0.5)

    def in_order(self, drawings: list[DrawnSolid]) -> list[DrawnSolid]:
        """Far to near: a solid hides those before it in the list."""
        key = tuple(d.solid.key for d in drawings)
        order = self._orders.get(key)
        if order is None and drawings:
            if len(self._orders) >= _ORDERS:
                self._orders.clear()
            before = _must_precede(self.camera.eye, drawings)
            done = [False] * len(drawings)
            found: list[int] = []

            def visit(index: int) -> None:
                if done[index]:
                    return
                done[index] = True
                for other in before[index]:
                    visit(other)
                found.append(index)

            # A topological sort of "must come before", depth-first: the farthest solid begins, after all that it hides.
            # A cycle (three solids that hide each other in turn) is cut where `done` meets it.
            for index in sorted(range(len(drawings)), key=lambda i: -drawings[i].distance):
                visit(index)
            order = self._orders[key] = found
        return [drawings[i] for i in order or ()]


def _must_precede(eye: tuple[float, float, float], drawings: list[DrawnSolid]) -> list[list[int]]:
    """For each solid the indices of those that it may hide, which are therefore rendered before it.

    The test is the separating plane of Newell, Newell and Sancha (1972): a solid that lies on the camera's side of a
    plane between two may hide the other. All boxes are axis-aligned, so the planes of their faces are enough.
    """
    # (n, 6): boxes of all solids; the slack lets things touch, because what stands on a table touches it.
    boxes = np.array([d.solid.face or d.solid.box for d in drawings])
    slack = np.minimum(0.02, (boxes[:, 3:] - boxes[:, :3]) / 3)
    low, high, camera = boxes[:, :3] + slack, boxes[:, 3:] - slack, np.array(eye)
    apart = high[:, None, :] <= low[None, :, :]  # i ends below where j begins, by axis
    # nearer[i, j]: some plane between i and j has i on the camera's side. The camera is below j's lower face and i lies
    # below it, too; or the same from the upper side.
    nearer = (apart & (camera <= low[None, :, :])).any(2) | (
        apart.transpose(1, 0, 2) & (camera >= low[:, None, :])
    ).any(2)
    hides = nearer & ~nearer.T
    # Where boxes interpenetrate no plane tells, and the smaller one is rendered later.
    touching = ~(apart.any(2) | apart.any(2).T)
    volume = (boxes[:, 3:] - boxes[:, :3]).prod(1)
    hides |= touching & (volume[:, None] < volume[None, :])
    # Extents on the screen that do not overlap hide nothing, so their order is free.
    seen = np.array([d.extent for d in drawings])
    overlap = (seen[:, None, 0] < seen[None, :, 2]) & (seen[:, None, 1] < seen[None, :, 3])
    hides &= overlap & overlap.T
    return [np.flatnonzero(row).tolist() for row in hides]


def _backdrop(camera: Camera, room: RoomGeometry, seed: int) -> list[Stroke]:
    """Floor, ceiling and walls of the room's bounding box; lines on the floor every half metre."""
    x0, z0, x1, z1 = room.bounds
    # The same colours for the same room and seed.
    pick = stable(f"{seed} {min(room.names, default='')}", len(_WALLS) * len(_FLOORS))
    wall, floor = _WALLS[pick % len(_WALLS)], _FLOORS[pick // len(_WALLS)]
    line = darkened(floor, 9, 10)
    sides: list[tuple[list[tuple[float, float, float]], Colour, Colour | None]] = [
        ([(x0, 0, z0), (x1, 0, z0), (x1, 0, z1), (x0, 0, z1)], floor, line),
        ([(x0, CEILING, z0), (x1, CEILING, z0), (x1, CEILING, z1), (x0, CEILING, z1)], (240, 240, 236), wall),
    ]
    # Walls, each with a darker skirting board of 9 cm; those across x are darker than those across z.
    for (ax, az), (bx, bz), light in (
        ((x0, z0), (x1, z0), 0.95),
        ((x0, z1), (x1, z1), 0.95),
        ((x0, z0), (x0, z1), 0.87),
        ((x1, z0), (x1, z1), 0.87),
    ):
        for low, high, share in ((0.0, CEILING, light), (0.0, 0.09, light * 0.8)):
            colour = shaded(wall, share)
            sides.append(([(ax, low, az), (bx, low, bz), (bx, high, bz), (ax, high, az)], colour, colour))
    for k in range(1, int((x1 - x0) * 2) + 1):
        sides.insert(1, ([(x0 + k / 2, 0, z0), (x0 + k / 2, 0, z1)], line, None))
    for k in range(1, int((z1 - z0) * 2) + 1):
        sides.insert(1, ([(x0, 0, z0 + k / 2), (x1, 0, z0 + k / 2)], line, None))
    strokes = []
    for corners, fill, outline in sides:
        points = camera.polygon(corners)
        # A polygon needs three points after clipping, a line two.
        if len(points) >= len(corners[:3]):
            strokes.append(Stroke("polygon" if outline else "line", points, fill, outline))
    return strokes
