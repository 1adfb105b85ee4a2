"""Furnishes a floor plan for a task: which receptacles are in use, which object goes where, where the agent starts.

What may lie where, and what can be heated, cooled, cleaned or toggled, comes from ALFWorld's tables; how
crowded a receptacle is, from the official training games.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cache

from xrl_alignment.environments.household.alfworld_tables import tables
from xrl_alignment.environments.household.floor_plans import (
    SURFACES,
    FloorPlan,
    Receptacle,
    location_id,
    mangle,
    thor_name,
)

MIN_RECEPTACLES, MAX_RECEPTACLES = 8, 16
MIN_OPENABLE = 3
MIN_OBJECTS = 12

# Things of one receptacle of the type in official training games, on average: where objects are likely to lie.
_CROWDEDNESS = {
    "ArmChair": 0.84, "BathtubBasin": 1.5, "Bed": 3.9, "Cabinet": 0.44, "Cart": 3.1, "CoffeeMachine": 0.4,
    "CoffeeTable": 4.1, "CounterTop": 6.3, "Desk": 6.4, "DiningTable": 9.5, "Drawer": 0.5, "Dresser": 4.5,
    "Fridge": 4.3, "GarbageCan": 0.85, "HandTowelHolder": 0.8, "LaundryHamper": 0.1, "Microwave": 1.1,
    "Ottoman": 0.9, "Safe": 0.5, "Shelf": 1.0, "SideTable": 2.6, "SinkBasin": 1.7, "Sofa": 2.4,
    "StoveBurner": 0.66, "TVStand": 3.4, "Toaster": 0.1, "Toilet": 2.3, "ToiletPaperHanger": 0.2, "TowelHolder": 0.9,
}  # fmt: skip
_LAMP_HOSTS = ("SideTable", "Desk", "Dresser", "Shelf", "CoffeeTable")  # where official desk lamps stand
# Things that belong nowhere: once a teddy bear or a paper towel roll is picked up, nothing may hold it (so it is in the
# official games); the others cannot be picked up. How often a room that has one shows it in or on what, about as there.
_SCENERY = {
    "HousePlant": (0.5, ("CoffeeTable", "CounterTop", "Desk", "DiningTable", "Dresser", "Shelf", "SideTable")),
    "Mirror": (0.1, ("CounterTop", "Dresser")),
    "PaperTowelRoll": (0.5, ("CounterTop", "DiningTable", "GarbageCan", "Shelf")),
    "Sink": (0.1, ("CounterTop", "SinkBasin")),
    "TeddyBear": (0.5, ("Bed",)),
    "Television": (0.5, ("Dresser", "SideTable", "TVStand")),
    "Window": (0.1, ("CounterTop", "Dresser", "Shelf")),
}
_PORTABLE_SCENERY = frozenset({"PaperTowelRoll", "TeddyBear"})
_NEVER_TARGETS = ("BathtubBasin", "SinkBasin")  # no official game asks to put something there
_MAX_INSTANCES = 3  # of one object type, as in ALFWorld's generator; the target's type may have one more
APPLIANCES = {
    "pick_clean_then_place_in_recep": ("SinkBasin", "clean", "Cleanable"),
    "pick_heat_then_place_in_recep": ("Microwave", "heat", "Heatable"),
    "pick_cool_then_place_in_recep": ("Fridge", "cool", "Coolable"),
}


@dataclass(frozen=True)
class TaskSpec:
    """What is asked: a task type, the object's type, the target receptacle's type (empty for the lamp task)."""

    type: str
    object: str
    target: str

    @property
    def folder(self) -> str:
        """ALFWorld's name of the task's folder, without the floor plan's number."""
        return f"{self.type}-{self.object}-None-{self.target or 'DeskLamp'}"


@dataclass
class Layout:
    """A furnished room: the receptacles in use, every object's type and place, where the agent starts."""

    room: FloorPlan
    task: TaskSpec
    receptacles: list[Receptacle]
    start: str
    types: dict[str, str] = field(default_factory=dict)  # object id -> type
    places: dict[str, Receptacle] = field(default_factory=dict)  # object id -> where it lies


class Unfit(Exception):
    """This draw makes no game: the room lacks something that the task needs. The next draw may make one."""


@cache
def may_hold(receptacle_type: str) -> frozenset[str]:
    """Object types that a receptacle of this type may hold: ALFWorld's table without sliced things."""
    return frozenset(o for o in tables()["may_hold"].get(receptacle_type, ()) if not o.endswith("Sliced"))


@cache
def portable_types() -> frozenset[str]:
    """Object types that can be picked up: those that some receptacle may hold, and some scenery."""
    return _PORTABLE_SCENERY.union(*map(may_hold, SURFACES))


@cache
def types_that_are(ability: str) -> frozenset[str]:
    """Object types that are "Heatable", "Coolable", "Cleanable", "Toggleable" or "Sliceable"."""
    return frozenset(tables()["abilities"][ability])


@cache
def container_types() -> frozenset[str]:
    """Object types that are containers themselves: bowls, boxes, cups, ..."""
    return frozenset(tables()["containers"])


def _draw_task(kind: str, room: FloorPlan, rng: random.Random) -> TaskSpec:
    """An object and a target that `room` offers for task type `kind`; raises `Unfit` if there are none."""
    there = {r.type for r in room.receptacles}
    appliance, _, affordance = APPLIANCES.get(kind, ("", "", ""))
    if appliance and appliance not in there:
        raise Unfit
    if kind == "look_at_obj_in_light" and not ("DeskLamp" in room.object_types and there & set(_LAMP_HOSTS)):
        raise Unfit
    hosts = {o: [k for k in there if o in may_hold(k)] for o in room.object_types}
    objects = sorted(o for o in hosts if hosts[o] and (not affordance or o in types_that_are(affordance)))
    if kind == "look_at_obj_in_light":
        return TaskSpec(kind, rng.choice(objects), "")
    # An object that fits one type of receptacle only would lie in its target from the start.
    pairs = [(k, o) for o in objects if len(hosts[o]) > 1 for k in hosts[o] if k not in (appliance, *_NEVER_TARGETS)]
    if not pairs:
        raise Unfit
    # Targets are drawn first: many objects go on counters, and official games spread over the targets evenly.
    target = rng.choice(sorted({k for k, _ in pairs}))
    return TaskSpec(kind, rng.choice(sorted(o for k, o in pairs if k == target)), target)


def _draw_receptacles(room: FloorPlan, task: TaskSpec, limit: int, rng: random.Random) -> list[Receptacle]:
    """Some of the room's receptacles: what the task needs, at least three that are closed, then any."""
    if len(room.receptacles) < MIN_RECEPTACLES:
        raise Unfit
    count = min(rng.randint(MIN_RECEPTACLES, limit), len(room.receptacles))
    shuffled = list(room.receptacles)
    rng.shuffle(shuffled)
    wanted = {task.target, APPLIANCES.get(task.type, ("",))[0]}
    chosen = [next(r for r in shuffled if r.type == kind) for kind in sorted(wanted - {""})]
    if task.type == "look_at_obj_in_light":
        chosen.append(next(r for r in shuffled if r.type in _LAMP_HOSTS))
    holders = [r for r in shuffled if task.object in may_hold(r.type) and r.type != task.target]
    chosen += holders[:1]
    closed = [r for r in shuffled if r.openable and r not in chosen]
    chosen += closed[: max(0, MIN_OPENABLE - sum(r.openable for r in chosen))]
    chosen = list(dict.fromkeys(chosen))
    chosen += [r for r in shuffled if r not in chosen][: max(0, count - len(chosen))]
    if sum(r.openable for r in chosen) < MIN_OPENABLE or not holders:
        raise Unfit
    return sorted(chosen, key=lambda r: r.id)


def _draw_start(room: FloorPlan, used: set[str], rng: random.Random) -> str:
    """A standing point that is no receptacle's location, as in the official games; the head tilted by 30 degrees."""
    while True:
        x, z = rng.choice(room.points)
        start = location_id(x, z, rng.randrange(4), 30)
        if start not in used:
            return start


def _furnish(layout: Layout, rng: random.Random) -> None:
    """Put objects into the room: those of the task, then others until it looks lived in."""
    task, receptacles = layout.task, layout.receptacles
    here = {r.type for r in receptacles}
    portable = [o for o in layout.room.object_types if any(o in may_hold(kind) for kind in here)]
    two = task.type == "pick_two_obj_and_place"
    # In official games nothing of the asked type lies in a target at the start, except where its state must change.
    barred = task.target if task.type not in APPLIANCES else ""
    for _ in range(rng.randint(2 if two else 1, _MAX_INSTANCES + 1)):
        _put(layout, task.object, rng, barred)
    if task.type == "look_at_obj_in_light":
        _put(layout, "DeskLamp", rng, hosts=_LAMP_HOSTS)
    for kind, (probability, hosts) in _SCENERY.items():
        if kind in layout.room.object_types and here & set(hosts) and rng.random() < probability:
            _put(layout, kind, rng, hosts=hosts)
    others = [kind for kind in portable if kind != task.object for _ in range(_MAX_INSTANCES)]
    rng.shuffle(others)
    count = rng.randint(MIN_OBJECTS, max(MIN_OBJECTS, 2 * len(receptacles)))
    for kind in others[: max(0, count - len(layout.types))]:
        _put(layout, kind, rng)
    if len(layout.types) < MIN_OBJECTS:
        raise Unfit


def _put(layout: Layout, kind: str, rng: random.Random, barred: str = "", hosts: tuple[str, ...] = ()) -> None:
    """Add one object of type `kind`, in a receptacle that may hold it, more likely where official ones are crowded."""
    fitting = [
        r for r in layout.receptacles if r.type != barred and (r.type in hosts if hosts else kind in may_hold(r.type))
    ]
    if not fitting:
        raise Unfit
    place = rng.choices(fitting, [_CROWDEDNESS[r.type] for r in fitting])[0]
    for _ in range(20):
        id_ = mangle(thor_name(kind, _position_on(place, rng)))
        if id_ not in layout.types:
            layout.types[id_], layout.places[id_] = kind, place
            return
    raise Unfit


def _position_on(place: Receptacle, rng: random.Random) -> tuple[float, float, float]:
    """A position in metres on `place`: wide across the view of who stands before it, narrow along it."""
    across, along = rng.uniform(-1, 1) * place.spread, rng.uniform(-0.6, 0.6) * place.spread
    x, _, z = place.position
    dx, dz = (across, along) if place.turn % 2 == 0 else (along, across)
    return x + dx, rng.uniform(*place.surface), z + dz


def draw_layout(kind: str, room: FloorPlan, limit: int, rng: random.Random) -> Layout:
    """One furnished room with a task of type `kind`; raises `Unfit` if the room lacks something that the task needs."""
    task = _draw_task(kind, room, rng)
    receptacles = _draw_receptacles(room, task, limit, rng)
    layout = Layout(room, task, receptacles, _draw_start(room, {r.location for r in receptacles}, rng))
    _furnish(layout, rng)
    return layout
