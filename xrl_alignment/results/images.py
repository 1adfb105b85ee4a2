"""What images can be worth where the text names the objects: the steps that an explorer with perfect eyes saves.

A student learns to look only as far as looking helps its teacher, so this bounds from above what images save it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xrl_alignment.environments.base import Game
from xrl_alignment.environments.drawing.frames import objects_in_view
from xrl_alignment.environments.drawing.state import RoomState
from xrl_alignment.environments.native.environment import NativeEnvironment
from xrl_alignment.experts.explorer import Explorer
from xrl_alignment.language.prompt import opening


def _on_surfaces(state: RoomState) -> dict[str, str]:
    """What lies in the open anywhere in the room, also behind the agent: object -> receptacle."""
    return _places(state, lambda receptacle: receptacle not in state.openable or receptacle in state.opened)


def _everything(state: RoomState) -> dict[str, str]:
    """The contents of closed containers, too."""
    return _places(state, lambda receptacle: True)


def _places(state: RoomState, shown: Callable[[str], bool]) -> dict[str, str]:
    return {
        state.names[thing]: state.names[receptacle]
        for receptacle, things in state.contents.items()
        if receptacle in state.names and shown(receptacle)
        for thing in things
        if thing in state.names
    }


EYES: dict[str, Callable[[RoomState], Mapping[str, str]]] = {
    "none": lambda state: {},
    "what its frame shows": objects_in_view,
    "every open surface of the room": _on_surfaces,
    "everything": _everything,
}


class SeeingExplorer(Explorer):
    """An explorer that is also told where `eyes` see objects, and so walks straight to them."""

    def __init__(self, eyes: Callable[[RoomState], Mapping[str, str]], **options: Any) -> None:
        self._eyes = eyes
        super().__init__(**options)

    def look(self, state: RoomState) -> None:
        """Add to the belief what is in view in `state` and was not known."""
        known = self._belief
        for thing, place in self._eyes(state).items():
            if thing not in known.place and thing != known.held and place in known.receptacles:
                known.place[thing] = place
                if not self._hopeless:
                    self._label = None


def steps_by_eyes(games: Sequence[Game], **options: Any) -> dict[str, dict[str, Any]]:
    """For each of EYES: games that the explorer (`options`) solved, and the mean number of its steps in those."""
    found = {}
    for name, eyes in EYES.items():
        steps = [taken for game in games if (taken := _play(SeeingExplorer(eyes, **options), game)) is not None]
        found[name] = {"games": len(games), "solved": len(steps), "mean_steps": sum(steps) / len(steps)}
    for row in found.values():
        row["saved"] = 1 - row["mean_steps"] / found["none"]["mean_steps"]
    return found


def _play(explorer: SeeingExplorer, game: Game) -> int | None:
    """The steps that the explorer took; None where it did not solve the game."""
    environment = NativeEnvironment()
    now, steps = environment.reset(game), 0
    explorer.begin(opening(now.text))
    while not now.done:
        explorer.look(environment.room_state())
        action = explorer.act().action
        if action is None:
            return None
        now, steps = environment.step(action), steps + 1
        explorer.observe(action, now.text)
    return steps if now.won else None
