"""ALFWorld's game files on disk: finding them, choosing some by a seed, and a hash that names a list of them.

Layout (ALFWorld's own; generated games use it too):

    <data>/json_2.1.1/<split>/<task folder>/<trial>/game.tw-pddl
                                                    traj_data.json

The list of a split's games is cached under `$XDG_CACHE_HOME/emac` (else `~/.cache/emac`) and valid as long as the
modification times of the split's folder, of its task folders and of their trial folders stay the same.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import random
from collections.abc import Iterable
from numbers import Integral
from pathlib import Path

from alfworld_native.base import Game
from alfworld_native.errors import EnvironmentFault
from alfworld_native.language.sentences import TASK_TYPES
from lavis.common.errors import FileError
from lavis.common.files import write_cache

RELEASE = "json_2.1.1"
OFFICIAL_SPLITS = ("train", "valid_train", "valid_seen", "valid_unseen")
HOUSEHOLD_SPLITS = ("household_train", "household_heldout")
HOW_TO_GET_GAMES = (
    "get the official games with `alfworld-download`, or set ALFWORLD_DATA to the folder that holds json_2.1.1"
)
_CACHE_FORMAT = 1  # another number when what is cached has another form: older caches are then not read


def data_root(data: str | Path | None = None) -> Path:
    """The folder that holds `json_2.1.1`: `data`, else `$ALFWORLD_DATA`, else ALFWorld's own `~/.cache/alfworld`.

    Raises EnvironmentFault for the home folder of a user who is not known here.
    """
    chosen = data or os.environ.get("ALFWORLD_DATA") or "~/.cache/alfworld"
    try:
        return Path(os.path.expandvars(str(chosen))).expanduser()
    except RuntimeError:
        raise EnvironmentFault(f"folder {chosen}: that user is not known here; give the whole path") from None


def cache_root() -> Path:
    """The project's cache folder, `$XDG_CACHE_HOME/emac` or `~/.cache/emac` (not created here)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "emac"


def unwritten(folder: Path, error: OSError) -> FileError:
    """Games cannot be written to `folder`; if it is the cache, the text names the remedy."""
    remedy = "; set XDG_CACHE_HOME to a folder of yours" if folder.is_relative_to(cache_root()) else ""
    return FileError(f"games could not be written to {folder}: {error.strerror or error}{remedy}")


def find_splits(data: str | Path | None = None) -> list[str]:
    """Names of the splits under `data` (see `data_root`), sorted; empty if there are none."""
    folder = data_root(data) / RELEASE
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir()) if folder.is_dir() else []


def find_games(
    split: str, data: str | Path | None = None, num: int | None = None, seed: int | None = None
) -> list[Game]:
    """Games of `split`, sorted by id.

    `num` limits their number (`None` or 0: all): the first `num` in id order if `seed` is None, else `num` drawn
    without replacement by `seed`, in drawn order; a larger `num` with the same seed continues the same draw. ALFWorld's
    "movable receptacle" and "sliced" games are left out, as ALFWorld itself does. Raises `EnvironmentFault` if there
    are no games, saying where it looked and how to get them, or if `num` is negative.
    """
    if num is not None and (not isinstance(num, Integral) or num < 0):
        raise EnvironmentFault(f"number of games must be 0 (all) or a whole number above, got {num!r:.60}")
    folder = data_root(data) / RELEASE / split
    ids = _scan_cached(folder) if folder.is_dir() else []
    if not ids:
        # Where it looked, what is there instead, and the one thing to do that fits best.
        others = find_splits(data)
        there = f"splits there: {', '.join(others)}" if others else "nothing there"
        known = (*OFFICIAL_SPLITS, *HOUSEHOLD_SPLITS)
        # `household_many` is the frozen test set of a level, not `household_train` misspelt.
        level = split.startswith("household_") and split not in HOUSEHOLD_SPLITS
        generated = bool(others) and all(other.startswith("household") for other in others)
        near = difflib.get_close_matches(split, known, n=1, cutoff=0.9 if level else 0.6)
        if split in others:
            how = "its folder holds no game; make or copy them again, or choose another split"
        elif others and (generated or split not in known) and not level:
            how = "choose one of those, or give the folder (data, ALFWORLD_DATA) that holds this one"
        elif near and near[0] != split:
            how = f"did you mean {near[0]!r}?"
        elif split.startswith("household"):
            test_set = f" --test-set {split.removeprefix('household_')}" if level else ""
            how = (
                f"make them with `python -m alfworld_native.household --out DIR{test_set}`, then give that DIR as data"
            )
        else:
            how = HOW_TO_GET_GAMES
        raise EnvironmentFault(f"no games of split {split!r} in {folder} ({there}): {how}")
    if seed is not None:
        # All are shuffled, whatever `num` is: so a larger number continues the same draw.
        random.Random(f"games {seed}").shuffle(ids)
    return [Game(id, folder / id / "game.tw-pddl", split) for id in ids[: num or None]]


def games_hash(games: Iterable[Game]) -> str:
    """Twelve hex digits that name this list of games: SHA-256 of their ids in order."""
    return ids_hash(game.id for game in games)


def ids_hash(ids: Iterable[str]) -> str:
    """`games_hash` of games of which only the ids are known."""
    return hashlib.sha256("\n".join(ids).encode("utf-8", "replace")).hexdigest()[:12]


def _scan_cached(folder: Path) -> list[str]:
    """Ids of the playable games in `folder`, from the cache if the folder is unchanged."""
    # The stamp hashes names and modification times of the folder, its task folders and their trial folders: it changes
    # when games come or go, and when a trial folder that is there already gets its game file (ALFWorld's download
    # brings trajectories and game files in separate archives).
    digest = hashlib.sha256(f"{_CACHE_FORMAT} {folder.stat().st_mtime_ns}".encode())
    for task in sorted(os.scandir(folder), key=lambda entry: entry.name):
        trials = sorted(os.scandir(task.path), key=lambda entry: entry.name) if task.is_dir() else []
        for entry in (task, *trials):
            if not os.path.exists(entry.path):
                continue  # a link to what is no longer there
            digest.update(f"{entry.name} {entry.stat().st_mtime_ns}\n".encode())
    stamp = digest.hexdigest()
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:24]
    cache = cache_root() / "games" / f"{name}.json"
    try:
        known = json.loads(cache.read_text())
        if known["stamp"] == stamp:
            return known["ids"]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # absent, half written or of another format: scan again
    ids = _scan(folder)
    text = json.dumps({"stamp": stamp, "folder": str(folder), "ids": ids})
    write_cache(cache, lambda file: file.write(text.encode()))
    return ids


def _scan(folder: Path) -> list[str]:
    ids = []
    for task in sorted(entry.name for entry in os.scandir(folder) if entry.is_dir()):
        if task.split("-", 1)[0] not in TASK_TYPES or "movable" in task or "Sliced" in task:
            continue
        for trial in os.scandir(folder / task):
            file = Path(trial.path, "game.tw-pddl")
            if file.is_file():
                # ALFWorld's own test: the file must say `"solvable": true`. Searched as text: parsing takes longer.
                head, _, tail = file.read_text(encoding="utf-8", errors="replace").rpartition('"solvable"')
                if head and tail.lstrip(" :").startswith("true"):
                    ids.append(f"{task}/{trial.name}")
    return sorted(ids)
