"""Games that are played and labelled, for training the student: new games of a mixture of levels, and exercises.

In most games the explorer acts, with a share of wrong steps (DART, Laskey et al. 2017); in a share of them the student
itself does, as it is now (DAgger, Ross et al. 2011). The explorer labels every state, whoever acts; its thoughts are
notes of what it has seen and of what is left to do. In many games invented words take the place of the objects' names.
"""

from __future__ import annotations

import random
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from alfworld_native.base import MAX_STEPS, Game
from alfworld_native.drawing.frames import BLANK_FRAME
from alfworld_native.drawing.state import RoomState
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.experts.explorer import Explorer
from alfworld_native.household.generator import make_game
from alfworld_native.household.levels import LEVELS
from alfworld_native.household.mixture import apportioned
from alfworld_native.household.new_names import NEW_NAMES
from alfworld_native.language.commands import normalise
from alfworld_native.language.sentences import TASK_JOINT
from alfworld_native.renaming import RenamedEnvironment, invented_names
from xrl_alignment.play.collection.player import failed_attempt
from xrl_alignment.play.evaluation.actors import PolicyQuestion
from xrl_alignment.play.rollouts.episode import THOUGHT_FEEDBACK
from xrl_alignment.play.rollouts.play import Turn, ask_expert, play

# Share of the games with invented names. Copying is learned soonest where little else is to be read.
RENAMED = {"standard": 0.6, "hidden": 0.6, "cluttered": 0.5, "compound": 0.4}
RENAMED_ELSE = 0.25  # of the other levels, and of the official games
# Levels whose search is labelled in the order of the opening text: the next place can be read off, where the order of
# chances would have to be known for every type. It takes 0.95 to 1.25 times the steps (elsewhere up to 1.4 times).
LISTED_ORDER = ("many", "compound", "house", "hardest")
NOISE = (0.0, 0.0, 0.1, 0.25)  # how often the explorer takes a wrong step
WITH_MEMORY = 0.1  # share of the games that begin with the memory of a failed attempt
STUCK = 4  # repeats of an action that end a game which the student plays
OWN_STEPS = 60  # of a game that the student plays, at most: its first mistakes teach most, and 200 steps take long
OFFICIAL, DRILL = "official", "drill"  # sources that are no level


class Step(NamedTuple):
    """`action` was done, `label` is what should have been done (empty: nobody knows); `state` is the room before."""

    action: str
    label: str
    feedback: str
    state: RoomState | None  # None: black frames


@dataclass(frozen=True)
class Record:
    """One labelled game."""

    source: str  # a level, or `official`
    text: str
    memories: Sequence[str]
    steps: Sequence[Step]
    won: bool
    renamed: bool
    own: bool  # the student acted


class Job(NamedTuple):
    """A game to be played; `seed` decides all chance in it."""

    game: Game
    source: str
    seed: str
    own: bool


@dataclass(frozen=True, kw_only=True)
class Pools:
    """What a pool holds: `number` games, in shares, and `drills`, exercises in copying, beside them."""

    number: int
    mixture: Mapping[str, float]  # of levels, for all but the official games
    official: Sequence[Game] = ()
    official_share: float = 0.0
    own_share: float = 0.0  # of the games that the student plays
    drills: int = 0


def draw_jobs(folder: Path, pools: Pools, seed: str) -> list[Job]:
    """The jobs of a pool: new games, written into `folder`, and official ones."""
    draw = random.Random(seed)
    theirs = draw.choices(pools.official, k=round(pools.number * pools.official_share)) if pools.official else []
    jobs = [Job(game, OFFICIAL, f"{seed} {i}", False) for i, game in enumerate(theirs)]
    for level, count in apportioned(pools.mixture, pools.number - len(theirs), draw).items():
        split = folder / level / "household_train"
        split.mkdir(parents=True)
        # The names of `renamed` are for its test alone: here names are invented.
        knobs = replace(LEVELS[level], new_names=False)
        for i in range(count):
            game = make_game(split, i, draw.randrange(2**31), knobs)
            jobs.append(Job(game, level, f"{seed} {level} {i}", False))
    draw.shuffle(jobs)
    own = round(pools.own_share * len(jobs))
    return [job._replace(own=True) for job in jobs[:own]] + jobs[own:]


def played(job: Job) -> Generator[Any, Any, Record]:
    """Play a game and label it, for an executor of `rollouts`; asks `PolicyQuestion`s if the student acts."""
    draw = random.Random(job.seed)
    horizon = MAX_STEPS if job.source == OFFICIAL else LEVELS[job.source].max_steps
    environment: Any = NativeEnvironment(horizon)
    renamed = draw.random() < RENAMED.get(job.source, RENAMED_ELSE)
    if renamed:
        environment = RenamedEnvironment(environment, invented_names(draw))
    memories: list[str] = []
    if draw.random() < WITH_MEMORY:
        memories = yield from failed_attempt(environment, job.game, draw)
    expert = Explorer(notes=True, order="listing" if job.source in LISTED_ORDER else "likely")
    noise = draw.choice(NOISE)
    labels: list[tuple[str, RoomState]] = []

    def agent(turn: Turn) -> Generator[Any, Any, str]:
        advice = yield from ask_expert(expert, turn)
        label = turn.episode.answer(advice.action, advice.thought) or "look"
        labels.append((label, environment.room_state()))
        # DAgger (Ross et al. 2011): the student acts, the expert labels the states that its mistakes lead to. Else
        # noise in what the expert does, not in its labels, shows how to go on after a mistake (Laskey et al. 2017,
        # arXiv:1703.09327).
        if job.own:
            asked = turn.episode
            return (yield PolicyQuestion(asked.text, memories, asked.steps, BLANK_FRAME, (), asked.game))
        return mistake(label, turn, draw) if draw.random() < noise else label

    episode = yield from play(
        environment,
        job.game,
        agent,
        expert=expert,
        memories=memories,
        max_steps=min(horizon, OWN_STEPS) if job.own else horizon,
        repeat_limit=STUCK if job.own else 0,
        thoughts=True,
    )
    told = zip(episode.steps, labels, strict=True)
    steps = [Step(done, label, heard, state) for (done, heard), (label, state) in told]
    return Record(job.source, episode.text, memories, steps, episode.won, renamed, job.own)


def mistake(label: str, turn: Turn, draw: random.Random) -> str:
    """A wrong step: any admissible command, the last action again, or the right command with a wrong number."""
    kind = draw.random()
    if kind < 0.6 or not turn.episode.steps:
        return draw.choice(turn.now.admissible_commands)
    if kind < 0.8:
        return turn.episode.steps[-1][0]
    return re.sub(r"\d+", lambda number: str(draw.randint(1, 4)), label, count=1)


_PLACES = ("shelf", "desk", "dresser", "countertop", "sidetable", "armchair", "bed", "sofa", "drawer", "cabinet")
_TOOLS = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
_SENTENCES = {  # how tasks are said (`sentences.py`), by treatment
    "": ("put a {} in {}", "put some {} on {}"),
    "clean": ("put a clean {} in {}", "clean some {} and put it in {}"),
    "heat": ("put a hot {} in {}", "heat some {} and put it in {}"),
    "cool": ("put a cool {} in {}", "cool some {} and put it in {}"),
}


def drill(draw: random.Random) -> Record:
    """An exercise in copying names and keeping notes: one to three objects are seen, taken, treated and brought.

    It is as dense as a game can be: a third of its tokens are copies. The notes are the explorer's. Where to look is
    not learned (a label that is empty): nobody knows it.
    """
    names = list(invented_names(draw).values()) if draw.random() < 0.6 else sorted(NEW_NAMES)
    goals = draw.choice((1, 2, 2, 3))
    *others, one, two, three = (name.lower() for name in draw.sample(names, draw.randint(5, 14)))
    places = [f"{kind} {draw.randint(1, 9)}" for kind in draw.sample(_PLACES, 2 * goals)]
    treatments = [draw.choice(tuple(_SENTENCES)) for _ in range(goals)]
    told, tasks, turns = [], [], []
    for goal, wanted, treatment in zip(range(goals), (one, two, three), treatments, strict=False):
        place, target = places[2 * goal], places[2 * goal + 1]
        # As a room lists things: by name, the highest number first. Of the wanted ones the first is taken.
        numbers = sorted(draw.sample(range(1, 5), draw.choice((1, 1, 2))), reverse=True)
        thing, tool = f"{wanted} {numbers[0]}", f"{_TOOLS.get(treatment, '')} 1"
        tasks.append(draw.choice(_SENTENCES[treatment]).format(wanted, target.split()[0]))
        beside = draw.sample(others, draw.randint(0, min(8, len(others))))
        there = sorted([*((wanted, -number) for number in numbers), *((name, -draw.randint(1, 4)) for name in beside)])
        shown = [f"a {name} {-number}" for name, number in there]
        seen = ", ".join([*shown[:-1], "and " * (len(shown) > 1) + shown[-1]])
        turns += [
            (f"go to {place}", f"You arrive at {place}. On the {place}, you see {seen}.", False),
            (f"take {thing} from {place}", f"You pick up the {thing} from the {place}.", True),
        ]
        if treatment:
            turns.append((f"go to {tool}", f"You arrive at {tool}. On the {tool}, you see nothing.", True))
            turns.append((f"{treatment} {thing} with {tool}", f"You {treatment} the {thing} using the {tool}.", True))
        turns.append((f"go to {target}", f"You arrive at {target}. On the {target}, you see nothing.", True))
        turns.append((f"put {thing} in/on {target}", f"You move the {thing} to the {target}.", True))
        told += [place, target]
    told += [f"{_TOOLS[treatment]} 1" for treatment in sorted(set(treatments)) if treatment]
    # In any order: where things are must be read from what follows, not from the list.
    draw.shuffle(told)
    listed = ", ".join(f"a {name}" for name in told[:-1]) + f", and a {told[-1]}"
    text = f"You are in the middle of a room. Looking quickly around you, you see {listed}.\n"
    text += f"Your task is to: {TASK_JOINT.join(tasks)}."
    expert, steps = Explorer(notes=True), list[Step]()
    expert.begin(text)
    for action, feedback, known in turns:
        if thought := expert.act().thought:
            said = normalise(f"think: {thought}")
            steps.append(Step(said, said, THOUGHT_FEEDBACK, None))
        steps.append(Step(action, action if known else "", feedback, None))
        expert.observe(action, feedback)
    return Record(DRILL, text, (), steps, True, True, False)
