"""Asks vLLM servers over HTTP (OpenAI's interface, vLLM's extensions): prompts that are embeddings, and chats."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import openai
import torch
from torch import Tensor

from xrl_alignment.agents.language.plain import one_line, plain
from xrl_alignment.agents.policies.vllm.base import (
    WRONG_FORM,
    ServedAdapter,
    ServerUnavailable,
    WrittenToken,
    require_tokens,
)
from xrl_alignment.common.call_pool import BoundedAnswers, CallLoop, UnusableAnswer
from xrl_alignment.common.errors import InferenceEngineFault

CHECK_TIMEOUT_S = 30.0  # for requests that compute nothing: the list of models, loading an adapter
KEY_VARIABLE = "VLLM_API_KEY"  # vLLM's own name
# vLLM's defaults are the model's generation_config.json: penalties and temperatures of a chatbot. These count instead.
NEUTRAL = {"repetition_penalty": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}

Content = Sequence[Mapping[str, Any]]  # of one user turn: texts and images, in OpenAI's form
_Call = Callable[[openai.AsyncOpenAI], Awaitable[Any]]


class _VllmHttp(BoundedAnswers, openai.DefaultAsyncHttpxClient):
    """openai's own HTTP client, with limits; 32 prompts' tokens with their log-probabilities take a few MiB."""

    max_answer = 32 << 20  # bytes


class VllmHttpClient:
    """Asks vLLM servers; URLs end in `/v1`.

    The servers' API key comes from the environment (`VLLM_API_KEY`). Every method raises `ServerUnavailable` if another
    server may be asked instead, `InferenceEngineFault` if that would not help.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        # Never None: openai's client would then send the user's OPENAI_API_KEY to this server.
        self._key = os.environ.get(KEY_VARIABLE) or "none"
        self._calls = CallLoop()
        self._clients: dict[str, openai.AsyncOpenAI] = {}
        self._models: dict[str, str] = {}
        self._adapters: dict[str, str] = {}

    def complete(self, url: str, prompts: Sequence[Tensor], **options: Any) -> list[list[WrittenToken]]:
        """See `InferenceClient.complete`."""
        # As vLLM reads tensors: `torch.save`, then base64.
        encoded = []
        for prompt in prompts:
            buffer = io.BytesIO()
            torch.save(prompt.detach().cpu().clone(), buffer)  # without `clone` a view saves the whole tensor under it
            encoded.append(base64.b64encode(buffer.getvalue()).decode("ascii"))
        body = {
            "prompt_embeds": encoded,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            **NEUTRAL,
            **options,
        }
        model = self._model_for(url)

        def ask(client: openai.AsyncOpenAI) -> Awaitable[Any]:
            # `prompt=None` is vLLM's, not OpenAI's
            create: Callable[..., Any] = client.completions.with_raw_response.create
            return create(model=model, prompt=None, temperature=0, extra_body=body)

        reply = self._ask(url, ask, self._timeout_s, " (policy.timeout_s)")
        with _vllms_form(url, len(prompts)):
            # The interface promises no order: `index` says which prompt a choice answers.
            choices = sorted(reply["choices"], key=lambda choice: choice["index"])
            if len(choices) != len(prompts):
                raise ValueError(f"{len(choices)} choices")
            return [_written(choice) for choice in choices]

    def chat(self, url: str, turns: Sequence[Content], **options: Any) -> list[list[WrittenToken]]:
        """What the model at `url` answers to each user turn, through its own chat template: greedy.

        `options` are vLLM's sampling parameters; with `logprobs=k` a token comes with the k most probable ones.
        """
        if "logprobs" in options:
            # OpenAI's completions take one number; its chats take a truth value and the number.
            options |= {"logprobs": True, "top_logprobs": options["logprobs"]}
        body = {
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            **NEUTRAL,
            **options,
        }
        model = self._model_for(url)

        def ask(client: openai.AsyncOpenAI) -> Awaitable[Any]:
            create: Callable[..., Any] = client.chat.completions.with_raw_response.create
            messages = [[{"role": "user", "content": content}] for content in turns]
            calls = [create(model=model, messages=each, temperature=0, extra_body=body) for each in messages]
            return asyncio.gather(*calls)

        replies = self._ask_all(url, ask, self._timeout_s, " (policy.timeout_s)")
        with _vllms_form(url, len(turns)):
            return [_written(reply["choices"][0]) for reply in replies]

    def _model_for(self, url: str) -> str:
        """The name under which the server answers with the newest adapters, if there are any."""
        return self._adapters.get(url) or self._models.get(url) or self.model_at(url)

    def model_at(self, url: str) -> str:
        """Name of the model that the server at `url` serves."""
        reply = self._ask(url, lambda client: client.models.with_raw_response.list(), CHECK_TIMEOUT_S)
        try:
            name = reply["data"][0]["id"]
            if not isinstance(name, str):
                raise TypeError
        except WRONG_FORM as error:
            raise InferenceEngineFault(f"{url} serves no model") from error
        self._models[url] = plain(name)
        return self._models[url]

    def use_adapter(self, url: str, adapter: ServedAdapter) -> None:
        """See `InferenceClient.use_adapter`."""
        body = {"lora_name": adapter.name, "lora_path": str(adapter.folder)}
        try:
            self._post(url, "/load_lora_adapter", body)
        except openai.APIStatusError as error:
            if "already been loaded" not in str(error):  # the server was out of use, and has kept it
                raise _refusal(url, adapter, error) from error
        # The new one first, then the old one goes: a request in between finds an adapter.
        before, self._adapters[url] = self._adapters.get(url, adapter.name), adapter.name
        if before != adapter.name:
            with suppress(openai.APIStatusError):  # a server that was started again does not know it
                self._post(url, "/unload_lora_adapter", {"lora_name": before})

    def close(self) -> None:
        """Close all connections."""
        self._calls.close(*(client.close for client in self._clients.values()))

    def _ask(self, url: str, call: _Call, timeout_s: float, setting: str = "") -> Any:
        """The document that the server answers with."""
        return self._ask_all(url, lambda client: asyncio.gather(call(client)), timeout_s, setting)[0]

    def _ask_all(self, url: str, calls: _Call, timeout_s: float, setting: str = "") -> list[Any]:
        """The documents that the server answers several calls with."""
        try:
            return [json.loads(reply.content) for reply in self._call(url, calls, timeout_s, setting)]
        except openai.APIStatusError as error:
            raise _fault_of(url, error) from error
        except (ValueError, RecursionError) as error:
            raise InferenceEngineFault(
                f"{url} is no vLLM server: its answer is no JSON ({one_line(str(error), 100)})"
            ) from error

    def _post(self, url: str, path: str, body: dict[str, str]) -> None:
        self._call(url, lambda client: client.post(path, cast_to=str, body=body), CHECK_TIMEOUT_S)

    def _call(self, url: str, call: _Call, timeout_s: float, setting: str = "") -> Any:
        """The server's answer; raises APIStatusError if that is an HTTP error."""
        # One client for each server, whose connections stay open; whether to try again is the pool's decision.
        if url not in self._clients:
            self._clients[url] = openai.AsyncOpenAI(
                base_url=url, api_key=self._key, max_retries=0, http_client=_VllmHttp()
            )
        try:
            return self._calls.run(lambda: call(self._clients[url].with_options(timeout=timeout_s)), timeout_s)
        except (openai.APITimeoutError, TimeoutError) as error:
            raise ServerUnavailable(f"no answer within {timeout_s:g} s{setting}") from error
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            raise ServerUnavailable(f"no connection ({one_line(str(cause)) or type(cause).__name__})") from error
        except (UnusableAnswer, ConnectionAbortedError) as error:
            raise ServerUnavailable(str(error)) from error


@contextmanager
def _vllms_form(url: str, prompts: int) -> Iterator[None]:
    """A context in which a reply of another form is the server's fault."""
    try:
        yield
    except WRONG_FORM as error:
        raise InferenceEngineFault(
            f"{url} does not answer as vLLM does: no token_ids for each of {prompts} prompts"
        ) from error


def _written(choice: Mapping[str, Any]) -> list[WrittenToken]:
    """The tokens in a choice of an answer; raises one of `WRONG_FORM` if it has not the form of vLLM's choices."""
    tokens, logprobs = choice["token_ids"], choice.get("logprobs") or {}
    tops = logprobs.get("top_logprobs") or [{}] * len(tokens)
    if logprobs.get("content"):  # the form of a chat's choices
        tops = [{top["token"]: top["logprob"] for top in item["top_logprobs"]} for item in logprobs["content"]]
    # With return_tokens_as_token_ids a token's name is "token_id:17".
    written = [
        WrittenToken(token, {int(name.rpartition(":")[2]): float(logprob) for name, logprob in (top or {}).items()})
        for token, top in zip(tokens, tops, strict=False)
    ]
    require_tokens(written)
    return written


def _refusal(
    url: str, adapter: ServedAdapter, error: openai.APIStatusError
) -> ServerUnavailable | InferenceEngineFault:
    """The exception for a server that does not load `adapter`."""
    text = one_line(str(error.message))
    if error.status_code in (401, 403):
        return _fault_of(url, error)
    # By vLLM's words: its status codes do not tell these cases apart.
    if "No adapter found" in text:
        return InferenceEngineFault(
            f"{url} does not find {adapter.folder}: name a folder that this program and the server share "
            "(policy.adapter_folder)"
        )
    if "max_lora_rank" in text:
        return InferenceEngineFault(
            f"{url} takes no adapters of this rank: start it with a larger --max-lora-rank ({text})"
        )
    if error.status_code == 404 or "not enabled" in text:
        return InferenceEngineFault(
            f"{url} takes no adapters while it runs: start it with --enable-lora and the environment variable "
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True; where it serves a folder in which they are merged, set "
            "policy.adapters=merged"
        )
    return ServerUnavailable(f"it does not load an adapter (HTTP {error.status_code}): {text}")


def _fault_of(url: str, error: openai.APIStatusError) -> ServerUnavailable | InferenceEngineFault:
    """The exception for an HTTP error."""
    text = one_line(str(error.message))
    if error.status_code in (401, 403):
        return InferenceEngineFault(f"{url} refuses the key: set {KEY_VARIABLE} to the key of `vllm serve --api-key`")
    if "enable-prompt-embeds" in text:
        return InferenceEngineFault(
            f"{url} takes no prompt embeddings: start it as `vllm serve … --enable-prompt-embeds`"
        )
    if "hidden_size" in text:
        return InferenceEngineFault(f"{url} serves another model than the one that is loaded here: {text}")
    if error.status_code == 404 and "does not exist" in text:  # the server was started again, without the adapter
        return ServerUnavailable(text)
    if error.status_code == 404:
        return InferenceEngineFault(f"{url} is no vLLM server (HTTP 404); base URLs end in /v1")
    if 300 <= error.status_code < 400:
        where = one_line(error.response.headers.get("location", "")).partition("?")[0]
        return InferenceEngineFault(f"{url} redirects to {where or 'nowhere'}: name the server's own address")
    # 429 speaks of too many requests, not of this one: another server may take it.
    if error.status_code < 500 and error.status_code != 429:
        return InferenceEngineFault(f"{url} refuses a request (HTTP {error.status_code}): {text}")
    return ServerUnavailable(f"HTTP {error.status_code}: {text}")
