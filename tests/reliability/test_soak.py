"""Ten minutes of training with 32 sessions (see `soak.py`; `--minutes 120` takes two hours)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lavis.common.paths import REPO_ROOT


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
