"""Checks before a request's body is read: host name, API key, rate, room in the queue, size.

This is an ASGI middleware, because only there a request can be refused before its body is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from policy_server.admission.control import AdmissionControl
from policy_server.admission.rate_limit import RateLimiter
from policy_server.refusals import RequestRefused
from policy_server.web.api_keys import KEYS_VARIABLE, ApiKeys
from policy_server.web.responses import SECURITY_HEADERS, refusal_response
from xrl_alignment.common.network import is_loopback

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = ("/", "/health", "/openapi.json", "/ui", "/ui/app.js", "/ui/base.css", "/ui/style.css")  # no key needed
CHAT = "/v1/chat/completions"
ACTIONS = ("/get_action", "/get_action/image", CHAT)  # what waits for a model
WEBSOCKET = "/ws"  # the only address for WebSockets
CALLER = "policy_server.caller"  # the scope's entry with the caller's name
WRONG_KEYS = 10  # requests without a valid key that an address may send at once …
WRONG_KEYS_PER_S = 1.0  # … and on average; they get 401, and those above 429
DISCARD_S = 5.0  # seconds to read a refused body, so that its sender gets the reason and not a connection reset


class GateMiddleware:
    """Checks a request, reads its whole body, passes it to the application, and turns refusals into JSON.

    Without keys it answers programs of this machine only: those that connect to a loopback address and name this
    machine in `Host`. The latter stops web pages that make a browser call this server under a host name of their own
    (DNS rebinding).
    """

    def __init__(self, app: AsgiApp, *, admission: AdmissionControl, keys: ApiKeys) -> None:
        self.app = app
        self.admission = admission
        self.keys = keys
        self.limits = admission.settings.server
        self.wrong_keys = RateLimiter(WRONG_KEYS_PER_S, WRONG_KEYS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry point."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        send = _with_security_headers(send)
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        unread = scope["type"] == "http"
        try:
            self._check_sender(scope, headers)
            if scope["type"] == "websocket":
                if scope["path"] != WEBSOCKET:
                    raise RequestRefused(404, "no_websocket", f"WebSockets are at {WEBSOCKET}")
                with self.admission.websocket():
                    await self.app(scope, receive, send)
                return
            # The size that the client announces; what it sends is counted while it is read.
            most = self.limits.max_body_bytes
            length = headers.get("content-length", "0")
            if not length.isdecimal() or int(length) > most:
                raise RequestRefused(413, "body_too_large", f"the body has {length[:20]} bytes; the limit is {most}")
            unread = False
            receive = await self._with_body(receive)
        except RequestRefused as refusal:
            if scope["path"] in (*ACTIONS, WEBSOCKET):
                transport = "chat" if scope["path"] == CHAT else "http"
                transport = "ws" if scope["type"] == "websocket" else transport
                self.admission.refused(transport, scope.get(CALLER, "-"), refusal)
            # A rest of the body, still on its way, must not keep the connection.
            rest = refusal.status == 408 or (unread and not await _discard(receive))
            await _refuse(scope, send, refusal, close=rest)
            return
        await self.app(scope, receive, send)

    def _check_sender(self, scope: Scope, headers: Mapping[str, str]) -> None:
        """Check address, host name, key and rate; notes the caller in `scope`."""
        # Proxies and servers disagree on which of two equal headers counts: the checks below must not depend on it.
        for name in (b"host", b"origin"):
            if sum(given.lower() == name for given, _ in scope["headers"]) > 1:
                raise RequestRefused(400, "ambiguous", f"the header {name.decode()} is given more than once")
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self.keys:
            listening, port = scope.get("server") or ("", None)
            if port is not None and not is_loopback(listening):
                reason = (
                    f"this server has no API keys, so it answers programs of its own machine only: set {KEYS_VARIABLE}"
                )
                raise RequestRefused(403, "no_keys", reason)
            if not is_loopback((_split(f"//{host}").hostname or "").lower()):
                raise RequestRefused(421, "wrong_host", f"this server answers to localhost only, not to {host[:80]!r}")
        # A browser names the page's site in `Origin`; programs send none.
        if origin and _split(origin).netloc.lower() != host.lower():
            raise RequestRefused(403, "wrong_origin", "pages of other sites may not use this server")
        if scope["path"] in OPEN:
            return
        address = (scope.get("client") or ("-",))[0]
        try:
            scope[CALLER] = caller = self.keys.caller(headers, address)
        except RequestRefused:
            self.wrong_keys.take(address)  # 429 after too many
            raise
        # The scope of a WebSocket has no method.
        if scope["path"] in ACTIONS and scope.get("method") == "POST":
            self.admission.admit(caller)
        else:
            self.admission.limiter.take(caller)

    async def _with_body(self, receive: Receive) -> Receive:
        """A `receive` with the whole body in one message; RequestRefused 413 (too large) or 408 (too slow)."""
        clock = asyncio.get_running_loop().time
        most, until = self.limits.max_body_bytes, clock() + self.limits.body_timeout_s
        body, size, more = bytearray(), 0, True
        while more:
            try:  # one deadline for the whole body: a client that sends a byte a second must not stay for hours
                message = await asyncio.wait_for(receive(), until - clock())
            except asyncio.TimeoutError as error:
                reason = f"the body took longer than {self.limits.body_timeout_s:g} s"
                raise RequestRefused(408, "too_slow", reason) from error
            if message["type"] == "http.disconnect":
                raise RequestRefused(400, "incomplete", "the client left before its body was complete")
            chunk = message.get("body", b"")
            size += len(chunk)
            if size <= most:  # what goes beyond the limit is read and counted, so that the sender gets the reason
                body += chunk
            more = message.get("more_body", False)
        if size > most:
            raise RequestRefused(413, "body_too_large", f"the body has {size} bytes; the limit is {most}")
        messages = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        return replay


def _with_security_headers(send: Send) -> Send:
    """A `send` that adds SECURITY_HEADERS to a response that does not set them itself."""

    async def sending(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            own = {name.lower() for name, _ in message.get("headers", ())}
            extra = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
            headers = [*message.get("headers", ()), *(pair for pair in extra if pair[0] not in own)]
            message = {**message, "headers": headers}
        await send(message)

    return sending


async def _refuse(scope: Scope, send: Send, refusal: RequestRefused, *, close: bool) -> None:
    status, headers, body = refusal_response(refusal, scope["path"], close=close)
    kind = "http.response"
    if scope["type"] == "websocket":
        kind = "websocket.http.response"
        if kind not in scope.get("extensions", {}):
            # A server that cannot answer a handshake with a response closes it: policy violation (RFC 6455, 7.4.1).
            await send({"type": "websocket.close", "code": 1008})
            return
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": f"{kind}.start", "status": status, "headers": raw})
    await send({"type": f"{kind}.body", "body": body})


async def _discard(receive: Receive) -> bool:
    """Read and drop a body; returns whether all of it came within DISCARD_S."""
    clock = asyncio.get_running_loop().time
    until = clock() + DISCARD_S
    while True:
        try:
            message = await asyncio.wait_for(receive(), until - clock())
        except asyncio.TimeoutError:
            return False
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            return True


def _split(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError:  # such as an unclosed bracket
        return urlsplit("")
