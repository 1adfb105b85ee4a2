"""The reflector that needs no language model: it reads the episode's text and writes advice by rules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from alfworld_native.experts.belief import Belief
from alfworld_native.experts.explorer import APPLIANCES
from alfworld_native.language.commands import canonical
from alfworld_native.language.feedback import CLOSED, OPEN, SURFACE, whole_sentences
from alfworld_native.language.sentences import NUMBERS, Task, is_refusal, names_in, parse_opening, parse_tasks, type_of
from xrl_alignment.agents.language.history import EpisodeTrace

RULE_MARK = "(by rule)"
MOST_WORDS = 80  # of a hint
_NAMES_SHOWN = 4  # of a list: a hint becomes a part of every later prompt
_REPEATS_NAMED = 3  # a command that failed this often is worth a warning
_USUALLY_CLOSED = frozenset(("cabinet", "drawer", "fridge", "microwave", "safe"))  # at the start of ALFWorld's games
# "take mug 1 from desk 1", "put mug in/on shelf 2": verb, object, receptacle (or knife).
_MOVES_OBJECT = re.compile(r"([a-z]+) ([a-z]+(?: \d+)?) \S+ ([a-z]+ \d+)")
_THERE = re.compile(r"You (?:arrive at|open the) ([a-z]+ \d+)\.")


class RuleReflector:
    """Advice by rules; every paragraph begins with `(by rule)` and has at most 80 words.

    The rules use only the episode's text: which receptacles the agent searched and which it did not, where it saw an
    object of the wanted type, how far the task got, and which command failed again and again. A text that does not list
    objects (`sentences.without_objects`) tells where the agent was, and what it took from where.
    """

    name = "rule"

    def reflect(self, trace: EpisodeTrace, memories: Sequence[str]) -> str:
        """See `Reflector`; `memories` are not read."""
        reading = read_episode(trace)
        parts = [RULE_MARK, _verdict(reading)]
        for command, times in reading.failed.most_common(1):
            if times >= _REPEATS_NAMED:
                parts.append(f"'{' '.join(command.split()[:8])}' failed {times} times, I will not repeat it.")
        plan = _plan(reading)
        # What comes last in a plan is worth least: many objects of the task may have been left where they were seen.
        while len(" ".join([*parts, "Next time I will", *plan]).split()) > MOST_WORDS and len(plan) > 1:
            plan = plan[:-1]
        parts.append(f"Next time I will {', '.join(plan)}.")
        return reading.said(" ".join(parts))


@dataclass
class EpisodeReading:
    """What the episode's text tells, in the order in which the agent saw it."""

    receptacles: list[str]
    task: Task | None = None
    found_at: dict[str, str] = field(default_factory=dict)  # object -> the receptacle where it lay at first
    searched: list[str] = field(default_factory=list)  # receptacles whose contents were seen
    closed: set[str] = field(default_factory=set)  # receptacles found closed
    failed: Counter[str] = field(default_factory=Counter)  # command -> how often nothing happened
    done: dict[str, list[str]] = field(default_factory=dict)  # verb -> objects of the wanted type it was done to
    by_type: bool = False  # whether the text names objects without numbers

    def said(self, advice: str) -> str:
        """`advice` with objects as the episode's text names them."""
        if self.by_type:
            # The longest names first: "mug 1" is a part of "mug 11".
            for name in sorted({*self.found_at, *sum(self.done.values(), [])}, key=len, reverse=True):
                advice = advice if name in self.receptacles else advice.replace(name, type_of(name))
        return advice

    def wanted(self) -> list[str]:
        """Objects of the wanted type that were seen, those that did not lie at the goal first."""
        if self.task is None:
            return []
        kind, goal = self.task.object_type, self.task.target_type
        seen = [name for name in self.found_at if type_of(name) == kind]
        return sorted(seen, key=lambda name: type_of(self.found_at[name]) == goal)

    def nearest(self, kind: str) -> list[str]:
        """The receptacle of this type to use: the first that was searched, else the lowest number; or none."""
        every = [name for name in self.receptacles if type_of(name) == kind]
        return ([name for name in self.searched if name in every] or every[::-1])[:1]


def read_episode(trace: EpisodeTrace) -> EpisodeReading:
    """What an episode's text tells of the task, the objects, and what was done to them.

    Where the text names objects by type alone, they have the numbers that `Belief` gives them.
    """
    receptacles, sentence = parse_opening(trace.opening)
    reading = EpisodeReading(receptacles)
    belief = Belief(receptacles)
    moved: list[tuple[str, str, str]] = []  # verb, object and receptacle of the commands that were carried out
    for action, feedback in trace.steps:
        command = canonical(action)
        before = belief.held
        belief.observe(command, feedback)
        reading.closed.update(CLOSED.findall(feedback))
        told = whole_sentences(feedback)
        for receptacle, listing in SURFACE.findall(told) + OPEN.findall(told):
            if receptacle not in reading.searched:
                reading.searched.append(receptacle)
            for name in names_in(listing):
                if " " in name:  # a name with a number; types alone get theirs from `Belief` below
                    reading.found_at.setdefault(name, receptacle)
        # Where nothing is listed, because that is not told: it has been there, and what it looked at was not closed.
        for receptacle in _THERE.findall(told):
            if receptacle not in reading.searched and receptacle not in CLOSED.findall(told):
                reading.searched.append(receptacle)
        if belief.by_type:
            for name, receptacle in belief.place.items():
                reading.found_at.setdefault(name, receptacle)
        # What the agent did: commands that failed, and those that moved or treated an object.
        if is_refusal(feedback):
            reading.failed[command] += 1
        elif match := _MOVES_OBJECT.fullmatch(command):
            name = (belief.held or before or match[2]) if belief.by_type else match[2]
            if match[1] == "take":
                reading.found_at.setdefault(name, match[3])
            moved.append((match[1], name, match[3]))
    reading.by_type = belief.by_type
    # The task is read last: only the types of objects that exist make its sentence clear. Of several, it is the first
    # that is not done: fewer objects than it asks for are, treated as it asks, in one receptacle of the type it names.
    tasks = parse_tasks(sentence, set(map(type_of, reading.found_at)), set(map(type_of, receptacles)))
    there = [
        Counter(
            place
            for thing, place in belief.place.items()
            if type_of(thing) == one.object_type
            and type_of(place) == one.target_type
            and belief.treated(thing, one.treatment)
        )
        for one in tasks
    ]
    left = [one for one, places in zip(tasks, there, strict=True) if max(places.values(), default=0) < one.count]
    task = next(iter(left or tasks), None)
    reading.task = task
    for verb, name, target in moved:
        if task is None or type_of(name) != task.object_type:
            continue
        if verb == "put" and type_of(target) != task.target_type:
            continue
        objects = reading.done.setdefault(verb, [])
        if name not in objects:
            objects.append(name)
    return reading


def _verdict(reading: EpisodeReading) -> str:
    """How far this attempt got."""
    task, seen, done = reading.task, reading.wanted(), reading.done
    if task is None or not seen:
        what = f" and found no {task.object_type}" if task else ""
        return f"I searched {_listed(reading.searched) or 'nothing'}{what}."
    # The steps of the task in their order; the first that is missing is what the attempt failed at.
    held = done.get("take", [])
    if not held:
        return f"I saw {seen[0]} at {reading.found_at[seen[0]]} but did not take it."
    if task.treatment == "look":
        return f"I took {held[0]} but did not use {_a(task.target_type)} while holding it."
    if task.treatment and task.treatment not in done:
        return f"I took {held[0]} but did not {task.treatment} it."
    if len(seen) < task.count:
        return f"I found only {NUMBERS[len(seen)] or 'one'} {task.object_type}."
    placed = done.get("put", [])
    if len(placed) < task.count:
        return f"I did not put {next((n for n in held if n not in placed), seen[-1])} in/on {_a(task.target_type)}."
    return f"I put {_listed(placed)} in/on {_a(task.target_type)}, which did not complete the task."


def _plan(reading: EpisodeReading) -> list[str]:
    """The commands to begin with next time."""
    task, seen = reading.task, reading.wanted()
    if task is None:
        return [_search(reading, "what the task names")]
    commands: list[str] = []
    # In full for the first object; for a second one (pick_two_obj) the same again, in one sentence.
    for name in seen[:1]:
        commands += [*_reach(reading, reading.found_at[name]), f"take {name} from {reading.found_at[name]}"]
        commands += _finish(reading, name, task)
    # Each part of the plan reaches its place by itself. So `go to` a place where the agent is already, and `open` of
    # what is open already, are left out.
    steps: list[str] = []
    here = ""
    for command in commands:
        goes = command.startswith("go to ")
        if (goes and command == here) or (command.startswith("open ") and command in steps):
            continue
        here = command if goes else here
        steps.append(command)
    steps += [f"do the same with {name} from {reading.found_at[name]}" for name in seen[1 : task.count]]
    if len(seen) < task.count:
        steps.append(_search(reading, f"another {task.object_type}" if seen else _a(task.object_type)))
    return steps


def _finish(reading: EpisodeReading, name: str, task: Task) -> list[str]:
    """Commands from holding `name` to the goal."""
    if task.treatment == "look":
        lamps = [lamp for lamp in reading.found_at if type_of(lamp) == task.target_type]
        if not lamps:
            return [_search(reading, _a(task.target_type)), "use it"]
        return [f"go to {reading.found_at[lamps[0]]}", f"use {lamps[0]}"]
    # First the treatment with an appliance of the room, then the goal.
    steps: list[str] = []
    for appliance in reading.nearest(APPLIANCES.get(task.treatment, "")):
        steps += [f"go to {appliance}", f"{task.treatment} {name} with {appliance}"]
    for goal in reading.nearest(task.target_type):
        steps += [*_reach(reading, goal), f"put {name} in/on {goal}"]
    return steps


def _search(reading: EpisodeReading, what: str) -> str:
    untried = [name for name in reading.receptacles if name not in reading.searched]
    if not untried:
        return f"look for {what} everywhere again"
    return f"look for {what} in places that I never saw inside: {_listed(untried)}"


def _reach(reading: EpisodeReading, receptacle: str) -> list[str]:
    # It was found closed, or nobody has looked and such receptacles are closed at the start.
    unseen = receptacle not in reading.searched and type_of(receptacle) in _USUALLY_CLOSED
    opens = receptacle in reading.closed or unseen
    return [f"go to {receptacle}"] + ([f"open {receptacle}"] if opens else [])


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _listed(names: Sequence[str]) -> str:
    """The first four names and how many more there are."""
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
