"""ALFWorld's text actions: the answer is one command, such as `go to cabinet 1`.

A request brings the episode's text as its `prompt` (`xrl_alignment.history.build_prompt` writes it) and, if it likes,
the engine's admissible commands. `Blip2Emac` reads the prompt as it was trained to; a chat model is told the rules.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from policy_server.games.prompts import Question, Reading, with_notes
from xrl_alignment.actions import canonical, normalise

TASKS = {"ALFWorld": "household tasks in a text world"}
FALLBACK = "look"  # does nothing but describe the room once more

_INSTRUCTIONS = """You are in a house and do a household task by typing commands.
Commands: go to R, take O from R, put O in/on R, open R, close R, use O, heat O with R, cool O with R, clean O with R,
slice O with O, examine O, inventory, look; O is an object and R a place, with the number shown: go to cabinet 1.
The picture shows what you see. Answer with the next command alone, on one line."""


def question(task: str, prompt: str, commands: Sequence[str], history: Sequence[str]) -> Question:
    """The episode's text; ValueError without one. `history` does not apply: the prompt holds it."""
    if not prompt.strip():
        raise ValueError("task ALFWorld needs the episode's text in `prompt`")
    offered = f"\nThe commands that are possible now: {', '.join(commands)}." if commands else ""
    return Question(_INSTRUCTIONS + offered, prompt, tuple(commands))


def parse(text: str, commands: Sequence[str]) -> Reading:
    """The command in `text`; with `commands`, the one of them that was meant, or FALLBACK with the reason."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    labelled = [line for line in lines if line.lower().startswith(("action:", "command:"))]
    command = normalise(labelled[-1].partition(":")[2] if labelled else text)
    notes = []
    if not command:
        command, notes = FALLBACK, [f"no command found in the model's answer: {FALLBACK}"]
    elif commands:
        command, notes = _possible(command, {canonical(name): name for name in commands})
    return Reading({"command": command}, with_notes(text, notes), command)


def _possible(command: str, known: Mapping[str, str]) -> tuple[str, list[str]]:
    """What of `known` (canonical form -> the client's) was meant by `command`, and a note where it was changed."""
    if command in known:
        return known[command], []
    near = difflib.get_close_matches(command, known, n=1, cutoff=0.8)
    chosen = known[near[0]] if near else FALLBACK
    return chosen, [f"{command[:80]!r} is not possible now: {chosen}"]
