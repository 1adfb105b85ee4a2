"""The student's prompt: the text that the model sees before it acts.

`build_prompt` is the only function that writes the model's input, for online training, offline data and evaluation.
docs/information.md shows an example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from alfworld_native.language.sentences import process_ob, without_objects

MEMORIES_SHOWN = 3  # the original shows at most the last three
WHOLE_STEPS = 4  # the newest, which never lose their feedback; memories give way once fewer of them would fit
COUNTED, LONGEST_COUNTED = 1 << 14, 2000  # texts whose tokens `token_counter` remembers, and their characters at most
SHORTENED_BY = 8  # steps are shortened, or left out, in parts of the room that this many make up
GAP = "...\n"  # stands for the steps that were left out
CUE = "> "  # begins an action; the last one is the model's to continue
_BANNER = "-="  # "-= Welcome to TextWorld, ALFRED! =-": the same in every game


def opening(text: str) -> str:
    """The text after `reset` without TextWorld's banner and without blank lines: the room, then the task sentence."""
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith(_BANNER))


def build_prompt(
    task: str,
    memories: Sequence[str],
    steps: Sequence[tuple[str, str]],
    *,
    budget: int | None = None,
    count: Callable[[str], int] = len,
    tell_objects: bool = True,
) -> str:
    """The text that the model sees before it acts.

    The last three memories, the opening text `task` (room and task sentence), then `> action` and its feedback for
    each of `steps` (oldest first), and a last `> `. With a `budget` (in units of `count`; characters by default, see
    `token_counter` for tokens) the oldest steps lose their feedback first: what was done, and what the agent noted
    (`think: …`), takes a quarter of the room. Next the oldest steps are left out, with one line `...` in their place;
    then memories, oldest first, as soon as fewer than four steps would fit with their feedback; then all steps but the
    newest. Lines are never cut. Opening and newest step always stay, even if these two alone exceed the budget.
    Steps are shortened by whole eighths of the room, so that the prompts of the next steps begin as this one does: what
    a model has computed for it (its keys and values) serves them, too.

    The parts of the prompt are counted one by one, and their counts added up. Without `tell_objects` the steps say what
    happened, not what lies where: the image shows that.
    """
    head = opening(task) + "\n"
    shown = [f"Memory: {' '.join(memory.split())}\n" for memory in memories[-MEMORIES_SHOWN:]]
    turns = [_turn(action, feedback if tell_objects else without_objects(feedback)) for action, feedback in steps]
    if budget is not None:  # else the model may have to cut what is too long for it
        room, sizes = budget - count(head) - count(CUE), [count(turn) for turn in turns]
        # A memory is worth less than the steps of this attempt: the oldest one goes first.
        while shown:
            left = room - sum(map(count, shown))
            if left >= 0 and newest_that_fit(sizes, left, count(GAP)) >= min(len(turns), WHOLE_STEPS):
                break
            shown = shown[1:]
        room -= sum(map(count, shown))
        # The oldest steps lose their feedback; if that is not enough, the oldest steps are left out.
        unit = max(1, room // SHORTENED_BY)
        too_long = _rounded_up(sum(sizes) - room, unit)
        for i in range(len(turns) - WHOLE_STEPS):
            if too_long <= 0:
                break
            turns[i] = _turn(steps[i][0], "")
            too_long, sizes[i] = too_long - sizes[i] + count(turns[i]), count(turns[i])
        if sum(sizes) > room:
            too_long = _rounded_up(sum(sizes) - room + count(GAP), unit)
            gone = 0
            while too_long > 0 and gone < len(turns) - 1:
                too_long -= sizes[gone]
                gone += 1
            turns = turns[gone:]
    gap = GAP if len(turns) < len(steps) else ""
    return "".join((*shown, head, gap, CUE, *turns))


def trial_text(examples: str, task: str, memories: Sequence[str] = (), steps: Sequence[tuple[str, str]] = ()) -> str:
    """The ReAct text of an episode, as an LLM expert reads it and as `trial_<round>.log` keeps it.

    Worked `examples` (none: empty), the last three `memories` under their numbers among all, the opening text `task`,
    then `> action` and its feedback for each of `steps`, oldest first. The form is Reflexion's (Shinn et al. 2023).
    """
    parts = [examples.rstrip()] if examples.strip() else []
    if memories:
        first = max(0, len(memories) - MEMORIES_SHOWN)
        parts.append("\nYour memory for the task below:")
        parts.extend(f"Trial {first + i}:\n{text.strip()}" for i, text in enumerate(memories[first:]))
    parts.append(f"Here is the task:\n{task.strip()}\n")
    return "\n".join(parts) + "".join(f"> {action}\n{feedback}\n" for action, feedback in steps)


def token_counter(encode: Callable[[str], Sequence[int]]) -> Callable[[str], int]:
    """A `count` for `build_prompt` in tokens, from a tokenizer's `encode` (without special tokens).

    Counts are cached: an episode's prompt grows by one step at a time, so only the new step is encoded. The cache holds
    the texts themselves, so it is bounded in both directions: 16,384 turns of usual length take 7 MB, and a text longer
    than `LONGEST_COUNTED` is counted anew each time. Such a text is a whole prompt, which does not come again: an
    endpoint's account counts one for each call, and 65,536 of 30 kB would be 2 GB.
    """

    def count(text: str) -> int:
        return len(encode(text))

    cached = lru_cache(maxsize=COUNTED)(count)
    return lambda text: cached(text) if len(text) <= LONGEST_COUNTED else count(text)


def _turn(action: str, feedback: str) -> str:
    """A step and the cue of the next one. They are counted together: a tokenizer may join a line's end with the cue."""
    feedback = process_ob(feedback).strip()
    answer = f"{feedback}\n" if feedback else ""
    return f"{' '.join(action.split())}\n{answer}{CUE}"


def _rounded_up(amount: int, unit: int) -> int:
    """The smallest multiple of `unit` that is at least `amount`."""
    return -(-amount // unit) * unit


def newest_that_fit(sizes: Sequence[int], room: int, gap: int) -> int:
    """How many of the last `sizes` fit into `room`, beside a `gap` unless all of them fit; 0 if none does."""
    if sum(sizes) <= room:
        return len(sizes)
    room -= gap
    kept = 0
    for size in reversed(sizes):
        room -= size
        if room < 0:
            break
        kept += 1
    return kept
