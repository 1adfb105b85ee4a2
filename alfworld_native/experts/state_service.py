"""A running game as a service: go to any state of it, and ask what is true there.

    service = StateService(game)
    now = service.reset()
    start = service.snapshot()
    now = service.step(now.admissible_commands[0])
    service.full_knowledge().steps                 # exact number of steps to the goal
    service.restore(start)

Two truths are told, and they differ. `full_knowledge` and `changes` read the whole state of the game, also what the
agent has not seen: use them for rewards and for scoring. `known_only` is the explorer's advice, which rests on nothing
but the texts that the agent has read: a policy can learn to act so.
"""

from __future__ import annotations

from typing import NamedTuple

from alfworld_native.advice.shortest import shortest_way
from alfworld_native.base import Game, TimeStep
from alfworld_native.engine.game import NativeGame
from alfworld_native.engine.state import Snapshot
from alfworld_native.engine.world import load_world
from alfworld_native.errors import EnvironmentFault
from alfworld_native.experts.base import Label
from alfworld_native.experts.explorer import Explorer
from alfworld_native.household.levels import longest_horizon
from alfworld_native.language.commands import canonical


class FullKnowledge(NamedTuple):
    """By the whole state: an optimal next command (None at the goal), and the exact number of steps to the goal.

    `steps` is None if the goal cannot be reached any more.
    """

    action: str | None
    steps: int | None


class Told(NamedTuple):
    """What the agent has read so far, newest last: a command, the answer, and what was before."""

    before: Told | None
    command: str
    text: str


class Bookmark(NamedTuple):
    """A state of a game, the texts that led to it, and the number of steps."""

    state: Snapshot
    told: Told
    steps: int


class StateService:
    """One game in the canonical dialect; unlike an `Environment` it plays on after its end."""

    def __init__(self, game: Game, max_steps: int | None = None) -> None:
        """`done` is told after `max_steps`, or as many as `game` may take.

        MissingFileError or EnvironmentFault if `game` cannot be played.
        """
        self.game, self.max_steps = game, max_steps or longest_horizon([game])
        self._engine = NativeGame(load_world(game.path), dialect="put")
        self.reset()

    def reset(self) -> TimeStep:
        """Begin anew."""
        text = self._engine.reset()
        self._told, self._steps = Told(None, "", text), 0
        return self._now(text)

    def step(self, action: str) -> TimeStep:
        """Carry out `action` (canonical or the game's dialect)."""
        if not isinstance(action, str):
            raise EnvironmentFault(f"an action is a string such as 'go to desk 1', not {type(action).__name__}")
        command = canonical(action.strip())
        text = self._engine.step(command)
        # A list that is linked backwards: a bookmark is one reference, and branches share what was before.
        self._told, self._steps = Told(self._told, command, text), self._steps + 1
        return self._now(text)

    def snapshot(self) -> Bookmark:
        """The state now, with what the agent has read; a few microseconds."""
        return Bookmark(self._engine.snapshot(), self._told, self._steps)

    def restore(self, bookmark: Bookmark) -> TimeStep:
        """Go back (or forth) to a state of the same game; EnvironmentFault for one of another game, or none."""
        if not isinstance(bookmark, Bookmark):
            raise EnvironmentFault(f"a bookmark is what `snapshot` gives, not {type(bookmark).__name__}")
        self._engine.restore(bookmark.state)
        self._told, self._steps = bookmark.told, bookmark.steps
        return self._now(self._told.text)

    def clone(self) -> StateService:
        """An independent service in the same state."""
        # `told` is a linked list, which clones share; nothing changes its entries.
        # Without `__init__`, which would begin the game anew.
        other = object.__new__(StateService)
        other.__dict__.update(self.__dict__)
        other._engine = self._engine.clone()
        return other

    def full_knowledge(self) -> FullKnowledge:
        """The truth about this state, also about what the agent has not seen.

        EnvironmentFault for a game whose goal is of another kind than ALFWorld's.
        """
        way = shortest_way(self._engine)
        # An empty way is another thing: the goal holds already.
        if way is None:
            return FullKnowledge(None, None)
        return FullKnowledge(way[0] if way else None, len(way))

    def changes(self) -> dict[str, int | None]:
        """By full knowledge: for each admissible command, how much it adds to the steps to the goal.

        -1 is a step on a shortest way, 0 loses one step, 1 two, and so on. None: the goal cannot be reached afterwards
        (or could not before).
        """
        before, engine, state = self.full_knowledge().steps, self._engine, self._engine.snapshot()
        found: dict[str, int | None] = {}
        # d(after) - d(before), d the exact distance to the goal. With the value V = -d, a command's advantage
        # Q - V = -1 - change: 0 on a shortest way, negative elsewhere.
        for command in engine.admissible_commands():
            engine.step(command)
            way = shortest_way(engine)
            found[command] = None if way is None or before is None else len(way) - before
            engine.restore(state)
        return found

    def known_only(self) -> Label:
        """The explorer's action by what the agent has read, and nothing else.

        It follows the texts from the beginning, asked at each state, so its time grows with their number.
        """
        told: list[Told] = []
        line: Told | None = self._told
        while line is not None:
            told.append(line)
            line = line.before
        expert = Explorer()
        expert.begin(told.pop().text, task_type=self.game.id)
        for _, command, text in reversed(told):
            expert.act()
            expert.observe(command, text)
        return expert.act()

    def _now(self, text: str) -> TimeStep:
        won = self._engine.won
        return TimeStep(text, self._engine.admissible_commands(), won, won or self._steps >= self.max_steps)
