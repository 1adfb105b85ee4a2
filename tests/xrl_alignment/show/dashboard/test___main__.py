"""`python -m xrl_alignment.dashboard` as a terminal starts it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.xrl_alignment.show.dashboard.runs import make_run_directory
from xrl_alignment.show.dashboard.__main__ import main, one_run


@contextmanager
def shown(folder: Path) -> Iterator[Callable[[str], Any]]:
    """The program beside the run in `folder`, stopped by Ctrl-C at the end: `ask(path)` is the JSON there."""
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*"))
    command = ["-m", "xrl_alignment.dashboard", folder, "--port", 0]
    process = warm.Program(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
        assert address
        page = f"http://127.0.0.1:{address[1]}"
        yield lambda path: json.load(urllib.request.urlopen(f"{page}{path}", timeout=30))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130 and errors.strip() == "interrupted"
    assert before == sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*")), "nothing is written"


def test_it_shows_a_run_until_it_is_stopped(tmp_path: Path):
    make_run_directory(tmp_path / "out" / "run")
    with shown(tmp_path) as ask:
        assert len(ask("/episodes/0/2")["steps"]) == 4


def test_it_shows_a_run_of_a_hub_model(make_run, students):
    run = make_run(student=students("hub"), max_steps=2)
    run.play()
    with shown(run.directory.path) as ask:
        steps = ask("/episodes/1/1")["steps"]
        assert [step["executed"] for step in steps] == [said for said, _ in run.journal[3].steps]
        assert ask("/memories/1")["memories"] == run.directory.memories()[1][run.games[1].id] != []


def test_a_folder_without_a_run_or_with_several_is_an_error(tmp_path: Path):
    with pytest.raises(OSError, match="no run in"):
        main([str(tmp_path)])
    with pytest.raises(OSError, match="no run in"):
        main([str(tmp_path / "nowhere")])
    for name in ("bc", "dpo"):
        (tmp_path / name / "state").mkdir(parents=True)
    with pytest.raises(OSError, match=r"holds 2 runs; name one of them: .*bc, .*dpo"):
        one_run(tmp_path)
    assert one_run(tmp_path / "dpo") == tmp_path / "dpo"
