"""The demo's own parts: its table, its output folder, its memory figure. `make demo` runs the whole."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from lavis.common.errors import FileError
from xrl_alignment.demo import PeakMemory, prepare_output, table


def test_the_table_has_a_line_for_each_evaluation() -> None:
    row = {"success": 0.5, "success_admissible": 1.0, "games": 4, "mean_steps": None, "interval": (0.15, 0.85)}
    lines = table({"untrained": row, "bc": {**row, "mean_steps": 7.25}, "seed": 42}).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["untrained", "bc"]
    assert lines[1].split()[1:] == ["4", "0.500", "0.15", "to", "0.85", "1.000", "-"]
    assert lines[2].split()[-1] == "7.2"


def test_only_an_earlier_demo_is_deleted(tmp_path: Path) -> None:
    earlier, foreign = tmp_path / "earlier", tmp_path / "foreign"
    for folder in (earlier, foreign):
        (folder / "bc").mkdir(parents=True)
    (earlier / "summary.json").touch()
    for folder in (earlier, foreign, tmp_path / "new"):
        prepare_output(folder)
    assert list(earlier.iterdir()) == [] and (foreign / "bc").is_dir() and (tmp_path / "new").is_dir()


def test_an_output_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="--output .*file cannot be made: File exists"):
        prepare_output(tmp_path / "file")


def test_peak_memory_counts_children() -> None:
    program = "block = b'x' * (200 << 20); print('ready', flush=True); import time; time.sleep(60)"
    with PeakMemory() as memory:
        time.sleep(0.8)
        alone = memory.bytes
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        deadline = time.monotonic() + 60
        while memory.bytes < alone + (190 << 20):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        child.kill()
        child.communicate()
    assert alone > 50 << 20
