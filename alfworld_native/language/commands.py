"""ALFWorld's commands: the canonical dialect, translation to a game's own, and normalising what a model wrote.

Canonical is the original's form, `put X in/on Y` (ALFWorld up to 0.3); ALFWorld 0.4's game files say `move X to Y`.
The dialect belongs to the game file (its grammar), so each environment translates at its border and everything else
(experts, buffers, prompts, metrics) sees the canonical form only.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

from alfworld_native.language.sentences import is_refusal

DIALECTS = ("put", "move")
MAX_THOUGHTS = 3  # thoughts in a row that are answered `OK.`; the next one goes to the environment like any action
_SAID = {  # dialect -> what to replace in its texts by the other dialect's
    "move": (
        (re.compile(r"^You move the (.+?) to the (.+)\.$"), r"You put the \1 in/on the \2."),
        (re.compile(r"move \(object\) to \(receptacle\)"), "put (object) in/on (receptacle)"),
    ),
    "put": (
        (re.compile(r"^You put the (.+?) in/on the (.+)\.$"), r"You move the \1 to the \2."),
        (re.compile(r"put \(object\) in/on \(receptacle\)"), "move (object) to (receptacle)"),
    ),
}
_EDGE = string.punctuation + string.whitespace
_MOVES_NO_OBJECT = ("go to ", "open ", "close ", "examine ", "look", "inventory", "help")
VERBS = frozenset("put move go use take open close heat cool clean slice examine".split())
_COMPLETE = {"go": 4, "use": 3}  # words of `go to cabinet 1`; what follows them is chatter (`… 1 slowly`)
_PREPOSITIONS = frozenset(("in", "on", "in/on", "into", "onto", "inside", "to"))


def canonical(command: str) -> str:
    """`command` of any dialect in the canonical one: `move X to Y` becomes `put X in/on Y`, all else stays."""
    if command.startswith("move "):
        what, found, where = command[5:].partition(" to ")
        if found:
            return f"put {what} in/on {where}"
    return command


def to_dialect(command: str, dialect: str) -> str:
    """`command` in a game's own dialect, `"put"` or `"move"`; the inverse of `canonical`.

    Raises ValueError for another dialect.
    """
    if dialect == "put":
        return canonical(command)
    if dialect != "move":
        raise ValueError(f"dialect {dialect!r} is unknown; use one of {', '.join(DIALECTS)}")
    if command.startswith("put "):
        what, found, where = command[4:].partition(" in/on ")
        if found:
            return f"move {what} to {where}"
    return command


def text_in_dialect(text: str, dialect: str) -> str:
    """The engine's `text` in `dialect`: what it says of `put` or `move`, and of both in its help; all else stays."""
    for command, sentence in _SAID[DIALECTS[1 - DIALECTS.index(dialect)]]:
        text = command.sub(sentence, text)
    return text


def is_thought(text: str) -> bool:
    """True for a ReAct thought: `think: …`, with or without the `> ` before it."""
    return text.lstrip("> \t").lower().startswith("think:")


def rejected_now(steps: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The commands of the newest (action, feedback) `steps` since one was carried out: each would be rejected again."""
    rejected: list[str] = []
    for action, feedback in reversed(steps):
        if is_refusal(feedback):
            rejected.append(action)
        elif not is_thought(action):
            break
    return tuple(dict.fromkeys(rejected))


def visited_now(steps: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The `go to` commands of `steps`, (action, feedback), that lead to where there can be nothing new.

    Those are the places where the agent has been since it last took, put or changed an object; places that it found
    closed and has not opened since are not among them.
    """
    visited: list[str] = []
    opened: set[str] = set()
    # From the newest step backwards, up to the last change of an object: `opened` holds what was opened later.
    for action, feedback in reversed(steps):
        if is_refusal(feedback):
            continue
        if not is_thought(action) and not action.startswith(_MOVES_NO_OBJECT):
            break
        if action.startswith("open "):
            opened.add(action.removeprefix("open "))
        if action.startswith("go to ") and not (
            feedback.strip().endswith(" is closed.") and action.removeprefix("go to ") not in opened
        ):
            visited.append(action)
    return tuple(dict.fromkeys(visited))


def normalise(text: str) -> str:
    """The command in what a language model wrote, in the canonical dialect (the original's `action_postprocess`).

    First non-blank line, lower case, without punctuation at the ends, without a leading `>` and without what follows a
    second one; for known verbs also without articles `the` and punctuation around words, `put X in|on Y` as
    `put X in/on Y`, `go to` cut after four words and `use` after three. Other text (a thought, prose) is only trimmed
    and lowered, so that the engine answers `Nothing happens.` to it. Normalising twice changes nothing.
    """
    line = next((part for part in text.splitlines() if part.strip(_EDGE)), "")
    line = " ".join(line.lower().split()).strip(_EDGE)
    if is_thought(line):
        return line
    line = line.partition(">")[0].strip(_EDGE)  # "go to desk 1 > look": the second action is not ours to take
    words = [word for word in (part.strip(string.punctuation) for part in line.split()) if word and word != "the"]
    if not words or words[0] not in VERBS:
        return line
    if words[0] in ("put", "move"):
        # `put X in Y`, `put X on Y`, `move X to Y` … -> `put X in/on Y`; whole words only (`tin`, `spoon` stay).
        at = next((i for i in range(2, len(words) - 1) if words[i] in _PREPOSITIONS), None)
        if at is not None:
            words = ["put", *words[1:at], "in/on", *words[at + 1 :]]
    return " ".join(words[: _COMPLETE.get(words[0])])
