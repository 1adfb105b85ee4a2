"""The JSON of the wire. The names down to `max_tokens` are the published interface; the others are optional."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(max_length=200, pattern=r"^[\w./:-]*$")]
SessionName = Annotated[str, StringConstraints(max_length=64, pattern=r"^[A-Za-z0-9_.:-]*$")]
Command = Annotated[str, StringConstraints(max_length=200)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class ActionFields(_Strict):
    """What comes with a picture, whichever way it travels."""

    task_name: str = Field(max_length=200, description="a MineRL BASALT environment's id, or ALFWorld")
    step: int = Field(0, ge=0, le=2**31 - 1, description="comes back in the answer")
    temperature: float = Field(0.7, ge=0, le=2, description="0 always takes the most probable token")
    max_tokens: int = Field(512, ge=1, le=8192, description="of the model's answer")
    model: Name = Field("", description="one of /models; empty: the default model")
    session: SessionName = Field("", description="requests with the same name share a history; empty: none")


class TextFields(ActionFields):
    """Further fields of text tasks; these need JSON."""

    prompt: str = Field("", max_length=100_000, description="ALFWorld: the episode's text; MineRL: further advice")
    admissible_commands: list[Command] = Field(
        default_factory=list, max_length=1000, description="ALFWorld: the commands that are possible now"
    )


class EncodedImage(_Strict):
    """A picture in JSON."""

    data: str = Field(min_length=1, description="JPEG or PNG in base64")


class ActionRequest(TextFields):
    """The body of POST /get_action."""

    image: EncodedImage


class ActionResponse(BaseModel):
    """The answer to a picture: for MineRL every key of the action space, for ALFWorld `{"command": …}`."""

    action: dict[str, Any]
    reasoning: str
    step: int


class Online(BaseModel):
    """GET /."""

    status: str
    service: str
    model_loaded: bool
    device: str


class Health(BaseModel):
    """GET /health."""

    status: str
    model: str
    device: str
    ready: bool


class ModelEntry(BaseModel):
    """A model of GET /models."""

    name: str
    path: str
    loaded: bool
    device: str
    bytes: int


class Forgotten(BaseModel):
    """DELETE /sessions/{name}."""

    forgotten: bool


class Refused(BaseModel):
    """The body of every answer that is not a success."""

    error: str
    detail: str
