"""Where objects are found in rooms: counts over training games, shipped as `receptacle_statistics.json`.

    python -m xrl_alignment.experts.statistics --data $ALFWORLD_DATA

writes the table again. It knows only types ("mug", "cabinet") and kinds of room, never a particular room or game.
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

TABLE = "receptacle_statistics.json"
PRIOR_WEIGHT = 2.0  # pseudo-receptacles by which an estimate leans on the next coarser one

_FACT = re.compile(r"\((receptacleType|objectType|inReceptacle|openable|pickupable|toggleable) (\S+)(?: (\S+?))?\s*\)")


def room_kind(receptacle_types: Iterable[str]) -> str:
    """Kitchen, bathroom, bedroom or livingroom, told from the receptacle types in the room's listing."""
    types = set(receptacle_types)
    for mark, kind in (("fridge", "kitchen"), ("toilet", "bathroom"), ("bed", "bedroom")):
        if mark in types:
            return kind
    return "livingroom"


class Statistics:
    """Answers from a table of counts (the layout is that of `count_games`)."""

    def __init__(self, table: Mapping) -> None:
        self.receptacles: Mapping[str, Mapping[str, int]] = table["receptacles"]
        self.objects: Mapping[str, Mapping[str, Mapping[str, int]]] = table["objects"]
        self.openable: Mapping[str, float] = table["openable"]
        self.object_types = frozenset(name for kind in self.objects.values() for name in kind)
        self.receptacle_types = frozenset(name for kind in self.receptacles.values() for name in kind)
        self._chances: dict[tuple[str, str], dict[str, float]] = {}

    def chances(self, object_type: str, kind: str) -> dict[str, float]:
        """P(a receptacle holds at least one `object_type`) by receptacle type, in rooms of this kind.

        Each estimate leans on the one over all rooms, that one on the mean over all object types: an object never
        counted is sought where most things are.
        """
        key = (object_type, kind)
        if key not in self._chances:
            self._chances[key] = {name: self._chance(object_type, name, kind) for name in self.receptacle_types}
        return self._chances[key]

    def _chance(self, object_type: str, receptacle_type: str, kind: str) -> float:
        number = sum(counts.get(receptacle_type, 0) for counts in self.receptacles.values())
        total = found = 0
        for objects in self.objects.values():
            total += sum(places.get(receptacle_type, 0) for places in objects.values())
            found += objects.get(object_type, {}).get(receptacle_type, 0)
        anything = total / (number * len(self.object_types))
        anywhere = (found + PRIOR_WEIGHT * anything) / (number + PRIOR_WEIGHT)
        here = self.objects.get(kind, {}).get(object_type, {}).get(receptacle_type, 0)
        return (here + PRIOR_WEIGHT * anywhere) / (
            self.receptacles.get(kind, {}).get(receptacle_type, 0) + PRIOR_WEIGHT
        )

    def seen_in(self, object_type: str, receptacle_type: str) -> bool:
        """Whether a training game ever held such an object in such a receptacle (then it can be put there)."""
        return any(receptacle_type in objects.get(object_type, ()) for objects in self.objects.values())


@cache
def load_statistics() -> Statistics:
    """The shipped table, read once a process."""
    return Statistics(json.loads(resources.files(__package__).joinpath(TABLE).read_text("utf-8")))


def count_games(paths: Iterable[Path]) -> dict:
    """Count the starts of these `game.tw-pddl` files.

    Returns `receptacles[kind][receptacle type]`: how many there were; `objects[kind][object type][receptacle type]`:
    how many of those held at least one such object; `openable[receptacle type]`: the share that can be opened.
    """
    receptacles: dict[str, Counter] = defaultdict(Counter)
    objects: dict[str, dict[str, Counter]] = defaultdict(lambda: defaultdict(Counter))
    openable: Counter = Counter()
    games = 0
    for path in paths:
        games += 1
        kinds, things, holds, opens = _read_start(path)
        kind = room_kind(kinds.values())
        receptacles[kind].update(kinds.values())
        openable.update(kinds[name] for name in opens)
        for thing, place in {(things[o], r) for o, r in holds if o in things}:
            objects[kind][thing][kinds[place]] += 1
    total = sum(receptacles.values(), Counter())
    return {
        "games": games,
        "receptacles": receptacles,
        "objects": objects,
        "openable": {name: round(openable[name] / total[name], 3) for name in total},
    }


def _read_start(path: Path) -> tuple[dict[str, str], dict[str, str], set[tuple[str, str]], set[str]]:
    """Receptacle types and (usable) object types by id, what lies where, which receptacles open."""
    facts: dict[str, set[tuple[str, str]]] = defaultdict(set)
    try:
        problem = json.loads(Path(path).read_text("utf-8"))["pddl_problem"]
        start = problem[problem.index("(:init") : problem.index("(:goal")]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not an ALFWorld game file ({error})") from error
    for name, first, second in _FACT.findall(start):
        facts[name].add((first, second))
    usable = {name for name, _ in facts["pickupable"] | facts["toggleable"]}
    kinds = {name: kind.removesuffix("Type").lower() for name, kind in facts["receptacleType"]}
    things = {name: kind.removesuffix("Type").lower() for name, kind in facts["objectType"] if name in usable}
    return kinds, things, facts["inReceptacle"], {name for name, _ in facts["openable"]}


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
    options.out.write_text(json.dumps(count_games(paths), indent=1, sort_keys=True) + "\n", "utf-8")
    print(f"{options.out}: {len(paths)} games counted")


if __name__ == "__main__":
    main()
