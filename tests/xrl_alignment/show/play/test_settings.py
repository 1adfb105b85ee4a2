"""Games, experts and policies from the command line's words; a checkpoint brings its own settings."""

from __future__ import annotations

import re

import pytest
import torch

from alfworld_native.language.commands import normalise
from alfworld_native.other_frames import OtherGamesFrames
from lavis.common.errors import ConfigError
from lavis.models.student import Question
from xrl_alignment.builders.student import load_student, prompt_writer
from xrl_alignment.play.evaluation.actors import PolicyActor
from xrl_alignment.runs.checkpoint import save_checkpoint
from xrl_alignment.settings.loading import load_config, shareable
from xrl_alignment.settings.schema import DaggerConfig
from xrl_alignment.show.play.settings import choose_game, read_settings, set_up


@pytest.fixture
def games(household_data):
    return {"environment": "native", "split": "household_heldout", "data": str(household_data)}


def test_a_game_is_chosen_by_number_name_or_chance(games):
    setup = set_up(**games)
    ids = [game.id for game in setup.games]
    assert choose_game(setup.games, "2", None) == 2
    assert ids[choose_game(setup.games, ids[3][:-4], None) - 1].startswith(ids[3][:-4])
    assert choose_game(setup.games, "", 7) == choose_game(setup.games, "", 7)
    assert len({choose_game(setup.games, "", seed) for seed in range(30)}) > 3
    for wanted, message in (
        ("0", "number from 1 to 6"),
        ("7", "number from 1 to 6"),
        ("-1", "from 1"),
        ("Unicorn", "no game of the 6"),
    ):
        with pytest.raises(ConfigError, match=message):
            choose_game(setup.games, wanted, None)
    word = next(part for part in ids[3].split("-") if part.isalpha() and part[0].isupper() and len(part) > 3)
    assert word in ids[choose_game(setup.games, word.lower(), None) - 1]
    with pytest.raises(ConfigError, match=rf"--game {word}y: no game .*; did you mean '{word}'"):
        choose_game(setup.games, f"{word}y", None)
    assert setup.new_game(2).game.id == ids[1]
    setup.close()


def test_options_of_frames_and_steps_count(games):
    setup = set_up(**games, options=["environment.other_frames=true", "run.max_steps=200"])
    assert isinstance(setup.environment, OtherGamesFrames) and setup.environment.max_steps == 200
    setup.close()
    setup = set_up(**games, options=["run.max_steps=0"])
    assert setup.environment.max_steps == 50
    setup.close()


@pytest.mark.parametrize(
    ("option", "fix"),
    [("environment.split=valid_seen", "use --split"), ("environment.num_heldout=3", "use --env, --split, --data")],
)
def test_options_that_choose_games_are_refused(games, option, fix):
    with pytest.raises(ConfigError, match=rf"--options {re.escape(option)} has no effect here; {fix}"):
        set_up(**games, options=[option])


def test_a_misspelt_option_is_told_what_may_be_meant(games):
    with pytest.raises(ConfigError, match="did you mean 'environment.show_ids'"):
        set_up(**games, options=["environment.show_id=false"])


def test_an_expert_may_be_absent_but_not_unknown(games):
    assert set_up(**games, expert="none").new_game(1).players == ("you",)
    with pytest.raises(ConfigError, match="unknown expert 'explorr': did you mean 'explorer'"):
        set_up(**games, expert="explorr")


class Watching:
    """A policy of somebody's own that declares no more than the text."""

    def act(self, batch):
        assert all(not one.image.any() and not one.admissible_commands for one in batch)
        return [f"examine {len(one.prompt) > 100}" for one in batch]

    def close(self):
        return


def test_a_policy_of_ones_own_plays_and_is_given_what_it_declares(games):
    setup = set_up(**games, options=[f"policy.name={__name__}:Watching"])
    game = setup.new_game(1)
    assert game.players == ("you", "expert", "policy") and game.moment.policy == "examine True"
    setup.close()


def test_a_checkpoint_plays_with_the_settings_of_its_run(games, tmp_path, monkeypatch):
    options = ["model.model_type=tiny", "model.max_txt_len=200", "policy.num_beams=1", "policy.max_length=9"]
    shown = ["environment.tell_objects=false", "environment.show_ids=false", "environment.blank_frames=true"]
    config = load_config(DaggerConfig, None, [*options, *shown])
    model, _ = load_student({"arch": "blip2_emac", "model_type": "tiny"}, torch.device("cpu"))
    (tmp_path / "run #2").mkdir()  # a name that an option cuts if it is not quoted
    path = save_checkpoint(tmp_path / "run #2" / "emma_checkpoint_0.pth", model=model, config=shareable(config))
    read = read_settings(path, None, ["policy.max_length=8"])
    assert (read.model["model_type"], read.model["max_txt_len"], read.model["pretrained"]) == ("tiny", 200, str(path))
    assert (read.policy.num_beams, read.policy.max_length) == (1, 8) and not read.environment.tell_objects
    answer, asked = PolicyActor.answer, []
    monkeypatch.setattr(PolicyActor, "answer", lambda actor, said: asked.extend(said) or answer(actor, said))
    setup = set_up(**games, checkpoint=path)
    game = setup.new_game(1)
    assert game.players == ("you", "expert", "policy") and game.moment.policy
    assert game.moment.frame.any() and not game.moment.names and not any(one.image.any() for one in asked)
    assert game.play("policy").action == game.moves[0].moment.policy
    setup.close()


def test_a_checkpoint_of_a_hub_model_plays_with_the_folder_that_is_named(games, students, tmp_path, monkeypatch):
    """The folder's name is not taken from the file: a stranger could name any."""
    hub = students("hub")
    model, _ = load_student(hub, torch.device("cpu"))
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn(weight.shape) if weight.requires_grad else 0
    options = [f"model.{key}={value}" for key, value in hub.items()]
    config = load_config(DaggerConfig, None, [*options, "policy.num_beams=1", "policy.max_length=9"])
    path = save_checkpoint(tmp_path / "emma_checkpoint_0.pth", model=model, config=shareable(config))
    with pytest.raises(ConfigError, match="model.path is empty: name the model's folder"):
        set_up(**games, checkpoint=path)
    answer, asked = PolicyActor.answer, []
    monkeypatch.setattr(PolicyActor, "answer", lambda actor, said: asked.extend(said) or answer(actor, said))
    setup = set_up(**games, checkpoint=path, options=[f"model.path={hub['path']}"])
    game = setup.new_game(1)
    suggested = game.moment.policy
    assert game.play("policy").action == suggested
    assert [len(one.earlier) for one in asked] == [0, 1]
    question = Question(prompt_writer(model)(*asked[0][:3]), (asked[0].image,))
    decoding = {"num_beams": 1, "max_length": 9, "repetition_penalty": 1.0}
    assert model.act([question], normalise=normalise, **decoding) == [suggested]
    setup.close()


def hostile_checkpoint(folder, **sections):
    """A checkpoint of the tiny model whose stored configuration a stranger has changed."""
    model, _ = load_student({"arch": "blip2_emac", "model_type": "tiny"}, torch.device("cpu"))
    config = shareable(load_config(DaggerConfig, None, ["policy.num_beams=1", "policy.max_length=9"]))
    for section, changed in sections.items():
        config[section] |= changed
    return save_checkpoint(folder / "stranger.pth", model=model, config=config)


@pytest.mark.parametrize(
    "policy",
    [
        {"name": "evilmod:Evil"},
        {"name": "http", "base_urls": ["http://127.0.0.1:9/${oc.env:OPENAI_API_KEY}"]},
        {"name": "vllm", "vllm_python": "{folder}/run-me", "vllm_args": ["--trust-remote-code"]},
    ],
)
def test_a_checkpoint_of_a_stranger_runs_nothing_and_asks_nobody(games, tmp_path, monkeypatch, capsys, policy):
    (tmp_path / "evilmod.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w')")
    (tmp_path / "run-me").write_text(f"#!/bin/sh\ntouch {tmp_path / 'was_run'}\n")
    (tmp_path / "run-me").chmod(0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-private")
    asked = []
    monkeypatch.setattr("socket.socket.connect", lambda socket, address: asked.append(address))
    policy = {key: value.format(folder=tmp_path) if key == "vllm_python" else value for key, value in policy.items()}
    path = hostile_checkpoint(tmp_path, policy=policy)
    read = read_settings(path, None, [])
    assert (read.policy.name, read.policy.base_urls, read.policy.vllm_args) == ("in_process", [], [])
    assert "sk-private" not in str(shareable(read)) + str(read)
    setup = set_up(**games, checkpoint=path)
    assert setup.new_game(1).players == ("you", "expert", "policy")
    setup.close()
    assert not (tmp_path / "was_run").exists() and not asked
    told = capsys.readouterr().err
    assert "are not taken from it" in told and f"policy.name='{policy['name']}'" in told and "sk-private" not in told


def test_files_and_addresses_of_a_strangers_model_are_not_read(tmp_path):
    model = dict.fromkeys(("base_model", "vit_weights", "llm_weights", "ref_pretrained"), "http://127.0.0.1:9/x.pth")
    model |= {"llm_model": "stranger/model", "llm_tokenizer": "stranger/words", "load_basemodel": True}
    model |= {"llm_config": {"model_type": "llama", "num_hidden_layers": 10**9}, "prompt": "${oc.env:HOME}"}
    path = hostile_checkpoint(tmp_path, model=model)
    assert read_settings(path, None, []).model == {
        "arch": "blip2_emac", "model_type": "tiny", "pretrained": str(path), "load_pretrained": True,
    }  # fmt: skip
    named = read_settings(path, None, ["model.llm_model=mine"])  # who wants it gives it
    assert named.model["llm_model"] == "mine"


@pytest.mark.parametrize("config", [{}, {"model": []}, {"model": {"model_type": []}}, {"model": None, "policy": 3}])
def test_a_checkpoint_that_does_not_say_its_model_asks_for_settings(tmp_path, config):
    model, _ = load_student({"arch": "blip2_emac", "model_type": "tiny"}, torch.device("cpu"))
    path = save_checkpoint(tmp_path / "c.pth", model=model, config=config)
    with pytest.raises(ConfigError, match="does not say which model it belongs to"):
        read_settings(path, None, [])


@pytest.mark.parametrize("setting", ["show_ids=false", "image_severity=4"])
def test_frames_are_those_of_the_settings(games, setting):
    plain, other = set_up(**games), set_up(**games, options=[f"environment.{setting}"])
    (first, second) = (setup.new_game(1).moment for setup in (plain, other))
    assert (first.frame != second.frame).any() and first.names
    assert second.names == (() if "ids" in setting else first.names)


def test_a_checkpoint_of_another_kind_asks_for_settings(games, tmp_path):
    torch.save({"model": {}}, tmp_path / "lavis.pth")
    message = r"is not an EMAC\+ run checkpoint.* --cfg-path configs/evaluate/episodes.yaml"
    with pytest.raises(ConfigError, match=message):
        set_up(**games, checkpoint=tmp_path / "lavis.pth")
