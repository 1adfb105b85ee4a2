"""ALFWorld: the model's answer becomes one text command, such as `go to cabinet 1`.

A request brings the episode's text in `prompt` (`build_prompt` of the online part writes it) and, optionally, the
admissible commands from the game's engine. `Blip2Emac` reads this text as in training. A chat model also reads the
instructions below.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from alfworld_native.language.commands import canonical, normalise
from policy_server.games.prompts import ModelPrompt, ParsedAction, PromptError, with_notes
from xrl_alignment.agents.language.answers import ground, read_answer, without_reasoning
from xrl_alignment.agents.language.prompt import CUE

TASKS = {"ALFWorld": "household tasks in a text world"}
FALLBACK = "look"  # only describes the room again

# What an LLM expert's prompt has before the episode (`agents.language.react`): worked examples, this game's memories.
_TASK, _MEMORIES = "Here is the task:\n", "Your memory for the task below:\n"
_TRIAL = re.compile(r"^Trial \d+:\n", re.MULTILINE)

_INSTRUCTIONS = """You are in a house and do a household task by typing commands.
Commands: go to R, take O from R, put O in/on R, open R, close R, use O, heat O with R, cool O with R, clean O with R,
slice O with O, examine O, inventory, look; O is an object and R a place, with the number shown: go to cabinet 1.
The picture shows what you see. Answer with the next command alone, on one line."""


def model_prompt(task: str, prompt: str, commands: Sequence[str], history: Sequence[str]) -> ModelPrompt:
    """The episode's text as the model reads it. `history` has no effect: the text contains it.

    Raises PromptError if `prompt` is empty.
    """
    if not prompt.strip():
        raise PromptError("task ALFWorld needs the episode's text in `prompt`")
    offered = f"\nThe commands that are possible now: {', '.join(commands)}." if commands else ""
    return ModelPrompt(_INSTRUCTIONS + offered, prompt, tuple(commands))


def parse(text: str, commands: Sequence[str]) -> ParsedAction:
    """The command in `text`, read as `read_answer` does, or else its first line.

    If `commands` is not empty: the one that it means, see `ground`, or FALLBACK.
    """
    said = without_reasoning(text)
    labelled = [line for line in map(str.strip, said.splitlines()) if line.lower().startswith(("action:", "command:"))]
    labelled = [found for line in labelled if (found := line.partition(":")[2])]
    if labelled:  # the last one: a model that reasons may name several, and ends with the one that it means
        said = labelled[-1]
    command = read_answer(said).action or normalise(said)
    notes: list[str] = []
    if not command:
        command, notes = FALLBACK, [f"no command found in the model's answer: {FALLBACK}"]
    elif commands:
        # Compared in the canonical form, answered in the client's own.
        known = {canonical(normalise(name)): name for name in commands}
        chosen = known.get(ground(command, list(known)), FALLBACK)
        if command not in known and command != FALLBACK:
            notes = [f"{command[:80]!r} is not possible now: {chosen}"]
        command = chosen
    return ParsedAction({"command": command}, with_notes(text, notes), command)


def episode_text(turns: Sequence[tuple[str, str]], write: Callable[..., str]) -> str:
    """A conversation as the text that a student reads in training; `write` is `build_prompt` for that student.

    `turns` are (role, text). The first message of the user is the game's opening, the student's messages are its
    actions, the user's later ones the feedback; what the system says is left out, for training has no instructions. An
    LLM expert's prompt, one message with worked examples and the steps so far, gives memories, opening and steps. One
    message that ends with `> ` is a student's text already and stays as it is. Raises PromptError for a conversation
    that the user does not begin.
    """
    said = [(role, text) for role, text in turns if role != "system"]
    if not said or said[0][0] != "user":
        raise PromptError("a conversation begins with a message of the user: the game's opening text")
    first = said[0][1]
    if len(said) == 1 and first.endswith(CUE) and _TASK not in first:
        return first
    before, found, episode = first.rpartition(_TASK)
    memories = []
    if found and _MEMORIES in before:
        memories = [text.strip() for text in _TRIAL.split(before.rpartition(_MEMORIES)[2])[1:]]
    opening, *lines = re.split(r"^> ?", episode, flags=re.MULTILINE)
    steps = [(action, feedback) for action, _, feedback in (line.partition("\n") for line in lines) if action]
    for role, text in said[1:]:
        if role == "assistant":
            steps.append((str(parse(text, ()).action["command"]), ""))  # as an answer is read
        elif steps:
            action, feedback = steps[-1]
            steps[-1] = (action, f"{feedback}\n{text}".strip())
        else:
            opening += "\n" + text
    return write(opening, memories, steps)
