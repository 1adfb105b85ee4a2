"""The policy whose language model runs in vLLM; vision model, projection and token embeddings stay in this process.

    image, prompt -> Blip2Emac.prompt_embeds -> vLLM (`--enable-prompt-embeds`) -> token ids -> text

The language model is frozen. If only the layers before it train, a vLLM server never needs new weights: the effect
of training is in the prompt embeddings of every request. LoRA adapters are handed over whenever they have changed
(`handover`). `docs/vllm.md` says how to start servers, and why they belong on a trusted network.

Shapes: T positions of a prompt (image tokens and text), H hidden size of the language model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from alfworld_native.language.commands import normalise
from lavis.common.devices import autocast
from lavis.models.blip2_models import adapters
from lavis.models.blip2_models.text import written as text_of
from lavis.models.student import Question
from xrl_alignment.agents.policies.base import PolicyInput, model_reads, process_images, require_commands
from xrl_alignment.agents.policies.vllm.answer_search import best_answer
from xrl_alignment.agents.policies.vllm.base import InferenceClient, PromptRequest, WrittenToken
from xrl_alignment.agents.policies.vllm.http_client import VllmHttpClient
from xrl_alignment.agents.policies.vllm.model_check import ModelCheck
from xrl_alignment.agents.policies.vllm.served import ServedPolicy
from xrl_alignment.common.call_pool import CallPool
from xrl_alignment.common.errors import InferenceEngineFault

if TYPE_CHECKING:
    from lavis.models.blip2_models.blip2_emac import Blip2Emac

PROMPTS_PER_CALL = 16  # encoded and sent together; the engine reads them while the next ones' images are encoded
MAX_LOGPROBS = 128  # tokens whose log-probabilities vLLM gives in one reply


class VllmPolicy(ServedPolicy):
    """`Blip2Emac` whose language model runs in vLLM; greedy.

    `decode="free"` writes the action. `decode="admissible"` finds the most probable of the admissible commands: it asks
    for the next tokens of the best command so far until one command is complete (`best_answer`). `client` asks the
    servers (None: over HTTP). Prompts are encoded and sent `prompts_per_call` at a time: that overlaps work here with
    work in the engine, which helps unless both need the same processors. `options` are those of `ServedPolicy`.
    """

    def __init__(
        self,
        *,
        model: Blip2Emac,
        vis_processor: Callable[[np.ndarray], Tensor],
        decode: str = "free",
        max_length: int = 128,
        min_length: int = 1,
        prompts_per_call: int = PROMPTS_PER_CALL,
        timeout_s: float = 300.0,
        client: InferenceClient | None = None,
        **options: Any,
    ) -> None:
        self.model = model
        self.vis_processor = vis_processor
        self.decode = decode
        self.reads = model_reads(decode)  # see `Policy`
        self.max_length = max_length
        self.min_length = min_length
        self.prompts_per_call = prompts_per_call
        self._threads = CallPool(4)  # groups of prompts that are on their way while the next one is encoded
        super().__init__(
            client=client or VllmHttpClient(timeout_s),
            model_check=ModelCheck(model),
            weights=model.llm_model,
            save_adapters=partial(adapters.save, model.llm_model),
            **options,
        )

    def close(self) -> None:
        """See `ServedPolicy.close`."""
        self._threads.shutdown()
        super().close()

    def _answer(self, batch: Sequence[PolicyInput]) -> list[str]:
        return self._choose(batch) if self.decode == "admissible" else self._write(batch)

    @torch.no_grad()
    def _prompts(self, batch: Sequence[PolicyInput], room: int) -> list[Tensor]:
        """The language model's input for each item of `batch`, (T, H), without padding; `room` tokens may follow it."""
        images = process_images(self.vis_processor, [item.image for item in batch])
        questions = [Question(item.prompt, (image,)) for item, image in zip(batch, images, strict=True)]
        with autocast(self.model.device):
            embeds, mask = self.model.prompt_embeds(questions, room=room)  # (B, T, H), (B, T)
        return [row[kept.bool()] for row, kept in zip(embeds, mask, strict=True)]

    def _write(self, batch: Sequence[PolicyInput]) -> list[str]:
        # While the engine reads the first prompts, the images of the next ones are encoded here.
        asked = []
        for start in range(0, len(batch), self.prompts_per_call):
            part = batch[start : start + self.prompts_per_call]
            requests = [PromptRequest(prompt) for prompt in self._prompts(part, room=self.max_length - 1)]
            asked.append(self._threads.submit(self.pool.ask, requests, [item.session for item in part]))
        written = [tokens for future in asked for tokens in future.result()]
        tokenizer = self.model.llm_tokenizer
        return [normalise(text_of(tokenizer, [item.token for item in tokens])) for tokens in written]

    @torch.no_grad()
    def _choose(self, batch: Sequence[PolicyInput]) -> list[str]:
        require_commands(batch)
        embed = self.model.llm_model.get_input_embeddings()
        answers = self.model.answer_ids([item.admissible_commands for item in batch])
        prompts = self._prompts(batch, room=max(len(answer) for group in answers for answer in group))
        # One search for each item. In every turn all searches that are not finished ask together for one more token.
        searches = [best_answer(group) for group in answers]
        questions = {i: next(search) for i, search in enumerate(searches)}
        chosen: dict[int, int] = {}
        while questions:
            asked = list(questions)
            # Each asks for the log-probabilities of `tokens` after its prompt (T, H) and the tokens of `prefix`.
            requests = []
            for i in asked:
                prefix, tokens = questions[i]
                embeds = embed(torch.tensor(prefix, dtype=torch.long, device=prompts[i].device))
                requests.append(PromptRequest(torch.cat([prompts[i], embeds.to(prompts[i].dtype)]), frozenset(tokens)))
            # One token is written for each, whatever it is: its log-probabilities are those of the search's tokens.
            for i, (item,) in zip(asked, self.pool.ask(requests, [batch[i].session for i in asked]), strict=True):
                try:
                    questions[i] = searches[i].send([item.logprobs[token] for token in questions[i][1]])
                except StopIteration as found:
                    chosen[i] = found.value
                    del questions[i]
        return [item.admissible_commands[chosen[i]] for i, item in enumerate(batch)]

    def _call(self, url: str, requests: Sequence[PromptRequest]) -> list[list[WrittenToken]]:
        """Ask the engine at `url`; either all `requests` are to be continued, or all ask for log-probabilities."""
        eos_id = self.model.llm_tokenizer.eos_id
        # Lengths count a BOS, as in `Blip2Emac.generate`. The server's files may name another end than `eos_id`.
        writing: dict[str, Any] = {"max_tokens": self.max_length - 1, "min_tokens": max(self.min_length - 1, 0)}
        writing |= {"ignore_eos": True, "stop_token_ids": [eos_id]}
        # A message to write holds all prompts; one that asks for log-probabilities as many as their tokens allow.
        answers: list[list[WrittenToken]] = []
        for part, tokens in _messages(requests):
            asking = {"max_tokens": 1, "ignore_eos": True, "logprobs": 1, "logprob_token_ids": sorted(tokens)}
            prompts = [request.prompt for request in part]
            written = self._client.complete(url, prompts, **(asking if tokens else writing))
            if not all(tokens <= item.logprobs.keys() for items in written for item in items):
                raise InferenceEngineFault(
                    f"{url} does not give log-probabilities of chosen tokens (logprob_token_ids), which "
                    "policy.decode=admissible needs: use vLLM 0.32 or newer"
                )
            answers += written
        return answers


def _messages(requests: Sequence[PromptRequest]) -> Iterator[tuple[list[PromptRequest], frozenset[int]]]:
    """Groups of consecutive `requests`, with the union of their tokens: at most as many as one reply may have."""
    part: list[PromptRequest] = []
    tokens: frozenset[int] = frozenset()
    for request in requests:
        if part and len(tokens | request.tokens) > MAX_LOGPROBS:
            yield part, tokens
            part, tokens = [], frozenset()
        part.append(request)
        tokens |= request.tokens
    yield part, tokens
