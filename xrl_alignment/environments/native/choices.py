"""What is admissible in a state, as numbers; `batch` keeps it for all states in which it is the same.

What can be done at a location depends on what holds there (`place_key`; with a full hand `scene_key`) and on the thing
in the hand. Of the latter only the kind matters (`kind_of`), and of that only how it can be used there (`use_of`).
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Hashable
from typing import NamedTuple

from xrl_alignment.environments.native.actions import offered_here
from xrl_alignment.environments.native.pddl import Goal
from xrl_alignment.environments.native.state import GameState
from xrl_alignment.environments.native.world import KNIVES, World

_HELD = None  # stands in the arguments of an action for the thing in the hand


class Offer(NamedTuple):
    """A command other than `go to`, for all things of a kind in the hand: its text may have a blank for their name."""

    before: str
    after: str | None  # what stands behind the name; None where the name does not occur
    action: tuple  # a function and its arguments

    def named(self, held: str) -> str:
        """The command, with the name of the thing in the hand."""
        return self.before if self.after is None else f"{self.before}{held}{self.after}"

    def act(self, state: GameState) -> str:
        """Carry out the command; the engine's answer."""
        function, *arguments = self.action
        return function(state, *[state.held if word is _HELD else word for word in arguments])


def make_offers(state: GameState, known: dict[str, Offer]) -> tuple[int, tuple[Offer, ...]]:
    """How many commands stand before `go to …` in the sorted list, and what all that are not `go to` do.

    Those in `known` are used again, others are added to it: few differ from state to state.
    """
    offered, held = offered_here(state), state.held
    commands = sorted(offered)
    name = "" if held is None else state.world.names[held]
    offers = []
    for command in commands:
        action = offered[command]
        key, after = command, None
        if held is not None and held in action:
            at = action.index(held)
            key, _, after = command.partition(name) if at == 1 else command.rpartition(name)
            action = (*action[:at], _HELD, *action[at + 1 :])
        offer = known.get(key)
        if offer is None or offer.after != after:
            offer = known[key] = Offer(key, after, action)
        offers.append(offer)
    return bisect(commands, "go to "), tuple(offers)


def place_key(state: GameState) -> Hashable:
    """What holds where the agent is: all that the choices and the texts of an arrival depend on, beside the hand."""
    contents, opened, lying, location = state.contents, state.opened, state.lying, state.location
    key: list[Hashable] = [location]
    for name in state.world.here.get(location, ()):
        key.append(contents[name])
        key.append(name in opened)
    key += [thing for thing in state.world.able["sliceable"] if (thing, location) in lying]
    return tuple(key)


def scene_key(state: GameState) -> Hashable:
    """What of the place matters for the commands with a full hand: not what could be taken."""
    contents, opened, lying, location = state.contents, state.opened, state.lying, state.location
    able = state.world.able
    key: list[Hashable] = [location]
    for name in state.world.here.get(location, ()):
        key.append(name in opened)
        key += able["toggleable"].intersection(contents[name])
    key += [thing for thing in able["sliceable"] if (thing, location) in lying]
    return tuple(key)


def kind_of(world: World, thing: str | None) -> Hashable:
    """Things of equal kind can be used alike wherever they are held."""
    if thing is None:
        return None
    able, type_, name = world.able, world.type_of.get(thing), _word(world, thing)
    words = {_word(world, receptacle) for receptacle in world.location_of}
    # Among the commands beside such a thing may be some in which it is not held; or its number orders them.
    if thing in able["toggleable"] or (thing in able["sliceable"] and type_ in KNIVES) or name in words:
        return thing
    treatable = [thing in able[f"{verb}able"] for verb in ("clean", "heat", "cool")]
    accepting = frozenset(kind for kind in set(world.kind_of.values()) if type_ in world.fits.get(kind, ()))
    return (sum(word < name for word in words), type_ in KNIVES, accepting, *treatable)


def _word(world: World, thing: str) -> str:
    return world.names[thing].rpartition(" ")[0]


def use_of(world: World, location: str, thing: str, special: bool) -> Hashable:
    """What of `thing` in the hand matters at `location`: with equal use the choices are equal.

    `special`: it is of a kind of its own.
    """
    type_, name, able = world.type_of.get(thing), world.names[thing], world.able
    use: list[Hashable] = [type_ in KNIVES, thing if special else None]
    for receptacle in world.here.get(location, ()):
        use.append(world.names[receptacle] < name)  # which of them is examined first in the list
        use.append(type_ in world.fits.get(world.kind_of[receptacle], ()))
        if receptacle in world.cleaning:
            use.append(thing in able["cleanable"])
        if receptacle in world.heating:
            use.append(thing in able["heatable"])
        if receptacle in world.cooling:
            use.append(thing in able["coolable"])
    return tuple(use)


def without_location(goal: Goal) -> Goal:
    """The goal without what it asks of the agent's location: where this does not hold, the goal does not."""
    return tuple(
        tuple(
            level._replace(literals=tuple(literal for literal in level.literals if literal.predicate != "atlocation"))
            for level in block
        )
        for block in goal
    )
