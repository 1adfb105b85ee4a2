"""What `batch` keeps: for each game its places and its nodes, for all games together the tables of the nodes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from xrl_alignment.common.errors import EnvironmentFault
from xrl_alignment.environments.native.actions import EFFECTS
from xrl_alignment.environments.native.choices import (
    Offer,
    kind_of,
    make_offers,
    place_key,
    scene_key,
    use_of,
    without_location,
)
from xrl_alignment.environments.native.game import NativeGame
from xrl_alignment.environments.native.pddl import satisfied
from xrl_alignment.environments.native.state import GameState
from xrl_alignment.environments.native.world import World

UNKNOWN = 0  # the row of a place at which nobody has looked yet
START, STOP, SIZE, GOALS, CHANGING = range(5)
LAST_BIT = 62
MAX_KINDS = 1024  # of things that can be held in a game; ALFWorld's have less than 60


class Column:
    """A numpy array that grows at its end."""

    def __init__(self, dtype: type, *shape: int) -> None:
        self.array: np.ndarray = np.empty((1024, *shape), dtype)
        self.used = 0

    def extend(self, number: int, values: Sequence[int] | int) -> int:
        """Append `number` entries, `values` or all the same; returns the number of the first."""
        first, self.used = self.used, self.used + number
        while self.used > len(self.array):
            self.array = np.concatenate((self.array, np.empty_like(self.array)))
        self.array[first : self.used] = values
        return first


class Tables:
    """A *node* is what is admissible at a place with a thing of some kind in the hand.

    A place has one entry in `node` for each kind of thing: `node[row + kind]`, -1 where nobody was there with such a
    thing. `nodes` tells of each node (int64, columns START to CHANGING): in the sorted list of commands START to STOP
    are the `go to`, which lead to the locations from `goal[GOALS]` on; SIZE is the length of the list; the others stand
    in `offers`, and bit i of CHANGING says whether number i of them may change something (bit 62: any from 62 on).
    """

    def __init__(self) -> None:
        self.node, self.goal, self.nodes = Column(np.int32), Column(np.int16), Column(np.int64, 5)
        self.offers: list[tuple[Offer, ...]] = []
        self.node.extend(MAX_KINDS, -1)  # the row UNKNOWN

    def add(self, start: int, offers: tuple[Offer, ...], goals: int, number: int) -> int:
        """A new node; its `number` of `go to` begin at `goals`."""
        self.offers.append(offers)
        changing = 0
        for i in [i for i, offer in enumerate(offers) if offer.action[0] in EFFECTS]:
            changing |= 1 << min(i, LAST_BIT)
        return self.nodes.extend(1, (start, start + number, len(offers) + number, goals, changing))


class Room:
    """One game: its locations and the kinds of its things as numbers, and what the tables hold of it."""

    def __init__(self, world: World, dialect: str | None) -> None:
        """EnvironmentFault for a game with more than MAX_KINDS kinds of things."""
        self.world, self.dialect = world, dialect
        self.locations = list(dict.fromkeys([world.start, *world.here]))
        kinds: dict[Hashable, int] = {}
        things = [None, *sorted(world.able["pickupable"])]
        self.kinds = {thing: kinds.setdefault(kind_of(world, thing), len(kinds)) for thing in things}
        self._kinds = list(kinds)
        self.width = len(kinds)
        if self.width > MAX_KINDS:
            raise EnvironmentFault(f"it has {self.width} kinds of things; at most {MAX_KINDS} can be played in a batch")
        number_of = {location: number for number, location in enumerate(self.locations)}
        self.receptacles = [[world.going[text] for text in world.going_from(place)] for place in self.locations]
        self._leading = [[number_of[world.location_of[name]] for name in names] for names in self.receptacles]
        game = self.new_game()
        self.opening = game.reset()
        self._spare = [game]
        self._nearly = without_location(world.goal) if game.goal_names_location else None
        self.near = game.won or self.nearly(game)  # at the beginning
        literals = [literal for block in world.goal for level in block for literal in level.literals]
        asked = {literal.predicate for literal in literals}
        plain = all(literal.positive or literal.predicate == "=" for literal in literals)
        self._counting = {action for action, made in EFFECTS.items() if not plain or not asked.isdisjoint(made)}
        self.forget()

    def new_game(self) -> NativeGame:
        """The game at its beginning."""
        return NativeGame(self.world, self.dialect)

    def lend(self) -> NativeGame:
        """As `new_game`, but what was given back before is used again."""
        game = self._spare.pop() if self._spare else self.new_game()
        game.begin()
        return game

    def give_back(self, game: NativeGame) -> None:
        """The game is not played any more."""
        self._spare.append(game)

    def forget(self) -> None:
        """Drop what the tables hold: they are new."""
        self.first = np.zeros(len(self.locations), np.int32)  # row of each location's place at the beginning
        self.texts: dict[tuple[int, str], str] = {}  # place and receptacle -> what one reads on arrival
        self._rows: dict[Hashable, int] = {}  # what holds at a location -> row of the place
        self._nodes: dict[Hashable, int] = {}  # what the commands depend on -> node
        self._offers: dict[str, Offer] = {}
        self._goals: dict[int, int] = {}  # location -> where its `go to` begin

    def row(self, state: GameState, tables: Tables) -> int:
        """The row of the place where the agent is."""
        key = place_key(state)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = tables.node.extend(self.width, -1)
        return row

    def node(self, state: GameState, row: int, location: int, tables: Tables) -> int:
        """The node of the present state, whose place has the row `row`."""
        kind = self.kinds[state.held]
        use = use_of(state, self._kinds[kind])
        key = (row, use) if use is None else (scene_key(state), use)
        node = self._nodes.get(key)
        if node is None:
            goals = self._goals.get(location)
            number = len(self._leading[location])
            if goals is None:
                goals = self._goals[location] = tables.goal.extend(number, self._leading[location])
            node = self._nodes[key] = tables.add(*make_offers(state, self._offers), goals, number)
        tables.node.array[row + kind] = node
        return node

    def counts(self, offer: Offer) -> bool:
        """Whether the goal may be reached by this command."""
        return offer.action[0] in self._counting

    def nearly(self, state: GameState) -> bool:
        """Whether the goal is reached when the agent goes to the right location."""
        return self._nearly is not None and satisfied(self._nearly, state.is_true)

    def reached(self, state: GameState) -> bool:
        """Whether the goal holds."""
        return satisfied(self.world.goal, state.is_true)
