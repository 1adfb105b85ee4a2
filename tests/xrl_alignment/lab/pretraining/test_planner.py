"""The tiny planner's pretraining: what the hasty player gets wrong, and that the file holds what was learned."""

import random
import sys

import pytest
import torch
from safetensors.torch import load_file

from alfworld_native.games import find_games
from lavis.common.errors import ConfigError, FileError
from lavis.models.blip2_models.emac_config import package_path
from lavis.models.blip2_models.text import load_llm_tokenizer
from lavis.models.played import played_by_base
from tests.tiny_checkpoints import write_llama
from xrl_alignment.lab.pretraining import planner
from xrl_alignment.planning.building import TINY, language_model
from xrl_alignment.planning.plans import read_plan, write_plan

PLAN = read_plan("go to bed 2, go to desk 1, take mug, clean mug, put mug in/on shelf 1").actions
ROOM = ("bed 1", "bed 2", "desk 1")


@pytest.fixture(scope="module")
def games(household_data):
    return find_games("household_train", data=household_data)


def test_hasty_plans_search_elsewhere_and_forget_treatments_and_keep_the_rest(monkeypatch) -> None:
    monkeypatch.setattr(planner, "HABIT", 1.0)
    monkeypatch.setattr(planner, "FORGETS", 1.0)
    spoilt = planner.spoil(PLAN, ROOM, {"go to countertop 1"}, random.Random(0))
    assert write_plan(spoilt) == "go to drawer 1, go to shelf 1, take mug, put mug in/on shelf 1"
    monkeypatch.setattr(planner, "HABIT", 0.0)
    monkeypatch.setattr(planner, "FORGETS", 0.0)
    spoilt = planner.spoil(PLAN, ROOM, set(), random.Random(0))
    assert {one.place for one in spoilt[:2]} <= set(ROOM) and spoilt[2:] == list(PLAN[2:])


def test_examples_are_the_hasty_plans_themselves_and_the_same_for_the_same_seed(games) -> None:
    examples = planner.hasty_examples(games[:3], seed=1)
    assert examples == planner.hasty_examples(games[:3], seed=1) and len(examples) >= 3
    questions = [one.question for one in examples]
    assert [answer.text for answer in planner.HastyPlanner(1).plan_all(questions)] == [one.chosen for one in examples]
    assert not any(one.rejected for one in examples)


def test_the_command_writes_a_folder_of_another_language_model(household_data, tmp_path, monkeypatch, capsys) -> None:
    base, out = write_llama(tmp_path / "base"), tmp_path / "planner"
    options = {"--games": household_data, "--out": out, "--number": 1, "--epochs": 1, "--model": base, "--rank": 2}
    monkeypatch.setattr(sys, "argv", ["make_planner", *(str(part) for pair in options.items() for part in pair)])
    planner.main()
    assert len({file.stat().st_mode for file in out.iterdir()}) == 1  # whoever reads one can read all
    old, new = language_model(str(base)).state_dict(), language_model(str(out)).state_dict()
    assert set(old) == set(new) and any(not torch.equal(old[name], new[name]) for name in old)
    assert load_llm_tokenizer(str(out)).encode("take mug 1") == load_llm_tokenizer(str(base)).encode("take mug 1")
    assert played_by_base(out).splits == ("household_train",)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "planner"]
    capsys.readouterr()
    with pytest.raises(FileError, match="exists already"):
        planner.main()


@pytest.mark.parametrize("given", ["--rank 0", "--number 0", "--number -3", "--batch-size 0", "--epochs 0"])
def test_a_number_below_one_is_told_before_the_games(given, capsys) -> None:
    """Before, a setting of `planner` that nobody had given was named after the games, or -3 left out three games."""
    flag, value = given.split()
    with pytest.raises(SystemExit):
        planner.parse_arguments(["--games", "A", "--out", "b", flag, value])
    assert f"{flag}: {value} is not a number of at least 1" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_told_before_the_games(tmp_path, monkeypatch) -> None:
    """Before, after the training, which may take an hour."""
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "planner.safetensors"
    monkeypatch.setattr(sys, "argv", ["make_planner", "--games", str(tmp_path / "nowhere"), "--out", str(out)])
    with pytest.raises(ConfigError, match=f"--out={out} cannot be written: give a file's path in a folder of yours"):
        planner.main()


@pytest.mark.parametrize("base", TINY)
def test_the_command_writes_weights_that_the_loader_of_planners_takes(
    base, household_data, tmp_path, monkeypatch, capsys
) -> None:
    out = tmp_path / "planner.safetensors"
    options = {"--games": household_data, "--out": out, "--number": 1, "--epochs": 1, "--model": base}
    monkeypatch.setattr(sys, "argv", ["make_planner", *(str(part) for pair in options.items() for part in pair)])
    planner.main()
    old, new = load_file(package_path(TINY[base])), load_file(out)
    assert set(old) == set(new) and new["model.embed_tokens.weight"].dtype == torch.bfloat16
    assert any(not torch.equal(old[name], new[name]) for name in old)
    monkeypatch.setitem(TINY, "mine", str(out))
    model = language_model("mine")
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(model.state_dict()[name], new[name].float()) and "loss" in capsys.readouterr().out
