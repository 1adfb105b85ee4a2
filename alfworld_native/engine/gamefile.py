"""ALFWorld's game files, `game.tw-pddl`: reading one, and reading thousands in a second from a cache.

The native engine implements the meaning of particular texts: `alfred.pddl` and the grammar inside the game file. Both
are identified here by the SHA-256 of the text, the grammar with its task sentence masked. A game with other texts is
refused for two reasons. Nobody has proven (`alfworld_native.prove`) that the engine equals TextWorld on it; and
TextWorld evaluates expressions of the grammar as Python code, so a foreign game file could run code as the user.
`read_known_game` is the gate before both engines.

`read_games` caches a split in one JSON file, `native/<hash of the folder>.json` in the project's cache folder. A game
in it is valid as long as its file has the same size and modification time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from alfworld_native.engine.pddl import Facts, parse_facts, parse_goal, sections
from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import cache_root
from lavis.common.errors import MissingFileError
from lavis.common.files import write_cache


class Wording(NamedTuple):
    """What differs between the proven versions of ALFWorld's grammar."""

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
    "e64e8c0002648c40": Rules(_BASIN, help=False),  # alfworld/data of the packages 0.2.2 to 0.3.5
}
GRAMMARS = {
    "10da93e13b58e1a6": Wording("move", "receptacle"),  # in the official games of ALFWorld 0.4
    "c294eb280206a442": Wording("move", "receptacle"),  # alfworld/data of the packages 0.4.0 to 0.4.2
    "de0a5951f63a9b4f": Wording("put", "location"),  # alfworld/data of the packages 0.2.2 to 0.3.5
}
MAX_BYTES = 16 << 20
_TEXTS = ("pddl_domain", "grammar", "pddl_problem")
TASK = re.compile(r'("rhs": "Your task is to: )(.*)(")')  # the task sentence in a grammar
_PLAIN = re.compile(r"[A-Za-z0-9 .,:!?'()/_-]*")  # a task sentence that the grammar's own syntax leaves alone
_SHOWN = 200  # characters of a foreign task sentence in a message
_CACHE_FORMAT = 1
_WORTH_A_CACHE = 100  # files; fewer are read faster than a large split's cache


@dataclass(frozen=True, slots=True, eq=False)
class GameText:
    """What a game file says, without what all games have in common. Compared by identity."""

    domain: str  # fingerprint, one of DOMAINS
    grammar: str  # fingerprint, one of GRAMMARS
    task: str  # "Your task is to: …"
    goal: str  # the `(:goal …)` section
    facts: Facts


def fingerprint(text: str) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of `text`, its task sentence masked."""
    return _fingerprint(text)[0]


def _fingerprint(text: str) -> tuple[str, list[str]]:
    """The fingerprint of `text`, and the task sentences that it masks: one search for both, the texts are long."""
    sentences: list[str] = []

    def mask(match: re.Match[str]) -> str:
        sentences.append(match[2])
        return match[1] + match[3]

    masked = TASK.sub(mask, text)
    return hashlib.sha256(masked.encode("utf-8", "surrogatepass")).hexdigest()[:16], sentences


def read_game(path: Path | str) -> GameText:
    """Read a `game.tw-pddl`.

    Raises MissingFileError, or EnvironmentFault if the file is truncated, foreign, or of an unproven version.
    """
    data = read_json(path)
    if data.get("solvable") is False:
        raise EnvironmentFault(f"game file {path} is marked as unsolvable; leave it out, as ALFWorld does")
    try:
        domain, grammar, task = _check_texts(data)
        init, goal = sections(data["pddl_problem"])
        goal = " ".join(goal.split())
        parse_goal(goal)
        return GameText(domain, grammar, f"Your task is to: {task}", goal, parse_facts(init))
    except EnvironmentFault as error:
        raise EnvironmentFault(f"game file {path}: {error}") from None


def file_stamp(path: Path | str) -> tuple[int, int]:
    """Size in bytes and modification time in ns: while they stay, the file is taken to be the same."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFileError(f"game file {path} does not exist") from None
    return status.st_size, status.st_mtime_ns


def read_json(path: Path | str) -> dict:
    """The content of a `game.tw-pddl`: its three texts are there; errors as `read_game`."""
    try:
        with open(path, "rb") as file:
            # One byte more than allowed: a larger file shows itself without being read to its end.
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise EnvironmentFault(f"game file {path} is larger than {MAX_BYTES} bytes; ALFWorld's have 0.1 MB")
        data = json.loads(content)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFileError(f"game file {path} does not exist") from None
    except IsADirectoryError:
        raise EnvironmentFault(f"game file {path} is a folder; give the game.tw-pddl inside it") from None
    except (ValueError, RecursionError) as error:
        raise EnvironmentFault(f"game file {path} is truncated or no JSON ({error}); fetch it again") from None
    missing = [key for key in _TEXTS if not isinstance(data, dict) or not isinstance(data.get(key), str)]
    if missing:
        raise EnvironmentFault(f"game file {path} is no ALFWorld game: it lacks {', '.join(missing)}")
    return data


def read_known_game(path: Path | str) -> dict:
    """The content of a `game.tw-pddl` whose texts are known, so that no code of a stranger is in it.

    Give this object, not the path, to TextWorld: the file may change in between. Errors as `read_game`.
    """
    data = read_json(path)
    try:
        _check_texts(data)
    except EnvironmentFault as error:
        raise EnvironmentFault(f"game file {path}: {error}") from None
    return data


def _check_texts(data: dict) -> tuple[str, str, str]:
    """The fingerprints of domain and grammar, and the task sentence; EnvironmentFault for unknown ones.

    The fingerprint of the grammar does not cover the task sentence. A sentence with quotes or the grammar's own syntax
    (`#…#`, `{…}`, `[…]`) could add rules or Python code, so it must be plain text.
    """
    domain = fingerprint(data["pddl_domain"])
    grammar, sentences = _fingerprint(data["grammar"])
    for kind, found, proven in (("domain", domain, DOMAINS), ("grammar", grammar, GRAMMARS)):
        if found not in proven:
            raise EnvironmentFault(
                f"its PDDL {kind} (fingerprint {found}) is not one of ALFWorld's, and could run code; use the official "
                "games (alfworld-download), or generated ones"
            )
    if len(sentences) != 1 or not _PLAIN.fullmatch(sentences[0]):
        shown = ascii(sentences)[:_SHOWN]
        raise EnvironmentFault(f"its task sentence {shown} is not one line of plain text, and could run code")
    return domain, grammar, sentences[0]


def read_games(paths: Iterable[Path | str], cache: Path | None = None) -> dict[Path, GameText]:
    """Read many game files, unchanged ones from the cache, and add the others to it; errors as `read_game`.

    `cache` is the folder of cache files, by default `native` in the project's own.
    """
    splits: dict[Path, list[Path]] = {}
    for path in map(Path, paths):
        # <split>/<task folder>/<trial>/game.tw-pddl
        splits.setdefault(path.parent.parent.parent, []).append(path)
    folder = cache or cache_root() / "native"
    games: dict[Path, GameText] = {}
    for split, members in splits.items():
        if len(members) < _WORTH_A_CACHE:
            games.update((path, read_game(path)) for path in members)
            continue
        name = hashlib.sha256(str(split.resolve()).encode()).hexdigest()[:24]
        known, fresh = _read_cache(folder / f"{name}.json"), False
        for path in members:
            key = f"{path.parent.parent.name}/{path.parent.name}"
            stamp = file_stamp(path)
            if key not in known or known[key][0] != stamp:  # new, or changed since
                known[key], fresh = (stamp, read_game(path)), True
            games[path] = known[key][1]
        if fresh:
            _write_cache(folder / f"{name}.json", known)
    return games


def _read_cache(path: Path) -> dict[str, tuple[tuple[int, int], GameText]]:
    """Key -> stamp and game; empty if there is no cache file of this format."""
    try:
        data = json.loads(path.read_bytes())
        if data["format"] != _CACHE_FORMAT:
            return {}
        word = data["words"].__getitem__
        games = {}
        for key, ((size, time), texts, facts) in data["games"].items():
            domain, grammar, task, goal = map(word, texts)
            table = {name: tuple(map(word, ids)) for name, ids in facts.items()}
            games[key] = (size, time), GameText(domain, grammar, task, goal, table)
        return games
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return {}  # absent, half written or foreign: the files themselves are read


def _write_cache(path: Path, games: dict[str, tuple[tuple[int, int], GameText]]) -> None:
    """Cache the games of a split: key -> stamp and game.

    Each distinct word stands in the file once; games refer to it by its number.
    """
    numbers: dict[str, int] = {}

    def number(word: str) -> int:
        return numbers.setdefault(word, len(numbers))

    content = {}
    for key, (stamp, text) in games.items():
        facts = {name: list(map(number, ids)) for name, ids in text.facts.items()}
        content[key] = [stamp, list(map(number, (text.domain, text.grammar, text.task, text.goal))), facts]
    data = json.dumps({"format": _CACHE_FORMAT, "words": list(numbers), "games": content})
    write_cache(path, lambda file: file.write(data.encode()))
