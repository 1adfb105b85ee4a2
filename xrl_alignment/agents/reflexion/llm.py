"""The reflector that asks a language model for a new plan, as the original does (Reflexion, Shinn et al. 2023)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from xrl_alignment.agents.language.answers import without_reasoning
from xrl_alignment.agents.language.history import EpisodeTrace
from xrl_alignment.agents.language.react import reflection_query
from xrl_alignment.agents.reflexion.rule import RuleReflector

if TYPE_CHECKING:  # the client library below it takes a second to import
    from xrl_alignment.agents.experts.llm.teacher import Teacher

_SYSTEM = (
    "You help an agent that failed a household task in a text game and will try it again. Reply with its new plan "
    "only: one paragraph of at most 80 words in the first person that names the exact actions to take, without heading "
    "or list."
)
_PLAN_HEADING = re.compile(r"^[*#\s]*(?:new plan|plan|reflection)[*\s]*:[*\s]*", re.IGNORECASE)
_PLAN_WORDS = 150  # the student's prompt contains three memories


class LLMReflector:
    """Advice from a language model; from `RuleReflector` for an episode about which the model says nothing.

    `examples` are two worked reflections (`language.react.load_reflection_examples`). The same episode gets the same
    answer, from the writer's cache.
    """

    name = "llm"

    def __init__(self, writer: Teacher, examples: str) -> None:
        self.writer = writer
        self.pool: Executor = writer.pool  # runs `reflect` for many episodes at the same time
        self.examples = examples
        self._fallback = RuleReflector()

    def reflect(self, trace: EpisodeTrace, memories: Sequence[str]) -> str:
        """See `Reflector`. Raises EndpointFault, BudgetSpent."""
        writer = self.writer
        query = reflection_query(trace, memories, self.examples, budget=writer.budget, count=writer.count_tokens)
        text = without_reasoning(writer.write(query, system=_SYSTEM))
        # The plan is the answer's first paragraph without its heading ("New plan:"), as one line.
        paragraphs = [part.strip() for part in text.split("\n\n") if part.strip()]
        words = _PLAN_HEADING.sub("", paragraphs[0]).split() if paragraphs else []
        plan = " ".join(words[:_PLAN_WORDS])
        if len(words) > _PLAN_WORDS:  # without an incomplete last sentence, unless it is the only one
            plan = plan[: plan.rfind(".") + 1] or plan
        if plan:
            return plan
        writer.count_event("reflections_by_rule")
        return self._fallback.reflect(trace, memories)
