"""Real processes and pipes of two runs: one run's are removed, the other's stay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from xrl_alignment.runs import leftovers
from xrl_alignment.runs.leftovers import make_scratch, remove_leftovers

# A simulator: its own session, a pipe in the temporary folder; the second one does not end on SIGTERM.
SIMULATOR = """
import os, signal, sys, tempfile, time
os.setsid()
os.mkfifo(os.path.join(tempfile.mkdtemp(), "server.pipe"))
signal.signal(signal.SIGTERM, signal.SIG_IGN if sys.argv[1] == "stubborn" else signal.SIG_DFL)
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def started():
    processes: list[subprocess.Popen] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def start(started: list[subprocess.Popen], scratch: Path, kind: str = "meek") -> subprocess.Popen:
    command = [sys.executable, "-c", SIMULATOR, kind]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    started.append(process)
    assert process.stdout.readline() == "up\n"
    return process


@pytest.fixture
def runs(tmp_path) -> list[Path]:
    """Two run directories."""
    for name in ("one", "two"):
        (tmp_path / name / "state").mkdir(parents=True)
    return [tmp_path / "one", tmp_path / "two"]


def test_only_the_runs_own_simulators_and_pipes_go(runs, started, monkeypatch):
    monkeypatch.setattr(leftovers, "GRACE_S", 1.0)
    mine, other = make_scratch(runs[0]), make_scratch(runs[1])
    gone = [start(started, mine), start(started, mine, "stubborn")]
    stays = start(started, other)

    said = remove_leftovers(runs[0])

    assert not any(psutil.pid_exists(process.pid) for process in gone)
    assert stays.poll() is None and other.is_dir()
    assert len(said) == 3 and f"process {gone[0].pid}" in " ".join(said) and f"2 pipes in {mine}" in said
    assert not mine.exists() and remove_leftovers(runs[0]) == []
    remove_leftovers(runs[1])
    assert not psutil.pid_exists(stays.pid) and not other.exists()


def test_a_record_that_names_another_folder_is_not_followed(runs, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    link = tmp_path / f"{leftovers.PREFIX}link"
    link.symlink_to(precious)
    for content in (str(precious), str(link), "/", "", "\0", f"relative/{leftovers.PREFIX}x"):
        (runs[0] / "state" / "scratch").write_text(content)
        assert remove_leftovers(runs[0]) == []
    assert precious.is_dir() and psutil.pid_exists(os.getpid())
