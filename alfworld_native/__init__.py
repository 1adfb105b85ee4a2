"""ALFWorld's games: a native engine that equals TextWorld, a generator of new games, frames, experts that are rules.

Importing the package registers its environments with gymnasium (README.md beside this file):

    import alfworld_native, gymnasium
    env = gymnasium.make("ALFWorldNative-v0", games="generated")
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from typing import Any

from alfworld_native.base import MAX_STEPS, Environment, Game
from alfworld_native.by_type import named_by
from alfworld_native.choices import CAMERAS
from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import HOUSEHOLD_SPLITS, OFFICIAL_SPLITS, cache_root, find_games, find_splits
from alfworld_native.household.levels import frozen_splits, level_of
from alfworld_native.household.mixture import checked_mixture
from lavis.common.errors import unknown
from lavis.common.named_class import is_class_name, load_class, make_named

_NATIVE = ("alfworld_native.engine.environment", "NativeEnvironment")
_ADVISED = ("alfworld_native.advice.environment", "AdvisedNativeEnvironment")
ENVIRONMENTS = {  # name -> module and class; the names are `choices.ENVIRONMENT_NAMES`
    "native": _NATIVE,
    "textworld": ("alfworld_native.textworld", "TextWorldEnvironment"),
    "household": _NATIVE,  # generated games, see `choose_games`
    "thor": ("alfworld_native.thor", "ThorEnvironment"),
}


def make_environment(
    name: str,
    *,
    max_steps: int = MAX_STEPS,
    show_ids: bool = True,
    expert: str | None = None,
    name_by: str = "number",
    camera: str = "front",
    other_frames: bool = False,
    image_noise: str = "gaussian",
    image_severity: int = 0,
    text_noise: float = 0.0,
    seed: int = 0,
) -> Environment:
    """Build the environment called `name`: `native` (or `household`, the same engine), `textworld`, `thor`,
    or `module:Class`, a class of one's own, made without arguments (`max_steps` and `show_ids` are not for it).

    `expert` ("handcoded" or "planner") computes ALFWorld's expert action beside each state; `thor` has only the
    handcoded one, and a class of one's own none. With `name_by` "type" texts and commands name objects without their
    numbers (`by_type.py`). With `camera` "around" frames show all four directions (`around.py`), with "close" the
    receptacle at hand (`close.py`), both on `native` and `textworld`; with `other_frames` they are another game's
    (`other_frames.py`). With an `image_severity` above 0 frames have noise of the kind `image_noise`, drawn by `seed`
    (`noise.py`); `text_noise` is the share of its answers' words that are exchanged. Raises `EnvironmentFault` for a
    name or a combination that does not exist, ConfigError for a noise that does not exist, or a camera that the
    environment does not have.
    """
    # From the inside outwards: engine, names and camera, another game's frames, noise. Noise is last, so that it
    # falls on what the agent gets, whatever that is made of.
    environment = _shown(_engine(name, max_steps, show_ids, expert), name_by, camera, seed)
    if other_frames:
        from alfworld_native.other_frames import OtherGamesFrames  # here, as below

        other = _shown(_engine(name, max_steps, show_ids, None), name_by, camera, seed)
        environment = OtherGamesFrames(environment, other, seed=seed)
    if not (image_severity or text_noise):
        return environment
    from alfworld_native.noise import NoisyEnvironment, NoisyTextEnvironment  # here: no noise needs no numpy

    if text_noise:
        environment = NoisyTextEnvironment(environment, rate=text_noise, seed=seed)
    if image_severity:
        environment = NoisyEnvironment(environment, kind=image_noise, severity=image_severity, seed=seed)
    return environment


def _shown(engine: Environment, name_by: str, camera: str, seed: int) -> Environment:
    """`engine` as the agent is told and shown it."""
    if camera not in CAMERAS:
        raise EnvironmentFault(unknown("camera", camera, CAMERAS))
    environment = named_by(engine, name_by)
    if camera == "around":
        from alfworld_native.around import AroundEnvironment  # here: frames need numpy

        return AroundEnvironment(environment)
    if camera == "close":
        from alfworld_native.close import CloseEnvironment

        return CloseEnvironment(environment, seed=seed)
    return environment


def _engine(name: str, max_steps: int, show_ids: bool, expert: str | None) -> Environment:
    if is_class_name(name):
        if expert is not None:
            raise EnvironmentFault(f"expert {expert!r} reads ALFWorld's games: use environment.name=native for it")
        return make_named(name, "environment", ("reset", "step", "render", "close"), Environment)
    if name not in ENVIRONMENTS:
        raise EnvironmentFault(unknown("environment", name, ENVIRONMENTS))
    options: dict[str, Any] = {"max_steps": max_steps, "show_ids": show_ids}
    module, attribute = ENVIRONMENTS[name]
    if expert is not None:
        options["expert"] = expert
        if ENVIRONMENTS[name] == _NATIVE:
            module, attribute = _ADVISED
    return getattr(importlib.import_module(module), attribute)(**options)


def check_engine(name: str) -> None:
    """EnvironmentFault if the engine called `name` cannot start on this machine: AI2-THOR's packages, a display."""
    if name == "thor":
        from alfworld_native.thor import require_simulator  # here: the others need nothing of it

        require_simulator()


def choose_games(
    name: str,
    split: str,
    *,
    num: int | None = None,
    data: str | None = None,
    seed: int = 0,
    num_train: int = 2000,
    num_heldout: int = 100,
    levels: Mapping[str, float] | None = None,
) -> list[Game]:
    """`num` games (None: all) of a split, drawn by `seed`: the choice that server, client and evaluation agree on.

    With `name="household"` the games are generated on first use (`num_train`, `num_heldout`, the same `seed`), into
    `data` or the cache folder; a split `household_<level>` is the frozen test set of that level. With `levels`, a
    mixture (level -> weight), each level has its share of the generated games. Raises EnvironmentFault if the split has
    fewer games than asked for, or if `data` holds other generated games; FileError if the games cannot be written.
    """
    if levels and (name != "household" or level_of(split)):
        raise EnvironmentFault(f"levels mix games that household generates: environment {name}, split {split} has none")
    if levels:
        checked_mixture(levels)  # before its weights are in a folder's name
    if name == "household" and (level := level_of(split)):
        from alfworld_native.household.frozen import make_test_set

        data = data or _generated_cache(split, num_train, num_heldout, seed, levels)
        make_test_set(level, data)
    elif name == "household":
        if split not in HOUSEHOLD_SPLITS and not data:  # told before minutes go into generating games
            names, sets = " and ".join(HOUSEHOLD_SPLITS), ", ".join(frozen_splits())
            message = f"no games of split {split!r}: environment household generates {names}, and the test sets {sets}"
            raise EnvironmentFault(message)
        # Imported here: the generator reads ALFWorld's floor plans, which no other environment needs.
        from alfworld_native.household.generator import generate

        own = not data  # the cache is ours to remake (for another version of the generator), a user's folder is not
        data = data or _generated_cache(split, num_train, num_heldout, seed, levels)
        generate(data, num_train, num_heldout, seed, levels=levels, replace=own)
    games = find_games(split, data=data, num=num, seed=seed)
    if num and len(games) < num:
        more = " or generate more (num_train, num_heldout)" if name == "household" and not level_of(split) else ""
        raise EnvironmentFault(f"split {split} has {len(games)} games, {num} were asked for: ask for fewer{more}")
    return games


def check_split(name: str, split: str, data: str | None = None) -> None:
    """EnvironmentFault if no games can have the split: it is neither one of ALFWorld's nor a folder of `data`.

    The games themselves may be on another machine, so a well-known name passes without them.
    """
    generated = (*HOUSEHOLD_SPLITS, *frozen_splits())
    known = generated if name == "household" else (*OFFICIAL_SPLITS, *generated)
    there = [] if name == "household" and not data else find_splits(data)
    if split not in (*known, *there):
        raise EnvironmentFault(f"environment.split: {unknown('split', split, {*known, *there})}")


def known_games(
    name: str,
    split: str,
    num: int | None,
    *,
    data: str | None = None,
    seed: int = 0,
    num_train: int,
    num_heldout: int,
    levels: Mapping[str, float] | None = None,
) -> list[str] | None:
    """Ids of the games that `choose_games` gives; None if they are not (yet) on this machine. Generates nothing."""
    if name == "household" and not data:
        data = _generated_cache(split, num_train, num_heldout, seed, levels)
    try:
        return [game.id for game in find_games(split, data=data, num=num, seed=seed)]
    except EnvironmentFault:
        return None


def engine_name(name: str) -> str:
    """What the environment called `name` says of itself (`Environment.name`): `household` is played on `native`."""
    if is_class_name(name):
        return str(getattr(load_class(name, "environment", ()), "name", name))
    return "native" if ENVIRONMENTS[name] == _NATIVE else name


def _generated_cache(
    split: str, num_train: int, num_heldout: int, seed: int, levels: Mapping[str, float] | None
) -> str:
    """The cache folder of generated games: one for all frozen test sets, one for each request of other games."""
    if level_of(split):
        return str(cache_root() / "household-levels")
    # All that decides the games is in the name, so that two requests never overwrite each other's games.
    mixture = "".join(f"-{level}{weight:g}" for level, weight in (levels or {}).items())
    return str(cache_root() / f"household-{num_train}-{num_heldout}-{seed}{mixture}")


with contextlib.suppress(ModuleNotFoundError):  # no gymnasium: the engine runs on the standard library alone
    from alfworld_native.registration import register_environments

    register_environments()
