"""An episode in progress: turns, thoughts, repetitions, its end."""

import pytest

from lavis.common.errors import ConfigError
from xrl_alignment.play.rollouts.episode import Episode

TEXT = "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in a room.\n\nYour task is to: look.\n"


def episode(**options) -> Episode:
    return Episode(game="pick_and_place_simple-Mug-None-Desk-301/trial_1", text=TEXT, **options)


def test_a_turn_is_an_action_and_what_the_environment_answers():
    played = episode(memories=["look first"])
    assert played.opening == played.newest_text == "You are in a room.\nYour task is to: look."
    assert played.act("go to desk 1") == "go to desk 1" and played.actions == 1
    played.hear("Nothing happens.")
    played.act("take mug 1 from desk 1")
    played.hear("You pick up the mug 1.", won=True, done=True)
    assert played.steps[0] == ("go to desk 1", "Nothing happens.") and played.rejected == 1
    assert played.newest_text == "You pick up the mug 1." and played.over(50)
    trace = played.trace()
    assert (trace.task_type, trace.won, len(trace.steps)) == ("pick_and_place_simple", True, 2)


def test_a_rejection_is_counted_where_noise_has_exchanged_its_words():
    played = episode()
    for feedback in ("happens. happens.", "Nothing Nothing", "Nothing happens.", "You open Nothing", ""):
        played.act("fly")
        played.hear(feedback)
    assert played.rejected == 3


def test_thoughts_cost_no_action_and_the_fourth_in_a_row_goes_to_the_environment():
    played = episode()
    for number in range(3):
        assert played.may_think and played.has_just_thought is (number > 0)
        played.think("think: hm")
    assert not played.may_think
    assert played.actions == 0 and played.steps[-1] == ("think: hm", "OK.")
    played.act("think: hm")
    played.hear("Nothing happens.")
    assert played.may_think and played.actions == 1


def test_an_episode_ends_at_its_limit_or_when_it_is_stuck():
    played = episode(repeat_limit=3)
    for action in ("look", "look", "go to desk 1", "look", "look"):
        played.act(action)
        played.hear("")
        assert not played.stuck
    assert played.over(5) and not played.over(6)
    played.act("look")
    played.hear("")
    assert played.stuck and played.over(50)


def test_one_repetition_is_no_limit():
    with pytest.raises(ConfigError, match="repeat_limit is 1: use 0"):
        episode(repeat_limit=1)
