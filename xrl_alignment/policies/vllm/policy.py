"""The policy whose language model is served by vLLM; pictures, projection and word embeddings stay in this process.

    picture, prompt -> Blip2Emac.prompt_embeds -> HTTP -> vLLM (`--enable-prompt-embeds`) -> token ids -> text

The language model is frozen and only what stands before it trains, so servers never need new weights: what training
changes travels with every request. `docs/engines.md` says how to start servers, and why they belong on a trusted
network.

Shapes: T positions of a prompt (image tokens and text), H hidden size of the language model.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple, Protocol

import openai
import torch
from torch import Tensor

from lavis.models.blip2_models.text import encode_output, encode_prompts
from xrl_alignment.common.call_pool import CallPool
from xrl_alignment.common.errors import EngineFault
from xrl_alignment.language.commands import normalise
from xrl_alignment.policies.base import PolicyInput, autocast, require_commands, stack_images
from xrl_alignment.policies.vllm.pool import ServerGone, ServerPool

CHECK_TIMEOUT_S = 30.0
KEY_VARIABLE = "VLLM_API_KEY"  # vLLM's own name
PART = 16  # prompts that are encoded and sent together, where engines have processors of their own
MOST_TOKENS = 128  # whose log-probabilities vLLM gives in one reply
PROBES = (
    "You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a countertop 1 and a fridge 1.",
    "Your task is to: put a clean mug in coffeemachine.\n> go to countertop 1\nOn the countertop 1, you see",
)
PROBE_TOKENS = 6  # written after each probe
PROBE_WORDS = 5  # the likeliest, weighed at each of them
# Mean difference of log-probabilities. bfloat16 against float32: 0.024 for the tiny model; other weights: units.
TOLERANCE = 0.15


class Weighed(NamedTuple):
    """One written token: its id, and log-probabilities by token id of the words that were asked for."""

    token: int
    logprobs: dict[int, float]


class Request(NamedTuple):
    """A prompt (T, H) to be continued; with `tokens` only their log-probabilities are asked for."""

    prompt: Tensor
    tokens: frozenset[int] = frozenset()


class Client(Protocol):
    """Speaks with inference engines: `VllmClient`, or `vllm_process.VllmProcess`."""

    def complete(self, url: str, prompts: Sequence[Tensor], **options: Any) -> list[list[Weighed]]:
        """What the engine at `url` writes after each prompt (T, H)."""
        ...

    def model_at(self, url: str) -> str:
        """Name of the model there."""
        ...

    def close(self) -> None:
        """Give back what is held."""
        ...


class VllmClient:
    """Speaks with vLLM servers: completions of prompts that are embeddings.

    URLs end in `/v1`. The key that servers want to be shown is taken from the environment (`VLLM_API_KEY`). Every
    method raises `ServerGone` where another server may be asked instead, `EngineFault` where that would not help.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._key = os.environ.get(KEY_VARIABLE) or "none"
        self._clients: dict[str, openai.OpenAI] = {}
        self._models: dict[str, str] = {}

    def complete(self, url: str, prompts: Sequence[Tensor], **options: Any) -> list[list[Weighed]]:
        """What the server at `url` writes after each prompt (T, H): greedy, one `Weighed` a token.

        `options` are vLLM's sampling parameters (`max_tokens`, `logprobs`, …).
        """
        body = {
            "prompt_embeds": [encode_tensor(prompt) for prompt in prompts],
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            **options,
        }
        if url not in self._models:
            self.model_at(url)
        reply = self._ask(
            url,
            lambda client: client.completions.create(
                model=self._models[url], prompt=None, temperature=0, extra_body=body, timeout=self._timeout_s
            ),
        )
        choices = sorted(reply.choices, key=lambda choice: choice.index)
        if len(choices) != len(prompts) or any(getattr(choice, "token_ids", None) is None for choice in choices):
            raise EngineFault(
                f"{url} answers otherwise than vLLM does: no token_ids for each of {len(prompts)} prompts"
            )
        return [_weighed(choice) for choice in choices]

    def model_at(self, url: str) -> str:
        """Name of the model that the server at `url` serves."""
        reply = self._ask(url, lambda client: client.models.list(timeout=CHECK_TIMEOUT_S))
        if not reply.data:
            raise EngineFault(f"{url} serves no model")
        self._models[url] = reply.data[0].id
        return self._models[url]

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()

    def _ask(self, url: str, work: Callable[[openai.OpenAI], Any]) -> Any:
        if url not in self._clients:
            self._clients[url] = openai.OpenAI(base_url=url, api_key=self._key, max_retries=0)
        try:
            return work(self._clients[url])
        except openai.APITimeoutError as error:
            raise ServerGone(f"no answer within {self._timeout_s:.0f} s (policy.timeout_s)") from error
        except openai.APIConnectionError as error:
            raise ServerGone(f"no connection ({error.__cause__ or error})") from error
        except openai.APIStatusError as error:
            raise _judged(url, error) from error


def encode_tensor(value: Tensor) -> str:
    """`value` as vLLM reads tensors: `torch.save`, then base64."""
    buffer = io.BytesIO()
    torch.save(value.detach().cpu().clone(), buffer)  # a view would be written with all that it is a part of
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _weighed(choice: Any) -> list[Weighed]:
    tops = choice.logprobs.top_logprobs if choice.logprobs else [None] * len(choice.token_ids)
    # With return_tokens_as_token_ids words are named "token_id:17".
    return [
        Weighed(token, {int(name.rpartition(":")[2]): logprob for name, logprob in (top or {}).items()})
        for token, top in zip(choice.token_ids, tops, strict=False)
    ]


def _judged(url: str, error: openai.APIStatusError) -> ServerGone | EngineFault:
    """What an HTTP error means for us."""
    text = " ".join(str(error.message).split())[:300]
    if error.status_code in (401, 403):
        return EngineFault(f"{url} refuses the key: put the one of `vllm serve --api-key` into {KEY_VARIABLE}")
    if "enable-prompt-embeds" in text:
        return EngineFault(f"{url} takes no prompt embeddings: start it as `vllm serve … --enable-prompt-embeds`")
    if "hidden_size" in text:
        return EngineFault(f"{url} serves another model than the one that is loaded here: {text}")
    if error.status_code == 404:
        return EngineFault(f"{url} is no vLLM server (HTTP 404); base URLs end in /v1")
    if error.status_code < 500 and error.status_code != 429:
        return EngineFault(f"{url} refuses a request (HTTP {error.status_code}): {text}")
    return ServerGone(f"HTTP {error.status_code}: {text}")


class Fingerprint:
    """Tells whether a server has the language model that is loaded here: on known prompts, by its own words.

    The server continues each of `PROBES` (given as embeddings from our table) by a few tokens; the log-probabilities it
    states are held against those that our model has for the same tokens. Different weights differ by whole units,
    rounding by hundredths. That finds mistakes; it is no proof against a server that means to deceive.
    """

    def __init__(self, model) -> None:
        self._model = model
        self._prompts = encode_prompts(model.llm_tokenizer, PROBES)

    @torch.no_grad()
    def difference(self, client: Client, url: str) -> float:
        """Mean absolute difference of log-probabilities between the server at `url` and ours."""
        embed = self._model.llm_model.get_input_embeddings()
        prompts = [embed(torch.tensor(ids, device=self._model.device)) for ids in self._prompts]
        options = {"max_tokens": PROBE_TOKENS, "logprobs": PROBE_WORDS, "ignore_eos": True}
        differences = []
        for ids, words in zip(self._prompts, client.complete(url, prompts, **options), strict=True):
            ours = self._logprobs(ids, [word.token for word in words])
            for row, word in zip(ours, words, strict=True):
                if max(word.logprobs) >= len(row):
                    return float("inf")  # the server knows words that our model has not
                differences += [abs(row[token].item() - logprob) for token, logprob in word.logprobs.items()]
        return sum(differences) / len(differences)

    def _logprobs(self, prompt: list[int], written: list[int]) -> Tensor:
        """Our log-probabilities where each token of `written` stands: (len(written), vocabulary)."""
        words = len(self._model.llm_model.get_input_embeddings().weight)
        ids = torch.tensor([prompt + [min(token, words - 1) for token in written[:-1]]], device=self._model.device)
        logits = self._model.llm_model(input_ids=ids).logits[0, len(prompt) - 1 :]
        return logits.float().log_softmax(-1).cpu()

    def check(self, client: Client, url: str) -> None:
        """EngineFault where the server at `url` has another model, ServerGone where it does not answer."""
        name = client.model_at(url)
        difference = self.difference(client, url)
        if not difference <= TOLERANCE:
            raise EngineFault(
                f"{url} serves {name}, which is another model than the one that is loaded here: on known prompts their "
                f"log-probabilities differ by {difference:.2f} (rounding: below {TOLERANCE}); serve the folder that "
                "`python -m lavis.models.convert … --to llm` writes"
            )


class VllmPolicy:
    """`Blip2Emac` whose language model answers from vLLM servers; greedy.

    `decode="free"` writes the action. `decode="admissible"` finds the most probable of the admissible commands, asking
    for the next words of the best command so far until one is whole (`best_answer`). All of `base_urls` are checked at
    once (`Fingerprint`): EngineFault says which of them cannot be used and why. `client` speaks with them (None: over
    HTTP) and is closed with the policy. `part` prompts are encoded and sent together; while engines read them, the next
    ones' pictures are encoded, which pays unless both need the same processors.
    """

    def __init__(
        self,
        *,
        model,
        vis_processor,
        base_urls: Sequence[str],
        decode: str = "free",
        max_length: int = 128,
        min_length: int = 1,
        max_batch: int = 32,
        part: int = PART,
        timeout_s: float = 300.0,
        client: Client | None = None,
        **pool_options: Any,
    ) -> None:
        self.model = model
        self.vis_processor = vis_processor
        self.decode = decode
        self.max_length = max_length
        self.min_length = min_length
        self.max_batch = max_batch
        self.part = part
        self._client = client or VllmClient(timeout_s)
        self._fingerprint = Fingerprint(model)
        self._threads = CallPool(4)
        self.pool = ServerPool(base_urls, call=self._call, check=self._check, **pool_options)
        try:
            for server in self.pool.servers:
                self._check_first(server.url)
        except BaseException:  # Ctrl-C too: a server would be left
            self.close()
            raise

    def act(self, batch: Sequence[PolicyInput]) -> list[str]:
        """One action for each input. EngineFault where no server is left."""
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

    @torch.no_grad()
    def _prompts(self, batch: Sequence[PolicyInput], room: int) -> list[Tensor]:
        """What the language model reads of each input, (T, H), without pads."""
        samples = {
            "image": stack_images(self.vis_processor, [item.image for item in batch]).to(self.model.device),
            "prompt": [item.prompt for item in batch],
        }
        with autocast(self.model.device):
            embeds, mask = self.model.prompt_embeds(samples, room=room)
        return [row[kept.bool()] for row, kept in zip(embeds, mask, strict=True)]

    def _write(self, batch: Sequence[PolicyInput]) -> list[str]:
        asked = []
        for start in range(0, len(batch), self.part):
            part = batch[start : start + self.part]
            requests = [Request(prompt) for prompt in self._prompts(part, room=self.max_length - 1)]
            asked.append(self._threads.submit(self.pool.ask, requests, [item.session for item in part]))
        written = [words for future in asked for words in future.result()]
        tokenizer = self.model.llm_tokenizer
        rows = ([word.token or tokenizer.eos_id for word in words] for words in written)
        return [normalise(tokenizer.decode(row).strip()) for row in rows]

    def _choose(self, batch: Sequence[PolicyInput]) -> list[str]:
        require_commands(batch)
        answers = [
            [encode_output(self.model.llm_tokenizer, text, self.model.max_output_txt_len) for text in commands]
            for commands in (item.admissible_commands for item in batch)
        ]
        prompts = self._prompts(batch, room=max(len(answer) for group in answers for answer in group))
        searches = [best_answer(group) for group in answers]
        questions = {i: next(search) for i, search in enumerate(searches)}
        chosen: dict[int, int] = {}
        while questions:
            asked = list(questions)
            requests = [self._question(prompts[i], *questions[i]) for i in asked]
            for i, (word,) in zip(asked, self.pool.ask(requests, [batch[i].session for i in asked]), strict=True):
                try:
                    questions[i] = searches[i].send([word.logprobs[token] for token in questions[i][1]])
                except StopIteration as found:
                    chosen[i] = found.value
                    del questions[i]
        return [item.admissible_commands[chosen[i]] for i, item in enumerate(batch)]

    @torch.no_grad()
    def _question(self, prompt: Tensor, prefix: Sequence[int], tokens: Sequence[int]) -> Request:
        """Asks for the log-probabilities of `tokens` after `prompt` and the words of `prefix`."""
        embed = self.model.llm_model.get_input_embeddings()
        words = embed(torch.tensor(prefix, dtype=torch.long, device=prompt.device))
        return Request(torch.cat([prompt, words.to(prompt.dtype)]), frozenset(tokens))

    def _call(self, url: str, requests: Sequence[Request]) -> list[list[Weighed]]:
        """`requests` are either all to be written or all questions; these share a message as far as vLLM lets them."""
        eos_id = self.model.llm_tokenizer.eos_id
        # Lengths count a BOS, as in `Blip2Emac.generate`. The server's files may name another end than `eos_id`.
        writing = {"max_tokens": self.max_length - 1, "min_tokens": max(self.min_length - 1, 0)}
        writing |= {"ignore_eos": True, "stop_token_ids": [eos_id]}
        answers: list[list[Weighed]] = []
        for part, tokens in _messages(requests):
            asking = {"max_tokens": 1, "ignore_eos": True, "logprobs": 1, "logprob_token_ids": sorted(tokens)}
            prompts = [request.prompt for request in part]
            written = self._client.complete(url, prompts, **(asking if tokens else writing))
            if not all(tokens <= word.logprobs.keys() for words in written for word in words):
                raise EngineFault(
                    f"{url} does not weigh given tokens (logprob_token_ids), which policy.decode=admissible needs: use "
                    "vLLM 0.32 or newer"
                )
            answers += written
        return answers

    def _check(self, url: str) -> None:
        self._fingerprint.check(self._client, url)

    def _check_first(self, url: str) -> None:
        try:
            self._check(url)
        except ServerGone as error:
            raise EngineFault(
                f"policy.base_urls: {url} cannot be used: {error}; start it with `vllm serve` (docs/engines.md)"
            ) from error


def _messages(requests: Sequence[Request]) -> Iterator[tuple[list[Request], frozenset[int]]]:
    """Runs of `requests` whose tokens together are no more than vLLM weighs for one prompt, and these tokens."""
    part: list[Request] = []
    tokens: frozenset[int] = frozenset()
    for request in requests:
        if part and len(tokens | request.tokens) > MOST_TOKENS:
            yield part, tokens
            part, tokens = [], frozenset()
        part.append(request)
        tokens |= request.tokens
    yield part, tokens


def best_answer(answers: Sequence[Sequence[int]]) -> Generator[tuple[list[int], list[int]], list[float], int]:
    """Search for the answer with the highest sum of log-probabilities; returns its index (the first of equal ones).

    Yields `(prefix, tokens)` and is sent the log-probability of each of `tokens` after `prefix`. Always goes on with
    the best prefix so far (Dijkstra 1959): as a sum only falls with more words, the first answer that is whole is the
    best, and most words of the others are never asked for.
    """
    whole: dict[tuple[int, ...], int] = {}
    for index, answer in enumerate(answers):
        whole.setdefault(tuple(answer), index)
    heap: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    while True:
        cost, prefix = heappop(heap)
        if prefix in whole:
            return whole[prefix]
        depth = len(prefix)
        tokens = sorted({answer[depth] for answer in whole if answer[:depth] == prefix and len(answer) > depth})
        logprobs = yield list(prefix), tokens
        for token, logprob in zip(tokens, logprobs, strict=True):
            heappush(heap, (cost - logprob, (*prefix, token)))
