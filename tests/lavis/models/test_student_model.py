"""What every student gets from the base class: choice of answers, losses by name, replicas; and what it must bring."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lavis.common.errors import ConfigError
from lavis.models.student import Question
from lavis.models.student_model import ALTERNATIVES, StudentModel
from tests.colour_student import ColourStudent

RED, BLUE = (np.full((4, 4, 3), colour, np.uint8) for colour in ((255, 0, 0), (0, 0, 255)))


@pytest.fixture
def student() -> ColourStudent:
    return ColourStudent()


def batch() -> dict:
    return {
        "image": [RED, BLUE],
        "text_input": ["> ", "> "],
        "text_output": ["go to desk 1", "look"],
        "text_output_pos": ["go to desk 1", "look"],
        "text_output_neg": ["look", "take mug 2"],
    }


class TestAct:
    def test_candidates_and_free_answers_in_one_batch(self, student: ColourStudent) -> None:
        group = ["look", "take mug 1", "go to desk 2"]
        questions = [Question("> ", (RED,), candidates=group), Question("> ", (BLUE,))]
        answers = student.act(questions, normalise=str.upper, num_beams=1)
        (scores,) = student.score(questions[:1], [group])
        assert answers[0] == group[scores.index(max(scores))]
        assert answers[1] == student.write(questions[1:])[0].upper()

    def test_a_forbidden_answer_gives_way_to_the_next_best(self, student: ColourStudent) -> None:
        question = Question("> ", (RED,))
        ranked = student.write([question], num_beams=ALTERNATIVES, num_captions=ALTERNATIVES)
        for count in (0, 1, ALTERNATIVES - 1):
            forbidden = Question("> ", (RED,), forbidden=frozenset(ranked[:count]))
            assert student.act([Question("> ", (BLUE,)), forbidden])[1] == ranked[count]
        assert student.act([Question("> ", (RED,), forbidden=frozenset(ranked))]) == ranked[:1]


class TestLosses:
    def test_cloning_is_a_mean_over_tokens(self, student: ColourStudent) -> None:
        questions = [Question("> ", (RED,)), Question("> ", (BLUE,))]
        sums = student.score(questions, [["go to desk 1"], ["look"]])
        want = -(sums[0][0] + sums[1][0]) / (5 + 2)  # words and ends
        assert student.losses(batch(), "bc").loss.item() == pytest.approx(want)

    @pytest.mark.parametrize("known", [False, True])
    def test_dpo_of_a_policy_that_is_its_reference(self, student: ColourStudent, known: bool) -> None:
        student.set_reference()
        samples = batch()
        if known:
            samples["ref_logps_pos"], samples["ref_logps_neg"] = student.reference_logps(samples)
            student.reference = None
        got = student.losses(samples, "dpo")
        assert got.chosen_reward == got.rejected_reward == 0
        assert got.loss.item() == pytest.approx(math.log(2) + 0.5 * got.chosen_entropy.item())
        got.loss.backward()
        assert student.head.weight.grad.abs().max() > 0

    def test_an_unknown_objective(self, student: ColourStudent) -> None:
        with pytest.raises(ConfigError, match="unknown objective 'ppo': did you mean 'dpo'"):
            student.losses(batch(), "ppo")


class TestLavisNames:
    def test_answers_are_written_or_chosen(self, student: ColourStudent) -> None:
        samples = {"image": [RED, BLUE], "text_input": ["> ", "> "]}
        asked = [Question("> ", (RED,)), Question("> ", (BLUE,))]
        assert student.predict_answers(samples, num_beams=1) == student.write(asked, num_beams=1, max_length=10)
        answers = ["look", "take mug 1", "go to desk 2"]
        best = [scores.index(max(scores)) for scores in student.score(asked, [answers] * 2)]
        assert student.predict_class({**samples, "prompt": "> "}, answers) == best
        ranked = student.predict_answers(samples, inference_method="rank", answer_list=answers)
        assert ranked == [answers[number] for number in best]
        with pytest.raises(ConfigError, match="inference_method='rank': `generate`, or `rank` with an answer_list"):
            student.predict_answers(samples, inference_method="rank")

    def test_a_prompt_has_a_place_for_the_question(self, student: ColourStudent) -> None:
        asked = []
        student.write = lambda questions, **decoding: asked.extend(questions) or [" look "] * len(questions)
        samples = {"image": [RED], "text_input": ["where is it?"]}
        assert student.predict_answers(samples, prompt="Question: {} Answer:") == ["look"]
        assert asked[0].prompt == "Question: where is it? Answer:"


def test_a_replica_is_a_copy_without_the_reference(student: ColourStudent) -> None:
    student.set_reference()
    student.train()
    copied = student.replica(torch.device("cpu"))
    assert student.has_reference and not copied.has_reference and student.training and not copied.training
    assert torch.equal(copied.head.weight, student.head.weight) and copied.head.weight is not student.head.weight


def test_what_a_student_lacks_is_said_when_it_is_made() -> None:
    class Half(StudentModel):
        def write(self, questions: list[Question], **decoding: object) -> list[str]:
            return []

    with pytest.raises(TypeError, match=r"abstract methods .*answer_logps.*as_reference.*score"):
        Half()
