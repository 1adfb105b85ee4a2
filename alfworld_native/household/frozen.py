"""Frozen test sets: for each level the same games everywhere, made on first use and known by their hash.

    DIR/json_2.1.1/household_<level>/<task folder>/<trial>/{game.tw-pddl,traj_data.json}

Their rooms are those of `household_heldout`, which no training game has.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from filelock import FileLock

from alfworld_native.base import Game
from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import RELEASE, data_root, find_games, unwritten
from alfworld_native.household.generator import Progress, make_game
from alfworld_native.household.levels import level_named
from lavis.common.errors import EmacError

GAMES = 60  # of each level's test set
SEED = 2026  # of all of them; another one would make another test set
HASHES = {  # level -> `contents_hash`
    "standard": "9e5f9f34b274c835",
    "renamed": "a7cafba9cd0a914c",
    "cluttered": "ce90528543b144af",
    "large": "92ae0ab54381bd97",
    "hidden": "1eb94ee094b061a0",
    "many": "63db0be49b1d5b94",
    "compound": "0d1d2c75f17462a9",
    "house": "e1793fe612bfbded",
    "hardest": "ab27b745e3e426e5",
}


def contents_hash(folder: Path) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of all game files below `folder`, with their names."""
    digest = hashlib.sha256()
    # By the path relative to the folder, with forward slashes: the hash is the same wherever the games lie.
    for path in sorted(folder.glob("*/*/*.*"), key=lambda path: path.relative_to(folder).as_posix()):
        content = path.read_bytes()
        # The length keeps name and content apart: two files never hash as one with their border moved.
        digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def make_test_set(level: str, out: Path | str, progress: Progress | None = None) -> list[Game]:
    """The games of a level's test set, below `out`; made there unless they are there already.

    Raises EnvironmentFault for an unknown level, or if the games are not those of the hash; FileError if `out`
    cannot be written.
    """
    level_named(level)
    out = data_root(out)
    split = out / RELEASE / f"household_{level}"
    try:
        split.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(out / ".lock"):
            if not split.is_dir():
                # Made aside and moved when all are there: a split that exists is whole.
                with tempfile.TemporaryDirectory(dir=out, prefix=".making-") as making:
                    folder = Path(making) / split.name
                    folder.mkdir()
                    for index in range(GAMES):
                        make_game(folder, index, SEED, level_named(level))
                        if progress:
                            progress(index + 1, GAMES)
                    os.replace(folder, split)
    except EmacError:
        raise
    except OSError as error:  # rights, full disk
        raise unwritten(out, error) from error
    if contents_hash(split) != HASHES[level]:
        raise EnvironmentFault(f"{split} does not hold the frozen test set (hash {HASHES[level]}): remove the folder")
    return find_games(split.name, out)
