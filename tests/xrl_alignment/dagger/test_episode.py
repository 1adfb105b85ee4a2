"""One game being played."""

import numpy as np
import pytest

from xrl_alignment.dagger.episode import Episode, plain
from xrl_alignment.dagger.replay import Transition
from xrl_alignment.experts import Label, make_expert
from xrl_alignment.language.commands import MAX_THOUGHTS
from xrl_alignment.language.history import EnvironmentHistory
from xrl_alignment.wire.messages import Observation


def episode(repeat_limit: int = 0, game: str = "pick/a", **information) -> Episode:
    expert = make_expert("client")
    expert.begin("")
    return Episode(
        env=0,
        game=game,
        round=1,
        beta=0.0,
        opening="A room.\nYour task is to: look.",
        memories=(),
        expert=expert,
        history=EnvironmentHistory("", "A room.", repeat_limit=repeat_limit),
        observation=Observation("A room.", information=information),
    )


def decide(e: Episode, action: str) -> None:
    e.transitions.append(Transition(np.zeros((1, 1, 3), np.uint8), "p", action, "", action, ""))


def step(e: Episode, action: str, feedback: str = "Nothing happens.", **fields) -> None:
    decide(e, action)
    e.send(action)
    e.receive(Observation(feedback, **fields))


def test_an_answer_joins_the_action_it_answers():
    e = episode()
    step(e, "look", "You see\na desk.")
    assert e.steps == [("look", "You see\na desk.")] and e.transitions[0].feedback == "You see\na desk."
    assert e.actions == 1 and e.heard == "You see a desk."


def test_thoughts_count_until_an_action_is_sent():
    e = episode()
    for _ in range(MAX_THOUGHTS):
        decide(e, "think: hm")
        assert e.thinks("think: hm")
    assert not e.thinks("think: hm") and not e.thinks("look") and e.actions == 0
    step(e, "look")
    decide(e, "think: again")
    assert e.thinks("think: again") and e.steps[-1] == ("think: again", "OK.")


@pytest.mark.parametrize(
    ("information", "done", "won"),
    [({}, True, True), ({}, False, False), ({"won": False}, True, False), ({"won": [True]}, False, True)],
)
def test_without_a_verdict_done_means_won(information, done, won):
    e = episode()
    step(e, "look", information=information, done=done)
    assert e.won is won and e.over(50) is (won or done)


def test_the_step_limit_and_repeated_actions_end_it():
    e = episode(repeat_limit=3)
    for number in range(3):
        assert not e.over(3)
        step(e, "look" if number else "inventory")
    assert e.over(3) and not e.over(4)
    step(e, "look")
    assert e.over(99)


def test_the_label_is_a_new_thought_then_the_action_in_canonical_words():
    e = episode(expert_action="Move the Mug 1 to desk 1.", expert_thought="I have it.")
    advice = e.expert.act(e.observation.information)
    assert e.label(advice, thoughts=False) == "put mug 1 in/on desk 1"
    assert e.label(advice, thoughts=True) == "think: i have it"
    decide(e, "think: i have it")
    e.thinks("think: i have it")
    assert e.label(advice, thoughts=True) == "put mug 1 in/on desk 1"
    assert episode().label(Label(None), thoughts=True) is None


def test_the_coin_depends_on_seed_round_game_and_step_alone():
    e = episode()
    assert e.coin(1) == episode().coin(1) and 0 <= e.coin(1) < 1
    other = episode(game="pick/b")
    late = episode()
    step(late, "look")
    assert len({e.coin(1), e.coin(2), other.coin(1), late.coin(1)}) == 4


def test_text_that_no_file_can_hold_becomes_plain():
    assert plain("a\0b\ud800c ü\n") == "a b?c ü\n"
