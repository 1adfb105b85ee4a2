"""ALFWorld's sentences, parsed: the room and the task of an opening text, lists of things, feedback.

The templates are those of ALFWorld's `gen/goal_library.py`; all 3,553 training and 140 `valid_seen` games use them.
Tasks in other words (ALFWorld's human annotations) are read by key words; some of them cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from alfworld_native.language.feedback import whole_sentences

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
NOTHING_HAPPENS = "Nothing happens."  # the engine's answer to whatever is not admissible
_REFUSAL = frozenset(NOTHING_HAPPENS.split())
# The sentences of ALFWorld's grammar (alfred.twl2) that say what lies where, with the space before them.
_OBJECTS_TOLD = re.compile(r" ?\b(?:On the [a-z]+ \d+|In it|Next to it), you see [^.]*\.")
_NAME = re.compile(r"\b(?!loc )([a-z]+) \d+\b")  # old versions of ALFWorld arrive "at loc 12"
_ROOM, _ROOM_END = "you see ", re.compile(r"\.\s")
_TASK = "Your task is to:"
TASK_JOINT = ", and "  # between the sentences of a game with several goals
NUMBERS = ("", "", "two", "three", "four", "five")  # how a task says how many objects it wants
MAX_COUNT = len(NUMBERS) - 1
_SEVERAL = tuple(enumerate(NUMBERS))[2:]
MAX_TASK = 500  # characters; ALFWorld's longest, an annotation, has about 200

_TEMPLATES = tuple(
    (re.compile(pattern), treatment, count)
    for pattern, treatment, count in (
        *((rf"put {word} (?P<object>.+) in (?P<target>.+)", "", n) for n, word in _SEVERAL),
        *((rf"find {word} (?P<object>.+) and put them in (?P<target>.+)", "", n) for n, word in _SEVERAL),
        (r"put a (?P<treated>clean|hot|cool) (?P<object>.+) in (?P<target>.+)", "", 1),
        (r"clean some (?P<object>.+) and put it in (?P<target>.+)", "clean", 1),
        (r"heat some (?P<object>.+) and put it in (?P<target>.+)", "heat", 1),
        (r"cool some (?P<object>.+) and put it in (?P<target>.+)", "cool", 1),
        (r"put a (?P<object>.+) in (?P<target>.+)", "", 1),
        (r"put some (?P<object>.+) on (?P<target>.+)", "", 1),
        (r"look at (?P<object>.+) under the (?P<target>.+)", "look", 1),
        (r"examine the (?P<object>.+) with the (?P<target>.+)", "look", 1),
    )
)
_VERBS = {"clean": "clean", "hot": "heat", "cool": "cool"}
_KEY_WORDS = (  # human annotations; the first that matches decides
    ("look", re.compile(r"\b(lamp|light|desklamp|floorlamp)\b")),
    ("heat", re.compile(r"\b(heat|heated|hot|warm|warmed|microwaved|cook|cooked)\b")),
    ("cool", re.compile(r"\b(cool|cooled|cold|chill|chilled)\b")),
    ("clean", re.compile(r"\b(clean|cleaned|wash|washed|rinse|rinsed)\b")),
)
_SYNONYMS = {
    "counter": "countertop",
    "refrigerator": "fridge",
    "trash": "garbagecan",
    "trashcan": "garbagecan",
    "bin": "garbagecan",
    "couch": "sofa",
    "sink": "sinkbasin",
    "nightstand": "sidetable",
    "endtable": "sidetable",
    "stove": "stoveburner",
    "burner": "stoveburner",
    "remote": "remotecontrol",
    "phone": "cellphone",
    "tissues": "tissuebox",
    "sponge": "dishsponge",
    "soap": "soapbar",
    "alarm": "alarmclock",
    "clock": "alarmclock",
    "keys": "keychain",
}
_TWO = re.compile(r"\b(two|both|2|pair)\b")


@dataclass(frozen=True)
class Task:
    """Bring `count` objects of `object_type`, once treated, to one receptacle of `target_type`.

    `treatment` is "" (none), "clean", "heat", "cool", or "look": then `target_type` is the lamp to hold it under.
    """

    object_type: str
    target_type: str
    treatment: str = ""
    count: int = 1


def is_refusal(feedback: str) -> bool:
    """Whether the engine answered that nothing happens.

    `environment.text_noise` exchanges words of an answer with one another; no other answer has these two alone.
    """
    return feedback.startswith(NOTHING_HAPPENS) or bool(words := set(feedback.split())) and words <= _REFUSAL


def type_of(name: str) -> str:
    """`soapbottle 2` -> `soapbottle`."""
    return name.rsplit(" ", 1)[0]


def names_in(listing: str) -> list[str]:
    """`a cd 1, a cup 2, and an egg 3` -> `["cd 1", "cup 2", "egg 3"]`; `nothing` -> `[]`."""
    if listing == "nothing":
        return []
    return [part.split(" ", 1)[-1] for part in listing.replace(", and ", ", ").replace(" and ", ", ").split(", ")]


def without_numbers(text: str, numbered: Collection[str]) -> str:
    """`text` (a sentence or a command) with the type in place of each name that is none of the `numbered` ones.

    `take mug 2 from shelf 1`, with `shelf 1` numbered, becomes `take mug from shelf 1`.
    """
    return _NAME.sub(lambda name: name[0] if name[0] in numbered else name[1], text)


def process_ob(text: str) -> str:
    """`text` without the `You arrive at loc 12. ` that old ALFWorld versions put before what is seen there."""
    if text.startswith("You arrive at loc "):
        return text.partition(". ")[2]
    return text


def without_objects(feedback: str) -> str:
    """`feedback` without the sentences that list what lies on or in something: "The safe 1 is open." is what stays."""
    whole = whole_sentences(feedback)
    return (_OBJECTS_TOLD.sub("", whole) + feedback[len(whole) :]).strip()


def untold(feedback: str) -> list[str]:
    """The sentences of `feedback` that `without_objects` leaves out."""
    return [sentence.strip() for sentence in _OBJECTS_TOLD.findall(whole_sentences(feedback))]


def parse_opening(text: str) -> tuple[list[str], str]:
    """Receptacle names in listing order, and the task sentence (lower case, no full stop); empty what is not there."""
    room = task = ""
    for line in text.splitlines(keepends=True):
        if not room and (found := line.find(_ROOM)) >= 0:
            # The list is what stands after the first `you see ` of a line, up to a full stop; without one it is none.
            start = found + len(_ROOM)
            end = _ROOM_END.search(line, start)
            room = line[start : end.start()] if end else ""
        task = task or line.partition(_TASK)[2].strip().rstrip(".").strip().lower()
    return names_in(room) if room else [], task


def task_sentence(opening: str) -> str:
    """The line that says what is to be done, `Your task is to: …`, else the last one; empty for an empty text."""
    lines = opening[max(0, opening.find(_TASK)) :].splitlines()
    return lines[0 if _TASK in opening else -1] if lines else ""


def parse_task(
    sentence: str, object_types: Collection[str] = (), receptacle_types: Collection[str] = ()
) -> Task | None:
    """The task that `sentence` states; `None` if neither a template nor the known types explain it.

    A text of more than `MAX_TASK` characters states none: the patterns would take quadratic time.
    """
    if len(sentence) > MAX_TASK:
        return None
    if task := _by_template(sentence):
        return task
    # An annotation in other words: key words give the treatment, and of the types that it names, in their order, the
    # first object is what to bring, the last receptacle is where.
    treatment = next((name for name, words in _KEY_WORDS if words.search(sentence)), "")
    lamps = [name for name in object_types if name.endswith("lamp")]
    things = [name for name in _mentions(sentence, object_types) if name not in lamps]
    if treatment == "look":
        targets = _mentions(sentence, lamps) or ["desklamp"]
    else:
        targets = [name for name in _mentions(sentence, receptacle_types) if name not in things]
    if not things or not targets:
        return None
    return Task(things[0], targets[-1], treatment, 2 if _TWO.search(sentence) and not treatment else 1)


def parse_tasks(
    sentence: str, object_types: Collection[str] = (), receptacle_types: Collection[str] = ()
) -> tuple[Task, ...]:
    """All tasks that `sentence` states at once, as `parse_task` reads them; empty if it states none.

    There are several where each part between `, and ` is one of ALFWorld's templates.
    """
    parts = sentence[: MAX_TASK + 1].split(TASK_JOINT)
    if 1 < len(parts) <= MAX_COUNT and all(tasks := tuple(map(_by_template, parts))):
        return tuple(task for task in tasks if task)
    task = parse_task(sentence, object_types, receptacle_types)
    return (task,) if task else ()


def _by_template(sentence: str) -> Task | None:
    for pattern, treatment, count in _TEMPLATES:
        # The first template that fits decides: `put a hot …` stands before `put a …`.
        match = pattern.fullmatch(sentence)
        if match and not any(" " in match[name] for name in ("object", "target")):
            # `put a hot mug in cabinet` names the state where the other templates name the verb.
            treatment = _VERBS.get(match.groupdict().get("treated", ""), treatment)
            return Task(match["object"], match["target"], treatment, count)
    return None


def _mentions(sentence: str, types: Collection[str]) -> list[str]:
    """The types that `sentence` names, in order; spaces do not count (`cell phone`), longer names win."""
    # Greedy from left to right, with up to three words for one type: "alarm clock", "spray bottle".
    words = re.findall(r"[a-z]+", sentence)
    found, at = [], 0
    while at < len(words):
        size = next((size for size in (3, 2, 1) if _meant("".join(words[at : at + size]), types)), 0)
        if size:
            found.append(_meant("".join(words[at : at + size]), types))
        at += size or 1
    return found


def _meant(word: str, types: Collection[str]) -> str:
    """The type that `word` names, as it stands, in the plural, or by another name; empty if none."""
    forms = (word, word.removesuffix("s"), word.removesuffix("es"), _SYNONYMS.get(word, ""))
    return next((form for form in forms if form in types), "")
