"""One command from what a language model wrote: prose, markup, reasoning and further actions are dropped.

Chat models wrap commands in lists, quotes, code fences or a sentence; reasoning models write a block before them. Text
that no rule reads as a command of ALFWorld gives no command: a label made of prose would teach the student prose.

Any text is read in linear time: the rules for lines see no two blanks in a row, so no `\\s*` has a choice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from alfworld_native.language.commands import is_thought, normalise

NEAR_MISS = 0.8  # least similarity (difflib's ratio) at which an answer counts as a misspelt admissible command
MAX_COMMAND = 500  # characters; nothing longer is a command
# Comparing takes quadratic time in the length, so both are bounded: ALFWorld's longest command has 60 characters, and
# no state has 200 commands.
MAX_NEAR, MAX_COMPARED = 100, 500
MIN_ANSWER = 5  # the original asks again for anything shorter
_VERBS = frozenset("go take put move open close use heat cool clean slice examine look inventory help".split())
# "<think>…</think>"; without an end, if the answer's length was used up within it.
_REASONING = re.compile(r"<(think|thinking|reasoning|thought)>.*?(</\1>|\Z)", re.DOTALL | re.IGNORECASE)
# "…</think>" without a beginning: some chat templates put the opening mark into the prompt.
_REASONING_END = re.compile(r"\A.*</(?:think|thinking|reasoning|thought)>", re.DOTALL | re.IGNORECASE)
# "> go to desk 1", "- go to desk 1", "1. go to desk 1", "**go to desk 1**", and several of them.
_BULLET = re.compile(r"^(?:[>*•–-]\s*|\(?\d+[.):]\s+|\*\*)+")
# "Action: …", "The next best action is: …".
_LABEL = re.compile(
    r"^(?:the\s+)?(?:(?:next|best|single|my|final|new)\s+)*(?:action|command|answer|act)(?: is)?\s*:\s*", re.I
)
_THOUGHT = re.compile(r"^(?:think|thought|thinking)\s*:\s*", re.I)
_QUOTED = re.compile(r"[`\"“]([^`\"“”]+)[`\"”]")  # I would "go to desk 1" now
_SECOND_ACTION = re.compile(r"(?:,? (?:and )?then\b|;).*", re.I | re.DOTALL)  # go to desk 1, and then open it


@dataclass(frozen=True)
class ParsedAnswer:
    """What was found in an answer: a command in the canonical dialect (empty: none), and a thought (one line)."""

    action: str = ""
    thought: str = ""


def read_answer(text: str) -> ParsedAnswer:
    """The first command in `text`, and the thoughts written before it (`think: …`).

    Reasoning blocks (`<think>…</think>`, also one that was cut off) are dropped, markup is stripped, and of several
    actions only the first counts.
    """
    thoughts = []
    for line in without_reasoning(text).splitlines():
        line = _LABEL.sub("", _BULLET.sub("", " ".join(line.split()))).strip("*` ")
        if is_thought(line) or _THOUGHT.match(line):
            thoughts.append(" ".join(_THOUGHT.sub("", line).split()))
        elif command := _command(line):
            return ParsedAnswer(command, " ".join(thoughts))
    return ParsedAnswer("", " ".join(thoughts))


def without_reasoning(text: str) -> str:
    """`text` without the block in which a reasoning model thinks aloud, even if its beginning or end is missing."""
    return _REASONING_END.sub("", _REASONING.sub("", text))


def _command(line: str) -> str:
    """The command that a line is, or the first one that it quotes; empty if there is none."""
    for candidate in (line, *_QUOTED.findall(line)):
        action = normalise(_SECOND_ACTION.sub("", candidate))
        if action.partition(" ")[0] in _VERBS and len(action) <= MAX_COMMAND:
            return action
    return ""


def ground(action: str, admissible: Sequence[str]) -> str:
    """The admissible command that `action` just misses (a missing number, a wrong preposition, a typing error).

    Returns `action` itself if it is admissible, or if no command is near. The verb and all numbers have to agree: the
    numbers of `action` are those of the command, or some of them in the same order, because `cabinet 1` is not a
    misspelling of `cabinet 2`. Commands of more than MAX_NEAR characters are near nothing.
    """
    if action in admissible or len(action) > MAX_NEAR:
        return action
    verb, numbers = action.partition(" ")[0], [word for word in action.split() if word.isdigit()]
    near: list[str] = []
    for text in admissible:
        if len(text) <= MAX_NEAR and text.partition(" ")[0] == verb:
            # `in` moves the iterator on: true if the words of `text` hold the numbers in this order.
            words = iter(text.split())
            if all(number in words for number in numbers):
                near.append(text)
    best, similarity = action, NEAR_MISS
    # Ratcliff and Obershelp's similarity: twice the number of characters in matching blocks, by the length of both.
    for command in near[:MAX_COMPARED]:
        ratio = SequenceMatcher(None, action, command, autojunk=False).ratio()
        if ratio > similarity:
            best, similarity = command, ratio
    return best
