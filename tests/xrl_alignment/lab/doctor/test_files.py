"""The lines about weights and games, against real files."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from lavis.common.paths import REPO_ROOT
from xrl_alignment.lab.doctor import files
from xrl_alignment.lab.doctor.__main__ import main


def test_weights(tmp_path):
    assert files.check_weights(str(tmp_path / "nowhere")).level == "fail"
    assert "no config.json" in files.check_weights(str(tmp_path)).detail
    (tmp_path / "config.json").write_text("{}")
    assert "holds no weights" in files.check_weights(str(tmp_path)).detail
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    assert files.check_weights(str(tmp_path)).level == "ok"
    empty = tmp_path / "emma.pth"
    empty.touch()
    assert "is empty" in files.check_weights(str(empty)).detail
    torch.save({"model": {"a": torch.ones(1)}}, empty)
    assert files.check_weights(str(empty)).level == "ok"
    (tmp_path / "README.md").write_text("# EMAC+\n" * 30)
    finding = files.check_weights(str(tmp_path / "README.md"))
    assert finding.level == "fail" and "README.md is not a readable weight file: it is a text" in finding.detail


def test_a_folder_whose_weights_cannot_be_read_whole(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    shard = tmp_path / "model-00001-of-00002.safetensors"
    shard.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9976576152\n")
    finding = files.check_weights(str(tmp_path))
    assert finding.level == "fail" and "it is Git LFS's note of the file" in finding.detail
    save_file({"a": torch.ones(1)}, shard)
    shards = {"a": shard.name, "b": "model-00002-of-00002.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    finding = files.check_weights(str(tmp_path))
    assert finding.level == "fail" and "lacks model-00002-of-00002.safetensors, one of 2 shards" in finding.detail


def test_a_folder_of_code_in_the_package_is_no_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "does not exist" in files.check_weights("hf_vlm").detail
    assert main(["--model", "hf_vlm"]) == 1
    assert "hf_vlm is an architecture, not a model" in capsys.readouterr().out


def test_weights_by_hub_id_not_in_the_cache_are_a_warning(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert files.check_weights("nobody/no-such-model-1b").level == "warn"
    assert files.check_weights("output/emma.pth").level == "fail"  # a file that is not there, no hub id


def test_config_weights_are_checked_and_a_wrong_config_is_one_line(tmp_path):
    good = tmp_path / "good.yaml"
    good.write_text("model:\n  arch: blip2_emac\n  model_type: tiny\n  pretrained: /no/such/file.pth\n")
    (finding,) = files.check_config_weights(str(good))
    assert finding.level == "fail" and finding.what == "model.pretrained"
    (finding,) = files.check_config_weights(str(good), ["model.pretrained=/other.pth"])
    assert "/other.pth" in finding.detail
    (finding,) = files.check_config_weights(str(good), ["model.pretrained=tiny/student.safetensors"])
    assert finding.level == "ok"
    hub = ["model.arch=hf_vlm", "model.model_type=", "model.path=/none", "model.pretrained="]
    (finding,) = files.check_config_weights(str(good), hub)
    assert (finding.level, finding.what) == ("fail", "model.path")
    bad = tmp_path / "bad.yaml"
    bad.write_text("run:\n  num_rouns: 3\n")
    (finding,) = files.check_config_weights(str(bad))
    assert finding.level == "fail" and "num_rouns" in finding.detail


CONFIGS = [
    "configs/dagger/demo_bc",
    "configs/evaluate/student",
    "configs/emac_plus/demo",
    "configs/results/student",
    "lavis/projects/instructblip/finetuning/alfworld_ft",
    "lavis/projects/instructblip/finetuning/alfworld_eval",
]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_kind_of_config_is_read(name):
    findings = list(files.check_config_weights(str(REPO_ROOT / f"{name}.yaml")))
    assert not [finding for finding in findings if finding.level != "ok"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("run: {num_rounds: 1, num_rouns: 3}", "unknown key 'run.num_rouns': did you mean 'run.num_rounds'?"),
        ("run: {actr: expert, output: out.json}", "unknown key 'run.actr': did you mean 'run.actor'?"),
        ("planner: {name: explorer}\nrun: {num_rouns: 3}", "unknown key 'run.num_rouns': did you mean"),
        (
            "run: {task: captioning, sed: 1}\nmodel: {}\ndatasets: {}",
            "unknown key 'run.sed': did you mean 'run.seed'?",
        ),
        ("datasets: {}\nrun: {tsk: captioning}\nmodel: {arch: blip2_emac}", "did you mean 'run.task'?"),
    ],
)
def test_a_mistake_is_told_as_the_files_own_program_tells_it(content, says, tmp_path):
    """Before, a file for evaluate.py got an error of dagger_server.py, and files of train.py were all refused."""
    path = tmp_path / "settings.yaml"
    path.write_text(content)
    (finding,) = files.check_config_weights(str(path))
    assert (finding.level, finding.what) == ("fail", "config") and says in finding.detail


def test_weights_of_a_file_of_train_py_are_looked_for(tmp_path):
    path = tmp_path / "train.yaml"
    path.write_text("run: {task: captioning}\nmodel: {arch: blip2_emac, model_type: tiny}\ndatasets: {}\n")
    (finding,) = files.check_config_weights(str(path), ["model.vit_weights=/no/such/file.pth"])
    assert (finding.level, finding.what) == ("fail", "model.vit_weights")


def test_games_missing_and_found(tmp_path, household_data, monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files.check_games().level == "warn"
    asked = files.check_games(str(tmp_path))
    assert asked.level == "fail" and "alfworld-download" in asked.advice
    found = files.check_games(str(household_data))
    assert found.level == "ok" and "household_heldout 6" in found.detail


def test_empty_split_is_passed_over(tmp_path, household_data):
    (tmp_path / "json_2.1.1").mkdir()
    for split in household_data.glob("json_2.1.1/*"):
        (tmp_path / "json_2.1.1" / split.name).symlink_to(split)
    (tmp_path / "json_2.1.1" / "valid_unseen").mkdir()
    finding = files.check_games(str(tmp_path))
    assert finding.level == "ok" and "valid_unseen" not in finding.detail
