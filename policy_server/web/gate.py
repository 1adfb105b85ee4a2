"""Checks before a request's body is read: host name, API key, rate, room in the queue, size.

This is an ASGI middleware, because only there a request can be refused before its body is read.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from policy_server.admission.control import AdmissionControl
from policy_server.refusals import RequestRefused
from policy_server.web.api_keys import ApiKeys
from xrl_alignment.common.network import is_loopback

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = ("/", "/health", "/openapi.json", "/docs", "/ui", "/ui/app.js", "/ui/style.css")  # no key needed
ACTIONS = ("/get_action", "/get_action/image")
CALLER = "policy_server.caller"  # the scope's entry with the caller's name
DISCARD_S = 5.0  # seconds to read a refused body, so that its sender gets the reason and not a connection reset


class GateMiddleware:
    """Checks a request, reads its whole body, passes it to the application, and turns refusals into JSON.

    With `loopback_only` the `Host` header must name this machine. Without keys this stops web pages that make a browser
    call this server under a host name of their own (DNS rebinding).
    """

    def __init__(self, app: AsgiApp, *, admission: AdmissionControl, keys: ApiKeys, loopback_only: bool) -> None:
        self.app = app
        self.admission = admission
        self.keys = keys
        self.loopback_only = loopback_only
        self.limits = admission.settings.server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry point."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        caller, unread = "-", scope["type"] == "http"
        try:
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
            self._check_host(headers)
            if scope["path"] not in OPEN:
                caller = scope[CALLER] = self.keys.caller(headers, (scope.get("client") or ("-",))[0])
            if scope["path"] in ACTIONS and scope["method"] == "POST":
                self.admission.admit(caller)
            if scope["type"] == "http":
                self._check_length(headers)
                unread = False
                receive = await self._with_body(receive)
        except RequestRefused as refusal:
            if scope["path"] in (*ACTIONS, "/ws"):
                self.admission.refused("ws" if scope["type"] == "websocket" else "http", caller, refusal)
            if unread:
                await _discard(receive)
            await _refuse(scope, send, refusal)
            return
        await self.app(scope, receive, send)

    def _check_host(self, headers: Mapping[str, str]) -> None:
        host = headers.get("host", "")
        if self.loopback_only and not is_loopback(_host_name(f"//{host}")):
            raise RequestRefused(421, "wrong_host", f"this server answers to localhost only, not to {host[:80]!r}")
        origin = headers.get("origin")
        if origin and _netloc(origin) != host.lower():
            raise RequestRefused(403, "wrong_origin", "pages of other sites may not use this server")

    def _check_length(self, headers: Mapping[str, str]) -> None:
        most = self.limits.max_body_bytes
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > most:
            raise RequestRefused(413, "body_too_large", f"the body has {length[:20]} bytes; the limit is {most}")

    async def _with_body(self, receive: Receive) -> Receive:
        """A `receive` with the whole body in one message; RequestRefused 413 (too large) or 408 (too slow)."""
        try:
            body = await asyncio.wait_for(_read(receive, self.limits.max_body_bytes), self.limits.body_timeout_s)
        except asyncio.TimeoutError as error:
            reason = f"the body took longer than {self.limits.body_timeout_s:g} s"
            raise RequestRefused(408, "too_slow", reason) from error
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        return replay


async def _refuse(scope: Scope, send: Send, refusal: RequestRefused) -> None:
    body = json.dumps(refusal.body()).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **refusal_headers(refusal)}
    kind = "http.response"
    if scope["type"] == "websocket":
        kind = "websocket.http.response"
        if kind not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008})
            return
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": f"{kind}.start", "status": refusal.status, "headers": raw})
    await send({"type": f"{kind}.body", "body": body})


def refusal_headers(refusal: RequestRefused) -> dict[str, str]:
    """The HTTP headers of a refusal."""
    headers = {}
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(math.ceil(refusal.retry_after_s))
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


async def _read(receive: Receive, most: int) -> bytes:
    body, size = bytearray(), 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestRefused(400, "incomplete", "the client left before its body was complete")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size <= most:
            body += chunk
        if message.get("more_body"):
            continue
        if size > most:
            raise RequestRefused(413, "body_too_large", f"the body has {size} bytes; the limit is {most}")
        return bytes(body)


async def _discard(receive: Receive) -> None:
    async def rest() -> None:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect" or not message.get("more_body"):
                return

    try:
        await asyncio.wait_for(rest(), DISCARD_S)
    except asyncio.TimeoutError:
        return  # the client still sends: uvicorn closes the connection after the answer


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # such as an unclosed bracket
        return ""


def _host_name(address: str) -> str:
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:  # such as an unclosed bracket
        return ""
