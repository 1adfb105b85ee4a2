"""The messages that client and server exchange, independent of the wire format (`v1`, `v2`).

Whatever arrives may come from a faulty or hostile program. So decoding checks sizes before it allocates memory and
types before it uses a value, and answers everything else with a `ProtocolError` that names the field.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from lavis.common.errors import EmacError

MAX_TEXT = 1 << 14  # characters of an observation's text; ALFWorld's longest has about 2,000
MAX_HISTORY = 1 << 18  # characters of the history, which v1's clients write: the text of a whole episode
MAX_INFORMATION = 1 << 17  # characters of the information in v1; ALFWorld's has about 5,000
MAX_NAME = 512  # characters of a session or game id
MAX_VALUES = 1 << 14  # in the information, keys included, however deep; ALFWorld's has about a hundred
MAX_GAMES = 1 << 16  # that a client offers
MAX_COMMANDS = 4096  # admissible commands of one state
MAX_COMMAND = 1024  # characters of one of them


class ProtocolError(EmacError, ValueError):
    """A message that breaks the wire format; the text names the field and what is wrong with it."""


_NO_IMAGE = np.zeros((1, 1, 3), np.uint8)  # one for all observations without an image, so read-only
_NO_IMAGE.flags.writeable = False


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
    image: np.ndarray = field(default_factory=lambda: _NO_IMAGE)
    session: str = ""
    seq: int = 0
    env: int = -1
    round: int = 0

    @property
    def won(self) -> bool | None:
        """`information["won"]`, also in the batch-of-one form that ALFWorld's own infos have; None if absent."""
        value = _unbatched(self.information.get("won"))
        return None if value is None else bool(value)

    @property
    def verdict(self) -> bool:
        """Whether the game is won. Clients of wire v1 may not say: then an episode that is done is won."""
        return self.done if self.won is None else self.won

    @property
    def admissible_commands(self) -> list[str]:
        """`information["admissible_commands"]` as a flat list (ALFWorld's infos nest it once); empty if absent."""
        return [str(command) for command in _commands(self.information) or []]

    def without_content(self) -> Observation:
        """This observation without image and texts."""
        return replace(self, text="", history="", information={}, image=_NO_IMAGE)


@dataclass(frozen=True)
class Hello:
    """A session introduces itself: which games it can play, in which environment, and how it shows them (`view_of`)."""

    session: str
    seq: int
    games: tuple[str, ...]
    environment: str = ""
    split: str = ""
    view: str = ""  # empty: an older client, or one of another origin


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


def check_observation(observation: Observation) -> Observation:
    """Return `observation` if its fields have the sizes and types that the server relies on, else raise ProtocolError.

    `won` is true, false or absent, `admissible_commands` a list of texts or absent; either may be the only item of a
    list, as in ALFWorld's batches of one. Other information may be anything, up to its limit.
    """
    for name, most in (("text", MAX_TEXT), ("history", MAX_HISTORY), ("task_type", MAX_NAME)):
        if len(getattr(observation, name)) > most:
            raise ProtocolError(f"field {name} is longer than {most} characters")
    # Counted lazily: a few bytes of JSON may hold many more values than are allowed.
    if next(islice(_all_values(observation.information), MAX_VALUES, None), None) is not None:
        raise ProtocolError(f"field information holds more than {MAX_VALUES} values")
    for name in ("expert_action", "expert_thought"):
        said = observation.information.get(name)
        if isinstance(said, str) and len(said) > MAX_TEXT:
            raise ProtocolError(f"field information.{name} is longer than {MAX_TEXT} characters")
    won = _unbatched(observation.information.get("won"))
    if won is not None and not isinstance(won, bool):
        raise ProtocolError(f"field information.won must be true or false, not {type(won).__name__}")
    commands = _commands(observation.information)
    if commands is None:
        return observation
    if not isinstance(commands, (list, tuple)) or not all(isinstance(command, str) for command in commands):
        raise ProtocolError("field information.admissible_commands must be a list of texts")
    if len(commands) > MAX_COMMANDS or any(len(command) > MAX_COMMAND for command in commands):
        raise ProtocolError(
            f"field information.admissible_commands must have at most {MAX_COMMANDS} texts of {MAX_COMMAND} characters"
        )
    return observation


def without_content(message: Message) -> Message:
    """`message` without image, texts and game lists: what may be kept of it once it is answered."""
    match message:
        case Observation():
            return message.without_content()
        case Hello():
            return replace(message, games=())
    return message


def bytes_of(message: Message) -> int:
    """The memory that `message` takes: short texts may hold values that take much more (`[[],[],…`)."""
    return sum(v.nbytes if isinstance(v, np.ndarray) else sys.getsizeof(v) for v in _all_values(vars(message)))


def _all_values(root: dict[str, Any]) -> Iterator[Any]:
    """Keys and values of `root`, and those inside them, however deep."""
    left: list[Any] = [*root, *root.values()]  # a list instead of recursion: no depth is too much for it
    while left:
        yield (value := left.pop())
        if isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, (list, tuple, set)):
            left += value


def md5_hex(body: bytes) -> str:
    """Hex MD5 of `body`: detects damaged transfers. It does not protect against an attacker."""
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


def brief(error: BaseException) -> str:
    """An error's type and text, cut to 120 characters: the text may quote what the other side sent."""
    return f"{type(error).__name__}: {error}"[:120]


def _commands(information: dict[str, Any]) -> Any:
    commands: Any = information.get("admissible_commands")
    nested = isinstance(commands, (list, tuple)) and len(commands) == 1 and isinstance(commands[0], (list, tuple))
    return commands[0] if nested else commands


def _unbatched(value: Any) -> Any:
    return value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
