"""The shortest way to the goal from any state of a game, by full knowledge: its commands, and their exact number.

Every command counts one step. From each location the agent can go to each receptacle in one step, and it holds one
thing at a time. So a shortest way is a sequence of *stops*: put down what is in the way, take an object, treat it, put
it where it belongs, and so on. Between stops at different locations lies one `go to`; a closed container costs one
`open`. All sequences that can be shortest are compared: each choice of objects, of receptacles, of the appliance, of
the order, and of the spot for a thing that is in the way. Receptacles that differ in nothing that counts are
represented by one.

The goals are those of ALFWorld's task types, and conjunctions of several that bring objects somewhere. The test checks
Bellman's equation, d(s) = 1 + min d(s') over the admissible commands, on states of all kinds. Together with d = 0 just
where the goal holds, it says that d is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import permutations, product
from typing import NamedTuple

from alfworld_native.engine.pddl import STATIC, parse_goal
from alfworld_native.engine.state import GameState
from alfworld_native.engine.world import STATES, World
from alfworld_native.errors import EnvironmentFault

_TREATMENTS = {"clean": ("clean", "cleaning", "cleanable"), "hot": ("heat", "heating", "heatable")}
_TREATMENTS["cool"] = ("cool", "cooling", "coolable")  # state -> command, receptacles for it, who can be treated
_NOT_UNDERSTOOD = "its goal is of another kind than ALFWorld's: no shortest way is known for it"


class Stop(NamedTuple):
    """Something to be done at a receptacle; `stay`, as the last one, asks only to be there."""

    verb: str
    thing: str
    receptacle: str


class Part(NamedTuple):
    """One object of a task: which things can be it, and the states (`clean` …) that it must have."""

    things: tuple[str, ...]
    states: tuple[str, ...]


class Errand(NamedTuple):
    """Different objects that belong together into one of the `targets`."""

    parts: tuple[Part, ...]
    targets: tuple[str, ...]


class HouseholdGoal(NamedTuple):
    """What a goal asks: errands, or a thing to be held beside a lamp that was used."""

    errands: tuple[Errand, ...]
    lamps: tuple[str, ...] = ()
    held: Part | None = None


class Job(NamedTuple):
    """One object that must still be brought to a receptacle, and the states that it lacks."""

    thing: str
    lacking: tuple[str, ...]
    receptacle: str


Choice = tuple[Job, ...]  # for all errands, what is left to do


def shortest_way(state: GameState) -> list[str] | None:
    """The commands of a shortest way to the goal, in the dialect of `state`; empty if it holds.

    None if the goal cannot be reached any more. EnvironmentFault for a goal of another kind than ALFWorld's.
    """
    task = task_of(state.world)
    best: list[Stop] | None = None
    least = 10**9  # longer than any way
    ways = _lamp_ways(state, task) if task.held is not None else _bringing_ways(state, task)
    for stops in ways:
        # Branch and bound: a way is counted no further than the best one so far is long.
        steps = _steps(state, stops, least)
        if steps < least:
            best, least = stops, steps
    return None if best is None else _commands(state, best)


def task_of(world: World) -> HouseholdGoal:
    """The goal of a game as a `HouseholdGoal`; EnvironmentFault if it is of another kind than ALFWorld's."""
    errands, lamps, held = [], None, None
    for block, levels in zip(parse_goal(world.text.goal), world.goal, strict=True):
        things = {level.variable: level.candidates for level in levels}
        predicates = {literal.predicate for literal in block.literals}
        changing = [literal for literal in block.literals if literal.predicate not in STATIC]
        if "istoggled" in predicates and lamps is None:
            # The agent is beside a lamp that was used: exactly these four conditions and variables, none negated.
            found = {literal.predicate: literal.arguments for literal in block.literals if literal.positive}
            needed = {"istoggled", "receptacleatlocation", "atlocation", "inreceptacle"}
            told = found.keys() - (STATIC.keys() - {"receptacleatlocation"})
            if told != needed or len(things) != 4 or len(found) != len(block.literals):
                raise EnvironmentFault(_NOT_UNDERSTOOD)
            lamps = things[found["istoggled"][0]]
        elif "holds" in predicates and held is None:
            # One object is in the hand.
            if len(changing) != 1 or not changing[0].positive or len(things) != 2:
                raise EnvironmentFault(_NOT_UNDERSTOOD)
            held = Part(things[changing[0].arguments[1]], ())
        else:
            # One or more different objects in one receptacle.
            inside = [literal.arguments for literal in changing if literal.predicate == "inreceptacle"]
            objects, receptacles = [pair[0] for pair in inside], {pair[1] for pair in inside}
            states: dict[str, list[str]] = {name: [] for name in objects}
            for literal in changing:
                if literal.predicate in STATES and literal.arguments[0] in states and literal.positive:
                    states[literal.arguments[0]].append(STATES[literal.predicate])
            # Exactly ALFWorld's form: one receptacle, all objects different (each pair has its own inequality,
            # n (n - 1) / 2 of them), and no condition beyond their states.
            understood = len(set(objects)) == len(objects) == len(things) - 1 and len(receptacles) == 1
            apart = sum(literal.predicate == "=" and not literal.positive for literal in changing)
            understood &= apart == len(objects) * (len(objects) - 1) // 2
            understood &= len(changing) == apart + len(objects) + sum(map(len, states.values()))
            understood &= all(_TREATMENTS.keys() >= set(names) for names in states.values())
            if not understood:
                raise EnvironmentFault(_NOT_UNDERSTOOD)
            parts = tuple(Part(things[name], tuple(states[name])) for name in objects)
            errands.append(Errand(parts, things[receptacles.pop()]))
    if (lamps is None) != (held is None) or (held is not None and errands):
        raise EnvironmentFault(_NOT_UNDERSTOOD)
    return HouseholdGoal(tuple(errands), lamps or (), held)


def _lamp_ways(state: GameState, task: HouseholdGoal) -> Iterator[list[Stop]]:
    """Ways that end beside a used lamp with the right thing in the hand."""
    world = state.world
    part = task.held or Part((), ())
    ends = [
        # A lamp counts as used from its first use on: beside it nothing more is to be done.
        Stop("stay" if lamp in state.toggled else "use", lamp, receptacle)
        for receptacle, contents in state.contents.items()
        for lamp in contents
        if lamp in task.lamps
    ]
    if state.held in part.things:
        # The right thing is in the hand already: only the lamp is left.
        yield from ([end] for end in ends)
        return
    for thing in part.things:
        for source in _sources(state, thing):
            for end in ends:
                near = {world.location_of[source], world.location_of[end.receptacle]}
                for clearing in _clearings(state, near):
                    yield [*clearing, Stop("take", thing, source), end]


def _bringing_ways(state: GameState, task: HouseholdGoal) -> Iterator[list[Stop]]:
    """Ways that do all errands: every choice of objects and targets, order of the jobs, and way to do each job."""
    location_of = state.world.location_of
    for choice in product(*[list(_choices(state, errand, task)) for errand in task.errands]):
        jobs = _merged(choice)
        if jobs is None:
            continue
        for order in permutations(jobs):
            if len(order) > 1 and any(job.thing == state.held for job in order[1:]):
                continue  # what is in the hand is brought first
            in_the_way = state.held is not None and bool(order) and order[0].thing != state.held
            for parts in product(*[list(_job_ways(state, job)) for job in order]):
                stops = [stop for part in parts for stop in part]
                if not in_the_way:
                    yield stops
                    continue
                # The thing in the hand is put down first: where that costs no detour, else where it can be put at all.
                near = {location_of[stop.receptacle] for stop in stops}
                yield from ([*clearing, *stops] for clearing in _clearings(state, near))


def _job_ways(state: GameState, job: Job) -> Iterator[list[Stop]]:
    """Take the thing, treat it, put it where it belongs."""
    world, thing = state.world, job.thing
    # For each lacking state the stops that can give it: one for each appliance.
    tools = []
    for name in job.lacking:
        verb, receptacles, able = _TREATMENTS[name]
        able_ones = sorted(getattr(world, receptacles)) if thing in world.able[able] else []
        tools.append([Stop(verb, thing, receptacle) for receptacle in able_ones])
    # Then every source, every appliance, and every order of the treatments.
    for source in [None] if thing == state.held else _sources(state, thing):
        taken = [] if source is None else [Stop("take", thing, source)]
        # A thing may lie in several receptacles at once, and is taken from one only.
        there = source != job.receptacle and thing in state.contents[job.receptacle]
        if not there and not world.accepts(job.receptacle, thing):
            continue
        put = [] if there else [Stop("put", thing, job.receptacle)]
        for treatments in product(*tools):
            for ordered in permutations(treatments):
                yield [*taken, *ordered, *put]


def _choices(state: GameState, errand: Errand, task: HouseholdGoal) -> Iterator[Choice]:
    """Which objects come into which receptacle; receptacles that differ in nothing are represented by one."""
    parts = errand.parts
    for receptacle in _representatives(state, errand.targets, _special(state, task)):
        contents = state.contents[receptacle]
        for things in product(*[part.things for part in parts]):
            # Different things for all parts; things of equal parts in one order only, as it changes nothing.
            if len(set(things)) < len(things) or (len(set(parts)) == 1 and list(things) != sorted(things)):
                continue
            yield tuple(
                Job(thing, lacking, receptacle)
                for thing, part in zip(things, parts, strict=True)
                if (lacking := tuple(name for name in part.states if thing not in getattr(state, name)))
                or thing not in contents
            )


def _merged(choices: Iterable[Choice]) -> tuple[Job, ...] | None:
    """The jobs of all errands; None if one thing would have to be in two receptacles."""
    jobs: dict[str, Job] = {}
    for job in (job for choice in choices for job in choice):
        other = jobs.get(job.thing)
        if other is not None and other.receptacle != job.receptacle:
            return None
        lacking = job.lacking if other is None else tuple(dict.fromkeys(other.lacking + job.lacking))
        jobs[job.thing] = job._replace(lacking=lacking)
    return tuple(jobs.values())


def _special(state: GameState, task: HouseholdGoal) -> set[str]:
    """Locations at which a shortest way may have several stops: there it matters which receptacle is chosen."""
    world, errands = state.world, task.errands
    wanted = {thing for errand in errands for part in errand.parts for thing in part.things}
    states = {name for errand in errands for part in errand.parts for name in part.states}
    receptacles = {name for name, contents in state.contents.items() if not wanted.isdisjoint(contents)}
    receptacles.update(*[getattr(world, _TREATMENTS[name][1]) for name in states])
    if len(errands) > 1:
        receptacles.update(*[errand.targets for errand in errands if len(errand.targets) < len(world.location_of)])
    return {state.location, *(world.location_of[name] for name in receptacles)}


def _representatives(state: GameState, receptacles: Iterable[str], special: set[str]) -> list[str]:
    """All `receptacles` at a special location, and one that is open (else one that is closed) of the others."""
    location_of = state.world.location_of
    near: list[str] = []
    far: list[str] = []
    for name in receptacles:
        (near if location_of[name] in special else far).append(name)
    return near + sorted(far, key=lambda name: _closed(state, name))[:1]


def _clearings(state: GameState, near: set[str]) -> list[list[Stop]]:
    """How the hand becomes empty: the thing in it is put down here, near one of the next stops, or anywhere."""
    held, world = state.held, state.world
    if held is None:
        return [[]]
    spots = [name for name in world.location_of if world.accepts(name, held)]
    return [[Stop("put", held, name)] for name in _representatives(state, spots, {state.location, *near})]


def _sources(state: GameState, thing: str) -> list[str]:
    """The receptacles from which `thing` can be taken."""
    if thing not in state.world.able["pickupable"]:
        return []
    return [name for name, contents in state.contents.items() if thing in contents]


def _closed(state: GameState, receptacle: str) -> bool:
    return receptacle in state.world.able["openable"] and receptacle not in state.opened


def _steps(state: GameState, stops: Iterable[Stop], limit: int) -> int:
    """The number of commands for these stops; from `limit` on it is not exact."""
    location_of, openable = state.world.location_of, state.world.able["openable"]
    location, opened, steps = state.location, state.opened, 0
    opening: set[str] = set()
    for verb, _, receptacle in stops:
        there = location_of[receptacle]
        if there != location:
            location = there
            steps += 1
        if (
            verb in ("take", "put")
            and receptacle in openable
            and receptacle not in opened
            and receptacle not in opening
        ):
            opening.add(receptacle)
            steps += 1
        steps += verb != "stay"
        if steps >= limit:
            break
    return steps


def _commands(state: GameState, stops: Iterable[Stop]) -> list[str]:
    """The stops as commands: a `go to` between locations, an `open` before a closed container is used."""
    world, location, opening = state.world, state.location, set()
    commands = []
    for verb, name, receptacle in stops:
        thing, place = world.names[name], world.names[receptacle]
        if world.location_of[receptacle] != location:
            location = world.location_of[receptacle]
            commands.append(f"go to {place}")
        if verb in ("take", "put") and _closed(state, receptacle) and receptacle not in opening:
            opening.add(receptacle)
            commands.append(f"open {place}")
        if verb == "take":
            commands.append(f"take {thing} from {place}")
        elif verb == "put":
            commands.append(f"move {thing} to {place}" if state.says_move else f"put {thing} in/on {place}")
        elif verb == "use":
            commands.append(f"use {thing}")
        elif verb != "stay":  # clean, heat, cool
            commands.append(f"{verb} {thing} with {place}")
    return commands
