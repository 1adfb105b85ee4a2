"""High-level actions: a plan is a list of them, and a language model writes it as one line.

They are ALFWorld's sub-goals in the words of its commands. Objects and places may carry the game's number or only a
type, because a plan is made before anything is seen:

    go to <place>            look at (or into) a place
    take <object>            wherever it is known to be
    clean|heat|cool <object> with the appliance of the room; the object is held
    put <object> in/on <place>
    use <lamp>               wherever it is known to be

`go to` stands for going there and opening what is closed, `take` for going there, opening and taking: `controller.py`
turns each into commands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from alfworld_native.language.commands import canonical, normalise
from alfworld_native.language.sentences import type_of
from xrl_alignment.agents.language.answers import without_reasoning

MAX_ACTIONS = 12  # of a plan; the rest of a longer one is dropped
MAX_ACTION = 80  # characters
TREATMENTS = ("clean", "heat", "cool")
VERBS = ("go to", "take", *TREATMENTS, "put", "use")
_NAME = r"[a-z]+(?: \d+)?"
_FORMS = re.compile(
    rf"(?P<go>go to) (?P<there>{_NAME})|(?P<put>put) (?P<thing>{_NAME}) in/on (?P<where>{_NAME})"
    rf"|(?P<verb>take|clean|heat|cool|use) (?P<object>{_NAME})"
)
_SURPLUS = re.compile(r" (?:from|with) .*$")  # `take mug 1 from desk 1`: the controller knows where it is
# `Plan: …`, `> …`, `- …`, `1. …`, and the first and the last line of a code block.
_MARK = re.compile(r"^\s*(?:plan\s*:|>|[-*•]|\(?\d+[.):]|```\w*$)\s*", re.IGNORECASE)
# A first line that announces the plan: `Sure, here is the plan:`, also in front of an action.
_HEADING = re.compile(r"\A[^\n]*?(?:\bplan\W{0,2}:[ *]{0,4}|:[ *]{0,4}$)", re.IGNORECASE | re.MULTILINE)
# Between two actions, without the blanks around it: `\s*` in front is quadratic.
_BETWEEN = re.compile(r"[,;\n]|->|→|\.\s|\b(?:then|and)\b", re.IGNORECASE)


@dataclass(frozen=True)
class HighLevelAction:
    """`verb` is one of `VERBS`; `thing` (an object or lamp) and `place` are empty if the verb has none."""

    verb: str
    thing: str = ""
    place: str = ""

    def __str__(self) -> str:
        if self.verb == "put":
            return f"put {self.thing} in/on {self.place}"
        return f"{self.verb} {self.thing or self.place}"


@dataclass(frozen=True)
class ParsedPlan:
    """What was read from a planner's text: the actions, and the first part that is none (empty: all are known)."""

    actions: tuple[HighLevelAction, ...]
    unknown: str = ""


def read_action(text: str) -> HighLevelAction | None:
    """The high-level action that `text` states, None if it states none."""
    # In the dialect of the commands ("put mug on desk" -> "put mug in/on desk"), without what the controller knows.
    # Cut first, at twice the length: what is dropped (articles, blanks) may make a long text a short command.
    command = _SURPLUS.sub("", canonical(normalise(text[: 2 * MAX_ACTION])))
    match = _FORMS.fullmatch(command) if len(command) <= MAX_ACTION else None
    if match is None:
        return None
    if match["go"]:
        return HighLevelAction("go to", place=match["there"])
    if match["put"]:
        return HighLevelAction("put", match["thing"], match["where"])
    return HighLevelAction(match["verb"], match["object"])


def read_plan(text: str) -> ParsedPlan:
    """The plan in a language model's answer: actions separated by commas, semicolons, full stops, arrows, lines, words.

    Reading ends at the first part that is no high-level action, because the parts after it were planned to follow it.
    Reasoning blocks, a heading, list marks, `Plan:` and the ends of a code block are dropped.
    """
    actions: list[HighLevelAction] = []
    for part in _BETWEEN.split(_HEADING.sub("", without_reasoning(text).strip())):
        part = _MARK.sub("", part).strip()
        if not part or part.isdecimal():  # a list's number, which its full stop has cut off
            continue
        action = read_action(part)
        if action is None:
            return ParsedPlan(tuple(actions), part[:MAX_ACTION])
        actions.append(action)
        if len(actions) == MAX_ACTIONS:
            break
    return ParsedPlan(tuple(actions))


def write_plan(actions: Sequence[HighLevelAction]) -> str:
    """The line that `read_plan` reads."""
    return ", ".join(map(str, actions))


def is_valid(plan: ParsedPlan, receptacles: Sequence[str]) -> bool:
    """Whether the plan has an action, all are known, and all places are of the room (by name or by type)."""
    known = {*receptacles, *map(type_of, receptacles)}
    places = {action.place for action in plan.actions if action.place}
    return bool(plan.actions) and not plan.unknown and places <= known
