"""The explorer as planner: its next steps as a plan of high-level actions.

Its plans are the corrections from which a language model learns to plan (`learning.py`), and the best that a planner
can do that knows only what the agent has seen. With a language model in its place nothing else changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from alfworld_native.experts.explorer import Explorer
from alfworld_native.language.sentences import type_of
from xrl_alignment.planning.planners.base import Judgement, PlanAnswer, Planner, PlanQuestion
from xrl_alignment.planning.plans import HighLevelAction, read_plan, write_plan

SEARCHES = 3  # places that a plan searches before it ends with what to do once the object is found


class PlanningExplorer(Explorer):
    """The explorer, following an episode, that can say what it would do from here on."""

    name = "planning explorer"

    def plan(self, searches: int = SEARCHES) -> list[HighLevelAction]:
        """The plan from here to the end of the task; if several objects are wanted, to the end of the trip with one.

        As long as the object was not seen, the plan begins with the `searches` likeliest places. It is empty for a task
        that cannot be read or done.
        """
        if self._hopeless:
            return []
        held, task = self._belief.held, self._choose_task()
        if held and type_of(held) == task.object_type:
            return self._finish(held, searches)
        leave = [HighLevelAction("put", held, spot)] if held and (spot := self._spot_for(held, self._types)) else []
        # What it holds is not wanted: put it away. Then the object that it knows of, or a search for one.
        thing, _ = self._known_object(task)
        if thing:
            return [*leave, HighLevelAction("take", thing), *self._finish(thing, searches)]
        search = self._searches(task.object_type, searches)
        return [*leave, *search, HighLevelAction("take", task.object_type), *self._finish(task.object_type, 0)]

    def _finish(self, thing: str, searches: int) -> list[HighLevelAction]:
        """What to do with the object in the hand, named or by type."""
        task = self._task
        if task.treatment == "look":
            lamps = [name for name in self._belief.place if type_of(name) == task.target_type]
            search = [] if lamps else self._searches(task.target_type, searches)
            # The name decides between several lamps, not the order in which they were seen.
            return [*search, HighLevelAction("use", min(lamps, default=task.target_type))]
        treat = [] if self._belief.treated(thing, task.treatment) else [HighLevelAction(task.treatment, thing)]
        return [*treat, HighLevelAction("put", thing, self._target(thing, task))]

    def _searches(self, wanted: str, number: int) -> list[HighLevelAction]:
        if not number:
            return []
        belief, worths = self._belief, self._worths.get(wanted) or self._rate(wanted)
        unseen = [place for place in belief.receptacles if place not in belief.seen] or list(belief.receptacles)
        # What a place is worth for each step of the way there; among equals the place that comes first.
        # The place at which the agent stands is no step away: it counts as 1, for it is a divisor.
        unseen.sort(key=lambda place: (-worths[place] / (self._distance(place) or 1.0), -self._ranks[place]))
        return [HighLevelAction("go to", place=place) for place in unseen[:number]]


class ExplorerPlanner(Planner):
    """Plans as the explorer does; it reads the history anew each time, so it needs reports in the engine's words."""

    identity = "explorer"

    def plan_all(self, questions: Sequence[PlanQuestion]) -> list[PlanAnswer]:
        """See `Planner`; it costs no tokens."""
        answers = []
        for question in questions:
            right = explorers_plan(question)
            text = write_plan(right)
            if question.plan:  # not a new plan is wanted, but a judgement of this one
                judged = judge(question, right)
                text = ", ".join("yes" if answer else "no" for answer in (judged.executed, judged.solves))
            answers.append(PlanAnswer(text, self.identity))
        return answers


def judge(question: PlanQuestion, right: Sequence[HighLevelAction]) -> Judgement:
    """The true answers to `QUESTIONS`, `right` being the explorer's plan for the state.

    The action was executed if its report names no refusal. The rest of the plan can solve the task if it does the same
    with the same things as `right`, wherever it searches for them, and searches for nothing that is known already.
    """
    # ALFWorld's own sentence, the two of `controller.words_of`, and the follower's for a part that is no action.
    refusals = ("Nothing happens.", "I have seen no ", "There is no ", "I do not know ")
    executed = not any(mark in question.report for mark in refusals)
    rest = read_plan(question.plan).actions
    deeds = [
        [(one.verb, type_of(one.thing), type_of(one.place)) for one in plan if one.verb != "go to"]
        for plan in (rest, right)
    ]
    searches = [bool(plan) and plan[0].verb == "go to" for plan in (rest, right)]
    # `<=` of truth values: the rest of the plan may search only if the explorer would search, too.
    return Judgement(executed, bool(rest) and deeds[0] == deeds[1] and searches[0] <= searches[1])


def explorers_plan(question: PlanQuestion) -> list[HighLevelAction]:
    """The explorer's plan for a state, which it reads anew from the history."""
    explorer = PlanningExplorer()
    explorer.begin(question.goal)
    for action, report in question.history:
        for line in report.splitlines():  # a report holds one answer of the engine in each line
            explorer.observe(action, line)
    return explorer.plan()
