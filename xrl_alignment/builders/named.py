"""Looks at what settings name before anything is loaded: the model's type and keys, the split, classes of one's own."""

from __future__ import annotations

from pathlib import Path

from alfworld_native import check_split
from alfworld_native.base import Environment
from alfworld_native.games import HOUSEHOLD_SPLITS
from alfworld_native.household.frozen import GAMES
from alfworld_native.household.levels import level_of
from lavis.common.errors import ConfigError
from lavis.common.named_class import is_class_name, load_class
from lavis.models.sections import check_section
from xrl_alignment.agents.experts import make_expert
from xrl_alignment.agents.policies.base import Policy
from xrl_alignment.common.choices import CLIENT_EXPERTS
from xrl_alignment.settings.policy import PolicyConfig
from xrl_alignment.settings.schema import DaggerConfig

# What a kernel driver offers CUDA and ROCm: NVIDIA's cards, Jetson's, WSL's, AMD's.
GPU_FILES = ("/dev/nvidiactl", "/dev/nvmap", "/dev/dxg", "/dev/kfd")


def check_device(name: str, key: str = "run.device") -> None:
    """ConfigError if `key` names a GPU and this machine has none; whether torch can use it, torch says later."""
    if name.startswith("cuda") and not any(Path(file).exists() for file in GPU_FILES):
        raise ConfigError(f"{key} is {name}, but this machine has no GPU: use {key}=cpu")


def check_policy(policy: PolicyConfig) -> None:
    """ConfigError for a policy `module:Class` that is not there or cannot act."""
    if is_class_name(policy.name):
        load_class(policy.name, "policy", ("act", "close"), Policy)


def check_named(config: DaggerConfig) -> None:
    """ConfigError, EnvironmentFault or MissingFileError for what a run of `config` could not use. Needs no torch."""
    expert, environment = config.expert.name, config.environment
    check_device(config.run.device)
    check_device(config.run.learner_device, "run.learner_device")
    check_section(config.model)
    check_policy(config.policy)
    if config.policy.name == "http" and config.run.run_training:
        raise ConfigError(
            "policy.name=http asks another machine's model, which nobody trains: set run.run_training=false"
        )
    if is_class_name(expert):
        make_expert(expert)
    if is_class_name(environment.name):
        if expert in CLIENT_EXPERTS and not environment.allow_other_games:
            raise ConfigError(
                f"expert.name={expert} reads the state of ALFWorld's games, not of {environment.name}: "
                "set environment.name=native"
            )
        load_class(environment.name, "environment", ("reset", "step", "render", "close"), Environment)
    if environment.allow_other_games:
        return
    check_split(environment.name, environment.split, environment.data or None)
    # Of household's splits two are generated, those of levels are test sets of a fixed size.
    generated = dict(zip(HOUSEHOLD_SPLITS, (environment.num_train, environment.num_heldout), strict=True))
    number = generated.get(environment.split, GAMES if level_of(environment.split) else None)
    if environment.name == "household" and number is not None and config.run.num_envs > number:
        more = " or generate more (environment.num_train, environment.num_heldout)"
        raise ConfigError(
            f"run.num_envs={config.run.num_envs}: split {environment.split} has {number} games: ask for fewer"
            f"{more if environment.split in generated else ''}"
        )
