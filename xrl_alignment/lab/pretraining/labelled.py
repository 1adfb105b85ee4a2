"""Games that are played and labelled, for training the student: new games of a mixture of levels, and official ones.

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
from alfworld_native.drawing.frames import BLANK_FRAME, render
from alfworld_native.drawing.state import RoomState
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.experts.explorer import Explorer
from alfworld_native.household.generator import make_game
from alfworld_native.household.levels import LEVELS
from alfworld_native.household.mixture import apportioned
from alfworld_native.language.commands import is_thought
from alfworld_native.language.sentences import without_objects
from alfworld_native.renaming import RenamedEnvironment, invented_names
from xrl_alignment.play.collection.player import failed_attempt
from xrl_alignment.play.evaluation.actors import PolicyQuestion
from xrl_alignment.play.rollouts.play import Turn, ask_expert, play

# Shares of the games that have invented names; `RENAMED_NEW` of levels whose own games have new names.
RENAMED, RENAMED_NEW, RENAMED_OFFICIAL = 0.5, 0.8, 0.25
IN_THE_OPEN = 0.5  # share of the games of levels that hide what is wanted in which it may lie anywhere
# Levels whose search is labelled in the order of the opening text: the next place can be read off, where the order of
# chances would have to be known for every type. It takes 0.95 to 1.25 times the steps (elsewhere up to 1.4 times).
LISTED_ORDER = ("many", "compound", "house", "hardest")
NOISE = (0.0, 0.0, 0.1, 0.25)  # how often the explorer takes a wrong step
WITH_MEMORY = 0.1  # share of the games that begin with the memory of a failed attempt
STUCK = 4  # repeats of an action that end a game which the student plays
OWN_STEPS = 120  # that the student plays in a game, at most; of a longer game the explorer may play the first steps
OVERLOOKED = (0.0, 0.4)  # share of the notes that are left out where the explorer plays with noise
OFFICIAL, DRILL = "official", "drill"  # sources that are no level
# Of the games with old names that the student plays, those of these sources have a share in which the image alone tells
# what lies where.
UNTOLD_SOURCES, UNTOLD_OWN = (OFFICIAL, "standard"), 0.6
SEARCHING = "go to "  # a label that says what to do, and leaves open where


class Step(NamedTuple):
    """`action` was done, `label` is what should have been done (or `SEARCHING`); `state` is the room before."""

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
    untold: bool = False  # the student acted, and the image alone told it what lies where


class Job(NamedTuple):
    """A game to be played; `seed` decides all chance in it."""

    game: Game
    source: str
    seed: str
    own: bool
    renamed: float | None = None  # how likely it has invented names; None: as `source` has it
    may_be_untold: bool = True  # the image alone may tell what lies where, if the student plays
    order: str = ""  # of the explorer's search (`Explorer`); "": as `source` has it


@dataclass(frozen=True, kw_only=True)
class Pools:
    """What a pool holds: `number` games, in shares, and `drills`, exercises (`drills.py`), beside them."""

    number: int
    mixture: Mapping[str, float]  # of levels, for all but the official games
    official: Sequence[Game] = ()
    official_share: float = 0.0
    own_share: float = 0.0  # of the games that the student plays
    drills: int = 0
    renamed: float | None = None  # share of the games that have invented names; None: as each source has it
    untold: bool = True  # whether in some of the games that the student plays the image alone tells what lies where
    order: str = ""  # of the explorer's search; "": as each source has it


def draw_jobs(folder: Path, pools: Pools, seed: str) -> list[Job]:
    """The jobs of a pool: new games, written into `folder`, and official ones."""
    draw = random.Random(seed)
    theirs = draw.choices(pools.official, k=round(pools.number * pools.official_share)) if pools.official else []
    jobs = [Job(game, OFFICIAL, f"{seed} {i}", False, pools.renamed) for i, game in enumerate(theirs)]
    for level, count in apportioned(pools.mixture, pools.number - len(theirs), draw).items():
        split = folder / level / "household_train"
        split.mkdir(parents=True)
        for i in range(count):
            # A student that reads hidden objects alone learns where they are instead of comparing names: it passes by
            # what it wants on a table, and takes what lies in a drawer for it.
            hidden = LEVELS[level].hidden and draw.random() >= IN_THE_OPEN
            # The names of `renamed` are for its test alone: here names are invented.
            knobs = replace(LEVELS[level], new_names=False, hidden=hidden)
            game = make_game(split, i, draw.randrange(2**31), knobs)
            jobs.append(Job(game, level, f"{seed} {level} {i}", False, pools.renamed))
    draw.shuffle(jobs)
    own = round(pools.own_share * len(jobs))
    jobs = [job._replace(order=pools.order) for job in jobs]
    return [job._replace(own=True, may_be_untold=pools.untold) for job in jobs[:own]] + jobs[own:]


def played(job: Job) -> Generator[Any, Any, Record]:
    """Play a game and label it, for an executor of `rollouts`; asks `PolicyQuestion`s if the student acts."""
    draw = random.Random(job.seed)
    horizon = MAX_STEPS if job.source == OFFICIAL else LEVELS[job.source].max_steps
    environment: Any = NativeEnvironment(horizon)
    share = RENAMED_OFFICIAL
    if job.source != OFFICIAL:
        share = RENAMED_NEW if LEVELS[job.source].new_names else RENAMED
    if job.renamed is not None:
        share = job.renamed
    renamed = draw.random() < share
    if renamed:
        environment = RenamedEnvironment(environment, invented_names(draw))
    untold = job.own and job.may_be_untold and not renamed and job.source in UNTOLD_SOURCES
    untold = untold and draw.random() < UNTOLD_OWN
    memories: list[str] = []
    if draw.random() < WITH_MEMORY:
        memories = yield from failed_attempt(environment, job.game, draw, tell_objects=not untold)
    long = job.source in LISTED_ORDER  # so long that what was not noted leaves the prompt
    expert = Explorer(notes=True, order=job.order or ("listing" if long else "likely"))
    noise, overlooked = draw.choice(NOISE), draw.choice(OVERLOOKED)
    handed_over = draw.randint(0, max(0, horizon - OWN_STEPS)) if job.own else horizon
    labels: list[tuple[str, RoomState]] = []

    def agent(turn: Turn) -> Generator[Any, Any, str]:
        advice = yield from ask_expert(expert, turn)
        label = turn.episode.answer(advice.action, advice.thought) or "look"
        labels.append((label, environment.room_state()))
        # DAgger (Ross et al. 2011): the student acts, the expert labels the states that its mistakes lead to. Else
        # noise in what the expert does, not in its labels, shows how to go on after a mistake (Laskey et al. 2017,
        # arXiv:1703.09327).
        if turn.episode.actions >= handed_over:
            asked, steps, frame = turn.episode, turn.episode.steps, BLANK_FRAME
            if untold:
                steps, frame = [(done, without_objects(heard)) for done, heard in steps], render(labels[-1][1])
            action = yield PolicyQuestion(asked.text, memories, steps, frame, (), asked.game)
        elif noise and is_thought(label) and draw.random() < overlooked:
            action = advice.action or "look"
        else:
            action = mistake(label, turn, draw) if draw.random() < noise else label
        # What is not noted is forgotten: to go straight to it would be a label that nothing in the prompt explains.
        if long and is_thought(label):
            expert.overlook(action)
        return action

    episode = yield from play(
        environment,
        job.game,
        agent,
        expert=expert,
        memories=memories,
        max_steps=min(horizon, handed_over + OWN_STEPS),
        repeat_limit=STUCK if job.own else 0,
        thoughts=True,
    )
    told = zip(episode.steps, labels, strict=True)
    steps = [Step(done, label, heard, state) for (done, heard), (label, state) in told]
    return Record(job.source, episode.text, memories, steps, episode.won, renamed, job.own, untold)


def mistake(label: str, turn: Turn, draw: random.Random) -> str:
    """A wrong step: a thing is taken that the task names, wanted still or not; any admissible command; the last action
    again; or the right command with a wrong number."""
    kind = draw.random()
    task = turn.episode.text.rpartition("Your task is to: ")[2]
    named = [its for its in turn.now.admissible_commands if its.startswith("take ") and its.split()[1] in task]
    if named and kind < 0.4:
        return draw.choice(named)
    if kind < 0.6 or not turn.episode.steps:
        return draw.choice(turn.now.admissible_commands)
    if kind < 0.8:
        return turn.episode.steps[-1][0]
    return re.sub(r"\d+", lambda number: str(draw.randint(1, 4)), label, count=1)
