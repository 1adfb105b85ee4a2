"""The language model as expert: reads the ReAct text of an episode and writes the next action.

Any endpoint with OpenAI's interface (see `endpoint.py`). The text is the original's (Yao et al. 2023, ReAct, with
Reflexion memories): worked examples of the task type, this game's memories, room and task, actions and answers. The
picture is not shown.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from xrl_alignment.experts.base import Label
from xrl_alignment.experts.llm.endpoint import PROMPT_OVERHEAD, Completion, Endpoint
from xrl_alignment.language.answers import MIN_ANSWER, ParsedAnswer, ground, read_answer
from xrl_alignment.language.react import PREFIXES, prompt_name, react_prompt
from xrl_alignment.language.sentences import parse_opening, parse_task

TRIES = 6  # the original's: an answer shorter than MIN_ANSWER is asked for again,
TEMPERATURE_STEP = 0.2  # each time this much hotter
MAX_THOUGHTS = 3  # thoughts before one action; then there is no label
FILTERED = "9"  # the original's sign for a filtered answer: it begins with it
_TREATED = {"clean": "pick_clean_then_place", "heat": "pick_heat_then_place", "cool": "pick_cool_then_place"}
_COMMANDS = (
    "go to <place>, take <object> from <place>, put <object> in/on <place>, open <place>, close <place>, "
    "use <object>, heat <object> with <place>, cool <object> with <place>, clean <object> with <place>, "
    "examine <object or place>, look, inventory"
)
_SYSTEM = (
    "You continue the record of a household task in a text game. Reply with the next single action only: one line, no "
    f"explanation, no list, no leading '>', nothing after it. Actions have these forms: {_COMMANDS}. Objects and "
    "places carry the numbers that the game gave them."
)
_SYSTEM_THINKING = f"{_SYSTEM} Instead of an action the line may be a short thought that begins with 'think:'."
_log = logging.getLogger(__name__)


def system_message(thinking: bool) -> str:
    """What holds a chat model to one action on one line; with `thinking` also to thoughts in ReAct's form."""
    return _SYSTEM_THINKING if thinking else _SYSTEM


@dataclass(frozen=True)
class Teacher:
    """What all episodes' experts share: endpoint, worked examples by ALFWorld task type, the prompt's budget.

    `context_tokens` are the model's, for prompt and answer together. With `grounding` an answer that just misses an
    admissible command becomes that command, where the environment tells which those are.
    """

    endpoint: Endpoint
    examples: Mapping[str, Sequence[str]]
    context_tokens: int = 8192
    max_answer_tokens: int = 256
    temperature: float = 0.0
    thinking: bool = False
    grounding: bool = False

    def __post_init__(self) -> None:
        """Check that a prompt has room beside the answer."""
        if self.budget <= 0:
            raise ValueError(
                f"expert.context_tokens={self.context_tokens} leaves no room for a prompt beside "
                f"expert.max_answer_tokens={self.max_answer_tokens}"
            )

    @property
    def budget(self) -> int:
        """Tokens that a prompt may have."""
        return self.context_tokens - self.max_answer_tokens - PROMPT_OVERHEAD - self.endpoint.count(self.system)

    @property
    def system(self) -> str:
        """The system message; completion models have none."""
        return system_message(self.thinking) if self.endpoint.api == "chat" else ""

    def answer(self, prompt: str) -> ParsedAnswer | None:
        """The model's answer by the original's rule, None where it was filtered or refused.

        What is shorter than five characters, or no command at all, is asked for again, six times in all, each 0.2
        hotter; then a short command (`look`) counts after all.
        """
        best = ParsedAnswer()
        for attempt in range(TRIES):
            completion = self.endpoint.complete(
                prompt,
                system=self.system,
                temperature=self.temperature + attempt * TEMPERATURE_STEP,
                max_tokens=self.max_answer_tokens,
                # A chat model's answer may begin with an empty line, and its reasoning has many.
                stop=("\n",) if self.endpoint.api == "completion" else (),
            )
            if is_filtered(completion):
                _log.info("no label: %s", completion.filtered or completion.text)
                return None
            answer = read_answer(completion.text)
            if len(answer.action) >= MIN_ANSWER or (answer.thought and not answer.action):
                return answer
            best = answer if answer.action else best
        return best

    def write(self, prompt: str, *, system: str) -> str:
        """Free text for `prompt`, by the same rule; empty where the model gives none or it was filtered."""
        for attempt in range(TRIES):
            completion = self.endpoint.complete(
                prompt,
                system=system if self.endpoint.api == "chat" else "",
                temperature=self.temperature + attempt * TEMPERATURE_STEP,
                max_tokens=self.max_answer_tokens,
            )
            if is_filtered(completion):
                return ""
            if len(completion.text.strip()) >= MIN_ANSWER:
                return completion.text
        return ""


def is_filtered(completion: Completion) -> bool:
    """The endpoint gave no answer on purpose; also where a proxy says so in the original's way."""
    return bool(completion.filtered) or completion.text.lstrip().startswith(FILTERED)


class OpenAIExpert:
    """Follows one episode; all episodes share a `Teacher`."""

    name = "openai"

    def __init__(self, teacher: Teacher) -> None:
        self.teacher = teacher
        self._intro = ""
        self._memories: tuple[str, ...] = ()
        self._examples: Sequence[str] = ()
        self._forget()

    @property
    def pool(self) -> Executor:
        """Where to ask it, so that many episodes are asked at once."""
        return self.teacher.endpoint.pool

    def begin(self, intro: str, *, task_type: str = "", memories: Sequence[str] = ()) -> None:
        """See `Expert`; the worked examples are those of `task_type`, else of what the task sentence says."""
        self._intro = intro
        self._memories = tuple(memories)
        self._examples = self.teacher.examples.get(_full_type(task_type, intro, self.teacher.examples), ())
        self._forget()

    def observe(self, action: str, feedback: str) -> None:
        """See `Expert`; its own thoughts before this action stay in the record, as in the original."""
        self._steps += [(f"think: {thought}", "OK.") for thought in self._thoughts]
        self._steps.append((action, feedback))
        self._thoughts = []
        self._label = None

    def act(self, information: Mapping[str, Any] | None = None) -> Label:
        """Ask the model, once for each state; no action where it gave none. Raises EndpointFault, BudgetSpent."""
        if self._label is None:
            self._label = self._ask((information or {}).get("admissible_commands") or ())
            if self._label.action is None:
                self.teacher.endpoint.account.count("no_label")
        return self._label

    def _forget(self) -> None:
        self._steps: list[tuple[str, str]] = []
        self._thoughts: list[str] = []
        self._label: Label | None = None

    def _ask(self, admissible: Sequence[str]) -> Label:
        while True:
            answer = self.teacher.answer(self.prompt())
            if answer is None:
                return self._say(None)
            if answer.thought:
                self._thoughts.append(answer.thought)
            if answer.action:
                return self._say(self._grounded(answer.action, admissible))
            if not answer.thought or len(self._thoughts) >= MAX_THOUGHTS:
                return self._say(None)

    def _say(self, action: str | None) -> Label:
        return Label(action, " ".join(self._thoughts))

    def prompt(self) -> str:
        """What the model is asked in this state."""
        steps = [*self._steps, *((f"think: {thought}", "OK.") for thought in self._thoughts)]
        teacher = self.teacher
        return react_prompt(
            self._examples, self._memories, self._intro, steps, budget=teacher.budget, count=teacher.endpoint.count
        )

    def _grounded(self, action: str, admissible: Sequence[str]) -> str:
        if not self.teacher.grounding:
            return action
        grounded = ground(action, admissible)
        if grounded != action:
            self.teacher.endpoint.account.count("grounded")
        return grounded


def _full_type(task_type: str, intro: str, known: Mapping[str, Any]) -> str:
    """ALFWorld's task type from a game id or, where that does not begin with one, from the task sentence."""
    if not task_type.startswith(tuple(PREFIXES)):
        task = parse_task(parse_opening(intro)[1])
        task_type = "pick_and_place"
        if task:
            task_type = _TREATED.get(task.treatment, task_type)
            task_type = "look_at_obj" if task.treatment == "look" else task_type
            task_type = "pick_two_obj" if task.count == 2 else task_type
    name = prompt_name(task_type)
    return next((full for full in known if prompt_name(full) == name), "")
