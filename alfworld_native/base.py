"""What all environments share: `Game`, `TimeStep`, and the `Environment` protocol."""

from __future__ import annotations

import re
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from alfworld_native.errors import EnvironmentFault

if TYPE_CHECKING:
    import numpy as np

# The id of a game of a mixture ends in its seed, its level and that level's horizon, and its number.
MIXED_TRIAL = re.compile(r"/trial_H-?\d+_([a-z]+)(\d+)_\d+$")
MAX_STEPS = 50  # ALFWorld's and the original's limit on actions in an episode


@dataclass(frozen=True)
class Game:
    """One game file.

    `id` is `<task folder>/<trial folder>`, for instance
    `pick_heat_then_place_in_recep-Tomato-None-GarbageCan-10/trial_T2019…`: it begins with the task type, is what goes
    into the wire's TYPE field, and keys all state that belongs to the game.
    """

    id: str
    path: Path  # the game.tw-pddl file
    split: str = ""

    @property
    def task_type(self) -> str:
        """The ALFWorld task type, one of `TASK_TYPES` (the id's prefix)."""
        return self.id.split("-", 1)[0]

    @property
    def horizon(self) -> int | None:
        """The steps that an episode may have, if the id says so: that of a game made for a mixture of levels."""
        match = MIXED_TRIAL.search(self.id)
        return int(match[2]) if match else None


class TimeStep(NamedTuple):
    """What an environment returns from `reset` and `step`.

    `text` is the engine's own text (after `reset`: the room and the task sentence); `admissible_commands` are in the
    project's canonical dialect (`put X in/on Y`); `done` is `won` or the step limit reached. `true_text` is the text
    without noise, if `text` has noise, else empty.
    """

    text: str
    admissible_commands: list[str]
    won: bool
    done: bool
    true_text: str = ""


@runtime_checkable
class Environment(Protocol):
    """One game at a time: `reset`, then `step` until `done`, then `reset` again or `close`."""

    name: str  # "native", "textworld", "thor", or of your own

    def reset(self, game: Game) -> TimeStep:
        """Load `game` and return its opening text."""
        ...

    def step(self, action: str) -> TimeStep:
        """Carry out `action` (canonical dialect, or the game's own)."""
        ...

    def render(self) -> np.ndarray:
        """The agent's view now: uint8, (height, width, 3), RGB."""
        ...

    def close(self) -> None:
        """Free what the environment holds; may be called twice."""
        ...


class WrappedEnvironment:
    """`environment` itself; a subclass changes some of what it says or shows."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.name = environment.name

    def __getattr__(self, name: str) -> Any:
        # Called only for names that are not found otherwise, so a wrapper has all that the environment has.
        if name == "_environment":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self._environment, name)

    def reset(self, game: Game) -> TimeStep:
        """See `Environment`."""
        return self._environment.reset(game)

    def step(self, action: str) -> TimeStep:
        """See `Environment`."""
        return self._environment.step(action)

    def render(self) -> np.ndarray:
        """The frame: uint8, (height, width, 3), RGB."""
        return self._environment.render()

    def close(self) -> None:
        """See `Environment`."""
        self._environment.close()

    def clone(self) -> Environment:
        """Refused unless a wrapper defines it: `__getattr__` would hand out a clone of what is wrapped, bare."""
        raise EnvironmentFault(f"{type(self).__name__} has no clone: use copy.deepcopy, or clone what it wraps")


def check_count(name: str, number: Any) -> None:
    """EnvironmentFault unless the argument `name` is a whole number of at least 1 (not 1.5, which would count, too)."""
    if not isinstance(number, Integral) or number < 1:
        raise EnvironmentFault(f"{name} is {number!r:.60}; give a whole number of at least 1")


def check_commands(commands: Any, number: int) -> None:
    """EnvironmentFault unless `commands` has a string for each of `number` games: told before any of them moves."""
    if isinstance(commands, str) or not hasattr(commands, "__len__") or len(commands) != number:
        got = f"got {len(commands)} of them" if isinstance(commands, list | tuple) else f"got {commands!r:.60}"
        raise EnvironmentFault(f"step takes a list of {number} commands, one for each game; {got}")
    for command in commands:
        if not isinstance(command, str):
            raise EnvironmentFault(f"a command is a string such as 'go to desk 1', not {type(command).__name__}")


def information_of(environment: Environment, now: TimeStep) -> dict[str, Any]:
    """What `Expert.act` is told beside the text: the same in training, client, evaluation and collection."""
    return {
        "admissible_commands": list(now.admissible_commands),
        "won": bool(now.won),
        "engine": environment.name,
    }
