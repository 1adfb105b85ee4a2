"""Action spaces: from a task to the model's question, and from the model's text to an action that a game accepts.

A space is a module with `TASKS`, `question` (what the model is asked) and `parse` (its answer as an action). `parse`
never fails: what cannot be used becomes an action that does no harm, with the reason in `reasoning`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from policy_server.games import alfworld, minerl
from policy_server.games.prompts import Question, Reading


class ActionSpace(Protocol):
    """What the modules of `SPACES` offer."""

    TASKS: Iterable[str]

    def question(self, task: str, prompt: str, commands: Sequence[str], history: Sequence[str]) -> Question:
        """What the model is asked; ValueError where the request lacks something.

        `prompt` and `commands` come with the request, `history` (one line a step, oldest first) from its session.
        """
        ...

    def parse(self, text: str, commands: Sequence[str]) -> Reading:
        """The model's text as an action, with the reasoning to show."""
        ...


SPACES: dict[str, ActionSpace] = {task: space for space in ((minerl, alfworld)) for task in space.TASKS}


def space_of(task: str) -> ActionSpace:
    """The space of a task; LookupError that names the tasks there are."""
    if task not in SPACES:
        raise LookupError(f"unknown task {task[:80]!r}; there are {', '.join(SPACES)}")
    return SPACES[task]
