"""The rule-based reflector names what the trace shows."""

import pytest

from tests.xrl_alignment.agents.reflexion.traces import COUNTER, EMPTY, FAILED, OPENED, SHUT, TAKE, trace
from xrl_alignment.agents.reflexion.rule import RULE_MARK, RuleReflector


def reflect(task, *steps, **more):
    return RuleReflector().reflect(trace(task, *steps, **more), ())


def test_target_never_seen():
    text = reflect("put a hot tomato in garbagecan", EMPTY, SHUT, OPENED)
    assert text == (
        "(by rule) I searched garbagecan 1, cabinet 1 and found no tomato. Next time I will look for a tomato in "
        "places that I never saw inside: cabinet 2, countertop 1, fridge 1, microwave 1 and 2 more."
    )


def test_nothing_searched():
    assert "I searched nothing and found no tomato" in reflect("put a hot tomato in garbagecan", FAILED)


def test_target_seen_but_not_taken_and_a_command_that_failed():
    text = reflect("put a hot tomato in garbagecan", COUNTER, FAILED, FAILED, FAILED)
    assert text == (
        "(by rule) I saw tomato 1 at countertop 1 but did not take it. 'open countertop 1' failed 3 times, I will not "
        "repeat it. Next time I will go to countertop 1, take tomato 1 from countertop 1, go to microwave 1, heat "
        "tomato 1 with microwave 1, go to garbagecan 1, put tomato 1 in/on garbagecan 1."
    )


def test_taken_but_not_treated_then_treated_but_not_placed():
    heat = ("heat tomato 1 with microwave 1", "You heat the tomato 1 using the microwave 1.")
    assert "I took tomato 1 but did not heat it." in reflect("heat some tomato and put it in garbagecan", COUNTER, TAKE)
    text = reflect("heat some tomato and put it in garbagecan", COUNTER, TAKE, heat)
    assert "I did not put tomato 1 in/on a garbagecan." in text


def test_closed_places_are_opened_in_the_plan():
    task = "put two mug in cabinet"
    text = reflect(task, SHUT, OPENED, COUNTER, task_type="pick_two_obj_and_place")
    assert "go to countertop 1, take mug 2 from countertop 1, go to cabinet 1, open cabinet 1" in text
    assert "do the same with mug 1 from cabinet 1" in text


def test_no_step_of_the_plan_is_made_twice():
    inside = ("open fridge 1", "You open the fridge 1. The fridge 1 is open. In it, you see a tomato 1.")
    shut = ("go to fridge 1", "You arrive at fridge 1. The fridge 1 is closed.")
    text = reflect("put a cool tomato in fridge", shut, inside, task_type="pick_cool_then_place_in_recep")
    assert text.endswith(
        "I will go to fridge 1, open fridge 1, take tomato 1 from fridge 1, cool tomato 1 with fridge 1, "
        "put tomato 1 in/on fridge 1."
    )


def test_only_one_of_two_found():
    steps = (COUNTER, TAKE, ("move tomato 1 to garbagecan 1", "You move the tomato 1 to the garbagecan 1."))
    text = reflect("find two tomato and put them in garbagecan", *steps, task_type="pick_two_obj_and_place")
    assert "I found only one tomato." in text and "look for another tomato in places" in text


def test_some_of_three_found():
    task = "find three mug and put them in drawer"
    two = ("go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see a mug 2, and a mug 1.")
    take = ("take mug 1 from shelf 1", "You pick up the mug 1 from the shelf 1.")
    assert "I found only two mug." in reflect(task, two, take)


def test_of_several_tasks_the_first_that_is_not_done_is_read():
    task = "put a hot tomato in garbagecan, and put a mug in drawer"
    heat = ("heat tomato 1 with microwave 1", "You heat the tomato 1 using the microwave 1.")
    put = ("put tomato 1 in/on garbagecan 1", "You move the tomato 1 to the garbagecan 1.")
    assert "I took tomato 1 but did not heat it." in reflect(task, COUNTER, TAKE)
    text = reflect(task, COUNTER, TAKE, heat, put)
    assert text.startswith("(by rule) I saw mug 2 at countertop 1 but did not take it. Next time I will go to countert")
    assert "tomato" not in text


def test_lamp():
    lamp = ("go to drawer 1", "You arrive at drawer 1. On the drawer 1, you see a desklamp 1.")
    text = reflect("look at tomato under the desklamp", lamp, COUNTER, TAKE, task_type="look_at_obj_in_light")
    assert "did not use a desklamp while holding it" in text and text.endswith("go to drawer 1, use desklamp 1.")
    unseen = reflect("look at tomato under the desklamp", COUNTER, TAKE, task_type="look_at_obj_in_light")
    assert "look for a desklamp in places" in unseen


def test_a_sentence_that_no_rule_reads_still_gives_advice():
    text = reflect("make me happy", COUNTER)
    assert text.startswith("(by rule) I searched countertop 1. Next time I will look for what the task names in places")


@pytest.mark.parametrize("task", ["put a hot tomato in garbagecan", "put two mug in cabinet", "make me happy"])
def test_one_short_paragraph_that_says_it_is_rule_based(task):
    text = reflect(task, EMPTY, SHUT, OPENED, COUNTER, *[FAILED] * 30)
    assert text.startswith(RULE_MARK) and "\n" not in text and len(text.split()) <= 80


def test_objects_without_numbers():
    counter = ("go to countertop 1", "You arrive at countertop 1. On the countertop 1, you see a tomato, and a tomato.")
    take = ("take tomato from countertop 1", "You pick up the tomato from the countertop 1.")
    heat = ("heat tomato with microwave 1", "You heat the tomato using the microwave 1.")
    text = reflect("heat some tomato and put it in garbagecan", counter, take, heat, *[FAILED] * 11)
    assert text == (
        "(by rule) I did not put tomato in/on a garbagecan. 'open countertop 1' failed 11 times, I will not repeat it. "
        "Next time I will go to countertop 1, take tomato from countertop 1, go to microwave 1, heat tomato with "
        "microwave 1, go to garbagecan 1, put tomato in/on garbagecan 1."
    )
    # Two of them lie there: one was brought, the other one is left to bring.
    there = ("go to garbagecan 1", "You arrive at garbagecan 1. On the garbagecan 1, you see nothing.")
    put = ("put tomato in/on garbagecan 1", "You put the tomato in/on the garbagecan 1.")
    text = reflect("put two tomato in garbagecan", counter, take, there, put)
    assert "I did not put tomato in/on a garbagecan." in text
    assert text.endswith("do the same with tomato from countertop 1.")
    text = reflect("put two tomato in garbagecan", counter, take, there, put, counter, take, there, put)
    assert "I put tomato, tomato in/on a garbagecan, which did not complete the task." in text
