"""Learner, checkpoints and policies on a device that mixes with the CPU's tensors as little as a GPU does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import warm


@pytest.mark.parametrize(
    "cases",
    [
        ["projection"],
        pytest.param(["low_memory", "language_model", "adapters", "q_former"], marks=pytest.mark.slow),
    ],
)
def test_nothing_is_left_on_the_cpu(cases: list[str], tmp_path: Path) -> None:
    """Both kinds of training, what a checkpoint brings back, and all ways of acting give what they give on the CPU."""
    # The device is known to a whole process, so to one of its own.
    done = warm.run(["-m", "tests.pretended_device", tmp_path, *cases])
    assert done.returncode == 0, done.stderr[-3000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == 2 * len(cases)
    for result in results:
        (losses, actions), (losses_there, actions_there) = result["here"], result["there"]
        assert losses_there == pytest.approx(losses, abs=1e-4), result["case"]
        assert actions_there == actions, result["case"]
