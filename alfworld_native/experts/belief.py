"""The agent's belief: what it knows of a room from the text alone.

It records which receptacles the agent visited or opened, where objects are, what the agent holds, and what failed.
Everything that was not seen yet is unknown. The belief follows every executed action, good or bad. It reads the
feedback, and reads the action only if the feedback does not say enough (`Nothing happens.`, or an arrival whose prefix
was cut off).

Texts may name objects by type alone (`by_type`): "a mug, and a mug". The belief then gives each object a number of its
own, so that it can tell two mugs apart as far as anybody can: by where they are, and by what is in the hand.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable

from alfworld_native.language.commands import canonical
from alfworld_native.language.feedback import CLOSED, MAX_NAME, OPEN, SURFACE, whole_sentences
from alfworld_native.language.sentences import is_refusal, names_in, type_of, without_numbers

_ARRIVE = re.compile(r"You arrive at ([^.]+)\.")
_CLOSE = re.compile(r"You close the ([^.]+)\.")
_NAME = f"{{1,{MAX_NAME}}}"  # without a limit, `.+? … [^.]+` takes quadratic time on some texts
_TAKE = re.compile(rf"You pick up the (.{_NAME}?) from the ([^.]{_NAME})\.")
_PUT = re.compile(rf"You (?:put|move) the (.{_NAME}?) (?:in/on|in|on|to) the ([^.]{_NAME})\.")
_TREAT = re.compile(rf"You (clean|heat|cool) the (.{_NAME}?) using the ([^.]{_NAME})\.")
_FACING = re.compile(r"You are facing the ([^.]+)\.")
_HOLDING = re.compile(r"You are carrying: ([^.]+)\.")
_LOOKS = re.compile(r"This is a ((?:hot|cool|cold|clean|and|sliced| )+) ([a-z]+(?: \d+)?)\.")

STATES = {"clean": "clean", "heat": "hot", "cool": "cool"}  # treatment -> the state it gives


# How memories name a place: "take cd 1 from desk 1", "I saw cd 1 at desk 1", "go to desk 1, use desklamp 1".
_REMEMBERED = re.compile(r"\b([a-z]+(?: \d+)?) (?:from|at) ([a-z]+ \d+)\b")
_LAMP_REMEMBERED = re.compile(r"\bgo to ([a-z]+ \d+), use ([a-z]+(?: \d+)?)\b")


def places_remembered(memory: str) -> dict[str, str]:
    """Object -> receptacle, as the text of a Reflexion memory says; a game begins anew as it began before."""
    lamps = {lamp: place for place, lamp in _LAMP_REMEMBERED.findall(memory)}
    return lamps | dict(_REMEMBERED.findall(memory))


class Belief:
    """Follow one episode: `observe` every executed action and its feedback."""

    def __init__(self, receptacles: Iterable[str]) -> None:
        self.receptacles = tuple(receptacles)  # in listing order
        self.place: dict[str, str] = {}  # object -> receptacle that holds it
        self.seen: set[str] = set()  # receptacles whose contents are known
        self.opened: set[str] = set()
        self.closed: set[str] = set()
        self.together: dict[str, set[str]] = {
            name: {name} for name in self.receptacles
        }  # receptacles at the same location, as far as known
        self.here: set[str] = set()  # receptacles known to be in reach
        self.held: str | None = None
        self.states: dict[str, set[str]] = {"clean": set(), "hot": set(), "cool": set()}
        self.failed: set[str] = set()  # actions that did nothing since something last happened
        self.refused: set[tuple[str, str]] = set()  # (object, receptacle) that did not go together
        self.by_type = False  # whether the texts name objects without numbers
        self._numbers: Counter[str] = Counter()  # by_type: how many objects of a type got a number here

    def treated(self, thing: str, treatment: str) -> bool:
        """Whether `thing` is known to have the state that `treatment` gives; True for no treatment."""
        return treatment not in STATES or thing in self.states[STATES[treatment]]

    def observe(self, action: str, feedback: str) -> None:
        """Read one executed action (any dialect, also an invalid one) and the environment's feedback."""
        action = canonical(action.strip())
        if is_refusal(feedback):
            # The text says only that nothing happened; the action says what that means.
            self.failed.add(action)
            verb, _, rest = action.partition(" ")
            if verb == "go" and (name := action[6:]) in self.together:
                self._join(name)  # an existing receptacle gives this answer only if the agent is already there
            elif verb == "open" and rest in self.here and rest not in self.closed:
                self.opened.add(rest)  # it has no door, or is open already: the agent can use it
            elif verb == "put":
                thing, _, name = rest.partition(" in/on ")
                held = self.held or ""
                own = thing == held or (self.by_type and thing == type_of(held))
                if own and name in self.here and name not in self.closed:
                    self.refused.add((held, name))
            return
        self.failed.clear()
        # An arrival whose prefix was cut off is read from the action. What is known to be reached together with the
        # place is within reach, too.
        if action.startswith("go to ") and action[6:] in self.together:
            self.here = self.together[action[6:]]
        elif match := _ARRIVE.match(feedback):
            self.here = self.together.setdefault(match[1], {match[1]})
        # A listing that was cut off would name objects by half their names.
        told = whole_sentences(feedback)
        if match := SURFACE.search(told) or OPEN.search(told):
            self._see(match[1], names_in(match[2]), "open" if match.re is OPEN else "")
        elif match := CLOSED.search(told):
            self._see(match[1], [], "closed")
        else:
            self._change(feedback)

    def forget(self, *, keep: Collection[str]) -> None:
        """Forget where objects are, but for `keep` and what is in reach: all was searched, and something is missing."""
        near = set() if self.here.issuperset(self.receptacles) else self.here
        self.seen &= near
        self.place = {thing: place for thing, place in self.place.items() if thing in keep or place in self.seen}

    def _join(self, name: str) -> None:
        """`name` turned out to be in reach, so it is at the location of everything else in reach."""
        group = self.together.setdefault(name, {name})
        if group is self.here or not self.here:
            self.here = group
            return
        # Two groups turn out to be one location: all members share one set from now on.
        group |= self.here
        for member in group:
            self.together[member] = group
        self.here = group

    def _see(self, name: str, things: list[str], door: str) -> None:
        self._join(name)
        if door == "closed":
            self.closed.add(name)
            self.opened.discard(name)
            return
        self.closed.discard(name)
        if door:
            self.opened.add(name)
        self.seen.add(name)
        # The listing is complete: what it does not name is no longer there.
        before = [thing for thing, place in self.place.items() if place == name]
        for gone in before:
            del self.place[gone]
        for thing in things:
            self.place[self._known_as(thing, before)] = name

    def said(self, text: str) -> str:
        """`text` (a command, a thought) with objects as the environment's texts name them."""
        return without_numbers(text, self.receptacles) if self.by_type else text

    def numbered(self, kind: str) -> str:
        """A new name for an object that the texts call `kind`; the number is the belief's own."""
        self.by_type = True
        self._numbers[kind] += 1
        return f"{kind} {self._numbers[kind]}"

    def _known_as(self, thing: str, candidates: list[str]) -> str:
        """The belief's name of `thing`, which a text names: the first of the `candidates` of its type, or a new one.

        A name with a number is the text's own. The candidate that is chosen is taken out of the list.
        """
        if " " in thing:
            return thing
        self.by_type = True
        for candidate in candidates:
            if type_of(candidate) == thing:
                candidates.remove(candidate)
                return candidate
        return self.numbered(thing)

    def _in_hand(self, thing: str) -> str:
        """The belief's name of `thing`, which the agent does something with: it holds it."""
        return self._known_as(thing, [self.held] if self.held else [])

    def _hold(self, thing: str) -> None:
        self.held = thing
        self.place.pop(thing, None)

    def _change(self, feedback: str) -> None:
        """Feedback that describes no receptacle."""
        if match := _TAKE.match(feedback):
            self._join(match[2])
            self._hold(self._known_as(match[1], [other for other, place in self.place.items() if place == match[2]]))
        elif match := _PUT.match(feedback):
            self._join(match[2])
            self.place[self._in_hand(match[1])] = match[2]
            self.held = None
        elif match := _TREAT.match(feedback):
            self._join(match[3])
            thing, treatment = self._in_hand(match[2]), match[1]
            self._hold(thing)
            self.states[STATES[treatment]].add(thing)
            # Hot and cool exclude each other; clean stays.
            if treatment != "clean":
                self.states["cool" if treatment == "heat" else "hot"].discard(thing)
        elif match := _CLOSE.match(feedback):
            self._join(match[1])
            self.closed.add(match[1])
            self.opened.discard(match[1])
        elif match := _FACING.match(feedback):
            self.here = set()  # the listing is complete
            for name in match[1].replace(", and ", ", ").split(", "):
                if name in self.together:
                    self._join(name)
        elif match := _HOLDING.match(feedback):
            held = names_in(match[1])
            if held:  # "nothing" is no thing
                self._hold(self._in_hand(held[0]))
            else:
                self.held = None
        elif feedback.startswith("You are not carrying"):
            self.held = None
        elif match := _LOOKS.match(feedback):
            # `examine` names all states of a thing, so every other state is absent.
            thing = self._in_hand(match[2])
            words = match[1].replace("cold", "cool").split()
            for state, things in self.states.items():
                (things.add if state in words else things.discard)(thing)
