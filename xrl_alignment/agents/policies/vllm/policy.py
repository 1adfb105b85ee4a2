"""The policy whose language model runs in vLLM; vision model, projection and token embeddings stay in this process.

    image, prompt -> Blip2Emac.prompt_embeds -> vLLM (`--enable-prompt-embeds`) -> token ids -> text

The language model is frozen. If only the layers before it train, a vLLM server never needs new weights: the effect
of training is in the prompt embeddings of every request. LoRA adapters are handed over whenever they have changed
(`handover`). `docs/vllm.md` says how to start servers, and why they belong on a trusted network.

Shapes: T positions of a prompt (image tokens and text), H hidden size of the language model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from alfworld_native.language.commands import normalise
from lavis.common.devices import autocast
from lavis.models.blip2_models.adapters import is_adapter
from lavis.models.blip2_models.text import written as text_of
from lavis.models.student import Question
from xrl_alignment.agents.policies.base import PolicyInput, model_reads, process_images, require_commands
from xrl_alignment.agents.policies.vllm.answer_search import best_answer
from xrl_alignment.agents.policies.vllm.base import InferenceClient, PromptRequest, ServerUnavailable, WrittenToken
from xrl_alignment.agents.policies.vllm.handover import AdapterHandover
from xrl_alignment.agents.policies.vllm.http_client import VllmHttpClient
from xrl_alignment.agents.policies.vllm.model_check import ModelCheck
from xrl_alignment.agents.policies.vllm.server_pool import ServerPool
from xrl_alignment.common.call_pool import CallPool
from xrl_alignment.common.errors import InferenceEngineFault

if TYPE_CHECKING:
    from lavis.models.blip2_models.blip2_emac import Blip2Emac

PROMPTS_PER_CALL = 16  # encoded and sent together; the engine reads them while the next ones' images are encoded
MAX_LOGPROBS = 128  # tokens whose log-probabilities vLLM gives in one reply


class VllmPolicy:
    """`Blip2Emac` whose language model runs in vLLM; greedy.

    `decode="free"` writes the action. `decode="admissible"` finds the most probable of the admissible commands: it asks
    for the next tokens of the best command so far until one command is complete (`best_answer`). The model of every
    server in `base_urls` is checked first (`ModelCheck`): InferenceEngineFault says which server cannot be used and
    why. `client` asks the servers (None: over HTTP), and is closed with the policy. Prompts are encoded and sent
    `prompts_per_call` at a time: that overlaps work here with work in the engine, which helps unless both need the same
    processors. LoRA adapters are handed over by name through `adapter_folder`, unless the servers have them
    (`adapters="merged"`). `pool_options` are those of `ServerPool`.
    """

    def __init__(
        self,
        *,
        model: Blip2Emac,
        vis_processor: Callable[[np.ndarray], Tensor],
        base_urls: Sequence[str],
        decode: str = "free",
        max_length: int = 128,
        min_length: int = 1,
        max_batch: int = 32,
        prompts_per_call: int = PROMPTS_PER_CALL,
        timeout_s: float = 300.0,
        adapters: str = "by_name",
        adapter_folder: str = "",
        client: InferenceClient | None = None,
        **pool_options: Any,
    ) -> None:
        self.model = model
        self.vis_processor = vis_processor
        self.decode = decode
        self.reads = model_reads(decode)  # see `Policy`
        self.max_length = max_length
        self.min_length = min_length
        self.max_batch = max_batch
        self.prompts_per_call = prompts_per_call
        self._client: InferenceClient = client or VllmHttpClient(timeout_s)
        self._model_check = ModelCheck(model)
        self._handover: AdapterHandover | None = None
        if adapters == "by_name" and any(map(is_adapter, model.llm_model.state_dict())):
            self._handover = AdapterHandover(model, self._client, adapter_folder)
        self._threads = CallPool(4)  # groups of prompts that are on their way while the next one is encoded
        self.pool = ServerPool(base_urls, call=self._call, check=self._check, **pool_options)
        try:
            if self._handover:
                self._handover.update()
            for server in self.pool.servers:
                try:
                    self._check(server.url)
                except ServerUnavailable as error:
                    raise InferenceEngineFault(
                        f"policy.base_urls: {server.url} cannot be used: {error}; start it with `vllm serve` "
                        "(docs/vllm.md)"
                    ) from error
        except BaseException:  # also Ctrl-C: an engine of our own would go on running
            self.close()
            raise

    def act(self, batch: Sequence[PolicyInput]) -> list[str]:
        """One action for each input. InferenceEngineFault if no server is left."""
        if self._handover:
            self._handover.update()
        actions: list[str] = []
        for start in range(0, len(batch), self.max_batch):
            part = batch[start : start + self.max_batch]
            actions += self._choose(part) if self.decode == "admissible" else self._write(part)
        return actions

    def close(self) -> None:
        """Close the connections, and the engine that was started for this policy."""
        self._threads.shutdown()
        self.pool.close()
        self._client.close()
        if self._handover:
            self._handover.close()

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
        if self._handover:
            self._handover.give(url)
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

    def _check(self, url: str) -> None:
        if self._handover:
            self._handover.give(url, again=True)
        self._model_check.check(self._client, url)


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
