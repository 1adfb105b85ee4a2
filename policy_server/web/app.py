"""The FastAPI application: routes for state and pages, error bodies, and everything put together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from starlette.exceptions import HTTPException

from policy_server.admission.control import AdmissionControl
from policy_server.metrics import Metrics
from policy_server.refusals import RequestRefused
from policy_server.web.actions import GATE_RESPONSES, Responses, add_action_routes
from policy_server.web.api_keys import ApiKeys
from policy_server.web.chat import add_chat_routes
from policy_server.web.conversion import reasons, recent_from
from policy_server.web.gate import ACTIONS, CALLER, CHAT, GateMiddleware
from policy_server.web.responses import SECURITY_HEADERS, refusal_headers, refusal_status_and_body
from policy_server.web.schemas import (
    ErrorBody,
    HealthStatus,
    ModelEntry,
    ServiceStatus,
    SessionForgotten,
    SessionName,
)
from xrl_alignment.show import PAGE

SERVICE = "QWEN VLM Policy Server"
_UI = Path(__file__).parent / "ui"
# The page loads nothing from other hosts, and no text in it can become a script.
_UI_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_NO_KEY: Responses = {401: GATE_RESPONSES[401]}


def create_app(admission: AdmissionControl, keys: ApiKeys) -> FastAPI:
    """The application around `admission`; without `keys` it answers programs of this machine only."""
    pool = admission.pool

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        admission.start()
        yield
        await admission.stop()

    app = FastAPI(
        title=SERVICE,
        description="One vision-language model, many games: images in, actions out.",
        version="1",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages load their scripts from a public host
        redoc_url=None,
        responses={421: GATE_RESPONSES[421]},
    )
    add_action_routes(app, admission)
    add_chat_routes(app, admission)

    # The server's state.
    @app.get("/")
    async def online() -> ServiceStatus:
        """Whether the server is online."""
        model = pool.loaded(pool.default)
        device = model.device if model else ""
        return ServiceStatus(status="online", service=SERVICE, model_loaded=model is not None, device=device)

    @app.get("/health")
    async def health() -> HealthStatus:
        """Whether the server accepts requests, and its default model."""
        model = pool.loaded(pool.default)
        status = "draining" if admission.draining else "healthy"
        device = model.device if model else ""
        return HealthStatus(status=status, model=pool.default, device=device, ready=not admission.draining)

    @app.get("/models", responses=_NO_KEY)
    async def models() -> list[ModelEntry]:
        """The models that a request can name."""
        return [ModelEntry(**entry) for entry in pool.status()]

    @app.delete("/sessions/{name}", responses={**_NO_KEY, 422: {"model": ErrorBody}})
    async def forget(name: SessionName, request: Request) -> SessionForgotten:
        """Forget a session's history, because a new episode begins."""
        return SessionForgotten(forgotten=admission.sessions.forget(request.scope[CALLER], name))

    # Pages for people and for Prometheus.
    @app.get("/metrics", responses=_NO_KEY, response_class=Response)
    async def metrics() -> Response:
        """Metrics in Prometheus' text format."""
        return Response(admission.metrics.text(), media_type=Metrics.CONTENT_TYPE)

    @app.get("/ui/recent", responses=_NO_KEY)
    async def recent(request: Request) -> list[dict[str, Any]]:
        """The caller's last steps, newest first."""
        own = list(admission.recent.get(request.scope[CALLER], ()))
        # In a thread: each thumbnail becomes a JPEG, and the event loop answers others meanwhile.
        return await asyncio.to_thread(lambda: [recent_from(step) for step in reversed(own)])

    # The page's files by their paths: no path that a request names reaches the disk.
    files = {
        "/ui": _UI / "index.html",
        "/ui/app.js": _UI / "app.js",
        "/ui/style.css": _UI / "style.css",
        "/ui/base.css": PAGE / "base.css",
    }

    async def page(request: Request) -> FileResponse:
        return FileResponse(files[request.scope["route"].path], headers={"Content-Security-Policy": _UI_POLICY})

    for path in files:
        app.add_api_route(path, page, include_in_schema=False)

    _add_refusals(app, admission)
    app.add_middleware(GateMiddleware, admission=admission, keys=keys)
    return app


def _add_refusals(app: FastAPI, admission: AdmissionControl) -> None:
    """Every response that is not a success has the same JSON form."""

    @app.exception_handler(RequestRefused)
    async def refused(request: Request, refusal: RequestRefused) -> JSONResponse:
        path = request.url.path
        status, body = refusal_status_and_body(refusal, path)
        if path in ACTIONS:
            admission.refused("chat" if path == CHAT else "http", request.scope.get(CALLER, "-"), refusal, status)
        return JSONResponse(body, status, refusal_headers(refusal))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return await refused(request, RequestRefused(422, "invalid_request", reasons(error.errors())))

    # Starlette's own refusals: no such path, or another method than the path has.
    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> JSONResponse:
        refusal = RequestRefused(error.status_code, "http", str(error.detail))
        status, body = refusal_status_and_body(refusal, request.url.path)
        return JSONResponse(body, status, error.headers)

    # A bug of ours. Starlette raises it again after this answer, so the server's log has the traceback.
    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        refusal = RequestRefused(500, "internal_error", "the server failed; its log has the reason")
        answer = await refused(request, refusal)
        # Here, because this answer does not pass the gate; uvicorn ends the connection after an error.
        answer.headers.update({**SECURITY_HEADERS, "Connection": "close"})
        return answer
