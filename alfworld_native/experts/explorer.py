"""The explorer: an expert that knows only the text that the agent has read so far.

It searches for the task's object where the chance of finding it per step is highest: training games give the chance for
each type of receptacle, and a surface costs one step, a closed container two. Then it completes the task by the
shortest way. It needs no game state and no list of admissible commands, so it works beside any environment, and in the
server of a client that sends no expert action. The policy drives, so the explorer decides anew from its belief after
every executed action.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from alfworld_native.experts.base import Label
from alfworld_native.experts.belief import STATES, Belief, places_remembered
from alfworld_native.experts.statistics import Statistics, load_statistics, room_kind
from alfworld_native.language.sentences import Task, parse_opening, parse_tasks, type_of
from lavis.common.errors import ConfigError, unknown

ORDERS = ("likely", "listing")
NOTED = 2  # objects of a type and place that a note names, at most
APPLIANCES = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}


def in_words(task: Task, missing: int) -> str:
    """A task in a note: `plate hot in cabinet`, `egg 2 more in microwave`, `plate done` if no object is missing.

    The object comes first: whoever has just taken it finds the rest by copying what follows its name in an older note.
    """
    if missing <= 0:
        return f"{task.object_type} done"
    more = f" {missing} more" if task.count > 1 else ""
    how = f" {STATES[task.treatment]}" if task.treatment in STATES else more
    return f"{task.object_type}{how} in {task.target_type}"


def task_list(tasks: Sequence[Task], missing: Sequence[int]) -> str:
    """How far `tasks` are, in their order: `task: cup done; egg 2 more in microwave`; "" if nothing is missing."""
    return f"task: {'; '.join(map(in_words, tasks, missing))}" if max(missing) > 0 else ""


class _Decision(NamedTuple):
    """One step, or none; `thought` belongs to the label only when `subgoal` changes."""

    action: str | None
    subgoal: tuple[str, ...]
    thought: str


class Explorer:
    """`order` is the order of search: "likely", or "listing", which is easier to predict.

    "listing" searches surfaces, then containers, as the opening text lists them. "likely" saves a fifth of the steps;
    its order depends on the kind of room and on the object. `seed` breaks ties between places of equal chance; 0 takes
    them in listing order. `statistics` default to the shipped table. Raises ConfigError for another `order`.

    A thought explains each new subgoal. With `notes` it says instead which objects of what is left to do have come into
    view, and where (two of a type, as the text lists them: students fail at long notes, docs/levels.md), and how
    far the task is after a part of it, with the object that it fetches next if it has seen one, else with the place
    that it searched last ("task: egg 2 more in microwave; next: egg 1 in/on shelf 2", "...; searched to shelf 2"). Of
    several tasks or objects to bring it says with each object that it takes what comes now and how far the search went
    ("now: plate hot in cabinet; searched to shelf 2"). Several tasks are listed at the start, too, and always all of
    them in the order of the game's sentence ("task: cup done; plate hot in cabinet"): whoever writes such a list copies
    the one before, word by word, but for the task that has changed. Of a thing that somebody else took for
    nothing it says so ("I do not need cup 2"). An agent whose text does not name objects
    (`environment.tell_objects=false`), or whose prompt is too short for a long episode, writes that down and can read
    it later.
    """

    name = "explorer"
    reads = ("text",)

    def __init__(
        self, *, order: str = "likely", seed: int = 0, statistics: Statistics | None = None, notes: bool = False
    ) -> None:
        if order not in ORDERS:
            raise ConfigError(unknown("explorer order", order, ORDERS))
        self.order = order
        self.seed = seed
        self.notes = notes
        self._statistics = statistics or load_statistics()
        self.begin("")

    def begin(self, intro: str, *, task_type: str = "", memories: Sequence[str] = ()) -> None:
        """Start an episode; the newest of the `memories` may say where objects are.

        A task that cannot be read or done gets labels without an action, never an exception.
        """
        receptacles, self._sentence = parse_opening(intro)
        known = self._statistics
        tasks = parse_tasks(self._sentence, known.object_types, known.receptacle_types)
        self._tasks = tasks or (Task("", ""),)
        self._task = self._tasks[0]
        self._belief = Belief(receptacles)
        for thing, place in places_remembered(memories[-1] if memories else "").items():
            if place in receptacles:
                self._belief.place[thing] = place
        # What the search needs: types, the kind of room, and a rank for each place that breaks ties.
        self._types = {name: type_of(name) for name in receptacles}
        self._kind = room_kind(self._types.values())
        # Bytes as seed: the opening may hold half a surrogate pair. Seed and opening decide the order of search.
        draw = random.Random(f"{self.seed} {intro}".encode("utf-8", "surrogatepass"))
        self._ranks = {name: draw.random() if self.seed else 0.0 for name in receptacles}
        self._worths: dict[str, dict[str, float]] = {}
        self._label = self._refusal(understood=bool(tasks))
        self._hopeless = self._label is not None
        self._subgoal: tuple[str, ...] = ()
        self._left = self._what_is_left()
        self._noticed: list[str] = []  # what the newest note says that came into view
        self._overlooked: set[str] = set()  # what the agent sees and has not written down
        self._searched = ""  # the place whose contents came into view last while the hand was free
        self._goes_on = False  # whether the next note says how it goes on after a part of the task
        self._news = self._left if len(self._tasks) > 1 else ""

    def _refusal(self, understood: bool) -> Label | None:
        """The label of an episode that cannot be played; None if it can."""
        if not understood:
            return Label(None, f"I do not understand the task: {self._sentence or 'there is none'}.")
        if not self._types:
            return Label(None, "The opening text lists no receptacle.")
        places = [APPLIANCES[task.treatment] for task in self._tasks if task.treatment in APPLIANCES]
        places += [task.target_type for task in self._tasks if task.treatment != "look"]
        lacking = [kind for kind in places if kind not in self._types.values()]
        return Label(None, f"There is no {lacking[0]} in this room.") if lacking else None

    @property
    def done(self) -> bool:
        """Whether every object is where the tasks want it, as far as known (of tasks that bring something)."""
        return not self._what_is_left()

    def observe(self, action: str, feedback: str) -> None:
        """Read the executed action, whoever chose it, and the environment's feedback."""
        if self._hopeless:
            return
        self._goes_on = False
        held, before, seen = self._belief.held, dict(self._belief.place), set(self._belief.seen)
        self._belief.observe(action, feedback)
        for thing in [its for its in self._overlooked if self._belief.place.get(its) not in self._belief.here]:
            self._overlooked.discard(thing)
            self._belief.place.pop(thing, None)
        if not held:
            self._searched = next(iter(self._belief.seen - seen), self._searched)  # an answer shows one place
        # The news: objects of tasks that are not done which have come into view, and where. What the agent put down
        # itself is none.
        undone = [task for task in self._tasks if self._missing(task) > 0]
        wanted = {task.object_type for task in undone}
        wanted |= {task.target_type for task in undone if task.treatment == "look"}  # the lamp
        places: dict[str, list[str]] = {}
        noted = Counter[tuple[str, str]]()  # by place and type
        for thing, place in self._belief.place.items():  # of a place in the order in which the text lists them
            if type_of(thing) in wanted and before.get(thing) != place and thing != held:
                noted[place, type_of(thing)] += 1
                if noted[place, type_of(thing)] <= NOTED:
                    places.setdefault(place, []).append(thing)
        news = [f"{', '.join(things)} in/on {place}" for place, things in sorted(places.items())]
        notes = [f"I see {'; '.join(news)}"] if news else []
        self._noticed = [thing for things in places.values() for thing in things]
        if self._left != (left := self._what_is_left()):
            self._left = left
            self._goes_on = bool(left) and not self._belief.held
            notes.append(left)
        if self._belief.held not in (None, held):
            taken = type_of(str(self._belief.held))
            of = [in_words(task, self._missing(task)) for task in undone if task.object_type == taken][:1]
            if not of:
                notes.append(f"I do not need {self._belief.held}")
            elif len(self._tasks) > 1 or self._task.count > 1:
                notes.append(f"now: {of[0]}{self._how_far()}")
        self._news = "; ".join(notes) if left else ""  # nothing is left: the episode is over
        self._label = None  # the last answer is about the last state

    def overlook(self, action: str) -> None:
        """The agent does `action` where a note is due: once it has left, it does not know what `action` does not name.

        For an agent that remembers long episodes by its notes (`notes`): so it is sent past all places again.
        """
        self._overlooked |= {thing for thing in self._noticed if thing not in action}

    def act(self, information: Mapping[str, Any] | None = None) -> Label:
        """The next action, with a thought if the subgoal is a new one. `information` is not read."""
        if self._label is None:
            # The policy may have moved things since the last advice: what to do is decided anew in every state.
            decision = self._decide()
            notes = self._news + (self._how_it_goes_on(decision) if self._goes_on else "")
            action = self._belief.said(decision.action) if decision.action else None
            if action in self._belief.failed:  # a simulator may fail once: look, then try again
                action = "look"
                decision = _Decision(action, (action,), "That did not work, I look before I try again.")
            # A thought opens a subgoal and is not repeated at each of its steps, as in ReAct's ALFWorld examples.
            explains = decision.thought if decision.subgoal != self._subgoal else ""
            self._subgoal = decision.subgoal
            self._label = Label(action, self._belief.said(notes if self.notes else explains))
        return self._label

    def _how_it_goes_on(self, decision: _Decision) -> str:
        """The end of a note after a part of the task: the object to fetch and its place, or what was searched last."""
        what, thing = decision.subgoal[:2]
        if what == "take":
            return f"; next: {thing} in/on {self._belief.place[thing]}"
        return self._how_far() if what == "search" else ""

    def _how_far(self) -> str:
        return f"; searched to {self._searched}" if self._searched else ""

    def _choose_task(self) -> Task:
        """Of several tasks, that of the object in the hand, else of a known object, else the first that is not done.

        A known object is brought before the search goes on: the agent that comes across it stands beside it, and need
        not remember it.
        """
        if len(self._tasks) > 1:
            held = self._belief.held

            def cost(task: Task) -> float:  # steps to its object, but for what all share; infinite if none is known
                return -math.inf if held and type_of(held) == task.object_type else self._known_object(task)[1]

            left = [task for task in self._tasks if self._missing(task) > 0] or [self._tasks[0]]
            self._task = min(left, key=cost)  # of equals the first
        return self._task

    def _decide(self) -> _Decision:
        belief, held, task = self._belief, self._belief.held, self._choose_task()
        if held and type_of(held) == task.object_type:
            return self._use_lamp(held) if task.treatment == "look" else self._bring(held)
        # The wrong thing is in the hand. A place that is in reach and open costs one step, so it goes there at once.
        # In the order of the listing: the order of a set of names changes with every process.
        near = [name for name in belief.receptacles if name in belief.here and not self._distance(name)]
        if held and (spot := self._spot_for(held, near)):
            return self._put(held, spot, ("drop", held), f"I do not need {held}, so I leave it in/on {spot}.")
        thing, _ = self._known_object(task)
        if thing is None:
            return self._search(task.object_type)
        if held:
            # The hand must be free before the way to the object is worth its steps.
            spot = self._spot_for(held, belief.receptacles)
            if spot is None:
                return _Decision(None, ("stuck", held), f"I need my hand for {thing}, but nothing here takes {held}.")
            return self._put(held, spot, ("drop", held), f"I need my hand for {thing}, so I leave {held} in/on {spot}.")
        place = belief.place[thing]
        subgoal, thought = ("take", thing), f"{thing} is in/on {place}, so I take it."
        return self._reach(place, subgoal, thought) or _Decision(f"take {thing} from {place}", subgoal, thought)

    def _missing(self, task: Task) -> int:
        """How many objects of `task` are not where they belong yet, as far as known; 0 or less if it is done."""
        return task.count - max(Counter(self._brought(task).values()).values(), default=0)

    def _brought(self, task: Task) -> dict[str, str]:
        """The objects that are where `task` wants them, as far as known, with their places."""
        return {
            thing: place
            for thing, place in self._belief.place.items()
            if type_of(thing) == task.object_type
            and self._types.get(place) == task.target_type
            and self._belief.treated(thing, task.treatment)
        }

    def _what_is_left(self) -> str:
        return task_list(self._tasks, [self._missing(task) for task in self._tasks])

    # Steps after the object is found

    def _bring(self, thing: str) -> _Decision:
        """Treat the held object if the task asks for it, then put it where it belongs."""
        task = self._task
        if not self._belief.treated(thing, task.treatment):
            tools = self._of_type(APPLIANCES[task.treatment])
            tool = min(tools, key=lambda name: name not in self._belief.here)  # one in reach, else the first
            subgoal, thought = (task.treatment, thing), f"I hold {thing}, so I {task.treatment} it with {tool}."
            if tool not in self._belief.here:
                return _Decision(f"go to {tool}", subgoal, thought)
            return _Decision(f"{task.treatment} {thing} with {tool}", subgoal, thought)
        target = self._target(thing, task)
        state = f"{thing} is {STATES[task.treatment]} now" if task.treatment else f"I hold {thing}"
        return self._put(thing, target, ("bring", thing), f"{state}, so I put it in/on {target}.")

    def _use_lamp(self, thing: str) -> _Decision:
        belief = self._belief
        lamps = [name for name in belief.place if type_of(name) == self._task.target_type]
        if not lamps:
            return self._search(self._task.target_type)
        # A lamp that is in reach before one that is not; then by name, for a run must not depend on a dict's order.
        lamp = min(lamps, key=lambda name: (belief.place[name] not in belief.here, name))
        place = belief.place[lamp]
        subgoal, thought = ("use", lamp), f"I hold {thing}, so I use {lamp}, which is on {place}."
        if place not in belief.here:
            return _Decision(f"go to {place}", subgoal, thought)
        return _Decision(f"use {lamp}", subgoal, thought)

    def _put(self, thing: str, place: str, subgoal: tuple[str, ...], thought: str) -> _Decision:
        return self._reach(place, subgoal, thought) or _Decision(f"put {thing} in/on {place}", subgoal, thought)

    def _reach(self, place: str, subgoal: tuple[str, ...], thought: str) -> _Decision | None:
        """The step towards an accessible `place`; None when it is in reach and open."""
        belief = self._belief
        if place not in belief.here:
            return _Decision(f"go to {place}", subgoal, thought)
        # Nobody has seen this place or its door: if places of its type have doors, the door is shut at the start.
        unknown_door = place not in belief.seen and place not in belief.opened and self._openable(place) > 0
        if place in belief.closed or unknown_door:
            return _Decision(f"open {place}", subgoal, thought)
        return None

    def _openable(self, place: str) -> float:
        return self._statistics.openable.get(self._types.get(place, ""), 0.0)

    # Choices

    def _distance(self, place: str) -> float:
        """Expected steps until `place` is in reach and accessible."""
        belief = self._belief
        steps = 0.0 if place in belief.here else 1.0
        if place in belief.closed:
            return steps + 1
        # A place that nobody has seen is closed with the probability that its type can be opened: so many steps more.
        return steps if place in belief.seen or place in belief.opened else steps + self._openable(place)

    def _of_type(self, kind: str) -> list[str]:
        return [name for name, its in self._types.items() if its == kind]

    def _target(self, thing: str, task: Task) -> str:
        """Where `task` wants `thing`. If it wants two objects in one receptacle: the one that has the first."""
        belief = self._belief
        places = self._of_type(task.target_type)
        # A full or too small target has refused the object. If all have, one of them is tried again.
        places = [name for name in places if (thing, name) not in belief.refused] or places
        if task.count > 1:
            # How many wanted objects each target has already; the first of those with most.
            there = Counter(where for other, where in belief.place.items() if type_of(other) == task.object_type)
            most = max(places, key=there.__getitem__)
            if there[most]:
                return most
        return min(places, key=self._distance)

    def _spot_for(self, thing: str, places: Collection[str]) -> str | None:
        """The nearest of `places` that accepts `thing`, as far as known; of equals one that is in reach."""
        accepted, refused = self._statistics.accepted_by(type_of(thing)), self._belief.refused
        fits = [name for name in places if self._types.get(name) in accepted and (thing, name) not in refused]
        return min(fits, key=lambda name: (self._distance(name), name not in self._belief.here), default=None)

    def _known_object(self, task: Task) -> tuple[str | None, float]:
        """The known object that takes the fewest steps to bring, among those that are not where they belong.

        With the steps to it, a treatment that it saves taken off; None and infinity if nothing is known.
        """
        belief = self._belief
        best, best_cost = None, math.inf
        for thing, place in belief.place.items():
            if type_of(thing) != task.object_type:
                continue
            done = belief.treated(thing, task.treatment)
            # It is where it belongs: treated, in a target; of two objects, in the target that the other one goes to.
            if done and (
                self._types.get(place) == task.target_type and (task.count == 1 or place == self._target("", task))
            ):
                continue
            # A treated object saves the treatment, so it counts a step less.
            cost = self._distance(place) - done
            if cost < best_cost:
                best, best_cost = thing, cost
        return best, best_cost

    # Search

    def _search(self, wanted: str) -> _Decision:
        """The step towards the place that holds a `wanted` object with the highest chance per step."""
        belief = self._belief
        if belief.seen.issuperset(belief.receptacles):
            # It was overlooked, or moved: search everywhere again. What is brought stays so.
            belief.forget(keep={thing for task in self._tasks for thing in self._brought(task)})
            self._searched = ""
        worths = self._worths.get(wanted) or self._rate(wanted)
        unseen = [name for name in belief.receptacles if name not in belief.seen]
        # max P(there) / steps is the greedy order that minimises the expected steps until the object is found, if the
        # steps to a place do not depend on the place before (here every place is one `go to` away).
        place = max(unseen, key=lambda name: (worths[name] / (self._distance(name) or 1.0), self._ranks[name]))
        subgoal = ("search", wanted, self._types[place])
        need = "another" if any(type_of(thing) == wanted for thing in belief.place) else "a"
        why = "the likeliest place left" if self.order == "likely" else "the next in the room"
        thought = f"I need {need} {wanted} and have not seen one, so I look in/on {place}, {why}."
        if place not in belief.here:
            return _Decision(f"go to {place}", subgoal, thought)
        if place in belief.closed or (place not in belief.opened and self._openable(place) > 0.5):
            return _Decision(f"open {place}", subgoal, thought)
        return _Decision(f"examine {place}", subgoal, thought)

    def _rate(self, wanted: str) -> dict[str, float]:
        """The chance that each receptacle holds a `wanted` object at the start; all equal in listing order."""
        if self.order == "listing":
            return self._worths.setdefault(wanted, dict.fromkeys(self._types, 1.0))
        # The share of places of each type, in rooms of this kind, that held such an object in the counted games.
        chances = self._statistics.chances(wanted, self._kind)
        worths = {name: chances.get(kind, 0.0) for name, kind in self._types.items()}
        task = self._task
        if wanted == task.object_type and not task.treatment:
            # An object that is there already is done; with two to bring, the first trip shows what is in the target.
            worths = {name: worth * (self._types[name] != task.target_type) for name, worth in worths.items()}
        self._worths[wanted] = worths
        return worths
