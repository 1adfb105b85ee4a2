"""Who an adapter's server answers, and how much it takes: this machine without a key, other machines with it."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import nullcontext, suppress
from typing import Any
from urllib.parse import urlsplit

from lavis.common.errors import ConfigError
from xrl_alignment.common.network import is_loopback

SHORTEST = 16  # characters of a key
MAX_MESSAGE = 1 << 16  # bytes of a request's body, and of a message of a WebSocket
BODY_S = 20.0  # for a body
SILENCE_S = 900.0  # between two messages of a WebSocket
# What proxies add. Whoever is behind one is not on this machine, although the proxy may be.
FORWARDED = (b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class _Refused(Exception):
    """A request is not passed on: HTTP status and reason."""


class KeyedApp:
    """The ASGI application `app` below `/<key>`, as in `http://host:8000/<key>/ws`.

    The key stands in the address because OpenEnv's clients send no headers of their own. Callers on this machine may
    leave it out; without a key nobody else is answered, whatever address the server listens on. `/health` is for all.
    Pages of other sites in a browser on this machine are not answered. Bodies and messages are limited to MAX_MESSAGE
    bytes, and in time (BODY_S, SILENCE_S). Raises ConfigError for a key that is short, or that an address cannot hold
    as it is.
    """

    def __init__(self, app: App, key: str = "") -> None:
        if key and (len(key) < SHORTEST or not (key.isascii() and key.replace("-", "").replace("_", "").isalnum())):
            raise ConfigError(
                f"the server's key has at least {SHORTEST} characters, ASCII letters, digits, `-` and `_`; "
                "`python -c 'import secrets; print(secrets.token_urlsafe())'` makes one"
            )
        self._app, self._key = app, key.encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer, or refuse with 400, 403, 408 or 413; a WebSocket before it is accepted, which has the same effect."""
        if scope["type"] not in ("http", "websocket"):  # start and end of the server
            await self._app(scope, receive, send)
            return
        try:
            path = self._path(scope)
            if scope["type"] == "http":
                receive = await _whole_body(receive)
            else:
                receive, send = _bounded(receive), _closing(send)
        except _Refused as refusal:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            status, reason = refusal.args
            headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]  # the body may still be on its way
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": f"{reason}\n".encode()})
            return
        await self._app({**scope, "path": path, "raw_path": path.encode()}, receive, send)

    def _path(self, scope: Message) -> str:
        """The path that the application sees, which is not told the key; raises _Refused."""
        headers = [(name.lower(), value.decode("latin-1")) for name, value in scope.get("headers", ())]
        # Servers and proxies disagree on which of two equal headers counts: the checks must not depend on it.
        hosts, origins, sites = (
            [value for name, value in headers if name == wanted] for wanted in (b"host", b"origin", b"sec-fetch-site")
        )
        if max(map(len, (hosts, origins, sites))) > 1:
            raise _Refused(400, "a header is given more than once")
        # A page names its site in Origin, but not if it loads an address as an image or a script.
        own = _host(hosts[0]) if hosts else ""
        if any(_host(origin) != own for origin in origins) or not {*sites} <= {"same-origin", "none"}:
            raise _Refused(403, "pages of other sites are not answered")
        said, slash, rest = scope["path"].lstrip("/").partition("/")
        if self._key and hmac.compare_digest(said.encode(), self._key):
            return slash + rest or "/"
        # A site may give its own name this machine's address (DNS rebinding): then it is its name that Host tells.
        caller = scope.get("client")  # None behind a Unix socket, which only this machine has
        here = caller is None or is_loopback(caller[0])
        here = here and not any(name in FORWARDED for name, _ in headers)
        here = here and (not hosts or is_loopback(urlsplit(f"//{own}").hostname or ""))
        if here or (scope["type"], scope["path"]) == ("http", "/health"):
            return str(scope["path"])
        raise _Refused(403, "another machine needs the server's key in the address: http://HOST:PORT/KEY")


def _host(address: str) -> str:
    """Host and port in an origin, or in the header Host; empty if `address` is neither."""
    try:
        return urlsplit(address if "//" in address else f"//{address}").netloc.lower()
    except ValueError:  # such as an unclosed bracket
        return ""


async def _whole_body(receive: Receive) -> Receive:
    """A `receive` that gives the whole body at once; raises _Refused if it is too large or too slow."""

    async def read() -> bytes | None:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            # What is too much is read to its end, but not kept: an answer while the client still sends would close, and
            # so reset, the connection, and the client might never read why.
            if len(body) <= MAX_MESSAGE:
                body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if len(body) > MAX_MESSAGE:
            raise _Refused(413, f"a body has at most {MAX_MESSAGE} bytes")
        return bytes(body)

    try:
        body = await asyncio.wait_for(read(), BODY_S)
    except asyncio.TimeoutError:
        raise _Refused(408, f"the body took longer than {BODY_S:g} s") from None
    first = {"type": "http.disconnect"} if body is None else {"type": "http.request", "body": body}
    messages: list[Message] = [first]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed


def _bounded(receive: Receive) -> Receive:
    """A `receive` of a WebSocket that ends it after SILENCE_S, and after a message that is too large."""

    async def receiving() -> Message:
        try:
            message = await asyncio.wait_for(receive(), SILENCE_S)
        except asyncio.TimeoutError:
            return {"type": "websocket.disconnect", "code": 1001}
        if len(message.get("text") or message.get("bytes") or "") > MAX_MESSAGE:
            return {"type": "websocket.disconnect", "code": 1009}
        return message

    return receiving


def _closing(send: Send) -> Send:
    """A `send` of a WebSocket that may close what the client has closed: OpenEnv does, with a traceback for each."""

    async def sending(message: Message) -> None:
        with suppress(OSError) if message["type"] == "websocket.close" else nullcontext():
            await send(message)

    return sending
