"""Asks vLLM servers over HTTP: completions of prompts that are embeddings (OpenAI's interface, vLLM's extensions)."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable, Sequence
from typing import Any

import openai
import torch
from torch import Tensor

from xrl_alignment.common.errors import InferenceEngineFault
from xrl_alignment.policies.vllm.base import ServerUnavailable, WrittenToken

CHECK_TIMEOUT_S = 30.0
KEY_VARIABLE = "VLLM_API_KEY"  # vLLM's own name


class VllmHttpClient:
    """Asks vLLM servers; URLs end in `/v1`.

    The servers' API key comes from the environment (`VLLM_API_KEY`). Every method raises `ServerUnavailable` if another
    server may be asked instead, `InferenceEngineFault` if that would not help.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._key = os.environ.get(KEY_VARIABLE) or "none"
        self._clients: dict[str, openai.OpenAI] = {}
        self._models: dict[str, str] = {}

    def complete(self, url: str, prompts: Sequence[Tensor], **options: Any) -> list[list[WrittenToken]]:
        """See `InferenceClient.complete`."""
        body = {
            "prompt_embeds": [encode_tensor(prompt) for prompt in prompts],
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            **options,
        }
        model = self._models.get(url) or self.model_at(url)

        def ask(client: openai.OpenAI) -> Any:
            create: Callable[..., Any] = client.completions.create  # `prompt=None` is vLLM's, not OpenAI's
            return create(model=model, prompt=None, temperature=0, extra_body=body)

        reply = self._ask(url, ask, self._timeout_s, " (policy.timeout_s)")
        choices = sorted(reply.choices, key=lambda choice: choice.index)
        if len(choices) != len(prompts) or any(getattr(choice, "token_ids", None) is None for choice in choices):
            raise InferenceEngineFault(
                f"{url} does not answer as vLLM does: no token_ids for each of {len(prompts)} prompts"
            )
        return [_written(choice) for choice in choices]

    def model_at(self, url: str) -> str:
        """Name of the model that the server at `url` serves."""
        reply = self._ask(url, lambda client: client.models.list(), CHECK_TIMEOUT_S)
        if not reply.data:
            raise InferenceEngineFault(f"{url} serves no model")
        self._models[url] = str(reply.data[0].id)
        return self._models[url]

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()

    def _ask(self, url: str, call: Callable[[openai.OpenAI], Any], timeout_s: float, setting: str = "") -> Any:
        if url not in self._clients:
            self._clients[url] = openai.OpenAI(base_url=url, api_key=self._key, max_retries=0)
        try:
            return call(self._clients[url].with_options(timeout=timeout_s))
        except openai.APITimeoutError as error:
            raise ServerUnavailable(f"no answer within {timeout_s:g} s{setting}") from error
        except openai.APIConnectionError as error:
            raise ServerUnavailable(f"no connection ({error.__cause__ or error})") from error
        except openai.APIStatusError as error:
            raise _fault_of(url, error) from error


def encode_tensor(value: Tensor) -> str:
    """`value` as vLLM reads tensors: `torch.save`, then base64."""
    buffer = io.BytesIO()
    torch.save(value.detach().cpu().clone(), buffer)  # without `clone` a view saves the whole tensor under it
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _written(choice: Any) -> list[WrittenToken]:
    tops = choice.logprobs.top_logprobs if choice.logprobs else [None] * len(choice.token_ids)
    # With return_tokens_as_token_ids a token's name is "token_id:17".
    return [
        WrittenToken(token, {int(name.rpartition(":")[2]): logprob for name, logprob in (top or {}).items()})
        for token, top in zip(choice.token_ids, tops, strict=False)
    ]


def _fault_of(url: str, error: openai.APIStatusError) -> ServerUnavailable | InferenceEngineFault:
    """The exception for an HTTP error."""
    text = " ".join(str(error.message).split())[:300]
    if error.status_code in (401, 403):
        return InferenceEngineFault(f"{url} refuses the key: set {KEY_VARIABLE} to the key of `vllm serve --api-key`")
    if "enable-prompt-embeds" in text:
        return InferenceEngineFault(
            f"{url} takes no prompt embeddings: start it as `vllm serve … --enable-prompt-embeds`"
        )
    if "hidden_size" in text:
        return InferenceEngineFault(f"{url} serves another model than the one that is loaded here: {text}")
    if error.status_code == 404:
        return InferenceEngineFault(f"{url} is no vLLM server (HTTP 404); base URLs end in /v1")
    if error.status_code < 500 and error.status_code != 429:
        return InferenceEngineFault(f"{url} refuses a request (HTTP {error.status_code}): {text}")
    return ServerUnavailable(f"HTTP {error.status_code}: {text}")
