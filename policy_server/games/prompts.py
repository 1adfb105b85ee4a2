"""What goes into a model and what is read out of its answer; shared by the action spaces and the models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

REASONING_SHOWN = 1000  # characters of a model's text that travel back


@dataclass(frozen=True)
class Question:
    """What the model is asked beside the picture: `instructions` say how to answer, `text` is the situation.

    `commands` are the only answers that the game takes (empty: it takes any). A model that was trained on one form of
    text (`Blip2Emac`) reads `text` and `commands`, a chat model everything.
    """

    instructions: str
    text: str
    commands: Sequence[str] = ()


@dataclass(frozen=True)
class Reading:
    """A model's text as an action that the game accepts, why, and one line for the session's history."""

    action: dict[str, Any]
    reasoning: str
    summary: str


def with_notes(reasoning: str, notes: Sequence[str]) -> str:
    """`reasoning`, cut to what is shown, followed by what was changed in the model's answer."""
    shown = reasoning.strip()[:REASONING_SHOWN]
    return f"{shown} [{'; '.join(notes)}]".strip() if notes else shown
