"""The sentences of ALFWorld's grammar that describe a state: what is where, and what a thing looks like."""

from __future__ import annotations

from collections.abc import Iterable

from alfworld_native.engine.pddl import pairs
from alfworld_native.engine.state import GameState

WELCOME = "-= Welcome to TextWorld, ALFRED! =-"
HELP = """Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""
_PRODUCTS = (  # examineObject.feedback, in the grammar's order
    (("clean", "hot", "sliced"), "hot and clean sliced"),
    (("clean", "cool", "sliced"), "cool and clean sliced"),
    (("clean", "sliced"), "clean sliced"),
    (("hot", "sliced"), "hot sliced"),
    (("cool", "sliced"), "cool sliced"),
    (("clean", "hot"), "hot and clean"),
    (("clean", "cool"), "cool and clean"),
    (("hot",), "hot"),
    (("clean",), "clean"),
    (("cool",), "cold"),
)


def listing(things: list[str]) -> str:
    """`nothing`, `a cup 1`, `a cup 1, and a mug 2`, `a cup 1, a mug 2, and a mug 1`: the grammar's lists."""
    if len(things) > 1:
        return f"{', '.join(things[:-1])}, and {things[-1]}"
    return things[0] if things else "nothing"


def arrival_text(state: GameState, receptacle: str) -> str:
    """What `go to` says when the agent has arrived."""
    world = state.world
    arrival = receptacle if world.wording.arrival == "receptacle" else state.location
    return f"You arrive at {world.names[arrival]}. {contents_text(state, receptacle)}"


def contents_text(state: GameState, receptacle: str) -> str:
    """What lies on or in `receptacle`, or that it is closed."""
    name = state.world.names[receptacle]
    where = f"On the {name}"
    if receptacle in state.world.able["openable"]:
        if receptacle not in state.opened:
            return f"The {name} is closed."
        where = f"The {name} is open. In it"
    names = state.world.names
    return f"{where}, you see {listing([f'a {names[thing]}' for thing in state.contents[receptacle]])}."


def surroundings(state: GameState) -> str:
    """Where the agent stands: the receptacles of its location, and what lies next to them."""
    world = state.world
    around = listing([world.names[name] for name in world.here[state.location]])
    # `list_objects_on_the_floor` asks for things that lie at this location and are *known* not to be in a
    # receptacle of it. TextWorld knows that only of a receptacle from which they were taken: what was moved
    # from one drawer to another of the same location lies "next to it".
    floor = [
        f"a {world.names[thing]}"
        for thing, receptacle in sorted(state.parted)
        if world.location_of[receptacle] == state.location and (thing, state.location) in state.lying
    ]
    return f"You are facing the {around}. Next to it, you see {listing(floor)}."


def middle_of_room(state: GameState, receptacles: Iterable[str]) -> str:
    """What the agent sees from where no receptacle is: `receptacles`."""
    around = listing([f"a {state.world.names[name]}" for name in receptacles])
    return f"You are in the middle of a room. Looking quickly around you, you see {around}."


def object_text(state: GameState, thing: str) -> str:
    """What `examine` says of an object in the hand."""
    world = state.world
    name = world.names[thing]
    # The first rule of the grammar that fits decides: of a clean bowl `examine` says what is in it, and no more.
    if thing in world.able["isreceptacleobject"]:
        contained = pairs(world.text.facts, "inreceptacleobject")
        within = listing([f"a {world.names[inner]}" for inner, outer in contained if outer == thing])
        return f"This is a normal {name}. In it, you see {within}."
    for attributes, words in _PRODUCTS:
        if all(thing in getattr(state, attribute) for attribute in attributes):
            return f"This is a {words} {name}."
    if thing in world.able["toggleable"] and thing in state.toggled:
        return f"This {name} is on."
    if thing in world.able["sliceable"] and thing in state.sliced:
        return f"This is a sliced {name}."
    return f"There's nothing special about {name}."
