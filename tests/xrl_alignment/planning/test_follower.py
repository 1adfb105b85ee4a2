"""When the planner is asked again, each trigger by itself; the cap; what the planner is told."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from xrl_alignment.planning.follower import PlanFollower
from xrl_alignment.planning.planners.base import QUESTIONS, PlanAnswer, plan_prompt
from xrl_alignment.planning.plans import HighLevelAction
from xrl_alignment.settings.planning import PlanRules

OPENING = (
    "You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a countertop 1, a desk 1, "
    "and a sinkbasin 1.\nYour task is to: put a mug in cabinet."
)
OFF = PlanRules(replan_rejected=False, replan_not_found=False, replan_seen=False, replan_exhausted=False)
EMPTY_COUNTER = "You arrive at countertop 1. On the countertop 1, you see nothing."
MUG_COUNTER = "You arrive at countertop 1. On the countertop 1, you see a mug 1."


def follow(plan: str, rules: PlanRules = OFF, **options) -> PlanFollower:
    follower = PlanFollower(OPENING, rules, **options)
    assert follower.due and follower.question().history == ()
    follower.take(PlanAnswer(plan, "me", 30, 4))
    return follower


def test_a_plan_is_followed_command_by_command() -> None:
    follower = follow("go to countertop 1, take mug, put mug in/on cabinet 1")
    for command, feedback in (
        ("go to countertop 1", MUG_COUNTER),
        ("take mug 1 from countertop 1", "You pick up the mug 1 from the countertop 1."),
        ("go to cabinet 1", "You arrive at cabinet 1. The cabinet 1 is closed."),
        ("open cabinet 1", "You open the cabinet 1. The cabinet 1 is open. In it, you see nothing."),
        ("put mug 1 in/on cabinet 1", "You put the mug 1 in/on the cabinet 1."),
    ):
        assert follower.command == command
        follower.observe(command, feedback)
    assert follower.command is None and follower.action is None and not follower.due
    assert [action for action, _ in follower.history] == ["go to countertop 1", "take mug", "put mug in/on cabinet 1"]
    assert follower.history[0][1] == MUG_COUNTER
    (call,) = follower.calls
    assert (call.trigger, call.planner, call.valid, call.failed, call.tokens) == ("start", "me", True, False, 34)
    assert call.corrected.endswith("take mug, put mug in/on cabinet 1")


@pytest.mark.parametrize(
    ("trigger", "plan", "feedback", "told"),
    [
        ("rejected", "go to countertop 1, take mug", "Nothing happens.", "Nothing happens."),
        # `environment.text_noise` exchanges words: it was taken for an action that had been carried out.
        ("rejected", "go to countertop 1, take mug", "happens. happens.", "happens. happens.\nNothing happens."),
        ("not_found", "go to countertop 1, take mug", EMPTY_COUNTER, "I have seen no mug."),
        ("seen", "go to countertop 1, go to desk 1, take mug", MUG_COUNTER, MUG_COUNTER),
        ("exhausted", "go to countertop 1", EMPTY_COUNTER, EMPTY_COUNTER),
    ],
)
def test_each_trigger_is_a_switch_and_counted(trigger: str, plan: str, feedback: str, told: str) -> None:
    for on in (False, True):
        follower = follow(plan, replace(OFF, **{f"replan_{trigger}": on}))
        follower.observe("go to countertop 1", feedback)
        assert follower.due is on
    assert follower.question().report == told
    follower.take(PlanAnswer("go to desk 1"))
    assert follower.counts == {"start": 1, trigger: 1} and follower.calls[-1].trigger == trigger


def test_the_planner_is_told_which_of_its_plans_have_failed() -> None:
    rules = replace(OFF, replan_rejected=True, replan_exhausted=True, replan_every=2)
    follower = follow("go to countertop 1", rules)
    follower.observe("go to countertop 1", MUG_COUNTER)  # exhausted
    assert follower.question().failed == ("go to countertop 1",)
    follower.take(PlanAnswer("take mug, go to desk 1, go to cabinet 1"))
    follower.observe("take mug 1 from countertop 1", "You pick up the mug 1 from the countertop 1.")
    follower.observe("go to desk 1", "You arrive at desk 1. On the desk 1, you see nothing.")  # two steps: no failure
    assert follower.due and follower.question().failed == ("go to countertop 1",)
    follower.take(PlanAnswer("clean mug"))
    follower.observe("go to sinkbasin 1", "Nothing happens.")  # rejected
    assert follower.question().failed == ("go to countertop 1", "clean mug")


@pytest.mark.parametrize(("thing", "failed"), [("mug 1", True), ("mug", False)])  # of its type there may be another
def test_a_plan_that_was_carried_out_may_be_carried_out_with_another_thing(thing: str, failed: bool) -> None:
    follower = follow(f"take {thing}", replace(OFF, replan_exhausted=True))
    follower.observe("go to countertop 1", MUG_COUNTER)
    follower.observe("take mug 1 from countertop 1", "You pick up the mug 1 from the countertop 1.")
    assert follower.due and follower.question().failed == ((f"take {thing}",) if failed else ())


def test_every_k_steps_the_planner_is_asked() -> None:
    follower = follow("go to cabinet 1, take mug", replace(OFF, replan_every=2))
    follower.observe("go to cabinet 1", "You arrive at cabinet 1. The cabinet 1 is closed.")
    assert not follower.due and follower.command == "open cabinet 1"
    follower.observe("look", "You are facing the cabinet 1. Next to it, you see nothing.")  # the agent's own idea
    assert follower.due and follower.question().history[-1][0] == "go to cabinet 1"


def test_steps_are_counted_from_each_plan_and_a_last_step_carries_its_action_out() -> None:
    follower = follow("go to countertop 1, take mug", replace(OFF, replan_every=2))
    follower.observe("look", "You are facing the desk 1. Next to it, you see nothing.")
    follower.observe("go to countertop 1", MUG_COUNTER)
    assert follower.due and follower.carried_out == [(0, "go to countertop 1")]
    follower.take(PlanAnswer("take mug, go to desk 1"))
    follower.observe("look", "You are facing the countertop 1. Next to it, you see nothing.")
    assert not follower.due


def test_what_was_in_view_before_the_plan_is_no_news() -> None:
    follower = follow("go to countertop 1", replace(OFF, replan_exhausted=True))
    follower.observe("go to countertop 1", MUG_COUNTER)
    follower.rules = replace(OFF, replan_seen=True)
    follower.take(PlanAnswer("go to sinkbasin 1, go to desk 1, take mug 1"))
    follower.observe("go to sinkbasin 1", "You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing.")
    assert not follower.due and follower.command == "go to desk 1"


def test_an_agent_that_does_not_do_what_was_planned_is_no_reason_for_another_plan() -> None:
    follower = follow("go to countertop 1, take mug", PlanRules())
    follower.observe("open window 1", "Nothing happens.")
    assert not follower.due and follower.command == "go to countertop 1" and not follower.calls[0].failed


@pytest.mark.parametrize("on", [False, True])
def test_an_agent_that_finds_elsewhere_what_the_plan_searches_for_gets_a_new_plan(on: bool) -> None:
    follower = follow("go to desk 1, go to cabinet 1, take mug", replace(OFF, replan_seen=on))
    follower.observe("go to sinkbasin 1", "You arrive at sinkbasin 1. On the sinkbasin 1, you see a fork 1.")
    assert not follower.due and follower.command == "go to desk 1"
    follower.observe("go to countertop 1", MUG_COUNTER)
    assert follower.due is on and follower.action == (None if on else HighLevelAction("go to", place="desk 1"))
    if on:
        (action, report) = follower.question().history[-1]
        assert action == "go to desk 1" and report.endswith(MUG_COUNTER) and not follower.carried_out


@pytest.mark.parametrize("text", ["", "dance on table 1", "<think>hm"])
def test_a_plan_without_known_actions_is_rejected_and_asked_for_again_up_to_the_cap(text: str) -> None:
    follower = follow(text, PlanRules(max_replans=3))
    while follower.due:
        follower.take(PlanAnswer(text))
    assert follower.stopped == "cap of 3 replans" and follower.command is None and len(follower.calls) == 4
    assert all(call.failed and not call.valid for call in follower.calls)


def test_after_the_known_actions_the_planner_is_told_of_the_unknown_one() -> None:
    follower = follow("go to countertop 1, juggle mug 1", PlanRules())
    follower.observe("go to countertop 1", EMPTY_COUNTER)
    assert follower.due and follower.calls[0].failed
    assert follower.question().history[-1] == ("juggle mug 1", "I do not know this action.")


def test_the_cap_follows_the_rest_of_the_plan() -> None:
    follower = follow("go to bed 1, go to countertop 1", PlanRules(max_replans=0))
    assert not follower.due and follower.stopped == "cap of 0 replans" and follower.command == "go to countertop 1"


def test_reports_may_be_off_or_noisy() -> None:
    silent = follow("go to countertop 1", replace(OFF, report="none"))
    silent.observe("go to countertop 1", MUG_COUNTER)
    assert silent.history == [("go to countertop 1", "")] and silent.question().report == ""
    noisy = follow("go to countertop 1", report_severity=4, draw=random.Random(3))
    noisy.observe("go to countertop 1", MUG_COUNTER)
    assert 0 < len(noisy.history[0][1].split()) < len(MUG_COUNTER.split())


def test_descriptions_are_counted_and_reported() -> None:
    follower = follow("go to countertop 1", replace(OFF, report="image"))
    assert follower.describes(MUG_COUNTER) and not follower.describes("Nothing happens.")
    follower.observe("go to countertop 1", MUG_COUNTER, ["mug 1", "cup 1"])
    assert follower.history == [("go to countertop 1", "I see mug 1, cup 1.")]
    assert (follower.sight.precision, follower.sight.recall) == (0.5, 1.0)
    assert not follow("go to desk 1", replace(OFF, report="text")).describes(MUG_COUNTER)


def judged(plan: str, *answers: str, **rules: object) -> PlanFollower:
    """A follower by the paper's questions that has carried out the first action of `plan`, and heard `answers`."""
    follower = follow(plan, replace(OFF, feedback="questions", replan_exhausted=True, **rules))
    follower.observe("go to countertop 1", EMPTY_COUNTER)
    for answer in answers:
        follower.take(PlanAnswer(answer, "me", 20, 2))
    return follower


def test_after_each_action_the_planner_judges_its_plan() -> None:
    follower = judged("go to countertop 1, go to desk 1, take mug")
    asked = follower.question()
    assert follower.due and asked.plan == "go to desk 1, take mug" and asked.history[-1][0] == "go to countertop 1"
    assert plan_prompt(asked).endswith(f"> plan: go to desk 1, take mug\n{QUESTIONS}\n> ")
    follower.take(PlanAnswer("Yes, yes: the mug may be on the desk.", "me", 20, 2))
    assert not follower.due and follower.command == "go to desk 1" and not follower.memory
    (said,) = follower.feedbacks
    assert (said.executed, said.solves, said.true_executed, said.tokens) == (True, True, True, 22)
    assert len(follower.calls) == 1  # a judgement is no plan


@pytest.mark.parametrize(
    ("answer", "trigger", "memory"),
    [
        ("no, no: it was closed", "not_executed", "executed no, the plan can solve the task no: it was closed"),
        ("yes, no", "not_solving", "executed yes, the plan can solve the task no."),
    ],
)
def test_an_answer_of_no_is_remembered_and_asks_for_a_plan(answer: str, trigger: str, memory: str) -> None:
    follower = judged("go to countertop 1, go to desk 1, take mug", answer)
    asked = follower.question()
    assert follower.due and not asked.plan and asked.feedback == (f"go to countertop 1: {memory}",)
    assert f"Memory: {asked.feedback[0]}\n" in plan_prompt(asked)
    follower.take(PlanAnswer("go to cabinet 1, take mug"))
    assert follower.calls[-1].trigger == trigger and follower.command == "go to cabinet 1"
    assert follower.calls[-1].feedback == asked.feedback


@pytest.mark.parametrize("answer", ["", "maybe", "yes", "the mug is gone", "\ud800" * 9000])
def test_an_answer_that_is_neither_yes_nor_no_gives_up_nothing(answer: str) -> None:
    follower = judged("go to countertop 1, go to desk 1, take mug", answer)
    assert not follower.due and follower.command == "go to desk 1" and follower.feedbacks[0].solves is None
    assert len(follower.feedbacks[0].answer) <= 500


def test_a_planner_that_always_says_no_ends_at_the_cap() -> None:
    follower = judged("go to countertop 1, go to desk 1, take mug", max_replans=2)
    for number in range(20):
        while follower.due:
            follower.take(PlanAnswer("no, no" if follower.question().plan else f"go to cabinet {number % 3 + 1}, look"))
        if follower.command is None:
            break
        follower.observe(follower.command, "Nothing happens.")
    assert len(follower.calls) == 3 and len(follower.feedbacks) <= 3
    assert follower.stopped == "cap of 2 replans"


def test_only_the_newest_feedbacks_are_read() -> None:
    follower = judged("go to countertop 1, go to desk 1", "yes, no: first", memory=2)
    for number in range(3):
        follower.take(PlanAnswer("go to countertop 1, go to desk 1"))
        follower.observe("go to countertop 1", EMPTY_COUNTER)
        follower.take(PlanAnswer(f"yes, no: reason {number}"))
    assert len(follower.memory) == 4
    assert [text[-8:] for text in follower.question().feedback] == [
        "reason 1",
        "reason 2",
    ]
    assert replace(follower.rules, memory=0).memory == 0
    follower.rules = replace(follower.rules, memory=0)
    assert follower.question().feedback == ()


def test_a_refused_action_is_judged_with_its_reason() -> None:
    follower = follow("take mug, go to desk 1", replace(OFF, feedback="questions"))
    assert follower.due and follower.question().report == "I have seen no mug."
    follower.take(PlanAnswer("no, yes"))
    assert follower.feedbacks[0].true_executed is False and follower.carried_out == []
    assert follower.due and not follower.question().plan  # a failed step is planned anew, whatever comes after it


def test_what_is_true_of_an_action_does_not_depend_on_what_is_reported() -> None:
    follower = follow("take mug, go to desk 1", replace(OFF, feedback="questions", report="none"))
    follower.take(PlanAnswer("yes, yes"))
    assert follower.feedbacks[0].true_executed is False


def test_the_triggers_ask_for_no_plan_where_the_planner_judges() -> None:
    follower = follow("go to desk 1, go to cabinet 1, take mug", replace(OFF, feedback="questions", replan_seen=True))
    follower.observe("go to countertop 1", MUG_COUNTER)
    assert not follower.due and follower.command == "go to desk 1"


def test_after_the_cap_no_judgement_is_asked_that_no_plan_could_follow() -> None:
    assert not judged("go to countertop 1, go to desk 1, take mug", max_replans=0).due
