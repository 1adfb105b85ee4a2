"""From settings to a runner: what is refused before a model is built."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lavis.common.errors import ConfigError
from lavis.runners.runner_base import RunnerBase


def test_several_processes_are_refused_if_the_settings_ask_for_one(
    make_runner: Callable[..., RunnerBase], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="run.distributed=False, but 2 processes were started"):
        make_runner("alone", **{"run.distributed": False})
