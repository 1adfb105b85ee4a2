"""Plans as a language model writes them, and back."""

from __future__ import annotations

import time

import pytest

from xrl_alignment.planning.plans import (
    MAX_ACTIONS,
    HighLevelAction,
    ParsedPlan,
    is_valid,
    read_action,
    read_plan,
    write_plan,
)

PLAN = "go to countertop 1, take mug, clean mug 2, put mug 2 in/on cabinet 3, use desklamp 1"


def test_a_plan_is_read_as_it_is_written() -> None:
    plan = read_plan(PLAN)
    assert write_plan(plan.actions) == PLAN and not plan.unknown
    assert plan.actions[0] == HighLevelAction("go to", place="countertop 1")
    assert plan.actions[3] == HighLevelAction("put", "mug 2", "cabinet 3")


@pytest.mark.parametrize(
    "text",
    [
        "Plan: go to desk 1, then take pen 2 from desk 1",
        "1. Go to the desk 1.\n2. Take the pen 2 from the desk 1.",
        "<think>go to bed 1</think>- go to desk 1\n- take pen 2",
        "> go to desk 1; take pen 2\n\n",
        "```text\ngo to desk 1, take pen 2\n```",
        "```\nPlan: go to desk 1,\ntake pen 2```",
        "Sure, here is the plan:\n\n1. Go to desk 1.\n2. Take pen 2.",
        "Sure, here is the **plan**: go to desk 1, take pen 2",
        "**Plan:**\n- **go to desk 1**\n- **take pen 2**",
        "Go to desk 1. Take pen 2.",
        "1. Go to desk 1. 2. Take pen 2.",
        "go to desk 1 -> take pen 2",
        "go to desk 1 → take pen 2",
        "Go to desk 1 and take pen 2.",
    ],
)
def test_list_marks_and_forms_of_chat_models_are_read(text: str) -> None:
    assert write_plan(read_plan(text).actions) == "go to desk 1, take pen 2" and not read_plan(text).unknown


def test_reading_ends_at_the_first_part_that_is_no_action() -> None:
    plan = read_plan("go to desk 1, dance on table 1, take pen 2")
    assert write_plan(plan.actions) == "go to desk 1" and plan.unknown == "dance on table 1"


@pytest.mark.parametrize("text", ["", "  \n", "take", "go to", "put mug 1", "open fridge 1", "take a" * 10_000])
def test_what_is_no_action(text: str) -> None:
    assert read_action(text) is None and not read_plan(text).actions


def test_a_move_is_a_put() -> None:
    assert read_action("move mug 1 to desk 2") == HighLevelAction("put", "mug 1", "desk 2")


def test_an_endless_plan_is_cut() -> None:
    assert len(read_plan("go to desk 1, " * 1000).actions) == MAX_ACTIONS


@pytest.mark.parametrize("text", [" " * 40_000 + "x", "\t" * 40_000, "take mug" + " " * 40_000 + "then take cup"])
def test_blanks_are_read_in_linear_time(text: str) -> None:
    began = time.process_time()
    plan = read_plan(text)
    assert time.process_time() - began < 1.0  # it was 27 s
    assert plan.unknown == ("x" if "x" in text else "") and len(plan.actions) == text.count("take")


@pytest.mark.parametrize(
    ("text", "valid"),
    [(PLAN, True), ("put mug in/on cabinet", True), ("go to bed 1", False), ("", False), ("take mug, fly", False)],
)
def test_a_plan_is_valid_if_it_can_be_meant_for_this_room(text: str, valid: bool) -> None:
    assert is_valid(read_plan(text), ("countertop 1", "cabinet 3")) is valid
    assert not is_valid(ParsedPlan(()), ())
