"""Action spaces: which game module makes the prompt for a task and parses the model's answer.

An action space is a module with `TASKS`, `model_prompt` and `parse`. `parse` never fails. It replaces what it cannot
use by a harmless action and says so in `reasoning`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from lavis.common.errors import unknown
from policy_server.games import alfworld, minerl
from policy_server.games.prompts import ModelPrompt, ParsedAction
from policy_server.refusals import RequestRefused


class ActionSpace(Protocol):
    """What each module in `SPACES` provides."""

    @property
    def TASKS(self) -> Iterable[str]:
        """The task names that this space serves."""
        ...

    def model_prompt(self, task: str, prompt: str, commands: Sequence[str], history: Sequence[str]) -> ModelPrompt:
        """What the model is asked.

        `prompt` and `commands` come with the request. `history` comes from its session: one line a step, oldest first.
        Raises PromptError if the request lacks a field that the game needs.
        """
        ...

    def parse(self, text: str, commands: Sequence[str]) -> ParsedAction:
        """The action that the model's `text` means; always a valid one."""
        ...


_MODULES: tuple[ActionSpace, ...] = (minerl, alfworld)
SPACES: dict[str, ActionSpace] = {task: space for space in _MODULES for task in space.TASKS}


def space_of(task: str) -> ActionSpace:
    """The action space that serves `task`; RequestRefused (404), which names the nearest task or all, if none does."""
    if task not in SPACES:
        raise RequestRefused(404, "unknown_task", unknown("task", task[:80], SPACES))
    return SPACES[task]
