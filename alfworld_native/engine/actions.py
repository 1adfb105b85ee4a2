"""The actions of ALFWorld: which commands are admissible in a state, and what each changes and answers.

Preconditions and effects are those of `alfred.pddl`; the answers follow the grammar in the game file. Where either
surprises, a comment says so. An action is a function of the state and of PDDL ids; it returns the engine's answer.
"""

from __future__ import annotations

from alfworld_native.engine.state import GameState, Menu
from alfworld_native.engine.texts import HELP, arrival_text, contents_text, middle_of_room, object_text, surroundings
from alfworld_native.engine.world import KNIVES
from alfworld_native.language.sentences import NOTHING_HAPPENS


def make_menu(state: GameState) -> Menu:
    """The admissible commands of `state`, sorted, and what those that are not `go to …` do."""
    world, held = state.world, state.held
    names, able = world.names, world.able
    here = world.here.get(state.location, ())
    actions: dict[str, tuple] = _ALWAYS_AND_HELP.copy() if world.rules.help else _ALWAYS.copy()

    # What needs only the receptacle in front, what is in it, and the hand.
    for receptacle in here:
        name = names[receptacle]
        actions[f"examine {name}"] = (_examine, receptacle)
        within_reach = True
        if receptacle in able["openable"]:
            within_reach = receptacle in state.opened
            if within_reach:
                actions[f"close {name}"] = (_close, receptacle)
            else:
                actions[f"open {name}"] = (_open, receptacle)
        for thing in state.contents[receptacle]:
            if thing in able["toggleable"]:  # not asked for: that the receptacle is open
                actions[f"use {names[thing]}"] = (_use, thing)
            if within_reach and held is None and thing in able["pickupable"]:
                actions[f"take {names[thing]} from {name}"] = (_take, thing, receptacle)
        if within_reach and held is not None and world.accepts(receptacle, held):
            command = f"move {names[held]} to {name}" if state.says_move else f"put {names[held]} in/on {name}"
            actions[command] = (_put, held, receptacle)

    # What can be done with the thing in the hand.
    if held is not None:
        # Things that lie around are not offered: alfred.pddl's condition for them is misspelt (`?l - location,`).
        actions[f"examine {names[held]}"] = (_examine, held)
        for receptacle in here:
            # Not asked for: that a microwave or a fridge is open.
            if receptacle in world.cleaning and held in able["cleanable"]:
                actions[f"clean {names[held]} with {names[receptacle]}"] = (_clean, held, receptacle)
            if receptacle in world.heating and held in able["heatable"]:
                actions[f"heat {names[held]} with {names[receptacle]}"] = (_heat, held, receptacle)
            if receptacle in world.cooling and held in able["coolable"]:
                actions[f"cool {names[held]} with {names[receptacle]}"] = (_cool, held, receptacle)
        if world.type_of.get(held) in KNIVES:
            # Asked for is the location alone, not the receptacle: what lies in a closed one can be sliced too.
            for thing in able["sliceable"]:
                if (thing, state.location) in state.lying:
                    actions[f"slice {names[thing]} with {names[held]}"] = (_slice, thing, held)

    commands = [*world.going_from(state.location), *actions]
    commands.sort()
    return Menu(commands, actions)


def go(state: GameState, receptacle: str) -> str:
    """Go to `receptacle`; admissible from every other location."""
    world, traces = state.world, state.traces
    place = world.location_of[receptacle]
    if place == state.location:
        return NOTHING_HAPPENS
    traces.add(("not_atlocation", world.agent, state.location))
    traces.discard(("not_atlocation", world.agent, place))
    state.location = place
    state.menu = None
    # Most goals do not ask where the agent is: for them the last answer stays right.
    if state.goal_names_location:
        state.goal_reached = None
    return arrival_text(state, receptacle)


def _open(state: GameState, receptacle: str) -> str:
    state.opened.add(receptacle)
    state.traces.discard(("not_opened", receptacle))
    state.traces.add(("checked", receptacle))
    state.changed()
    return f"You open the {state.world.names[receptacle]}. {contents_text(state, receptacle)}"


def _close(state: GameState, receptacle: str) -> str:
    state.opened.discard(receptacle)
    state.traces.add(("not_opened", receptacle))
    state.changed()
    return f"You close the {state.world.names[receptacle]}."


def _take(state: GameState, thing: str, receptacle: str) -> str:
    world, traces = state.world, state.traces
    # A thing may lie in several receptacles at once (a pot on a stove burner on a counter) and is then taken
    # from one only.
    state.contents[receptacle] = tuple(other for other in state.contents[receptacle] if other != thing)
    state.parted.add((thing, receptacle))
    spot = (thing, state.location)
    # Fast Downward forgets facts that no play can reach: it knows `thing lies here` only if the thing lies here at the
    # beginning, or if it can be put here.
    here = world.here.get(state.location, ())
    if spot in state.lying or spot in world.lying or any(world.accepts(each, thing) for each in here):
        traces.add(("not_objectatlocation", *spot))
    state.lying.discard(spot)
    state.held = thing
    traces.discard(("not_holds", world.agent, thing))
    traces.discard(("not_holdsany", world.agent))
    state.changed()
    return f"You pick up the {world.names[thing]} from the {world.names[receptacle]}."


def _put(state: GameState, thing: str, receptacle: str) -> str:
    world, traces = state.world, state.traces
    state.contents[receptacle] = tuple(sorted({*state.contents[receptacle], thing}))
    state.parted.discard((thing, receptacle))
    state.lying.add((thing, state.location))
    traces.discard(("not_objectatlocation", thing, state.location))
    state.held = None
    traces.add(("not_holds", world.agent, thing))
    traces.add(("not_holdsany", world.agent))
    state.changed()
    # The answer is in the dialect of the game file, also if the commands are in the other one.
    if world.wording.dialect == "move":
        return f"You move the {world.names[thing]} to the {world.names[receptacle]}."
    return f"You put the {world.names[thing]} in/on the {world.names[receptacle]}."


def _clean(state: GameState, thing: str, receptacle: str) -> str:
    state.clean.add(thing)
    state.goal_reached = None
    return f"You clean the {state.world.names[thing]} using the {state.world.names[receptacle]}."


def _heat(state: GameState, thing: str, receptacle: str) -> str:
    world = state.world
    state.hot.add(thing)
    state.traces.discard(("not_ishot", thing))
    # Heating deletes `isCool`. TextWorld notes the negated fact only if Fast Downward knows the fact: the thing is
    # cool, or something in this game can cool it. In `_cool` the same holds for `isHot`.
    if thing in state.cool or (world.cooling and thing in world.able["coolable"]):
        state.traces.add(("not_iscool", thing))
    state.cool.discard(thing)
    state.goal_reached = None
    return f"You heat the {world.names[thing]} using the {world.names[receptacle]}."


def _cool(state: GameState, thing: str, receptacle: str) -> str:
    world = state.world
    state.cool.add(thing)
    state.traces.discard(("not_iscool", thing))
    if thing in state.hot or (world.heating and thing in world.able["heatable"]):
        state.traces.add(("not_ishot", thing))
    state.hot.discard(thing)
    state.goal_reached = None
    return f"You cool the {world.names[thing]} using the {world.names[receptacle]}."


def _use(state: GameState, thing: str) -> str:
    # alfred.pddl flips `isOn` by two conditional effects; TextWorld notes both, the one that ends in `not` last.
    state.on.discard(thing)
    state.traces.add(("not_ison", thing))
    state.toggled.add(thing)
    state.goal_reached = None
    # The grammar asks whether the thing was ever toggled, so it never says "off".
    return f"You turn on the {state.world.names[thing]}."


def _slice(state: GameState, thing: str, knife: str) -> str:
    state.sliced.add(thing)
    state.goal_reached = None
    return f"You sliced the {state.world.names[thing]} with the {state.world.names[knife]}."


def _look(state: GameState) -> str:
    state.traces.add(("checked", state.location))
    # In the middle of the room the grammar asks for receptacles at the agent's own location: there are none.
    return surroundings(state) if state.location in state.world.here else middle_of_room(state, ())


def _inventory(state: GameState) -> str:
    state.traces.add(("checked", state.world.agent))
    if state.held is None:
        return "You are not carrying anything."
    return f"You are carrying: a {state.world.names[state.held]}."


def _help(state: GameState) -> str:
    state.traces.add(("checked", state.world.agent))
    return HELP


def _examine(state: GameState, name: str) -> str:
    """A receptacle, or the thing in the hand."""
    state.traces.add(("checked", name))
    return contents_text(state, name) if name in state.world.location_of else object_text(state, name)


_ALWAYS = {"look": (_look,), "inventory": (_inventory,)}
_ALWAYS_AND_HELP = {**_ALWAYS, "help": (_help,)}
