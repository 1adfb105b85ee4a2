"""Builds the teacher (a language model as expert) and the reflector from the `expert:` and `reflexion:` sections."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alfworld_native.games import cache_root
from lavis.common.paths import REPO_ROOT
from xrl_alignment.agents.experts.llm.accounting import Account, Pace, Prices
from xrl_alignment.agents.experts.llm.answer_cache import AnswerCache
from xrl_alignment.agents.language.react import load_prompts, load_reflection_examples
from xrl_alignment.agents.reflexion.base import Reflector
from xrl_alignment.agents.reflexion.llm import LLMReflector
from xrl_alignment.agents.reflexion.rule import RuleReflector
from xrl_alignment.settings.endpoint import EndpointConfig
from xrl_alignment.settings.schema import ExpertConfig, ReflexionConfig

if TYPE_CHECKING:  # the client library takes a second to import, and most runs ask no language model
    from xrl_alignment.agents.experts.llm.endpoint import Endpoint
    from xrl_alignment.agents.experts.llm.teacher import Teacher

PROMPTS = REPO_ROOT / "prompts"


@dataclass(frozen=True)
class TeacherParts:
    """What a run needs of its teacher: the reflector, the options of `make_expert`, and the account of what calls cost.

    `reflector` is None without Reflexion; `account` and `endpoint` are None without a language model.
    """

    reflector: Reflector | None
    expert_options: dict[str, Any]
    account: Account | None = None
    endpoint: Endpoint | None = None

    def close(self) -> None:
        """End waiting calls, close connections, account and cache."""
        if self.endpoint:
            self.endpoint.close()
            self.endpoint.cache.close()
            self.endpoint.account.close()


def expert_options(name: str, teacher: TeacherParts, *, tell_objects: bool, notes: bool = False) -> dict[str, Any]:
    """`make_expert`'s options for the expert called `name`.

    If the model's text does not tell what lies where, the explorer's thoughts are notes of what the image shows; with
    `notes` they are notes in any case.
    """
    return {"notes": True} if name == "explorer" and (notes or not tell_objects) else dict(teacher.expert_options)


def asks_model(expert: ExpertConfig, reflexion: ReflexionConfig) -> bool:
    """Whether a language model labels or writes memories."""
    return expert.name == "openai" or (reflexion.enabled and reflexion.reflector == "llm")


def build_teacher(expert: ExpertConfig, reflexion: ReflexionConfig, *, thinking: bool = False) -> TeacherParts:
    """Build the parts; an endpoint is made only if the expert or the reflector is a language model.

    With `thinking` the model may write a thought before its action. Raises EndpointFault (no key, no model),
    MissingFileError or ConfigError (prompts, tokenizer, cache).
    """
    by_model = reflexion.reflector == "llm" or (reflexion.reflector == "auto" and expert.name == "openai")
    if not asks_model(expert, reflexion):
        return TeacherParts(RuleReflector() if reflexion.enabled else None, {})
    # One teacher for both: its endpoint keeps pace, budget and answers for labels and memories together.
    teacher = _teacher(expert, thinking)
    reflector: Reflector | None = None
    if reflexion.enabled:
        examples = expert.reflection_examples or PROMPTS / "reflexion_few_shot_examples.txt"
        reflector = LLMReflector(teacher, load_reflection_examples(examples)) if by_model else RuleReflector()
    # A teacher that only reflects labels nothing: the expert has its own name then.
    options = {"teacher": teacher} if expert.name == "openai" else {}
    return TeacherParts(reflector, options, teacher.endpoint.account, teacher.endpoint)


def answers_file(setting: str) -> Path | None:
    """The file that `expert.cache` means; None if answers are not kept."""
    if setting != "auto":
        return Path(setting) if setting else None
    before = Path("output/expert_answers.sqlite")  # of versions that had this default: its answers are paid for
    return before if before.is_file() else cache_root() / before.name


def build_endpoint(settings: EndpointConfig, cache: Path | None) -> Endpoint:
    """The endpoint of a section's settings, with its prices and limits; answers are kept in the file `cache`.

    Raises EndpointFault (no key, no model) or ConfigError (address, cache).
    """
    from xrl_alignment.agents.experts.llm.endpoint import Endpoint

    # Without a price of their own, cached tokens are counted at the full one: never less than what is paid.
    prices = Prices(
        settings.price_prompt, settings.price_cached_prompt or settings.price_prompt, settings.price_completion
    )
    return Endpoint(
        section=settings.section,
        model=settings.model,
        base_url=settings.base_url,
        api=settings.api,
        api_version=settings.api_version,
        key_variable=settings.key_variable,
        timeout_s=settings.timeout_s,
        max_attempts=settings.max_attempts,
        concurrency=settings.concurrency,
        pace=Pace(settings.calls_per_minute),
        account=Account(
            prices=prices,
            max_calls=settings.max_calls,
            max_cost_usd=settings.max_cost_usd,
            section=settings.section,
        ),
        cache=AnswerCache(cache, section=settings.section),
    )


def _teacher(settings: ExpertConfig, thinking: bool) -> Teacher:
    from xrl_alignment.agents.experts.llm.teacher import Teacher
    from xrl_alignment.agents.experts.llm.tokens import counter_for

    endpoint = build_endpoint(settings, answers_file(settings.cache))
    examples = load_prompts(settings.prompts or PROMPTS / "alfworld_3prompts.json")
    endpoint.count = counter_for(settings.model, settings.tokenizer)  # last, for it logs what it chose
    return Teacher(
        endpoint=endpoint,
        examples=examples,
        context_tokens=settings.context_tokens,
        max_answer_tokens=settings.max_answer_tokens,
        temperature=settings.temperature,
        thinking=thinking,
        grounding=settings.ground,
        admissible=settings.decode == "admissible",
        tries=settings.tries,
    )
