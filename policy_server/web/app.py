"""HTTP and WebSocket: routes, and nothing but the translation between the wire and `Admission`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Query, Request, Response, WebSocket, WebSocketDisconnect
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from policy_server.admission import images
from policy_server.admission.control import Admission, Ask, Outcome, Seen
from policy_server.metrics import Metrics
from policy_server.refusals import Refusal
from policy_server.web.api_keys import KeyRing
from policy_server.web.gate import ACTIONS, CALLER, Gate, refusal_headers
from policy_server.web.schemas import (
    ActionFields,
    ActionRequest,
    ActionResponse,
    Forgotten,
    Health,
    ModelEntry,
    Online,
    Refused,
    SessionName,
    TextFields,
)

SERVICE = "QWEN VLM Policy Server"
IMAGE_TYPES = ("image/jpeg", "image/png")
_UI = Path(__file__).parent / "ui"
# The page loads nothing from elsewhere, and no text in it can become a script.
_UI_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'"
_MESSAGES = {401: "no valid key", 408: "body too slow", 413: "body or image too large", 421: "wrong host name"}
_REFUSALS = {status: {"model": Refused, "description": text} for status, text in _MESSAGES.items()}
_ACTION_REFUSALS: dict[int | str, dict[str, Any]] = {
    **_REFUSALS,
    400: {"model": Refused, "description": "not readable"},
    403: {"model": Refused, "description": "a page of another site"},
    404: {"model": Refused, "description": "unknown task or model"},
    415: {"model": Refused, "description": "another content type"},
    422: {"model": Refused, "description": "a field is missing or out of range, not an image, …"},
    429: {"model": Refused, "description": "too many requests"},
    500: {"model": Refused, "description": "the model failed"},
    503: {"model": Refused, "description": "queue full, too late, or shutting down"},
}
_BINARY_BODY = {
    "requestBody": {
        "required": True,
        "content": {name: {"schema": {"type": "string", "format": "binary"}} for name in IMAGE_TYPES},
    }
}
ResultT = TypeVar("ResultT")


def create_app(admission: Admission, keys: KeyRing, *, loopback: bool) -> FastAPI:
    """The application around an `Admission`; `loopback` says that only this machine can reach it."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI):
        admission.start()
        yield
        await admission.stop()

    app = FastAPI(
        title=SERVICE,
        description="One vision-language model, many games: pictures in, actions out.",
        version="1",
        lifespan=lifespan,
        redoc_url=None,
        responses={421: _REFUSALS[421]},
    )
    _add_state_routes(app, admission)
    _add_action_routes(app, admission)
    _add_pages(app, admission)
    _add_error_handlers(app, admission)
    app.add_middleware(Gate, admission=admission, keys=keys, loopback_only=loopback and not keys)
    return app


def _add_state_routes(app: FastAPI, admission: Admission) -> None:
    pool = admission.pool

    @app.get("/")
    async def online() -> Online:
        """Whether the server is there."""
        model = pool.loaded(pool.default)
        device = model.device if model else ""
        return Online(status="online", service=SERVICE, model_loaded=model is not None, device=device)

    @app.get("/health")
    async def health() -> Health:
        """Whether the server takes requests, and with which model."""
        model = pool.loaded(pool.default)
        status = "draining" if admission.draining else "healthy"
        device = model.device if model else ""
        return Health(status=status, model=pool.default, device=device, ready=not admission.draining)

    @app.get("/models", responses={401: _REFUSALS[401]})
    async def models() -> list[ModelEntry]:
        """The models that a request may name."""
        return [ModelEntry(**entry) for entry in pool.status()]

    @app.delete("/sessions/{name}", responses={401: _REFUSALS[401], 422: {"model": Refused}})
    async def forget(name: SessionName, request: Request) -> Forgotten:
        """Forget a session's history: a new episode begins."""
        return Forgotten(forgotten=admission.sessions.forget(request.scope[CALLER], name))


def _add_action_routes(app: FastAPI, admission: Admission) -> None:
    @app.post("/get_action", responses=_ACTION_REFUSALS, dependencies=[Depends(_json_only)])
    async def get_action(body: ActionRequest, request: Request, response: Response) -> ActionResponse:
        """The action for a picture in base64."""
        ask = _ask(body, images.from_base64(body.image.data))
        return _reply(ask, await _act(admission, request, ask), response)

    @app.post("/get_action/image", responses=_ACTION_REFUSALS, openapi_extra=_BINARY_BODY)
    async def get_action_for_image(
        fields: Annotated[ActionFields, Query()], request: Request, response: Response
    ) -> ActionResponse:
        """The action for a picture that is the body itself; all else stands in the address."""
        _check_type(request, IMAGE_TYPES)
        ask = _ask(fields, await request.body())
        return _reply(ask, await _act(admission, request, ask), response)

    @app.websocket("/ws")
    async def steps(socket: WebSocket) -> None:
        """Step after step on one connection; see `_Stream`."""
        await socket.accept()
        with contextlib.suppress(WebSocketDisconnect):
            await _Stream(socket, admission).run()


async def _json_only(request: Request) -> None:
    """Without this, JSON that is sent as a form is only said to be no object."""
    _check_type(request, ("application/json",))


def _check_type(request: Request, kinds: tuple[str, ...]) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in kinds:
        raise Refusal(415, "wrong_content_type", f"Content-Type must be {' or '.join(kinds)}, not {kind[:80]!r}")


def _ask(fields: ActionFields, image: bytes) -> Ask:
    text = fields if isinstance(fields, TextFields) else TextFields(task_name=fields.task_name)
    return Ask(
        image=image,
        task=fields.task_name,
        step=fields.step,
        temperature=fields.temperature,
        max_tokens=fields.max_tokens,
        model=fields.model,
        session=fields.session,
        prompt=text.prompt,
        commands=tuple(text.admissible_commands),
    )


def _reply(ask: Ask, outcome: Outcome, response: Response) -> ActionResponse:
    response.headers["Server-Timing"] = ", ".join(f"{k};dur={1000 * v:.3f}" for k, v in outcome.seconds.items())
    response.headers["X-Policy-Model"] = outcome.model
    response.headers["X-Policy-Cache"] = "hit" if outcome.cached else "miss"
    return ActionResponse(action=outcome.reading.action, reasoning=outcome.reading.reasoning, step=ask.step)


async def _act(admission: Admission, request: Request, ask: Ask) -> Outcome:
    return await _while_connected(request, admission.act(request.scope[CALLER], ask, "http"))


async def _while_connected(request: Request, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """The result of `work`, which is given up when the client leaves: nobody would read the answer."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Refusal(499, "client_gone", "the client has closed the connection")
        return task.result()
    finally:
        gone.cancel()
        task.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


class _Stream:
    """Steps over a WebSocket, answered in their order.

    A text message is the JSON of a request; without `image` its fields stand for what follows. A binary message is a
    JPEG or PNG with the fields of the last text message; where that one gave no `step`, steps are counted. Every
    message with a picture gets one JSON message: the answer, or `{"error", "detail", "status"}`.
    """

    def __init__(self, socket: WebSocket, admission: Admission) -> None:
        self.socket = socket
        self.admission = admission
        self.caller: str = socket.scope[CALLER]
        self.fields: dict[str, Any] = {}
        self.step = -1

    async def run(self) -> None:
        """Until the client closes the connection."""
        while True:
            message = await self.socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            try:
                answer = await self._answer(message)
            except Refusal as refusal:
                self.admission.refused("ws", self.caller, refusal)
                answer = {**refusal.body(), "status": refusal.status}
                if refusal.retry_after_s is not None:
                    answer["retry_after_s"] = refusal.retry_after_s
            if answer:
                await self.socket.send_json(answer)

    async def _answer(self, message: Any) -> dict[str, Any] | None:
        if message.get("bytes") is None:
            fields = _json_object(message.get("text") or "")
            if "image" in fields:
                request = _validated(ActionRequest, fields)
                return await self._act(_ask(request, images.from_base64(request.image.data)))
            _validated(TextFields, fields)
            self.fields, self.step = fields, fields.get("step", 0) - 1
            return None
        if not self.fields:
            raise Refusal(422, "invalid_request", "send the fields (task_name, …) as a text message first")
        self.step += 1
        return await self._act(_ask(_validated(TextFields, {**self.fields, "step": self.step}), message["bytes"]))

    async def _act(self, ask: Ask) -> dict[str, Any]:
        self.admission.admit(self.caller)
        outcome = await self.admission.act(self.caller, ask, "ws")
        return _reply(ask, outcome, Response()).model_dump()


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "invalid_request", f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Refusal(422, "invalid_request", "a message is a JSON object")
    return value


ModelT = TypeVar("ModelT", bound=BaseModel)


def _validated(kind: type[ModelT], fields: dict[str, Any]) -> ModelT:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise Refusal(422, "invalid_request", _reasons(error.errors())) from error


def _reasons(errors: Any) -> str:
    """One line from pydantic's list; what the client sent is not repeated (it may be a picture)."""
    return "; ".join(_reason(error) for error in list(errors)[:5])


def _reason(error: Mapping[str, Any]) -> str:
    if error["type"] == "json_invalid":
        return f"the body is not JSON: {error['ctx']['error']} at character {error['loc'][-1]}"
    return f"{'.'.join(map(str, error['loc']))}: {error['msg']}"


def _add_error_handlers(app: FastAPI, admission: Admission) -> None:
    """Everything that is not a success has the same JSON form."""

    @app.exception_handler(Refusal)
    async def refused(request: Request, refusal: Refusal) -> JSONResponse:
        if request.url.path in ACTIONS:
            admission.refused("http", request.scope[CALLER], refusal)
        return JSONResponse(refusal.body(), refusal.status, refusal_headers(refusal))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return await refused(request, Refusal(422, "invalid_request", _reasons(error.errors())))

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": "http", "detail": str(error.detail)}, error.status_code, error.headers)


def _add_pages(app: FastAPI, admission: Admission) -> None:
    @app.get("/metrics", responses={401: _REFUSALS[401]}, response_class=Response)
    async def metrics() -> Response:
        """Counters in Prometheus' text format."""
        return Response(admission.metrics.text(), media_type=Metrics.CONTENT_TYPE)

    @app.get("/ui/recent", responses={401: _REFUSALS[401]})
    async def recent(request: Request) -> list[dict[str, Any]]:
        """The caller's last steps, newest first."""
        seen = [step for step in admission.recent if step.caller == request.scope[CALLER]]
        return await asyncio.to_thread(lambda: [_shown(step) for step in reversed(seen)])

    for path, file in (("/ui", "index.html"), ("/ui/app.js", "app.js"), ("/ui/style.css", "style.css")):
        app.add_api_route(path, _page(_UI / file), include_in_schema=False)


def _page(file: Path) -> Any:
    async def page() -> FileResponse:
        return FileResponse(file, headers={"Content-Security-Policy": _UI_POLICY, "X-Content-Type-Options": "nosniff"})

    return page


def _shown(step: Seen) -> dict[str, Any]:
    return {
        "when": step.when,
        "task": step.ask.task,
        "step": step.ask.step,
        "session": step.ask.session,
        "model": step.outcome.model,
        "cached": step.outcome.cached,
        "milliseconds": round(1000 * step.outcome.seconds.get("total", 0.0), 1),
        "action": step.outcome.reading.action,
        "reasoning": step.outcome.reading.reasoning,
        "image": images.as_data_url(step.thumbnail),
    }
