"""Household games as an environment of TRL's trainers: `GRPOTrainer(environment_factory=…)`, with typed tools.

    games = choose_games("household", "household_train", num=64)
    trainer = GRPOTrainer(model, args=args, train_dataset=Dataset.from_list(rows(games)),
                          environment_factory=lambda: Household(games))     # whole: examples/grpo_trl.py

TRL makes one environment for each rollout, calls `reset` with the columns of the row, and offers the public methods to
the model as tools; their names, types and docstrings are what the model is told. All rollouts of a row play the same
game. `get_reward` gives 1 for a won game. The module needs no package of TRL's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from alfworld_native.base import Game
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.errors import EnvironmentFault
from alfworld_native.household.levels import longest_horizon
from lavis.common.errors import unknown

INSTRUCTION = "You are in a household. Do the task step by step with the tools.\n\n"
_OVER = "The episode is over."


def rows(games: Sequence[Game], instruction: str = INSTRUCTION) -> list[dict[str, Any]]:
    """One row for each game, for `datasets.Dataset.from_list`: `prompt`, a conversation, and `game`, the id."""
    return [{"prompt": [{"role": "user", "content": instruction}], "game": game.id} for game in games]


class Household:
    """One game at a time; the public methods beside `reset` and `get_reward` are the model's tools."""

    def __init__(self, games: Sequence[Game], max_steps: int | None = None) -> None:
        """`games` are those that rows may name; an episode ends after `max_steps` actions, or those of the hardest."""
        if not games:
            raise EnvironmentFault("the list of games is empty; give at least one game")
        self._games = {game.id: game for game in games}
        self._engine = NativeEnvironment(longest_horizon(games) if max_steps is None else max_steps)
        # No game yet.
        self._over, self._won = True, False
        self.playing = ""  # the game's id

    def reset(self, game: str | None = None, **row: Any) -> str:
        """Begin the game with the id `game` (without one, the first): its text is appended to the row's prompt."""
        chosen = next(iter(self._games)) if game is None else game
        if chosen not in self._games:
            raise EnvironmentFault(unknown("game", chosen, self._games))
        self.playing = chosen
        now = self._engine.reset(self._games[chosen])
        self._over, self._won = now.done, now.won
        return now.text

    def get_reward(self) -> float:
        """1.0 for a won game, else 0.0."""
        return float(self._won)

    # The tools. TRL describes each to the model by its name, its types and its docstring, sections included.

    def go_to(self, receptacle: str) -> str:
        """Go to a receptacle, for instance a cabinet or a table.

        Args:
            receptacle: Its name with its number, for instance "cabinet 2".

        Returns:
            What you see there.
        """
        return self._do(f"go to {receptacle}")

    def open_receptacle(self, receptacle: str) -> str:
        """Open a receptacle where you stand.

        Args:
            receptacle: Its name with its number, for instance "cabinet 2".

        Returns:
            What you see in it.
        """
        return self._do(f"open {receptacle}")

    def close_receptacle(self, receptacle: str) -> str:
        """Close a receptacle where you stand.

        Args:
            receptacle: Its name with its number, for instance "cabinet 2".

        Returns:
            What happened.
        """
        return self._do(f"close {receptacle}")

    def take(self, object: str, receptacle: str) -> str:
        """Take an object from a receptacle where you stand. You can hold one object.

        Args:
            object: Its name with its number, for instance "mug 1".
            receptacle: Where it lies, for instance "desk 1".

        Returns:
            What happened.
        """
        return self._do(f"take {object} from {receptacle}")

    def put(self, object: str, receptacle: str) -> str:
        """Put the object that you hold in or on a receptacle where you stand.

        Args:
            object: Its name with its number, for instance "mug 1".
            receptacle: Where to put it, for instance "desk 1".

        Returns:
            What happened.
        """
        return self._do(f"put {object} in/on {receptacle}")

    def heat(self, object: str, receptacle: str) -> str:
        """Heat the object that you hold.

        Args:
            object: Its name with its number, for instance "mug 1".
            receptacle: The microwave where you stand, for instance "microwave 1".

        Returns:
            What happened.
        """
        return self._do(f"heat {object} with {receptacle}")

    def cool(self, object: str, receptacle: str) -> str:
        """Cool the object that you hold.

        Args:
            object: Its name with its number, for instance "mug 1".
            receptacle: The fridge where you stand, for instance "fridge 1".

        Returns:
            What happened.
        """
        return self._do(f"cool {object} with {receptacle}")

    def clean(self, object: str, receptacle: str) -> str:
        """Clean the object that you hold.

        Args:
            object: Its name with its number, for instance "mug 1".
            receptacle: The sink where you stand, for instance "sinkbasin 1".

        Returns:
            What happened.
        """
        return self._do(f"clean {object} with {receptacle}")

    def slice(self, object: str, knife: str) -> str:
        """Slice an object with the knife that you hold.

        Args:
            object: Its name with its number, for instance "apple 1".
            knife: The knife, for instance "butterknife 1".

        Returns:
            What happened.
        """
        return self._do(f"slice {object} with {knife}")

    def use(self, object: str) -> str:
        """Turn on a lamp.

        Args:
            object: Its name with its number, for instance "desklamp 1".

        Returns:
            What happened.
        """
        return self._do(f"use {object}")

    def examine(self, thing: str) -> str:
        """Look closely at a receptacle where you stand, or at the object that you hold.

        Args:
            thing: Its name with its number, for instance "desk 1".

        Returns:
            What you see.
        """
        return self._do(f"examine {thing}")

    def look(self) -> str:
        """Look around.

        Returns:
            What you see.
        """
        return self._do("look")

    def inventory(self) -> str:
        """Say what you hold.

        Returns:
            What you hold.
        """
        return self._do("inventory")

    def _do(self, command: str) -> str:
        if not self.playing:
            return "No game has begun: call reset first."
        if self._over:  # a model may go on calling tools: its reward must not change any more
            return _OVER
        now = self._engine.step(command)
        self._over, self._won = now.done, now.won
        # The last answer says that it is the last: a tool cannot end the conversation itself.
        return f"{now.text} {_OVER}" if now.done else now.text
