"""ALFWorld's own experts, handcoded and planner.

They read the game's state, so they run beside the environment (in the client) and their answer travels as
`information["expert_action"]`; the server's expert only reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from xrl_alignment.experts.base import Label
from xrl_alignment.language.commands import canonical


class AdvisedEnvironment(Protocol):
    """An environment that computes an expert's action for its present state, such as `TextWorldEnvironment`."""

    def expert_action(self) -> str | None:
        """The action in any dialect, or None where the expert has no answer."""
        ...


class AlfworldExpert:
    """The expert that `environment` was built with (`expert="handcoded"` or `"planner"`), asked in the same process."""

    def __init__(self, environment: AdvisedEnvironment, name: str = "handcoded") -> None:
        self.name = name
        self._environment = environment

    def begin(self, intro: str, *, task_type: str = "", memories: Sequence[str] = ()) -> None:
        """Nothing to remember: the environment knows its state."""

    def observe(self, action: str, feedback: str) -> None:
        """Nothing to remember: the environment knows its state."""

    def act(self, information: Mapping[str, Any] | None = None) -> Label:
        """The environment's expert action now."""
        action = self._environment.expert_action()
        return Label(canonical(action) if action else None)


class ClientExpert:
    """Reads what the client's expert said: `expert_action`, and `expert_thought` where there is one."""

    def __init__(self, name: str = "client") -> None:
        self.name = name

    def begin(self, intro: str, *, task_type: str = "", memories: Sequence[str] = ()) -> None:
        """Nothing to remember: every observation carries its own answer."""

    def observe(self, action: str, feedback: str) -> None:
        """Nothing to remember: every observation carries its own answer."""

    def act(self, information: Mapping[str, Any] | None = None) -> Label:
        """The answer in `information` (the wire's `i` field); no action where it holds none, or not a string."""
        action, thought = (information or {}).get("expert_action"), (information or {}).get("expert_thought")
        return Label(
            canonical(action) if isinstance(action, str) and action else None,
            " ".join(thought.split()) if isinstance(thought, str) else "",
        )
