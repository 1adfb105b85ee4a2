"""Steps of an experiment: done once, continued, and never of two sets of sizes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from omegaconf import OmegaConf

from lavis.common.config import read_option
from xrl_alignment.lab.results.lab import Lab, StepError

COUNT = "import pathlib, sys; file = pathlib.Path(sys.argv[1]); file.write_text(file.read_text() + 'x')"


@pytest.fixture
def counter(tmp_path: Path) -> Path:
    path = tmp_path / "count"
    path.write_text("")
    return path


def test_a_step_is_done_once(tmp_path: Path, counter: Path) -> None:
    labs = [Lab(tmp_path / "out", say=lambda text: None) for _ in range(2)]
    for lab in labs:
        lab.step("a/b", ["-c", COUNT, str(counter)])
    assert counter.read_text() == "x"
    assert labs[0].seconds() == labs[1].seconds()


def test_times_are_those_of_the_steps_that_were_asked_for(tmp_path: Path) -> None:
    for name in ("a", "b"):
        lab = Lab(tmp_path / "out", say=lambda text: None)
        lab.step(name, ["-c", ""])
        assert list(lab.seconds()) == [name]


def test_the_first_error_stops_the_others_whatever_their_order(tmp_path: Path) -> None:
    lab = Lab(tmp_path, say=lambda text: None)

    def waits() -> None:
        assert lab._stopped.wait(60), "the error of a later chain is told only after this one"

    def fails() -> None:
        raise StepError("a chain failed")

    with pytest.raises(StepError, match="a chain failed"):
        lab.all([waits, fails])


LAB = """
import sys
from functools import partial
from pathlib import Path
from lavis.common.program import run_program
from xrl_alignment.lab.results.lab import Lab
PROGRAM = "from lavis.common.program import run_program; import time; print('up', flush=True)"
PROGRAM += "; run_program(lambda: time.sleep(600))"
lab = Lab(Path(sys.argv[1]), jobs=2)
run_program(lambda: lab.all([partial(lab.step, name, ["-c", PROGRAM]) for name in "ab"]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_lab_that_is_stopped_or_killed_leaves_no_program_behind(tmp_path: Path, number: int) -> None:
    lab = subprocess.Popen([sys.executable, "-c", LAB, str(tmp_path)], stdout=subprocess.DEVNULL)
    logs = [tmp_path / "logs" / f"{name}.log" for name in "ab"]
    while not all(log.is_file() and "up" in log.read_text() for log in logs):
        assert lab.poll() is None
        time.sleep(0.1)
    programs = psutil.Process(lab.pid).children()
    assert len(programs) == 2
    lab.send_signal(number)
    lab.wait(60)
    _, alive = psutil.wait_procs(programs, timeout=60)
    assert not alive and not list((tmp_path / "steps").glob("*.json"))


def test_an_error_of_one_chain_ends_the_programs_of_the_others(tmp_path: Path) -> None:
    lab = Lab(tmp_path, jobs=2, say=lambda text: None)
    began = time.monotonic()
    with pytest.raises(StepError, match="b ended with code 3"):
        lab.all([
            partial(lab.step, "a", ["-c", "import time; time.sleep(600)"]),
            partial(lab.step, "b", ["-c", "import sys; sys.exit(3)"]),
        ])  # fmt: skip
    assert time.monotonic() - began < 60


def test_the_time_of_a_killed_start_counts(tmp_path: Path) -> None:
    command = ["-c", "import pathlib, sys, time; p = pathlib.Path(sys.argv[1]); time.sleep(60 * (not p.exists()))"]
    command.append(str(tmp_path / "second"))
    program = f"from xrl_alignment.lab.results import lab; lab.NOTE_S = 0.05; lab.Lab(lab.Path({str(tmp_path)!r}))"
    first = subprocess.Popen([sys.executable, "-c", f"{program}.step('a', {command})"], start_new_session=True)
    spent = tmp_path / "steps" / "a.spent"
    while not (spent.is_file() and float(spent.read_text()) > 0.5):
        assert first.poll() is None
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    (tmp_path / "second").touch()
    lab = Lab(tmp_path, say=lambda text: None)
    before = float(spent.read_text())
    lab.step("a", command)
    assert lab.seconds()["a"] >= round(before, 1) and not spent.exists()


def test_a_run_that_was_killed_before_it_had_settings_is_not_continued(tmp_path: Path, monkeypatch) -> None:
    runs = [tmp_path / "rounds" / "r" / f"with_bc_dpo-{number}" for number in range(3)]
    for run in runs:
        (run / "state").mkdir(parents=True)
    (runs[0] / "DONE").touch()
    lab, given = Lab(tmp_path), []
    monkeypatch.setattr(lab, "step", lambda name, command, resume: given.append(resume()))
    lab.label("r", tmp_path / "start.pth", {})
    (runs[1] / "config.yaml").touch()
    lab.label("r", tmp_path / "start.pth", {})
    assert given == [[], ["--resume", str(runs[1])]]


def test_paths_reach_the_programs_whole_and_are_recorded_without_quotes(tmp_path: Path, monkeypatch) -> None:
    lab, commands = Lab(tmp_path / "runs #2"), []
    monkeypatch.setattr(lab, "_run", lambda name, command, note: commands.append(command) or 1.0)
    (checkpoints := lab.output / "students" / "s").mkdir(parents=True)
    (checkpoints / "checkpoint_1.pth").touch()
    lab.train("s", [Path("/a, b"), Path("/c #d")], lab.output / "start.pth", max_iters=1)
    read = OmegaConf.merge(*map(read_option, commands[0][commands[0].index("--options") + 1 :]))
    assert read.datasets.alfworld_cap.build_info.annotations.train.storage == ["/a, b", "/c #d"]
    assert (read.model.pretrained, read.run.max_iters) == (str(lab.output / "start.pth"), 1)
    recorded = json.loads((lab.output / "steps" / "students" / "s.json").read_text())["command"]
    assert "model.pretrained=OUTPUT/start.pth " in recorded and "storage=[/a, b,/c #d]" in recorded


def test_chains_that_need_the_same_step_wait_for_it(tmp_path: Path, counter: Path) -> None:
    lab = Lab(tmp_path / "out", jobs=2, say=lambda text: None)
    lab.all(partial(lab.step, "shared", ["-c", COUNT, str(counter)]) for _ in range(4))
    assert counter.read_text() == "x"


def test_a_folder_holds_one_set_of_sizes(tmp_path: Path, counter: Path) -> None:
    lab = Lab(tmp_path / "out", say=lambda text: None)
    lab.step("a", ["-c", COUNT, str(counter)])
    with pytest.raises(StepError, match=r"a\.json was made by another command .*: use another results\.output"):
        lab.step("a", ["-c", COUNT, str(counter), "--more"])


def test_the_log_of_a_failed_step_is_told_and_it_is_not_done(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "out", say=lambda text: None)
    with pytest.raises(StepError, match="bad ended with code 3; the end of .*\nwhat went wrong"):
        lab.all([partial(lab.step, "bad", ["-c", "print('what went wrong'); raise SystemExit(3)"])])
    assert lab.seconds() == {}


def test_commands_are_noted_without_the_machines_paths(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "out", say=lambda text: None)
    lab.step("a", ["-c", "", str(lab.output / "data")])
    assert json.loads((tmp_path / "out/steps/a.json").read_text())["command"] == "-c  OUTPUT/data"
