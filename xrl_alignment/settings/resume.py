"""Which settings a resumed run may change: those that decide where and how fast it runs, not what comes out.

A field of the schema says it by `may_change` (`fields.setting`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from lavis.common.errors import ConfigError
from xrl_alignment.settings.fields import sections_of, settings_of
from xrl_alignment.settings.loading import load_config
from xrl_alignment.settings.planning import EmacPlusConfig
from xrl_alignment.settings.schema import DaggerConfig

SettingsT = TypeVar("SettingsT", DaggerConfig, EmacPlusConfig)


def free_keys(program: type) -> frozenset[str]:
    """The settings of a program (`DaggerConfig`, …) that a resumed run may change, as `section.name`."""
    return frozenset(
        f"{schema.section}.{name}"
        for schema in sections_of(program)
        for name, described in settings_of(schema).items()
        if described.may_change
    )


FREE_KEYS = free_keys(DaggerConfig)


def saved_settings(run_dir: Path, options: Sequence[str] = ()) -> DaggerConfig:
    """The settings that `run_dir` was started with, `options` laid over them; ConfigError if it has none."""
    return settings_in(run_dir, DaggerConfig, options)


def settings_in(run_dir: Path, schema: type[SettingsT], options: Sequence[str] = ()) -> SettingsT:
    """As `saved_settings`, of any program that writes `config.yaml` into its folder."""
    path = run_dir / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"{run_dir} is not a run directory: it has no config.yaml")
    return load_config(schema, path, options)


def changed_settings(saved: SettingsT, wanted: SettingsT) -> list[str]:
    """What a resume must not change but would, as `run.seed: 1 → 2`; empty if the run stays the same."""
    # A key that one side lacks counts as None: a newer version may have more settings.
    before, after = _flat(dataclasses.asdict(saved)), _flat(dataclasses.asdict(wanted))
    free = free_keys(type(saved))
    keys = [key for key in {**before, **after} if key not in free]
    return [f"{key}: {before.get(key)!r} → {after.get(key)!r}" for key in keys if before.get(key) != after.get(key)]


def refuse_changes(saved: SettingsT, wanted: SettingsT, run_dir: Path) -> None:
    """ConfigError that names every setting of `wanted` by which `run_dir` would become another run."""
    if changes := changed_settings(saved, wanted):
        raise ConfigError(f"{run_dir} cannot be resumed with other settings: {'; '.join(changes)}")


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    # Sections inside sections (`model.llm_config`) count key by key, so that the message names the one that differs.
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
