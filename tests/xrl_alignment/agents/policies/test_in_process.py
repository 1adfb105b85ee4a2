"""The policy around the real tiny model."""

import numpy as np
import pytest
import torch

from alfworld_native.language.commands import normalise
from alfworld_native.language.sentences import NOTHING_HAPPENS
from lavis.common.devices import autocast
from lavis.models.student import Question
from lavis.models.student_model import ALTERNATIVES
from tests.colour_student import ColourStudent
from xrl_alignment.agents.policies.base import PolicyInput
from xrl_alignment.agents.policies.in_process import InProcessPolicy
from xrl_alignment.agents.policies.replicas import ReplicatedPolicy
from xrl_alignment.builders.student import load_student, prompt_writer


@pytest.fixture(scope="module")
def student():
    return load_student({}, torch.device("cpu"))


@pytest.fixture
def make(student):
    return lambda **options: InProcessPolicy(model=student[0], vis_processor=student[1], num_beams=1, **options)


def inputs(count: int, commands=("look", "go to desk 1")) -> list[PolicyInput]:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (count, 224, 224, 3), dtype=np.uint8)
    return [PolicyInput(f"Task {i}.\n> ", image, commands) for i, image in enumerate(images)]


def test_free_text_is_one_normalised_action_for_each_input(make):
    actions = make(max_length=8).act(inputs(3))
    assert len(actions) == 3 and all(isinstance(a, str) and normalise(a) == a for a in actions)


def test_a_frame_that_several_states_share_is_encoded_once(make, student, monkeypatch):
    model, encoded = student[0], []
    vision = type(model.vision)
    encode = vision.encode_image
    monkeypatch.setattr(vision, "encode_image", lambda self, image: encoded.append(len(image)) or encode(self, image))
    one, other = inputs(2)
    batch = [one, other, other._replace(prompt="Task 2.\n> "), one._replace(prompt="Task 3.\n> ")]
    together = make(max_length=8).act(batch)
    assert encoded == [2]
    # With copies of the frames every state has its own.
    assert together == make(max_length=8).act([item._replace(image=item.image.copy()) for item in batch])
    assert encoded == [2, 4]


def test_admissible_takes_the_most_probable_command_of_each_input(make, student):
    model, vis_processor = student
    batch = inputs(2, ("look", "inventory", "go to desk 1", "open fridge 1"))
    chosen = make(decode="admissible").act(batch)
    for item, action in zip(batch, chosen, strict=True):
        question = Question(item.prompt, (vis_processor(item.image),))
        with torch.no_grad(), autocast(torch.device("cpu")):
            scores = model.score([question], [item.admissible_commands])[0]
        assert action == item.admissible_commands[int(np.argmax(scores))]


def test_before_it_chooses_it_thinks_if_a_thought_costs_no_step(make, student, monkeypatch):
    """The words are given; the choice among commands is the model's own."""
    asked = []

    def write(questions, **options):
        asked.append([question.prompt for question in questions])
        return ["think: left: mug in desk" if "Task 1" in question.prompt else "go home" for question in questions]

    batch = inputs(3)
    chosen = make(decode="admissible").act(batch)
    monkeypatch.setattr(student[0], "write", write)
    assert make(decode="admissible").act(batch) == chosen and not asked, (
        "a thought would cost a step: none is asked for"
    )
    batch = [item._replace(may_think=i != 2) for i, item in enumerate(batch)]
    assert make(decode="admissible").act(batch) == [chosen[0], "think: left: mug in desk", chosen[2]]
    assert asked == [["Task 0.\n> ", "Task 1.\n> "]]
    assert make(decode="admissible").act(batch[1:2]) == ["think: left: mug in desk"]


def test_admissible_without_commands_is_a_clear_error(make):
    with pytest.raises(ValueError, match="policy.decode=admissible: an observation came without admissible_commands"):
        make(decode="admissible").act(inputs(1, ()))


def test_a_batch_over_the_limit_is_answered_in_parts_and_in_order(make, student, monkeypatch):
    sizes = []

    def counted(questions, **options):
        sizes.append(len(questions))
        return [f"look {len(sizes)}"] * len(questions)

    monkeypatch.setattr(student[0], "write", counted)
    assert make(max_batch=2).act(inputs(5)) == ["look 1"] * 2 + ["look 2"] * 2 + ["look 3"]
    assert sizes == [2, 2, 1] and make().act([]) == []


def test_the_search_is_the_originals(make, student, monkeypatch):
    given = {}
    monkeypatch.setattr(student[0], "write", lambda questions, **options: given.update(options) or ["look"])
    make(max_length=128, min_length=5).act(inputs(1))
    assert given == {
        "num_beams": 1, "max_length": 128, "min_length": 5, "length_penalty": 0, "repetition_penalty": 1.0,
    }  # fmt: skip


def test_an_answer_that_was_just_rejected_gives_way_to_the_next_best(make):
    batch = inputs(2)
    first = make(max_length=8).act(batch)
    policy = make(max_length=8, skip_rejected=True)
    assert policy.act(batch) == first
    second = policy.act([batch[0], batch[1]._replace(steps=[(first[1], NOTHING_HAPPENS)])])
    assert second[0] == first[0] and second[1] != first[1]
    third = policy.act([batch[0], batch[1]._replace(steps=[(text[1], NOTHING_HAPPENS) for text in (first, second)])])
    assert third[1] not in (first[1], second[1])


def test_a_place_where_it_has_just_been_gives_way_to_the_next_best(make, student, monkeypatch):
    """The words are given; the real search is in the test above."""
    found = {1: ["go to desk 1", "look"], ALTERNATIVES: [*["go to desk 1", "go to desk 2"] * 4]}
    monkeypatch.setattr(student[0], "write", lambda questions, num_beams, **options: found[num_beams])
    there = ("go to desk 1", "You arrive at desk 1. On the desk 1, you see nothing.")
    batch = [inputs(1)[0]._replace(steps=[there]), inputs(1)[0]]
    assert make(skip_visited=True).act(batch) == ["go to desk 2", "look"]
    assert make(skip_rejected=True).act(batch) == ["go to desk 1", "look"]


def test_any_student_acts_in_both_ways_and_on_replicas():
    """One without tokenizer, image processor and LAVIS parts."""
    student, batch = ColourStudent(), inputs(2, ("look", "take mug 1"))
    parts = {"model": student, "vis_processor": lambda frame: frame}
    free = InProcessPolicy(**parts, skip_rejected=True)
    first = free.act(batch)
    again = free.act([item._replace(steps=[(text, NOTHING_HAPPENS)]) for item, text in zip(batch, first, strict=True)])
    assert first[0] != again[0] and first[1] != again[1]
    chosen = InProcessPolicy(**parts, decode="admissible").act(batch)
    assert set(chosen) <= {"look", "take mug 1"}
    together = ReplicatedPolicy(free, ["cpu"])
    assert together.act(batch) == first
    together.close()
    write_prompt = prompt_writer(student)
    assert len(write_prompt("a room", [], [("look", "word " * 90)] * 9).split()) < 200  # its own budget and count


def test_an_unknown_way_to_decode_is_refused(make):
    with pytest.raises(ValueError, match="unknown policy.decode 'best': choose one of admissible, free"):
        make(decode="best")
