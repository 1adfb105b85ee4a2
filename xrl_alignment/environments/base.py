"""What every environment gives and takes: games, time steps, the state of a room, the `Environment` protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
MAX_STEPS = 50  # ALFWorld's and the original's limit on actions in an episode


class EnvironmentFault(RuntimeError):
    """A user's mistake around an environment (game file, command type, order of calls); its text says what to do."""


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


class TimeStep(NamedTuple):
    """What an environment answers to `reset` and `step`.

    `text` is the engine's own text (after `reset`: the room and the task sentence); `admissible_commands` are in the
    project's canonical dialect (`put X in/on Y`); `done` is `won` or the step limit reached.
    """

    text: str
    admissible_commands: list[str]
    won: bool
    done: bool


@dataclass(frozen=True, slots=True)
class RoomState:
    """What holds in a room at one moment, by PDDL id: enough to draw it.

    Ids carry geometry: `Desk_bar__plus_02_dot_32_bar__minus_00_dot_01_bar__minus_03_dot_22` is x, y, z in metres,
    `loc_bar_8_bar__minus_10_bar_2_bar_60` is x and z on a 0.25 m grid, quarter turns, and horizon in degrees.
    """

    names: Mapping[str, str]  # id of a receptacle or object -> its name in the text, "desk 1"
    location: str  # the agent's location id
    receptacle_locations: Mapping[str, str]  # receptacle id -> id of the location from which it is reached
    contents: Mapping[str, tuple[str, ...]]  # receptacle id -> ids of the objects on or in it
    openable: frozenset[str]
    opened: frozenset[str]
    held: str | None
    clean: frozenset[str]
    hot: frozenset[str]
    cool: frozenset[str]
    sliced: frozenset[str]
    toggled: frozenset[str]


@runtime_checkable
class Environment(Protocol):
    """One game at a time: `reset`, then `step` until `done`, then `reset` again or `close`."""

    name: str  # "native", "textworld", "thor"

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
