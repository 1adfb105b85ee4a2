"""Where objects are in rooms: counts over training games, shipped as `receptacle_statistics.json`.

    python -m alfworld_native.experts.statistics --data $ALFWORLD_DATA      # writes the table again

The table has only types ("mug", "cabinet") and kinds of room, no particular room or game.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from lavis.common.errors import ConfigError
from lavis.common.files import write_text
from lavis.common.program import run_program

TABLE = "receptacle_statistics.json"
PRIOR_WEIGHT = 2.0  # pseudo-counts that a prior has in an estimate

_FACT = re.compile(
    r"\((receptacleType|objectType|inReceptacle|openable|pickupable|toggleable|canContain) (\S+)(?: (\S+?))?\s*\)"
)


def room_kind(receptacle_types: Iterable[str]) -> str:
    """Kitchen, bathroom, bedroom or livingroom, from the receptacle types in the room's listing."""
    types = set(receptacle_types)
    # Each of these stands in one kind of ALFWorld's rooms only; living rooms have none of them.
    for mark, kind in (("fridge", "kitchen"), ("toilet", "bathroom"), ("bed", "bedroom")):
        if mark in types:
            return kind
    return "livingroom"


class Statistics:
    """Estimates from a table of counts (in the layout of `count_games`)."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.receptacles: Mapping[str, Mapping[str, int]] = table["receptacles"]
        self.objects: Mapping[str, Mapping[str, Mapping[str, int]]] = table["objects"]
        self.openable: Mapping[str, float] = table["openable"]
        self.object_types = frozenset(name for kind in self.objects.values() for name in kind)
        self.receptacle_types = frozenset(name for kind in self.receptacles.values() for name in kind)
        self.accepts: Mapping[str, str] = table["accepts"]
        # Over all rooms: how many receptacles of a type were counted, and P(one of them holds an object type), averaged
        # over all object types.
        self._numbers: dict[str, tuple[int, float]] = {}
        for name in self.receptacle_types:
            number = sum(counts.get(name, 0) for counts in self.receptacles.values())
            held = sum(places.get(name, 0) for objects in self.objects.values() for places in objects.values())
            self._numbers[name] = number, held / (number * max(1, len(self.object_types)))
        self._chances: dict[tuple[str, str], dict[str, float]] = {}

    def chances(self, object_type: str, kind: str) -> dict[str, float]:
        """P(a receptacle holds at least one `object_type`) by receptacle type, in rooms of this kind.

        Additive smoothing with a hierarchical prior (m-estimate): an estimate for one kind of room has the estimate
        over all rooms as its prior, and that one has the mean over all object types. So an object that was never
        counted is expected where most objects are.
        """
        key = (object_type, kind)
        if key in self._chances:
            return self._chances[key]
        chances: dict[str, float] = {}
        for name in self.receptacle_types:
            # m-estimate (Cestnik 1990): p = (hits + m * prior) / (number + m), with m pseudo-counts. First over all
            # rooms, with the mean over all object types as the prior ...
            found = sum(objects.get(object_type, {}).get(name, 0) for objects in self.objects.values())
            number, anything = self._numbers[name]
            anywhere = (found + PRIOR_WEIGHT * anything) / (number + PRIOR_WEIGHT)
            # ... then in rooms of this kind, with that estimate as the prior.
            here = self.objects.get(kind, {}).get(object_type, {}).get(name, 0)
            there = self.receptacles.get(kind, {}).get(name, 0)
            chances[name] = (here + PRIOR_WEIGHT * anywhere) / (there + PRIOR_WEIGHT)
        self._chances[key] = chances  # only now: explorers in other threads read the same table
        return chances

    def accepted_by(self, object_type: str) -> frozenset[str]:
        """The receptacle types that accept such an object; all of them for an object that was never counted."""
        # An object of another generator's games: any place may take it.
        if object_type not in self.object_types:
            return self.receptacle_types
        return frozenset(self.accepts.get(object_type, "").split())


@cache
def load_statistics() -> Statistics:
    """The shipped table; each process reads it once."""
    return Statistics(json.loads(resources.files(__package__).joinpath(TABLE).read_text("utf-8")))


def count_games(paths: Iterable[Path]) -> dict[str, Any]:
    """Count objects and receptacles at the start of these `game.tw-pddl` files.

    Returns `receptacles[kind][receptacle type]`: how many there were; `objects[kind][object type][receptacle type]`:
    how many of those held at least one such object; `openable[receptacle type]`: the share that can be opened;
    `accepts[object type]`: the receptacle types it can be put in or on (the same in all games). Raises ConfigError for
    a file that is not an ALFWorld game.
    """
    receptacles: dict[str, Counter[str]] = defaultdict(Counter)
    objects: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    accepts: dict[str, set[str]] = defaultdict(set)
    openable: Counter[str] = Counter()
    games = 0
    for path in paths:
        games += 1
        facts: dict[str, set[tuple[str, str]]] = defaultdict(set)
        try:
            problem = json.loads(Path(path).read_text("utf-8"))["pddl_problem"]
            start = problem[problem.index("(:init") : problem.index("(:goal")]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}: not an ALFWorld game file ({error})") from error
        for name, first, second in _FACT.findall(start):
            facts[name].add((first, second))
        # Types by id: of the receptacles, and of those objects that can be taken or used.
        kinds = {name: _plain(kind) for name, kind in facts["receptacleType"]}
        usable = {name for name, _ in facts["pickupable"] | facts["toggleable"]}
        things = {name: _plain(kind) for name, kind in facts["objectType"] if name in usable}
        kind = room_kind(kinds.values())
        receptacles[kind].update(kinds.values())
        openable.update(kinds[name] for name, _ in facts["openable"])
        # A set: a receptacle with three mugs counts once, since the question is whether it holds any.
        for thing, place in {(things[o], r) for o, r in facts["inReceptacle"] if o in things}:
            objects[kind][thing][kinds[place]] += 1
        for place, thing in facts["canContain"]:
            accepts[_plain(thing)].add(_plain(place))
    total: Counter[str] = sum(receptacles.values(), Counter())
    return {
        "games": games,
        "receptacles": receptacles,
        "objects": objects,
        "openable": {name: round(openable[name] / total[name], 3) for name in total},
        "accepts": {thing: " ".join(sorted(places)) for thing, places in accepts.items()},
    }


def _plain(kind: str) -> str:
    """`CounterTopType` -> `countertop`, as in the text."""
    return kind.removesuffix("Type").lower()


def main() -> None:
    """Count the training games under `--data` and write the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--data", type=Path, required=True, help="ALFWORLD_DATA: the folder that holds json_2.1.1")
    parser.add_argument("--split", default="train", help="count this split (default: train, never an evaluation split)")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name(TABLE))
    options = parser.parse_args()
    folder = options.data / "json_2.1.1" / options.split
    paths = sorted(folder.glob("*/*/game.tw-pddl"))
    if not paths:
        parser.error(f"no game.tw-pddl under {folder}; alfworld-download fetches the official games")
    text = json.dumps(count_games(paths), indent=1, sort_keys=True) + "\n"
    write_text(options.out, text)
    print(f"{options.out}: {len(paths)} games counted")


if __name__ == "__main__":
    run_program(main)
