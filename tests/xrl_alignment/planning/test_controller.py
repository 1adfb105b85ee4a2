"""The controller turns high-level actions into commands, or says why it cannot."""

from __future__ import annotations

import pytest

from xrl_alignment.planning.controller import DONE, NOT_FOUND, REJECTED, Controller, words_of
from xrl_alignment.planning.plans import HighLevelAction, read_action

OPENING = (
    "You are in the middle of a room. Looking quickly around you, you see a cabinet 2, a cabinet 1, a countertop 1, "
    "a desk 1, a fridge 1, and a sinkbasin 1.\nYour task is to: put a clean mug in cabinet."
)


@pytest.fixture
def controller() -> Controller:
    controller = Controller(OPENING)
    controller.observe("go to countertop 1", "You arrive at countertop 1. On the countertop 1, you see a mug 2.")
    return controller


def action(text: str) -> HighLevelAction:
    found = read_action(text)
    assert found
    return found


def play(controller: Controller, text: str, answers: list[str]) -> list[str]:
    """The commands for one high-level action, each answered in turn, and how it ended."""
    controller.start()
    commands = []
    for answer in [*answers, ""]:
        commands.append(controller.next(action(text)))
        if not answer:
            break
        controller.observe(commands[-1], answer)
    return commands


def test_go_to_opens_what_is_closed_and_ends_when_the_contents_are_known(controller) -> None:
    answers = [
        "You arrive at fridge 1. The fridge 1 is closed.",
        "You open the fridge 1. The fridge 1 is open. In it, you see nothing.",
    ]
    assert play(controller, "go to fridge 1", answers) == ["go to fridge 1", "open fridge 1", DONE]


def test_a_type_means_a_place_that_was_not_searched_yet(controller) -> None:
    first = play(
        controller, "go to cabinet", ["You arrive at cabinet 2. The cabinet 2 is open. In it, you see nothing."]
    )
    assert first == ["go to cabinet 2", DONE]
    assert play(controller, "go to cabinet", []) == ["go to cabinet 1"]


@pytest.mark.parametrize(
    ("before", "asked", "told"),
    [
        ((), "take mug", "take mug 2 from countertop 1"),
        ((), "take pen", "take pen"),  # seen nowhere
        ((), "use mug", "use mug 2 on countertop 1"),
        ((), "go to cabinet", "go to cabinet 2"),
        ((), "go to shelf", "go to shelf"),  # not in this room
        ((), "put mug in/on cabinet", "put mug in/on cabinet"),  # not in the hand
        (("take mug",), "put mug in/on cabinet", "put mug 2 in/on cabinet 2"),
        (("take mug",), "clean mug", "clean mug 2 with sinkbasin 1"),
        (("take mug",), "take mug", "take mug"),  # nothing is left to do
    ],
)
def test_an_action_is_told_with_the_names_that_it_stands_for(controller, before, asked, told) -> None:
    for one in before:
        play(controller, one, ["You pick up the mug 2 from the countertop 1."])
    controller.start()
    assert controller.told(action(asked)) == told


def test_taken_treated_and_put(controller) -> None:
    assert play(controller, "take mug", ["You pick up the mug 2 from the countertop 1."]) == [
        "take mug 2 from countertop 1",
        DONE,
    ]
    answers = [
        "You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing.",
        "You clean the mug 2 using the sinkbasin 1.",
    ]
    assert play(controller, "clean mug", answers) == ["go to sinkbasin 1", "clean mug 2 with sinkbasin 1", DONE]
    answers = [
        "You arrive at cabinet 1. The cabinet 1 is closed.",
        "You open the cabinet 1. The cabinet 1 is open. In it, you see nothing.",
        "You put the mug 2 in/on the cabinet 1.",
    ]
    commands = play(controller, "put mug 2 in/on cabinet 1", answers)
    assert commands == ["go to cabinet 1", "open cabinet 1", "put mug 2 in/on cabinet 1", DONE]
    # Who wants a mug now wants another one; by its name it can be had again.
    assert play(controller, "take mug", []) == [NOT_FOUND]
    assert play(controller, "take mug 2", []) == ["take mug 2 from cabinet 1"]


@pytest.mark.parametrize(
    ("text", "refusal", "words"),
    [
        ("go to bed 1", REJECTED, "There is no bed 1 here."),
        ("take plate", NOT_FOUND, "I have seen no plate."),
        ("clean mug", REJECTED, "Nothing happens."),  # it is not in the hand
        ("use desklamp", NOT_FOUND, "I have seen no desklamp."),
        ("put mug in/on bed", REJECTED, "There is no bed here."),
    ],
)
def test_what_cannot_be_carried_out(controller, text, refusal, words) -> None:
    assert play(controller, text, []) == [refusal]
    assert words_of(refusal, action(text), controller.receptacles) == words


def test_what_has_failed_is_not_tried_again(controller) -> None:
    assert play(controller, "take mug", ["Nothing happens."]) == ["take mug 2 from countertop 1", REJECTED]


def test_no_appliance_and_a_full_hand_are_refused(controller) -> None:
    controller.observe("take mug 2 from countertop 1", "You pick up the mug 2 from the countertop 1.")
    assert play(controller, "heat mug", []) == [REJECTED]  # no microwave in this room
    controller.observe("go to desk 1", "You arrive at desk 1. On the desk 1, you see a pen 1, and a desklamp 1.")
    assert play(controller, "take pen", []) == [REJECTED]
    assert play(controller, "use desklamp", ["You turn on the desklamp 1."]) == ["use desklamp 1", DONE]


def test_objects_without_numbers_are_named_so_in_commands() -> None:
    controller = Controller(OPENING)
    there = "On the countertop 1, you see a mug, a desklamp, and a mug."
    controller.observe("go to countertop 1", f"You arrive at countertop 1. {there}")
    answers = ["You turn on the desklamp."]
    assert play(controller, "use desklamp", answers) == ["use desklamp", DONE]
    assert play(controller, "use desklamp 1", []) == [DONE]  # as the belief numbers it
    answers = ["You pick up the mug from the countertop 1."]
    assert play(controller, "take mug", answers) == ["take mug from countertop 1", DONE]
    answers = [
        "You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing.",
        "You clean the mug using the sinkbasin 1.",
    ]
    assert play(controller, "clean mug", answers) == ["go to sinkbasin 1", "clean mug with sinkbasin 1", DONE]
    assert play(controller, "put mug in/on sinkbasin", ["Nothing happens."]) == ["put mug in/on sinkbasin 1", REJECTED]
