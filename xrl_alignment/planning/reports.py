"""Reports: what the planner is told after an action, in the engine's words, as what the agent sees, both, or nothing.

The agent describes its frame by continuing its own text: after `> go to desk 1` it writes the sentence in which the
engine would list what is there. The objects named in it are compared with those that the text world lists.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from alfworld_native.experts.belief import Belief
from alfworld_native.language.feedback import OPEN, SURFACE, whole_sentences
from alfworld_native.language.sentences import names_in, process_ob

_NAME, _TYPE = re.compile(r"[a-z]+ \d+"), re.compile(r"[a-z]+")


@dataclass
class Sight:
    """Objects that descriptions named, objects that were there, and those that are both."""

    named: int = 0
    there: int = 0
    right: int = 0

    def add(self, named: Iterable[str], there: Iterable[str]) -> None:
        """Count one description, and what was there; the names of both as the environment's texts have them."""
        # A name with a number is one object, however often it is named; of a type alone each mention is another one.
        counts = [
            Counter({name: 1 if " " in name else times for name, times in Counter(names).items()})
            for names in (named, there)
        ]
        self.named += counts[0].total()
        self.there += counts[1].total()
        self.right += (counts[0] & counts[1]).total()

    def merge(self, other: Sight) -> None:
        """Count the descriptions of another episode, too."""
        self.named += other.named
        self.there += other.there
        self.right += other.right

    @property
    def precision(self) -> float | None:
        """Share of the named objects that were there; None if nothing was named."""
        return self.right / self.named if self.named else None

    @property
    def recall(self) -> float | None:
        """Share of the objects there that were named; None if there were none."""
        return self.right / self.there if self.there else None


def described(text: str, *, by_type: bool = False) -> list[str]:
    """The objects that a description names: those of the first sentence of `text` that lists any, cut off or not.

    Only names count, with `by_type` those of types: a model that has hardly learned to describe writes `a 3`, or
    repeats a number.
    """
    # The model may go on with the next action ("\\n> …"), or be cut off: the text up to there, as a whole sentence.
    match = _listing(text.partition("\n>")[0].rstrip(".") + ".")
    form = _TYPE if by_type else _NAME
    names = [form.match(name) for name in names_in(match[2])] if match else []
    return [name[0] for name in names if name]


def lists_objects(feedback: str) -> bool:
    """Whether the engine's answer says what lies somewhere: then there is something to describe."""
    return _listing(feedback) is not None


def in_view(belief: Belief) -> list[str]:
    """The objects at the agent's place, as the text world has told them: by type, if its texts name no numbers."""
    return [belief.said(thing) for thing, place in belief.place.items() if place in belief.here]


def write_report(report: str, heard: Sequence[str], seen: Sequence[str] | None, note: str = "") -> str:
    """The report on one high-level action; `report` is `text`, `image`, `both` or `none`.

    `heard` are the engine's answers to its commands, oldest first; those that list objects count, and the last one.
    `seen` are the objects that the agent's last description names, None if there was nothing to describe. `note`
    says why the action was given up. Each part is a line.
    """
    parts: list[str] = []
    # In the engine's words: what lies at the places on the way, and the last answer, whatever it is.
    if report in ("text", "both"):
        parts += [process_ob(text).strip() for text in heard[:-1] if lists_objects(text)]
        parts += [process_ob(text).strip() for text in heard[-1:]]
    # As the agent sees it.
    if report in ("image", "both") and seen is not None:
        parts.append(f"I see {', '.join(seen) or 'nothing'}.")
    if report != "none":
        parts.append(note)
    # Each line once: two looks at one place give the same.
    return "\n".join(dict.fromkeys(part for part in parts if part))


def _listing(text: str) -> re.Match[str] | None:
    # What lies on a surface, or in what was opened: ALFWorld's two sentences that list objects.
    told = whole_sentences(text)
    return SURFACE.search(told) or OPEN.search(told)
