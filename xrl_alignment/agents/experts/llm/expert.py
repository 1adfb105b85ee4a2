"""The language model as expert: it reads the ReAct text of an episode and writes the next action.

The prompt has the original's form (ReAct, Yao et al. 2023, arXiv:2210.03629, with Reflexion memories): worked
examples of the task type, this game's memories, room and task, then actions and observations. It sees no image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from alfworld_native.experts.base import Label
from alfworld_native.language.commands import MAX_THOUGHTS
from alfworld_native.language.sentences import parse_opening, parse_task
from lavis.common.errors import ConfigError
from xrl_alignment.agents.experts.llm.teacher import Teacher
from xrl_alignment.agents.language.answers import ground
from xrl_alignment.agents.language.prompt import CUE
from xrl_alignment.agents.language.react import PREFIXES, prompt_name, react_prompt

_TREATED = {"clean": "pick_clean_then_place", "heat": "pick_heat_then_place", "cool": "pick_cool_then_place"}


class LLMExpert:
    """Follows one episode; the experts of all episodes share a `Teacher`."""

    name = "openai"

    def __init__(self, teacher: Teacher) -> None:
        self.teacher = teacher
        self.pool: Executor = teacher.pool  # runs `act` for many episodes at the same time
        # See `Expert`; the task's type chooses the worked examples.
        listed = teacher.admissible or teacher.grounding
        self.reads: tuple[str, ...] = ("text", "task_type", *(("admissible_commands",) if listed else ()))
        self._intro = ""
        self._memories: tuple[str, ...] = ()
        self._examples: Sequence[str] = ()
        self._steps: list[tuple[str, str]] = []
        self._admissible: tuple[str, ...] = ()
        self._thoughts: list[str] = []  # since the last executed action
        self._label: Label | None = None

    def begin(self, intro: str, *, task_type: str = "", memories: Sequence[str] = ()) -> None:
        """See `Expert`; `task_type` chooses the worked examples, the task sentence does if there is no known type."""
        self._intro = intro
        self._memories = tuple(memories)
        # ALFWorld's task type: from a game id that begins with one. Other engines may have ids without a type; the
        # task's words tell it.
        if not task_type.startswith(tuple(PREFIXES)):
            task = parse_task(parse_opening(intro)[1])
            task_type = "pick_and_place"
            if task:
                task_type = _TREATED.get(task.treatment, task_type)
                task_type = "look_at_obj" if task.treatment == "look" else task_type
                task_type = "pick_two_obj" if task.count > 1 else task_type
        name = prompt_name(task_type)
        self._examples = next((known for full, known in self.teacher.examples.items() if prompt_name(full) == name), ())
        self._steps, self._thoughts, self._label = [], [], None

    def observe(self, action: str, feedback: str) -> None:
        """See `Expert`; the model's thoughts before this action stay in the text, as in the original."""
        self._steps += [(f"think: {thought}", "OK.") for thought in self._thoughts]
        self._steps.append((action, feedback))
        self._thoughts = []
        self._label = None

    def act(self, information: Mapping[str, Any] | None = None) -> Label:
        """Ask the model, once for each state; the label has no action if the model gives none.

        Raises EndpointFault, BudgetSpent; ConfigError if the model has to choose from admissible commands and the
        observation has none.
        """
        if self._label is None:
            self._admissible = tuple((information or {}).get("admissible_commands") or ())
            if self.teacher.admissible and not self._admissible:
                raise ConfigError("expert.decode=admissible: an observation came without admissible_commands")
            action = self._ask()
            if action is None:
                self.teacher.count_event("no_label")
            self._label = Label(action, " ".join(self._thoughts))
        return self._label

    def prompt(self) -> str:
        """The prompt for this state; with `teacher.admissible` a list of commands stands before the last `> `."""
        steps = [*self._steps, *((f"think: {thought}", "OK.") for thought in self._thoughts)]
        teacher = self.teacher
        listed = f"Admissible commands: {' | '.join(self._admissible)}\n" if teacher.admissible else ""
        budget = teacher.budget - teacher.count_tokens(listed)
        text = react_prompt(
            self._examples, self._memories, self._intro, steps, budget=budget, count=teacher.count_tokens
        )
        # The cue stays last: the model continues behind it.
        return text.removesuffix(CUE) + listed + CUE

    def _ask(self) -> str | None:
        """The command that the model means; None if it names none, or none of a list from which it has to choose."""
        teacher = self.teacher
        # A thought is no action: it becomes a part of the text ("> think: …", "OK."), and the model is asked again.
        while True:
            answer = teacher.answer(self.prompt())
            if answer is None:
                return None
            if answer.thought:
                self._thoughts.append(answer.thought)
            if answer.action:
                break
            if not answer.thought or len(self._thoughts) >= MAX_THOUGHTS:  # a game answers no more of them, either
                return None
        if not (teacher.grounding or teacher.admissible):
            return answer.action
        # A command that just misses an admissible one ("take mug" for "take mug 1 from desk 1") stands for that one.
        grounded = ground(answer.action, self._admissible)
        if grounded != answer.action:
            teacher.count_event("grounded")
        return None if teacher.admissible and grounded not in self._admissible else grounded
