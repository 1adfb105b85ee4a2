"""The demo's own parts: its table, its output folder, its memory figure. `make demo` runs the whole."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
import torch

from alfworld_native.games import find_games
from lavis.common.errors import ConfigError, FileError
from lavis.common.files import locked
from lavis.common.paths import REPO_ROOT
from tests import warm
from xrl_alignment.agents.policies.uniform import RandomPolicy
from xrl_alignment.lab.demo import (
    Evaluator,
    PeakMemory,
    PhaseStatus,
    gain,
    parse_arguments,
    prepare_output,
    second_process,
    table,
    what_next,
)
from xrl_alignment.settings.loading import load_config
from xrl_alignment.settings.schema import DaggerConfig


def test_the_table_has_a_line_for_each_evaluation() -> None:
    row = {"success": 0.5, "games": 4, "mean_steps": None, "interval": (0.15, 0.85)}
    lines = table({"untrained": row, "bc": {**row, "mean_steps": 7.25}, "seed": 42}).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["untrained", "bc"]
    assert lines[1].split()[1:] == ["4", "0.500", "0.15", "to", "0.85", "-"]
    assert lines[2].split()[-1] == "7.2"


def test_a_baseline_has_only_the_figure_that_fits_it() -> None:
    expert = {"success": 1.0, "games": 4, "mean_steps": 6.5, "interval": (0.51, 1.0)}
    random = {"success": None, "success_admissible": 0.25, "games": 4, "mean_steps": 20.0, "interval": None}
    random["interval_admissible"] = (0.05, 0.7)
    lines = table({"expert": expert, "random": random}).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["expert", "4", "1.000", "0.51", "to", "1.00", "6.5"],
        ["random", "(admissible)", "4", "0.250", "0.05", "to", "0.70", "20.0"],
    ]  # fmt: skip


def test_the_gain_of_phase_two_is_counted_game_by_game() -> None:
    summary = {"bc": {"won": {"A": False, "B": True, "C": True}}, "dpo": {"won": {"A": True, "B": False, "C": True}}}
    assert gain(summary) == "of 3 held-out games, DPO solves 1 that cloning failed, and fails 1 that it solved"


def test_the_end_leads_on(tmp_path: Path) -> None:
    summary: dict = {name: {"success": value} for name, value in (("untrained", 0.0), ("bc", 0.5), ("dpo", 0.75))}
    summary["checkpoints"] = {"dpo": str(tmp_path / "emma_checkpoint_3.pth")}
    config = load_config(DaggerConfig, REPO_ROOT / "configs/dagger/demo_dpo.yaml")
    lines = what_next(summary, tmp_path / "report.html", config)
    assert lines[0] == "success on held-out games: 0.000 untrained, 0.500 after cloning, 0.750 after DPO"
    assert lines[1].endswith("emma_checkpoint_3.pth") and "report.html" in lines[2]
    assert all(f"{tmp_path}/emma_checkpoint_3.pth" in line for line in lines[3:])
    assert "environment.split=household_heldout" in lines[4]


def test_each_phase_says_how_long_the_whole_will_still_take(capsys: pytest.CaptureFixture) -> None:
    now = 100.0
    status = PhaseStatus({"one": 5, "two": 25, "three": 70}, clock=lambda: now)
    for name, seconds in (("one", 165), ("two", 45), ("three", 0)):
        status.begin(name)
        now += seconds
    assert capsys.readouterr().out.splitlines() == [
        "== phase 1 of 3: one; 0 s so far, 100 s left on 2 idle cores",
        "== phase 2 of 3: two; 165 s so far, 95 s left on 2 idle cores",  # not 33 times the 95 s: games were generated
        "== phase 3 of 3: three; 210 s so far, about 490 s left",  # seven times as slow as where it was measured
    ]


def test_the_baselines_are_the_expert_and_chance(household_data: Path) -> None:
    options = ["environment.name=native", "environment.split=household_heldout", f"environment.data={household_data}"]
    evaluator = Evaluator(load_config(DaggerConfig, None, options))
    rows = evaluator.baselines(find_games("household_heldout", data=household_data)[:3])
    assert rows["expert"]["success"] == 1.0
    assert rows["random"]["interval_admissible"][1] < 1.0
    assert rows["random"]["success"] is None and rows["random"]["success_admissible"] < 1.0


def test_the_evaluations_have_the_limits_of_the_run(monkeypatch) -> None:
    """Whatever `run.max_steps` was, an episode ended at 50 steps."""
    given: list[dict] = []
    row = {"success": 0.0, "interval": None, "per_task_type": {}}
    stand_ins = {
        "play_games": lambda *_, **options: given.append(options) or [],
        "summarise": lambda results: dict(row),
        "load_student": lambda *_: (None, None),
        "make_policy": lambda *_: RandomPolicy(0),
        "prompt_writer": lambda *_, **_options: None,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(f"xrl_alignment.lab.demo.{name}", stand_in)
    evaluator = Evaluator(load_config(DaggerConfig, None, ["run.max_steps=200", "run.enable_tc=true"]))
    evaluator.baselines([])
    evaluator.entry([], None)
    assert [(options["max_steps"], options["enable_tc"]) for options in given] == [(200, True)] * 3


@pytest.mark.parametrize("mark", ["summary.json", ".demo"])
def test_an_earlier_demo_is_deleted_also_one_that_was_killed(mark: str, tmp_path: Path) -> None:
    """Runs of a demo that was killed stayed in the next one's report."""
    foreign = tmp_path / "foreign"
    (foreign / "bc").mkdir(parents=True)
    (tmp_path / "demo" / "bc").mkdir(parents=True)
    (tmp_path / "demo" / mark).write_text('{"checkpoints": {"bc": "a.pth", "dpo": "b.pth"}}')
    (tmp_path / "demo" / "link").symlink_to(foreign)
    for folder in ("demo", "demo", "new"):
        prepare_output(tmp_path / folder).close()
        assert sorted(path.name for path in (tmp_path / folder).iterdir()) == [".demo", ".lock"]
    assert (foreign / "bc").is_dir()


@pytest.mark.parametrize("summary", ["", "[]", '{"planner_before": {}, "seed": 42}', '{"checkpoints": null}', None])
def test_a_folder_of_something_else_is_refused_and_keeps_all(tmp_path: Path, summary: str | None) -> None:
    """EMAC+'s loop writes a summary.json, too: its folder was emptied."""
    (tmp_path / "adapters").mkdir()
    if summary is not None:
        (tmp_path / "summary.json").write_text(summary)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(FileError, match=r"holds what is no demo's, (adapters|summary\.json): give another folder"):
        prepare_output(tmp_path)
    assert set(tmp_path.iterdir()) == {*before, tmp_path / ".lock"}
    locked(tmp_path / ".lock", tmp_path).close()  # nobody holds it


@pytest.mark.parametrize("option", ["run.output_dir=x", "server.port=7999"])
def test_what_the_demo_chooses_itself_is_refused(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["demo", "--options", option])
    with pytest.raises(ConfigError, match="a demo chooses it itself"):
        parse_arguments()


def test_a_second_demo_in_one_folder_is_refused_and_deletes_nothing(tmp_path: Path) -> None:
    """It emptied the folder while the first wrote to it, and both wrote their results there."""
    with prepare_output(tmp_path):
        (tmp_path / "summary.json").touch()
        second = warm.run(["-m", "xrl_alignment.demo", "--output", tmp_path])
    assert (second.returncode, second.stdout) == (2, "")
    assert second.stderr == f"error: process {os.getpid()} is writing to {tmp_path}: wait for its end, or stop it\n"
    assert (tmp_path / "summary.json").exists()


def test_an_output_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="--output .*file cannot be made: File exists"):
        prepare_output(tmp_path / "file")


def test_an_error_ends_the_second_process_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), second_process(threads=1) as second:
        assert second.submit(torch.get_num_threads).result() == 1
        waiting = second.submit(time.sleep, 3600)
        raise KeyboardInterrupt
    assert isinstance(waiting.exception(), BrokenProcessPool) and time.monotonic() - began < 300


def test_peak_memory_counts_children() -> None:
    program = "block = b'x' * (200 << 20); print('ready', flush=True); import time; time.sleep(60)"
    with PeakMemory() as memory:
        deadline = time.monotonic() + 60
        while not (alone := memory.bytes):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        deadline = time.monotonic() + 60
        while memory.bytes < alone + (190 << 20):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        child.kill()
        child.communicate()
    assert alone > 50 << 20
