"""Exercises: small games with many names (`drill`), and walks that only tell what is seen where (`lookout`).

They are denser than the games of a level. A student that reads only games learns late that a list has to be compared
with the task, name by name (docs/levels.md).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

from alfworld_native.engine.texts import listing
from alfworld_native.experts.explorer import APPLIANCES, Explorer, in_words, task_list
from alfworld_native.household.new_names import NEW_NAMES
from alfworld_native.language.commands import normalise
from alfworld_native.language.sentences import NOTHING_HAPPENS, NUMBERS, TASK_JOINT, Task, type_of
from alfworld_native.renaming import invented_names
from xrl_alignment.lab.pretraining.labelled import DRILL, SEARCHING, Record, Step
from xrl_alignment.play.rollouts.episode import THOUGHT_FEEDBACK

SURFACES = ("shelf", "desk", "dresser", "countertop", "sidetable", "armchair", "bed", "sofa", "diningtable")
CONTAINERS = ("cabinet", "drawer", "safe")  # shut at the start
SENTENCES = {  # how tasks are said (`sentences.py`), by treatment
    "": ("put a {} in {}", "put some {} on {}"),
    "clean": ("put a clean {} in {}", "clean some {} and put it in {}"),
    "heat": ("put a hot {} in {}", "heat some {} and put it in {}"),
    "cool": ("put a cool {} in {}", "cool some {} and put it in {}"),
    "several": ("put {count} {} in {}", "find {count} {} and put them in {}"),
}
MISTAKES = (0.0, 0.1, 0.25)  # how often something else is done than what the explorer says
LONGEST = 60  # steps


@dataclass
class Room:
    """Places and what lies in them; `answer` says what ALFWorld's engine says."""

    contents: dict[str, list[str]]
    shut: set[str]
    here: str = ""  # the place in reach
    held: str = ""  # the thing in the hand

    def answer(self, action: str) -> str:
        """Do `action` if it is possible, and tell what happened."""
        verb, *words = action.split()
        thing, place = " ".join(words[:2]), " ".join(words[-2:])
        if verb == "go":
            if place == self.here or place not in self.contents:
                return NOTHING_HAPPENS
            self.here = place
            return f"You arrive at {place}. {self._shown(place)}"
        if place != self.here:
            return NOTHING_HAPPENS
        if verb == "open" and place in self.shut:
            self.shut.discard(place)
            return f"You open the {place}. {self._shown(place)}"
        if verb == "take" and not self.held and place not in self.shut and thing in self.contents[place]:
            self.contents[place].remove(thing)
            self.held = thing
            return f"You pick up the {thing} from the {place}."
        if verb == "put" and thing == self.held and place not in self.shut:
            self.contents[place].append(thing)
            self.held = ""
            return f"You move the {thing} to the {place}."
        if verb in APPLIANCES and thing == self.held and place == f"{APPLIANCES[verb]} 1":
            return f"You {verb} the {thing} using the {place}."
        return NOTHING_HAPPENS

    def _shown(self, place: str) -> str:
        if place in self.shut:
            return f"The {place} is closed."
        where = f"The {place} is open. In it" if type_of(place) in CONTAINERS else f"On the {place}"
        return f"{where}, you see {listing([f'a {thing}' for thing in self.contents[place]])}."


class Exercise(NamedTuple):
    """A room and what is to be done in it."""

    room: Room
    tasks: list[str]
    # Several goals, or more than two objects: then a student searches in the order of the listing (`LISTED_ORDER`).
    listed: bool


def any_exercise(draw: random.Random) -> Record:
    """A `drill` or a `lookout`, as likely."""
    return draw.choice((drill, lookout))(draw)


def lookout(draw: random.Random) -> Record:
    """A walk past places, in which whoever sees what is wanted says where it is, and goes back to it at the end.

    Nothing is taken: there is a list to compare with the wanted names every 50 tokens, and a third of the lists have
    some; in `drill`, every 75 tokens, and a quarter. At the end each wanted name has to be found again among what was
    said. No task of a game is said so; but in half of the walks the names stand where tasks have them, and the notes
    say what would be done with what is seen, and how far the tasks would be then, as those of a game do. Of what would
    be done they are silent.
    """
    names = _names(draw)
    draw.shuffle(names)  # the known ones come in alphabetical order
    wanted = [names.pop() for _ in range(draw.choice((1, 2, 3, 3)))]
    places = [f"{kind} {number}" for kind in (*SURFACES, *CONTAINERS) for number in range(1, draw.choice((2, 3, 3, 6)))]
    places = draw.sample(places, min(len(places), draw.randint(5, 15)))
    numbers = {name: draw.sample(range(1, 9), 8) for name in (*wanted, *names)}  # no thing lies in two places
    contents = {}
    for place in places:
        here = draw.sample(names[:24], draw.choice((0, 1, 1, 2, 3, 5, 8)))
        here += [name for name in wanted if draw.random() < 0.1 + 0.35 / len(wanted)]
        draw.shuffle(here)
        mine = {name: [numbers[name].pop() for _ in range(draw.choice((1, 1, 2))) if numbers[name]] for name in here}
        contents[place] = [f"{name} {number}" for name, its in mine.items() for number in sorted(its, reverse=True)]
    around = listing([f"a {place}" for place in sorted(places)])
    text = f"You are in the middle of a room. Looking quickly around you, you see {around}.\nYour task is to: "
    tasks: dict[str, Task] = {}  # by wanted name
    if draw.random() < 0.5:
        text += f"say where each {' and '.join(wanted)} is."
    else:
        asked = []
        for name in wanted:
            treatment, target, count = draw.choice(list(SENTENCES)), draw.choice(SURFACES), draw.choice((2, 3, 4))
            asked.append(draw.choice(SENTENCES[treatment]).format(name, target, count=NUMBERS[count]))
            tasks[name] = Task(name, target, treatment, count if treatment == "several" else 1)
        text += f"only look around. {TASK_JOINT.join(asked)}."
    room, steps, first = Room(contents, set()), list[Step](), dict[str, tuple[str, str]]()
    missing = {name: task.count for name, task in tasks.items()}  # objects that are still to bring, if it were a game
    if tasks:
        _say(steps, task_list(list(tasks.values()), list(missing.values())))
    for place in places:
        action = f"go to {place}"
        steps.append(Step(action, SEARCHING, room.answer(action), None))
        # What has been done is not told again, though the task names it.
        if seen := [thing for thing in contents[place] if type_of(thing) in wanted and missing.get(type_of(thing), 1)]:
            _say(steps, f"i see {', '.join(seen)} in/on {place}")
            if tasks:
                now = type_of(seen[0])
                _say(steps, f"now: {in_words(tasks[now], missing[now])}; searched to {place}")
                missing[now] -= 1
                if left := task_list(list(tasks.values()), list(missing.values())):
                    _say(steps, f"{left}; searched to {place}")
            first |= {type_of(thing): (thing, place) for thing in reversed(seen) if type_of(thing) not in first}
    for name in wanted:
        if name in first:
            thing, place = first[name]
            _say(steps, f"next: {thing} in/on {place}")
            action = f"go to {place}"
            steps.append(Step(action, action, room.answer(action), None))
    return Record(DRILL, text, (), steps, True, True, False)


def _say(steps: list[Step], what: str) -> None:
    said = f"think: {what}"
    steps.append(Step(said, said, THOUGHT_FEEDBACK, None))


def _names(draw: random.Random) -> list[str]:
    """Invented names in most exercises, the known ones in the others."""
    return list(invented_names(draw).values()) if draw.random() < 0.8 else [name.lower() for name in sorted(NEW_NAMES)]


def draw_exercise(draw: random.Random) -> Exercise:
    """One to three goals in a few places, which hold what is wanted, other things, or nothing."""
    names = _names(draw)
    goals = draw.choice((1, 1, 2, 2, 3))
    names = draw.sample(names, goals + draw.randint(2, 24))
    counts = [draw.choice((1, 1, 1, 2, 3, 4) if goals == 1 else (1, 1, 2)) for _ in range(goals)]
    kinds = [*draw.sample(SURFACES, draw.randint(2, 5)), *draw.sample(CONTAINERS, draw.randint(1, 2))]
    places = [f"{kind} {number}" for kind in kinds for number in range(draw.choice((1, 1, 1, 2, 3)), 0, -1)]
    contents: dict[str, list[str]] = {place: [] for place in places}
    tasks = []
    for wanted, count, target in zip(names[:goals], counts, draw.sample(kinds, goals), strict=True):
        treatment = "several" if count > 1 else draw.choice(("", *APPLIANCES))
        if treatment in APPLIANCES:
            contents.setdefault(f"{APPLIANCES[treatment]} 1", [])
        tasks.append(draw.choice(SENTENCES[treatment]).format(wanted, target, count=NUMBERS[count]))
        elsewhere = [place for place in places if type_of(place) != target]
        spare = draw.choice((0, 0, 1) if goals == 1 else (0, 1, 2))  # in view when their task is done, too
        for number in draw.sample(range(1, 6), count + spare):
            contents[draw.choice(elsewhere)].append(f"{wanted} {number}")
    for other in names[goals:]:
        for number in draw.sample(range(1, 5), draw.choice((1, 1, 2, 3))):
            contents[draw.choice(places)].append(f"{other} {number}")
    # As a room lists things: those of a type together, the highest number first.
    draw.shuffle(names)
    for things in contents.values():
        things.sort(key=lambda thing: (names.index(type_of(thing)), -int(thing.split()[1])))
    shut = {place for place in contents if type_of(place) in (*CONTAINERS, "fridge", "microwave")}
    return Exercise(Room(contents, shut), tasks, goals > 1 or counts[0] > 2)


def drill(draw: random.Random) -> Record:
    """An exercise that the explorer does, with its notes and some mistakes in it.

    If nothing says which place to search next, the label is `SEARCHING`.
    """
    room, tasks, listed = draw_exercise(draw)
    places = draw.sample(sorted(room.contents), len(room.contents))
    around = listing([f"a {place}" for place in places])
    text = f"You are in the middle of a room. Looking quickly around you, you see {around}.\n"
    text += f"Your task is to: {TASK_JOINT.join(tasks)}."
    expert, mistakes = Explorer(notes=True, order="listing" if listed else "likely"), draw.choice(MISTAKES)
    expert.begin(text)
    steps, seen, last, answer = list[Step](), set[str](), "look", ""
    while not expert.done and len(steps) < LONGEST:
        advice = expert.act()
        if advice.action is None:  # what was taken by mistake fits nowhere else
            break
        if advice.thought:
            _say(steps, normalise(advice.thought))
        action = label = advice.action
        searches = label.startswith("go to ") and not room.held and label.removeprefix("go to ") not in seen
        if searches and not listed:
            label = SEARCHING
        if answer == NOTHING_HAPPENS and draw.random() < 0.4:  # what does not work is tried again and again
            action = last
        elif draw.random() < mistakes:
            # A wrong way; what "Nothing happens." answers: the way to where it stands, or the last action again; or
            # a thing is taken that lies here, wanted or not.
            things = room.contents[room.here] if room.here and room.here not in room.shut and not room.held else []
            taken = f"take {draw.choice(things)} from {room.here}" if things else last
            ways = [f"go to {draw.choice(places)}", f"go to {room.here}" if room.here else last, last, taken]
            action = draw.choices(ways, weights=(2, 1, 1, 2))[0]
        answer, last = room.answer(action), action
        if room.here not in room.shut:
            seen.add(room.here)
        steps.append(Step(action, label, answer, None))
        expert.observe(action, answer)
    return Record(DRILL, text, (), steps, True, True, False)
