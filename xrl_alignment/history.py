"""The text around an episode: what the model is shown, and the ReAct history that an LLM expert is shown.

`build_prompt` is the one function that writes the model's input, for online training, offline data and evaluation.
docs/information.md shows an example of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from xrl_alignment.actions import process_ob

MEMORIES_SHOWN = 3  # the original shows at most the last three
STEPS_BEFORE_MEMORIES = 4  # memories give way once fewer than this many newest steps would fit
GAP = "...\n"  # stands for the steps that were left out
_FORMS = {"action": "> {}\n", "observation": "{}\n", "human_edit": "[human edit]: {}\n"}
_BANNER = "-="  # "-= Welcome to TextWorld, ALFRED! =-": the same in every game, so it tells nothing


@dataclass(frozen=True)
class EpisodeTrace:
    """One finished episode: what a reflector reads. `steps` are (action, feedback), oldest first."""

    game_id: str
    task_type: str
    opening: str
    steps: tuple[tuple[str, str], ...]
    won: bool


def opening(text: str) -> str:
    """The text after `reset` without TextWorld's banner and without blank lines: the room, then the task sentence."""
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith(_BANNER))


def task_sentence(text: str) -> str:
    """The sentence after `Your task is to: ` in an opening text, without its full stop; empty where there is none."""
    _, found, rest = text.partition("Your task is to: ")
    return rest.partition("\n")[0].strip().rstrip(".") if found else ""


def build_prompt(
    task: str,
    memories: Sequence[str],
    steps: Sequence[tuple[str, str]],
    *,
    budget: int | None = None,
    count: Callable[[str], int] = len,
) -> str:
    """The text that the model sees before it acts.

    The last three memories, the opening text `task` (room and task sentence), then `> action` and its feedback for
    each of `steps` (oldest first), and a last `> `. With a `budget` (in units of `count`; characters by default) the
    oldest steps are left out first, with one line `...` in their place; then memories, oldest first, as soon as fewer
    than four steps would fit; then all steps but the newest. Lines are never cut. Opening and newest step always
    stay: where these two alone are over the budget, so is the result.
    """
    head = opening(task) + "\n"
    shown = [_memory_line(memory) for memory in memories[-MEMORIES_SHOWN:]]
    turns = [_turn(action, feedback) for action, feedback in steps]
    text = "".join((*shown, head, *turns, "> "))
    if budget is None or count(text) <= budget:
        return text

    def shorter(first_memory: int, kept: int) -> str:
        left_out = len(turns) - kept
        return "".join((*shown[first_memory:], head, GAP if left_out else "", *turns[left_out:], "> "))

    for first_memory in range(len(shown) + 1):
        last_resort = first_memory == len(shown)
        least = min(len(turns), 1 if last_resort else STEPS_BEFORE_MEMORIES)
        if last_resort or count(shorter(first_memory, least)) <= budget:
            kept = _most(least, len(turns), lambda k, m=first_memory: count(shorter(m, k)) <= budget)
            return shorter(first_memory, kept)
    raise AssertionError("unreachable: the last turn of the loop returns")


class EnvironmentHistory:
    """The ReAct text of one episode for an LLM expert: examples, memories, opening, then actions and observations.

    `history` are dicts with `label` (`action`, `observation` or `human_edit`) and `value`. The episode counts as
    exhausted once the same action came `repeat_limit` times in a row (2: the original's rule; 0: never).
    """

    def __init__(
        self,
        base_query: str,
        start_info: str,
        memory: Sequence[str] = (),
        history: Iterable[dict[str, str]] = (),
        *,
        repeat_limit: int = 2,
    ) -> None:
        if repeat_limit < 0 or repeat_limit == 1:
            raise ValueError(f"repeat_limit is {repeat_limit}; use 0 (off) or at least 2 (the same action twice)")
        self._repeat_limit = repeat_limit
        self._query = _query(base_query, start_info, memory)
        self.reset()
        for item in history:
            self.add(item["label"], item["value"])

    def add(self, label: str, value: str) -> None:
        """Append one entry; raises ValueError for another label than action, observation, human_edit."""
        if label not in _FORMS:
            raise ValueError(f"history label {label!r} is unknown; use one of {', '.join(_FORMS)}")
        self._history.append({"label": label, "value": value})
        if label != "action":
            return
        self._repeats = self._repeats + 1 if value == self._last_action else 1
        self._last_action = value
        if self._repeat_limit and self._repeats >= self._repeat_limit:
            self._is_exhausted = True

    def check_is_exhausted(self) -> bool:
        """True once the same action came `repeat_limit` times in a row."""
        return self._is_exhausted

    def reset(self) -> None:
        """Forget all actions and observations; examples, memories and opening stay."""
        self._history: list[dict[str, str]] = []
        self._last_action: str | None = None
        self._repeats = 0
        self._is_exhausted = False

    def __str__(self) -> str:
        return self._query + "\n" + "".join(_FORMS[item["label"]].format(item["value"]) for item in self._history)


def _query(base_query: str, start_info: str, memory: Sequence[str]) -> str:
    parts = [base_query.rstrip()] if base_query.strip() else []
    if memory:
        parts.append("\nYour memory for the task below:")
        first = max(0, len(memory) - MEMORIES_SHOWN)
        parts.extend(f"Trial {first + i}:\n{text.strip()}" for i, text in enumerate(memory[first:]))
    parts.append(f"Here is the task:\n{start_info.strip()}")
    return "\n".join(parts)


def _memory_line(memory: str) -> str:
    return f"Memory: {' '.join(memory.split())}\n"


def _turn(action: str, feedback: str) -> str:
    feedback = process_ob(feedback).strip()
    return f"> {' '.join(action.split())}\n{feedback}\n" if feedback else f"> {' '.join(action.split())}\n"


def _most(least: int, most: int, fits: Callable[[int], bool]) -> int:
    """The largest number in `least..most` that fits, taking `least` for granted; bisection, `fits` is monotone."""
    while least < most:
        middle = (least + most + 1) // 2
        if fits(middle):
            least = middle
        else:
            most = middle - 1
    return least
