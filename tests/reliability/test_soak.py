"""Ten minutes of training with 32 sessions (see `soak.py`; `--minutes 120` takes two hours)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lavis.common.paths import REPO_ROOT
from tests.reliability import soak


@pytest.mark.reliability
@pytest.mark.timeout(1800)
def test_ten_minutes_of_training_leave_nothing_behind() -> None:
    command = [sys.executable, "-m", "tests.reliability.soak", "--minutes", "10"]
    ended = subprocess.run(command, cwd=REPO_ROOT, stdout=subprocess.PIPE, text=True, stderr=subprocess.STDOUT)
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout


def test_small_objects_that_are_kept_are_seen(tmp_path: Path) -> None:
    """Python has them in mappings of its own: what glibc has allocated stayed as it was while a soak's memory grew."""
    code = """
import sys, threading, time
from pathlib import Path
from tests.reliability import allocated
allocated.PERIOD_S, allocated.PAUSE_S = 0.5, 0.05
threading.Thread(target=allocated.watch, args=(Path(sys.argv[1]),), daemon=True).start()
time.sleep(2)
kept = [{number: number} for number in range(1000, 51_000)]
time.sleep(2)
"""
    path = tmp_path / "figures"
    subprocess.run([sys.executable, "-c", code, path], cwd=REPO_ROOT, check=True)
    first, *_, last = [[int(figure) for figure in line.split()] for line in path.read_text().splitlines()]
    assert last[1] - first[1] > 100_000  # a dictionary is two or three objects, and each number is one


# ---- what a soak judges by ------------------------------------------------------------------------------------------


def seen(moment: int, *, leak: int = 0, speed: float = 1.0) -> soak.Sample:
    """A sample at the given second of a program whose rounds take 64 seconds: memory grows by half, then falls back.

    `leak` bytes more are kept after each round.
    """
    kept = 1000 * 2**20 + leak * (moment // soak.GAMES)
    return soak.Sample(
        at=float(moment),
        steps=20 * moment,
        episodes=moment,
        updates=moment // soak.GAMES,
        processor_s=moment / speed,
        bytes=kept + kept // 2 * (moment % soak.GAMES) // soak.GAMES,
        live=kept,
        objects=kept // 1000,
        threads=9,
        files=9,
        sockets=9,
        processes=2,
    )


def windows(first: range, last: range, **more: float) -> list[list[soak.Sample]]:
    return [[seen(moment, **more) for moment in window] for window in (first, last)]


def test_memory_is_compared_in_the_same_phase_of_rounds() -> None:
    """Before, windows of two and a half rounds that began at another phase differed by 5 %, and a soak failed."""
    first, last = range(128, 288, 4), range(1000, 1160, 4)
    before, after = (soak.mean(window, "bytes") for window in windows(first, last))
    assert not 0.98 < after / before < 1.02
    assert soak.compared(windows(first, last), 0.95, 99) == []


def test_a_leak_is_found() -> None:
    first, last = range(128, 288, 4), range(1000, 1160, 4)
    wrong = soak.compared(windows(first, last, leak=3 * 2**20), 0.95, 99)  # 4 % in 13 rounds
    assert [line.split(" grew")[0] for line in wrong] == [
        "what is allocated",
        "Python's small objects",
        "memory",
    ]


def test_slower_steps_are_found() -> None:
    fast, slow = windows(range(128, 288, 4), range(1000, 1160, 4))
    slow = [seen(int(one.at), speed=0.5) for one in slow]
    assert soak.compared([fast, slow], 0.95, 99) == ["throughput fell to 0.500"]


def test_windows_without_a_whole_round_are_not_compared() -> None:
    (wrong,) = soak.compared(windows(range(128, 190, 4), range(1000, 1062, 4)), 0.95, 99)
    assert "holds no whole round" in wrong


def test_time_for_less_than_a_round_a_window_is_refused() -> None:
    soak.require_rounds(7200.0, 720.0, 10.0)
    with pytest.raises(soak.TooShortError, match=r"a round takes 60 s .* windows of 96 s .* --minutes 12 or more"):
        soak.require_rounds(600.0, 120.0, 2.0)
    soak.require_rounds(720.0, 120.0, 2.0)  # what the error asks for is enough
