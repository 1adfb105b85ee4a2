"""The experiments as users run them, at a small size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest

from lavis.common.errors import ConfigError
from lavis.common.files import locked
from lavis.common.paths import REPO_ROOT
from lavis.datasets.shards import open_shard
from tests import warm
from xrl_alignment.lab.results.__main__ import read_command_line, with_earlier
from xrl_alignment.lab.results.page import render
from xrl_alignment.lab.results.settings import ResultsConfig, ResultsFile
from xrl_alignment.settings.loading import load_config


def run(output: Path, *options: str, patience_s: float = 280) -> subprocess.CompletedProcess:
    command = ["-m", "xrl_alignment.results", "--cfg-path", "configs/results/quick.yaml"]
    command += ["--page", output / "results.md", "--options", f"results.output={output}", *options]
    return warm.run(command, patience_s)


def labels(output: Path, setting: str) -> list[str]:
    """What the expert would have done in the games that the student of seed 0 played in this setting."""
    shards = map(open_shard, output.glob(f"rounds/labelled/seed0-{setting}/*/state/buffer/*.h5"))
    return [shard.read(step, ["text_output"])["text_output"] for shard in shards for step in range(shard.steps)]


def test_a_second_call_for_the_same_folder_is_refused(tmp_path: Path) -> None:
    """Both ran the same steps at once, and the figures of one were lost."""
    with closing(locked(tmp_path / ".lock", tmp_path)):
        second = run(tmp_path)
    assert (second.returncode, second.stdout) == (2, "")
    assert second.stderr == f"error: process {os.getpid()} is writing to {tmp_path}: wait for its end, or stop it\n"
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_page_that_cannot_be_written_is_told_before_the_experiments(tmp_path: Path, monkeypatch) -> None:
    given = ["--cfg-path", str(REPO_ROOT / "configs" / "results" / "quick.yaml"), "--page", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["results", *given])
    with pytest.raises(ConfigError, match="--page=.* cannot be written"):
        read_command_line()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_experiment_runs_and_a_second_call_repeats_nothing(alfworld_data: Path, tmp_path: Path) -> None:
    first = run(tmp_path, patience_s=3600)
    assert first.returncode == 0, first.stderr
    made = json.loads((tmp_path / "results.json").read_text())
    results = {name: experiment["figures"] for name, experiment in made.items()}
    assert results["shipped"]["as it ships"]["numbers"]["games"] == results["student"]["as it ships"]["a"]["games"] == 6
    notes = {setting: sum(label.startswith("think:") for label in labels(tmp_path, setting)) for setting in "ab"}
    assert notes["a"] == 0 < notes["b"]  # labels are notes only where the student was cloned to write them
    assert results["phase_two"]["8"]["dpo, β 1"]["over_bc"]["interval"]
    assert results["pooled"]["8"]["dpo, β 1"]["over_bc"]["interval"]
    assert set(results["looking"]) == {"black", "frames", "the same, black", "around"}
    assert set(results["reflexion"]) == {"with its memory", "without a memory", "with another game's memory"}
    assert results["images"]["generated"]["likely"]["none"]["solved"] == 6
    assert set(results["ablations"]) == {"expert", "history", "notes", "driver", "games", "batches"}
    assert set(results["ablations"]["expert"]) == {"explorer", "handcoded", "planner"}
    assert results["ablations"]["games"]["8"]["success"] == results["ablations"]["expert"]["explorer"]["success"]
    page = (tmp_path / "results.md").read_text()
    assert results["ablations"]["batches"]["4"]["minutes"] > 0 and (tmp_path / "results.svg").stat().st_size > 10_000
    assert "| (b) only the rendered state with labels shows what lies where |" in page
    assert "### 8 training games" in page
    second = run(tmp_path)
    assert second.returncode == 0 and " s\n" not in second.stdout  # no step ran
    assert (tmp_path / "results.md").read_text() == page


def test_sizes_of_the_full_and_of_the_quick_run() -> None:
    full, quick = (load_config(ResultsFile, REPO_ROOT / f"configs/results/{name}.yaml") for name in ("full", "quick"))
    assert full.results == ResultsConfig()
    assert quick.results.experiments == full.results.experiments


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("results.experiments=[studnet]", "results.experiments: .*student"),
        ("results.seeds=[]", "results.seeds: "),
        (
            "results.looking_batches=25",
            "results.looking_batches: 25 is not a number of at least 1 that is a multiple of its eighth",
        ),
        ("results.batch_curve=[24,25]", "results.batch_curve: .* each a multiple of its eighth"),
        ("results.noise=2", "results.noise: 2.0 is not a number from 0 to 1"),
        ("results.levels={compond: 1}", "results.levels: unknown level 'compond': did you mean 'compound'"),
        ("results.batchs=3", "unknown key 'results.batchs': did you mean 'results.batches'"),
    ],
)
def test_sizes_that_cannot_be_used(option: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_config(ResultsFile, None, [option])


def test_the_page_leaves_out_what_was_not_run() -> None:
    more = {"difference": 0.375, "interval": [0.1, 0.6]}
    row = {"failed": 8, "solved": 4, "share": 0.5, "interval": [0.2, 0.8], "over_without": more}
    row |= {"games": 500, "games_hash": "abc", "split": "household_heldout"}
    sizes = {"second_trial_games": 500}
    made = {"sizes": sizes, "machine": "2 cores", "seconds": {"evaluations/reflexion": 90}}
    page = render({"reflexion": {"figures": {"with its memory": row}, **made}})
    assert "| with its memory | 8 | 4 | 0.500 | 0.200 to 0.800 | **+0.375 (+0.100 to +0.600)** |" in page
    assert "| what Reflexion adds | `reflexion` | household_heldout 500, `abc` | one | 2 |" in page
    assert "## What phase 2 adds" not in page and "not run to its end: the student of the official games; " in page


def test_an_experiment_that_is_run_alone_keeps_the_others_figures(alfworld_data: Path, tmp_path: Path) -> None:
    before = {
        "reflexion": {"figures": {"with its memory": {"share": 0.5}}, "machine": "another"},
        "images": {"figures": {"elsewhere": {}}, "machine": "another"},
    }
    (tmp_path / "results.json").write_text(json.dumps(before))
    command = ["-m", "xrl_alignment.results", "--cfg-path", "configs/results/quick.yaml", "--options"]
    done = warm.run([*command, f"results.output={tmp_path}", "results.experiments=[images]"])
    assert done.returncode == 0, done.stderr
    after = json.loads((tmp_path / "results.json").read_text())
    assert after["reflexion"] == before["reflexion"]
    assert set(after["images"]["figures"]) == {"elsewhere", "valid_seen", "generated"}
    assert after["images"]["sizes"]["valid_games"] == 6 and after["images"]["machine"] != "another"
    assert after["images"]["kept"] == {"elsewhere": {"machine": "another"}}  # no figure gets the name of this machine


def test_figures_of_other_sizes_are_not_mixed(tmp_path: Path) -> None:
    quick = load_config(ResultsFile, REPO_ROOT / "configs/results/quick.yaml").results
    sizes = {key: value for key, value in asdict(quick).items() if key != "levels"}  # from before there were any
    for changed, option, refusal in (
        ({"valid_games": 140}, (), "results.valid_games=140, not 6: name another results.output"),
        ({}, ("results.levels={many: 1}",), "results.levels={}, not {'many': 1}: name another results.output"),
    ):
        (tmp_path / "results.json").write_text(json.dumps({"images": {"figures": {}, "sizes": sizes | changed}}))
        done = run(tmp_path, "results.experiments=[images]", *option)
        assert done.returncode == 2 and refusal in done.stderr


def test_kept_figures_keep_how_they_were_made() -> None:
    old, new = ({"machine": name, "versions": {"torch": name}} for name in ("old", "new"))
    first = {"figures": {"178": 1, "711": 2}, **old, "seconds": {"a": 1.0}, "taken_from": "a page"}
    both = with_earlier(first, {"711": 3}, new, {"b": 2.0})
    assert both == {
        "figures": {"178": 1, "711": 3}, **new, "seconds": {"a": 1.0, "b": 2.0}, "kept": {"178": old},
        "taken_from": "a page",
    }  # fmt: skip
    assert with_earlier(both, {"36": 4}, new, {})["kept"] == {"178": old}
    assert not {"kept", "taken_from"} & set(with_earlier(both, {"178": 5, "711": 6}, new, {}))
