"""ALFWorld's text engine in plain Python, equal to TextWorld's to the letter, a few microseconds a step.

`NativeGame` is the raw engine: it keeps the game file's own dialect, and `prove.py` holds it against TextWorld.
`NativeEnvironment` is the project's `Environment` around it: canonical dialect, step limit, errors, pictures.

The rules are those of `alfred.pddl` and of the grammar in the game file (see `world.py`). Where they surprise, a
comment says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from xrl_alignment.common.errors import EnvironmentFault
from xrl_alignment.environments.base import MAX_STEPS, Game, TimeStep
from xrl_alignment.environments.drawing.state import RoomState
from xrl_alignment.environments.native.gamefile import GameText
from xrl_alignment.environments.native.pddl import STATIC, Fact, pairs, rows, satisfied
from xrl_alignment.environments.native.world import KNIVES, STATES, World, load_world, world_of
from xrl_alignment.language.commands import canonical
from xrl_alignment.language.sentences import NOTHING_HAPPENS

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


class Menu(NamedTuple):
    """What is admissible now: the sorted commands, and what those that are not `go to` do."""

    commands: list[str]
    actions: dict[str, tuple]  # command -> (function, *arguments)


def listing(things: list[str]) -> str:
    """`nothing`, `a cup 1`, `a cup 1, and a mug 2`, `a cup 1, a mug 2, and a mug 1`: the grammar's lists."""
    if len(things) > 1:
        return f"{', '.join(things[:-1])}, and {things[-1]}"
    return things[0] if things else "nothing"


class NativeGame:
    """One game in its own dialect: `reset`, then `step` and `admissible_commands` as often as wanted.

    As TextWorld's engine, it plays on after the goal is reached.
    """

    def __init__(self, world: World, dialect: str | None = None) -> None:
        """`dialect`, "put" or "move", is that of the commands; by default the game's own. Texts are the game's."""
        self.world = world
        self._says_move = (dialect or world.wording.dialect) == "move"
        self._place_matters = any(
            x.predicate == "atlocation" for levels in world.goal for y in levels for x in y.literals
        )
        self.reset()

    @classmethod
    def load(cls, path: Path | str) -> NativeGame:
        """The game in a `game.tw-pddl` file; FileNotFoundError or EnvironmentFault as `load_world`."""
        return cls(load_world(path))

    # ---- the interface -----------------------------------------------------------------------------------------

    def reset(self) -> str:
        """Begin the game anew and return its opening text."""
        world = self.world
        self.location = world.start
        self.held: str | None = None
        self.contents = world.contents.copy()
        self.lying = set(world.lying)  # (object, location): TextWorld's objectAtLocation
        self.parted: set[tuple[str, str]] = set()  # (object, receptacle) it was taken from and not put back to
        self.traces: set[Fact] = set()  # what TextWorld's facts also remember: `checked` and negated facts
        for attribute, names in world.states.items():
            setattr(self, attribute, set(names))
        self._last_menu: Menu | None = None
        self._won: bool | None = None
        scene = self._surroundings() if self.location in world.here else self._middle(world.location_of)
        return f"{WELCOME}\n\n{scene}\n\n{world.text.task}"

    def step(self, command: str) -> str:
        """Carry out `command` and return the engine's answer; `Nothing happens.` where it is not admissible."""
        command = command.strip()
        target = self.world.going.get(command)
        if target is not None:
            return self._go(target)
        action = self._menu().actions.get(command)
        if action is None:
            return NOTHING_HAPPENS
        return action[0](self, *action[1:])

    def admissible_commands(self) -> list[str]:
        """What can be done now, sorted; a list of the caller's own."""
        return self._menu().commands.copy()

    @property
    def won(self) -> bool:
        """Whether the goal holds now."""
        if self._won is None:
            self._won = satisfied(self.world.goal, self._true)
        return self._won

    def facts(self) -> frozenset[Fact]:
        """All that TextWorld's `facts` holds at this moment, by PDDL id: also `checked` and `not_…` facts."""
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
        return Snapshot(self.location, self.held, self.contents.copy(), lying, parted, states, traces, self._won)

    def restore(self, state: Snapshot) -> None:
        """Go back (or forth) to a state of the same game; EnvironmentFault for one of another game."""
        if state.contents.keys() != self.contents.keys():
            raise EnvironmentFault("the snapshot belongs to another game; restore it where that game is loaded")
        self.location, self.held, contents, lying, parted, states, traces, self._won = state
        self.contents = contents.copy()
        self.lying, self.parted, self.traces = set(lying), set(parted), set(traces)
        for attribute, names in zip(STATES.values(), states, strict=True):
            setattr(self, attribute, set(names))
        self._last_menu = None

    def clone(self) -> NativeGame:
        """An independent game in the same state; what cannot change is shared."""
        other = object.__new__(NativeGame)
        other.__dict__.update(self.__dict__)
        other.restore(self.snapshot())
        return other

    # ---- admissible commands -----------------------------------------------------------------------------------

    def _menu(self) -> Menu:
        # Only the last one is kept: one for each place would save little and keep Python's garbage collector busy.
        if self._last_menu is None:
            self._last_menu = self._make_menu()
        return self._last_menu

    def _make_menu(self) -> Menu:
        world = self.world
        actions = _ALWAYS_AND_HELP.copy() if world.rules.help else _ALWAYS.copy()
        for receptacle in world.here.get(self.location, ()):
            self._offer_receptacle(receptacle, actions)
        if self.held is not None:
            self._offer_held(self.held, actions)
        commands = [*world.going_from(self.location), *actions]
        commands.sort()
        return Menu(commands, actions)

    def _offer_receptacle(self, receptacle: str, actions: dict[str, tuple]) -> None:
        """Commands that need only the receptacle in front, what is in it, and the hand."""
        world, held = self.world, self.held
        names, able = world.names, world.able
        name = names[receptacle]
        actions[f"examine {name}"] = (NativeGame._examine_receptacle, receptacle)
        within_reach = True
        if receptacle in able["openable"]:
            within_reach = receptacle in self.opened
            if within_reach:
                actions[f"close {name}"] = (NativeGame._close, receptacle)
            else:
                actions[f"open {name}"] = (NativeGame._open, receptacle)
        for thing in self.contents[receptacle]:
            if thing in able["toggleable"]:  # not asked for: that the receptacle is open
                actions[f"use {names[thing]}"] = (NativeGame._use, thing)
            if within_reach and held is None and thing in able["pickupable"]:
                actions[f"take {names[thing]} from {name}"] = (NativeGame._take, thing, receptacle)
        if within_reach and held is not None and world.accepts(receptacle, held):
            command = f"move {names[held]} to {name}" if self._says_move else f"put {names[held]} in/on {name}"
            actions[command] = (NativeGame._put, held, receptacle)

    def _offer_held(self, held: str, actions: dict[str, tuple]) -> None:
        """Commands for the thing in the hand."""
        world = self.world
        names, able = world.names, world.able
        # Things that lie around are not offered: alfred.pddl's condition for them is misspelt (`?l - location,`).
        actions[f"examine {names[held]}"] = (NativeGame._examine_object, held)
        for receptacle in world.here.get(self.location, ()):
            # Not asked for: that a microwave or a fridge is open.
            if receptacle in world.cleaning and held in able["cleanable"]:
                actions[f"clean {names[held]} with {names[receptacle]}"] = (NativeGame._clean, held, receptacle)
            if receptacle in world.heating and held in able["heatable"]:
                actions[f"heat {names[held]} with {names[receptacle]}"] = (NativeGame._heat, held, receptacle)
            if receptacle in world.cooling and held in able["coolable"]:
                actions[f"cool {names[held]} with {names[receptacle]}"] = (NativeGame._cool, held, receptacle)
        if world.type_of.get(held) in KNIVES:
            for thing in able["sliceable"]:
                if (thing, self.location) in self.lying:
                    actions[f"slice {names[thing]} with {names[held]}"] = (NativeGame._slice, thing, held)

    # ---- actions -----------------------------------------------------------------------------------------------

    def _go(self, receptacle: str) -> str:
        world, traces = self.world, self.traces
        place = world.location_of[receptacle]
        if place == self.location:
            return NOTHING_HAPPENS
        traces.add(("not_atlocation", world.agent, self.location))
        traces.discard(("not_atlocation", world.agent, place))
        self.location = place
        self._last_menu = None
        if self._place_matters:
            self._won = None
        arrival = receptacle if world.wording.arrival == "receptacle" else place
        return f"You arrive at {world.names[arrival]}. {self._contents_text(receptacle)}"

    def _open(self, receptacle: str) -> str:
        self.opened.add(receptacle)
        self.traces.discard(("not_opened", receptacle))
        self.traces.add(("checked", receptacle))
        self._changed()
        return f"You open the {self.world.names[receptacle]}. {self._contents_text(receptacle)}"

    def _close(self, receptacle: str) -> str:
        self.opened.discard(receptacle)
        self.traces.add(("not_opened", receptacle))
        self._changed()
        return f"You close the {self.world.names[receptacle]}."

    def _take(self, thing: str, receptacle: str) -> str:
        world, traces = self.world, self.traces
        # A thing may lie in several receptacles at once (a pot on a stove burner on a counter) and is then taken
        # from one only.
        self.contents[receptacle] = tuple(other for other in self.contents[receptacle] if other != thing)
        self.parted.add((thing, receptacle))
        spot = (thing, self.location)
        if spot in self.lying or self._can_lie(thing):
            traces.add(("not_objectatlocation", *spot))
        self.lying.discard(spot)
        self.held = thing
        traces.discard(("not_holds", world.agent, thing))
        traces.discard(("not_holdsany", world.agent))
        self._changed()
        return f"You pick up the {world.names[thing]} from the {world.names[receptacle]}."

    def _can_lie(self, thing: str) -> bool:
        """Whether Fast Downward knows a fact `thing lies here`: it forgets those that no play can reach."""
        world = self.world
        here = world.here.get(self.location, ())
        return (thing, self.location) in world.lying or any(world.accepts(receptacle, thing) for receptacle in here)

    def _put(self, thing: str, receptacle: str) -> str:
        world, traces = self.world, self.traces
        self.contents[receptacle] = tuple(sorted({*self.contents[receptacle], thing}))
        self.parted.discard((thing, receptacle))
        self.lying.add((thing, self.location))
        traces.discard(("not_objectatlocation", thing, self.location))
        self.held = None
        traces.add(("not_holds", world.agent, thing))
        traces.add(("not_holdsany", world.agent))
        self._changed()
        if world.wording.dialect == "move":
            return f"You move the {world.names[thing]} to the {world.names[receptacle]}."
        return f"You put the {world.names[thing]} in/on the {world.names[receptacle]}."

    def _clean(self, thing: str, receptacle: str) -> str:
        self.clean.add(thing)
        self._won = None
        return f"You clean the {self.world.names[thing]} using the {self.world.names[receptacle]}."

    def _heat(self, thing: str, receptacle: str) -> str:
        world = self.world
        self.hot.add(thing)
        self.traces.discard(("not_ishot", thing))
        if thing in self.cool or (world.cooling and thing in world.able["coolable"]):
            self.traces.add(("not_iscool", thing))
        self.cool.discard(thing)
        self._won = None
        return f"You heat the {world.names[thing]} using the {world.names[receptacle]}."

    def _cool(self, thing: str, receptacle: str) -> str:
        world = self.world
        self.cool.add(thing)
        self.traces.discard(("not_iscool", thing))
        if thing in self.hot or (world.heating and thing in world.able["heatable"]):
            self.traces.add(("not_ishot", thing))
        self.hot.discard(thing)
        self._won = None
        return f"You cool the {world.names[thing]} using the {world.names[receptacle]}."

    def _use(self, thing: str) -> str:
        # alfred.pddl flips `isOn` by two conditional effects; TextWorld notes both, the one that ends in `not` last.
        self.on.discard(thing)
        self.traces.add(("not_ison", thing))
        self.toggled.add(thing)
        self._won = None
        # The grammar asks whether the thing was ever toggled, so it never says "off".
        return f"You turn on the {self.world.names[thing]}."

    def _slice(self, thing: str, knife: str) -> str:
        self.sliced.add(thing)
        self._won = None
        return f"You sliced the {self.world.names[thing]} with the {self.world.names[knife]}."

    def _look(self) -> str:
        self.traces.add(("checked", self.location))
        # In the middle of the room the grammar asks for receptacles at the agent's own location: there are none.
        return self._surroundings() if self.location in self.world.here else self._middle(())

    def _inventory(self) -> str:
        self.traces.add(("checked", self.world.agent))
        if self.held is None:
            return "You are not carrying anything."
        return f"You are carrying: a {self.world.names[self.held]}."

    def _help(self) -> str:
        self.traces.add(("checked", self.world.agent))
        return HELP

    def _examine_receptacle(self, receptacle: str) -> str:
        self.traces.add(("checked", receptacle))
        return self._contents_text(receptacle)

    def _examine_object(self, thing: str) -> str:
        world = self.world
        self.traces.add(("checked", thing))
        name = world.names[thing]
        if thing in world.able["isreceptacleobject"]:
            within = pairs(world.text.facts, "inreceptacleobject")
            within = listing([f"a {world.names[inner]}" for inner, outer in within if outer == thing])
            return f"This is a normal {name}. In it, you see {within}."
        for states, words in _PRODUCTS:
            if all(thing in getattr(self, state) for state in states):
                return f"This is a {words} {name}."
        if thing in world.able["toggleable"] and thing in self.toggled:
            return f"This {name} is on."
        if thing in world.able["sliceable"] and thing in self.sliced:
            return f"This is a sliced {name}."
        return f"There's nothing special about {name}."

    # ---- texts and truths --------------------------------------------------------------------------------------

    def _changed(self) -> None:
        """After what changes the admissible commands."""
        self._last_menu = None
        self._won = None

    def _contents_text(self, receptacle: str) -> str:
        name = self.world.names[receptacle]
        where = f"On the {name}"
        if receptacle in self.world.able["openable"]:
            if receptacle not in self.opened:
                return f"The {name} is closed."
            where = f"The {name} is open. In it"
        names = self.world.names
        return f"{where}, you see {listing([f'a {names[thing]}' for thing in self.contents[receptacle]])}."

    def _surroundings(self) -> str:
        world = self.world
        around = listing([world.names[name] for name in world.here[self.location]])
        # `list_objects_on_the_floor` asks for things that lie at this location and are *known* not to be in a
        # receptacle of it. TextWorld knows that only of a receptacle from which they were taken: what was moved
        # from one drawer to another of the same location lies "next to it".
        floor = [
            f"a {world.names[thing]}"
            for thing, receptacle in sorted(self.parted)
            if world.location_of[receptacle] == self.location and (thing, self.location) in self.lying
        ]
        return f"You are facing the {around}. Next to it, you see {listing(floor)}."

    def _middle(self, receptacles: Iterable[str]) -> str:
        around = listing([f"a {self.world.names[name]}" for name in receptacles])
        return f"You are in the middle of a room. Looking quickly around you, you see {around}."

    def _true(self, predicate: str, arguments: tuple[str, ...]) -> bool:
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
        """What a picture of the room needs."""
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


_ALWAYS = {"look": (NativeGame._look,), "inventory": (NativeGame._inventory,)}
_ALWAYS_AND_HELP = {**_ALWAYS, "help": (NativeGame._help,)}


class NativeEnvironment:
    """ALFWorld's text games at full speed, in the canonical dialect; an `Environment`.

    Unlike the raw engine it ends: `done` when the goal is reached or after `max_steps` actions.
    """

    name = "native"

    def __init__(
        self, max_steps: int = MAX_STEPS, show_ids: bool = True, games: Mapping[Path, GameText] | None = None
    ) -> None:
        """`games` were read beforehand, by path (`gamefile.read_games`); others are read when they are reset."""
        if max_steps < 1:
            raise EnvironmentFault(f"max_steps is {max_steps}; an episode needs at least 1")
        self.max_steps = max_steps
        self.show_ids = show_ids
        self._games = games or {}
        self._game: NativeGame | None = None
        self._steps = 0
        self._done = False
        self._drawn: tuple[RoomState, np.ndarray] | None = None  # what was drawn last, and the picture

    def reset(self, game: Game) -> TimeStep:
        """Load `game` and return its opening text; FileNotFoundError or EnvironmentFault where it cannot be played."""
        self._game = None
        text = self._games.get(game.path)
        world = load_world(game.path) if text is None else world_of(text)
        self._game = NativeGame(world, dialect="put")
        self._steps, self._done = 0, False
        return self._time_step(self._game.reset())

    def step(self, action: str) -> TimeStep:
        """Carry out `action` (canonical or the game's dialect).

        Raises EnvironmentFault before `reset`, after the end of the episode, or for an action that is no string.
        """
        game = self._playing()
        if self._done:
            raise EnvironmentFault("the episode is over; call reset(game) before the next step")
        if not isinstance(action, str):
            raise EnvironmentFault(f"an action is a string such as 'go to desk 1', not {type(action).__name__}")
        self._steps += 1
        return self._time_step(game.step(canonical(action.strip())))

    def render(self) -> np.ndarray:
        """The agent's view now: uint8, (height, width, 3), RGB."""
        from xrl_alignment.environments.drawing import frames

        state = self.room_state()
        if self._drawn is None or self._drawn[0] != state:  # a rejected action changes nothing
            self._drawn = state, frames.draw(state, show_ids=self.show_ids)
        return self._drawn[1].copy()

    def room_state(self) -> RoomState:
        """What holds in the room now, by PDDL id."""
        return self._playing().room_state()

    def facts(self) -> frozenset[Fact]:
        """All facts as TextWorld counts them, by PDDL id."""
        return self._playing().facts()

    def snapshot(self) -> tuple[Snapshot, int]:
        """The state of the episode now, with the number of its steps, for `restore`."""
        return self._playing().snapshot(), self._steps

    def restore(self, state: tuple[Snapshot, int]) -> TimeStep:
        """Go back (or forth) to a state of the same game; the time step's text is empty."""
        snapshot, steps = state
        self._playing().restore(snapshot)
        self._steps = steps
        return self._time_step("")

    def clone(self) -> NativeEnvironment:
        """An independent environment in the same state."""
        other = NativeEnvironment(self.max_steps, self.show_ids, self._games)
        other._game, other._steps, other._done = self._playing().clone(), self._steps, self._done
        return other

    def close(self) -> None:
        """Forget the game."""
        self._game = None

    def _playing(self) -> NativeGame:
        if self._game is None:
            raise EnvironmentFault("no game is loaded; call reset(game) first")
        return self._game

    def _time_step(self, text: str) -> TimeStep:
        game = self._playing()
        won = game.won
        self._done = won or self._steps >= self.max_steps
        return TimeStep(text, game.admissible_commands(), won, self._done)
