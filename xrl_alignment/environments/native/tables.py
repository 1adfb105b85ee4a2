"""What `batch` keeps: for each game its places and its nodes, for all games together the tables of the nodes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

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
from xrl_alignment.environments.native.pddl import Goal, satisfied
from xrl_alignment.environments.native.state import GameState
from xrl_alignment.environments.native.world import World

UNKNOWN = 0  # the row of a place at which nobody has looked yet
MAX_KINDS = 1024  # of things that can be held in a game; ALFWorld's have less than 60


class Column:
    """A numpy array that grows at its end."""

    def __init__(self, dtype: type) -> None:
        self.array: np.ndarray = np.empty(1024, dtype)
        self.used = 0

    def extend(self, number: int, values: Sequence[int] | int) -> int:
        """Append `number` entries, `values` or all the same; returns the number of the first."""
        first, self.used = self.used, self.used + number
        if self.used > len(self.array):
            array = np.empty(max(self.used, first * 5 // 4), self.array.dtype)  # twice as much would often lie idle
            array[:first] = self.array[:first]
            self.array = array
        self.array[first : self.used] = values
        return first


class Tables:
    """A *node* is what is admissible at a place with a thing of some kind in the hand.

    A place has one entry in `node` for each kind of thing: `node[row + kind]`, -1 where nobody was there with such a
    thing. The sorted list of a node's commands has the length `size[node]`. What number i leads to is
    `target[first[node] + i]`: the location where the agent is then, or -1 - k where offer k may change something. The
    `go to` are those from `start[node]` on, all others stand in `offers[node]`.

    `effects` says what an offer that may change something has done: (row, thing in the hand, number of the offer) ->
    the same two afterwards, and whether the goal may be reached by it. Things are numbered by their room.
    """

    def __init__(self) -> None:
        self.node, self.first, self.size, self.target = (
            Column(dtype) for dtype in (np.int32, np.int64, np.int64, np.int16)
        )
        self.start: list[int] = []
        self.offers: list[tuple[Offer, ...]] = []
        self.effects: dict[tuple[int, int, int], tuple[int, int, bool]] = {}
        self.uses: dict[Hashable, int] = {}  # how a thing in the hand can be used somewhere -> its number
        self.node.extend(MAX_KINDS, -1)  # the row UNKNOWN

    def add(self, start: int, offers: tuple[Offer, ...], goals: list[int], here: int) -> int:
        """A new node at the location `here`; its `go to` lead to `goals`."""
        targets = [-1 - k if offer.action[0] in EFFECTS else here for k, offer in enumerate(offers)]
        targets[start:start] = goals
        self.start.append(start)
        self.offers.append(offers)
        self.first.extend(1, self.target.extend(len(targets), targets))
        return self.size.extend(1, len(targets))


class Room:
    """One game: its locations and things as numbers, and what the tables hold of it."""

    def __init__(self, world: World, dialect: str | None) -> None:
        """EnvironmentFault for a game with more than MAX_KINDS kinds of things."""
        self.world, self.dialect = world, dialect
        self.locations = list(dict.fromkeys([world.start, *world.here]))
        self.things = ["", *sorted(world.able["pickupable"])]  # the first: nothing
        self._thing = {thing: number for number, thing in enumerate(self.things)}
        numbers: dict[Hashable, int] = {}
        kinds = [kind_of(world, thing or None) for thing in self.things]
        self.kinds = [numbers.setdefault(kind, len(numbers)) for kind in kinds]
        self._special = {thing for thing, kind in zip(self.things, kinds, strict=True) if kind == thing}
        self.width = len(numbers)
        if self.width > MAX_KINDS:
            raise EnvironmentFault(f"it has {self.width} kinds of things; at most {MAX_KINDS} can be played in a batch")
        number_of = {location: number for number, location in enumerate(self.locations)}
        self._goals = [number_of[world.location_of[name]] for name in world.going.values()]  # of all `go to`
        game = self.new_game()
        self.opening = game.reset()
        self._spare = [game]
        self._nearly = without_location(world.goal) if game.goal_names_location else None
        self.near = game.won or self.nearly(game)  # at the beginning
        self._wanted = _wanted(world.goal)
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
        self._scenes: dict[Hashable, int] = {}  # what of it matters with a full hand -> number of the scene
        self._scene: dict[int, int] = {}  # row -> number of its scene
        # Location and kind of the thing in the hand -> number of its use, of those in `tables`.
        self._use = np.full((len(self.locations), self.width), -1, np.int16)
        self._nodes: dict[int, int] = {}  # scene and use of the thing in the hand, or - row -> node
        self._offers: dict[str, Offer] = {}

    def row(self, state: GameState, tables: Tables) -> int:
        """The row of the place where the agent is."""
        key = place_key(state)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = tables.node.extend(self.width, -1)
            self._scene[row] = self._scenes.setdefault(scene_key(state), len(self._scenes))
        return row

    def receptacles_from(self, location: int) -> list[str]:
        """Where the `go to` of a location lead, in their order."""
        names = self.world.going.values()
        return [name for name, goal in zip(names, self._goals, strict=True) if goal != location]

    def node(self, row: int, location: int, held: int, tables: Tables, state: Callable[[], GameState]) -> int:
        """The node of a place with the thing number `held` in the hand; `state()` is asked where none is known yet."""
        key = self._scene[row] << 16 | self._use_of(location, held, tables) if held else -row
        node = self._nodes.get(key)
        if node is None:
            start, offers = make_offers(state(), self._offers)
            goals = [goal for goal in self._goals if goal != location]
            node = self._nodes[key] = tables.add(start, offers, goals, location)
        tables.node.array[row + self.kinds[held]] = node
        return node

    def _use_of(self, location: int, held: int, tables: Tables) -> int:
        kind = self.kinds[held]
        number = int(self._use[location, kind])
        if number < 0:
            thing = self.things[held]
            use = use_of(self.world, self.locations[location], thing, thing in self._special)
            number = self._use[location, kind] = tables.uses.setdefault(use, len(tables.uses))
        return number

    def effect(self, state: GameState, offer: Offer, held: int, tables: Tables) -> tuple[int, int, bool]:
        """What `offer` has done, with the thing number `held` in the hand before; an entry of `Tables.effects`."""
        function, thing, *_ = offer.action
        counts = self._wanted is None or (thing or self.things[held]) in self._wanted.get(function, ())
        return self.row(state, tables), self._thing[state.held or ""], counts

    def nearly(self, state: GameState) -> bool:
        """Whether the goal is reached when the agent goes to the right location."""
        return self._nearly is not None and satisfied(self._nearly, state.is_true)

    def reached(self, state: GameState) -> bool:
        """Whether the goal holds."""
        return satisfied(self.world.goal, state.is_true)


def _wanted(goal: Goal) -> dict[Callable, set[str]] | None:
    """Action -> the things (or receptacles) with which it may help to reach the goal; None: any with all."""
    wanted: dict[Callable, set[str]] = {}
    for levels in goal:
        candidates = {level.variable: level.candidates for level in levels}
        for positive, predicate, arguments in (literal for level in levels for literal in level.literals):
            if not positive and predicate != "=":
                return None
            thing = arguments[predicate == "holds"]  # who holds it stands before
            for action in (action for action, made in EFFECTS.items() if predicate in made):
                wanted.setdefault(action, set()).update(candidates.get(thing, (thing,)))
    return wanted
