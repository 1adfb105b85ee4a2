"""What is said when training has ended: the figures of the journal, and a command that evaluate.py takes."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dagger_server import advice
from lavis.common.paths import REPO_ROOT
from lavis.models.sections import changed_keys, check_section
from xrl_alignment.lab.ending import EPISODES, ending, model_options, offline_command, success
from xrl_alignment.play.collection.plan import Plan
from xrl_alignment.runs.directory import EpisodeRecord
from xrl_alignment.settings.loading import load_config, to_yaml
from xrl_alignment.settings.schema import DaggerConfig, EvaluateConfig

RECORD = EpisodeRecord(
    round=0, env=0, game="g0", won=True, assisted=False, actions=3, opening="", steps=[], shard="", seconds=1.0
)
LOST, HELPED = replace(RECORD, game="g1", won=False), replace(RECORD, game="g2", assisted=True)


def test_an_experts_wins_are_not_the_policys() -> None:
    assert success([RECORD, LOST], 2) == "the policy alone has solved 1 of 2 games, in 2 episodes"
    expert = "the expert helped in 1 episodes and 1 of them were won"
    assert success([RECORD, LOST, HELPED], 3) == f"the policy alone has solved 1 of 3 games, in 2 episodes; {expert}"
    assert success([HELPED], 1).startswith(f"no episode was the policy's alone: {expert}; only an evaluation")


def evaluated(lines: list[str]) -> EvaluateConfig:
    """The settings of the command that the lines name."""
    (line,) = [line for line in lines if line.startswith("evaluate it: ")]
    words = shlex.split(line.removeprefix("evaluate it: "))
    assert words[:3] == ["python", "evaluate.py", "--cfg-path"] and words[4] == "--options"
    return load_config(EvaluateConfig, REPO_ROOT / words[3], words[5:])


@pytest.mark.parametrize("name", ["dagger/demo_dpo.yaml", "dagger/demo_bc.yaml"])
def test_the_command_evaluates_what_was_trained_on_held_out_games(name: str, tmp_path: Path) -> None:
    trained = load_config(DaggerConfig, REPO_ROOT / "configs" / name, ["model.max_txt_len=99", "run.max_steps=31"])
    (tmp_path / "state").mkdir()
    (tmp_path / "config.yaml").write_text(to_yaml(trained))
    (tmp_path / "emma_checkpoint_0.pth").touch()
    (tmp_path / "state" / "episodes.jsonl").write_text(json.dumps(asdict(RECORD)) + "\n")
    lines = ending(tmp_path)
    assert lines[0] == f"the policy alone has solved 1 of {trained.run.num_envs} games, in 1 episodes"
    config = evaluated(lines)
    shown = {**vars(trained.environment), "split": "household_heldout"}
    assert all(shown[key] == value for key, value in vars(config.environment).items())
    assert config.model["pretrained"] == str(tmp_path / "emma_checkpoint_0.pth")
    assert (config.model["model_type"], config.model["max_txt_len"], config.run.max_steps) == ("demo", 99, 31)
    assert (config.policy.max_length, config.run.num_envs) == (trained.policy.max_length, 0)
    check_section(config.model)


def test_a_language_models_cost_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "config.yaml").write_text(to_yaml(load_config(DaggerConfig, None)))
    (tmp_path / "state" / "expert_calls.jsonl").write_text(
        '{"round": 0, "calls": 3, "prompt": 10, "cached": 0, "completion": 5}\n'
    )
    assert "language model as expert: 3 calls, cost unknown, because no prices are set" in ending(tmp_path)
    assert "no checkpoint was written: run.save_ckpt=false" in ending(tmp_path)


def test_a_model_that_learns_from_anothers_games_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "emma_checkpoint_0.pth").touch()
    config = load_config(DaggerConfig, None, ["policy.name=examples.custom_policy:WordMatchPolicy"])
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    (line,) = (line for line in ending(tmp_path) if line.startswith("policy.name="))
    assert line.endswith("WordMatchPolicy plays; the model that is trained learns from its games, and plays none")
    assert line in "\n".join(advice(config, SimpleNamespace(done=False), SimpleNamespace(client_command="")))


@pytest.mark.parametrize("folder", ["run #1", "a: b", "é [x"])
def test_the_command_names_the_checkpoint_whatever_its_folder_is_called(folder: str) -> None:
    path = Path("/data") / folder / "a.pth"
    words = shlex.split(offline_command({"model": {"arch": "blip2_emac"}, "datasets": {}}, path), comments=True)
    options = words[words.index("--options") + 1 :]
    assert load_config(EvaluateConfig, EPISODES, options).model["pretrained"] == str(path)


def test_the_keys_of_a_type_are_not_repeated(tmp_path: Path) -> None:
    section = {"arch": "blip2_emac", "model_type": "tiny", "max_txt_len": 77, "pretrained": "old.pth"}
    new = tmp_path / "new.pth"
    options = model_options(changed_keys(section), new)
    assert options == {"model.model_type": "tiny", "model.max_txt_len": 77, "model.pretrained": str(new)}


def test_offline_training_ends_with_an_evaluation_of_what_the_data_showed(tmp_path: Path) -> None:
    """With the file's own settings a student that was told what it sees would play by images that it never needed."""
    told, other = tmp_path / "told", tmp_path / "other"
    for folder in (told, other):
        folder.mkdir()
    plan = Plan(env="household", split="household_train", thoughts=True, show_ids=False)
    (told / "collection.json").write_text(json.dumps(asdict(plan)))
    base = load_config(EvaluateConfig, REPO_ROOT / EPISODES)

    def evaluated(storage: object) -> EvaluateConfig:
        datasets = {"alfworld_cap": {"build_info": {"annotations": {"train": {"storage": storage}}}}}
        config = {"model": {"arch": "blip2_emac", "model_type": "tiny"}, "datasets": datasets}
        words = shlex.split(offline_command(config, tmp_path / "a.pth"), comments=True)
        return load_config(EvaluateConfig, REPO_ROOT / EPISODES, words[words.index("--options") + 1 :])

    for storage in (str(told), [str(other), str(told / "annotations.json")]):
        config = evaluated(storage)
        assert config.environment == replace(
            base.environment, name="household", split="household_heldout", tell_objects=True, show_ids=False
        )
        assert config.run.enable_tc and config.run.num_envs == 0
    assert evaluated(str(other)).environment == base.environment
    # A second folder that showed the model something else: the games cannot be as both of them were.
    (other / "collection.json").write_text(json.dumps(asdict(replace(plan, tell_objects=False, thoughts=False))))
    datasets = {"alfworld_cap": {"build_info": {"annotations": {"train": {"storage": [str(told), str(other)]}}}}}
    remark = offline_command({"model": {"arch": "blip2_emac"}, "datasets": datasets}, tmp_path / "a.pth").partition(
        "#"
    )[2]
    assert remark == " the games are as the first data showed them; other data differ in tell_objects, thoughts"
    (other / "collection.json").unlink()
    # Games of a mixture of levels are the same ones, to their own horizon; a section may have data of its own kind.
    mixed = replace(plan, levels="house=1", max_steps=150, seed=7, num_games=20, show_ids=True, thoughts=False)
    (told / "collection.json").write_text(json.dumps(asdict(mixed)))
    config = evaluated(str(told))
    assert (config.environment.levels, config.environment.seed, config.run.max_steps) == ({"house": 1.0}, 7, 150)
    assert config.environment.num_heldout == 20
    datasets = {"alfworld_cap": {"blank_images": True, "build_info": None}}
    command = offline_command({"model": {"arch": "blip2_emac"}, "datasets": datasets}, tmp_path / "a.pth")
    assert "environment.blank_frames=true   # set what the data showed" in command
    for section in (None, {"build_info": {"annotations": {"train": None}}}):
        command = offline_command({"model": {"arch": "blip2_emac"}, "datasets": {"a": section}}, tmp_path / "a.pth")
        assert "environment." not in command
