"""Random SIGKILLs: one run in the plain suite, and two hundred kills by `make test-reliability` (`kills.py`)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from xrl_alignment.common.paths import REPO_ROOT


def survive(*arguments: object) -> str:
    """Play runs with kills in a process of its own; returns what it printed."""
    command = [sys.executable, "-m", "tests.reliability.kills", *map(str, arguments)]
    ended = subprocess.run(command, cwd=REPO_ROOT, stdout=subprocess.PIPE, text=True, stderr=subprocess.STDOUT)
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


@pytest.mark.timeout(900)
def test_a_few_kills_change_nothing() -> None:
    assert "kills survived in 1 runs" in survive("--runs", 1, "--kind", "bc")


@pytest.mark.reliability
@pytest.mark.timeout(7200)
def test_two_hundred_kills_change_nothing() -> None:
    print(survive("--kills", 200))
