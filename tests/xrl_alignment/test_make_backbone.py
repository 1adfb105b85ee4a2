"""The tiny model's backbone: what its training rows teach, and that training on them teaches it."""

import random

import pytest
import torch
from safetensors.torch import load_file

from lavis.models import load_model
from xrl_alignment import make_backbone
from xrl_alignment.environments.games import find_games
from xrl_alignment.environments.native import NativeEnvironment
from xrl_alignment.experts.explorer import Explorer


@pytest.fixture(scope="module")
def games(household_data):
    return find_games("household_train", data=household_data)


@pytest.fixture(scope="module")
def model():
    return load_model("blip2_emac", "tiny", options={"llm_config": {"num_hidden_layers": 1}})


def written(tokenizer, row):
    """The text of a row, and of what is to be learned after `> `."""
    learned = [i for i, w in zip(row.targets, row.weights, strict=True) if w == 1.0 and i >= 0]
    return tokenizer.decode(row.ids[1:]), tokenizer.decode(learned)


def test_a_row_teaches_the_actions_and_their_end(model, games):
    tokenizer = model.llm_tokenizer
    writer = make_backbone.RowWriter(tokenizer, games, seed=0)
    row = writer._written("Task.\n> ", [("go to desk 1", "go to desk 1", "You arrive.")], True)
    text, learned = written(tokenizer, row)
    assert text == "Task.\n> go to desk 1\nYou arrive.\n> "
    assert learned == "go to desk 1"
    assert row.targets[row.weights.index(1.0) : row.weights.index(1.0) + 4][-1] == tokenizer.eos_id
    assert len(row.ids) == len(row.targets) == len(row.weights)


def test_after_a_slip_the_row_teaches_what_should_have_been_done_up_to_where_they_part(model, games):
    tokenizer = model.llm_tokenizer
    writer = make_backbone.RowWriter(tokenizer, games, seed=0)
    row = writer._written("Task.\n> ", [("go to desk 1", "go to shelf 2", "You arrive.")], True)
    text, learned = written(tokenizer, row)
    assert "go to desk 1" in text
    assert learned == "go to shelf"  # `shelf` is known after `go to`; what follows `go to desk` is not


def test_skilled_players_win_and_wanderers_seldom_do(games):
    environment, expert, rng = NativeEnvironment(), Explorer(), random.Random(0)
    for game in games:
        text, steps = make_backbone.play_skilled(environment, expert, game, rng, 0.0)
        assert 0 < len(steps) < 50, text  # fifty are the limit: the game was won
    won = [make_backbone.wander(environment, game, rng, 18)[2] for game in games * 5]
    assert sum(won) <= 0.2 * len(won)


def test_noise_and_word_stand_before_the_text(model):
    embedding = model.llm_model.get_input_embeddings().weight
    call = torch.tensor(model.llm_tokenizer.encode(make_backbone.CALL))
    generator = torch.Generator().manual_seed(0)
    skilled, other = make_backbone.prefix(embedding, call, [True, False], generator)
    assert skilled.shape == (make_backbone.SLOTS, embedding.shape[1])
    found = [i for i in range(make_backbone.SLOTS) if torch.equal(skilled[i], embedding[call[0]])]
    assert len(found) == 1
    assert torch.equal(skilled[found[0] : found[0] + len(call)], embedding[call])
    assert not any(torch.equal(vector, embedding[call[0]]) for vector in other)


def test_training_lowers_the_loss_and_writes_weights_that_the_model_loads(games, tmp_path, capsys):
    out = tmp_path / "backbone.safetensors"
    student = load_model("blip2_emac", "tiny", options={"llm_config": {"num_hidden_layers": 1}})
    make_backbone.train(student, games, minutes=0.1, lr=3e-3, seed=0, out=out)
    losses = [float(line.rsplit(" ", 1)[1]) for line in capsys.readouterr().out.splitlines()]
    assert losses[0] < 7.0  # log(999) = 6.9 before the first step
    options = {"llm_config": {"num_hidden_layers": 1}, "llm_weights": str(out)}
    loaded = load_model("blip2_emac", "tiny", options=options).llm_model.state_dict()
    for name, value in load_file(out).items():
        assert torch.equal(loaded[name], value.float())
