"""The JSON messages. The fields down to `max_tokens` are the published interface; the later ones are optional."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from policy_server.settings import MODEL_NAME

Name = Annotated[str, StringConstraints(max_length=200, pattern=rf"^({MODEL_NAME.pattern})?$")]
SessionName = Annotated[str, StringConstraints(max_length=64, pattern=r"^[A-Za-z0-9_.:-]*$")]
Command = Annotated[str, StringConstraints(max_length=200)]
MAX_NUMBER = 2**31 - 1  # of a field; how many tokens a model gives is its setting `max_tokens`


class _Strict(BaseModel):
    # A misspelt field would else be ignored without a word; NaN and infinity are no JSON.
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class ActionFields(_Strict):
    """The fields of a request for an action, on every route."""

    task_name: str = Field(max_length=200, description="a MineRL BASALT environment's id, or ALFWorld")
    step: int = Field(default=0, ge=0, le=MAX_NUMBER, description="the response repeats it")
    temperature: float = Field(default=0.7, ge=0, le=2, description="0: greedy decoding")
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        le=MAX_NUMBER,
        description="limit for the model's answer; without one 512, or as many as the model gives",
    )
    model: Name = Field(default="", description="a name from /models; empty: the default model")
    session: SessionName = Field(default="", description="requests with the same name share a history; empty: none")


class TextFields(ActionFields):
    """Fields for text tasks; only the JSON routes have them."""

    prompt: str = Field(
        default="", max_length=100_000, description="ALFWorld: the episode's text; MineRL: advice for the model"
    )
    admissible_commands: list[Command] = Field(
        default_factory=list, max_length=1000, description="ALFWorld: the admissible commands"
    )


class EncodedImage(_Strict):
    """An image in JSON."""

    data: str = Field(min_length=1, description="JPEG or PNG in base64")


class ActionRequest(TextFields):
    """The body of POST /get_action."""

    image: EncodedImage


class ActionResponse(BaseModel):
    """The response to an image. `action` has every key of MineRL's action space, or `command` for ALFWorld."""

    action: dict[str, Any]
    reasoning: str
    step: int


class ServiceStatus(BaseModel):
    """The response of GET /."""

    status: str
    service: str
    model_loaded: bool
    device: str


class HealthStatus(BaseModel):
    """The response of GET /health."""

    status: str
    model: str
    device: str
    ready: bool


class ModelEntry(BaseModel):
    """A model in the response of GET /models."""

    name: str
    path: str
    loaded: bool
    device: str
    bytes: int


class SessionForgotten(BaseModel):
    """The response of DELETE /sessions/{name}: whether the session existed."""

    forgotten: bool


class ErrorBody(BaseModel):
    """The body of every response that is not a success."""

    error: str
    detail: str
