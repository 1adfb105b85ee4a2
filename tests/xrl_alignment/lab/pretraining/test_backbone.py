"""The tiny model's backbone: what its training rows teach, and that training on them teaches it."""

import random

import pytest
import torch
from safetensors.torch import load_file

from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.experts.explorer import Explorer
from alfworld_native.games import find_games
from lavis.models import load_model
from lavis.models.played import PlayedGames
from xrl_alignment.lab.pretraining import backbone


@pytest.fixture(scope="module")
def games(household_data):
    return find_games("household_train", data=household_data)


@pytest.fixture(scope="module")
def model():
    return load_model("blip2_emac", "tiny", options={"llm_config": {"num_hidden_layers": 1}})


@pytest.fixture(scope="module")
def writer(model, games):
    return backbone.RowWriter(model.llm_tokenizer, games, seed=0)


def written(tokenizer, row):
    """The text of a row, and of what is to be learned after `> `."""
    learned = [i for i, w in zip(row.targets, row.weights, strict=True) if w == 1.0 and i >= 0]
    return tokenizer.decode(row.ids[1:]), tokenizer.decode(learned)


def step(action, label, reach=()):
    return backbone.Step(list(reach), action, label, "You arrive at desk 1. On the desk 1, you see a pen 1.")


def test_an_episode_teaches_the_actions_and_their_end(writer):
    row = writer.episode("Task.\n> ", [step("go to desk 1", "go to desk 1")], True)
    text, learned = written(writer.tokenizer, row)
    assert text == f"Task.\n> go to desk 1\n{step('', '').feedback}\n> "
    assert learned == "go to desk 1"
    assert row.targets[row.weights.index(1.0) : row.weights.index(1.0) + 4][-1] == writer.tokenizer.eos_id
    assert len(row.ids) == len(row.targets) == len(row.weights)


def test_after_a_slip_the_row_teaches_what_should_have_been_done_up_to_where_they_part(writer):
    row = writer.episode("Task.\n> ", [step("go to desk 1", "go to shelf 2")], True)
    text, learned = written(writer.tokenizer, row)
    assert "go to desk 1" in text
    assert learned == "go to shelf"  # `shelf` is known after `go to`; what follows `go to desk` is not


def test_a_renamed_episode_exchanges_objects_alike_everywhere(writer):
    encode, decode = writer.tokenizer.encode, writer.tokenizer.decode
    writer.rng.seed(0)
    row = writer.episode("Find a pen.\n> ", [step("take pen 1 from desk 1", "take pen 1 from desk 1", ["pen 1"])], True)
    renamed = writer.rename(row)
    (pen,), (other,) = encode(" pen"), set(renamed.ids) - set(row.ids)
    assert decode(renamed.ids[1:]) == decode(row.ids[1:]).replace("pen", decode([other]).strip())
    assert renamed.targets == [other if id == pen else id for id in row.targets]
    assert len(renamed.weights) == len(row.weights)


def test_a_moment_teaches_one_action_that_only_the_picture_explains(writer):
    steps = [step("go to desk 1", "go to desk 1"), step("look", "take pen 1 from desk 1", ["pen 1", "mug 2"])]
    row = writer.moment("Room.\nTask.", [], steps, True)
    text, learned = written(writer.tokenizer, row)
    assert text == "Room.\nTask.\n> go to desk 1\nYou arrive at desk 1.\n> take pen 1 from desk 1"
    assert learned == "take pen 1 from desk 1" and row.targets[-1] == writer.tokenizer.eos_id
    shown = {writer.tokenizer.decode(pair).strip() for pair in row.shown}
    assert shown == {"pen 1", "mug 2"}
    assert len(row.ids) == len(row.targets) == len(row.weights)


def test_games_become_whole_episodes_and_moments(writer):
    rows = writer.rows(60)
    moments = [row for row in rows if 0.0 in row.weights]
    assert 0.5 * len(rows) < len(moments) < len(rows)
    assert any(row.shown for row in moments) and 0.6 < sum(row.skilled for row in rows) / len(rows) < 0.95


def test_skilled_players_win_and_wanderers_seldom_do(games):
    environment, expert, rng = NativeEnvironment(), Explorer(), random.Random(0)
    for game in games:
        text, steps = backbone.play_skilled(environment, expert, game, rng, 0.0)
        assert 0 < len(steps) < 50, text  # fifty are the limit: the game was won
    won = [backbone.wander(environment, game, rng, 18)[2] for game in games * 5]
    assert sum(won) <= 0.2 * len(won)


def test_names_call_and_noise_stand_before_the_text(model, writer):
    embedding = model.llm_model.get_input_embeddings().weight.detach() * 50  # far above the noise
    (call,) = model.llm_tokenizer.encode(backbone.CALL)
    (pair,) = writer._shown(["mug 2"])
    rows = [backbone.Row([], [], [], shown, skilled) for shown, skilled in (([pair], True), ([pair], False))]
    skilled, other = backbone.prefix(embedding, call, rows, torch.Generator().manual_seed(0))
    assert skilled.shape == (backbone.SLOTS, embedding.shape[1])

    def along(vectors, ids):
        direction = embedding[list(ids)].sum(0)
        return vectors @ direction / direction.pow(2).sum()

    assert along(other, pair).max() > 0.6 and (along(other, pair) > 0.4).sum() == 1
    assert along(skilled, [call]).max() > 0.4 > along(other, [call]).max()


def test_training_lowers_the_loss_and_writes_weights_that_the_model_loads(games, tmp_path, capsys):
    out = tmp_path / "backbone.safetensors"
    student = load_model("blip2_emac", "tiny", options={"llm_config": {"num_hidden_layers": 1}})
    writer = backbone.RowWriter(student.llm_tokenizer, games, seed=0)
    backbone.train(student, writer, tokens=40_000, lr=3e-3, seed=0, out=out, played=PlayedGames())
    losses = [float(line.rsplit(" ", 1)[1]) for line in capsys.readouterr().out.splitlines()]
    assert losses[0] < 7.0  # log(999) = 6.9 before the first step
    options = {"llm_config": {"num_hidden_layers": 1}, "llm_weights": str(out)}
    loaded = load_model("blip2_emac", "tiny", options=options).llm_model.state_dict()
    for name, value in load_file(out).items():
        assert torch.equal(loaded[name], value.float())
