"""verl-agent's ALFWorld environments on the native engine, in one process, without Ray.

    from alfworld_native.adapters.verl_agent import build_alfworld_envs    # in agent_system/environments/env_manager.py

The arguments, the games and their order, and what `reset` and `step` return are verl-agent's. Two things differ: the
infos hold `extra.expert_plan` only with `env_kwargs={"expert_plan": True}` (verl-agent does not read it, and alfworld's
expert takes most of a step's time), and `resources_per_worker` has no effect.

One process plays hundreds of games at once. Who wants to use more cores keeps verl-agent's own builder, one Ray worker
for each environment, and changes the import of `get_environment` in its `envs.py` to `adapters.alfworld`'s: our
environments can be pickled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import yaml

from alfworld_native.adapters.alfworld import AlfredTWEnv
from alfworld_native.base import check_commands, check_count
from lavis.common.errors import ConfigError, MissingFileError, first_sentence, unknown

_OPTIONS = ("eval_dataset", "task_types", "dialect", "expert_plan")
_REWARD = 10.0  # for a won game

Infos = list[dict[str, Any]]


def build_alfworld_envs(
    alf_config_path: str | Path,
    seed: int,
    env_num: int,
    group_n: int,
    resources_per_worker: Mapping[str, Any] | None = None,
    is_train: bool = True,
    env_kwargs: Mapping[str, Any] | None = None,
) -> AlfworldEnvs:
    """`env_num` groups of `group_n` environments; those of a group have one seed and so play the same games.

    `alf_config_path` is alfworld's yaml file. `env_kwargs` may have `eval_dataset` (`eval_in_distribution`,
    `eval_out_of_distribution`), `task_types` (in place of the config's), `dialect` (as `AlfredTWEnv`), `expert_plan`.
    There may be more groups than games: each group has an order of its own, in which all games come. Raises
    MissingFileError, ConfigError, or EnvironmentFault for a number below 1.
    """
    if not isinstance(env_kwargs, Mapping | None):
        raise ConfigError(f"env_kwargs is {str(env_kwargs)[:60]}; give a dictionary")
    options = dict(env_kwargs or {})
    for name in options:
        if name not in _OPTIONS:
            raise ConfigError(f"env_kwargs: {unknown('option', name, _OPTIONS)}")
    if not isinstance(options.get("expert_plan", False), bool):
        raise ConfigError(f"env_kwargs: expert_plan is {options['expert_plan']!r:.60}; give True or False")
    if not isinstance(seed, Integral):
        raise ConfigError(f"seed is {seed!r:.60}; give a whole number")
    check_count("env_num", env_num)
    check_count("group_n", group_n)
    config = _read_config(alf_config_path)
    if config["env"].get("type") != "AlfredTWEnv":
        raise ConfigError(
            f"{alf_config_path}: env.type is {config['env'].get('type')!r}; this adapter plays AlfredTWEnv"
        )
    if options.get("task_types") is not None:
        config["env"]["task_types"] = options["task_types"]
    split = "train" if is_train else options.get("eval_dataset", "eval_in_distribution")
    games = AlfredTWEnv(config, split, dialect=options.get("dialect"))
    return AlfworldEnvs(games, seed, env_num, group_n, bool(options.get("expert_plan")))


class AlfworldEnvs:
    """`env_num` × `group_n` games side by side; lists have one entry for each, group after group."""

    multi_modal = False

    def __init__(self, games: AlfredTWEnv, seed: int, env_num: int, group_n: int, expert_plan: bool = False) -> None:
        """Environment `i` plays `games` in the order of seed `seed + i // group_n`."""
        self.num_processes, self.group_n = env_num * group_n, group_n
        self._environments = [games.init_env(1, expert_plan=expert_plan) for _ in range(self.num_processes)]
        for i, environment in enumerate(self._environments):
            # GRPO (Shao et al. 2024) compares the rollouts of a group with each other, so they play the same game.
            environment.seed(seed + i // group_n)
        self.prev_admissible_commands: list[list[str] | None] = [None] * self.num_processes

    def reset(self) -> tuple[list[str], None, Infos]:
        """Begin the next games: texts, None (there are no images), infos."""
        answers = [environment.reset() for environment in self._environments]
        # Each environment is a batch of one: its lists are taken apart.
        texts = [text for (text,), _ in answers]
        return texts, None, self._infos(texts, [infos for _, infos in answers])

    def step(self, actions: Sequence[str]) -> tuple[list[str], None, list[float], list[bool], Infos]:
        """One action for each game: texts, None, rewards (10 in a won game), whether they are done, infos."""
        check_commands(actions, self.num_processes)
        answers = [environment.step([action]) for environment, action in zip(self._environments, actions, strict=True)]
        texts = [text for (text,), _, _, _ in answers]
        infos = self._infos(texts, [infos for _, _, _, infos in answers])
        return texts, None, [_REWARD * info["won"] for info in infos], [done for _, _, (done,), _ in answers], infos

    @property
    def get_admissible_commands(self) -> list[list[str] | None]:
        """The admissible commands of each game now; a property, as verl-agent has it."""
        return self.prev_admissible_commands

    def close(self) -> None:
        """Forget the games."""
        for environment in self._environments:
            environment.close()

    def _infos(self, texts: list[str], batches: list[dict[str, list[Any]]]) -> Infos:
        infos = [{key: value[0] for key, value in batch.items()} for batch in batches]
        for info, text in zip(infos, texts, strict=True):
            # verl-agent's infos hold the text, too.
            info["observation_text"] = text
        self.prev_admissible_commands = [info["admissible_commands"] for info in infos]
        return infos


def _read_config(path: str | Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingFileError(f"alf_config_path: file {path} does not exist; give alfworld's yaml file") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read as yaml: {first_sentence(error)}") from error
    if not isinstance(config, dict) or not isinstance(config.get("env"), dict):
        raise ConfigError(f"{path} is no config of alfworld: it lacks the section env")
    return config
