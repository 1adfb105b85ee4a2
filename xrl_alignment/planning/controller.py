"""The controller: turns a high-level action into commands, from what the agent has read so far.

The explorer carries out a whole task; the controller carries out one entry of a plan. For `take mug` it says `go to
cabinet 1`, `open cabinet 1`, `take mug 1 from cabinet 1`: it knows where things are (`Belief`) and how to reach, open
and use them, but not why the plan wants them. Its next command is the label of the acting model. If the controller
plays itself, without the model, the success rate measures the planner alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from alfworld_native.experts.belief import STATES, Belief
from alfworld_native.experts.explorer import APPLIANCES
from alfworld_native.language.sentences import NOTHING_HAPPENS, is_refusal, parse_opening, type_of
from xrl_alignment.planning.plans import HighLevelAction


class Refusal(str):
    """Why a high-level action cannot be carried out: `REJECTED` or `NOT_FOUND`; a string like the other answers."""


REJECTED = Refusal("rejected")  # no such place or appliance, nothing in the hand, or the engine did nothing
NOT_FOUND = Refusal("not_found")  # the thing was seen nowhere
DONE = ""  # what `next` says when the action is carried out


class Aim(NamedTuple):
    """Where a high-level action is carried out, and the command that does it there."""

    place: str
    command: str


class Controller:
    """Follows one episode: `observe` every executed command, `next` for the command that a high-level action needs."""

    def __init__(self, opening: str) -> None:
        self.receptacles, _ = parse_opening(opening)
        self.belief = Belief(self.receptacles)
        self._used: set[str] = set()  # lamps
        self._visited: set[str] = set()  # since `start`
        self._put_now: set[tuple[str, str]] = set()  # (object, place), since `start`
        self._put_down: set[str] = set()  # `take mug` after `put mug` means another mug, so none of these

    def start(self) -> None:
        """A new high-level action begins."""
        self._visited, self._put_now = set(), set()

    def observe(self, command: str, feedback: str) -> None:
        """Take in an executed command (its own or another one) and the engine's answer."""
        # What was in the hand and now lies somewhere was put down by this command, in whatever words.
        held = self.belief.held
        self.belief.observe(command, feedback)
        self._visited |= self.belief.here
        if held and not self.belief.held and held in self.belief.place:
            self._put_now.add((held, self.belief.place[held]))
            self._put_down.add(held)
        if command.startswith("use ") and not is_refusal(feedback):
            self._used.add(command.removeprefix("use "))

    def next(self, action: HighLevelAction) -> str:
        """The next command for `action`; `DONE`, or a `Refusal`. What the engine has refused here is not repeated."""
        aim = self._aim(action)
        if isinstance(aim, str):
            return aim
        if aim.place not in self.belief.here:
            return f"go to {aim.place}"
        # An appliance and a lamp work as they are; everything else needs the place open.
        if action.verb in ("go to", "take", "put") and aim.place in self.belief.closed:
            return self._unless_failed(f"open {aim.place}")
        return self._unless_failed(aim.command)

    def told(self, action: HighLevelAction) -> str:
        """`action` with the names and places that it stands for now, as far as the text has told: `take mug` may be
        `take mug 2 from desk 1`. As it is if nothing is left to do or it cannot be carried out.
        """
        aim = self._aim(action)
        if isinstance(aim, str):
            return str(action)
        # Two commands do not say where they are given.
        whole = {"go to": f"go to {aim.place}", "use": f"{aim.command} on {aim.place}"}
        return self.belief.said(whole.get(action.verb, aim.command))

    def _aim(self, action: HighLevelAction) -> Aim | str:
        """Where `action` is to be carried out, and by which command; `DONE`, or a `Refusal`."""
        # For each verb: `DONE` first if the belief shows that nothing is left to do, then what makes the action
        # impossible, then place and command.
        belief, held, thing = self.belief, self.belief.held, action.thing
        in_hand = thing in (held, type_of(held)) if held else False
        match action.verb:
            case "go to":
                if action.place in self._types(belief.here & self._visited & belief.seen):
                    return DONE
                places = self._named(action.place)
                if not places:
                    return REJECTED
                # A type alone ("cabinet") means one that was not searched yet, the one at hand first.
                place = min(places, key=lambda name: (name in belief.seen, name not in belief.here))
                if place in belief.here and place not in belief.closed and place in belief.seen:
                    return DONE
                return Aim(place, f"examine {place}")
            case "take":
                if in_hand:
                    return DONE
                name = self.find(thing)
                if name is None:
                    return NOT_FOUND
                if held:  # something else
                    return REJECTED
                place = belief.place[name]
                return Aim(place, f"take {name} from {place}")
            case "use":
                if {thing, belief.said(thing)} & self._types(self._used):
                    return DONE
                name = self.find(thing)
                if name is None:
                    return NOT_FOUND
                place = belief.place[name]
                return Aim(place, f"use {name}")
            case "put":
                if not in_hand:
                    # Since this action began, such a thing was put at such a place: the last command has done it.
                    done = any(
                        thing in (name, type_of(name)) and action.place in (place, type_of(place))
                        for name, place in self._put_now
                    )
                    return DONE if done else REJECTED if self.find(thing) else NOT_FOUND
                places = [name for name in self._named(action.place) if (held, name) not in belief.refused]
                if not places:
                    return REJECTED
                place = min(places, key=lambda name: name not in belief.here)
                return Aim(place, f"put {held} in/on {place}")
        # clean, heat, cool
        if not in_hand:  # the plan lacks its `take`, or the thing was seen nowhere
            return REJECTED if self.find(thing) else NOT_FOUND
        if held in belief.states[STATES[action.verb]]:
            return DONE
        tools = self._named(APPLIANCES[action.verb])
        if not tools:
            return REJECTED
        tool = min(tools, key=lambda name: name not in belief.here)
        return Aim(tool, f"{action.verb} {held} with {tool}")

    def find(self, thing: str) -> str | None:
        """The name of a thing that was seen, by its name, or by its type if it was not put down since; the nearest."""
        belief = self.belief
        names = [n for n in belief.place if thing == n or (thing == type_of(n) and n not in self._put_down)]
        return min(names, key=lambda name: belief.place[name] not in belief.here, default=None)

    def _unless_failed(self, command: str) -> str:
        command = self.belief.said(command)
        return REJECTED if command in self.belief.failed else command

    def _named(self, place: str) -> list[str]:
        return [name for name in self.receptacles if place in (name, type_of(name))]

    @staticmethod
    def _types(names: set[str]) -> set[str]:
        """Names and their types."""
        return names | set(map(type_of, names))


def words_of(refusal: Refusal, action: HighLevelAction, receptacles: Sequence[str]) -> str:
    """One sentence for the planner about an action that was not carried out."""
    if refusal == NOT_FOUND:
        return f"I have seen no {action.thing}."
    known = {*receptacles, *map(type_of, receptacles)}
    if action.place and action.place not in known:
        return f"There is no {action.place} here."
    return NOTHING_HAPPENS
