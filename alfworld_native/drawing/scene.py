"""A room's state as solids to render: which box stands where, what it looks like, and what lies inside it.

`Solid`s are axis-aligned and carry their parts in the unit box of `shapes`. A solid's `key` holds all that its look
depends on, so results computed from a solid are cached by its key.
"""

from __future__ import annotations

from typing import NamedTuple

from alfworld_native.drawing.geometry import Box, Place, RoomGeometry, misfit, oriented_box, wall_front
from alfworld_native.drawing.ids import Point, stable
from alfworld_native.drawing.objects import FIXTURES, NOT_RENDERED, object_shape
from alfworld_native.drawing.shapes import DARK, STEEL, WHITE, Block, Colour, Part, darkened
from alfworld_native.drawing.state import RoomState

_SLAB = 0.05  # metres, thickness of a table top
_SLIDE = 0.32  # metres an open drawer stands out
_STAND = (Block(0, 0, 0, 1, 1, 1, (226, 226, 224)), Block(0.1, 0.1, -0.02, 0.9, 0.86, 0, (206, 206, 204)))
_LIT = (255, 236, 130)
_LAMPS = ("desklamp", "floorlamp", "lamp", "candle")


class Solid(NamedTuple):
    """A thing to render. `opening` is the face left out, through which `inside` is seen: `front` or `top` (with
    ` built-in` where nothing else of the outside shows), empty for closed things."""

    key: tuple
    name: str  # as the text calls it; empty: never labelled
    box: Box
    front: tuple[int, int]
    parts: tuple[Part, ...]
    opening: str = ""
    inside: tuple[Solid, ...] = ()
    marks: tuple[str, ...] = ()  # of clean, hot, cool, lit
    receptacle: bool = False
    face: Box | None = None  # what of it stands out of a counter or chest; tells the painter what it may hide


def solids(room: RoomGeometry, state: RoomState) -> list[Solid]:
    """Everything in the room but what the hand holds and what closed containers hide."""
    found: list[Solid] = []
    placed: set[str] = {state.held} if state.held else set()
    for key, place in room.places.items():
        if place.stand is not None:
            found.append(Solid((key, "stand"), "", place.stand, place.front, _STAND))
        # A thing may count as lying in several receptacles; the first one shows it.
        contents = [o for o in state.contents.get(key, ()) if o not in placed and o in room.points]
        placed.update(contents)
        contents = [o for o in contents if room.kinds[o] not in NOT_RENDERED]
        found.extend(_receptacle(room, state, place, contents))
    for key, point in room.points.items():
        if key not in placed and key not in room.places and room.kinds[key] not in NOT_RENDERED:
            found.append(_loose(room, state, key, point))
    return found


def held_solid(room: RoomGeometry, state: RoomState) -> Solid | None:
    """What the hand holds, standing at the origin with its front to -z."""
    if state.held is None:
        return None
    return thing(room, state, state.held, (0.0, 0.0, 0.0), (0, -1))


def thing(room: RoomGeometry, state: RoomState, key: str, base: Point, front: tuple[int, int]) -> Solid:
    """An object standing on `base`, with its marks."""
    kind = room.kinds.get(key, "thing")
    name = "" if kind in FIXTURES else room.names.get(key, key)
    shape = object_shape(kind, key in state.sliced)
    lit = key in state.toggled and kind in _LAMPS
    marks = tuple(
        mark
        for mark, here in (
            ("clean", key in state.clean),
            ("hot", key in state.hot),
            ("cool", key in state.cool),
            ("lit", lit),
        )
        if here
    )
    parts = shape.parts
    if lit:  # a lamp's last part is its shade
        parts = (*parts[:-1], parts[-1]._replace(colour=_LIT))
    box = oriented_box(base, shape.size, front)
    return Solid((key, base, front, key in state.sliced, marks), name, box, front, parts, marks=marks)


def _loose(room: RoomGeometry, state: RoomState, key: str, point: Point) -> Solid:
    """A thing that lies in no receptacle: where its id says, on the wall if it is flat."""
    kind = room.kinds[key]
    shape = object_shape(kind)
    x, y, z = point
    front = wall_front(room.bounds, x, z)
    if not shape.flat:
        # A point near the ground, or of a thing that stands on it, is somewhere in the thing: it stands on the floor.
        bottom = 0.0 if y < 0.35 or kind in ("chair", "floorlamp") else y
        return thing(room, state, key, (x, bottom, z), front)
    # Ids of things on a wall name their middle, those of hanging things (curtains, blinds) their upper edge.
    height, gap = shape.size[1], shape.size[2] / 2 + 0.01
    bottom = max(y - height if y > 1.85 else y - height / 2, 0.0)
    x0, z0, x1, z1 = room.bounds
    if front[0]:
        x = x0 + gap if front[0] > 0 else x1 - gap
    else:
        z = z0 + gap if front[1] > 0 else z1 - gap
    return thing(room, state, key, (x, bottom, z), front)


def _receptacle(room: RoomGeometry, state: RoomState, place: Place, contents: list[str]) -> list[Solid]:
    plan, key = place.plan, place.id
    # A closed container hides what it holds, so only its outside is rendered.
    shut = key in state.openable and key not in state.opened
    if plan.kind == "surface":
        name, box = room.names[key], place.box
        if plan.legs:
            # Two solids, because what stands below a table is in front of its legs and behind its top.
            top = (box[0], max(box[4] - _SLAB, box[1]), *box[2:])
            under = (*box[:4], top[1], box[5])
            body = [
                Solid((key, "legs"), "", under, place.front, plan.legs),
                Solid((key,), name, top, place.front, plan.parts, receptacle=True),
            ]
        else:
            body = [Solid((key,), name, box, place.front, plan.parts, receptacle=True)]
            if place.wing is not None:  # the second leg of an L-shaped counter
                body.append(Solid((key, "wing"), "", place.wing, place.front, plan.parts))
        return [*body, *_lying(room, state, place, contents, box)]
    if plan.kind == "wall":
        holder = Solid((key,), room.names[key], place.box, place.front, plan.parts, receptacle=True)
        # Things hang side by side, 12 cm apart, their upper edges just above the holder.
        found = []
        for number, key in enumerate(sorted(contents)):
            size = object_shape(room.kinds[key]).size
            box = place.box
            x, z = (box[0] + box[3]) / 2 + place.front[0] * 0.05, (box[2] + box[5]) / 2 + place.front[1] * 0.05
            aside = number * 0.12
            base = (x - place.front[1] * aside, box[1] + 0.05 - size[1] * 0.9, z + place.front[0] * aside)
            found.append(thing(room, state, key, base, place.front))
        return [holder, *found]
    if shut:
        return [_closed(room, place, key in state.toggled)]
    # An open container is a box without one side, through which its contents are seen.
    box = _slid(place) if plan.kind == "drawer" else place.box
    inside = tuple(_lying(room, state, place, contents, box))
    opening = "front" if plan.kind == "front" else "top"
    content_key = tuple(solid.key for solid in inside)
    name = room.names[key]
    parts = (Block(0, 0, 0, 1, 1, 1, plan.colour),)
    if place.face and plan.kind != "drawer":
        opening += " built-in"
    return [
        Solid(
            (key, "open", content_key),
            name,
            box,
            place.front,
            parts,
            opening,
            inside,
            (),
            True,
            None if plan.kind == "drawer" else place.face,
        )
    ]


def _closed(room: RoomGeometry, place: Place, running: bool) -> Solid:
    colour, kind = place.plan.colour, place.kind
    edge, handle = darkened(colour, 4, 5), STEEL if kind != "fridge" else DARK
    # Coordinates of the plates are shares of the front's width and height (`shapes`); what is built in has no body.
    parts = [Block(0, 0, 0, 1, 1, 0.05 if place.face else 1, colour)]
    if place.plan.kind == "drawer":
        parts += [_plate(0.06, 0.15, 0.94, 0.85, edge), _plate(0.36, 0.44, 0.64, 0.6, handle)]
    elif kind == "fridge":
        parts += [_plate(0.0, 0.62, 1.0, 0.635, DARK), _plate(0.86, 0.3, 0.91, 0.58, handle)]
        parts += [_plate(0.86, 0.67, 0.91, 0.85, handle)]
    elif kind == "microwave":
        glass = _LIT if running else (30, 34, 40)
        parts += [_plate(0.06, 0.15, 0.7, 0.85, glass), _plate(0.78, 0.6, 0.94, 0.8, (90, 200, 140))]
        parts += [_plate(0.78, 0.2, 0.94, 0.5, WHITE)]
    elif kind == "safe":
        parts += [_plate(0.08, 0.08, 0.92, 0.92, edge), _plate(0.4, 0.4, 0.6, 0.62, STEEL)]
    elif place.plan.kind == "front":
        parts += [_plate(0.1, 0.1, 0.9, 0.9, edge), _plate(0.84, 0.45, 0.89, 0.6, handle)]
    return Solid(
        (place.id, "shut", running), room.names[place.id], place.box, place.front, tuple(parts), receptacle=True
    )


def _plate(u0: float, v0: float, u1: float, v1: float, colour: Colour) -> Block:
    """A thin plate on the front."""
    return Block(u0, v0, -0.02, u1, v1, 0.0, colour)


def _slid(place: Place) -> Box:
    """The part of an open drawer that stands out."""
    x0, y0, z0, x1, y1, z1 = place.box
    fx, fz = place.front
    if fx:
        near, far = (x1, x1 + _SLIDE) if fx > 0 else (x0 - _SLIDE, x0)
        return (near, y0, z0, far, y1, z1)
    near, far = (z1, z1 + _SLIDE) if fz > 0 else (z0 - _SLIDE, z0)
    return (x0, y0, near, x1, y1, far)


def _lying(room: RoomGeometry, state: RoomState, place: Place, contents: list[str], box: Box) -> list[Solid]:
    """Objects in or on a receptacle: at their id's point if that is there, else at a free slot of their own."""
    found, taken, moved = [], [], []
    front = room.facing(place.id)
    floor = place.surface if place.plan.kind == "surface" else box[1] + 0.02
    for key in contents:
        point = room.points[key]
        # A thing that was moved has an id that tells where it was, not where it is.
        if room.homes.get(key) == place.id or (key in room.homes and misfit(place, point) < 0.7):
            # The point is brought onto the surface or inside the container; on a wing or a lower board it stays.
            x, y, z = point
            if place.plan.kind == "surface":
                base = (x, floor if abs(y - floor) < 0.2 or place.plan.seat < 1.0 else y, z)
            else:
                x0, _, z0, x1, y1, z1 = box
                # Inside a container the walls keep 6 cm, or a third of a narrow one.
                margin = min(0.06, (x1 - x0) / 3, (z1 - z0) / 3)
                height = min(max(y - 0.02, floor), max(floor, y1 - object_shape(room.kinds[key]).size[1]))
                base = (min(max(x, x0 + margin), x1 - margin), height, min(max(z, z0 + margin), z1 - margin))
            taken.append(base)
            found.append(thing(room, state, key, base, front))
        else:
            moved.append(key)
    if moved:
        slots = _slots(room, place, box, floor)
        for key in sorted(moved):
            # The slot that is this object's own, or the next one with room around it: 13 cm on the floor (city-block
            # distance) or 25 cm in height keep two things apart. If none has, things may overlap.
            start = stable(key, len(slots))
            base = slots[start]
            for slot in slots[start:] + slots[:start]:
                if all(abs(slot[0] - t[0]) + abs(slot[2] - t[2]) > 0.13 or abs(slot[1] - t[1]) > 0.25 for t in taken):
                    base = slot
                    break
            taken.append(base)
            found.append(thing(room, state, key, base, front))
    return found


def _slots(room: RoomGeometry, place: Place, box: Box, floor: float) -> list[Point]:
    """Where things can be put down: two rows along the edge nearest to the agent, around the point it faces."""
    u0, w0, u1, w1 = place.plan.spot
    pose = room.poses.get(place.id)
    corner, across, depth = unit_axes(box, place.front)
    centre = (u0 + u1) / 2
    length = max(sum(map(abs, across)), 0.05)
    if pose is not None and length > 1.0:
        # The agent's position projected on the front edge, as a share of the edge (`across` has its length).
        along = (pose.x - corner[0]) * across[0] + (pose.z - corner[1]) * across[1]
        centre = min(max(along / length**2, u0 + 0.3 / length), u1 - 0.3 / length)
    # Slots reach 42 cm to each side of that point, as far as an arm does.
    half = min((u1 - u0) * 0.4, 0.42 / length)
    rows = (w0 + (w1 - w0) * 0.3, w0 + (w1 - w0) * 0.68)
    levels = [floor]
    if place.plan.kind == "front" and box[4] - box[1] > 1.0:
        # A tall container (fridge) has shelves.
        levels = [box[1] + (box[4] - box[1]) * share for share in (0.3, 0.5)]
    found = []
    for level in levels:
        for row, w in enumerate(rows):
            for step in (-1.0, -0.5, 0.0, 0.5, 1.0) if row == 0 else (-0.75, -0.25, 0.25, 0.75):
                u = centre + step * half
                found.append(
                    (corner[0] + u * across[0] + w * depth[0], level, corner[1] + u * across[1] + w * depth[1])
                )
    return found


def unit_axes(box: Box, front: tuple[int, int]) -> tuple[tuple[float, float], tuple[float, float], tuple[float, float]]:
    """The unit box of `shapes` in the room: (x, z) of its left front corner, and its `u` and `w` axes as (x, z)."""
    # Four cases, because fronts look along an axis: the quarter turns of the unit box.
    x0, _, z0, x1, _, z1 = box
    dx, dz = x1 - x0, z1 - z0
    if front == (0, -1):
        return (x0, z0), (dx, 0.0), (0.0, dz)
    if front == (0, 1):
        return (x1, z1), (-dx, 0.0), (0.0, -dz)
    if front == (1, 0):
        return (x1, z0), (0.0, dz), (-dx, 0.0)
    return (x0, z1), (0.0, -dz), (dx, 0.0)
