"""An adapter's server answers other machines only with its key; a real uvicorn server, and callers from elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from lavis.common.errors import ConfigError
from lavis.common.paths import REPO_ROOT
from xrl_alignment.adapters import access
from xrl_alignment.adapters.access import KeyedApp

KEY = "a-long-enough_key-0"


async def inner(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the path that it was asked for."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


def asked(
    app: KeyedApp, path: str, caller: str | None, kind: str = "http", headers: list[tuple[bytes, bytes]] | None = None
) -> list[dict[str, Any]]:
    """What `caller` is answered."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    scope = {"type": kind, "path": path, "client": caller and (caller, 5), "headers": headers or []}
    asyncio.run(app(scope, receive, send))
    return sent


@pytest.mark.parametrize("caller", ["192.0.2.7", "172.17.0.1", "2001:db8::1", "::ffff:192.0.2.7"])
@pytest.mark.parametrize(
    "path", ["/reset", "/", "/ws", f"/{KEY[:-1]}/reset", f"/x/{KEY}/reset", "/health/../reset", "//"]
)
@pytest.mark.parametrize("key", ["", KEY])
def test_other_machines_need_the_key(caller: str, path: str, key: str) -> None:
    start, body = asked(KeyedApp(inner, key), path, caller)
    assert start["status"] == 403 and b"needs the server's key" in body["body"]
    assert asked(KeyedApp(inner, key), path, caller, "websocket") == [{"type": "websocket.close", "code": 1008}]


def test_with_the_key_anybody_is_answered_and_the_server_does_not_see_it() -> None:
    app = KeyedApp(inner, KEY)
    for path, seen in (
        (f"/{KEY}/reset", b"/reset"),
        (f"/{KEY}/ws", b"/ws"),
        (f"/{KEY}", b"/"),
        ("/health", b"/health"),
    ):
        assert asked(app, path, "192.0.2.7")[1]["body"] == seen
    assert asked(app, f"/{KEY}/ws", "192.0.2.7", "websocket") == [{"type": "websocket.accept"}]
    for caller in ("127.0.0.1", "::1", None):
        assert asked(app, "/reset", caller)[1]["body"] == b"/reset"


HERE = (b"host", b"localhost:8000")
PAGES = [
    [HERE, (b"origin", b"https://evil.example")],
    [HERE, (b"origin", b"null")],
    [HERE, (b"origin", b"http://localhost:9999")],
    [HERE, (b"origin", b"http://[evil")],
    [(b"origin", b"https://evil.example")],
    [HERE, (b"origin", b"http://localhost:8000"), (b"origin", b"https://evil.example")],
    [HERE, (b"sec-fetch-site", b"cross-site")],
    [HERE, (b"sec-fetch-site", b"same-site")],
]


@pytest.mark.parametrize("headers", PAGES)
@pytest.mark.parametrize("key", ["", KEY])
def test_a_page_of_another_site_is_not_answered(headers: list[tuple[bytes, bytes]], key: str) -> None:
    """A page in a browser on this machine played on its WebSocket, and read the answers."""
    for path in ("/reset", f"/{key}/ws", "/health"):
        assert asked(KeyedApp(inner, key), path, "127.0.0.1", headers=headers)[0]["status"] in (400, 403)
        refused = [{"type": "websocket.close", "code": 1008}]
        assert asked(KeyedApp(inner, key), path, "127.0.0.1", "websocket", headers) == refused


@pytest.mark.parametrize(
    "headers",
    [
        [(b"host", b"evil.example")],  # DNS rebinding: the page's own site has this machine's address
        [(b"host", b"evil.example"), (b"origin", b"http://evil.example")],
        [(b"host", b"localhost.evil.example:8000")],
        [(b"host", b"[::1")],
        [(b"host", b"")],
        [HERE, (b"x-forwarded-for", b"127.0.0.1")],
        [HERE, (b"Forwarded", b"for=127.0.0.1")],
        [HERE, (b"x-real-ip", b"::1")],
    ],
)
def test_who_only_seems_to_be_on_this_machine_needs_the_key(headers: list[tuple[bytes, bytes]]) -> None:
    app = KeyedApp(inner, KEY)
    assert asked(app, "/reset", "127.0.0.1", headers=headers)[0]["status"] == 403
    assert asked(app, "/ws", "127.0.0.1", "websocket", headers) == [{"type": "websocket.close", "code": 1008}]
    assert asked(app, f"/{KEY}/reset", "127.0.0.1", headers=headers)[1]["body"] == b"/reset"


def test_two_hosts_are_one_too_many() -> None:
    assert asked(KeyedApp(inner), "/reset", "127.0.0.1", headers=[HERE, (b"Host", b"localhost")])[0]["status"] == 400


@pytest.mark.parametrize("host", [b"localhost:8000", b"LOCALHOST", b"127.0.0.1:8000", b"[::1]:8000"])
def test_this_machine_by_its_own_names(host: bytes) -> None:
    headers = [(b"host", host), (b"origin", b"http://" + host), (b"sec-fetch-site", b"same-origin")]
    assert asked(KeyedApp(inner), "/reset", "127.0.0.1", headers=headers)[1]["body"] == b"/reset"


@pytest.mark.parametrize("key", ["short", "a b" * 8, "ä" * 20, "a/b" * 8])
def test_a_key_that_cannot_be_one_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="at least 16 characters"):
        KeyedApp(inner, key)


@pytest.fixture
def port() -> Iterator[int]:
    """A server for which every caller comes from elsewhere, as behind Docker's forwarding."""

    async def forwarded(scope: Any, receive: Any, send: Any) -> None:
        await KeyedApp(inner, KEY)({**scope, "client": ("172.17.0.1", 5)}, receive, send)

    with running(forwarded) as port:
        yield port


def test_over_a_socket(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{KEY}/reset", timeout=30) as answer:
        assert answer.read() == b"/reset"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/reset", timeout=30)


async def counting(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the size of what it was sent."""
    if scope["type"] == "http":
        size = len((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(size).encode()})
        return
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": str(len(message["text"]))})
    await send({"type": "websocket.close"})  # as OpenEnv does, also if the client has closed it


@contextlib.contextmanager
def running(app: Any) -> Iterator[int]:
    """The port of a real server."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(30)


def post(port: int, size: int, chunked: bool = False) -> tuple[int, bytes]:
    """Status and answer to a body of so many bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    body = iter([b"x" * 1000] * (size // 1000)) if chunked else b"x" * size
    connection.request("POST", "/reset", body, encode_chunked=chunked)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_what_is_sent_is_bounded_in_size_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of 390 MB was kept in memory, and one that dripped was waited for as long as it liked."""
    with running(KeyedApp(counting)) as port:
        assert post(port, access.MAX_MESSAGE) == (200, str(access.MAX_MESSAGE).encode())
        assert post(port, access.MAX_MESSAGE + 1)[0] == post(port, 99 * access.MAX_MESSAGE, chunked=True)[0] == 413
        monkeypatch.setattr(access, "BODY_S", 0.3)
        with socket.create_connection(("127.0.0.1", port), timeout=60) as slow:
            slow.sendall(b"POST /reset HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
            assert slow.recv(1000).startswith(b"HTTP/1.1 408 ")
        address = f"ws://127.0.0.1:{port}/ws"
        with connect(address, max_size=None, open_timeout=60) as client:
            client.send("x" * access.MAX_MESSAGE)
            assert client.recv(timeout=60) == str(access.MAX_MESSAGE)
            client.send("x" * (access.MAX_MESSAGE + 1))
            with pytest.raises(ConnectionClosed):
                client.recv(timeout=60)
        monkeypatch.setattr(access, "SILENCE_S", 0.3)
        # It held a session's place for ever.
        with connect(address, open_timeout=60) as client, pytest.raises(ConnectionClosed):
            client.recv(timeout=60)


def test_half_a_body_is_no_body() -> None:
    """A client that leaves in the middle of its command must not have the first half of it carried out."""
    told: list[str] = []

    async def reads(scope: Any, receive: Any, send: Any) -> None:
        told.append((await receive())["type"])

    messages = [{"type": "http.disconnect"}, {"type": "http.request", "body": b"go to", "more_body": True}]

    async def receive() -> dict[str, Any]:
        return messages.pop()

    async def send(message: dict[str, Any]) -> None:
        raise AssertionError(message)

    asyncio.run(KeyedApp(reads)({"type": "http", "path": "/", "client": None, "headers": []}, receive, send))
    assert told == ["http.disconnect"]


def test_the_application_is_told_that_the_server_starts() -> None:
    told: list[Any] = []

    async def starts(scope: Any, receive: Any, send: Any) -> None:
        told.append(scope)

    asyncio.run(KeyedApp(starts, KEY)({"type": "lifespan"}, None, None))  # type: ignore[arg-type]  # it uses neither
    assert told == [{"type": "lifespan"}]


def test_the_example_takes_its_key_from_the_environment() -> None:
    folder = REPO_ROOT / "examples/openenv"
    assert 'key=os.environ.get("HOUSEHOLD_KEY", "")' in (folder / "server/app.py").read_text(encoding="utf-8")
    dockerfile = (folder / "Dockerfile").read_text(encoding="utf-8")
    assert 'CMD ["python", "-m", "server.app", "--host", "0.0.0.0"]' in dockerfile
    assert re.findall(r"docker run (.*) household-env", dockerfile) == ["-p 127.0.0.1:8000:8000 -e HOUSEHOLD_KEY=<key>"]
