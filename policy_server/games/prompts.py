"""The records between games and models: a prompt for the model, and the action that its answer means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lavis.common.errors import EmacError
from xrl_alignment.agents.language.plain import plain

MAX_REASONING = 1000  # characters of the model's text that the response repeats


class PromptError(EmacError, ValueError):
    """A request lacks a field that its game needs; the text names the field."""


@dataclass(frozen=True)
class ModelPrompt:
    """What the model is asked about the image.

    `instructions` say how to answer. `text` describes the situation. If `commands` is not empty, the game accepts only
    these answers. A chat model reads `instructions` and `text`. `Blip2Emac` reads `text` alone, as in training.
    """

    instructions: str
    text: str
    commands: Sequence[str] = ()


@dataclass(frozen=True)
class ParsedAction:
    """An action that the game accepts, the reasoning to show, and one line for the session's history."""

    action: dict[str, Any]
    reasoning: str
    summary: str


def with_notes(reasoning: str, notes: Sequence[str]) -> str:
    """`reasoning`, cut to MAX_REASONING characters, then in square brackets what the parser changed."""
    shown = plain(reasoning.strip()[:MAX_REASONING])  # JSON can say half a surrogate pair, which no response holds
    return f"{shown} [{'; '.join(notes)}]".strip() if notes else shown
