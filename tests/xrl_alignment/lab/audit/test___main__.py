"""The audit as a program: sections that need no games, and, slowly, all of it at its quick size."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
from omegaconf import OmegaConf

from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import find_splits
from lavis.common.config import read_option
from lavis.common.errors import ConfigError
from lavis.common.files import write_json
from lavis.common.paths import REPO_ROOT
from tests.xrl_alignment.lab.audit.test_logs import write
from xrl_alignment.lab.audit import __main__ as audit
from xrl_alignment.lab.audit import experiments
from xrl_alignment.lab.audit.__main__ import laid_over, main, read_command_line
from xrl_alignment.lab.audit.experiments import QUICK, SECTIONS
from xrl_alignment.lab.results.lab import Lab


def test_a_page_is_written_from_the_sections_that_were_run(tmp_path):
    run = tmp_path / "released"
    run.mkdir()
    write(run, [[(True, "a"), (False, "b")], [(True, "a"), (True, "a")]])
    page, scores = tmp_path / "docs" / "audit.md", tmp_path / "docs" / "scores.md"
    page.parent.mkdir()
    arguments = ["--out", str(tmp_path / "out"), "--page", str(page), "--scores", str(scores)]
    assert main([*arguments, "--sections", "power", "logs", "--logs", str(run)]) == 0
    text = page.read_text()
    assert "| released | 2 | 0.500" in text and "1 of 2: 0.500" in text and "2 of 2: 1.000" in text
    assert "not run: leakage, players, protocols, dialects, levels." in text
    assert {path.name for path in page.parent.iterdir()} == {"audit.md", "audit.json", "audit_power.svg", "scores.md"}
    assert len((page.parent / "audit_power.svg").read_bytes()) < 60_000
    assert "| `emma-12` | EMMA's code" in scores.read_text() and "### The protocol is not known" in scores.read_text()
    # A later run of another section keeps what is there.
    assert main([*arguments, "--sections", "power"]) == 0
    assert (
        set(json.loads(page.with_suffix(".json").read_text())) == {"power", "logs"} and "released" in page.read_text()
    )


def test_runs_of_one_name_are_refused(tmp_path):
    runs = [tmp_path / name / "logging_results" for name in ("a", "b")]
    with pytest.raises(ConfigError, match="--logs: several folders are called logging_results"):
        main(["--out", str(tmp_path / "out"), "--sections", "logs", "--logs", *map(str, runs)])


def test_logs_that_are_asked_for_have_to_be_named(tmp_path):
    with pytest.raises(ConfigError, match="name their folders, --logs DIR"):
        main(["--out", str(tmp_path / "out"), "--sections", "power", "logs"])


@pytest.mark.parametrize("page", ["--page", "--scores"])
def test_a_page_that_cannot_be_written_is_told_before_games_are_played(tmp_path, page):
    with pytest.raises(ConfigError, match=f"{page}=.* cannot be written"):
        read_command_line(["--out", str(tmp_path / "out"), "--sections", "power", page, str(tmp_path)])


def test_without_official_games_it_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    with pytest.raises(EnvironmentFault, match="neither is here: get the official games with `alfworld-download`"):
        main(["--out", str(tmp_path / "out"), "--sections", "players"])


def test_a_page_of_what_is_done_trains_and_plays_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(experiments, "splits", lambda: ["valid_seen"])
    for name in ("collect", "train", "step"):
        monkeypatch.setattr(Lab, name, lambda lab, name, *_, **options: pytest.fail(f"{name} was made"))
    lab, sizes = Lab(tmp_path, say=lambda text: None), replace(QUICK, only_done=True)
    assert experiments.players(lab, sizes) == {"valid_seen": {}}
    assert not any(experiments.protocols(lab, sizes).values())


def test_a_folder_with_a_number_sign_gets_its_own_results(tmp_path, monkeypatch):
    lab, commands = Lab(tmp_path / "audit #2", say=lambda text: None), []
    written = {"games": 1, "solved": 1, "per_task_type": {}}
    card = dict.fromkeys(("who", "sees", "decode", "protocol", "max_steps", "trials", "split", "games_hash"))
    monkeypatch.setattr(lab, "step", lambda name, command: commands.append(command))
    write_json(lab.output / "evaluations/a.json", {**card, "first_trial": written, "best_of": written})
    found = experiments.evaluate(lab, "a", "evaluate/expert", {"expert.name": "explorer"})
    options = OmegaConf.merge(*map(read_option, commands[0][commands[0].index("--options") + 1 :]))
    assert options.run.output == str(lab.output / "evaluations/a.json")
    assert options.run.table == str(lab.output / "scores.jsonl")
    assert found["command"].endswith(
        "expert.name=explorer run.output=OUTPUT/evaluations/a.json run.table=OUTPUT/scores.jsonl"
    )


def test_a_page_of_nothing_is_a_page(tmp_path, monkeypatch):
    for module in (experiments, audit):
        monkeypatch.setattr(module, "splits", lambda: ["valid_seen"])
    assert main(["--quick", "--only-done", "--out", str(tmp_path / "out"), "--page", str(tmp_path / "audit.md")]) == 0
    assert "| player | what it was given |" not in (tmp_path / "audit.md").read_text()


def test_a_page_of_what_is_done_keeps_the_rows_of_earlier_calls(tmp_path, monkeypatch):
    for module in (experiments, audit):
        monkeypatch.setattr(module, "splits", lambda: ["valid_seen"])
    page = tmp_path / "audit.md"
    shutil.copy(REPO_ROOT / "docs/audit.json", page.with_suffix(".json"))
    before = page.with_suffix(".json").read_text()
    asked = ["--only-done", "--sections", "players", "protocols", "dialects", "leakage", "--out", str(tmp_path / "out")]
    assert main([*asked, "--page", str(page)]) == 0
    assert json.loads(page.with_suffix(".json").read_text()) == json.loads(before)
    assert page.read_text() == (REPO_ROOT / "docs/audit.md").read_text()


def test_rows_that_have_come_are_laid_over_the_others():
    before = {"valid_seen": {"a": 1, "b": 2}, "numbers": [1]}
    assert laid_over(before, {"valid_seen": {"b": 3, "c": 4}}) == {
        "valid_seen": {"a": 1, "b": 3, "c": 4},
        "numbers": [1],
    }


@pytest.mark.parametrize("wrong", [["--students", "0"], ["--students", "5", "-1"], ["--weak", "-1"], ["--jobs", "0"]])
def test_numbers_that_cannot_be_are_one_line(tmp_path, wrong):
    with pytest.raises(ConfigError, match="--students and --jobs are numbers of at least 1"):
        main(["--out", str(tmp_path / "out"), *wrong])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif("valid_seen" not in find_splits(), reason="needs the official games")
def test_the_whole_audit_at_its_quick_size(tmp_path):
    page = tmp_path / "audit.md"
    assert main(["--quick", "--out", str(tmp_path / "out"), "--page", str(page), "--jobs", "2"]) == 0
    results = json.loads(page.with_suffix(".json").read_text())
    assert set(results) == set(SECTIONS) - {"logs"}
    text = page.read_text()
    assert text.count("python evaluate.py") > 20 and "output/" not in text.replace("output/audit", "")
