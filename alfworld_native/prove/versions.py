"""The versions of ALFWorld's texts (PDDL domain and grammar), and any game in each of them.

The texts of the older versions are made from those of alfworld 0.4.2 and checked by fingerprint, so no package but the
installed one is needed: TextWorld plays whatever texts a game file holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from alfworld_native.engine.gamefile import GRAMMARS, TASK, GameText, fingerprint, read_json
from alfworld_native.household.alfworld_tables import tables
from alfworld_native.household.game_files import official_domain, official_grammar
from alfworld_native.language.commands import canonical, to_dialect

OLD_SENTENCES = (  # in the grammar of 0.4, in that of 0.2 and 0.3
    ("You arrive at {r.name}", "You arrive at {lend.name}"),
    ("You move the {o.name} to the {r.name}", "You put the {o.name} in/on the {r.name}"),
    ('"move {o} to {r}"', '"put {o} in/on {r}"'),
)


class Texts(NamedTuple):
    """The two texts of a version; the grammar with any task sentence."""

    domain: str
    grammar: str


@cache
def known_texts() -> dict[str, Texts]:
    """The texts by the version's name."""
    domain, grammar = tables()["domain"], tables()["grammar"]
    # Until 0.3.5 there was no `help`, and some sentences had other words.
    old = grammar[: grammar.index("\naction help {")]
    for new_words, old_words in OLD_SENTENCES:
        old = old.replace(new_words, old_words)
    return {
        "0.4, official games": Texts(official_domain(), official_grammar()),
        "0.4.0 to 0.4.2, package": Texts(domain, grammar),
        # The domain ends before the action `help`; the bracket closes it.
        "0.2.2 to 0.3.5, package": Texts(domain[: domain.index("(:action help")] + ")\n", old),
    }


@cache
def _names() -> dict[tuple[str, str], str]:
    """Fingerprints of domain and grammar -> name of the version."""
    return {(fingerprint(a), fingerprint(b)): name for name, (a, b) in known_texts().items()}


def version_of(text: GameText) -> str:
    """The name of a game's version; for a domain and a grammar of different versions, the fingerprints."""
    return _names().get((text.domain, text.grammar), f"domain {text.domain}, grammar {text.grammar}")


def dialect_of(version: str) -> str:
    """The dialect of a version by its name, "put" or "move"."""
    found = known_texts().get(version)
    return GRAMMARS[fingerprint(found.grammar) if found else version.rpartition(" ")[2]].dialect


def in_version(game: dict[str, Any], version: str) -> dict[str, Any]:
    """The content of a game file, told in the texts of `version`."""
    domain, grammar = known_texts()[version]
    sentence = TASK.findall(game["grammar"])[0][1]
    dialect = dialect_of(version)
    # The walkthrough speaks the dialect of its texts.
    walkthrough = [to_dialect(canonical(command), dialect) for command in game.get("walkthrough") or ()]
    grammar = TASK.sub(lambda match: match[1] + sentence + match[3], grammar)
    return {**game, "pddl_domain": domain, "grammar": grammar, "walkthrough": walkthrough}


def in_other_versions(games: Sequence[tuple[Path, str]], folder: Path) -> Iterator[Path]:
    """Write each game, given with its version, in all other versions below `folder`."""
    for i, (path, version) in enumerate(games):
        for j, name in enumerate(known_texts()):
            if name != version:
                content = json.dumps(in_version(read_json(path), name)).encode()
                file = folder.joinpath(f"{i}-{j}", *path.relative_to(path.anchor).parts[-3:])
                file.parent.mkdir(parents=True)
                file.write_bytes(content)
                yield file
