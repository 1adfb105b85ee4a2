"""Reflexion: a failed episode becomes one paragraph of advice for the next attempt at the same game.

After Shinn et al. 2023 (arXiv:2303.11366). `RuleReflector` needs no LLM: it reads the trace. `LLMReflector` asks one
`prompts.reflection_query`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from xrl_alignment.language.answers import without_reasoning
from xrl_alignment.language.commands import canonical
from xrl_alignment.language.history import EpisodeTrace
from xrl_alignment.language.react import reflection_query
from xrl_alignment.language.sentences import Task, names_in, parse_opening, parse_task, type_of

if TYPE_CHECKING:
    from xrl_alignment.experts.llm.teacher import Teacher

NOTHING = "Nothing happens."  # the engine's answer to whatever is not admissible
RULE_MARK = "(by rule)"
_PLANNER = (
    "You help an agent that failed a household task in a text game and will try it again. Reply with its new plan "
    "only: one paragraph of at most 80 words in the first person that names the exact actions to take, without heading "
    "or list."
)
_PLAN_HEADING = re.compile(r"^[*#\s]*(?:new plan|plan|reflection)[*\s]*:[*\s]*", re.IGNORECASE)
_PLAN_WORDS = 150  # three memories stand in the student's prompt
_NAMES_SHOWN = 4
_REPEATS_NAMED = 3  # a command that failed this often is worth a warning
_SURFACE = re.compile(r"On the ([^,.]+), you see ([^.]*)\.")
_INSIDE = re.compile(r"The ([^,.]+) is open\. In it, you see ([^.]*)\.")
_CLOSED = re.compile(r"The ([^,.]+) is closed\.")
_USUALLY_CLOSED = frozenset(("cabinet", "drawer", "fridge", "microwave", "safe"))  # at the start of ALFWorld's games
_APPLIANCES = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}


class Reflector(Protocol):
    """Turns a failed trace into advice. One that waits for a network has a `pool` in which it wants to be asked."""

    name: str

    def reflect(self, trace: EpisodeTrace, memories: Sequence[str]) -> str:
        """One paragraph for the next attempt; `memories` are this game's earlier ones, oldest first."""
        ...


def update_memories(
    traces: Iterable[EpisodeTrace], memories: Mapping[str, Sequence[str]], reflector: Reflector
) -> dict[str, list[str]]:
    """The memories after a round, by game id: those before it, and one more for each game that failed.

    `memories` are those with which the round began and stay untouched; games without a trace keep theirs. A game
    gets at most one new memory a round (from its last failed trace, none if a trace of it won), and none whose text
    it has already: calling this again, with its own result too, adds nothing for a deterministic reflector.
    """
    updated = {game: list(texts) for game, texts in memories.items()}
    last: dict[str, EpisodeTrace] = {}
    for trace in traces:
        if not (trace.game_id in last and last[trace.game_id].won):
            last[trace.game_id] = trace
    failed = [trace for trace in last.values() if not trace.won]
    known = [updated.setdefault(trace.game_id, []) for trace in failed]
    for texts, text in zip(known, _reflect_all(reflector, failed, known), strict=True):
        text = " ".join(text.split())
        if text and text not in texts:
            texts.append(text)
    return updated


def _reflect_all(
    reflector: Reflector, traces: Sequence[EpisodeTrace], memories: Sequence[Sequence[str]]
) -> Iterable[str]:
    """One text for each trace; all at once where the reflector waits for a network and so has a `pool`."""
    asked = [tuple(texts) for texts in memories]
    pool = getattr(reflector, "pool", None)
    if pool is None:
        return map(reflector.reflect, traces, asked)
    futures = [pool.submit(reflector.reflect, trace, texts) for trace, texts in zip(traces, asked, strict=True)]
    wait(futures)  # also when one fails: what the others paid for is then in the cache
    return [future.result() for future in futures]


class RuleReflector:
    """Advice from rules over the trace; every paragraph begins with `(by rule)` and has at most 80 words.

    It uses only what the episode's text showed: which receptacles were searched and which never, where an object of
    the wanted type was seen, how far the task got, and which command failed again and again.
    """

    name = "rule"

    def reflect(self, trace: EpisodeTrace, memories: Sequence[str]) -> str:
        """See `Reflector`; `memories` do not matter here."""
        reading = _read(trace)
        parts = (RULE_MARK, _verdict(reading), _stuck(reading), f"Next time I will {', '.join(_plan(reading))}.")
        return " ".join(part for part in parts if part)


class LLMReflector:
    """Advice from a language model, as in the original; by rule for a trial about which the model says nothing.

    `examples` are two worked reflections (`prompts.load_reflection_examples`). Trials are asked about all at once, and
    the same trial gets the same answer, from the cache.
    """

    name = "llm"

    def __init__(self, teacher: Teacher, examples: str) -> None:
        self.teacher = teacher
        self.examples = examples
        self._fallback = RuleReflector()

    @property
    def pool(self) -> Executor:
        """Where to call `reflect`, so that many trials are asked about at once."""
        return self.teacher.endpoint.pool

    def reflect(self, trace: EpisodeTrace, memories: Sequence[str]) -> str:
        """See `Reflector`. Raises EndpointFault, BudgetSpent."""
        teacher = self.teacher
        query = reflection_query(trace, memories, self.examples, budget=teacher.budget, count=teacher.endpoint.count)
        plan = _plan_in(teacher.write(query, system=_PLANNER))
        if plan:
            return plan
        teacher.endpoint.account.count("reflections_by_rule")
        return self._fallback.reflect(trace, memories)


def _plan_in(text: str) -> str:
    """The plan in a model's answer: one paragraph, without reasoning, heading or a last sentence that was cut off."""
    paragraphs = [part.strip() for part in without_reasoning(text).split("\n\n") if part.strip()]
    plan = " ".join(_PLAN_HEADING.sub("", paragraphs[0]).split()) if paragraphs else ""
    words = plan.split()
    if len(words) > _PLAN_WORDS:
        plan = " ".join(words[:_PLAN_WORDS])
        plan = plan[: plan.rfind(".") + 1] or plan
    return plan


@dataclass
class _Reading:
    """What a trace tells, in the order in which it was seen."""

    receptacles: list[str]
    task: Task | None = None
    found_at: dict[str, str] = field(default_factory=dict)  # object -> the receptacle where it lay at first
    searched: list[str] = field(default_factory=list)  # receptacles whose contents were seen
    closed: set[str] = field(default_factory=set)  # receptacles found closed
    failed: Counter[str] = field(default_factory=Counter)  # command -> how often nothing happened
    done: dict[str, list[str]] = field(default_factory=dict)  # verb -> objects of the wanted type it was done to

    def wanted(self) -> list[str]:
        """Objects of the wanted type that were seen, those that did not lie at the goal first."""
        seen = [name for name in self.found_at if self.task and type_of(name) == self.task.object_type]
        return sorted(seen, key=lambda name: type_of(self.found_at[name]) == self.task.target_type)

    def nearest(self, kind: str) -> list[str]:
        """The receptacle of this type to use: the one looked at first, else the one numbered lowest; or none."""
        every = [name for name in self.receptacles if type_of(name) == kind]
        return ([name for name in self.searched if name in every] or every[::-1])[:1]


def _read(trace: EpisodeTrace) -> _Reading:
    receptacles, sentence = parse_opening(trace.opening)
    reading = _Reading(receptacles)
    for _, feedback in trace.steps:
        reading.closed.update(_CLOSED.findall(feedback))
        for receptacle, listing in _SURFACE.findall(feedback) + _INSIDE.findall(feedback):
            if receptacle not in reading.searched:
                reading.searched.append(receptacle)
            for name in names_in(listing):
                reading.found_at.setdefault(name, receptacle)
    reading.task = parse_task(sentence, set(map(type_of, reading.found_at)), set(map(type_of, receptacles)))
    for action, feedback in trace.steps:
        _note_command(reading, canonical(action), feedback.strip())
    return reading


def _note_command(reading: _Reading, action: str, feedback: str) -> None:
    if feedback == NOTHING:
        reading.failed[action] += 1
        return
    verb, *words = action.split()
    name, target = " ".join(words[:2]), " ".join(words[3:])  # verb, "tomato 1", preposition, "microwave 1"
    if reading.task is None or len(words) < 5 or type_of(name) != reading.task.object_type:
        return
    if verb == "put" and type_of(target) != reading.task.target_type:
        return
    objects = reading.done.setdefault(verb, [])
    if name not in objects:
        objects.append(name)


def _verdict(reading: _Reading) -> str:
    """How far this attempt came."""
    task, seen, done = reading.task, reading.wanted(), reading.done
    if task is None or not seen:
        what = f" and saw no {task.object_type}" if task else ""
        return f"I searched {_listed(reading.searched) or 'nothing'}{what}."
    held = done.get("take", [])
    if not held:
        return f"I saw {seen[0]} at {reading.found_at[seen[0]]} but did not take it."
    if task.treatment == "look":
        return f"I took {held[0]} but did not use {_a(task.target_type)} while holding it."
    if task.treatment and task.treatment not in done:
        return f"I took {held[0]} but did not {task.treatment} it."
    if len(seen) < task.count:
        return f"I found only one {task.object_type}."
    placed = done.get("put", [])
    if len(placed) < task.count:
        return f"I did not put {next((n for n in held if n not in placed), seen[-1])} in/on {_a(task.target_type)}."
    return f"I put {_listed(placed)} in/on {_a(task.target_type)}, which did not complete the task."


def _stuck(reading: _Reading) -> str:
    """A warning about the command that failed most, if it failed often."""
    for command, times in reading.failed.most_common(1):
        if times >= _REPEATS_NAMED:
            return f"'{' '.join(command.split()[:8])}' failed {times} times, I will not repeat it."
    return ""


def _plan(reading: _Reading) -> list[str]:
    """The commands to begin with next time."""
    task, seen = reading.task, reading.wanted()
    if task is None:
        return [_search(reading, "what the task names")]
    steps = []
    for name in seen[:1]:
        steps += [*_reach(reading, reading.found_at[name]), f"take {name} from {reading.found_at[name]}"]
        steps = _without_detours(steps + _finish(reading, name, task))
    steps += [f"do the same with {name} from {reading.found_at[name]}" for name in seen[1 : task.count]]
    if len(seen) < task.count:
        steps.append(_search(reading, f"another {task.object_type}" if seen else _a(task.object_type)))
    return steps


def _finish(reading: _Reading, name: str, task: Task) -> list[str]:
    """Commands from holding `name` to the goal."""
    if task.treatment == "look":
        lamps = [lamp for lamp in reading.found_at if type_of(lamp) == task.target_type]
        if not lamps:
            return [_search(reading, _a(task.target_type)), "use it"]
        return [f"go to {reading.found_at[lamps[0]]}", f"use {lamps[0]}"]
    steps = []
    for appliance in reading.nearest(_APPLIANCES.get(task.treatment, "")):
        steps += [f"go to {appliance}", f"{task.treatment} {name} with {appliance}"]
    for goal in reading.nearest(task.target_type):
        steps += [*_reach(reading, goal), f"put {name} in/on {goal}"]
    return steps


def _without_detours(commands: list[str]) -> list[str]:
    """Leaves out `go to` where the agent stands already and `open` of what is open: nothing would happen."""
    kept, here = [], ""
    for command in commands:
        goes = command.startswith("go to ")
        if (goes and command == here) or (command.startswith("open ") and command in kept):
            continue
        here = command if goes else here
        kept.append(command)
    return kept


def _search(reading: _Reading, what: str) -> str:
    untried = [name for name in reading.receptacles if name not in reading.searched]
    if not untried:
        return f"look for {what} everywhere again"
    return f"look for {what} in places that I never saw inside: {_listed(untried)}"


def _reach(reading: _Reading, receptacle: str) -> list[str]:
    unseen = receptacle not in reading.searched and type_of(receptacle) in _USUALLY_CLOSED
    opens = receptacle in reading.closed or unseen
    return [f"go to {receptacle}"] + ([f"open {receptacle}"] if opens else [])


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _listed(names: Sequence[str]) -> str:
    """The first four names and how many more there are."""
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def update_memory(trial_log_path: Path | str, env_configs: dict[str, dict], reflector: Reflector | None = None) -> dict:
    """The original's entry point: read `trial_<round>.log`, add a memory to each failed entry of `env_configs`.

    `env_configs` maps `env_<i>` to `{"memory": [...], "is_success": bool, "type": task type, ...}` and is returned
    with new memories in place. Raises FileNotFoundError for a missing log.
    """
    path = Path(trial_log_path)
    if not path.is_file():
        raise FileNotFoundError(f"trial log {path} does not exist; a run writes it to logging_results/")
    traces = parse_trial_log(path.read_text(encoding="utf-8"))
    reflector = reflector or RuleReflector()
    for key, config in env_configs.items():
        found = traces.get(int(key.rpartition("_")[2]))
        if config["is_success"] or found is None:
            continue
        trace = EpisodeTrace(key, config.get("type") or "", found.opening, found.steps, won=False)
        config["memory"] = update_memories([trace], {key: config["memory"]}, reflector)[key]
    return env_configs


def parse_trial_log(text: str) -> dict[int, EpisodeTrace]:
    """Episodes of a `trial_<round>.log` by environment number; what stands before the last opening is left out."""
    traces = {}
    blocks = re.findall(r"#####\s+Environment #(\d+):\n(.*?)\s+STATUS: (\w+)\s+#####", text, re.DOTALL)
    for number, episode, status in blocks:
        task = max(episode.rfind("Your task is to:"), 0)  # the last one: few-shot examples may stand before it
        start = max(episode.rfind("You are in the middle", 0, task), 0)  # `look` may answer the same words later
        head, *turns = re.split(r"^> ?", episode[start:], flags=re.MULTILINE)
        steps = tuple(turn.partition("\n")[::2] for turn in turns)
        steps = tuple((action.strip(), feedback.strip()) for action, feedback in steps)
        if steps and steps[-1] == ("", ""):  # the cue for an action that was not taken any more
            steps = steps[:-1]
        traces[int(number)] = EpisodeTrace(f"env_{number}", "", head.strip(), steps, status == "OK")
    return traces
