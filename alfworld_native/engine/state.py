"""The state of one game in the native engine: what changes while it is played, copies of it, its facts."""

from __future__ import annotations

from typing import NamedTuple

from alfworld_native.drawing.state import RoomState
from alfworld_native.engine.pddl import STATIC, Fact, pairs, rows
from alfworld_native.engine.world import STATES, World
from alfworld_native.errors import EnvironmentFault


class Snapshot(NamedTuple):
    """A state of a game at one moment, independent of what is played afterwards."""

    location: str
    held: str | None
    contents: dict[str, tuple[str, ...]]
    lying: frozenset[tuple[str, str]]
    parted: frozenset[tuple[str, str]]
    states: tuple[frozenset[str], ...]
    traces: frozenset[Fact]
    won: bool | None
    names: dict[str, str]  # of the game's things: rooms have many games, which differ in them


class Menu(NamedTuple):
    """What is admissible now: the sorted commands, and what those that are not `go to` do."""

    commands: list[str]
    actions: dict[str, tuple]  # command -> (function, *arguments)


class GameState:
    """What is true in a game now, by PDDL id; `actions` changes it.

    Besides what holds, it keeps what TextWorld's facts remember of the past (`parted`, `traces`): descriptions depend
    on them.
    """

    opened: set[str]
    clean: set[str]
    hot: set[str]
    cool: set[str]
    sliced: set[str]
    on: set[str]
    toggled: set[str]

    def __init__(self, world: World, says_move: bool) -> None:
        """`says_move`: admissible commands read `move X to Y`, else `put X in/on Y`."""
        self.world = world
        self.says_move = says_move
        self.goal_names_location = any(
            literal.predicate == "atlocation" for levels in world.goal for level in levels for literal in level.literals
        )
        self.begin()

    def begin(self) -> None:
        """Go to the state in which the game begins."""
        world = self.world
        self.location = world.start
        self.held: str | None = None
        self.contents = world.contents.copy()
        self.lying = set(world.lying)  # (object, location): TextWorld's objectAtLocation
        self.parted: set[tuple[str, str]] = set()  # (object, receptacle) it was taken from and not put back to
        self.traces: set[Fact] = set()  # what TextWorld's facts also remember: `checked` and negated facts
        for attribute, names in world.states.items():
            setattr(self, attribute, set(names))
        # Both are derived from the rest, and kept until an action changes what they depend on.
        self.menu: Menu | None = None
        self.goal_reached: bool | None = None

    def changed(self) -> None:
        """To be called after what changes the admissible commands."""
        self.menu = None
        self.goal_reached = None

    def facts(self) -> frozenset[Fact]:
        """All that TextWorld's `facts` holds at this moment, by PDDL id: also `checked` and `not_…` facts."""
        # Facts of a static predicate come from the game file; of the changing ones the file tells the beginning only.
        agent = self.world.agent
        facts = {fact for fact in rows(self.world.text.facts) if fact[0] in STATIC}
        facts |= {("atlocation", agent, self.location), *self.traces}
        facts.update(("inreceptacle", thing, name) for name, things in self.contents.items() for thing in things)
        facts.update(("objectatlocation", *pair) for pair in self.lying)
        facts.update(("not_inreceptacle", *pair) for pair in self.parted)
        for predicate, attribute in STATES.items():
            facts.update((predicate, name) for name in getattr(self, attribute))
        if self.held is not None:
            facts |= {("holds", agent, self.held), ("holdsany", agent)}
        return frozenset(facts)

    def snapshot(self) -> Snapshot:
        """The state now; `restore` of this game or of a `clone` takes it."""
        states = tuple(frozenset(getattr(self, attribute)) for attribute in STATES.values())
        lying, parted, traces = frozenset(self.lying), frozenset(self.parted), frozenset(self.traces)
        contents, names = self.contents.copy(), self.world.names
        return Snapshot(self.location, self.held, contents, lying, parted, states, traces, self.goal_reached, names)

    def restore(self, state: Snapshot) -> None:
        """Go back (or forth) to a state of the same game; EnvironmentFault for one of another game."""
        # A snapshot of the same game has the same table; then no entry has to be compared.
        if state.names is not self.world.names and state.names != self.world.names:
            raise EnvironmentFault("the snapshot belongs to another game; restore it where that game is loaded")
        self.location, self.held, contents, lying, parted, states, traces, self.goal_reached, _ = state
        self.contents = contents.copy()
        self.lying, self.parted, self.traces = set(lying), set(parted), set(traces)
        for attribute, names in zip(STATES.values(), states, strict=True):
            setattr(self, attribute, set(names))
        self.menu = None

    def is_true(self, predicate: str, arguments: tuple[str, ...]) -> bool:
        """Whether a fact of the goal that can change is true now."""
        if predicate == "inreceptacle":
            return arguments[0] in self.contents.get(arguments[1], ())
        if predicate == "holds":
            return self.held == arguments[1]
        if predicate == "=":
            return arguments[0] == arguments[1]
        if predicate == "atlocation":
            return self.location == arguments[1]
        if predicate == "objectatlocation":
            return arguments in self.lying
        if predicate in STATES:
            return arguments[0] in getattr(self, STATES[predicate])
        return arguments in pairs(self.world.text.facts, predicate)

    def room_state(self) -> RoomState:
        """What the renderer needs to know of the room."""
        world = self.world
        return RoomState(
            names={name: world.names[name] for name in sorted((*world.location_of, *world.type_of))},
            location=self.location,
            receptacle_locations=world.location_of,
            contents=self.contents.copy(),
            openable=world.able["openable"],
            opened=frozenset(self.opened),
            held=self.held,
            clean=frozenset(self.clean),
            hot=frozenset(self.hot),
            cool=frozenset(self.cool),
            sliced=frozenset(self.sliced),
            toggled=frozenset(self.toggled),
        )
