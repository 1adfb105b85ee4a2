"""Conversion between the JSON messages and the records of `admission`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from policy_server.admission import images
from policy_server.admission.control import ActionQuery, ActionResult, RecentStep
from policy_server.refusals import RequestRefused
from policy_server.web.schemas import ActionFields, ActionResponse, TextFields

MAX_REASONS = 5  # validation errors that a response lists

SchemaT = TypeVar("SchemaT", bound=BaseModel)


def query_from(fields: ActionFields, image: bytes) -> ActionQuery:
    """The query that a message with `fields` and the encoded `image` makes."""
    return ActionQuery(
        image=image,
        task=fields.task_name,
        step=fields.step,
        temperature=fields.temperature,
        max_tokens=fields.max_tokens,
        model=fields.model,
        session=fields.session,
        prompt=fields.prompt if isinstance(fields, TextFields) else "",
        commands=tuple(fields.admissible_commands) if isinstance(fields, TextFields) else (),
    )


def response_from(query: ActionQuery, result: ActionResult) -> ActionResponse:
    """The response to `query`."""
    return ActionResponse(action=result.parsed.action, reasoning=result.parsed.reasoning, step=query.step)


def headers_from(result: ActionResult) -> dict[str, str]:
    """The HTTP headers of a response: times in milliseconds, the model, and whether the cache answered."""
    return {
        **timing_header(result.seconds),
        "X-Policy-Model": result.model,
        "X-Policy-Cache": "hit" if result.cached else "miss",
    }


def timing_header(seconds: Mapping[str, float]) -> dict[str, str]:
    """The seconds of each stage in milliseconds, as the header `Server-Timing` has them."""
    # Milliseconds are the header's own unit (W3C, Server Timing); browsers show it beside the request.
    return {"Server-Timing": ", ".join(f"{stage};dur={1000 * s:.3f}" for stage, s in seconds.items())}


def recent_from(step: RecentStep) -> dict[str, Any]:
    """A step as `/ui/recent` returns it."""
    return {
        "when": step.when,
        "task": step.query.task,
        "step": step.query.step,
        "session": step.query.session,
        "model": step.result.model,
        "cached": step.result.cached,
        "milliseconds": round(1000 * step.result.seconds.get("total", 0.0), 1),
        "action": step.result.parsed.action,
        "reasoning": step.result.parsed.reasoning,
        "image": images.as_data_url(step.thumbnail),
    }


def json_object(text: str) -> dict[str, Any]:
    """The JSON object in `text`; RequestRefused for anything else."""
    try:
        value = json.loads(text)
    # RecursionError: brackets in brackets, deeper than Python's stack.
    except (ValueError, RecursionError) as error:
        raise RequestRefused(400, "invalid_request", f"not JSON: {error}") from error
    if not isinstance(value, dict):
        # FastAPI's own status for JSON of another form than the route takes.
        raise RequestRefused(422, "invalid_request", "a message is a JSON object")
    return value


def validated(schema: type[SchemaT], fields: Mapping[str, Any]) -> SchemaT:
    """`fields` as `schema`; RequestRefused (422) with the reasons if they do not fit."""
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        raise RequestRefused(422, "invalid_request", reasons(error.errors())) from error


def reasons(errors: Iterable[Mapping[str, Any]]) -> str:
    """pydantic's errors in one line. It does not repeat the client's values: one of them can be an image."""
    return "; ".join(
        f"the body is not JSON: {error['ctx']['error']} at character {error['loc'][-1]}"
        if error["type"] == "json_invalid"
        else f"{'.'.join(map(str, error['loc']))}: {error['msg']}"
        for error in list(errors)[:MAX_REASONS]
    )
