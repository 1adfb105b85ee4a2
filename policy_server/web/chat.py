"""OpenAI's interface to the served models: `GET /v1/models` and `POST /v1/chat/completions`.

What the official client, litellm, verifiers, Inspect and this project's own teacher send is answered; what has no
effect here is refused by name (`unsupported_parameter`), except for hints such as `user` and `seed`. Images come as
`data:` URLs: no address is ever fetched. A stream begins when the whole answer is known, because the model answers
whole batches; its chunks are the answer's words.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Annotated, Any, Literal
from uuid import uuid4

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from policy_server.admission import images
from policy_server.admission.control import AdmissionControl, ChatQuery, ChatResult
from policy_server.refusals import RequestRefused
from policy_server.web.actions import GATE_RESPONSES, Responses, json_only, unless_gone
from policy_server.web.conversion import timing_header
from policy_server.web.gate import CALLER, CHAT
from policy_server.web.schemas import MAX_NUMBER, Name

LEAST_TEMPERATURE = 1e-4  # a lower one is greedy decoding
MAX_MESSAGES, MAX_TEXT, MAX_IMAGES = 1000, 400_000, 16  # of a conversation; characters of all its messages together
IGNORED = ("user", "seed", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "tool_choice",
           "parallel_tool_calls", "reasoning_effort", "verbosity")  # fmt: skip
NEUTRAL: tuple[Any, ...] = (None, False, 0, [], {}, {"type": "text"})  # values that ask for nothing
_DATA_URL = re.compile(r"data:image/(?:png|jpe?g);base64,", re.IGNORECASE)
_RESPONSES: Responses = {
    **GATE_RESPONSES,
    400: {"description": "a field is missing, out of range or unknown, or the image is no data: URL"},
    404: {"description": "a model that is not served"},
    429: {"description": "too many requests"},
    500: {"description": "the model failed"},
    503: {"description": "queue full, deadline passed, or shutting down"},
}


class _Part(BaseModel):
    """The fields that are read of a message's part; others, such as `detail`, have no effect."""


class TextPart(_Part):
    """A text of a message."""

    type: Literal["text"]
    text: str


class ImageUrl(_Part):
    """Where an image is: `data:image/png;base64,…` or JPEG's."""

    url: str


class ImagePart(_Part):
    """An image of a message."""

    type: Literal["image_url"]
    image_url: ImageUrl


class ChatMessage(BaseModel):
    """One message; `developer` is a newer name of `system`."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[Annotated[TextPart | ImagePart, Field(discriminator="type")]], Field(max_length=100)]


class StreamOptions(BaseModel):
    """`include_usage` adds a last chunk with the numbers of tokens."""

    include_usage: bool = False


# At most four, as OpenAI's interface has it.
Stops = Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=4)]


class ChatRequest(BaseModel):
    """The body of POST /v1/chat/completions."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    model: Name = Field(min_length=1, description="a name from /v1/models")
    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_NUMBER, description="limit for the answer")
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_NUMBER, description="newer name of max_tokens")
    temperature: float | None = Field(default=None, ge=0, le=2, description="0: greedy decoding; default 1")
    top_p: float | None = Field(default=None, gt=0, le=1, description="default: the model's setting")
    n: int | None = Field(default=None, ge=1, le=16, description="answers")
    stop: Annotated[str, Field(max_length=200)] | Stops | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


def add_chat_routes(app: FastAPI, admission: AdmissionControl) -> None:
    """Add the routes below /v1 to `app`."""
    pool = admission.pool

    @app.get("/v1/models", responses={401: GATE_RESPONSES[401]})
    async def served() -> dict[str, Any]:
        """The models that a request can name."""
        return {"object": "list", "data": [_model(name) for name in pool.table]}

    @app.get("/v1/models/{name:path}", responses={401: GATE_RESPONSES[401], 404: _RESPONSES[404]})
    async def one(name: str) -> dict[str, Any]:
        """One of them."""
        pool.settings(name)
        return _model(name)

    @app.post(CHAT, responses=_RESPONSES, dependencies=[Depends(json_only)], response_model=None)
    async def chat(body: ChatRequest, request: Request, response: Response) -> dict[str, Any] | StreamingResponse:
        """The next message of a conversation."""
        query = query_from(body)
        result = await unless_gone(request, admission.chat(request.scope[CALLER], query, "chat"))
        headers = timing_header(result.seconds)
        head = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time()), "model": result.model}
        if body.stream:
            usage = bool(body.stream_options and body.stream_options.include_usage)
            return StreamingResponse(_events(head, result, usage), media_type="text/event-stream", headers=headers)
        response.headers.update(headers)
        return completion(head, result)


def query_from(body: ChatRequest) -> ChatQuery:
    """The query that a request makes; RequestRefused (400) for what cannot be answered as it is asked."""
    for name, value in (body.model_extra or {}).items():
        if name not in IGNORED and value not in NEUTRAL:
            reason = f"the parameter {name[:80]} is not supported"
            raise RequestRefused(400, "unsupported_parameter", reason, param=name[:80])
    if body.messages[-1].role != "user":
        raise RequestRefused(400, "invalid_request", "the last message must be the user's", param="messages")
    parts = [part for message in body.messages if not isinstance(message.content, str) for part in message.content]
    # A message's content is a text, or a list of parts.
    texts = [message.content for message in body.messages if isinstance(message.content, str)]
    texts += [part.text for part in parts if isinstance(part, TextPart)]
    # Before any image is decoded or any text written as tokens, both of which take time for a conversation too long.
    if sum(map(len, texts)) > MAX_TEXT:
        reason = f"a conversation may have at most {MAX_TEXT} characters"
        raise RequestRefused(400, "context_length_exceeded", reason, param="messages")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        reason = "a text holds half a surrogate pair, which is no character"
        raise RequestRefused(400, "invalid_request", reason, param="messages") from error
    if sum(isinstance(part, ImagePart) for part in parts) > MAX_IMAGES:
        reason = f"a conversation may have at most {MAX_IMAGES} images"
        raise RequestRefused(400, "invalid_request", reason, param="messages")
    temperature = 1.0 if body.temperature is None else body.temperature  # 1 is OpenAI's default
    # "developer" is OpenAI's newer name of the role that chat templates call "system".
    roles = ("system" if message.role == "developer" else message.role for message in body.messages)
    return ChatQuery(
        turns=tuple(zip(roles, map(_parts, body.messages), strict=True)),
        model=body.model,
        temperature=temperature if temperature >= LEAST_TEMPERATURE else 0.0,
        top_p=body.top_p,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        number=body.n or 1,
        stop=(body.stop,) if isinstance(body.stop, str) and body.stop else tuple(body.stop or ()),
    )


def _parts(message: ChatMessage) -> tuple[str | bytes, ...]:
    """A message's texts, and its images as encoded files."""
    if isinstance(message.content, str):
        return (message.content,)
    parts: list[str | bytes] = []
    for part in message.content:
        if isinstance(part, TextPart):
            parts.append(part.text)
        elif head := _DATA_URL.match(part.image_url.url):
            parts.append(images.from_base64(part.image_url.url[head.end() :]))
        else:  # a server that fetches what a client names can be sent into its own network
            reason = "an image is given as a data: URL with a JPEG or PNG file in base64; no address is fetched"
            raise RequestRefused(400, "remote_image_url", reason, param="messages")
    return tuple(parts)


def _model(name: str) -> dict[str, Any]:
    # All fields that OpenAI's schema of a model requires; a folder of weights has no date.
    return {"id": name, "object": "model", "created": 0, "owned_by": "emac-plus"}


def usage_of(result: ChatResult) -> dict[str, int]:
    """The numbers of tokens; the prompt counts once, however many answers there are."""
    prompt, written = result.answers[0].prompt_tokens, sum(answer.completion_tokens for answer in result.answers)
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def completion(head: dict[str, Any], result: ChatResult) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": None,
            "finish_reason": "length" if answer.cut else "stop",
        }
        for index, answer in enumerate(result.answers)
    ]
    return {**head, "object": "chat.completion", "choices": choices, "usage": usage_of(result)}


def _events(head: dict[str, Any], result: ChatResult, usage: bool) -> Iterator[str]:
    """The same as server-sent events: for each answer its role, its words, its end; then usage, then [DONE]."""
    head = {**head, "object": "chat.completion.chunk"}

    def event(choices: list[dict[str, Any]], **more: Any) -> str:
        return f"data: {json.dumps({**head, 'choices': choices, **more})}\n\n"

    def chunk(index: int, delta: dict[str, str], end: str | None = None) -> str:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": end}
        # OpenAI's stream with `include_usage` has `usage: null` in every chunk but the last.
        return event([choice], **({"usage": None} if usage else {}))

    for index, answer in enumerate(result.answers):
        yield chunk(index, {"role": "assistant", "content": ""})
        # Each word with the blanks before it, and blanks at the end: joined, the chunks are the answer to the letter.
        yield from (chunk(index, {"content": word}) for word in re.findall(r"\s*\S+|\s+$", answer.text))
        yield chunk(index, {}, "length" if answer.cut else "stop")
    if usage:
        yield event([], usage=usage_of(result))  # as OpenAI's last chunk: no choices, the usage alone
    # OpenAI's streams end so: its client reads no further.
    yield "data: [DONE]\n\n"
