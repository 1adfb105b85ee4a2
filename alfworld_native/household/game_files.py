"""What is written for a generated game: `game.tw-pddl` (domain, grammar, PDDL problem, plan) and `traj_data.json`.

A game with several goals asks for them at once: its PDDL goal is the conjunction of their goals, its task sentence
joins theirs. ALFWorld has no task type for that; the game has the type of its first goal.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from alfworld_native.base import Game
from alfworld_native.engine.world import number
from alfworld_native.household.alfworld_tables import tables
from alfworld_native.household.floor_plans import Receptacle
from alfworld_native.household.furnish import (
    APPLIANCES,
    Layout,
    container_types,
    may_hold,
    portable_types,
    types_that_are,
)
from alfworld_native.language.sentences import NUMBERS, TASK_JOINT

_CONDITION = re.compile(r"\(:goal\s*\(and(.*)\)\s*\)\s*\)", re.DOTALL)  # what a goal's `and` holds


@cache
def official_domain() -> str:
    """The PDDL domain inside the official games (release 2.1.3 of the TextWorld games).

    alfworld 0.4.2 ships it with one precondition commented out (`SinkType`, of which no game has an instance) and an
    empty line more.
    """
    text = tables()["domain"].replace(";(receptacleType ?r SinkType)", "(receptacleType ?r SinkType)")
    return text.rstrip("\n)") + ")\n)\n)\n"


@cache
def official_grammar() -> str:
    """The grammar inside the official games, task sentence still `UNKNOWN GOAL`.

    alfworld 0.4.2 ships the text of `help` as a nested grammar; in the games it stands in the feedback itself.
    """
    text = tables()["grammar"]
    head, mark, rest = text.partition('    feedback :: "#help.feedback#";')
    if not mark:
        return text
    body = rest.partition('"rhs": "')[2].partition('"')[0]
    return head + '    feedback :: "' + body.replace("\\n", "\n") + '";\n}\n'


def names(ids: Iterable[str]) -> dict[str, str]:
    """Id -> name in the text ("cabinet 2"), as alfworld's `Demangler` gives it."""
    # The engine's ids are lower case, as Fast Downward's; the game file keeps AI2-THOR's spelling.
    ordered = sorted(ids, key=str.lower)
    table = number(id_.lower() for id_ in ordered)
    return {id_: table[id_.lower()] for id_ in ordered}


def plan(layout: Layout) -> list[str]:
    """Commands that solve the game when carried out one after the other, in the dialect of the official games."""
    name = names([*layout.types, *(r.id for r in layout.receptacles)])
    walk = _Walk(name, layout.start)
    for task in layout.tasks:
        wanted = [o for o, kind in layout.types.items() if kind == task.object]
        appliance, verb, _ = APPLIANCES.get(task.type, ("", "", ""))
        # One object after the other: the agent holds one thing at a time.
        for object_ in wanted[: task.count]:
            walk.enter(layout.places[object_])
            walk.commands.append(f"take {name[object_]} from {name[layout.places[object_].id]}")
            if appliance:
                # Any one of them: the layout was drawn with at least one for each task.
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
        self._name, self._location = name, start
        self._opened: set[str] = set()

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
    object_types = sorted(map(layout.called, set(layout.types.values())))
    # The domain's actions name six types, which therefore are declared in every game.
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
        f"\n(:init{indent}{indent.join(_facts(layout))}\n        )\n{_goal(layout)}"
    )


def _facts(layout: Layout) -> list[str]:
    """What holds at the start, one fact a line."""
    facts = [f"(receptacleType {r.id} {r.type}Type)" for r in layout.receptacles]
    called = layout.called
    facts += [f"(objectType {o} {called(kind)}Type)" for o, kind in layout.types.items()]
    kinds = sorted(set(layout.types.values()))
    for type_ in sorted({r.type for r in layout.receptacles}):
        facts += [f"(canContain {type_}Type {called(kind)}Type)" for kind in kinds if kind in may_hold(type_)]
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


def _goal(layout: Layout) -> str:
    """ALFWorld's goals for the tasks in one, with the bracket that closes the problem."""
    goals = []
    for task in layout.tasks:
        # ALFWorld's library writes `?r # receptacle` for PDDL's `?r - receptacle`.
        text = tables()["goals"][task.type]["pddl"].replace("#", "-")
        if task.count > 2:
            # ALFWorld's condition that two objects are in one receptacle, for `count` different ones. From the
            # innermost `exists` outwards: each object is different from all that stand further out.
            objects = [f"?o{i + 1}" for i in range(task.count)]
            several = ""
            for i in reversed(range(task.count)):
                apart = "".join(f"(not (= {other} {objects[i]})) " for other in objects[:i])
                kinds = f"(objectType {objects[i]} {{obj}}Type) (receptacleType ?r {{recep}}Type)"
                here = f"{kinds} (inReceptacle {objects[i]} ?r)"
                several = f"(exists ({objects[i]} - object) (and {apart}{here}{several and ' ' + several}))"
            condition = f"(exists (?r - receptacle) {several})"
            text = f"\n    (:goal\n        (and\n            {condition}\n        )\n    )\n)\n"
        goals.append(text.format(obj=layout.called(task.object), recep=task.target, toggle="DeskLamp"))
    if len(goals) == 1:
        return goals[0]
    conditions = [" ".join(_CONDITION.sub(r"\1", text).split()) for text in goals]
    indent = "\n            "
    return f"\n    (:goal\n        (and{indent}{indent.join(conditions)}\n        )\n    )\n)\n"


def write_game(split: Path, layout: Layout, trial: str, rng: random.Random) -> Game:
    """Write the game's two files below `split`, as ALFWorld lays them out."""
    task, room = layout.task, layout.room
    # ALFWorld's template sentences for the tasks, in lower case, without the full stop.
    sentences = []
    for each in layout.tasks:
        template = rng.choice(tables()["goals"][each.type]["templates"]).replace(" two ", f" {NUMBERS[each.count]} ")
        called = layout.called(each.object).lower()
        sentences.append(template.format(obj=called, recep=each.target.lower(), toggle="desklamp"))
    game = {
        "pddl_domain": official_domain(),
        "grammar": official_grammar().replace("UNKNOWN GOAL", TASK_JOINT.join(sentences)),
        "pddl_problem": problem(layout, trial),
        "solvable": True,
        "walkthrough": plan(layout),
    }
    # The part of ALFRED's file that ALFWorld reads.
    trajectory = {
        "task_type": task.type,
        "task_id": trial,
        "pddl_params": {
            "object_target": layout.called(task.object),
            "parent_target": task.target,
            "toggle_target": "" if task.target else "DeskLamp",
            "mrecep_target": "",
            "object_sliced": False,
        },
        "scene": {"scene_num": room.number, "floor_plan": f"FloorPlan{room.number}"},
        "turk_annotations": {"anns": []},
    }
    id_ = f"{layout.folder}/{trial}"
    folder = split / id_
    folder.mkdir(parents=True)
    (folder / "game.tw-pddl").write_text(json.dumps(game))
    (folder / "traj_data.json").write_text(json.dumps(trajectory))
    return Game(id_, folder / "game.tw-pddl", split.name)
