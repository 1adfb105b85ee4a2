"""Follows one episode with a plan: which high-level action comes next, and when the planner is asked again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from alfworld_native.language.sentences import is_refusal
from alfworld_native.noise import word_noise
from xrl_alignment.agents.language.prompt import opening
from xrl_alignment.planning.controller import DONE, REJECTED, Controller, Refusal, words_of
from xrl_alignment.planning.planners.base import MAX_JUDGEMENT, Executed, PlanAnswer, PlanQuestion, read_judgement
from xrl_alignment.planning.planners.explorer import PlanningExplorer, judge
from xrl_alignment.planning.plans import HighLevelAction, is_valid, read_plan, write_plan
from xrl_alignment.planning.reports import Sight, in_view, lists_objects, write_report
from xrl_alignment.settings.planning import PlanRules

START = "start"  # the first plan; no replanning
JUDGED = ("not_executed", "not_solving")  # triggers of `feedback=questions`, by the question that was answered with no
FAILED = ("rejected", "not_found", "exhausted", *JUDGED)  # those that say that the plan before it was not enough


@dataclass
class PlanCall:
    """One call of the planner, as it is stored: what it was asked and why, what it answered, and what became of it.

    `corrected` is the explorer's plan for the same state. `failed`: an action was rejected, or none was known.
    """

    trigger: str
    history: tuple[Executed, ...]
    feedback: tuple[str, ...]
    plan: str
    planner: str
    valid: bool
    corrected: str
    tokens: int
    failed: bool = False


@dataclass
class Feedback:
    """The planner's judgement of its plan after an action, as it is stored, beside the true one.

    `plan` is the rest of the plan, `history` holds what was done before. `executed` and `solves` are None if the answer
    is neither yes nor no.
    """

    history: tuple[Executed, ...]
    feedback: tuple[str, ...]
    plan: str
    answer: str
    executed: bool | None
    solves: bool | None
    true_executed: bool
    true_solves: bool
    tokens: int


@dataclass
class _Current:
    """The current high-level action, and what was heard and seen since it began."""

    action: HighLevelAction
    heard: list[str] = field(default_factory=list)
    seen: list[str] | None = None


class PlanFollower:
    """Follows one episode. In turn: `question` and `take` while an answer is due, then `command`, then `observe`.

    With `rules.feedback=rules` the triggers say when the plan is given up. With `questions` the planner says so itself
    after each of the plan's actions (EMAC+, arXiv:2505.19905, section 3); of the triggers, `replan_exhausted` (the plan
    is used up), `replan_every`, and `replan_rejected` for a plan that ends in words that are no action count, too.

    Reports are those of `write_report`, with word noise of `report_severity`, drawn by `draw`. After
    `rules.max_replans` plans besides the first the planner is asked no more, and `stopped` says so; what is left of the
    plan is followed.
    """

    def __init__(
        self,
        text: str,
        rules: PlanRules,
        *,
        report_severity: int = 0,
        draw: random.Random | None = None,
    ) -> None:
        self.goal = opening(text)
        self.rules = rules
        self.report_severity = report_severity
        self.calls: list[PlanCall] = []
        self.history: list[Executed] = []
        self.counts: Counter[str] = Counter()  # plans by the trigger that asked for them
        self.feedbacks: list[Feedback] = []
        self.memory: list[str] = []  # of the planner: its feedbacks that said no
        self.carried_out: list[tuple[int, str]] = []  # high-level actions that were, and their places in the history
        self.sight = Sight()
        self.stopped = ""
        self.command: str | None = None  # the next command; None without a plan
        self._draw = draw or random.Random(0)
        self._controller = Controller(self.goal)
        self._explorer = PlanningExplorer()
        self._explorer.begin(text)
        self._waiting: list[HighLevelAction] = []
        self._now: _Current | None = None
        self._due = START
        self._asks_planner = rules.feedback == "questions"  # whether the planner judges its plan, and not the triggers
        self._judges = False  # whether the answer that is due is a judgement, not a plan
        self._refused = False  # whether the newest action of the history was not carried out
        self._steps = 0  # since the last plan
        self._unknown = ""  # the part of the plan that is no action
        self._sought = ""  # what the plan searches for, unknown when the plan was made

    @property
    def action(self) -> HighLevelAction | None:
        """The current high-level action."""
        return self._now.action if self._now else None

    @property
    def told(self) -> str:
        """The current high-level action as the agent reads it, with the names and places that it stands for."""
        return self._controller.told(self._now.action) if self._now else ""

    @property
    def due(self) -> bool:
        """Whether the planner is to be asked, for a plan or for its judgement of the one in progress."""
        return bool(self._due) or self._judges

    def question(self) -> PlanQuestion:
        """What the planner is asked now."""
        report = self.history[-1][1] if self.history else ""
        kept = tuple(self.memory[-self.rules.memory :]) if self.rules.memory else ()
        rest = write_plan(self._waiting) if self._judges else ""
        searched = tuple(sorted(self._controller.belief.seen))
        # A plan ended with the trigger of the next one; the newest plan with the one that is due, if any.
        ends = [*(call.trigger for call in self.calls), self._due][1:]
        plans = zip((call.plan for call in self.calls), ends, strict=True)
        failed = tuple(plan for plan, end in plans if end in FAILED and not (end == "exhausted" and _another(plan)))
        return PlanQuestion(self.goal, report, tuple(self.history), kept, rest, searched, failed)

    def take(self, answer: PlanAnswer) -> None:
        """Take in the planner's answer: follow its new plan, or go on or ask anew as it judges."""
        if self._judges:
            self._take_judgement(answer)
            return
        question, plan = self.question(), read_plan(answer.text)
        # Stored with every call: the explorer's plan for the same state, the correction from which the planner learns.
        call = PlanCall(
            trigger=self._due,
            history=question.history,
            feedback=question.feedback,
            plan=write_plan(plan.actions) if not plan.unknown else " ".join(answer.text.split())[:500],
            planner=answer.planner,
            valid=is_valid(plan, self._controller.receptacles),
            corrected=write_plan(self._explorer.plan()),
            tokens=answer.prompt_tokens + answer.answer_tokens,
            failed=not plan.actions,
        )
        self.counts[self._due] += 1
        self.calls.append(call)
        # What was in progress belongs to the old plan.
        self._due, self._steps, self._now = "", 0, None
        self._waiting = list(plan.actions)
        self._unknown = plan.unknown
        # The first thing that the plan takes or uses; if it comes into view, the rest of the search is needless.
        wanted = next((one.thing for one in plan.actions if one.verb in ("take", "use")), "")
        self._sought = "" if self._controller.find(wanted) else wanted
        self._advance()

    def _take_judgement(self, answer: PlanAnswer) -> None:
        # The question first: it holds the rest of the plan only as long as a judgement is due.
        question, self._judges = self.question(), False
        said, true = read_judgement(answer.text), judge(question, self._explorer.plan())
        self.feedbacks.append(
            Feedback(
                history=question.history,
                feedback=question.feedback,
                plan=question.plan,
                answer=" ".join(answer.text.split())[:MAX_JUDGEMENT],
                executed=said.executed,
                solves=said.solves,
                true_executed=not self._refused,
                true_solves=bool(true.solves),
                tokens=answer.prompt_tokens + answer.answer_tokens,
            )
        )
        if said.replans:
            # What was well needs no memory: the history says it already.
            self.memory.append(said.sentence(self.history[-1][0]))
            # The trigger is the first question with a no: the second one if the action was executed, or may have been.
            if self._plan_anew(JUDGED[said.executed is not False]):
                return
        self._advance()

    def observe(self, command: str, feedback: str, seen: Sequence[str] | None = None, true_feedback: str = "") -> None:
        """Take in an executed command (the plan's or another), the engine's answer, and what the agent says it sees.

        The planner reads `feedback`. The rules that carry out, judge and correct its plans read `true_feedback` if that
        is given: noise on texts does not change how plans are carried out.
        """
        true_feedback = true_feedback or feedback
        self._controller.observe(command, true_feedback)
        self._explorer.observe(command, true_feedback)
        self._steps += 1
        if seen is not None:
            self.sight.add(seen, in_view(self._controller.belief))
        if self._now:
            self._now.heard.append(feedback)
            self._now.seen = list(seen) if seen is not None else self._now.seen
            # If the agent did something else than the plan asks for, the plan is not at fault.
            planned = command == self.command
            if planned and is_refusal(true_feedback):
                if self._asks_planner:
                    self._fail(REJECTED)
                    if not self._judge():
                        self._advance()
                    return
                if self._ask("rejected"):
                    self._fail(REJECTED)
                    return
            # The agent has gone elsewhere, and there lies what the plan still searches for.
            found = self._now.action.verb == "go to" and not planned and self._has_found()
            if found and not self._asks_planner and self._ask("seen"):
                self._cut_short()
                return
        if self.rules.replan_every and self._steps >= self.rules.replan_every and self._ask("every"):
            if self._now:
                self._cut_short()
            return
        self._advance()

    def describes(self, feedback: str) -> bool:
        """Whether the agent is to describe its frame after this answer of the engine."""
        return self.rules.report in ("image", "both") and lists_objects(feedback)

    def _advance(self) -> None:
        """Find the first action that needs a command, or the reason for a new plan."""
        self.command = None
        while self._now or self._waiting:
            if self._now is None:
                self._now = _Current(self._waiting.pop(0))
                self._controller.start()
            step = self._controller.next(self._now.action)
            if isinstance(step, Refusal):
                if self._asks_planner:
                    self._fail(step)
                    if self._judge():
                        return
                    continue
                asked = self._ask(str(step))
                self._fail(step)
                if asked:
                    return
            elif step:
                self.command = step
                return
            else:
                self._end()
                if self._asks_planner:
                    if self._judge():
                        return
                    continue
                # The plan would go on searching for what has been seen in the meantime.
                searching = bool(self._waiting) and self._waiting[0].verb == "go to"
                if searching and self._has_found() and self._ask("seen"):
                    return
        # The plan is used up. If it ended at a part that is no action, the planner is told so.
        if self._unknown:
            note = write_report(self.rules.report, (), None, "I do not know this action.")
            self.history.append((self._unknown, word_noise(note, self.report_severity, self._draw)))
            self.calls[-1].failed = True
            self._unknown = ""
            if self._ask("rejected"):
                return
        self._ask("exhausted")

    def _has_found(self) -> bool:
        """Whether what the plan searches for has come into view since it was made."""
        return bool(self._sought) and self._controller.find(self._sought) is not None

    def _judge(self) -> bool:
        """Have the planner judge what is left of its plan; False if nothing is left, or no plan could follow."""
        self._judges = bool(self._waiting) and len(self.calls) <= self.rules.max_replans
        return self._judges

    def _ask(self, trigger: str) -> bool:
        """Have the planner asked because of `trigger`, if that trigger is on and the cap is not reached."""
        return bool(getattr(self.rules, f"replan_{trigger}")) and self._plan_anew(trigger)

    def _plan_anew(self, trigger: str) -> bool:
        """Have the planner asked for a plan; False if the cap is reached."""
        if len(self.calls) > self.rules.max_replans:  # the first call is no replan
            self.stopped = f"cap of {self.rules.max_replans} replans"
            return False
        self._due = trigger
        return True

    def _fail(self, refusal: Refusal) -> None:
        assert self._now is not None
        if refusal == REJECTED:
            self.calls[-1].failed = True
        self._end(words_of(refusal, self._now.action, self._controller.receptacles))

    def _cut_short(self) -> None:
        """End the current action for a new plan: neither carried out nor refused, unless this was its last step."""
        assert self._now is not None
        self._end(done=self._controller.next(self._now.action) == DONE)

    def _end(self, note: str = "", *, done: bool = True) -> None:
        """The current action is over: it goes into the history with its report. A `note` says why it was given up."""
        assert self._now is not None
        self._refused = bool(note)
        if done and not note:
            self.carried_out.append((len(self.history), str(self._now.action)))
        report = write_report(self.rules.report, self._now.heard, self._now.seen, note)
        self.history.append((str(self._now.action), word_noise(report, self.report_severity, self._draw)))
        self._now = None


def _another(plan: str) -> bool:
    """Whether `plan` may mean other things when it is carried out again: it takes something by its type."""
    return any(one.verb == "take" and one.thing.isalpha() for one in read_plan(plan).actions)
