"""ALFWorld's text engine in plain Python, equal to TextWorld's to the letter, a few microseconds a step.

The rules are those of `alfred.pddl` and of the grammar inside the game file. In order of reading: `world` (a game made
ready), `state` (what changes), `actions` (what the commands do), `texts` (what the engine says), and `NativeGame` here.
It keeps the game's own dialect and plays on after the goal is reached, as TextWorld does; `alfworld_native.prove`
compares the two. `environment.NativeEnvironment` is the project's `Environment` around it.
"""

from __future__ import annotations

from pathlib import Path

from alfworld_native.engine.actions import go, make_menu
from alfworld_native.engine.pddl import satisfied
from alfworld_native.engine.state import GameState, Menu
from alfworld_native.engine.texts import WELCOME, middle_of_room, surroundings
from alfworld_native.engine.world import World, load_world
from alfworld_native.language.sentences import NOTHING_HAPPENS


class NativeGame(GameState):
    """One game in its own dialect: `reset`, then `step` and `admissible_commands` as often as wanted."""

    def __init__(self, world: World, dialect: str | None = None) -> None:
        """`dialect`, "put" or "move", is that of the commands; by default the game's own. Texts are the game's."""
        super().__init__(world, says_move=(dialect or world.wording.dialect) == "move")

    @classmethod
    def load(cls, path: Path | str, dialect: str | None = None) -> NativeGame:
        """The game in a `game.tw-pddl` file; MissingFileError or EnvironmentFault as `load_world`."""
        return cls(load_world(path), dialect)

    def reset(self) -> str:
        """Begin the game anew and return its opening text."""
        self.begin()
        return self.opening()

    def opening(self) -> str:
        """The opening text; to be asked at the beginning."""
        world = self.world
        scene = surroundings(self) if self.location in world.here else middle_of_room(self, world.location_of)
        return f"{WELCOME}\n\n{scene}\n\n{world.text.task}"

    def step(self, command: str) -> str:
        """Carry out `command` and return the engine's answer; `Nothing happens.` if the command is not admissible."""
        command = command.strip()
        # `go to` is looked up first: it can be answered without a menu of what else can be done here.
        target = self.world.going.get(command)
        if target is not None:
            return go(self, target)
        action = self._menu().actions.get(command)
        if action is None:
            return NOTHING_HAPPENS
        return action[0](self, *action[1:])

    def admissible_commands(self) -> list[str]:
        """What can be done now, sorted; the caller may change the list."""
        return self._menu().commands.copy()

    @property
    def won(self) -> bool:
        """Whether the goal holds now."""
        if self.goal_reached is None:
            self.goal_reached = satisfied(self.world.goal, self.is_true)
        return self.goal_reached

    @property
    def own_dialect(self) -> str:
        """The dialect of the game file, "put" or "move"."""
        return self.world.wording.dialect

    def named_facts(self) -> list[tuple[str, ...]]:
        """`facts` with the names of the text in place of ids (`("holds", "agent1", "apple 1")`), sorted."""
        names = self.world.names
        return sorted((predicate, *(names.get(id_, id_) for id_ in ids)) for predicate, *ids in self.facts())

    def clone(self) -> NativeGame:
        """An independent game in the same state; what cannot change is shared."""
        # Without `__init__`, which would only begin the game that `restore` leaves at once.
        other = object.__new__(NativeGame)
        other.__dict__.update(self.__dict__)
        other.restore(self.snapshot())
        return other

    def _menu(self) -> Menu:
        # Only the last one is kept: one for each place would save little and keep Python's garbage collector busy.
        if self.menu is None:
            self.menu = make_menu(self)
        return self.menu
