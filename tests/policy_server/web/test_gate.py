"""What is refused before a body is read, as raw bytes on a socket."""

from __future__ import annotations

import asyncio
import json
import socket

import httpx
import pytest

from policy_server.web.api_keys import ApiKeys
from policy_server.web.gate import WRONG_KEYS, GateMiddleware
from tests.policy_server.servers import CAVE, action_body, encoded_image


def talk(url: str, *parts: bytes) -> tuple[int, dict]:
    """Send and read until the server closes the connection or the answer is complete."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        for part in parts:
            connection.sendall(part)
        file = connection.makefile("rb")
        status = int(file.readline().split()[1])
        headers = dict(line.decode().lower().strip().split(": ", 1) for line in iter(file.readline, b"\r\n"))
        return status, json.loads(file.read(int(headers["content-length"])))


def head(path: str = f"/get_action/image?task_name={CAVE}", method: str = "POST", **headers: object) -> bytes:
    lines = {"Host": "127.0.0.1", "Content-Type": "image/png", **headers}
    text = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{text}\r\n".encode()


def test_a_body_that_says_it_is_too_large_is_refused_and_read_away(serve):
    server = serve("server.max_body_bytes=10000")
    status, answer = talk(server.url, head(Content_Length=200_000), bytes(200_000))
    assert (status, answer["error"]) == (413, "body_too_large")


def test_a_body_without_a_length_is_counted(serve):
    server = serve("server.max_body_bytes=10000")
    chunk = b"%x\r\n%s\r\n" % (8000, bytes(8000))
    status, answer = talk(server.url, head(Transfer_Encoding="chunked"), chunk, chunk, b"0\r\n\r\n")
    assert (status, answer["error"]) == (413, "body_too_large")


def test_a_body_that_does_not_come_is_not_waited_for(serve):
    server = serve("server.body_timeout_s=0.2")
    status, answer = talk(server.url, head(Content_Length=1000), b"slow")
    assert (status, answer["error"]) == (408, "too_slow")


def test_the_rest_of_a_late_body_does_not_keep_the_connection(serve):
    host, port = serve("server.body_timeout_s=0.2").url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(head(Content_Length=1000) + b"slow")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))  # until the server closes the connection
    assert b" 408 " in answer and b"connection: close" in answer.lower()


def test_a_whole_body_in_small_pieces_is_fine(serve):
    data = encoded_image()
    pieces = [data[at : at + 100] for at in range(0, len(data), 100)]
    status, answer = talk(serve().url, head(Content_Length=len(data)), *pieces)
    assert status == 200 and "action" in answer


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "[", ""])
def test_on_loopback_without_keys_other_names_are_refused(serve, host):
    status, answer = talk(serve().url, head("/health", "GET", Host=host))
    assert (status, answer["error"]) == (421, "wrong_host")


@pytest.mark.parametrize("name", ["Host", "Origin"])
def test_two_hosts_are_refused(serve, name):
    """The last one was believed."""
    both = f"GET /models HTTP/1.1\r\n{name}: http://evil.example\r\n{name}: http://127.0.0.1\r\n"
    host = "" if name == "Host" else "Host: 127.0.0.1\r\n"
    status, answer = talk(serve().url, f"{both}{host}\r\n".encode())
    assert (status, answer["error"]) == (400, "ambiguous")


@pytest.mark.parametrize(
    "line",
    [
        b"Content-Length : %d",
        b"Content-Length\t: %d",
        b"X: a\r\n Content-Length: %d",
        b" Content-Length: %d",
        b"X: a\rContent-Length: %d",
        b"X: \0\r\nContent-Length: %d",
        b"no header\r\nContent-Length: %d",
        b"Content-Length: %d\r\nContent-Length: 0",
        b"Content-Length: %d\r\nTransfer-Encoding: chunked",
        b"Content-Length: +%d",
    ],
)
def test_what_can_be_read_in_two_ways_is_not_read(serve, line):
    """The parser (llhttp) is strict; this notices if it ever is not."""
    host, port = serve().url.removeprefix("http://").split(":")
    inner = b"GET /models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n" + line % len(inner) + b"\r\nHost: localhost\r\n\r\n" + inner)
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.count(b"HTTP/1.1 ") == 1 and answer.startswith(b"HTTP/1.1 400"), answer


def test_with_keys_any_name_will_do(serve):
    assert talk(serve(keys={"lab": "k" * 20}).url, head("/health", "GET", Host="gpu-machine:8001"))[0] == 200


def test_pages_of_other_sites_are_refused(serve):
    server = serve()
    own = server.url.removeprefix("http://")
    status, answer = talk(server.url, head("/ui/recent", "GET", Host=own, Origin="https://evil.example"))
    assert (status, answer["error"]) == (403, "wrong_origin")
    status, answer = talk(server.url, head("/health", "GET", Host=own, Origin="http://["))
    assert (status, answer["error"]) == (403, "wrong_origin")
    assert talk(server.url, head("/health", "GET", Host=own, Origin=server.url))[0] == 200


def test_a_refused_caller_may_go_on_with_the_same_connection(serve):
    server = serve(keys={"lab": "k" * 20})
    host, port = server.url.removeprefix("http://").split(":")
    data = encoded_image(size=(640, 360))
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        file = connection.makefile("rb")
        for key, expected in (("wrong", b"401"), ("k" * 20, b"200")):
            connection.sendall(head(Content_Length=len(data), X_API_Key=key) + data)
            assert expected in file.readline()
            headers = dict(line.decode().lower().strip().split(": ", 1) for line in iter(file.readline, b"\r\n"))
            file.read(int(headers["content-length"]))


def test_no_response_lets_a_browser_load_anything(serve):
    """FastAPI's page /docs loaded a script from a public host."""
    server = serve(keys={"lab": "k" * 20})
    answers = {path: server.http.get(path) for path in ("/", "/health", "/models", "/ui", "/openapi.json", "/docs")}
    answers |= {path: server.http.get(path, headers={"X-API-Key": "no"}) for path in ("/metrics", "/ui/recent")}
    answers["/get_action"] = server.http.post("/get_action", json={})
    for path, answer in answers.items():
        assert "default-src 'none'" in answer.headers["content-security-policy"], path
        assert len(answer.headers.get_list("content-security-policy")) == 1
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "cdn" not in answer.text
    assert answers["/docs"].status_code == 404 and answers["/openapi.json"].status_code == 200


def test_wrong_keys_are_limited_and_right_ones_are_not(serve):
    server = serve(keys={"lab": "k" * 20})
    paths = ("/models", "/metrics", "/ui/recent", "/get_action/image")
    statuses = [
        server.http.get(paths[n % 4], headers={"X-API-Key": str(n)}).status_code for n in range(WRONG_KEYS + 30)
    ]
    assert statuses[:WRONG_KEYS] == [401] * WRONG_KEYS and 429 in statuses[WRONG_KEYS:]
    assert server.http.post("/get_action", json=action_body()).status_code == 200


@pytest.mark.parametrize("path", ["/models", "/metrics", "/ui/recent", "/nothing"])
def test_every_route_of_a_key_counts_towards_its_rate(serve, path):
    server = serve("server.rate_per_s=0.001", "server.burst=2", keys={"lab": "k" * 20})
    statuses = [server.http.get(path).status_code for _ in range(3)]
    assert 429 not in statuses[:2] and statuses[2] == 429
    assert server.http.delete("/sessions/a").status_code == 429
    assert server.http.get("/health").status_code == 200


def asked_at(server, address: str, keys: dict[str, str]) -> int:
    """The status of a GET /metrics that reaches the gate at `address`, as uvicorn on 0.0.0.0 reports it."""
    app = GateMiddleware(lambda *_: None, admission=server.admission, keys=ApiKeys(keys))
    transport = httpx.ASGITransport(_at(app, address), client=("192.0.2.7", 40000))

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get("/metrics")

    answer = asyncio.run(ask())
    assert "EMAC_POLICY_KEYS" in answer.text or answer.status_code != 403
    return answer.status_code


def _at(app, address):
    async def there(scope, receive, send):
        await app({**scope, "server": (address, 8001)}, receive, send)

    return there


def test_without_keys_other_machines_are_refused_whatever_they_call_this_one(serve):
    server = serve()
    assert asked_at(server, "192.0.2.1", {}) == 403
    assert asked_at(server, "192.0.2.1", {"lab": "k" * 20}) == 401


def test_a_refused_chat_is_counted_as_one(serve):
    server = serve(keys={"lab": "k" * 20})
    server.http.post("/v1/chat/completions", json={}, headers={"X-API-Key": "wrong"})
    metrics = server.http.get("/metrics").text
    assert 'policy_requests_total{status="401",transport="chat"} 1.0' in metrics and 'transport="http"' not in metrics
