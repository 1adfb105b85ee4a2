"""Makes new household games in ALFWorld's own domain, grammar, floor plans and file layout.

    python -m alfworld_native.household --out DIR --num-train 2000 --num-heldout 100 --seed 0

Tree of DIR (`find_games("household_heldout", data=DIR)` finds the games; ALFWorld itself loads them):

    DIR/household.json                             what was asked for, and the versions that made it
    DIR/json_2.1.1/household_train/<task folder>/<trial>/{game.tw-pddl,traj_data.json}
    DIR/json_2.1.1/household_heldout/...           other rooms (floor plans) than household_train

Game `i` of a split depends on (seed, split, i, level) alone: a request for more games keeps the first ones. Task types
take turns. Every game is solved before it is kept: either its plan, which the file holds as `walkthrough`, is executed
on the native engine (`verify="native"`), or Fast Downward searches for a plan (`verify="planner"`: seconds for a game
of standard size, minutes in larger rooms, and cannot be interrupted). `--level` makes other games than ALFWorld's,
`--test-set` the frozen test set of a level (docs/levels.md).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from alfworld_native.base import MAX_STEPS, Game
from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import RELEASE, data_root, unwritten
from alfworld_native.household.alfworld_tables import tables
from alfworld_native.household.furnish import Unfit, draw_layout
from alfworld_native.household.game_files import plan, write_game
from alfworld_native.household.houses import draw_plan
from alfworld_native.household.levels import LEVELS, MANIFEST, STANDARD, GameLevel
from alfworld_native.household.mixture import apportioned, checked_mixture
from alfworld_native.language.sentences import NOTHING_HAPPENS
from lavis.common.errors import EmacError, missing_extra, unknown
from lavis.common.files import write_json

SPLITS = {"household_train": False, "household_heldout": True}  # name -> held-out rooms?
VERSION = 3  # of the generator: another version makes other games from the same seed
VERIFY = ("native", "planner", "none")
_MAKING = ".making-"
_DRAWS = 1000  # of a room with a task, until one fits
Progress = Callable[[int, int], None]  # called with (games made, games asked for)


def solves(path: Path, commands: list[str], max_steps: int = MAX_STEPS) -> bool:
    """Whether `commands`, each accepted, win the game in file `path` on the native engine: at the last, not before."""
    from alfworld_native.engine.game import NativeGame

    game = NativeGame.load(path)
    if game.won or not 0 < len(commands) <= max_steps:
        return False
    for command in commands:
        if game.won or game.step(command) == NOTHING_HAPPENS:
            return False
    return game.won


def planner_solves(path: Path, max_steps: int = MAX_STEPS) -> bool:
    """Whether Fast Downward (through TextWorld) finds a plan for the game in file `path`; slow: seconds to minutes."""
    try:
        import textworld
    except ModuleNotFoundError as error:
        raise missing_extra("textworld", error) from None
    environment = textworld.start(str(path), textworld.EnvInfos(policy_commands=True))
    try:
        return 0 < len(environment.reset()["policy_commands"] or ()) <= max_steps
    finally:
        environment.close()


def make_game(
    split: Path, index: int, seed: int, level: GameLevel = STANDARD, verify: str = "native", name: str = ""
) -> Game:
    """Draw, write and check game `index` of the split whose folder is `split` (its name decides the rooms).

    `name` is the level's, if the game's id should tell it and the horizon: a game of a mixture (`base.MIXED_TRIAL`).
    """
    trial = f"trial_H{seed}_{name}{level.max_steps}_{index:06d}" if name else f"trial_H{seed}_{index:06d}"
    rng = random.Random(f"{VERSION} {split.name} {seed} {level.key()} {index}")
    kind = level.kinds[index % len(level.kinds)]
    for _ in range(_DRAWS):
        try:
            layout = draw_layout(kind, draw_plan(level.rooms, SPLITS.get(split.name, True), rng), level, rng)
        except Unfit:
            continue
        game = write_game(split, layout, trial, rng)
        if verify == "none":
            return game
        if verify == "native" and solves(game.path, plan(layout), level.max_steps):
            return game
        if verify == "planner" and planner_solves(game.path, level.max_steps):
            return game
        # The next draw goes on with the same generator: seed and index still decide the game.
        shutil.rmtree(game.path.parent)
    knobs = ", ".join(f"{name} {value}" for name, value in level.changed().items()) or "the standard knobs"
    raise EnvironmentFault(
        f"could not make a {kind} game (seed {seed}, index {index}): none of {_DRAWS:,} rooms that were drawn allows "
        f"{knobs}"
    )


def generate(
    out: str | Path,
    num_train: int,
    num_heldout: int,
    seed: int = 0,
    *,
    level: GameLevel = STANDARD,
    levels: Mapping[str, float] | None = None,
    max_receptacles: int | None = None,
    verify: str = "native",
    replace: bool = False,
    progress: Progress | None = None,
) -> None:
    """Make the two splits under `out`; does nothing if just these were made there before, and all are there still.

    The splits appear whole or not at all. `max_receptacles` takes the place of the level's. `levels`, a mixture
    (`mixture.py`), takes the place of `level`: each level has its share of both splits, and a game's id names its
    level. Raises `EnvironmentFault`
    for a request that makes no sense, when `out` holds a split that this program did not make, and, unless `replace`,
    when it holds other games than those asked for; FileError if `out` cannot be written.
    """
    if max_receptacles is not None:
        level = level.with_most(max_receptacles)
    mixture = checked_mixture(levels) if levels else {}
    if mixture and level != STANDARD:
        raise EnvironmentFault("give one level or a mixture of levels, not both")
    for name, number in (("num_train", num_train), ("num_heldout", num_heldout), ("seed", seed)):
        if not isinstance(number, int):
            raise EnvironmentFault(f"{name} is {number!r:.60}; give a whole number")
    if min(num_train, num_heldout) < 0:
        raise EnvironmentFault(f"numbers of games must be 0 or more, got {num_train} and {num_heldout}")
    if verify not in VERIFY:
        raise EnvironmentFault(unknown("verification", verify, VERIFY))
    most = max(LEVELS[name].count for name in mixture) if mixture else level.count
    if verify == "planner" and most > 2:
        raise EnvironmentFault(
            f"verify=planner cannot check games that ask for {most} objects: Fast Downward's search takes all memory "
            "there; verify=native executes each game's plan"
        )
    request = {
        "num_train": num_train,
        "num_heldout": num_heldout,
        "seed": seed,
        "max_receptacles": level.receptacles[1],
        "verify": verify,
        "generator": VERSION,
        "alfworld": tables()["alfworld"],
    }
    request = request if level.plain else request | {"level": json.loads(json.dumps(level.changed()))}
    request = request | {"levels": mixture} if mixture else request
    out = data_root(out)
    manifest = out / MANIFEST
    if _are_made(out, request):
        return
    # With a damaged manifest nothing says whose games these are, so only `replace` takes their place.
    known = _read_manifest(manifest) is not None or (replace and manifest.exists())
    if not known and any((out / RELEASE / name).exists() for name in SPLITS):
        raise EnvironmentFault(
            f"{out / RELEASE} holds household games without a readable {manifest}: choose another folder"
        )
    if not replace:
        _check_same(manifest, request)
    try:
        (out / RELEASE).mkdir(parents=True, exist_ok=True)
        with FileLock(out / ".lock"):  # server and client may both ask on first use
            if not _are_made(out, request):  # else another process made them while this one waited
                if not replace:
                    _check_same(manifest, request)  # another process may have made other games
                _make(out, manifest, request, mixture or {"": level}, progress)
    except EmacError:
        raise
    except OSError as error:  # rights, full disk
        raise unwritten(out, error) from error


def _are_made(out: Path, request: dict[str, Any]) -> bool:
    """Whether `out` holds all games of `request`: a cache may have been cleaned, wholly or in part."""
    if _read_manifest(out / MANIFEST) != request:
        return False
    counts = zip(SPLITS, (request["num_train"], request["num_heldout"]), strict=True)
    return all(len(list((out / RELEASE / name).glob("*/*/game.tw-pddl"))) >= count for name, count in counts)


def _check_same(manifest: Path, request: dict[str, Any]) -> None:
    """EnvironmentFault if the folder of `manifest` holds other games than those of `request`."""
    if (found := _read_manifest(manifest)) and found != request:
        keys = [*request, *(key for key in found if key not in request)]  # a level's folder has a key more
        differing = [key for key in keys if found.get(key) != request.get(key)]
        other = [f"{key} {_short(found, key)}, not {_short(request, key)}" for key in differing]
        raise EnvironmentFault(
            f"{manifest.parent} holds other household games than those asked for ({'; '.join(other)}): "
            "environment.name=native plays what is there; or choose another folder, or remove this one"
        )


def _make(
    out: Path, manifest: Path, request: dict[str, Any], levels: Mapping[str, Any], progress: Progress | None
) -> None:
    """Make both splits beside the old ones, then put them in their place.

    `levels` is a mixture, or `{"": level}` for one level, which games do not name.
    """
    for left in out.glob(f"{_MAKING}*"):  # of a process that was killed: nobody else is at work here
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=_MAKING) as making:
        made, total = 0, request["num_train"] + request["num_heldout"]
        for split_name, count in zip(SPLITS, (request["num_train"], request["num_heldout"]), strict=True):
            split = Path(making) / split_name
            split.mkdir()
            shares = {"": count} if "" in levels else apportioned(levels, count)
            for name, share in shares.items():
                level = LEVELS[name] if name else levels[name]
                for index in range(share):
                    make_game(split, index, request["seed"], level, request["verify"], name)
                    made += 1
                    if progress:
                        progress(made, total)
        write_json(manifest, {})  # a process that is killed from here on leaves a folder that is made again
        for name in SPLITS:
            shutil.rmtree(out / RELEASE / name, ignore_errors=True)
            os.replace(Path(making) / name, out / RELEASE / name)
        write_json(manifest, request)


def _short(manifest: Mapping[str, Any], key: str) -> str:
    """The value of a key for a message; `none` if it has no such key."""
    if key not in manifest:
        return "none"
    text = json.dumps(manifest[key])
    return text if len(text) <= 60 else f"{text[:57]}…"


def _read_manifest(path: Path) -> dict[str, Any] | None:
    """What was asked for; None if the file is not there or damaged."""
    try:
        manifest = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) else None
