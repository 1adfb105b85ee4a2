"""Prompts for an LLM that acts (ReAct, Yao et al. 2023, arXiv:2210.03629) or reflects (Reflexion), with examples.

The examples are files under `prompts/`; `python -m xrl_alignment.make_prompts` makes them from runs of the engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from alfworld_native.language.sentences import TASK_TYPES, process_ob
from lavis.common.errors import ConfigError, FileError, MissingFileError
from xrl_alignment.agents.language.history import EnvironmentHistory, EpisodeTrace
from xrl_alignment.agents.language.prompt import CUE, GAP, MEMORIES_SHOWN, newest_that_fit, opening
from xrl_alignment.common.errors import PromptTooLong

PREFIXES = {  # beginning of an ALFWorld task type -> its name in the prompts file (the original's table)
    "pick_and_place": "put",
    "pick_clean_then_place": "clean",
    "pick_heat_then_place": "heat",
    "pick_cool_then_place": "cool",
    "look_at_obj": "examine",
    "pick_two_obj": "puttwo",
}
# As many as ReAct's prompts for ALFWorld have, under the keys that its file uses (`react_put_0` to `react_put_2`).
EXAMPLES_PER_TYPE = 3
_REFLECT = (
    "Below is the record of a household task that you tried and did not complete. The same task in the same room "
    "will be given to you again. Do not retell what the room looks like. Find where your course of action went "
    "wrong, and write a short new plan that avoids it and names the exact actions to take. Here are two examples:"
)


def prompt_name(task_type: str) -> str:
    """The prompts file's name for an ALFWorld task type (or a game id): `pick_heat_then_place_in_recep` -> `heat`."""
    # No prefix begins another one, so their order does not matter.
    for prefix, name in PREFIXES.items():
        if task_type.startswith(prefix):
            return name
    raise ValueError(f"task type {task_type!r} is unknown; it should begin with one of {', '.join(PREFIXES)}")


def load_prompts(path: Path | str) -> dict[str, list[str]]:
    """Three ReAct examples for each ALFWorld task type, from the keys `react_<name>_<0..2>` of a JSON file.

    Raises MissingFileError for a missing file, FileError for one that cannot be read, ConfigError for one that is no
    JSON object of strings or lacks a task type; the message names file and key.
    """
    try:
        content = json.loads(read_examples("prompts file", path))
    except json.JSONDecodeError as error:
        raise ConfigError(f"prompts file {path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"prompts file {path} holds a {type(content).__name__}; expected an object of named examples")
    examples = {}
    for task_type in TASK_TYPES:
        keys = [f"react_{prompt_name(task_type)}_{i}" for i in range(EXAMPLES_PER_TYPE)]
        for key in keys:
            if not isinstance(content.get(key), str) or not content[key].strip():
                raise ConfigError(f"prompts file {path} has no example {key} for task type {task_type}; add it")
        examples[task_type] = [content[key].strip() for key in keys]
    return examples


def load_reflection_examples(path: Path | str) -> str:
    """The text of the two reflection examples; errors as `load_prompts`, ConfigError also for an empty file."""
    text = read_examples("reflection examples", path).strip()
    if not text:
        raise ConfigError(f"reflection examples {path} are empty; python -m xrl_alignment.make_prompts writes them")
    return text


def read_examples(what: str, path: Path | str) -> str:
    """The text of the file `path`; MissingFileError, FileError or ConfigError say what it was to be."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        message = f"{what}: {path} does not exist; python -m xrl_alignment.make_prompts writes it"
        raise MissingFileError(message) from error
    except OSError as error:
        raise FileError(f"{what}: {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what}: {path} is no text: {error}") from error


def few_shot_query(examples: Sequence[str], memories: Sequence[str] = ()) -> str:
    """The `base_query` of an `EnvironmentHistory`: three worked examples, two once the game has memories."""
    used = examples[: 2 if memories else EXAMPLES_PER_TYPE]  # as in the original: memories take the third one's room
    number = ("no examples", "one example", "two examples", "three examples")[len(used)]
    return f"Interact with a household to solve a task. Here are {number}.\n" + "\n".join(e.strip() for e in used)


def react_text(start: str, steps: Sequence[tuple[str, str]]) -> str:
    """An episode as ReAct text: opening, then `> action` and feedback in turn."""
    turns = (f"> {action}\n{feedback.strip()}" for action, feedback in steps)
    return "\n".join((opening(start), *turns))


def react_prompt(
    examples: Sequence[str],
    memories: Sequence[str],
    start: str,
    steps: Sequence[tuple[str, str]],
    *,
    budget: int | None = None,
    count: Callable[[str], int] = len,
) -> str:
    """What an LLM that acts is asked: examples, memories, opening, then `> action` and feedback in turn, a last `> `.

    With a `budget` (in units of `count`) the oldest steps are left out, with one line `...` in their place; examples,
    memories, opening and the newest step always stay, and no line is cut. Raises PromptTooLong if these alone are over
    the budget.
    """
    # What always stays, then the steps, then the cue; the steps get the room that the other two leave.
    head = str(EnvironmentHistory(few_shot_query(examples, memories), opening(start), memories))
    turns = [f"> {action}\n{process_ob(feedback).strip()}\n" for action, feedback in steps]
    if budget is None:
        return "".join((head, *turns, CUE))
    return "".join((head, *_fitting(turns, budget - count(head) - count(CUE), count), CUE))


def _fitting(turns: Sequence[str], room: int, count: Callable[[str], int]) -> list[str]:
    """The newest of `turns` that fit into `room`, after a line `...` if that is not all; at least one."""
    sizes = [count(turn) for turn in turns]
    kept = newest_that_fit(sizes, room, count(GAP))
    # Unlike the student's prompt, an LLM's is never over its budget: the endpoint would refuse it.
    if room < 0 or (turns and not kept):
        over = (sizes[-1] if sizes else 0) - room
        message = f"task, examples, memories and last step alone are {over} tokens over the prompt's budget"
        raise PromptTooLong(f"{message}; raise expert.context_tokens")
    # Here `kept` is 0 only without turns: a slice from -0 would be all of them.
    return list(turns) if kept == len(turns) else [GAP, *turns[-kept:]]


def reflection_query(
    trace: EpisodeTrace,
    memories: Sequence[str],
    examples: str,
    *,
    budget: int | None = None,
    count: Callable[[str], int] = len,
) -> str:
    """What an LLM is asked after a failed trial, in Reflexion's form (Shinn et al. 2023, arXiv:2303.11366).

    Two examples, the failed trial, the last three plans for this game, `New plan:`. Shortened like `react_prompt`.
    """
    head = f"{_REFLECT}\n\n{examples.strip()}\n\n{opening(trace.opening)}\n"
    turns = [f"> {action}\n{feedback.strip()}\n" for action, feedback in trace.steps]
    tail = "STATUS: FAIL\n\n"
    if memories:
        # The plans keep the numbers of their trials: of five plans the last three are "Trial #2" to "Trial #4".
        first = max(0, len(memories) - MEMORIES_SHOWN)
        plans = (f"Trial #{first + i}: {memory.strip()}\n" for i, memory in enumerate(memories[first:]))
        tail += f"Plans from past attempts:\n{''.join(plans)}\n"
    tail += "New plan:"
    shown = turns if budget is None else _fitting(turns, budget - count(head) - count(tail), count)
    return "".join((head, *shown, tail))
