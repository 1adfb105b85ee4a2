"""The interface of planners, and the text that a language model as planner reads.

A planner is asked with the goal (room and task), the newest report, and what was done so far, and answers with a list
of high-level actions (`plans.py`). It stands beside `experts.base.Expert`, which answers for one state at a time.

With retrospective feedback (EMAC+, arXiv:2505.19905, section 3) it is also asked to judge the plan in progress after
each of its actions: two questions, to each of which it answers yes or no.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

from xrl_alignment.agents.language.answers import without_reasoning
from xrl_alignment.agents.language.prompt import build_prompt
from xrl_alignment.planning.plans import HighLevelAction, read_plan

Executed = tuple[str, str]  # a high-level action and the report on it


class PlanQuestion(NamedTuple):
    """What a planner is told.

    `goal` is the opening text (room and task sentence). `history` holds the executed high-level actions with their
    reports, oldest first; `report` is the newest of these reports, empty at the beginning and if reports are off.
    `feedback` is what the planner has said of earlier plans, oldest first. `plan` is the rest of the plan in progress:
    with it no new plan is wanted, but an answer to `QUESTIONS` (`read_judgement` reads it). `searched` are the places
    whose contents the text world has told, whatever the reports say: for `PlanGrammar`, not for the prompt. `failed`
    are the plans of this game that were given up or did not suffice: a grounded planner looks for another one.
    """

    goal: str
    report: str = ""
    history: tuple[Executed, ...] = ()
    feedback: tuple[str, ...] = ()
    plan: str = ""
    searched: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class Judgement(NamedTuple):
    """What a planner says of the newest action and of the rest of its plan; None: neither yes nor no."""

    executed: bool | None
    solves: bool | None
    comment: str = ""

    @property
    def replans(self) -> bool:
        """Whether the plan is given up: an answer is no. An answer that is neither yes nor no gives up nothing."""
        return self.executed is False or self.solves is False

    def sentence(self, action: str) -> str:
        """The feedback that stays in the planner's memory."""
        said = {True: "yes", False: "no", None: "unclear"}
        text = f"{action}: executed {said[self.executed]}, the plan can solve the task {said[self.solves]}"
        return f"{text}: {self.comment}" if self.comment else f"{text}."


class PlanAnswer(NamedTuple):
    """A planner's answer: its text (`plans.read_plan` reads it), who wrote it, and what it cost in tokens."""

    text: str
    planner: str = ""
    prompt_tokens: int = 0
    answer_tokens: int = 0


class Planner(ABC):
    """Writes plans. `identity` names it, a language model's adapter included: it is stored with every label."""

    identity: str

    @abstractmethod
    def plan_all(self, questions: Sequence[PlanQuestion]) -> list[PlanAnswer]:
        """One answer for each question, in order. Raises EndpointFault if a server cannot be asked."""

    def plan(self, goal: str, report: str = "", history: Sequence[Executed] = ()) -> list[HighLevelAction]:
        """The plan for one state; empty if the answer does not begin with a high-level action."""
        (answer,) = self.plan_all([PlanQuestion(goal, report, tuple(history))])
        return list(read_plan(answer.text).actions)

    def count(self, text: str) -> int:
        """The tokens of a text, as this planner counts them; 0 if it reads no tokens."""
        return 0

    def close(self) -> None:
        """Free what the planner holds."""
        return


SYSTEM = (
    "You plan household tasks in a text game. An agent carries out your plan and reports what it sees. Reply with the "
    "plan only, on one line: the next high-level actions, separated by commas, until the task is done. They have these "
    "forms: go to <place>, take <object>, clean <object>, heat <object>, cool <object>, put <object> in/on <place>, "
    "use <lamp>. `go to` also opens the place and looks into it. Name an object by its type until the agent has seen "
    "it with a number. If the object was not seen yet, go to some likely places first, then take it. The record says "
    "what was done so far."
)


# The paper's two questions. The first is about the newest action of the history, the second about `PlanQuestion.plan`.
QUESTIONS = (
    "Was the planned action executed successfully? (yes/no) Can the current plan solve the task? (yes/no) "
    "Answer with two words, then say why in one sentence."
)
JUDGE_SYSTEM = (
    "You supervise an agent that carries out a plan in a text game. The record says what was done and what the agent "
    "reported; its last line is the rest of the plan. Reply on one line with two answers, each yes or no, separated by "
    "a comma, then a sentence of why: was the newest action executed successfully, and can the rest of the plan solve "
    "the task? For example: yes, no: the fridge has no apple."
)
_ANSWER = re.compile(r"\b(yes|no)\b", re.IGNORECASE)
# The second answer, in what follows the first: at once, or at the beginning of a sentence; behind marks of a list, of
# Markdown or of a quotation, but not behind a colon, which begins the reason.
_NEXT_ANSWER = re.compile(r"(?:^[^\w:]*(?:and )?|[.!?;][^\w:]{0,4})(yes|no)\b", re.IGNORECASE)
MAX_JUDGEMENT = 500  # characters that are read of an answer


def read_judgement(text: str) -> Judgement:
    """The answer to `QUESTIONS`: its first two words that are yes or no, and what follows them.

    If the text begins with the first, the second follows at once or begins a sentence: "yes: the fridge has no apple"
    has one.
    """
    # A reasoning model's block may hold any number of "yes" and "no" before the answer.
    line = " ".join(without_reasoning(text)[:MAX_JUDGEMENT].split())
    first = _ANSWER.search(line)
    if not first:
        return Judgement(None, None, "")
    rest = line[first.end() :]
    second = (_ANSWER if re.search(r"\w", line[: first.start()]) else _NEXT_ANSWER).search(rest)
    executed = first[1].lower() == "yes"
    if not second:  # a single word answers the first question; what was not answered gives up no plan
        return Judgement(executed, None, "")
    return Judgement(executed, second[1].lower() == "yes", rest[second.end() :].strip(' ,.:;-*`|"'))


def plan_prompt(
    question: PlanQuestion, examples: str = "", *, budget: int | None = None, count: Callable[[str], int] = len
) -> str:
    """The text before the answer: worked `examples`, feedback, room and task, what was done with the reports, a `> `.

    It has the form of the acting model's prompt (`build_prompt`), with high-level actions as steps and the feedback as
    memories, of which it shows the last three. If the plan is to be judged, its rest is the last step, answered with
    `QUESTIONS`. With a `budget` (in units of `count`) the oldest steps are left out.
    """
    head = f"{examples.strip()}\n\n" if examples.strip() else ""
    # The examples always stay; what is left out are steps of this game.
    room = None if budget is None else budget - (count(head) if head else 0)
    judged = [(f"plan: {question.plan}", QUESTIONS)] if question.plan else []
    steps = [*question.history, *judged]
    return head + build_prompt(question.goal, question.feedback, steps, budget=room, count=count)
