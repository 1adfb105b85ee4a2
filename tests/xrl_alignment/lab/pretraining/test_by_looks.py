"""Playing by looks is learned from what the engine says is in view: what the student is told, plays and learns."""

from __future__ import annotations

import json
import random

import pytest
import torch

from alfworld_native.games import find_games
from lavis.common.errors import ConfigError
from lavis.common.files import LockedError, locked
from lavis.models.student import Question
from xrl_alignment.lab.pretraining import by_looks
from xrl_alignment.lab.pretraining.by_looks import Player, State, learn, needs, told_student, values_of
from xrl_alignment.lab.pretraining.vision import LOOKS_FOR, QUERY_OF, TYPES

MUG, PEN = TYPES.index("mug"), TYPES.index("pen")


@pytest.fixture(scope="module")
def student():
    return told_student()


@pytest.fixture(scope="module")
def held_out(household_data):
    return find_games("household_heldout", data=household_data)


def test_each_type_speaks_in_the_place_of_its_query(student):
    values = torch.zeros(2, len(TYPES))
    values[0, MUG], values[0, PEN] = 1.0, 0.5
    tokens = student.image_tokens([Question("", (), encoded=row) for row in values])
    assert tokens.shape == (2, len(LOOKS_FOR), 192)
    embedding = student.llm_model.get_input_embeddings().weight.detach()
    mug, pen, nothing = (embedding[student.llm_tokenizer.encode(f" {word}")[0]] for word in ("mug", "pen", "nothing"))
    assert torch.allclose(tokens[0, QUERY_OF["mug"]], mug, atol=1e-6)
    assert torch.allclose(tokens[0, QUERY_OF["pen"]], (pen + nothing) / 2, atol=1e-6)
    assert torch.equal(tokens[1], nothing.expand(len(LOOKS_FOR), -1))


def test_errors_are_as_frequent_as_they_are_meant_to_be():
    rng = random.Random(0)
    drawn = torch.stack([values_of((MUG,), rng) for _ in range(1500)]) > 0.5
    assert abs((~drawn[:, MUG]).float().mean() - by_looks.MISSED) < 0.03
    others = torch.cat([drawn[:, :MUG], drawn[:, MUG + 1 :]], dim=1)
    assert abs(others.float().mean() - by_looks.IMAGINED) < 0.003
    exact = values_of((MUG,), rng, exact=True)
    assert exact.nonzero().flatten().tolist() == [MUG] and exact[MUG] == 1.0


def test_what_a_label_needs_is_not_drawn_away():
    """A label that names what was not seen would teach to guess."""
    assert needs("take mug from desk 1") == needs("think: i see mug in/on desk 1") == (MUG,)
    assert needs("go to desk 1") == needs("put mug in/on desk 1") == needs("think: left: mug in desk") == ()
    drawn = torch.stack([values_of((MUG,), random.Random(seed), sure=(MUG,)) for seed in range(200)])
    assert (drawn[:, MUG] > 0.5).all()


def test_what_is_not_named_leaks():
    """Near 0 but not 0, as an encoder's values."""
    drawn = values_of((MUG,), random.Random(1))  # a seed that draws no error
    others = torch.cat([drawn[:MUG], drawn[MUG + 1 :]])
    assert (others != 0).all() and others.abs().max() <= by_looks.LEAK


def test_the_explorers_games_give_labelled_states_without_numbers(student, held_out):
    player = Player(student, 0, student=0.0)
    episodes = player.run(held_out[:3])
    assert all(episode.won for episode in episodes)
    assert len(player.states) >= sum(episode.actions for episode in episodes)
    assert any(state.label.startswith("think: i see") for state in player.states)
    takes = [state for state in player.states if state.label.startswith("take")]
    for state in takes:
        kind = state.label.split()[1]
        assert kind in {TYPES[number] for number in state.types} and state.label.split()[2] == "from"
    assert all("you see" not in state.prompt.split("Your task is to", 1)[1] for state in player.states)


def test_the_student_plays_when_it_is_asked(student, held_out):
    player = Player(student, 0, student=1.0, exact=True)
    (episode,) = player.run(held_out[:1])
    assert episode.actions > 0 and player.states


def test_learning_moves_the_language_model_and_nothing_else():
    student = told_student()
    before = {key: value.clone() for key, value in student.state_dict().items()}
    words = student.words.clone()
    states = [State("> ", (MUG,), "take mug from desk 1"), State("> ", (), "go to desk 1")]
    first = learn(student, states, batches=1, lr=1e-3, seed=0)
    assert learn(student, states, batches=12, lr=1e-3, seed=0) < first
    moved = {key.split(".")[0] for key, value in student.state_dict().items() if not torch.equal(value, before[key])}
    assert moved == {"llm_model"} and torch.equal(student.words, words)


def test_a_second_call_adds_a_round(household_data, tmp_path, monkeypatch):
    command = ["by_looks", "--games", str(household_data), "--out", str(tmp_path / "out"), "--rounds", "1"]
    monkeypatch.setattr("sys.argv", [*command, "--per-round", "1", "--batches", "1"])
    for round_ in range(2):
        if round_:
            with open(tmp_path / "out" / "log.jsonl", "a") as log:
                log.write('{"round": 1, "wo')  # of a process that was killed
        by_looks.main()
        lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
        if not round_:  # a round that was killed before its line in the log, and played again by the next call
            with (tmp_path / "out" / "states.jsonl").open("a") as file:
                file.write('["prompt", [1], "look"]\n["pro')
        assert [line["round"] for line in lines] == list(range(round_ + 1))
    assert (tmp_path / "out" / "llm.safetensors").is_file()
    assert (
        lines[1]["states"]
        > lines[0]["states"]
        == sum(1 for _ in (tmp_path / "out" / "states.jsonl").open()) - (lines[1]["states"] - lines[0]["states"])
    )


def test_fewer_games_than_a_round_plays_and_a_folder_in_use_are_refused(household_data, tmp_path, monkeypatch):
    command = ["by_looks", "--games", str(household_data), "--out", str(tmp_path), "--per-round", "4000"]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(ConfigError, match="but the next round plays 8000"):
        by_looks.main()
    with locked(tmp_path / ".lock", tmp_path), pytest.raises(LockedError):
        by_looks.main()
