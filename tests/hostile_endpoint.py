"""A local endpoint with OpenAI's interface that attacks who asks it: one way for each name in `MODES`.

    with HostileEndpoint("gzip_bomb") as server:
        Endpoint(model="m", base_url=server.url, …).complete("x")       # an EndpointFault, soon, in little memory

`benchmarks/_endpoint.py` has the faults of honest endpoints; here the bytes themselves are wrong, endless or slow, so
the server writes to its socket directly.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
import socketserver
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

DRIP_S = 0.1  # between two bytes of an answer that drips
PATIENCE_S = 30.0  # after which the server ends an answer that drips or is silent: no test waits for ever
GIANT = 3 << 30  # bytes
_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.I)


class HostileEndpoint(socketserver.ThreadingTCPServer):
    """Answers every request in the way that `mode` names; `answer` is what an answer says that can be read.

    `requests` counts what arrived here, `elsewhere` what arrived at the other host to which redirects lead.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, mode: str, answer: str = "go to desk 1") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.mode, self.answer = mode, answer
        self.requests = 0
        self.lock = threading.Lock()
        self.elsewhere: HostileEndpoint | None = None

    @property
    def url(self) -> str:
        """The value for `base_url`."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def received(self, number: int) -> int:
        """`requests`, once it is `number` or `PATIENCE_S` is over: a client with a short time limit may leave before
        a busy machine has read what it sent."""
        until = time.monotonic() + PATIENCE_S
        while self.requests < number and time.monotonic() < until:
            time.sleep(0.01)
        return self.requests

    def __enter__(self) -> HostileEndpoint:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        if self.mode.startswith("gzip"):
            _bomb(self.mode)  # making it takes a second
        if self.mode == "redirect_elsewhere":
            self.elsewhere = HostileEndpoint("honest", self.answer).__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()
        if self.elsewhere:
            self.elsewhere.__exit__()

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: a client that closes its connection is what most modes are for."""


class _Handler(socketserver.StreamRequestHandler):
    """Reads one request, answers it, and closes the connection."""

    server: HostileEndpoint

    def handle(self) -> None:
        head = b""
        while (line := self.rfile.readline(65536)) not in (b"\r\n", b""):
            head += line
        if not head:
            return
        length = _LENGTH.search(head)
        body = json.loads(self.rfile.read(int(length[1])) if length else b"{}")
        with self.server.lock:
            number = self.server.requests
            self.server.requests += 1
        chat = "messages" in body
        Reply(self.connection, self.server, number, chat, head.split(b" ")[1].decode()).give()


class Reply:
    """One answer on its way: the connection, the request's number and kind, and what to say."""

    def __init__(self, connection: socket.socket, server: HostileEndpoint, number: int, chat: bool, path: str) -> None:
        self.connection, self.server, self.number, self.chat, self.path = connection, server, number, chat, path

    def give(self) -> None:
        """Answer in the server's mode."""
        MODES[self.server.mode](self)

    def raw(self, data: bytes) -> None:
        """Write bytes as they are."""
        self.connection.sendall(data)

    def send(self, body: bytes, status: str = "200 OK", kind: str = "application/json", **headers: str) -> None:
        """A whole answer; underscores in names of headers stand for hyphens."""
        given = {"Content_Type": kind, "Content_Length": str(len(body)), "Connection": "close", **headers}
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in given.items())
        self.raw(f"HTTP/1.1 {status}\r\n{lines}\r\n".encode("latin-1") + body)

    def document(self, text: object = None) -> dict[str, Any]:
        """An honest answer that says `text`: to the teacher's client, vLLM's and the policy server's."""
        text = self.server.answer if text is None else text
        content = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        return {
            "id": "answer",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "token_ids": [5, 2], **content}],
            "data": [{"id": "m"}],
            "action": {"command": text},
            "reasoning": "",
            "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
        }

    def say(self, text: object = None, **options: Any) -> None:
        """Send an honest answer that says `text`."""
        self.send(json.dumps(self.document(text)).encode(), **options)

    def drip(self, data: Iterator[bytes]) -> None:
        """Write slowly, until the server's patience ends or the client closes."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            self.raw(next(data))
            time.sleep(DRIP_S)


# --- what the modes send ----------------------------------------------------------------------------------------------


def _endless(byte: bytes = b" ") -> Iterator[bytes]:
    while True:
        yield byte


def drip_body(reply: Reply) -> None:
    """A byte of the body now and then: no read waits for long."""
    reply.raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99999\r\n\r\n")
    reply.drip(_endless())


def drip_headers(reply: Reply) -> None:
    """The same within the first header."""
    reply.raw(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    reply.drip(_endless(b"x"))


def drip_interim(reply: Reply) -> None:
    """Interim answers without end (`103 Early Hints`)."""
    reply.drip(_endless(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"))


def silent(reply: Reply) -> None:
    """Nothing."""
    time.sleep(PATIENCE_S)


def giant_body(reply: Reply) -> None:
    """Three GiB."""
    reply.raw(f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {GIANT}\r\n\r\n".encode())
    for _ in range(GIANT >> 20):
        reply.raw(b" " * (1 << 20))


def giant_chunks(reply: Reply) -> None:
    """The same, in chunks, so that no header says how much comes."""
    reply.raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(GIANT >> 20):
        reply.raw(b"100000\r\n" + b" " * (1 << 20) + b"\r\n")


def giant_error(reply: Reply) -> None:
    """The same with an error's status."""
    reply.raw(f"HTTP/1.1 500 no\r\nContent-Type: text/plain\r\nContent-Length: {GIANT}\r\n\r\n".encode())
    for _ in range(GIANT >> 20):
        reply.raw(b"x" * (1 << 20))


@cache
def _bomb(mode: str) -> bytes:
    """512 MiB of blanks as one gzip member; for `gzip_twice` compressed once more."""
    packer, block = zlib.compressobj(9, zlib.DEFLATED, 31), b" " * (4 << 20)
    data = b"".join([*(packer.compress(block) for _ in range(128)), packer.flush()])
    return gzip.compress(data) if mode == "gzip_twice" else data


def gzip_bomb(reply: Reply) -> None:
    """512 MiB of blanks in half a megabyte."""
    reply.send(_bomb("gzip_bomb"), Content_Encoding="gzip")


def gzip_twice(reply: Reply) -> None:
    """The same in two kilobytes: compressed twice."""
    reply.send(_bomb("gzip_twice"), Content_Encoding="gzip, gzip")


def surrogate(reply: Reply) -> None:
    """Half a surrogate pair, a NUL and a terminal's control characters around the answer."""
    reply.say(f"{reply.server.answer}\ud800\0\x1b[31m")


def redirect_elsewhere(reply: Reply) -> None:
    """To another host, with method and body (307)."""
    assert reply.server.elsewhere
    reply.send(b"", "307 Temporary Redirect", Location=f"{reply.server.elsewhere.url}/chat/completions")


def redirect_loop(reply: Reply) -> None:
    """To itself."""
    reply.send(b"", "307 Temporary Redirect", Location=reply.path)


def redirect_nowhere(reply: Reply) -> None:
    """To an address that is none."""
    reply.send(b"", "302 Found", Location="http://[::1:99999999/\x01")


_WRONG: tuple[object, ...] = (None, True, -1, 1e308, "x", [], ["x"], {}, {"x": ["y"]}, [[[]]], "\ud800", 10**40)


@cache
def wrong_documents() -> tuple[Any, ...]:
    """An answer with every wrong type in every field, one after the other; and documents that are no objects."""
    with HostileEndpoint("honest") as server:
        good = Reply(None, server, 0, True, "").document()  # type: ignore[arg-type]
    good["choices"][0]["message"] |= {"refusal": None, "tool_calls": None}
    good["usage"]["prompt_tokens_details"] = {"cached_tokens": 1}
    return (*_WRONG, *_spoilt(good))


def _spoilt(content: Any) -> Iterator[Any]:
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, inner in list(pairs):
        for value in (*_WRONG, *_spoilt(inner)):
            copy = dict(content) if isinstance(content, dict) else list(content)
            copy[key] = value
            yield copy


def wrong_types(reply: Reply) -> None:
    """The next of `wrong_documents`."""
    documents = wrong_documents()
    reply.send(json.dumps(documents[reply.number % len(documents)]).encode())


def wrong_error(reply: Reply) -> None:
    """An error whose fields have the wrong types."""
    value = (["x"], {"x": 1}, 7, None, "\ud800", "x" * 5000)[reply.number % 6]
    error = {"message": value, "code": "unsupported_parameter", "param": value, "type": value}
    if reply.number % 12 > 5:
        error["code"] = value
    reply.send(json.dumps({"error": error}).encode(), "400 Bad Request")


def empty(reply: Reply) -> None:
    """No body."""
    reply.send(b"")


def html(reply: Reply) -> None:
    """A web page."""
    reply.send(b"<html><body>Please log in</body></html>", kind="text/html")


def truncated(reply: Reply) -> None:
    """Half a document, whole as a message."""
    reply.send(json.dumps(reply.document()).encode()[:-20])


def cut(reply: Reply) -> None:
    """The connection closes in the middle of the body."""
    reply.send(json.dumps(reply.document()).encode()[:-20], Content_Length="99999")


def wrong_kind(reply: Reply) -> None:
    """An honest answer whose header says that it is an image in an encoding that is none of texts."""
    reply.say(kind=("image/png", "text/html; charset=base64", "x", "text/plain; charset=punycode")[reply.number % 4])


def reset(reply: Reply) -> None:
    """The connection is reset."""
    reply.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    reply.connection.close()


ODD_RETRY_AFTER = ("-1", "nan", "1e", "٣", "Fri, 20 Nov 2026 10:00:00 +99999999999999", "9" * 5000, "\x00", "0x10")


def rate_limit(reply: Reply) -> None:
    """429 that asks for an odd time."""
    value = ODD_RETRY_AFTER[reply.number % (len(ODD_RETRY_AFTER) - 3)]  # the last ones wait or are no header
    date = "Fri, 20 Nov 2026 10:00:00 GMT"
    body = b'{"error": {"message": "slow down"}}'
    reply.send(body, "429 Too Many Requests", Retry_After=value.encode().decode("latin-1"), Date=date)


def server_error(reply: Reply) -> None:
    """5xx, and statuses that do not exist."""
    status = ("500 oh", "502 Bad Gateway", "599 x", "503 x", "999 x")[reply.number % 5]
    reply.send(b"<html>\xff</html>", status, kind="text/html; charset=utf-7")


def invalid_utf8(reply: Reply) -> None:
    """An answer that is not UTF-8."""
    reply.send(json.dumps(reply.document()).encode().replace(b'"role"', b'"r\xf4le"') + b"\xff")


def long_line(reply: Reply) -> None:
    """A header of eight megabytes."""
    reply.raw(b"HTTP/1.1 200 OK\r\nX-Long: ")
    for _ in range(8):
        reply.raw(b"x" * (1 << 20))
    reply.raw(b"\r\n\r\n")


def many_headers(reply: Reply) -> None:
    """Headers without end."""
    reply.raw(b"HTTP/1.1 200 OK\r\n")
    for number in range(1 << 20):
        reply.raw(f"X-{number}: x\r\n".encode())


def duplicate_keys(reply: Reply) -> None:
    """Every key twice, the second time with the honest value."""
    text = json.dumps(reply.document())
    reply.send(re.sub(r'("\w+"): ', r'\1: "other", \1: ', text).encode())


def nested(reply: Reply) -> None:
    """A million lists in each other."""
    reply.send(b"[" * 1_000_000)


def many_values(reply: Reply) -> None:
    """As many lists as fit into an answer: each takes thirty times its text."""
    reply.send(b'{"x": [' + b"[]," * 600_000 + b"[]]}")


def long_number(reply: Reply) -> None:
    """A number of a hundred thousand digits."""
    reply.send(json.dumps(reply.document()).replace("9,", "9" * 100_000 + ",").encode())


def long_text(reply: Reply) -> None:
    """An answer of nearly a megabyte."""
    reply.say(f"{reply.server.answer}\n" + "a " * 450_000)


def cookies(reply: Reply) -> None:
    """An honest answer that leaves 50 kB of cookies of new names."""
    lines = "".join(f"Set-Cookie: c{reply.number}x{i}={'x' * 1000}\r\n" for i in range(50))
    body = json.dumps(reply.document()).encode()
    reply.raw(f"HTTP/1.1 200 OK\r\n{lines}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)


def wrong_length(reply: Reply) -> None:
    """Two lengths, or one that is none."""
    lengths = ("5\r\nContent-Length: 6", "-1", "99999999999999999999999", "0x5", "")[reply.number % 5]
    reply.raw(f"HTTP/1.1 200 OK\r\nContent-Length: {lengths}\r\n\r\nhello".encode())


def no_http(reply: Reply) -> None:
    """Another protocol."""
    reply.raw((b"SSH-2.0-OpenSSH_9.2\r\n", b"\x16\x03\x01\x02\x00\x01", b"\0" * 4096)[reply.number % 3])


def honest(reply: Reply) -> None:
    """An answer, to compare with."""
    reply.say()


MODES: dict[str, Callable[[Reply], None]] = {
    mode.__name__: mode
    for mode in (
        honest, drip_body, drip_headers, drip_interim, silent, giant_body, giant_chunks, giant_error, gzip_bomb,
        gzip_twice, surrogate, redirect_elsewhere, redirect_loop, redirect_nowhere, wrong_types, wrong_error, empty,
        html, truncated, cut, wrong_kind, reset, rate_limit, server_error, invalid_utf8, long_line, many_headers,
        duplicate_keys, nested, many_values, long_number, long_text, cookies, wrong_length, no_http,
    )
}  # fmt: skip
# What these modes send can be used; after everything else there is an error.
ANSWERED = frozenset(("honest", "surrogate", "wrong_kind", "duplicate_keys", "long_text", "cookies"))
SLOW = frozenset(("drip_body", "drip_headers", "drip_interim", "silent"))


class Peak:
    """The most memory that this process has held since `Peak()`, more than it held then, in bytes."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): the highest resident size begins anew
        self._before = self._highest()

    def __call__(self) -> int:
        """Bytes until now."""
        return self._highest() - self._before

    def _highest(self) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
