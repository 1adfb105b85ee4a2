"""The messages that client and server exchange, independent of the wire format (`v1`, `v2`).

Whatever arrives may come from a faulty or hostile program. So decoding checks sizes before it allocates memory and
types before it uses a value, and answers everything else with a `ProtocolError` that names the field.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lavis.common.errors import EmacError


class ProtocolError(EmacError, ValueError):
    """A message that breaks the wire format; the text names the field and what is wrong with it."""


def _no_image() -> np.ndarray:
    return np.zeros((1, 1, 3), np.uint8)


@dataclass(frozen=True, eq=False)
class Observation:
    """What the agent sees at one step.

    `task_type` is the game id (it begins with the task type) on the first observation of an episode, empty after it.
    `image` is uint8, (height, width, 3), RGB. `session`, `seq`, `env`, `round` are v2's; v1 leaves the defaults.
    """

    text: str
    history: str = ""
    information: dict[str, Any] = field(default_factory=dict)
    task_type: str = ""
    done: bool = False
    image: np.ndarray = field(default_factory=_no_image)
    session: str = ""
    seq: int = 0
    env: int = -1
    round: int = 0

    @property
    def won(self) -> bool | None:
        """`information["won"]`, also in the batch-of-one form that ALFWorld's own infos have; None where absent."""
        value = _unbatched(self.information.get("won"))
        return None if value is None else bool(value)

    @property
    def admissible_commands(self) -> list[str]:
        """`information["admissible_commands"]` as a flat list (ALFWorld's infos nest it once); empty where absent."""
        value = self.information.get("admissible_commands") or []
        if len(value) == 1 and isinstance(value[0], (list, tuple)):
            value = value[0]
        return [str(command) for command in value]


@dataclass(frozen=True)
class Hello:
    """A session introduces itself: which games it can play, in which environment."""

    session: str
    seq: int
    games: tuple[str, ...]
    environment: str = ""
    split: str = ""


@dataclass(frozen=True)
class Next:
    """A session asks for work."""

    session: str
    seq: int


@dataclass(frozen=True)
class Bye:
    """A session leaves, and the server reassigns its unfinished game.

    `reason` is empty when the client said it; the server writes one when it closes a silent session itself.
    """

    session: str
    seq: int
    reason: str = ""


Message = Observation | Hello | Next | Bye


def md5_hex(body: bytes) -> str:
    """Hex MD5 of `body`: detects damaged transfers. It does not protect against an attacker."""
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


def brief(error: BaseException) -> str:
    """An error's type and text, cut to 120 characters: the text may quote what the other side sent."""
    return f"{type(error).__name__}: {error}"[:120]


def _unbatched(value: Any) -> Any:
    return value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
