"""A planner behind an endpoint with OpenAI's interface: OpenAI, vLLM, `transformers serve`.

A tuned adapter is handed over by name: `use_adapter` loads it into a running vLLM server (its dynamic LoRA interface)
and asks that name from then on. Other servers know adapters by their folder (`transformers serve`) or at their start.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lavis.common.errors import ConfigError
from xrl_alignment.agents.language.answers import without_reasoning
from xrl_alignment.common.errors import EndpointFault
from xrl_alignment.planning.planners.base import JUDGE_SYSTEM, SYSTEM, PlanAnswer, Planner, PlanQuestion, plan_prompt

if TYPE_CHECKING:  # the client library takes a second to import
    from xrl_alignment.agents.experts.llm.endpoint import Endpoint


class EndpointPlanner(Planner):
    """Asks one model; calls run at the same time. `examples` are shown before each question.

    `context_tokens` is the model's context, for prompt and answer together; ConfigError if no prompt would fit.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        examples: str = "",
        context_tokens: int = 8192,
        max_answer_tokens: int = 128,
        temperature: float = 0.0,
    ) -> None:
        from xrl_alignment.agents.experts.llm.endpoint import LINE_ENDS, PROMPT_OVERHEAD

        self.endpoint = endpoint
        self._stop = LINE_ENDS[endpoint.api]
        self.examples = examples
        self.max_answer_tokens = max_answer_tokens
        self.temperature = temperature
        self._chat = endpoint.api == "chat"
        # The longer of the two system messages: then plans and judgements have one budget, and one prompt is cut alike.
        system = max(endpoint.count(SYSTEM), endpoint.count(JUDGE_SYSTEM)) if self._chat else 0
        self._budget = context_tokens - max_answer_tokens - PROMPT_OVERHEAD - system
        if self._budget < 1:
            raise ConfigError(f"planner.context_tokens={context_tokens} leaves no room for a prompt")
        self.identity = endpoint.model

    def plan_all(self, questions: Sequence[PlanQuestion]) -> list[PlanAnswer]:
        """See `Planner`. Raises EndpointFault if the server cannot be asked; answers that came are in the cache."""
        futures = [self.endpoint.pool.submit(self._plan, question) for question in questions]
        faults = [fault for future in futures if (fault := future.exception())]  # waits for all: no answer is lost
        if faults:
            raise faults[0]
        return [future.result() for future in futures]

    def use_adapter(self, name: str, folder: Path, handover: str) -> None:
        """Ask the adapter in `folder` from now on, under its `name`; EndpointFault if vLLM does not take it."""
        if handover == "vllm":
            refusal = self.endpoint.post("/load_lora_adapter", {"lora_name": name, "lora_path": str(folder.resolve())})
            if refusal and "already been loaded" not in refusal:  # it was loaded before this loop was killed
                raise EndpointFault(
                    f"{self.endpoint.address} refuses the adapter {folder} ({refusal}): start vLLM with --enable-lora "
                    "and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, or set planner.handover"
                )
        self.endpoint.model = str(folder.resolve()) if handover == "folder" else name
        self.identity = name  # it holds the adapter's hash

    def count(self, text: str) -> int:
        """See `Planner`."""
        return self.endpoint.count(text)

    def close(self) -> None:
        """Close connections, cache and account."""
        self.endpoint.close()
        self.endpoint.cache.close()
        self.endpoint.account.close()

    def _plan(self, question: PlanQuestion) -> PlanAnswer:
        prompt = plan_prompt(question, self.examples, budget=self._budget, count=self.endpoint.count)
        system = (JUDGE_SYSTEM if question.plan else SYSTEM) if self._chat else ""
        completion = self.endpoint.complete(
            prompt,
            system=system,
            temperature=self.temperature,
            max_tokens=self.max_answer_tokens,
            stop=self._stop,
        )
        if completion.cut and not without_reasoning(completion.text).strip():
            self.endpoint.note_cut(self.max_answer_tokens)
        # Counted here, also if the answer came from the cache: the figures compare planners, not bills.
        read = self.endpoint.count(system) + self.endpoint.count(prompt)
        return PlanAnswer(completion.text, self.identity, read, self.endpoint.count(completion.text))
