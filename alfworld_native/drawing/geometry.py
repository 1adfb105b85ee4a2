"""Where things stand: a room laid out as axis-aligned boxes `(x0, y0, z0, x1, y1, z1)`, metres.

Ids tell one point per thing (`ids`). Extents come from `furniture` (typical sizes) and from the room itself: a
receptacle grows to cover what lay on it at the start, and never over a spot where the agent can stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from alfworld_native.drawing.furniture import Furniture, furniture
from alfworld_native.drawing.ids import Point, Pose, kind_of, parse_pose, parse_position, stable
from alfworld_native.drawing.objects import NOT_RENDERED

Box = tuple[float, float, float, float, float, float]
_ELBOW_ROOM = 0.12  # metres kept free around a standing agent
_MARGIN = 0.12  # metres of surface around the middle of what lies on it
_ON_TOP = 0.16  # metres between a surface and the point of what lies on it, at most
_BUILT_IN = ("sinkbasin", "drawer", "cabinet")
_CARRIED = ("stoveburner", "microwave", "toaster", "coffeemachine", "safe")
_ON_COUNTERS = (*_BUILT_IN, *_CARRIED)
_HOSTS = ("countertop", "dresser", "desk", "sidetable", "tvstand", "diningtable", "shelf")


@dataclass(frozen=True, slots=True)
class Place:
    """A receptacle in the room. `front` is the (x, z) direction that its front looks to, towards the agent."""

    id: str
    kind: str
    plan: Furniture
    front: tuple[int, int]
    box: Box
    wing: Box | None = None  # the other leg of an L-shaped counter
    stand: Box | None = None  # what carries a stove burner or a toaster that no counter carries
    face: Box | None = None  # of what is built into a counter or chest: the thin front (a basin: rim) that shows

    @property
    def surface(self) -> float:
        """Height in metres of what things lie on."""
        return self.box[1] + (self.box[4] - self.box[1]) * self.plan.seat


def oriented_box(centre: Point, size: tuple[float, float, float], front: tuple[int, int]) -> Box:
    """A box of `size` (width across the front, height, depth) standing on `centre`."""
    width, height, depth = size
    half_x, half_z = (width / 2, depth / 2) if front[0] == 0 else (depth / 2, width / 2)
    x, y, z = centre
    return (x - half_x, y, z - half_z, x + half_x, y + height, z + half_z)


def _excess(box: Box, x: float, z: float) -> float:
    """Metres from (x, z) to the box's outline on the floor, 0 inside."""
    return max(box[0] - x, x - box[3], box[2] - z, z - box[5], 0.0)


def _cut(box: Box, poses: list[Pose]) -> Box:
    """`box` cut back on the side where a standing agent is in it."""
    for pose in poses:
        if _excess(box, pose.x, pose.z) >= _ELBOW_ROOM:
            continue
        x0, y0, z0, x1, y1, z1 = box
        # For each of the four sides: how deep the agent stands inside as seen from it, and the box without that strip.
        # The cut that loses least is made.
        cuts = (
            (pose.x - x0, (min(pose.x + _ELBOW_ROOM, x1 - 0.1), y0, z0, x1, y1, z1)),
            (x1 - pose.x, (x0, y0, z0, max(pose.x - _ELBOW_ROOM, x0 + 0.1), y1, z1)),
            (pose.z - z0, (x0, y0, min(pose.z + _ELBOW_ROOM, z1 - 0.1), x1, y1, z1)),
            (z1 - pose.z, (x0, y0, z0, x1, y1, max(pose.z - _ELBOW_ROOM, z0 + 0.1))),
        )
        box = min(cuts)[1]
    return box


def _grown(box: Box, points: list[Point], poses: list[Pose], reach: float) -> tuple[Box, list[Point]]:
    """`box` extended over `points` where no agent stands and within `reach` metres; and the points left out."""
    left: list[Point] = []
    # The nearest points come first, so that one far point does not keep the box from the others.
    margin, first = _MARGIN, box
    widest = max(1.3, min(box[3] - box[0], box[5] - box[2]) + 0.4)
    for x, y, z in sorted(points, key=lambda p: _excess(first, p[0], p[2])):
        x0, z0, x1, z1 = (
            min(box[0], x - margin),
            min(box[2], z - margin),
            max(box[3], x + margin),
            max(box[5], z + margin),
        )
        grown = (x0, box[1], z0, x1, box[4], z1)
        # A table may become longer, but hardly deeper: its shorter side stays below `widest`.
        across = min(grown[3] - grown[0], grown[5] - grown[2])
        stands_in_it = any(_excess(grown, pose.x, pose.z) < _ELBOW_ROOM for pose in poses)
        if _excess(first, x, z) > reach or across > widest or stands_in_it:
            left.append((x, y, z))
        else:
            box = grown
    return box, left


class RoomGeometry:
    """One game's room as boxes: everything about it that never changes, worked out from ids alone.

    `places`: receptacle id -> `Place`; `points`: id of anything with a name -> its point; `homes`: object id -> the
    receptacle on or in which it lay by its id; `fixtures`: objects that belong to the room itself (windows, chairs).
    Ids without geometry get a place that is always the same for that id.
    """

    def __init__(self, names: Mapping[str, str], locations: Mapping[str, str], receptacles: frozenset[str]):
        self.names = names
        self.kinds = {key: kind_of(name) for key, name in names.items()}
        self.poses = {key: pose for key, loc in locations.items() if (pose := parse_pose(loc)) is not None}
        self.standing = sorted(set(self.poses.values()))
        # x0, z0, x1, z1 of the floor in metres: all that has a position, and a margin.
        known = [p for p in map(parse_position, names) if p is not None]
        xs = [p[0] for p in known] + [p.x for p in self.standing] or [-2.0, 2.0]
        zs = [p[2] for p in known] + [p.z for p in self.standing] or [-2.0, 2.0]
        self.bounds = min(xs) - 0.1, min(zs) - 0.1, max(xs) + 0.1, max(zs) + 0.1
        self.points: dict[str, Point] = {}
        for key in names:
            pose = self.poses.get(key)
            if (point := parse_position(key)) is None and pose is not None:  # 0.8 m in front of who stands at it
                point = (pose.x + 0.8 * pose.forward[0], 0.0, pose.z + 0.8 * pose.forward[1])
            elif point is None:
                # Two shares of the floor from the id alone: always the same place for the same id.
                x0, z0, x1, z1 = self.bounds
                share = (stable(key, 97) + 0.5) / 97, (stable(key[::-1], 89) + 0.5) / 89
                point = (x0 + share[0] * (x1 - x0), 0.0, z0 + share[1] * (z1 - z0))
            self.points[key] = point
        ids = sorted(key for key in names if key in receptacles)
        self._of_kind: dict[str, list[str]] = {}
        for key in ids:
            self._of_kind.setdefault(self.kinds[key], []).append(key)
        self.places = {key: self._placed(key) for key in ids}
        # The home of an object: the receptacle whose surface or inside fits its point best, unless even that one lies
        # elsewhere (misfit from 1 on).
        self.homes: dict[str, str] = {}
        for key in sorted(key for key in names if key not in receptacles):
            if self.kinds[key] in NOT_RENDERED or parse_position(key) is None:
                continue
            point = self.points[key]
            best = min(self.places.values(), key=lambda place: (misfit(place, point), place.id), default=None)
            if best is not None and misfit(best, point) < 1.0:
                self.homes[key] = best.id
        self._fit()

    def pose(self, location: str) -> Pose:
        """The agent's pose at `location`; for an id without geometry one that is always the same."""
        known = parse_pose(location)
        if known is not None:
            return known
        if self.standing:
            return self.standing[stable(location, len(self.standing))]
        x0, z0, x1, z1 = self.bounds
        return Pose((x0 + x1) / 2, (z0 + z1) / 2, stable(location, 4), 30.0)

    def facing(self, key: str) -> tuple[int, int]:
        """Direction (x, z) from a receptacle to where the agent stands at it, to the nearest quarter turn."""
        pose = self.poses.get(key)
        if pose is not None:
            return (-pose.forward[0], -pose.forward[1])
        x, _, z = self.points[key]
        return wall_front(self.bounds, x, z)

    def _front(self, key: str) -> tuple[int, int]:
        x, _, z = self.points[key]
        return wall_front(self.bounds, x, z) if furniture(self.kinds[key]).backed else self.facing(key)

    def _placed(self, key: str) -> Place:
        plan, front = furniture(self.kinds[key]), self._front(key)
        x, y, z = self.points[key]
        width, height, depth = plan.size
        if plan.anchor == "hinge":
            x, z, width = self._hung(key, front, width)
        # What the id's point means depends on the kind: the middle of the base, of the body or of the upper edge.
        centre = {"floor": 0.0, "counter": 0.0, "base": y, "centre": y - height / 2, "hinge": y - height / 2}
        bottom = centre.get(plan.anchor, y - height)
        if plan.anchor == "rim":
            bottom, height = (0.0, height) if plan.size[0] > 1 else (y - height + 0.02, height)
        # The point of a table lies on its top, so it tells the height; one on the ground tells nothing.
        if plan.anchor in ("floor", "counter") and y > 0.4:
            height = y
        box = oriented_box((x, bottom, z), (width, height, depth), front)
        if plan.anchor == "hinge":
            # The hinge is on the front, so the body lies behind it.
            shift = depth / 2 - 0.02
            box = _moved(box, (-front[0] * shift, 0.0, -front[1] * shift))
        if bottom < 1.2 and plan.kind == "surface":
            box = _cut(box, self.standing)
        return Place(key, self.kinds[key], plan, front, box)

    def _hung(self, key: str, front: tuple[int, int], width: float) -> tuple[float, float, float]:
        """Centre (x, z) and width of a cabinet whose id tells its hinge.

        Doors of a pair hang on their outer sides, neighbours back to back: a hinge close by means "the other way",
        the next one along the wall means "towards it"; alone, towards where the agent stands to open it.
        """
        x, y, z = self.points[key]
        right = (-front[1], front[0])  # as seen from the front
        offsets = []
        for other in self._of_kind[self.kinds[key]]:
            ox, oy, oz = self.points[other]
            same = other != key and self._front(other) == front
            level = abs(oy - y) < 0.25 and abs((ox - x) * front[0] + (oz - z) * front[1]) < 0.25
            if same and level:
                offsets.append((ox - x) * right[0] + (oz - z) * right[1])
        # Offsets are metres to the right along the wall. 9 m stand for "no neighbour".
        near = min(offsets, key=abs, default=9.0)
        if abs(near) < 0.2:
            side = -1 if near > 0 or (near == 0 and stable(key, 2)) else 1
        elif abs(near) < 1.25:
            side = 1 if near > 0 else -1
        else:
            pose = self.poses.get(key)
            side = 1 if pose is None or (pose.x - x) * right[0] + (pose.z - z) * right[1] >= 0 else -1
        # A door is at most as wide as half the way to the next hinge on its side.
        ahead = [side * o for o in offsets if side * o > 0.2]
        width = min(width, max(0.26, min(ahead, default=9.0) / 2))
        return x + right[0] * side * width / 2, z + right[1] * side * width / 2, width

    def _fit(self) -> None:
        """Grow surfaces over what lay on them, counters over what is built into them, and set that into its host."""
        lying: dict[str, list[Point]] = {key: [] for key in self.places}
        for key, home in self.homes.items():
            lying[home].append(self.points[key])
        for place in self.places.values():
            if place.kind in _ON_COUNTERS:
                # The front edge of what is built into a counter becomes a point that the counter must cover, too: that
                # of the nearest counter within 1.6 m.
                x, _, z = _front_edge(place)
                x, z = x - place.front[0] * _MARGIN, z - place.front[1] * _MARGIN
                nearest = (1.6, "")
                for counter in self.places.values():
                    if counter.kind == "countertop" and -0.12 < counter.box[4] - place.box[1] < 1.0:
                        nearest = min(nearest, (_excess(counter.box, x, z), counter.id))
                if nearest[1]:
                    lying[nearest[1]].append((x, self.places[nearest[1]].box[4], z))
        for key, place in self.places.items():
            if place.plan.kind == "surface" and place.plan.reach > 0.1:
                points, plan, box = lying[key], place.plan, place.box
                # A table is as high as what lay on it says: the lower quartile, since some things stand on others.
                heights = sorted(p[1] for p in points if 0.6 < p[1] / max(place.surface, 0.1) < 1.5)
                if plan.anchor == "floor" and heights and plan.seat == 1.0:
                    box = (*box[:4], heights[len(heights) // 4] - 0.01, box[5])
                # The surface grows over what lay on it. Above 1.2 m nobody can stand in its way.
                on_top = [p for p in points if abs(p[1] - box[4]) < 0.3]
                box, left = _grown(box, on_top, self.standing if box[1] < 1.2 else [], plan.reach)
                # The points that the counter cannot reach lie on its other leg, if all fit in a leg of usual depth.
                wing = None
                if plan.anchor == "counter" and left:
                    xs, zs = [p[0] for p in left], [p[2] for p in left]
                    around = (min(xs) - 0.3, box[1], min(zs) - 0.3, max(xs) + 0.3, box[4], max(zs) + 0.3)
                    wing = _cut(around, self.standing)
                    wing = wing if min(wing[3] - wing[0], wing[5] - wing[2]) < 1.3 else None
                self.places[key] = replace(place, box=box, wing=wing)
        # What is built in is set into its host; what stands on a counter, but has none below, gets a stand of its own.
        hosts = [place for place in self.places.values() if place.kind in _HOSTS]
        for key, place in self.places.items():
            if place.kind in _BUILT_IN:
                self.places[key] = _embedded(place, hosts)
            elif place.kind in _CARRIED and 0.4 < place.box[1] < 1.3:
                x0, y0, z0, x1, _, z1 = place.box
                x, z = (x0 + x1) / 2, (z0 + z1) / 2
                bodies = [body for host in hosts for body in (host.box, host.wing) if body is not None]
                if any(_excess(body, x, z) < 0.05 and abs(body[4] - y0) < 0.25 for body in bodies):
                    continue  # a surface is under it
                stand = _cut((x0 - 0.03, 0.0, z0 - 0.03, x1 + 0.03, y0, z1 + 0.03), self.standing)
                self.places[key] = replace(place, stand=stand)


def _front_edge(place: Place) -> Point:
    """The middle of the front, on the ground line."""
    x0, y0, z0, x1, _, z1 = place.box
    fx, fz = place.front
    return ((x0 + x1) / 2 + fx * (x1 - x0) / 2, y0, (z0 + z1) / 2 + fz * (z1 - z0) / 2)


def _embedded(place: Place, hosts: list[Place]) -> Place:
    """`place` set into the counter, chest or table that it belongs to: its front flush with the host's."""
    x0, y0, z0, x1, y1, z1 = place.box
    x, z = (x0 + x1) / 2, (z0 + z1) / 2
    fx, fz = place.front
    for host in hosts:
        for body in filter(None, (host.box, host.wing)):
            if _excess(body, x, z) > 0.05 or not body[1] - 0.1 < (y0 + y1) / 2 < body[4]:
                continue
            # A basin hangs below the counter's top; only its rim shows above.
            if place.kind == "sinkbasin":
                rim = (x0, body[4], z0, x1, body[4] + 0.02, z1)
                return replace(place, box=(x0, min(y0, body[4] - 0.15), z0, x1, body[4] + 0.005, z1), face=rim)
            # Anything else moves along its front's direction until it stands just before the host's front, 15 mm
            # further, so that it is never inside the host. A host that is too far away is not its own.
            edge = _front_edge(place)
            front = (body[3] if fx > 0 else body[0]) if fx else (body[5] if fz > 0 else body[2])
            shift = (front - (edge[0] if fx else edge[2])) * (fx + fz) + 0.015
            if abs(shift) > 0.45:
                continue
            # It may sink by 10 cm to fit under the top of its host.
            highest = body[4] - (0.06 if host.plan.legs else 0.02)
            lift = max(min(highest - y1, 0.0), -0.1)
            moved = _moved(place.box, (shift * fx, lift, shift * fz))
            box = x0, y0, z0, x1, y1, z1 = (*moved[:4], min(moved[4], highest), moved[5])
            if host.plan.legs:  # a drawer under a table top shows its whole body
                return replace(place, box=box)
            # In a closed host only the front shows, as a thin plate.
            if fx:
                face = (x1, y0, z0, x1 + 0.02, y1, z1) if fx > 0 else (x0 - 0.02, y0, z0, x0, y1, z1)
            else:
                face = (x0, y0, z1, x1, y1, z1 + 0.02) if fz > 0 else (x0, y0, z0 - 0.02, x1, y1, z0)
            return replace(place, box=box, face=face)
    return place


def _moved(box: Box, by: Point) -> Box:
    dx, dy, dz = by
    return (box[0] + dx, box[1] + dy, box[2] + dz, box[3] + dx, box[4] + dy, box[5] + dz)


def wall_front(bounds: tuple[float, float, float, float], x: float, z: float) -> tuple[int, int]:
    """Direction into the room from the wall nearest to (x, z)."""
    x0, z0, x1, z1 = bounds
    return min((x - x0, (1, 0)), (x1 - x, (-1, 0)), (z - z0, (0, 1)), (z1 - z, (0, -1)))[1]


def misfit(place: Place, point: Point) -> float:
    """How badly `point` sits on or in `place`: 0 is exactly there, from 1 on it lies elsewhere."""
    x, y, z = point
    box, reach = place.box, max(place.plan.reach, 0.1)
    # Distance on the floor in units of the reach, and distance in height in units of what the kind allows, add up.
    sideways = _excess(place.box, x, z) / reach
    if place.wing is not None:
        sideways = min(sideways, _excess(place.wing, x, z) / reach)
    if place.plan.kind != "surface":
        return sideways + max(box[1] - 0.1 - y, y - box[4] - 0.05, 0.0) / 0.1
    if place.plan.legs and y < place.surface - 0.3:
        return sideways + 0.5  # on the lower board of a table
    tall = 0.35 if place.plan.anchor == "floor" else _ON_TOP
    return sideways + abs(y - place.surface) / tall * 0.9
