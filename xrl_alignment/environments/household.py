"""Makes new household games in ALFWorld's own domain, grammar, floor plans and file layout.

    python -m xrl_alignment.environments.household --out DIR --num-train 2000 --num-heldout 100 --seed 0

Tree of DIR (`find_games("household_heldout", data=DIR)` finds them; ALFWorld itself loads them):

    DIR/household.json                             what was asked for, and the versions that made it
    DIR/json_2.1.1/household_train/<task folder>/<trial>/{game.tw-pddl,traj_data.json}
    DIR/json_2.1.1/household_heldout/...           other rooms (floor plans) than household_train

Game `i` of a split depends on (seed, split, i, max_receptacles) alone: asking for more games keeps the ones there were.
Task types take turns. Every game is solved before it is kept: the plan that is written into it as `walkthrough` is
executed on the native engine (`verify="native"`), or Fast Downward looks for one of its own (`verify="planner"`, up to
a second a game).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from xrl_alignment.environments.base import MAX_STEPS, TASK_TYPES, EnvironmentFault, Game
from xrl_alignment.environments.games import RELEASE
from xrl_alignment.environments.rooms import (
    SURFACES,
    Receptacle,
    Room,
    alfworld_path,
    load_room,
    location_id,
    mangle,
    room_numbers,
    thor_name,
)

SPLITS = {"household_train": False, "household_heldout": True}  # name -> held-out rooms?
MIN_RECEPTACLES, MAX_RECEPTACLES = 8, 16
MIN_OPENABLE = 3
MIN_OBJECTS = 12
VERSION = 2  # of the generator: another version makes other games from the same seed
VERIFY = ("native", "planner", "none")

# Things of one receptacle of the type in official training games, on average: where objects are likely to lie.
_CROWDEDNESS = {
    "ArmChair": 0.84, "BathtubBasin": 1.5, "Bed": 3.9, "Cabinet": 0.44, "Cart": 3.1, "CoffeeMachine": 0.4,
    "CoffeeTable": 4.1, "CounterTop": 6.3, "Desk": 6.4, "DiningTable": 9.5, "Drawer": 0.5, "Dresser": 4.5,
    "Fridge": 4.3, "GarbageCan": 0.85, "HandTowelHolder": 0.8, "LaundryHamper": 0.1, "Microwave": 1.1,
    "Ottoman": 0.9, "Safe": 0.5, "Shelf": 1.0, "SideTable": 2.6, "SinkBasin": 1.7, "Sofa": 2.4,
    "StoveBurner": 0.66, "TVStand": 3.4, "Toaster": 0.1, "Toilet": 2.3, "ToiletPaperHanger": 0.2, "TowelHolder": 0.9,
}  # fmt: skip
_LAMP_HOSTS = ("SideTable", "Desk", "Dresser", "Shelf", "CoffeeTable")  # where official desk lamps stand
_SCENERY = {  # things in the way that nobody can pick up, and where official games have them
    "HousePlant": ("CoffeeTable", "CounterTop", "Desk", "DiningTable", "Dresser", "Shelf", "SideTable"),
    "Television": ("Dresser", "SideTable", "TVStand"),
}
_NEVER_TARGETS = ("BathtubBasin", "SinkBasin")  # no official game asks to put something there
_MAX_INSTANCES = 3  # of one object type, as in ALFWorld's generator; the target's type may have one more
_APPLIANCES = {
    "pick_clean_then_place_in_recep": ("SinkBasin", "clean", "Cleanable"),
    "pick_heat_then_place_in_recep": ("Microwave", "heat", "Heatable"),
    "pick_cool_then_place_in_recep": ("Fridge", "cool", "Coolable"),
}
_TYPES_IN_DOMAIN = ("SinkType", "SinkBasinType", "MicrowaveType", "FridgeType", "KnifeType", "ButterKnifeType")


@dataclass(frozen=True)
class Task:
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

    room: Room
    task: Task
    receptacles: list[Receptacle]
    start: str
    types: dict[str, str] = field(default_factory=dict)  # object id -> type
    places: dict[str, Receptacle] = field(default_factory=dict)  # object id -> where it lies


class _Unfit(Exception):
    """This draw makes no game (the room lacks something the task needs); the next draw may."""


# ---------------------------------------------------------------------------------------------------- ALFWorld's tables


@lru_cache(maxsize=1)
def _holds() -> dict[str, frozenset[str]]:
    """Receptacle type -> object types that it may hold (ALFWorld's VAL_RECEPTACLE_OBJECTS, sliced ones left out)."""
    from alfworld.gen import constants

    table = constants.VAL_RECEPTACLE_OBJECTS
    whole = {kind: frozenset(o for o in table[kind] if not o.endswith("Sliced")) for kind in SURFACES if kind in table}
    return whole


@lru_cache(maxsize=1)
def _affords() -> dict[str, frozenset[str]]:
    """Heatable, Coolable, Cleanable, Toggleable, Sliceable -> object types (ALFWorld's VAL_ACTION_OBJECTS)."""
    from alfworld.gen import constants

    return {action: frozenset(kinds) for action, kinds in constants.VAL_ACTION_OBJECTS.items()}


@lru_cache(maxsize=1)
def official_domain() -> str:
    """The PDDL domain inside the official games (release 2.1.3 of the TextWorld games).

    alfworld 0.4.2 ships it with one precondition commented out (`SinkType`, of which no game has an instance) and an
    empty line more.
    """
    text = (alfworld_path() / "data" / "alfred.pddl").read_text()
    text = text.replace(";(receptacleType ?r SinkType)", "(receptacleType ?r SinkType)")
    return text.rstrip("\n)") + ")\n)\n)\n"


@lru_cache(maxsize=1)
def official_grammar() -> str:
    """The grammar inside the official games, task sentence still `UNKNOWN GOAL`.

    alfworld 0.4.2 ships the text of `help` as a nested grammar; in the games it stands in the feedback itself.
    """
    text = (alfworld_path() / "data" / "alfred.twl2").read_text()
    head, mark, rest = text.partition('    feedback :: "#help.feedback#";')
    if not mark:
        return text
    body = rest.partition('"rhs": "')[2].partition('"')[0]
    return head + '    feedback :: "' + body.replace("\\n", "\n") + '";\n}\n'


# -------------------------------------------------------------------------------------------------------- drawing a game


def _draw_task(kind: str, room: Room, rng: random.Random) -> Task:
    """An object and a target that `room` offers for task type `kind`; raises `_Unfit` if there are none."""
    holds = _holds()
    there = {r.type for r in room.receptacles}
    appliance, _, affordance = _APPLIANCES.get(kind, ("", "", ""))
    if appliance and appliance not in there:
        raise _Unfit
    if kind == "look_at_obj_in_light" and not ("DeskLamp" in room.object_types and there & set(_LAMP_HOSTS)):
        raise _Unfit
    hosts = {o: [k for k in there if o in holds.get(k, ())] for o in room.object_types}
    objects = sorted(o for o in hosts if hosts[o] and (not affordance or o in _affords()[affordance]))
    if kind == "look_at_obj_in_light":
        return Task(kind, rng.choice(objects), "")
    # An object that fits one type of receptacle only would lie in its target from the start.
    pairs = [(k, o) for o in objects if len(hosts[o]) > 1 for k in hosts[o] if k not in (appliance, *_NEVER_TARGETS)]
    if not pairs:
        raise _Unfit
    # Targets are drawn first: many objects go on counters, and official games spread over the targets evenly.
    target = rng.choice(sorted({k for k, _ in pairs}))
    return Task(kind, rng.choice(sorted(o for k, o in pairs if k == target)), target)


def _draw_receptacles(room: Room, task: Task, limit: int, rng: random.Random) -> list[Receptacle]:
    """Some of the room's receptacles: what the task needs, at least three that are closed, then any."""
    if len(room.receptacles) < MIN_RECEPTACLES:
        raise _Unfit
    count = min(rng.randint(MIN_RECEPTACLES, limit), len(room.receptacles))
    shuffled = list(room.receptacles)
    rng.shuffle(shuffled)
    wanted = {task.target, _APPLIANCES.get(task.type, ("",))[0]}
    chosen = [next(r for r in shuffled if r.type == kind) for kind in sorted(wanted - {""})]
    if task.type == "look_at_obj_in_light":
        chosen.append(next(r for r in shuffled if r.type in _LAMP_HOSTS))
    holders = [r for r in shuffled if task.object in _holds().get(r.type, ()) and r.type != task.target]
    chosen += holders[:1]
    closed = [r for r in shuffled if r.openable and r not in chosen]
    chosen += closed[: max(0, MIN_OPENABLE - sum(r.openable for r in chosen))]
    chosen = list(dict.fromkeys(chosen))
    chosen += [r for r in shuffled if r not in chosen][: max(0, count - len(chosen))]
    if sum(r.openable for r in chosen) < MIN_OPENABLE or not holders:
        raise _Unfit
    return sorted(chosen, key=lambda r: r.id)


def _draw_start(room: Room, used: set[str], rng: random.Random) -> str:
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
    portable = [o for o in layout.room.object_types if any(o in _holds().get(kind, ()) for kind in here)]
    two = task.type == "pick_two_obj_and_place"
    # In official games nothing of the asked type lies in a target at the start, except where its state must change.
    barred = task.target if task.type not in _APPLIANCES else ""
    for _ in range(rng.randint(2 if two else 1, _MAX_INSTANCES + 1)):
        _put(layout, task.object, rng, barred)
    if task.type == "look_at_obj_in_light":
        _put(layout, "DeskLamp", rng, hosts=_LAMP_HOSTS)
    for kind, hosts in _SCENERY.items():
        if kind in layout.room.object_types and here & set(hosts) and rng.random() < 0.5:
            _put(layout, kind, rng, hosts=hosts)
    others = [kind for kind in portable if kind != task.object for _ in range(_MAX_INSTANCES)]
    rng.shuffle(others)
    count = rng.randint(MIN_OBJECTS, max(MIN_OBJECTS, 2 * len(receptacles)))
    for kind in others[: max(0, count - len(layout.types))]:
        _put(layout, kind, rng)
    if len(layout.types) < MIN_OBJECTS:
        raise _Unfit


def _put(layout: Layout, kind: str, rng: random.Random, barred: str = "", hosts: tuple[str, ...] = ()) -> None:
    """Add one object of type `kind`, in a receptacle that may hold it, more likely where official ones are crowded."""
    table = _holds()
    fitting = [
        r
        for r in layout.receptacles
        if r.type != barred and (r.type in hosts if hosts else kind in table.get(r.type, ()))
    ]
    if not fitting:
        raise _Unfit
    place = rng.choices(fitting, [_CROWDEDNESS[r.type] for r in fitting])[0]
    for _ in range(20):
        id_ = mangle(thor_name(kind, _position_on(place, rng)))
        if id_ not in layout.types:
            layout.types[id_], layout.places[id_] = kind, place
            return
    raise _Unfit


def _position_on(place: Receptacle, rng: random.Random) -> tuple[float, float, float]:
    """A position in metres on `place`: wide across the view of who stands before it, narrow along it."""
    across, along = rng.uniform(-1, 1) * place.spread, rng.uniform(-0.6, 0.6) * place.spread
    x, _, z = place.position
    dx, dz = (across, along) if place.turn % 2 == 0 else (along, across)
    return x + dx, rng.uniform(*place.surface), z + dz


def _draw_layout(kind: str, room: Room, limit: int, rng: random.Random) -> Layout:
    """One furnished room with a task of type `kind`; raises `_Unfit` if the room or the draw does not serve."""
    task = _draw_task(kind, room, rng)
    receptacles = _draw_receptacles(room, task, limit, rng)
    layout = Layout(room, task, receptacles, _draw_start(room, {r.location for r in receptacles}, rng))
    _furnish(layout, rng)
    return layout


# --------------------------------------------------------------------------------------------------------------- writing


def names(ids: list[str]) -> dict[str, str]:
    """Id -> name in the text ("cabinet 2"), as alfworld's `Demangler`: per type, counted down in id order."""
    ordered = sorted(ids, key=str.lower)
    kinds = {id_: id_.lower().split("_bar_", 1)[0] + ("basin" if "basin" in id_.lower() else "") for id_ in ordered}
    left: dict[str, int] = {}
    for kind in kinds.values():
        left[kind] = left.get(kind, 0) + 1
    result = {}
    for id_ in ordered:
        result[id_] = f"{kinds[id_]} {left[kinds[id_]]}"
        left[kinds[id_]] -= 1
    return result


def plan(layout: Layout) -> list[str]:
    """Commands that solve the game when carried out one after the other, in the dialect of the official games."""
    name = names([*layout.types, *(r.id for r in layout.receptacles)])
    task = layout.task
    wanted = [o for o, kind in layout.types.items() if kind == task.object]
    appliance, verb, _ = _APPLIANCES.get(task.type, ("", "", ""))
    walk = _Walk(name, layout.start)
    for object_ in wanted[: 2 if task.type == "pick_two_obj_and_place" else 1]:
        walk.enter(layout.places[object_])
        walk.commands.append(f"take {name[object_]} from {name[layout.places[object_].id]}")
        if appliance:
            station = next(r for r in layout.receptacles if r.type == appliance)
            walk.go(station)
            walk.commands.append(f"{verb} {name[object_]} with {name[station.id]}")
        if task.target:
            target = next(r for r in layout.receptacles if r.type == task.target)
            walk.enter(target)
            walk.commands.append(f"move {name[object_]} to {name[target.id]}")
        else:
            lamp = next(o for o, kind in layout.types.items() if kind == "DeskLamp")
            walk.go(layout.places[lamp])
            walk.commands.append(f"use {name[lamp]}")
    return walk.commands


class _Walk:
    """The way through the room: a place is gone to unless one stands there, opened unless it is open."""

    def __init__(self, name: dict[str, str], start: str) -> None:
        self.commands: list[str] = []
        self._name, self._location, self._opened = name, start, set()

    def go(self, place: Receptacle) -> None:
        if self._location != place.location:
            self.commands.append(f"go to {self._name[place.id]}")
            self._location = place.location

    def enter(self, place: Receptacle) -> None:
        self.go(place)
        if place.openable and place.id not in self._opened:
            self.commands.append(f"open {self._name[place.id]}")
            self._opened.add(place.id)


def problem(layout: Layout, trial: str) -> str:
    """The game's PDDL problem, with the predicates official games have, declaring only the types that occur."""
    object_types = sorted(set(layout.types.values()))
    otypes = sorted({f"{kind}Type" for kind in object_types} | {"SinkType", "KnifeType", "ButterKnifeType"})
    rtypes = sorted({f"{r.type}Type" for r in layout.receptacles} | {"SinkBasinType", "MicrowaveType", "FridgeType"})
    locations = sorted({layout.start, *(r.location for r in layout.receptacles)})
    declared = [
        "agent1 - agent",
        *(f"{kind} - otype" for kind in otypes),
        *(f"{kind} - rtype" for kind in rtypes),
        *(f"{id_} - object" for id_ in sorted(layout.types)),
        *(f"{r.id} - receptacle" for r in layout.receptacles),
        *(f"{location} - location" for location in locations),
    ]
    indent = "\n        "
    return (
        f"\n(define (problem plan_{trial})\n(:domain alfred)\n(:objects{indent}{indent.join(declared)}\n        )\n"
        f"\n(:init{indent}{indent.join(_facts(layout))}\n        )\n{_goal(layout.task)}"
    )


def _facts(layout: Layout) -> list[str]:
    """What holds at the start, one fact a line."""
    holds, affords = _holds(), _affords()
    facts = [f"(receptacleType {r.id} {r.type}Type)" for r in layout.receptacles]
    facts += [f"(objectType {o} {kind}Type)" for o, kind in layout.types.items()]
    kinds = sorted(set(layout.types.values()))
    for type_ in sorted({r.type for r in layout.receptacles}):
        facts += [f"(canContain {type_}Type {kind}Type)" for kind in kinds if kind in holds.get(type_, ())]
    portable = frozenset().union(*holds.values())
    facts += [f"(pickupable {o})" for o, kind in layout.types.items() if kind in portable]
    facts += [f"(isReceptacleObject {o})" for o, kind in layout.types.items() if kind in _movable_receptacles()]
    facts += [f"(openable {r.id})" for r in layout.receptacles if r.openable]
    facts.append(f"(atLocation agent1 {layout.start})")
    for predicate in ("cleanable", "heatable", "coolable", "toggleable", "sliceable"):
        able = affords[predicate.capitalize()]
        facts += [f"({predicate} {o})" for o, kind in layout.types.items() if kind in able]
    facts += [f"(inReceptacle {o} {place.id})" for o, place in layout.places.items()]
    facts += [f"(receptacleAtLocation {r.id} {r.location})" for r in layout.receptacles]
    facts += [f"(objectAtLocation {o} {place.location})" for o, place in layout.places.items()]
    return facts


@lru_cache(maxsize=1)
def _movable_receptacles() -> frozenset[str]:
    from alfworld.gen import constants

    return frozenset(constants.MOVABLE_RECEPTACLES)


def _goal(task: Task) -> str:
    """ALFWorld's goal for the task, with the bracket that closes the problem."""
    from alfworld.gen import goal_library

    text = goal_library.gdict[task.type]["pddl"].replace("#", "-")
    return text.format(obj=task.object, recep=task.target, toggle="DeskLamp")


def _sentence(task: Task, rng: random.Random) -> str:
    """One of ALFWorld's template sentences for the task, in lower case, without the full stop."""
    from alfworld.gen import goal_library

    template = rng.choice(goal_library.gdict[task.type]["templates"])
    return template.format(obj=task.object.lower(), recep=task.target.lower(), toggle="desklamp")


def _write_game(split: Path, layout: Layout, trial: str, rng: random.Random) -> Game:
    """Write the game's two files below `split`, as ALFWorld lays them out."""
    task, number = layout.task, layout.room.number
    game = {
        "pddl_domain": official_domain(),
        "grammar": official_grammar().replace("UNKNOWN GOAL", _sentence(task, rng)),
        "pddl_problem": problem(layout, trial),
        "solvable": True,
        "walkthrough": plan(layout),
    }
    trajectory = {
        "task_type": task.type,
        "task_id": trial,
        "pddl_params": {
            "object_target": task.object,
            "parent_target": task.target,
            "toggle_target": "" if task.target else "DeskLamp",
            "mrecep_target": "",
            "object_sliced": False,
        },
        "scene": {"scene_num": number, "floor_plan": f"FloorPlan{number}"},
        "turk_annotations": {"anns": []},
    }
    id_ = f"{task.folder}-{number}/{trial}"
    folder = split / id_
    folder.mkdir(parents=True)
    (folder / "game.tw-pddl").write_text(json.dumps(game))
    (folder / "traj_data.json").write_text(json.dumps(trajectory))
    return Game(id_, folder / "game.tw-pddl", split.name)


# -------------------------------------------------------------------------------------------------------------- checking


def solves(path: Path, commands: list[str]) -> bool:
    """Whether `commands`, each accepted, win the game in file `path` on the native engine: at the last, not before."""
    from xrl_alignment.environments.native import NOTHING_HAPPENS, NativeGame

    game = NativeGame.load(path)
    if game.won or not 0 < len(commands) <= MAX_STEPS:
        return False
    for command in commands:
        if game.won or game.step(command) == NOTHING_HAPPENS:
            return False
    return game.won


def planner_solves(path: Path) -> bool:
    """Whether Fast Downward (through TextWorld) finds a plan for the game in file `path`; slow, up to a second."""
    import textworld

    environment = textworld.start(str(path), textworld.EnvInfos(policy_commands=True))
    try:
        return 0 < len(environment.reset()["policy_commands"] or ()) <= MAX_STEPS
    finally:
        environment.close()


def _accepted(game: Game, layout: Layout, verify: str) -> bool:
    if verify == "none":
        return True
    return solves(game.path, plan(layout)) if verify == "native" else planner_solves(game.path)


# ------------------------------------------------------------------------------------------------------------ generating


def make_game(split: Path, index: int, seed: int, limit: int = MAX_RECEPTACLES, verify: str = "native") -> Game:
    """Draw, write and check game `index` of the split whose folder is `split` (its name decides the rooms)."""
    rng = random.Random(f"{VERSION} {split.name} {seed} {limit} {index}")
    numbers = room_numbers(SPLITS[split.name])
    kind = TASK_TYPES[index % len(TASK_TYPES)]
    for _ in range(1000):
        try:
            layout = _draw_layout(kind, load_room(rng.choice(numbers)), limit, rng)
        except _Unfit:
            continue
        game = _write_game(split, layout, f"trial_H{seed}_{index:06d}", rng)
        if _accepted(game, layout, verify):
            return game
        shutil.rmtree(game.path.parent)
    raise EnvironmentFault(
        f"could not make a {kind} game (seed {seed}, index {index}): is the installed alfworld whole?"
    )


def generate(
    out: str | Path,
    num_train: int,
    num_heldout: int,
    seed: int = 0,
    *,
    max_receptacles: int = MAX_RECEPTACLES,
    verify: str = "native",
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Make the two splits under `out`; does nothing if just these were made there before.

    The splits appear whole or not at all. `progress` is called with (games made, games asked for). Raises
    `EnvironmentFault` for a request that makes no sense, and when `out` holds a split that this program did not make.
    """
    request = _request(num_train, num_heldout, seed, max_receptacles, verify)
    out = Path(out).expanduser()
    manifest = out / "household.json"
    if _read_manifest(manifest) == request:
        return
    if not manifest.exists() and any((out / RELEASE / name).exists() for name in SPLITS):
        raise EnvironmentFault(f"{out / RELEASE} holds household games without {manifest}: choose another folder")
    (out / RELEASE).mkdir(parents=True, exist_ok=True)
    made, total = 0, num_train + num_heldout
    with tempfile.TemporaryDirectory(dir=out, prefix=".making-") as making:
        for name, count in zip(SPLITS, (num_train, num_heldout), strict=True):
            (Path(making) / name).mkdir()
            for index in range(count):
                make_game(Path(making) / name, index, seed, max_receptacles, verify)
                made += 1
                if progress:
                    progress(made, total)
        manifest.unlink(missing_ok=True)  # from here until the end the folder is nobody's
        for name in SPLITS:
            shutil.rmtree(out / RELEASE / name, ignore_errors=True)
            os.replace(Path(making) / name, out / RELEASE / name)
        (Path(making) / "household.json").write_text(json.dumps(request, indent=1) + "\n")
        os.replace(Path(making) / "household.json", manifest)


def _request(num_train: int, num_heldout: int, seed: int, max_receptacles: int, verify: str) -> dict:
    """What was asked for, as the manifest records it; `EnvironmentFault` if it cannot be done."""
    if min(num_train, num_heldout) < 0:
        raise EnvironmentFault(f"numbers of games must be 0 or more, got {num_train} and {num_heldout}")
    if max_receptacles < MIN_RECEPTACLES:
        raise EnvironmentFault(f"max_receptacles must be at least {MIN_RECEPTACLES}, got {max_receptacles}")
    if verify not in VERIFY:
        raise EnvironmentFault(f"unknown verification {verify!r}: choose one of {', '.join(VERIFY)}")
    return {
        "num_train": num_train,
        "num_heldout": num_heldout,
        "seed": seed,
        "max_receptacles": max_receptacles,
        "verify": verify,
        "generator": VERSION,
        "alfworld": metadata.version("alfworld"),
    }


def _read_manifest(path: Path) -> dict | None:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def main(arguments: list[str] | None = None) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m xrl_alignment.environments.household",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", required=True, help="folder for the games")
    parser.add_argument("--num-train", type=int, default=2000)
    parser.add_argument("--num-heldout", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-receptacles", type=int, default=MAX_RECEPTACLES, help="largest room (default 16)")
    parser.add_argument("--verify", choices=VERIFY, default="native", help="who checks that a game can be solved")
    options = parser.parse_args(arguments)
    try:
        generate(
            options.out,
            options.num_train,
            options.num_heldout,
            options.seed,
            max_receptacles=options.max_receptacles,
            verify=options.verify,
            progress=_print_progress,
        )
    except (EnvironmentFault, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"games: {Path(options.out) / RELEASE}")
    return 0


def _print_progress(made: int, total: int) -> None:
    """Ten lines for the whole job, on stderr."""
    if made == total or made % max(1, total // 10) == 0:
        print(f"made {made} of {total} games", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
