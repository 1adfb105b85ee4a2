"""Levels: settings of the generator by name, from ALFWorld's own sizes (`standard`) to games that are much harder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from alfworld_native.base import MAX_STEPS, MIXED_TRIAL, Game
from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import HOUSEHOLD_SPLITS
from alfworld_native.language.sentences import MAX_COUNT, TASK_TYPES
from lavis.common.errors import unknown

MIN_RECEPTACLES, MAX_RECEPTACLES = 8, 16
MAX_ROOMS, MAX_GOALS = 4, 3
MANIFEST = "household.json"  # beside the games of a folder: what was asked for
_BRINGING = tuple(kind for kind in TASK_TYPES if kind != "look_at_obj_in_light")
_TWO = "pick_two_obj_and_place"


@dataclass(frozen=True)
class GameLevel:
    """What the generator's games are like; the defaults are those of the games that it always made.

    A range is (least, most). Raises EnvironmentFault for a combination that makes no game.
    """

    rooms: int = 1  # of different kinds, joined into one
    receptacles: tuple[int, int] = (MIN_RECEPTACLES, MAX_RECEPTACLES)
    clutter: tuple[float, float] = (0.0, 2.0)  # objects for each receptacle, the distractors among them
    instances: int = 3  # of an object type that is a distractor, at most
    count: int = 2  # objects that "put two … in …" asks for
    goals: int = 1  # tasks that a game asks for at once
    hidden: bool = False  # what the tasks ask for lies in closed containers that take it, and there is none to spare
    new_names: bool = False  # objects have names that no ALFWorld game has
    kinds: tuple[str, ...] = TASK_TYPES  # task types, which take turns; with several goals, of the first
    max_steps: int = MAX_STEPS  # of an episode; no game needs more

    def __post_init__(self) -> None:
        """Check the knobs."""
        least, most = self.receptacles
        for name, value, low, high in (
            ("rooms", self.rooms, 1, MAX_ROOMS),
            ("receptacles (least)", least, MIN_RECEPTACLES, 1000),
            ("receptacles (most)", most, least, 1000),
            ("clutter (least)", self.clutter[0], 0, 20),
            ("clutter (most)", self.clutter[1], self.clutter[0], 20),
            ("instances", self.instances, 1, 20),
            ("count", self.count, 2, MAX_COUNT),
            ("goals", self.goals, 1, MAX_GOALS),
            ("max_steps", self.max_steps, 1, 10_000),
        ):
            if not low <= value <= high:
                raise EnvironmentFault(f"{name} must be from {low} to {high}, got {value}")
        if not self.kinds:
            raise EnvironmentFault("kinds is empty: give at least one task type")
        for kind in self.kinds:
            if kind not in TASK_TYPES:
                raise EnvironmentFault(f"kinds: {unknown('task type', kind, TASK_TYPES)}")
        if self.goals > 1 and not set(self.kinds) <= set(_BRINGING):
            raise EnvironmentFault("several goals at once need tasks that bring something: leave look_at_obj_in_light")

    @property
    def plain(self) -> bool:
        """Whether nothing but the largest number of receptacles differs from the default."""
        return self == GameLevel(receptacles=(MIN_RECEPTACLES, self.receptacles[1]))

    def key(self) -> str:
        """Names the level in the seed of a game; that of a plain level is as it always was."""
        return str(self.receptacles[1]) if self.plain else repr(dataclasses.astuple(self))

    def with_most(self, receptacles: int) -> GameLevel:
        """The same level with at most so many receptacles; EnvironmentFault for fewer than any room has."""
        if receptacles < MIN_RECEPTACLES:
            raise EnvironmentFault(f"max_receptacles must be at least {MIN_RECEPTACLES}, got {receptacles}")
        return dataclasses.replace(self, receptacles=(min(self.receptacles[0], receptacles), receptacles))

    def changed(self) -> dict[str, object]:
        """The knobs that are not at their default, by name."""
        default, own = dataclasses.asdict(GameLevel()), dataclasses.asdict(self)
        return {name: value for name, value in own.items() if value != default[name]}


STANDARD = GameLevel()
LEVELS = {
    "standard": STANDARD,
    "renamed": GameLevel(new_names=True),
    "cluttered": GameLevel(clutter=(5.0, 7.0), instances=8),
    "large": GameLevel(receptacles=(17, 60), max_steps=100),
    "hidden": GameLevel(hidden=True, max_steps=100),
    "many": GameLevel(kinds=(_TWO,), count=4, max_steps=100),
    "compound": GameLevel(goals=2, kinds=_BRINGING, max_steps=100),
    "house": GameLevel(rooms=4, receptacles=(40, 80), max_steps=150),
    "hardest": GameLevel(
        rooms=4,
        receptacles=(40, 80),
        clutter=(2.0, 3.0),
        instances=5,
        count=3,
        goals=3,
        hidden=True,
        new_names=True,
        kinds=_BRINGING,
        max_steps=200,
    ),
}


def level_named(name: str) -> GameLevel:
    """The level called `name`; EnvironmentFault with the names that exist."""
    if name not in LEVELS:
        raise EnvironmentFault(unknown("level", name, LEVELS))
    return LEVELS[name]


def level_of_game(game: str) -> str | None:
    """The level of a game that was made for a mixture of levels, whose id names it; None for any other game."""
    match = MIXED_TRIAL.search(game)
    return match[1] if match and match[1] in LEVELS else None


def frozen_splits() -> Sequence[str]:
    """The splits of the frozen test sets, one for each level: `household_<level>`."""
    return [f"household_{name}" for name in LEVELS]


def horizon(split: str) -> int:
    """The steps of an episode in games of this split: a level's own, else ALFWorld's."""
    level = level_of(split)
    return LEVELS[level].max_steps if level else MAX_STEPS


def longest_horizon(games: Iterable[Game], split: str = "") -> int:
    """The most steps that an episode may have in any of `games`.

    It is what a game's id grants, else the level that its folder was made for, else what `split`, or its own, has.
    A folder's level is that of its `household_train` and `household_heldout`; frozen test sets may lie beside them.
    """
    games = list(games)
    # <folder>/json_2.1.1/<split>/<task>/<trial>/game.tw-pddl; a game of somebody's own may lie anywhere.
    folders = {folder for game in games for folder in game.path.parents[2:3]}
    made_for = {folder: _made_for(folder) for folder in folders}
    return max(
        (
            game.horizon or next(map(made_for.get, game.path.parents[2:3]), None) or horizon(split or game.split)
            for game in games
        ),
        default=MAX_STEPS,
    )


def _made_for(split: Path) -> int | None:
    """The steps of the level for which the games of the folder `split` were made; None if nothing says it."""
    if split.name not in HOUSEHOLD_SPLITS:
        return None
    try:
        steps = json.loads((split.parent.parent / MANIFEST).read_text(encoding="utf-8"))["level"]["max_steps"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return steps if isinstance(steps, int) and steps > 0 else None


def level_of(split: str) -> str | None:
    """The level whose frozen test set is the split; None for any other split."""
    name = split.removeprefix("household_")
    return name if name != split and name in LEVELS else None
