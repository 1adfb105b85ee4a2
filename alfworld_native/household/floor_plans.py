"""ALFWorld's floor plans as rooms to furnish: receptacles with their geometry, and the points where an agent can stand.

Poses of the receptacles, types of everything in the room and reachable points are ALFWorld's (`alfworld_tables`).

Small fixtures (garbage can, coffee machine, ...) are listed in `objects.json` without a position. They get one here:
on a counter, or against a wall, the same in every game of the room. Heights and spreads of what lies on a receptacle
are medians over the 3,553 official training games (object position minus receptacle position, by receptacle type).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import cache

from alfworld_native.errors import EnvironmentFault
from alfworld_native.household.alfworld_tables import GRID, tables

Position = tuple[float, float, float]  # x, y (up), z in metres
Point = tuple[int, int]  # x, z in grid units

CAMERA_HEIGHT = 1.575  # metres; AI2-THOR's agent: body at 0.9, camera 0.675 above
VALID_UNSEEN_ROOMS = (10, 219, 308, 424)  # the rooms of ALFWorld's official valid_unseen split

# Receptacle type -> (lowest, highest height of what lies in it over its own y, metres; half width of the spread).
SURFACES = {
    "ArmChair": (0.40, 0.46, 0.15),
    "BathtubBasin": (-0.30, -0.12, 0.25),
    "Bed": (0.56, 0.70, 0.40),
    "Cabinet": (-0.38, -0.28, 0.18),
    "Cart": (0.24, 0.24, 0.10),
    "CoffeeMachine": (0.05, 0.06, 0.02),
    "CoffeeTable": (0.42, 0.50, 0.25),
    "CounterTop": (-0.03, -0.02, 0.45),
    "Desk": (0.71, 0.82, 0.40),
    "DiningTable": (0.72, 0.92, 0.35),
    "Drawer": (-0.08, -0.02, 0.08),
    "Dresser": (0.70, 0.98, 0.25),
    "Fridge": (0.60, 1.50, 0.15),
    "GarbageCan": (0.07, 0.11, 0.05),
    "HandTowelHolder": (-0.10, -0.10, 0.01),
    "LaundryHamper": (0.20, 0.40, 0.10),
    "Microwave": (0.12, 0.15, 0.06),
    "Ottoman": (0.42, 0.43, 0.20),
    "Safe": (0.03, 0.04, 0.08),
    "Shelf": (0.00, 0.01, 0.15),
    "SideTable": (0.48, 0.67, 0.12),
    "SinkBasin": (-0.13, -0.07, 0.10),
    "Sofa": (0.45, 0.54, 0.35),
    "StoveBurner": (0.01, 0.01, 0.01),
    "TVStand": (0.42, 0.76, 0.25),
    "Toaster": (0.01, 0.02, 0.05),
    "Toilet": (0.95, 1.05, 0.12),
    "ToiletPaperHanger": (-0.02, 0.00, 0.02),
    "TowelHolder": (0.01, 0.02, 0.05),
}

# Fixtures that floor plans name but do not place: (on a counter, height in metres, how many), from official games.
FIXTURES = {
    "CoffeeMachine": (True, 0.90, 1),
    "Toaster": (True, 0.90, 1),
    "StoveBurner": (True, 0.93, 4),
    "GarbageCan": (False, 0.0, 1),
    "HandTowelHolder": (False, 1.64, 1),
    "LaundryHamper": (False, 0.01, 1),
    "Ottoman": (False, 0.01, 1),
    "Toilet": (False, 0.0, 1),
    "ToiletPaperHanger": (False, 0.89, 1),
    "TowelHolder": (False, 1.36, 1),
}
# One official cabinet or drawer in six cannot be opened and shows what it holds.
_FIXED_OPEN_SHARE = {"Cabinet": 0.17, "Drawer": 0.16}
_OPENABLE = ("Cabinet", "Drawer", "Fridge", "Microwave", "Safe")
_DIRECTIONS = ((0, 1), (1, 0), (0, -1), (-1, 0))  # quarter turn -> (x, z): 0 looks along +z


@dataclass(frozen=True)
class Receptacle:
    """One receptacle of a room. Positions in metres, y is up; `turn` is the quarter turn of who stands before it."""

    id: str  # PDDL id, carries the position
    type: str  # "Cabinet", "SinkBasin", ...
    position: Position
    surface: tuple[float, float]  # lowest and highest height of what lies in it
    spread: float  # half width, metres, over which its contents lie
    location: str  # PDDL id of the location from which it is reached
    turn: int
    openable: bool


@dataclass(frozen=True)
class FloorPlan:
    """One floor plan: its kind (Kitchen, LivingRoom, Bedroom, Bathroom), receptacles, object types, standing points.

    A House has several (`houses`): the others' numbers are `joined`.
    """

    number: int
    kind: str
    receptacles: tuple[Receptacle, ...]
    object_types: tuple[str, ...]
    points: tuple[Point, ...]
    joined: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """The numbers, as they end a task folder's name."""
        return "_".join(map(str, (self.number, *self.joined)))


def mangle(name: str) -> str:
    """AI2-THOR's object id as a PDDL id: `Desk|+02.32|-00.01` -> `Desk_bar__plus_02_dot_32_bar__minus_00_dot_01`."""
    for character, word in (("|", "_bar_"), ("+", "_plus_"), ("-", "_minus_"), (".", "_dot_")):
        name = name.replace(character, word)
    return name


def thor_name(kind: str, position: Position) -> str:
    """AI2-THOR's id of a thing at `position` (metres): `Desk|+02.32|-00.01|-03.22`."""
    return "|".join([kind, *(f"{value + 0.0:+06.2f}" for value in position)])


def location_id(x: int, z: int, turn: int, horizon: int) -> str:
    """A location's PDDL id: x and z in grid units, quarter turn, horizon in degrees (positive looks down)."""
    return "loc_bar_" + "_bar_".join(str(value).replace("-", "_minus_") for value in (x, z, turn, horizon))


def room_kind(number: int) -> str:
    """Kind of floor plan `number`: Kitchen 1..30, LivingRoom 201..230, Bedroom 301..330, Bathroom 401..430."""
    kinds = {0: "Kitchen", 2: "LivingRoom", 3: "Bedroom", 4: "Bathroom"}
    return kinds[number // 100]


def floor_plan_numbers(heldout: bool) -> tuple[int, ...]:
    """Floor plans of one side of the train/held-out division.

    Held out are the rooms that ALFWorld's generator calls test scenes, and those of the official valid_unseen split,
    so that a model trained on generated games has seen neither.
    """
    held = {*tables()["test_rooms"], *VALID_UNSEEN_ROOMS}
    return tuple(sorted(held if heldout else set(tables()["train_rooms"]) - held))


@cache
def load_floor_plan(number: int) -> FloorPlan:
    """Floor plan `number`; the result depends on the number alone. EnvironmentFault if ALFWorld has no such plan."""
    if str(number) not in tables()["floor_plans"]:
        raise EnvironmentFault(f"ALFWorld has no floor plan {number}")
    plan = tables()["floor_plans"][str(number)]
    types, flat = plan["types"], plan["points"]
    points = tuple(zip(flat[::2], flat[1::2], strict=True))
    rng = random.Random(f"room {number}")
    receptacles = []
    for name, (at_x, at_z, degrees, _) in sorted(plan["poses"].items()):  # `name` is `Type|x|y|z[|Part]`
        x, y, z = (float(part) for part in name.split("|")[1:4])
        turn = round(degrees / 90) % 4
        receptacles.append(_receptacle(name, (x, y, z), round(at_x / GRID), round(at_z / GRID), turn, rng))
    # The fixtures that the room has (by `objects.json`), but whose position the floor plan does not give.
    present = {r.type for r in receptacles}
    counters = [r for r in receptacles if r.type in ("CounterTop", "DiningTable", "SideTable")]
    found: list[Receptacle] = []
    for type_, (on_counter, height, count) in FIXTURES.items():
        if type_ not in types or type_ in present or (on_counter and not counters):
            continue
        if on_counter:
            found += _on_counter(type_, height, count, rng.choice(counters), points, rng)
        else:
            found.append(_at_wall(type_, height, receptacles + found, points, rng))
    receptacles += found
    unique = {r.id.lower(): r for r in receptacles if r.type in SURFACES}
    return FloorPlan(number, room_kind(number), tuple(unique.values()), tuple(types), points)


def _receptacle(name: str, position: Position, x: int, z: int, turn: int, rng: random.Random) -> Receptacle:
    """One receptacle, reached from grid point (x, z); the camera tilts towards its position, as ALFWorld's does."""
    kind, *numbers = name.split("|")
    type_ = numbers[3] if len(numbers) > 3 else kind
    distance = max(abs(position[0] - x * GRID), abs(position[2] - z * GRID), 0.25)
    # Rounded to 15 degrees, as AI2-THOR's camera turns.
    tilt = math.degrees(math.atan2(CAMERA_HEIGHT - position[1], distance))
    horizon = min(max(15 * round(tilt / 15), -30), 60)
    low, high, spread = SURFACES.get(type_, (0.0, 0.0, 0.1))
    if type_ != "Fridge":  # one surface; only a fridge has several shelves
        low = high = round(rng.uniform(low, high), 2)
    if low > 0.2 and position[1] > 0.3:  # some ids give the centre of the table top, not the foot of the table
        low = high = 0.05
    openable = type_ in _OPENABLE and rng.random() >= _FIXED_OPEN_SHARE.get(type_, 0.0)
    return Receptacle(
        id=mangle(name),
        type=type_,
        position=position,
        surface=(position[1] + low, position[1] + high),
        spread=spread,
        location=location_id(x, z, turn, horizon),
        turn=turn,
        openable=openable,
    )


def _on_counter(
    type_: str, height: float, count: int, counter: Receptacle, points: tuple[Point, ...], rng: random.Random
) -> list[Receptacle]:
    """`count` fixtures beside each other on `counter`, each reached from the nearest standing point before it."""
    # Unit vectors along the counter and away from who stands before it.
    along = _DIRECTIONS[(counter.turn + 1) % 4]
    facing = _DIRECTIONS[counter.turn]
    offset = rng.choice((-1, 1)) * rng.uniform(0.35, 0.8)
    top = counter.position[1] if counter.position[1] > 0.3 else height
    found = []
    for i in range(count):
        shift = offset + 0.22 * (i % 2)
        depth = 0.12 * (1 if i < 2 else -1) if count > 1 else 0.1
        x = round(counter.position[0] + along[0] * shift + facing[0] * depth, 2)
        z = round(counter.position[2] + along[1] * shift + facing[1] * depth, 2)
        # The fixture is reached from the standing point nearest to 0.6 m before it.
        before_x, before_z = x - 0.6 * facing[0], z - 0.6 * facing[1]
        distances = [(math.hypot(px * GRID - before_x, pz * GRID - before_z), (px, pz)) for px, pz in points]
        point = min(distances)[1]
        position = (x, round(top, 2), z)
        found.append(_receptacle(thor_name(type_, position), position, *point, counter.turn, rng))
    return found


def _at_wall(
    type_: str, height: float, others: list[Receptacle], points: tuple[Point, ...], rng: random.Random
) -> Receptacle:
    """A fixture just beyond the border of the reachable floor.

    Eight border points are drawn. The fixture gets the one that is farthest from the receptacles that stand already.
    """
    reachable = set(points)
    # Standing points with a neighbour that is not reachable, each with the direction to it.
    border = [
        (x, z, turn)
        for x, z in points
        for turn, (dx, dz) in enumerate(_DIRECTIONS)
        if (x + dx, z + dz) not in reachable
    ]
    best = -1.0
    chosen: tuple[float, float, int, int, int] | None = None
    for x, z, turn in rng.sample(border, min(8, len(border))):
        dx, dz = _DIRECTIONS[turn]
        # Just beyond the border: two grid steps and a bit.
        px, pz = round(x * GRID + 0.55 * dx, 2), round(z * GRID + 0.55 * dz, 2)
        nearest = min((math.hypot(px - r.position[0], pz - r.position[2]) for r in others), default=1.0)
        if nearest > best:
            best, chosen = nearest, (px, pz, x, z, turn)
    assert chosen is not None  # every room has a border
    px, pz, x, z, turn = chosen
    return _receptacle(thor_name(type_, (px, height, pz)), (px, height, pz), x, z, turn, rng)
