"""The routes that answer an image with an action: `/get_action`, `/get_action/image`, and `/ws`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Query, Request, Response, WebSocket, WebSocketDisconnect

from policy_server.admission import images
from policy_server.admission.control import ActionQuery, AdmissionControl
from policy_server.refusals import RequestRefused
from policy_server.web.conversion import headers_from, query_from, response_from
from policy_server.web.gate import CALLER
from policy_server.web.schemas import ActionFields, ActionRequest, ActionResponse, ErrorBody
from policy_server.web.websocket import WebSocketSteps

ResultT = TypeVar("ResultT")

IMAGE_TYPES = ("image/jpeg", "image/png")
Responses = dict[int | str, dict[str, Any]]

_GATE_REASONS = {401: "no valid key", 408: "body too slow", 413: "body or image too large", 421: "wrong host name"}
# The refusals of `web.gate`, as the OpenAPI description lists them.
GATE_RESPONSES: Responses = {
    status: {"model": ErrorBody, "description": text} for status, text in _GATE_REASONS.items()
}
_RESPONSES: Responses = {
    **GATE_RESPONSES,
    400: {"model": ErrorBody, "description": "not readable"},
    403: {"model": ErrorBody, "description": "a page of another site"},
    404: {"model": ErrorBody, "description": "unknown task or model"},
    415: {"model": ErrorBody, "description": "another content type"},
    422: {"model": ErrorBody, "description": "a field is missing or out of range, or the image is damaged"},
    429: {"model": ErrorBody, "description": "too many requests"},
    500: {"model": ErrorBody, "description": "the model failed"},
    503: {"model": ErrorBody, "description": "queue full, deadline passed, or shutting down"},
}
_IMAGE_BODY = {
    "requestBody": {
        "required": True,
        "content": {name: {"schema": {"type": "string", "format": "binary"}} for name in IMAGE_TYPES},
    }
}


def add_action_routes(app: FastAPI, admission: AdmissionControl) -> None:
    """Add the three routes to `app`."""

    async def answer(query: ActionQuery, request: Request, response: Response) -> ActionResponse:
        result = await unless_gone(request, admission.act(request.scope[CALLER], query, "http"))
        response.headers.update(headers_from(result))
        return response_from(query, result)

    @app.post("/get_action", responses=_RESPONSES, dependencies=[Depends(json_only)])
    async def get_action(body: ActionRequest, request: Request, response: Response) -> ActionResponse:
        """The action for an image in base64."""
        return await answer(query_from(body, images.from_base64(body.image.data)), request, response)

    @app.post("/get_action/image", responses=_RESPONSES, openapi_extra=_IMAGE_BODY)
    async def get_action_for_image(
        fields: Annotated[ActionFields, Query()], request: Request, response: Response
    ) -> ActionResponse:
        """The action for an image that is the whole body; the fields are in the query string."""
        _check_type(request, IMAGE_TYPES)
        return await answer(query_from(fields, await request.body()), request, response)

    @app.websocket("/ws")
    async def steps(socket: WebSocket) -> None:
        """Step after step on one connection; see `WebSocketSteps`."""
        await socket.accept()
        with contextlib.suppress(WebSocketDisconnect):
            await WebSocketSteps(socket, admission, socket.scope[CALLER]).run()


async def json_only(request: Request) -> None:
    """Without this check, FastAPI answers a form only with "not an object"."""
    _check_type(request, ("application/json",))


def _check_type(request: Request, kinds: tuple[str, ...]) -> None:
    # Parameters (`; charset=utf-8`) say nothing here, and case does not count (RFC 9110, 8.3.1).
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in kinds:
        raise RequestRefused(415, "wrong_content_type", f"Content-Type must be {' or '.join(kinds)}, not {kind[:80]!r}")


async def unless_gone(request: Request, answer: Coroutine[Any, Any, ResultT]) -> ResultT:
    """`answer`, given up if the client disconnects, because nobody would read the response."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            continue

    # `wait` ends with the first of the two and leaves the other one running, so both are cancelled at the end.
    work = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            # nginx's code for it; it appears in log and metrics only, for nobody reads the response.
            raise RequestRefused(499, "client_gone", "the client has closed the connection")
        return work.result()
    finally:
        gone.cancel()
        work.cancel()
