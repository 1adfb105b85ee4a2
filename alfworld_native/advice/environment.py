"""The native engine with one of ALFWorld's experts beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alfworld_native.advice.shortest import shortest_way
from alfworld_native.base import MAX_STEPS, Game, TimeStep
from alfworld_native.choices import CLIENT_EXPERTS
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.engine.state import Snapshot
from alfworld_native.errors import EnvironmentFault
from alfworld_native.language.commands import canonical
from lavis.common.errors import unknown

if TYPE_CHECKING:
    from alfworld_native.advice.handcoded import HandcodedExpert


class AdvisedNativeEnvironment(NativeEnvironment):
    """A `NativeEnvironment` that also tells what an expert would do now, as `TextWorldEnvironment(expert=…)` does.

    "handcoded" is ALFWorld's own code (package alfworld): it sees what the agent has seen. "planner" knows the hidden
    state, as ALFWorld's does; where that one asks Fast Downward for some plan, this one goes a shortest way.
    """

    def __init__(self, max_steps: int = MAX_STEPS, show_ids: bool = True, expert: str = "planner") -> None:
        super().__init__(max_steps, show_ids)
        if expert not in CLIENT_EXPERTS:
            raise EnvironmentFault(unknown("ALFWorld expert", expert, CLIENT_EXPERTS))
        self.expert = expert
        self._handcoded: HandcodedExpert | None = None
        self._advice: str | None = None  # the handcoded expert's

    def reset(self, game: Game) -> TimeStep:
        """As NativeEnvironment's; it also raises what `HandcodedExpert` does."""
        now = super().reset(game)
        if self.expert == "handcoded":
            from alfworld_native.advice import handcoded  # here: it needs package alfworld

            draws = handcoded.own_draws(game.path)
            begun, self._game = self._game, None  # no game is loaded unless its expert is, too
            self._handcoded = handcoded.HandcodedExpert(game.path, now.text, draws)
            self._game = begun
            self._advice = handcoded.UNDECIDED
        return now

    def step(self, action: str) -> TimeStep:
        """As NativeEnvironment's."""
        now = super().step(action)
        if self._handcoded is not None:
            self._advice = self._handcoded.after(action.strip(), now.text, self._playing())
        return now

    def restore(self, state: tuple[Snapshot, int]) -> TimeStep:
        """As NativeEnvironment's; EnvironmentFault with the handcoded expert, which remembers how it came here."""
        if self.expert == "handcoded":
            raise EnvironmentFault("the handcoded expert goes by what it has seen; it cannot go back to another state")
        return super().restore(state)

    def expert_action(self) -> str | None:
        """What the expert would do now (canonical dialect); None if it does not know, or the goal is reached.

        Raises EnvironmentFault if no game is loaded.
        """
        game = self._playing()
        if self.expert == "handcoded":
            return canonical(self._advice) if self._advice else None
        way = shortest_way(game)
        return canonical(way[0]) if way else None
