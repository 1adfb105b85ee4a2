"""A game file turned into what the native engine needs: names, places, abilities of things, goal, wording.

The engine implements the meaning of particular texts: `alfred.pddl` and the grammar inside the game file. Both are
known here by hash, the grammar with its task sentence masked; a game with other texts is refused, because nobody has
proven (`prove.py`) that the engine equals TextWorld on it.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from xrl_alignment.environments.base import EnvironmentFault
from xrl_alignment.environments.pddl import INITIAL, STATIC, Exists, Fact, parse_facts, parse_goal, sections

KNIVES = frozenset(("knifetype", "butterknifetype"))
_HEATERS, _COOLERS = frozenset(("microwavetype",)), frozenset(("fridgetype",))
_ABILITIES = (
    "openable",
    "pickupable",
    "cleanable",
    "heatable",
    "coolable",
    "toggleable",
    "sliceable",
    "isreceptacleobject",
)
_OBJECT_FIRST = frozenset(name for name, types in {**STATIC, **INITIAL}.items() if types[0] == "object")
_KEYS = ("pddl_domain", "grammar", "pddl_problem")
_TASK = re.compile(r'("rhs": "Your task is to: )(.*)(")')
_PLAIN = re.compile(r"[A-Za-z0-9 .,;:!?'()/_-]*")  # a task sentence that the grammar's own syntax leaves alone


class Wording(NamedTuple):
    """What differs between the proven versions of ALFWorld's text files."""

    dialect: str  # "move": `move X to Y`; "put": `put X in/on Y`
    arrival: str  # "receptacle": `You arrive at desk 1.`; "location": `You arrive at loc 12.`


class Rules(NamedTuple):
    """What differs between the proven versions of alfred.pddl."""

    cleaners: frozenset[str]  # receptacle types that clean
    help: bool  # whether there is a `help` action


_BASIN, _BASIN_OR_SINK = frozenset(("sinkbasintype",)), frozenset(("sinkbasintype", "sinktype"))
DOMAINS = {  # by fingerprint
    "0af55e7f92d12b09": Rules(_BASIN_OR_SINK, help=True),  # in the official games of ALFWorld 0.4
    "f1473041ed01da51": Rules(_BASIN, help=True),  # alfworld/data of the packages 0.4.0 to 0.4.2
    "e64e8c0002648c40": Rules(_BASIN, help=False),  # alfworld/data of the package 0.3.5
}
GRAMMARS = {
    "10da93e13b58e1a6": Wording("move", "receptacle"),  # in the official games of ALFWorld 0.4
    "c294eb280206a442": Wording("move", "receptacle"),  # alfworld/data of the packages 0.4.0 to 0.4.2
    "de0a5951f63a9b4f": Wording("put", "location"),  # alfworld/data of the package 0.3.5
}


def fingerprint(text: str) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of `text`, its task sentence masked."""
    return hashlib.sha256(_TASK.sub(r"\1\3", text).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class GameText:
    """The part of a game file that differs between games, cheap to keep for thousands of them."""

    domain: str  # fingerprint
    grammar: str  # fingerprint
    task: str  # "Your task is to: …"
    facts: str  # one fact a line: predicate and ids, lower case
    goal: str  # the `(:goal …)` section
    walkthrough: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class World:
    """What stays the same during a game, and how it begins. Listings are in the order of the ids, as TextWorld's."""

    wording: Wording
    rules: Rules
    task: str
    goal: tuple[Exists, ...]
    static: frozenset[Fact]
    initial: tuple[Fact, ...]  # facts that can change
    names: dict[str, str]  # every id with a number -> "desk 1"
    thing_names: dict[str, str]  # the same for receptacles and objects only
    agent: str
    start: str  # location
    receptacles: tuple[str, ...]
    objects: tuple[str, ...]
    locations: tuple[str, ...]
    location_of: dict[str, str]  # receptacle -> location
    here: dict[str, tuple[str, ...]]  # location -> receptacles
    accepts: dict[str, frozenset[str]]  # receptacle -> objects that may be put there
    able: dict[str, frozenset[str]]  # "cleanable" … -> objects; "openable" -> receptacles
    cleaning: frozenset[str]  # receptacles that clean
    heating: frozenset[str]
    cooling: frozenset[str]
    knives: frozenset[str]
    inside: dict[str, tuple[str, ...]]  # container object -> objects that were in it at the beginning

    def domains(self) -> dict[str, tuple[str, ...]]:
        """PDDL type -> ids, for the goal's variables."""
        return {
            "agent": (self.agent,),
            "object": self.objects,
            "receptacle": self.receptacles,
            "location": self.locations,
        }


def read_game_file(path: Path | str) -> GameText:
    """Read a `game.tw-pddl`.

    Raises FileNotFoundError, or EnvironmentFault where the file is truncated, foreign, or of an unproven version.
    """
    path = Path(path)
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise FileNotFoundError(f"game file {path} does not exist") from None
    except IsADirectoryError:
        raise EnvironmentFault(f"game file {path} is a folder; give the game.tw-pddl inside it") from None
    except ValueError as error:
        raise EnvironmentFault(f"game file {path} is truncated or no JSON ({error}); fetch it again") from None
    missing = [key for key in _KEYS if not isinstance(data, dict) or not isinstance(data.get(key), str)]
    if missing:
        raise EnvironmentFault(f"game file {path} is no ALFWorld game: it lacks {', '.join(missing)}")
    if data.get("solvable") is False:
        raise EnvironmentFault(f"game file {path} is marked as unsolvable; leave it out, as ALFWorld does")
    try:
        return extract(data)
    except EnvironmentFault as error:
        raise EnvironmentFault(f"game file {path}: {error}") from None


def extract(data: dict) -> GameText:
    """The `GameText` of a game file's content; EnvironmentFault as `read_game_file`, without the file's name."""
    domain, grammar = fingerprint(data["pddl_domain"]), fingerprint(data["grammar"])
    for kind, found, proven in (("domain", domain, DOMAINS), ("grammar", grammar, GRAMMARS)):
        if found not in proven:
            raise EnvironmentFault(
                f"its PDDL {kind} (fingerprint {found}) is none that the native engine was proven on; "
                "environment.name=textworld plays it"
            )
    sentences = [json.loads(f'"{match[1]}"') for match in _TASK.findall(data["grammar"])]
    if len(sentences) != 1 or not _PLAIN.fullmatch(sentences[0]):
        raise EnvironmentFault(
            f"its task sentence {sentences} is not one line of plain text; environment.name=textworld plays it"
        )
    init, goal = sections(data["pddl_problem"])
    facts = "\n".join(" ".join(fact) for fact in parse_facts(init))
    parse_goal(goal)
    task = f"Your task is to: {sentences[0]}"
    return GameText(domain, grammar, task, facts, " ".join(goal.split()), tuple(data.get("walkthrough") or ()))


def build_world(text: GameText) -> World:
    """Index the facts of a game.

    Raises EnvironmentFault where they do not describe one agent in a room with receptacles at known locations.
    """
    rows = [tuple(map(sys.intern, line.split(" "))) for line in text.facts.split("\n")]
    by: dict[str, list[Fact]] = defaultdict(list)
    for row in rows:
        by[row[0]].append(row)
    if len(by["atlocation"]) != 1:
        raise EnvironmentFault(f"it places {len(by['atlocation'])} agents; the native engine plays games with one")
    agent, start = by["atlocation"][0][1:]
    location_of = dict(sorted(row[1:] for row in by["receptacleatlocation"]))
    if len(location_of) != len(by["receptacleatlocation"]):
        raise EnvironmentFault("a receptacle of it stands at two locations; environment.name=textworld plays it")
    here: dict[str, list[str]] = defaultdict(list)
    for receptacle, location in location_of.items():
        here[location].append(receptacle)
    kind_of = _grouped(by["receptacletype"])
    type_of = _grouped(by["objecttype"])
    able = {key: frozenset(row[1] for row in by[key]) for key in _ABILITIES}
    initial = tuple(row for row in rows if row[0] in INITIAL)
    objects = {row[1] for row in rows if row[0] in _OBJECT_FIRST}
    names = number(word for row in rows for word in row[1:])
    return World(
        wording=GRAMMARS[text.grammar],
        rules=DOMAINS[text.domain],
        task=text.task,
        goal=_goal(text.goal),
        static=frozenset(row for row in rows if row[0] in STATIC),
        initial=initial,
        names=names,
        thing_names={name: names[name] for name in sorted({*kind_of, *type_of}) if name in names},
        agent=agent,
        start=start,
        receptacles=tuple(location_of),
        objects=tuple(sorted(objects)),
        locations=tuple(sorted({start, *here, *(row[2] for row in by["objectatlocation"])})),
        location_of=location_of,
        here={location: tuple(names) for location, names in here.items()},
        accepts=_accepts(by["cancontain"], kind_of, type_of),
        able=able,
        cleaning=_of_kind(kind_of, DOMAINS[text.domain].cleaners),
        heating=_of_kind(kind_of, _HEATERS),
        cooling=_of_kind(kind_of, _COOLERS),
        knives=_of_kind(type_of, KNIVES),
        inside=_grouped((row[0], row[2], row[1]) for row in by["inreceptacleobject"]),
    )


@lru_cache(maxsize=256)
def _load(path: Path, stamp: tuple[int, int]) -> World:
    return build_world(read_game_file(path))


def load_world(path: Path | str) -> World:
    """The world of a game file; the last few files are remembered as long as their size and time stay the same."""
    path = Path(path)
    try:
        stat = path.stat()
    except FileNotFoundError:
        raise FileNotFoundError(f"game file {path} does not exist") from None
    return _load(path, (stat.st_size, stat.st_mtime_ns))


def number(ids: Iterable[str]) -> dict[str, str]:
    """Names as ALFWorld's Demangler gives them: ids sorted, each kind numbered downwards from its count.

    `desk_bar__plus_…` becomes `desk 2`; kinds of ids with `basin` in them end so (`sinkbasin 1`).
    """
    kinds = {}
    for name in sorted(set(ids)):
        kind, found, _ = name.partition("_bar_")
        if found:
            kinds[name] = kind + "basin" if "basin" in name else kind
    left = Counter(kinds.values())
    names = {}
    for name, kind in kinds.items():
        names[name] = sys.intern(f"{kind} {left[kind]}")
        left[kind] -= 1
    return names


@lru_cache(maxsize=4096)
def _goal(text: str) -> tuple[Exists, ...]:
    return parse_goal(text)


def _grouped(rows: Iterable[Fact]) -> dict[str, tuple[str, ...]]:
    """First argument -> its second arguments, in order."""
    groups: dict[str, list[str]] = defaultdict(list)
    for _, first, second in sorted(rows):
        groups[first].append(second)
    return {first: tuple(seconds) for first, seconds in groups.items()}


def _of_kind(kinds: dict[str, tuple[str, ...]], wanted: frozenset[str]) -> frozenset[str]:
    return frozenset(name for name, own in kinds.items() if not wanted.isdisjoint(own))


def _accepts(
    can_contain: Iterable[Fact], kind_of: dict[str, tuple[str, ...]], type_of: dict[str, tuple[str, ...]]
) -> dict[str, frozenset[str]]:
    fits = _grouped(can_contain)
    accepts = {}
    for receptacle, kinds in kind_of.items():
        types = {otype for kind in kinds for otype in fits.get(kind, ())}
        accepts[receptacle] = frozenset(name for name, own in type_of.items() if not types.isdisjoint(own))
    return accepts
