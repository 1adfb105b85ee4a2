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
import fcntl
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path

from lavis.common.progress import Bar
from xrl_alignment.common.errors import EnvironmentFault
from xrl_alignment.environments.base import MAX_STEPS, Game
from xrl_alignment.environments.games import RELEASE
from xrl_alignment.environments.household.furnish import (
    APPLIANCES,
    MAX_RECEPTACLES,
    MIN_RECEPTACLES,
    Layout,
    Task,
    Unfit,
    container_types,
    draw_layout,
    may_hold,
    portable_types,
    types_that_are,
)
from xrl_alignment.environments.household.rooms import Receptacle, alfworld_path, load_room, room_numbers
from xrl_alignment.language.sentences import TASK_TYPES

SPLITS = {"household_train": False, "household_heldout": True}  # name -> held-out rooms?
VERSION = 3  # of the generator: another version makes other games from the same seed
VERIFY = ("native", "planner", "none")


@cache
def official_domain() -> str:
    """The PDDL domain inside the official games (release 2.1.3 of the TextWorld games).

    alfworld 0.4.2 ships it with one precondition commented out (`SinkType`, of which no game has an instance) and an
    empty line more.
    """
    text = (alfworld_path() / "data" / "alfred.pddl").read_text()
    text = text.replace(";(receptacleType ?r SinkType)", "(receptacleType ?r SinkType)")
    return text.rstrip("\n)") + ")\n)\n)\n"


@cache
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
    appliance, verb, _ = APPLIANCES.get(task.type, ("", "", ""))
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
    facts = [f"(receptacleType {r.id} {r.type}Type)" for r in layout.receptacles]
    facts += [f"(objectType {o} {kind}Type)" for o, kind in layout.types.items()]
    kinds = sorted(set(layout.types.values()))
    for type_ in sorted({r.type for r in layout.receptacles}):
        facts += [f"(canContain {type_}Type {kind}Type)" for kind in kinds if kind in may_hold(type_)]
    facts += [f"(pickupable {o})" for o, kind in layout.types.items() if kind in portable_types()]
    facts += [f"(isReceptacleObject {o})" for o, kind in layout.types.items() if kind in container_types()]
    facts += [f"(openable {r.id})" for r in layout.receptacles if r.openable]
    facts.append(f"(atLocation agent1 {layout.start})")
    for predicate in ("cleanable", "heatable", "coolable", "toggleable", "sliceable"):
        able = types_that_are(predicate.capitalize())
        facts += [f"({predicate} {o})" for o, kind in layout.types.items() if kind in able]
    facts += [f"(inReceptacle {o} {place.id})" for o, place in layout.places.items()]
    facts += [f"(receptacleAtLocation {r.id} {r.location})" for r in layout.receptacles]
    facts += [f"(objectAtLocation {o} {place.location})" for o, place in layout.places.items()]
    return facts


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


def solves(path: Path, commands: list[str]) -> bool:
    """Whether `commands`, each accepted, win the game in file `path` on the native engine: at the last, not before."""
    from xrl_alignment.environments.native.game import NativeGame
    from xrl_alignment.language.sentences import NOTHING_HAPPENS

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


def make_game(split: Path, index: int, seed: int, limit: int = MAX_RECEPTACLES, verify: str = "native") -> Game:
    """Draw, write and check game `index` of the split whose folder is `split` (its name decides the rooms)."""
    rng = random.Random(f"{VERSION} {split.name} {seed} {limit} {index}")
    numbers = room_numbers(SPLITS[split.name])
    kind = TASK_TYPES[index % len(TASK_TYPES)]
    for _ in range(1000):
        try:
            layout = draw_layout(kind, load_room(rng.choice(numbers)), limit, rng)
        except Unfit:
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
    replace: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Make the two splits under `out`; does nothing if just these were made there before.

    The splits appear whole or not at all. `progress` is called with (games made, games asked for). Raises
    `EnvironmentFault` for a request that makes no sense, when `out` holds a split that this program did not make, and,
    unless `replace`, when it holds other games than those asked for.
    """
    request = _request(num_train, num_heldout, seed, max_receptacles, verify)
    out = Path(out).expanduser()
    manifest = out / "household.json"
    if _read_manifest(manifest) == request:
        return
    if not manifest.exists() and any((out / RELEASE / name).exists() for name in SPLITS):
        raise EnvironmentFault(f"{out / RELEASE} holds household games without {manifest}: choose another folder")
    if not replace and (found := _read_manifest(manifest)):
        raise EnvironmentFault(f"{out} holds {_difference(found, request)}: choose another folder, or remove it")
    (out / RELEASE).mkdir(parents=True, exist_ok=True)
    with _alone_in(out), tempfile.TemporaryDirectory(dir=out, prefix=".making-") as making:
        if _read_manifest(manifest) == request:
            return  # another process made them while this one waited
        _make_splits(Path(making), request, progress)
        _write_atomically(manifest, {})  # whoever is killed from here on leaves a folder to be made again
        for name in SPLITS:
            shutil.rmtree(out / RELEASE / name, ignore_errors=True)
            os.replace(Path(making) / name, out / RELEASE / name)
        _write_atomically(manifest, request)


@contextmanager
def _alone_in(out: Path) -> Iterator[None]:
    """Wait until no other process makes games in `out` (server and client may both ask on first use)."""
    with (out / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make_splits(making: Path, request: dict, progress: Callable[[int, int], None] | None) -> None:
    """Both splits as folders in `making`."""
    made, total = 0, request["num_train"] + request["num_heldout"]
    for name, count in zip(SPLITS, (request["num_train"], request["num_heldout"]), strict=True):
        (making / name).mkdir()
        for index in range(count):
            make_game(making / name, index, request["seed"], request["max_receptacles"], request["verify"])
            made += 1
            if progress:
                progress(made, total)


def _write_atomically(path: Path, content: dict) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(temporary, path)


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


def _difference(found: dict, request: dict) -> str:
    """In what the games that were found differ from those asked for."""
    different = [f"{key} {found.get(key)}, not {value}" for key, value in request.items() if found.get(key) != value]
    return f"other household games than those asked for ({'; '.join(different)})"


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
    parser.add_argument("--replace", action="store_true", help="delete other generated games that are in the folder")
    options = parser.parse_args(arguments)
    try:
        with Bar("games") as bar:
            generate(
                options.out,
                options.num_train,
                options.num_heldout,
                options.seed,
                max_receptacles=options.max_receptacles,
                verify=options.verify,
                replace=options.replace,
                progress=lambda made, total: bar.show(made, total, "made"),
            )
    except (EnvironmentFault, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"games: {Path(options.out) / RELEASE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
