"""Which settings a resumed run may change: those that decide where and how fast it runs, not what comes out."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from lavis.common.errors import ConfigError
from xrl_alignment.config.loading import load_config
from xrl_alignment.config.schema import DaggerConfig

FREE_SECTIONS = ("server",)
FREE_KEYS = (
    "environment.data",
    "expert.cache",
    "expert.calls_per_minute",
    "expert.concurrency",
    "expert.key_variable",
    "expert.max_attempts",
    "expert.max_calls",
    "expert.max_cost_usd",
    "expert.price_cached_prompt",
    "expert.price_completion",
    "expert.price_prompt",
    "expert.timeout_s",
    "policy.base_urls",
    "policy.name",
    "policy.timeout_s",
    "policy.vllm_args",
    "policy.vllm_python",
    "run.device",
    "run.max_batch",
    "run.num_threads",
    "run.num_workers",
    "run.output_dir",
    "run.state_interval_s",
    "run.window_ms",
)


def saved_settings(run_dir: Path, options: list[str] | tuple[str, ...] = ()) -> DaggerConfig:
    """The settings that `run_dir` was started with, `options` laid over them; ConfigError where it has none."""
    path = run_dir / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"{run_dir} is not a run directory: it has no config.yaml")
    return load_config(DaggerConfig, path, options)


def changed_settings(saved: DaggerConfig, wanted: DaggerConfig) -> list[str]:
    """What a resume must not change but would, as `run.seed: 1 → 2`; empty where the run is the same."""
    before, after = _flat(dataclasses.asdict(saved)), _flat(dataclasses.asdict(wanted))
    keys = [key for key in {**before, **after} if key not in FREE_KEYS and key.split(".")[0] not in FREE_SECTIONS]
    return [f"{key}: {before.get(key)!r} → {after.get(key)!r}" for key in keys if before.get(key) != after.get(key)]


def refuse_changes(saved: DaggerConfig, wanted: DaggerConfig, run_dir: Path) -> None:
    """ConfigError naming every setting in which `wanted` is another run than the one in `run_dir`."""
    if changes := changed_settings(saved, wanted):
        raise ConfigError(f"{run_dir} cannot be resumed with other settings: {'; '.join(changes)}")


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
