"""The teacher: what all episodes of an LLM expert share, and the rules for asking it again.

`LLMExpert` (`expert.py`) follows one episode; `reflexion.llm.LLMReflector` asks the same teacher for new plans. The
model answers behind any endpoint with OpenAI's interface (`endpoint.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from lavis.common.errors import ConfigError
from xrl_alignment.agents.experts.llm.endpoint import LINE_ENDS, PROMPT_OVERHEAD, Completion, Endpoint
from xrl_alignment.agents.language.answers import MIN_ANSWER, ParsedAnswer, read_answer, without_reasoning

TRIES = 6  # the original's: after an answer shorter than MIN_ANSWER the model is asked again,
TEMPERATURE_STEP = 0.2  # each time at a temperature that is this much higher
HOTTEST = 2.0  # what endpoints take: more is an error, which would end the run
FILTERED = "9"  # the original's mark of a filtered answer: its text begins with it
_COMMANDS = (
    "go to <place>, take <object> from <place>, put <object> in/on <place>, open <place>, close <place>, "
    "use <object>, heat <object> with <place>, cool <object> with <place>, clean <object> with <place>, "
    "examine <object or place>, look, inventory"
)
# Tells a chat model to write one action on one line; with `thinking` it may write a thought in ReAct's form instead.
SYSTEM = (
    "You continue the record of a household task in a text game. Reply with the next single action only: one line, no "
    f"explanation, no list, no leading '>', nothing after it. Actions have these forms: {_COMMANDS}. Objects and "
    "places carry the numbers that the game gave them."
)
SYSTEM_THINKING = f"{SYSTEM} Instead of an action the line may be a short thought that begins with 'think:'."
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Teacher:
    """A language model as teacher: its endpoint, worked examples by ALFWorld task type, and the length of a prompt.

    `context_tokens` is the model's context, for prompt and answer together. With `grounding` an answer that is almost
    an admissible command becomes that command, if the environment lists its admissible commands. With `admissible` the
    model is shown that list and must choose from it. In one state it is asked up to `tries` times. Raises ConfigError
    if no prompt would fit.
    """

    endpoint: Endpoint
    examples: Mapping[str, Sequence[str]]
    context_tokens: int = 8192
    max_answer_tokens: int = 256
    temperature: float = 0.0
    thinking: bool = False
    grounding: bool = False
    admissible: bool = False
    tries: int = TRIES

    def __post_init__(self) -> None:
        """Check that the context has room for a prompt."""
        if self.budget <= 0:
            raise ConfigError(
                f"expert.context_tokens={self.context_tokens} leaves no room for a prompt beside "
                f"expert.max_answer_tokens={self.max_answer_tokens}"
            )

    @property
    def budget(self) -> int:
        """The number of tokens that a prompt may have."""
        return self.context_tokens - self.max_answer_tokens - PROMPT_OVERHEAD - self.count_tokens(self.system)

    @property
    def system(self) -> str:
        """The system message; completion models have none."""
        if self.endpoint.api != "chat":
            return ""
        return SYSTEM_THINKING if self.thinking else SYSTEM

    @property
    def pool(self) -> Executor:
        """Runs calls to this teacher at the same time."""
        return self.endpoint.pool

    def count_tokens(self, text: str) -> int:
        """The number of tokens of `text`, counted or estimated (`tokens.py`)."""
        return self.endpoint.count(text)

    def count_event(self, name: str) -> None:
        """Count one event of this process for `/status`: an answer without a label, a reflection by rule, …"""
        self.endpoint.account.count(name)

    def answer(self, prompt: str) -> ParsedAnswer | None:
        """The model's answer, read by the original's rule; None if it was filtered or refused.

        After an answer that is shorter than five characters or no command, the model is asked again, six times in all
        (`tries`), each time at a temperature that is 0.2 higher. If every answer was short, a short command (`look`)
        counts.

        Raises EndpointFault, BudgetSpent.
        """
        best = ParsedAnswer()
        for attempt in range(self.tries):
            completion = self.endpoint.complete(
                prompt,
                system=self.system,
                temperature=min(HOTTEST, self.temperature + attempt * TEMPERATURE_STEP),
                max_tokens=self.max_answer_tokens,
                stop=LINE_ENDS[self.endpoint.api],
            )
            if is_filtered(completion):
                _log.info("no label: %s", completion.filtered or completion.text)
                return None
            # An answer counts at once if its action is long enough or it is only a thought; else the next try, hotter.
            answer = read_answer(completion.text)
            if completion.cut and not answer.action:
                self.endpoint.note_cut(self.max_answer_tokens)
            if len(answer.action) >= MIN_ANSWER or (answer.thought and not answer.action):
                return answer
            best = answer if answer.action else best
        return best

    def write(self, prompt: str, *, system: str) -> str:
        """Free text for `prompt`, by the same rule; empty if the model gives none or it was filtered."""
        for attempt in range(TRIES):  # a plan has no form to check: only its length counts
            completion = self.endpoint.complete(
                prompt,
                system=system if self.endpoint.api == "chat" else "",
                temperature=min(HOTTEST, self.temperature + attempt * TEMPERATURE_STEP),
                max_tokens=self.max_answer_tokens,
            )
            if is_filtered(completion):
                return ""
            if completion.cut and not without_reasoning(completion.text).strip():
                self.endpoint.note_cut(self.max_answer_tokens)
            if len(completion.text.strip()) >= MIN_ANSWER:
                return completion.text
        return ""


def is_filtered(completion: Completion) -> bool:
    """Whether the endpoint withheld the answer, or a proxy says so with the original's mark."""
    return bool(completion.filtered) or completion.text.lstrip().startswith(FILTERED)
