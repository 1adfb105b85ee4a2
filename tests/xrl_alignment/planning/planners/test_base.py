"""What a language model as planner reads, and the plain call of a planner."""

from __future__ import annotations

import pytest

from xrl_alignment.planning.planners.base import PlanQuestion, plan_prompt, read_judgement

GOAL = "You are in the middle of a room. you see a desk 1.\nYour task is to: put a pen in desk."
HISTORY = tuple((f"go to desk {i}", f"On the desk {i}, you see nothing.") for i in range(1, 9))


def test_the_prompt_has_the_form_of_the_agents() -> None:
    prompt = plan_prompt(PlanQuestion(GOAL, "", HISTORY[:1]))
    assert prompt == f"{GOAL}\n> go to desk 1\nOn the desk 1, you see nothing.\n> "
    assert plan_prompt(PlanQuestion(GOAL), "An example.\n") == f"An example.\n\n{GOAL}\n> "


def test_an_empty_report_leaves_the_action_alone() -> None:
    assert plan_prompt(PlanQuestion(GOAL, "", (("take pen", ""),))) == f"{GOAL}\n> take pen\n> "


def test_a_budget_leaves_out_the_oldest_steps() -> None:
    prompt = plan_prompt(PlanQuestion(GOAL, "", HISTORY), "Example.", budget=250)
    assert len(prompt) <= 250 and prompt.startswith("Example.\n\nYou are") and "desk 8" in prompt
    assert "> go to desk 1\n" not in prompt and "...\n" in prompt


def test_a_plan_is_a_list_of_actions(written) -> None:
    planner = written("go to desk 1, take pen, sing")
    assert list(map(str, planner.plan(GOAL, "report", HISTORY))) == ["go to desk 1", "take pen"]
    assert planner.asked == [PlanQuestion(GOAL, "report", HISTORY)]
    planner.close()


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("yes, no: the fridge has no apple.", (True, False, "the fridge has no apple")),
        ("1. Yes\n2. No", (True, False, "")),
        ("<think>no, no</think>Yes. Yes.", (True, True, "")),
        ("No", (False, None, "")),
        ("yes: the fridge has no apple.", (True, None, "")),
        ("Yes, it was done. No, the plan lacks a lamp.", (True, False, "the plan lacks a lamp")),
        ("Executed: yes, solves: no", (True, False, "")),
        # Marks of a list, of Markdown or of a quotation hid the second answer.
        ("- Yes\n- No", (True, False, "")),
        ("**Yes**, **no**: the fridge has no apple.", (True, False, "the fridge has no apple")),
        ("Yes, it was done. **No**, the plan lacks a lamp.", (True, False, "the plan lacks a lamp")),
        ("`yes` | `no`", (True, False, "")),
        ("I know nothing of eyes or noses", (None, None, "")),
        ("", (None, None, "")),
        ("yes " * 100_000, (True, True, " ".join(["yes"] * 123))),
    ],
)
def test_two_answers_are_read(text: str, read: tuple) -> None:
    assert read_judgement(text) == read
