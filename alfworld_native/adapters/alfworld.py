"""alfworld's text environment on the native engine: change one import line, the rest of the program stays.

    from alfworld_native.adapters.alfworld import get_environment     # instead of alfworld.agents.environment

    env = get_environment(config["env"]["type"])(config, train_eval="eval_in_distribution").init_env(batch_size=8)
    obs, infos = env.reset()
    obs, scores, dones, infos = env.step(["look"] * 8)

Games, their order, texts, commands, scores and infos are those of alfworld 0.4.2 with TextWorld, for the same config
and seed (`tests/alfworld_native/adapters/test_alfworld.py` compares them). Where the config asks for the expert's plan
(`training_method: dagger`, split `train`), alfworld's own expert makes it, from the extra `textworld`. What differs:
`dialect`; an expert that fails gives the plan `["look"]`, where alfworld's own ends the program; the infos have
`facts`, TextWorld's objects, only on request (`request_infos.facts = True`); errors are one line.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from alfworld_native.adapters.alfworld_batch import AlfworldBatch
from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import data_root
from alfworld_native.language.commands import DIALECTS
from lavis.common.errors import ConfigError, MissingExtraError, MissingFileError, missing_extra, unknown

TASK_TYPES = {  # alfworld's numbers in `env.task_types`
    1: "pick_and_place_simple",
    2: "look_at_obj_in_light",
    3: "pick_clean_then_place_in_recep",
    4: "pick_heat_then_place_in_recep",
    5: "pick_cool_then_place_in_recep",
    6: "pick_two_obj_and_place",
}
_SPLITS = {  # train_eval -> key of its folder, and of the number of its games, in the config's section `dataset`
    "train": ("data_path", "num_train_games"),
    "eval_in_distribution": ("eval_id_data_path", "num_eval_games"),
    "eval_out_of_distribution": ("eval_ood_data_path", "num_eval_games"),
}
_STEP_LIMITS = {"dqn": "rl", "dagger": "dagger"}  # training_method -> section with `training.max_nb_steps_per_episode`
_TASK_TYPE = re.compile(rb'"task_type"\s*:\s*"([^"]*)"')
_SOLVABLE = re.compile(rb'"solvable"\s*:\s*(\w+)')
_TYPES = ("AlfredTWEnv", "AlfredThorEnv", "AlfredHybrid")


def get_environment(env_type: str) -> Any:
    """The class for `config["env"]["type"]`: ours for `AlfredTWEnv`; AI2-THOR's are alfworld's own (extra `thor`)."""
    if env_type == "AlfredTWEnv":
        return AlfredTWEnv
    if env_type not in _TYPES:
        raise ConfigError(f"env.type: {unknown('environment', env_type, _TYPES)}")
    try:
        from alfworld.agents.environment import get_environment as original

        return original(env_type)
    except ModuleNotFoundError as error:
        raise missing_extra("thor", error) from None
    except ImportError as error:  # alfworld's own, of what AI2-THOR needs
        raise MissingExtraError(f"{error}: run `pip install -e '.[thor]'`") from None


class AlfredTWEnv:
    """The games of a split, as alfworld collects them; `init_env` plays them.

    `game_files` may be changed before `init_env` is called. A subclass may bring an `__init__` of its own: what
    `init_env` reads is `config`, `train_eval`, `game_files` and `dialect`, which need not be set.
    """

    dialect: str | None = None  # as the game file says
    game_logic: dict[str, str]  # of `get_game_logic`

    def __init__(self, config: Mapping[str, Any], train_eval: str = "train", *, dialect: str | None = None) -> None:
        """`config` is alfworld's, `train_eval` one of `train`, `eval_in_distribution`, `eval_out_of_distribution`.

        `dialect` translates `move X to Y` ("put": to `put X in/on Y`; "move": the other way) in commands and texts, and
        both forms of a command are understood; by default all is as the game file says. Warns if the config asks for
        people's descriptions of goals. Raises ConfigError, and MissingFileError if the split's folder does not exist.
        """
        if not isinstance(config, Mapping):
            raise ConfigError(f"config is {config!r:.60}; give alfworld's, a dictionary")
        if train_eval not in _SPLITS:
            raise ConfigError(f"train_eval: {unknown('split', train_eval, _SPLITS)}")
        if dialect not in (None, *DIALECTS):
            raise ConfigError(f"dialect: {unknown('dialect', str(dialect), DIALECTS)}")
        self.config, self.train_eval, self.dialect = config, train_eval, dialect
        asked = "goal_desc_human_anns_prob"
        if asked in (config.get("env") or {}) and _number(config, "env", asked) > 0:
            warnings.warn(
                "env.goal_desc_human_anns_prob has no effect: the games are played as they are; `alfworld-generate` "
                "makes games with people's descriptions of the goals",
                stacklevel=2,
            )
        self.collect_game_files()

    def collect_game_files(self, verbose: bool = False) -> None:
        """Find the split's games of the config's task types that are solvable: `game_files`, in the folders' order."""
        folder_key, number_key = _SPLITS[self.train_eval]
        folder = _expanded(_setting(self.config, "dataset", folder_key))
        if not os.path.isdir(folder):
            raise MissingFileError(
                f"dataset.{folder_key}: folder {folder} does not exist: get the games with `alfworld-download`, or set "
                "ALFWORLD_DATA"
            )
        numbers = _setting(self.config, "env", "task_types")
        if isinstance(numbers, (str, bytes)) or not isinstance(numbers, Iterable):
            raise ConfigError(f"env.task_types: {numbers!r} is no list of numbers from 1 to {len(TASK_TYPES)}")
        kinds = {TASK_TYPES[number] for number in numbers if isinstance(number, int) and number in TASK_TYPES}
        found = []
        # alfworld's order: as the file system lists the folders, the deepest first.
        for root, _, files in os.walk(folder, topdown=False):
            # alfworld plays what has one of the task types, no movable receptacle or sliced thing, and is solvable.
            if "traj_data.json" not in files or "movable" in root or "Sliced" in root:
                continue
            # The two values are searched as text: parsing the files would take most of the time.
            trajectory = Path(root, "traj_data.json").read_bytes()
            told = _TASK_TYPE.findall(trajectory)
            kind = told[0].decode() if len(told) == 1 else json.loads(trajectory).get("task_type")
            game = os.path.join(root, "game.tw-pddl")
            if kind not in kinds or not os.path.exists(game):
                continue
            if _SOLVABLE.findall(Path(game).read_bytes())[-1:] == [b"true"]:
                found.append(game)
        limit = int(_number(self.config, "dataset", number_key))
        self.game_files = found[:limit] if limit > 0 else found
        self.num_games = len(self.game_files)
        if not self.game_files:
            raise EnvironmentFault(
                f"no solvable games of task types {list(numbers)} in {folder} (dataset.{folder_key})"
            )
        if verbose:
            print(f"{self.num_games} games in split={self.train_eval}")

    def get_game_logic(self) -> None:
        """Read the config's `logic.domain` and `logic.grammar` into `game_logic`, as alfworld does.

        Nothing here needs them, for a game file holds both; subclasses of alfworld's class call this. Raises
        ConfigError if the config does not name them, MissingFileError if they are not there.
        """
        self.game_logic = {}
        for name, key in (("pddl_domain", "domain"), ("grammar", "grammar")):
            path = _expanded(_setting(self.config, "logic", key))
            try:
                self.game_logic[name] = Path(path).read_text(encoding="utf-8")
            except OSError:
                raise MissingFileError(
                    f"logic.{key}: file {path} cannot be read: get it with `alfworld-download`, or set ALFWORLD_DATA"
                ) from None

    def init_env(self, batch_size: int, *, expert_plan: bool | None = None) -> AlfworldBatch:
        """`batch_size` games side by side; `expert_plan` overrides whether infos have `extra.expert_plan`.

        A batch that is larger than the list of games plays some of them twice at once, as alfworld's does. Raises
        EnvironmentFault if `batch_size` is less than 1 or there is no game, ConfigError for settings that cannot be
        used, MissingExtraError if the expert is not installed.
        """
        if not isinstance(batch_size, int) or batch_size < 1:
            raise EnvironmentFault(f"batch_size is {batch_size!r}; give the number of games to play side by side")
        if not self.game_files:
            raise EnvironmentFault("game_files is empty; it needs at least one game file")
        if self.train_eval == "train" and _setting(self.config, "env", "domain_randomization"):
            raise ConfigError(
                "env.domain_randomization: only alfworld's own environment shuffles names; set it to false"
            )
        method = _setting(self.config, "general", "training_method")
        if method not in _STEP_LIMITS:
            raise ConfigError(f"general.training_method: {unknown('method', method, _STEP_LIMITS)}")
        limit = _number(self.config, _STEP_LIMITS[method], "training", "max_nb_steps_per_episode")
        if expert_plan is None:
            expert_plan = method == "dagger" and self.train_eval == "train"
        return AlfworldBatch(self.game_files, batch_size, limit, expert=expert_plan, dialect=self.dialect)


def _setting(config: Mapping[str, Any], *keys: str) -> Any:
    """The config's value at `keys`; ConfigError if it is not there."""
    value: Any = config
    for depth, key in enumerate(keys):
        try:
            value = value[key]
        except (KeyError, TypeError, IndexError):
            raise ConfigError(f"alfworld's config lacks {'.'.join(keys[: depth + 1])}") from None
    return value


def _number(config: Mapping[str, Any], *keys: str) -> Any:
    """The config's number at `keys`; ConfigError if there is none."""
    value = _setting(config, *keys)
    if not isinstance(value, (int, float)):
        raise ConfigError(f"alfworld's config has {'.'.join(keys)}: {value!r}, which is no number")
    return value


def _expanded(text: str) -> str:
    """A path of the config; without a variable ALFWORLD_DATA that is alfworld's own default."""
    # `expandvars` leaves a variable that is not set as it is, so its name is replaced first.
    return os.path.expandvars(str(text).replace("$ALFWORLD_DATA", str(data_root())))
