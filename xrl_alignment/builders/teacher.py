"""Builds the teacher (a language model as expert) and the reflector from their settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xrl_alignment.common.paths import REPO_ROOT
from xrl_alignment.config.schema import ExpertConfig, ReflexionConfig
from xrl_alignment.experts.llm.accounting import Account, Pace, Prices
from xrl_alignment.experts.llm.answer_cache import AnswerCache
from xrl_alignment.language.react import load_prompts, load_reflection_examples
from xrl_alignment.reflexion.reflexion import LLMReflector, Reflector, RuleReflector

PROMPTS = REPO_ROOT / "prompts"


@dataclass(frozen=True)
class Teaching:
    """Who writes memories, what `make_expert` needs beside the expert's name, and the book of what calls cost.

    `reflector` is None without Reflexion, `account` without a language model.
    """

    reflector: Reflector | None
    expert_options: dict[str, Any]
    account: Account | None = None
    endpoint: Any = None

    def close(self) -> None:
        """End waits and connections, close book and cache."""
        if self.endpoint:
            self.endpoint.close()
            self.endpoint.cache.close()
            self.account.close()


def build_teaching(expert: ExpertConfig, reflexion: ReflexionConfig, *, thinking: bool = False) -> Teaching:
    """The parts of the `expert:` and `reflexion:` sections; no endpoint is made where no language model is used.

    With `thinking` the model is told that it may think aloud. Raises EndpointFault (no key, no model),
    FileNotFoundError or ValueError (prompts, tokenizer, cache).
    """
    by_model = reflexion.reflector == "llm" or (reflexion.reflector == "auto" and expert.name == "openai")
    if expert.name != "openai" and not (reflexion.enabled and by_model):
        return Teaching(RuleReflector() if reflexion.enabled else None, {})
    teacher = make_teacher(expert, thinking=thinking)
    reflector: Reflector | None = None
    if reflexion.enabled:
        examples = expert.reflection_examples or PROMPTS / "reflexion_few_shot_examples.txt"
        reflector = LLMReflector(teacher, load_reflection_examples(examples)) if by_model else RuleReflector()
    options = {"teacher": teacher} if expert.name == "openai" else {}
    return Teaching(reflector, options, teacher.endpoint.account, teacher.endpoint)


def make_teacher(settings: ExpertConfig, *, thinking: bool = False) -> Any:
    """The `experts.openai.Teacher` of an `expert:` section."""
    from xrl_alignment.experts.llm.endpoint import Endpoint  # here: the client library takes a second to import
    from xrl_alignment.experts.llm.teacher import Teacher
    from xrl_alignment.experts.llm.tokens import counter_for

    prices = Prices(
        settings.price_prompt, settings.price_cached_prompt or settings.price_prompt, settings.price_completion
    )
    endpoint = Endpoint(
        model=settings.model,
        base_url=settings.base_url,
        api=settings.api,
        api_version=settings.api_version,
        key_variable=settings.key_variable,
        timeout_s=settings.timeout_s,
        max_attempts=settings.max_attempts,
        concurrency=settings.concurrency,
        pace=Pace(settings.calls_per_minute),
        account=Account(prices=prices, max_calls=settings.max_calls, max_cost_usd=settings.max_cost_usd),
        cache=AnswerCache(settings.cache or None),
        count=counter_for(settings.model, settings.tokenizer),
    )
    return Teacher(
        endpoint=endpoint,
        examples=load_prompts(settings.prompts or PROMPTS / "alfworld_3prompts.json"),
        context_tokens=settings.context_tokens,
        max_answer_tokens=settings.max_answer_tokens,
        temperature=settings.temperature,
        thinking=thinking,
        grounding=settings.ground,
    )
