"""Furnishes a floor plan for its tasks: which receptacles are in use, which object goes where, where the agent starts.

What may lie where, and what can be heated, cooled, cleaned or toggled, comes from ALFWorld's tables; how
crowded a receptacle is, from the official training games; how many of everything, from the level.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from alfworld_native.household.alfworld_tables import tables
from alfworld_native.household.floor_plans import SURFACES, FloorPlan, Receptacle, location_id, mangle, thor_name
from alfworld_native.household.levels import GameLevel
from alfworld_native.household.new_names import NEW_NAMES

MIN_OPENABLE = 3  # receptacles of a room that must be opened to see what is in them
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
_MAX_WANTED = 4  # of the object type that a task asks for, unless it asks for more
APPLIANCES = {
    "pick_clean_then_place_in_recep": ("SinkBasin", "clean", "Cleanable"),
    "pick_heat_then_place_in_recep": ("Microwave", "heat", "Heatable"),
    "pick_cool_then_place_in_recep": ("Fridge", "cool", "Coolable"),
}


@dataclass(frozen=True)
class TaskSpec:
    """What is asked: a task type, the object's type, the target receptacle's type (empty for the lamp task).

    `count` objects are to be brought.
    """

    type: str
    object: str
    target: str
    count: int = 1


@dataclass
class Layout:
    """A furnished room: the receptacles in use, every object's type and place, where the agent starts.

    The types are ALFWorld's; `called` gives the name under which a type appears in the game.
    """

    room: FloorPlan
    tasks: tuple[TaskSpec, ...]
    receptacles: list[Receptacle]
    start: str
    types: dict[str, str] = field(default_factory=dict)  # object id -> type
    places: dict[str, Receptacle] = field(default_factory=dict)  # object id -> where it lies
    names: Mapping[str, str] = field(default_factory=dict)  # object type -> another name

    @property
    def task(self) -> TaskSpec:
        """The first task, which gives the game its task type."""
        return self.tasks[0]

    def called(self, kind: str) -> str:
        """The name of an object type in this game."""
        return self.names.get(kind, kind)

    @property
    def folder(self) -> str:
        """The task's folder, as ALFWorld names it; a game with several goals names all their objects and targets."""
        objects = "_".join(self.called(task.object) for task in self.tasks)
        targets = "_".join(task.target or "DeskLamp" for task in self.tasks)
        return f"{self.task.type}-{objects}-None-{targets}-{self.room.label}"


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


def _draw_task(kind: str, room: FloorPlan, level: GameLevel, rng: random.Random) -> TaskSpec:
    """An object and a target that `room` offers for task type `kind`; raises `Unfit` if there are none."""
    there = {r.type for r in room.receptacles}
    appliance, _, affordance = APPLIANCES.get(kind, ("", "", ""))
    if appliance and appliance not in there:
        raise Unfit
    if kind == "look_at_obj_in_light" and not ("DeskLamp" in room.object_types and there & set(_LAMP_HOSTS)):
        raise Unfit
    hosts = {o: [k for k in there if o in may_hold(k)] for o in room.object_types}
    objects = sorted(o for o in hosts if hosts[o] and (not affordance or o in types_that_are(affordance)))
    if level.new_names:
        objects = [o for o in objects if o in NEW_NAMES]
    if kind == "look_at_obj_in_light":
        return TaskSpec(kind, rng.choice(objects), "")
    # An object that fits one type of receptacle only would lie in its target from the start.
    pairs = [(k, o) for o in objects if len(hosts[o]) > 1 for k in hosts[o] if k not in (appliance, *_NEVER_TARGETS)]
    if not pairs:
        raise Unfit
    # Targets are drawn first: many objects go on counters, and official games spread over the targets evenly.
    target = rng.choice(sorted({k for k, _ in pairs}))
    count = level.count if kind == "pick_two_obj_and_place" else 1
    return TaskSpec(kind, rng.choice(sorted(o for k, o in pairs if k == target)), target, count)


def _draw_receptacles(
    room: FloorPlan, tasks: tuple[TaskSpec, ...], level: GameLevel, rng: random.Random
) -> list[Receptacle]:
    """Some of the room's receptacles: what the tasks need, at least three that are closed, then any."""
    least, most = level.receptacles
    if len(room.receptacles) < least:
        raise Unfit
    count = min(rng.randint(least, most), len(room.receptacles))
    shuffled = list(room.receptacles)
    rng.shuffle(shuffled)
    # First what the tasks cannot do without: targets and appliances, a host for the lamp, and a place other than the
    # target that can hold the object.
    wanted = {kind for task in tasks for kind in (task.target, APPLIANCES.get(task.type, ("",))[0])}
    chosen = [next(r for r in shuffled if r.type == kind) for kind in sorted(wanted - {""})]
    for task in tasks:
        if task.type == "look_at_obj_in_light":
            chosen.append(next(r for r in shuffled if r.type in _LAMP_HOSTS))
        holders = [r for r in shuffled if task.object in may_hold(r.type) and r.type != task.target]
        if not holders:
            raise Unfit
        chosen += holders[:1]
    # Then closed containers up to three, so that there is something to search; then any, up to the number drawn.
    closed = [r for r in shuffled if r.openable and r not in chosen]
    chosen += closed[: max(0, MIN_OPENABLE - sum(r.openable for r in chosen))]
    chosen = list(dict.fromkeys(chosen))
    chosen += [r for r in shuffled if r not in chosen][: max(0, count - len(chosen))]
    if sum(r.openable for r in chosen) < MIN_OPENABLE:
        raise Unfit
    return sorted(chosen, key=lambda r: r.id)


def _furnish(layout: Layout, level: GameLevel, rng: random.Random) -> None:
    """Put objects into the room: those of the tasks, then others until it looks lived in."""
    receptacles = layout.receptacles
    here = {r.type for r in receptacles}
    portable = [o for o in layout.room.object_types if any(o in may_hold(kind) for kind in here)]
    for task in layout.tasks:
        # In official games nothing of the asked type lies in a target at the start, except where its state must change.
        barred = task.target if task.type not in APPLIANCES else ""
        most = task.count if level.hidden else max(_MAX_WANTED, task.count)
        for _ in range(rng.randint(task.count, most)):
            _put(layout, task.object, rng, barred, hidden=level.hidden)
        if task.type == "look_at_obj_in_light":
            _put(layout, "DeskLamp", rng, hosts=_LAMP_HOSTS)
    for kind, (probability, hosts) in _SCENERY.items():
        if kind in layout.room.object_types and here & set(hosts) and rng.random() < probability:
            _put(layout, kind, rng, hosts=hosts)
    wanted = {task.object for task in layout.tasks}
    others = [kind for kind in portable if kind not in wanted for _ in range(level.instances)]
    rng.shuffle(others)
    # The clutter is a number of objects for each receptacle.
    fewest, most = (max(MIN_OBJECTS, int(share * len(receptacles))) for share in level.clutter)
    count = rng.randint(fewest, most)
    for kind in others[: max(0, count - len(layout.types))]:
        _put(layout, kind, rng)
    if len(layout.types) < MIN_OBJECTS:
        raise Unfit


def _put(
    layout: Layout,
    kind: str,
    rng: random.Random,
    barred: str = "",
    hosts: tuple[str, ...] = (),
    hidden: bool = False,
) -> None:
    """Add one object of type `kind`, in a receptacle that may hold it, more likely where official ones are crowded.

    `hidden`: in a closed one if there is one, each as likely as the others.
    """
    fitting = [
        r for r in layout.receptacles if r.type != barred and (r.type in hosts if hosts else kind in may_hold(r.type))
    ]
    if not fitting:
        raise Unfit
    closed = [r for r in fitting if r.openable] if hidden else []
    place = rng.choice(closed) if closed else rng.choices(fitting, [_CROWDEDNESS[r.type] for r in fitting])[0]
    # Positions have two decimals, so two things may draw the same id.
    for _ in range(20):
        # A position in metres on the receptacle: wide across the view of who stands before it, narrow along it.
        across, along = rng.uniform(-1, 1) * place.spread, rng.uniform(-0.6, 0.6) * place.spread
        x, _, z = place.position
        dx, dz = (across, along) if place.turn % 2 == 0 else (along, across)
        id_ = mangle(thor_name(layout.called(kind), (x + dx, rng.uniform(*place.surface), z + dz)))
        if id_ not in layout.types:
            layout.types[id_], layout.places[id_] = kind, place
            return
    raise Unfit


def draw_layout(kind: str, room: FloorPlan, level: GameLevel, rng: random.Random) -> Layout:
    """One furnished room with a task of type `kind`; raises `Unfit` if the room lacks something that it needs."""
    # The level's other goals each have an object type of their own: else one object could satisfy two of them.
    tasks = [_draw_task(kind, room, level, rng)]
    while len(tasks) < level.goals:
        task = _draw_task(rng.choice(level.kinds), room, level, rng)
        if task.object in {other.object for other in tasks}:
            raise Unfit
        tasks.append(task)
    receptacles = _draw_receptacles(room, tuple(tasks), level, rng)
    # The agent starts at a point that is no receptacle's location, as in the official games, its head tilted by 30
    # degrees.
    used = {r.location for r in receptacles}
    while True:
        x, z = rng.choice(room.points)
        start = location_id(x, z, rng.randrange(4), 30)
        if start not in used:
            break
    layout = Layout(room, tuple(tasks), receptacles, start, names=NEW_NAMES if level.new_names else {})
    _furnish(layout, level, rng)
    return layout
