"""What the root programs build from their settings."""

import random

import numpy as np
import pytest
import torch

from alfworld_native.errors import EnvironmentFault
from lavis.common.devices import set_seed, set_threads
from lavis.models.blip2_models.blip2_emac import Blip2Emac
from lavis.models.blip2_models.emac_config import PARTS
from xrl_alignment.builders.environments import environment_factory, games_of
from xrl_alignment.builders.student import load_student, make_policy, model_section, prompt_writer
from xrl_alignment.runs.checkpoint import CheckpointError, save_checkpoint
from xrl_alignment.settings.policy import PolicyConfig
from xrl_alignment.settings.schema import EnvironmentConfig

CPU = torch.device("cpu")


def test_a_seed_makes_chance_repeat():
    drawn = []
    for _ in range(2):
        set_seed(7)
        drawn.append((random.random(), np.random.rand(), torch.rand(1).item()))
    assert drawn[0] == drawn[1]


def test_threads_are_set_only_when_asked():
    before = torch.get_num_threads()
    set_threads(0)
    assert torch.get_num_threads() == before
    set_threads(1)
    assert torch.get_num_threads() == 1


def test_the_student_takes_settings_over_its_types_own():
    model, vis_processor = load_student(
        {"model_type": "tiny", "freeze_llm": True, "allow_random": ["llm_model"], "max_txt_len": 99}, CPU
    )
    assert model.max_txt_len == 99 and not model.training
    assert not any(p.requires_grad for p in model.llm_model.parameters())
    assert vis_processor(np.zeros((224, 224, 3), np.uint8)).shape == (3, 112, 112)


@pytest.mark.parametrize("unset", [None, ""])
def test_an_architecture_that_is_not_set_is_blip2_emac(unset):
    model, _ = load_student({"arch": unset, "model_type": "", "allow_random": list(PARTS)}, CPU)
    assert isinstance(model, Blip2Emac)
    assert model_section({"arch": unset}) == model_section({})


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"model_type": "huge"},
            "unknown model type 'huge'.*student, student_looks, student_official, tiny, vicuna13b, vicuna7b",
        ),
        ({"arch": "blip3"}, "blip3"),
        ({"freeze_vitt": True}, "unknown key 'model.freeze_vitt': did you mean 'model.freeze_vit'"),
    ],
)
def test_unknown_models_types_and_keys_are_named(settings, reason):
    with pytest.raises(ValueError, match=reason):
        load_student(settings, CPU)


def test_a_checkpoint_of_another_frozen_base_is_refused(tmp_path):
    frozen = {"freeze_vit": True, "freeze_llm": True, "freeze_qformer": True, "allow_random": list(PARTS)}
    model, _ = load_student(frozen, CPU)
    path = save_checkpoint(tmp_path / "emma_checkpoint_0.pth", model=model)
    load_student({**frozen, "pretrained": str(path), "ref_pretrained": str(path)}, CPU)
    for key in ("pretrained", "ref_pretrained"):
        with pytest.raises(CheckpointError, match="was trained on the frozen base"):
            load_student({**frozen, "init_seed": 1, key: str(path)}, CPU)
    with pytest.raises(CheckpointError, match="was trained on the frozen base"):  # it is loaded all the same
        load_student({**frozen, "init_seed": 1, "ref_pretrained": str(path), "load_pretrained": False}, CPU)
    content = torch.load(path, weights_only=True)
    del content["format"]  # as an offline run's
    torch.save(content, path)
    with pytest.raises(CheckpointError, match="was trained on the frozen base"):
        load_student({**frozen, "init_seed": 1, "pretrained": str(path)}, CPU)


def test_a_truncated_or_missing_checkpoint_is_named(tmp_path):
    model, _ = load_student({}, CPU)
    path = save_checkpoint(tmp_path / "emma_checkpoint_0.pth", model=model)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match=f"{path} is not a readable weight file"):
        load_student({"pretrained": str(path)}, CPU)
    with pytest.raises(FileNotFoundError, match="nothing.pth"):
        load_student({"pretrained": str(tmp_path / "nothing.pth")}, CPU)


def test_policy_settings_reach_the_policy():
    settings = PolicyConfig(decode="admissible", num_beams=2, max_length=9, min_length=3)
    policy = make_policy(settings, *load_student({}, CPU), max_batch=4)
    assert (policy.decode, policy.num_beams, policy.max_length, policy.min_length) == ("admissible", 2, 9, 3)
    assert policy.max_batch == 4


def test_games_and_environments_of_a_section(household_data):
    settings = EnvironmentConfig(split="household_train", data=str(household_data))
    games = games_of(settings, 2)
    environment = environment_factory(settings, max_steps=3)()
    assert len(games) == 2 and "Your task is to" in environment.reset(games[0]).text
    assert [environment.step("look").done for _ in range(3)] == [False, False, True]
    with pytest.raises(EnvironmentFault, match="no games of split 'nowhere' in .*household_heldout"):
        games_of(EnvironmentConfig(split="nowhere", data=str(household_data)), 1)


def test_a_prompt_within_the_limits_is_not_cut_by_the_model():
    model, _ = load_student({"max_txt_len": 120}, CPU)
    task = "You are in the middle of a room. You see a desk 1.\nYour task is to: put a mug in desk."
    steps = [("go to desk 1", "On the desk 1, you see a mug 1.")] * 30
    prompt = prompt_writer(model)(task, [], steps)
    assert "...\n" in prompt and len(model.llm_tokenizer.encode(prompt)) + 1 <= 120  # BOS
