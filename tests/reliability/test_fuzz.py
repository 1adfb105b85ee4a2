"""Hostile inputs: two thousand in every run of the suite, a million with `make test-reliability` (see `fuzz.py`)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lavis.common.paths import REPO_ROOT


def feed(*arguments: object) -> str:
    """Fuzz in a process of its own; returns what it printed."""
    command = [sys.executable, "-m", "tests.reliability.fuzz", *map(str, arguments)]
    ended = subprocess.run(command, cwd=REPO_ROOT, stdout=subprocess.PIPE, text=True, stderr=subprocess.STDOUT)
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def test_a_few_hostile_messages() -> None:
    assert "found {}" in feed("--inputs", 2000, "--surface", "WireV1", "WireV2", "Texts", "--seed", 1)


def test_a_few_hostile_files_of_runs() -> None:
    assert "found {}" in feed("--inputs", 40, "--surface", "StoredSettings", "Scores", "WorldLogs", "--seed", 1)


@pytest.mark.reliability
@pytest.mark.timeout(1200)
def test_a_minute_of_hostile_stored_configurations() -> None:
    """Any value under any key of all settings: of a stored configuration only the list of harmless values comes out."""
    print(feed("--inputs", 1500, "--surface", "StoredSettings"))


@pytest.mark.reliability
@pytest.mark.timeout(14_400)
def test_a_million_hostile_inputs() -> None:
    print(feed("--inputs", 1_000_000))
