"""The watcher: works only for viewers, at a bounded share of a processor, and survives its own errors."""

from __future__ import annotations

import time
from pathlib import Path

from tests.xrl_alignment.dashboard.runs import make_run_directory
from tests.xrl_alignment.dashboard.test_board import parse
from xrl_alignment.dashboard.board import Board
from xrl_alignment.dashboard.run_files import RunFiles
from xrl_alignment.dashboard.watcher import MOST_LOAD, Watcher

PATIENCE_S = 30


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_it_looks_only_while_somebody_watches(tmp_path: Path):
    board, looks = Board(), []
    watcher = Watcher(
        board, RunFiles(make_run_directory(tmp_path)), status=lambda: looks.append(1) or {}, interval_s=0.01
    )
    time.sleep(0.1)
    assert looks == []
    viewer = board.watch()
    watching = iter(viewer)
    names = set()
    while not {"run", "games", "grid", "curves"} <= names:
        names |= {name for name, _ in parse(next(watching))}
    viewer.close()
    time.sleep(0.05)
    before = len(looks)
    time.sleep(0.1)
    assert len(looks) <= before + 1
    watcher.close()


def test_a_look_that_takes_long_is_taken_less_often(tmp_path: Path):
    board, looks = Board(), []
    watcher = Watcher(
        board, RunFiles(tmp_path), status=lambda: burn(0.01) or looks.append(time.monotonic()) or {}, interval_s=0.01
    )
    board.watch()
    deadline = time.monotonic() + PATIENCE_S
    while len(looks) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert looks[1] - looks[0] >= 0.01 / MOST_LOAD
    watcher.close()


def test_an_error_is_logged_and_the_next_look_may_succeed(tmp_path: Path, caplog):
    board, calls = Board(), []

    def status():
        calls.append(1)
        if len(calls) < 3:
            raise RuntimeError("a bug")
        return {"round": 0}

    watcher = Watcher(board, RunFiles(tmp_path), status=status, interval_s=0.01)
    for _, events in zip(range(100), board.watch(), strict=False):
        if any(name == "run" for name, _ in parse(events)):
            break
    watcher.close()
    assert len(calls) >= 3 and "a bug" in caplog.text
