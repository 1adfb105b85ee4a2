"""Games in which objects have no numbers: "take mug from countertop 1" (`environment.name_by=type`).

ALFWorld numbers its objects in an order that no image shows. An agent that goes by looks sees a mug, not `mug 2`. Here
the agent names the type, and the environment takes the first object of the type that is there, or in the hand.
Receptacles keep their numbers: the opening text lists all of them.
"""

from __future__ import annotations

from typing import Any

from alfworld_native.base import Environment, Game, TimeStep, WrappedEnvironment
from alfworld_native.choices import NAMES_BY
from alfworld_native.errors import EnvironmentFault
from alfworld_native.language.commands import canonical
from alfworld_native.language.sentences import parse_opening, without_numbers
from lavis.common.errors import unknown


def named_by(environment: Environment, name_by: str) -> Environment:
    """`environment` that names objects by "number", as it does itself, or by "type"; EnvironmentFault otherwise."""
    if name_by not in NAMES_BY:
        raise EnvironmentFault(unknown("name_by", name_by, NAMES_BY))
    if name_by == "number":
        return environment
    # A client asks an environment for labels if it has the method `expert_action`.
    advised = hasattr(environment, "expert_action")
    return AdvisedByTypeEnvironment(environment) if advised else ByTypeEnvironment(environment)


class ByTypeEnvironment(WrappedEnvironment):
    """`environment` without the numbers of objects: in texts, in admissible commands, and in its expert's actions.

    A command by type stands for the first of the engine's admissible commands that reads the same without numbers. A
    command with an object's number is carried out as it is. A command that stands for none gets the engine's own
    answer, `Nothing happens.`

    A type is what the text calls it: two kinds of objects with one name are one type. An object that has the name of a
    receptacle of the room, number included, keeps its number: no text could tell the two apart without it.
    """

    name_by = "type"

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._receptacles: frozenset[str] = frozenset()
        self._commands: dict[str, str] = {}  # admissible now: as the agent says it -> as the engine does

    def reset(self, game: Game) -> TimeStep:
        """See `Environment`."""
        now = self._environment.reset(game)
        goes = (command[6:] for command in now.admissible_commands if command.startswith("go to "))
        self._receptacles = frozenset((*parse_opening(now.text)[0], *goes))
        # The opening names receptacles alone, and its task sentence may count in digits ("place 2 mugs on the shelf").
        return self._by_type(now)._replace(text=now.text)

    def step(self, action: str) -> TimeStep:
        """See `Environment`; `action` may name objects by type, or by number."""
        if isinstance(action, str):  # the engine refuses anything else
            action = canonical(action.strip())
            action = self._commands.get(action, action)
        return self._by_type(self._environment.step(action))

    def restore(self, state: Any) -> TimeStep:
        """See `NativeEnvironment`."""
        return self._by_type(self._environment.restore(state))  # type: ignore[attr-defined]

    def clone(self) -> ByTypeEnvironment:
        """See `NativeEnvironment`."""
        other = ByTypeEnvironment(self._environment.clone())  # type: ignore[attr-defined]
        other._receptacles, other._commands = self._receptacles, self._commands
        return other

    def _by_type(self, now: TimeStep) -> TimeStep:
        # Of several objects of one type, the first in the engine's own list is the one that the type means.
        commands: dict[str, str] = {}
        for command in now.admissible_commands:
            commands.setdefault(without_numbers(command, self._receptacles), command)
        self._commands = commands
        return now._replace(text=without_numbers(now.text, self._receptacles), admissible_commands=list(commands))


class AdvisedByTypeEnvironment(ByTypeEnvironment):
    """The same with an expert beside the environment."""

    def expert_action(self) -> str | None:
        """What the expert would do now, with objects by type."""
        action = self._environment.expert_action()  # type: ignore[attr-defined]
        return without_numbers(canonical(action), self._receptacles) if action else None
