"""One connection of the server: reads requests, checks them (limits, MD5, token), waits for the answer, writes it."""

from __future__ import annotations

import base64
import contextlib
import hmac
import json
import logging
import select
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler
from io import BufferedReader
from typing import Any

from xrl_alignment.common.network import is_loopback
from xrl_alignment.wire import v1, v2
from xrl_alignment.wire.admission import ByteBudget, HttpResponse, PendingRequest, RequestRefused, SessionAdmission
from xrl_alignment.wire.connections import OpenConnections, end
from xrl_alignment.wire.images import MAX_PIXELS
from xrl_alignment.wire.messages import ProtocolError, bytes_of, md5_hex
from xrl_alignment.wire.pages import PAGE_HEADERS, ActivePages, EventStream, Pages
from xrl_alignment.wire.reading import DeadlineReader, HeaderLines, HeadTooLong, OddHeaderError

logger = logging.getLogger(__name__)

_CHUNK = 1 << 16  # bytes of a body that are read at once
# Bytes that decoding takes for each byte, at most: of a v1 image that is not written plainly, of a v2 header.
_DECODING_V1, _DECODING_V2 = 12, 24
_LARGEST_IMAGE = 3 * MAX_PIXELS  # bytes, decoded
# Bytes that the system keeps for a viewer (Linux takes twice as many). By itself it keeps megabytes, and then it takes
# minutes to see that a viewer does not read.
_EVENT_BUFFER = 1 << 16


@dataclass(frozen=True)
class Limits:
    """How much time and memory one client may take. Times in seconds, sizes in bytes."""

    max_body: int = 20 << 20  # a 300×300 frame is 1.5 MB in v1, the largest one allowed 16 MB
    idle_s: float = 900.0  # between two requests on one connection: a simulator may take minutes to load a room
    header_s: float = 10.0  # for the headers; also for the first request of a connection to begin
    max_head: int = 32 << 10  # of a request's first line and headers
    body_s: float = 60.0
    write_s: float = 30.0
    event_s: float = 10.0  # for one message to a browser that watches; a slower one is dropped
    drain_s: float = 5.0  # how long a refused body is read and thrown away, so that its sender gets the reason
    max_connections: int = 512
    max_held: int = 128 << 20  # by all requests together that are read or wait for their answer


@dataclass
class HandlerContext:
    """What a handler needs from the server. Without `admission` no message is taken, only `pages` are shown."""

    admission: SessionAdmission | None
    connections: OpenConnections
    budget: ByteBudget
    limits: Limits
    token: str
    local: bool  # whether the server listens to this machine only
    status: Callable[[], Mapping[str, Any]]
    pages: Pages | None = None


class RequestHandler(BaseHTTPRequestHandler):
    """HTTP/1.1 with keep-alive; `POST /`, `GET /health`, `GET /status`, pages. Each connection has its own thread."""

    protocol_version = "HTTP/1.1"
    server_version = "emac"
    disable_nagle_algorithm = True  # otherwise a small reply waits 40 ms for the delayed ACK
    wbufsize = -1  # headers and body leave in one segment
    rfile: BufferedReader

    def __init__(self, context: HandlerContext, *args: Any) -> None:
        self.context = context
        super().__init__(*args)  # handles the whole connection

    def setup(self) -> None:
        """Read the connection through deadlines."""
        super().setup()
        self._reader = DeadlineReader(self.connection)
        self.rfile.close()
        self.rfile = BufferedReader(self._reader, 1 << 14)
        self._unread = 0  # bytes of the current body that are still on their way
        self._known = False  # whether a valid request has come: only then may the connection be idle for long

    def finish(self) -> None:
        """Write what is left, unless the client has left or the connection made room for another."""
        with contextlib.suppress(ConnectionError):
            super().finish()

    def handle_one_request(self) -> None:
        """Wait for a request (long), read its headers (short), answer it."""
        limits = self.context.limits
        self.close_connection = True
        self._unread = 0
        try:
            self._reader.allow(limits.idle_s if self._known else limits.header_s)
            if not self.rfile.peek(1):
                return
            self._reader.allow(limits.header_s, limits.max_head)
            if not self._read_head():
                return
            # Reading a body sets time limits of its own; whatever is written has this one.
            self.connection.settimeout(limits.write_s)
            try:
                self._check_sender()
                if self.command == "POST":
                    self._post()
                elif self.command == "GET":
                    self._get()
                else:
                    raise RequestRefused(405, f"{self.command} is not supported; POST / and GET /health, /status are")
            except RequestRefused as refusal:
                self._refuse(refusal)
            self.wfile.flush()
        except (TimeoutError, ConnectionError) as error:  # idle, slow, or gone: no request reached the loop
            self.close_connection = True
            logger.debug("%s closed: %s", self.client_address, error)

    def _read_head(self) -> bool:
        """Read the first line and the headers; False if they cannot be used, and then they are answered already."""
        try:
            self.raw_requestline = self.rfile.readline(65537)
            complete = self.parse_request()  # answers malformed requests itself
            if not complete:
                self.connection.settimeout(self.context.limits.write_s)
                self.wfile.flush()
            return complete
        except (TimeoutError, HeadTooLong, OddHeaderError) as error:
            limits = self.context.limits
            self.requestline, self.request_version, self.command = "", self.protocol_version, ""
            if isinstance(error, TimeoutError):
                self._refuse(RequestRefused(408, f"the headers took longer than {limits.header_s:g} s"))
                return False
            self._unread = limits.max_head  # what may be on its way
            if isinstance(error, HeadTooLong):
                self._refuse(RequestRefused(431, f"the headers are longer than {limits.max_head} bytes"))
            else:
                self._refuse(RequestRefused(400, f"a line of the headers is no header: {error}"))
            return False

    def parse_request(self) -> bool:
        """Read the headers through `HeaderLines`."""
        whole = self.rfile
        self.rfile = HeaderLines(whole)  # type: ignore[assignment]
        try:
            return super().parse_request()
        finally:
            self.rfile = whole

    def handle_expect_100(self) -> bool:
        """Say 100 Continue only to a body that will be read."""
        try:
            self._check_sender()
            self._check_head()
        except RequestRefused as refusal:
            self._unread = 0  # the client sends nothing before it reads 100 Continue
            self._refuse(refusal)
            return False
        return super().handle_expect_100()

    def _post(self) -> None:
        """Answer a message; the path does not matter, because the original's server ignored it."""
        admission = self.context.admission
        self._held = 0
        if admission is None:
            # What this server's own page sends goes to the pages. No form of another site can send JSON.
            pages = self.context.pages
            if not isinstance(pages, ActivePages):
                raise RequestRefused(405, "this server shows a run, it does not play one: it takes no messages")
            self._check_own_page()
            if self.headers.get_content_type() != "application/json":
                raise RequestRefused(415, "this server takes no messages, only JSON from its own page")
            try:
                body = self._read_body()
                self._send(pages.post(self.path.partition("?")[0], body), PAGE_HEADERS)
            finally:
                self._settle(0)
            return
        try:
            pending = self._receive(admission)
            self._known = True  # from now on the connection may wait for long between two requests
            try:
                response = pending.wait()
            finally:
                admission.finished(pending)
        finally:
            self._settle(0)
        self._send(response, {"MD5": md5_hex(response.body)})
        self.context.connections.idle(self.connection)

    def _receive(self, admission: SessionAdmission) -> PendingRequest:
        """Read, check and queue a message; from then on the request holds the bytes of the decoded message."""
        body = self._read_body()
        digest = md5_hex(body)
        claimed = self.headers.get("MD5")
        if claimed is None:
            raise RequestRefused(400, "header MD5 is missing: send the hex MD5 of the body")
        if claimed.strip().lower() != digest:
            raise RequestRefused(400, f"header MD5 is {claimed[:40]}, the body's is {digest}: damaged in transfer")
        # Decoding may take many times the body's size, so the worst case is held before it begins.
        second = self.headers.get_content_type() == v2.CONTENT_TYPE
        decoding = _DECODING_V2 * min(len(body), v2.MAX_HEADER) if second else _DECODING_V1 * len(body)
        self._hold(len(body) + _LARGEST_IMAGE + decoding)
        self.context.connections.busy(self.connection)
        try:
            pending = admission.admit_v2(v2.decode(body), digest) if second else admission.admit_v1(v1.decode(body))
        except ProtocolError as error:
            raise RequestRefused(400, str(error)) from error
        self._settle(bytes_of(pending.message))
        return pending

    def _hold(self, size: int) -> None:
        """Hold `size` bytes of the server's budget instead of what was held so far."""
        self.context.budget.give_back(self._held)
        self._held = 0
        self.context.budget.take(size)
        self._held = size

    def _settle(self, size: int) -> None:
        """As `_hold`, for a request that is queued already: it neither waits nor is refused."""
        self.context.budget.give_back(self._held - size)
        self._held = size

    def _check_sender(self) -> None:
        """Refuse what a web page in somebody's browser sends: it names its origin, or another host than it reaches.

        What this server's own page asks for is answered: with it, too, browsers name the origin for script modules.
        Also refuses a second way to say where a body ends, by which one request could be read as two.
        """
        # A page of another site: its browser names the origin. Our own page may read, and play if this server plays.
        host = self.headers.get("Host", "")
        plays = self.context.admission is None and isinstance(self.context.pages, ActivePages)
        own = (self.command == "GET" or plays) and self.headers.get("Origin") in (f"http://{host}", f"https://{host}")
        if "Origin" in self.headers and not own:
            raise RequestRefused(403, "requests from web pages are not answered (header Origin)")
        # `localhost` of `localhost:7860`, `::1` of `[::1]:7860`. A page that makes its own name lead to this machine
        # (DNS rebinding) has another one.
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if self.context.local and host and not is_loopback(name):
            raise RequestRefused(
                403, f"header Host names {host[:80]!r}, this server answers at this machine's own names"
            )
        # Two lengths, or a length and chunks: a proxy may read another one than we do (request smuggling).
        if "Transfer-Encoding" in self.headers or len(self.headers.get_all("Content-Length", [])) > 1:
            raise RequestRefused(411, "give the body's length once, as Content-Length")
        if len(self.headers.get_all("Host", [])) > 1:
            raise RequestRefused(400, "give the header Host once")
        if self.command == "GET" and self.headers.get("Content-Length", "0").strip() != "0":
            raise RequestRefused(400, "GET has no body")

    def _get(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/health":
            self._check_own_page()
            self._send_json({"status": "ok"})
        elif path == "/status":
            self._check_token()
            self._check_own_page()
            self._send_json(self.context.status())
        elif pages := self.context.pages:
            # What belongs to the run goes only to who has the token, and to no other site's page.
            if not pages.is_public(path):
                self._check_token()
                self._check_own_page()
            answer = pages.get(path)
            if isinstance(answer, HttpResponse):
                self._send(answer, PAGE_HEADERS)
            else:
                self._stream(answer)
        else:
            raise RequestRefused(404, f"nothing at {path[:80]}; use /health or /status")

    def _check_own_page(self) -> None:
        """Refuse a page of another site that loads an address as an image or a script: such a request has no Origin."""
        if self.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            raise RequestRefused(403, "requests from other web pages are not answered (header Sec-Fetch-Site)")

    def _stream(self, events: EventStream) -> None:
        """Send events until they end; a viewer that takes one for longer than `event_s` is dropped."""
        self.close_connection = True
        try:
            self.context.connections.busy(self.connection)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _EVENT_BUFFER)
            events.attach(partial(end, self.connection, socket.SHUT_RDWR))
            self.send_response(200)
            for name, value in {"Content-Type": "text/event-stream", "Connection": "close", **PAGE_HEADERS}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.flush()
            self.connection.settimeout(self.context.limits.event_s)
            leaving = select.poll()
            leaving.register(self.connection, select.POLLIN)
            for event in events:
                if event:
                    self.connection.sendall(event)  # the time limit is for all of it
                # A viewer has nothing more to say: if there is something to read, it is the end of the connection.
                elif leaving.poll(0) and not self.connection.recv(1, socket.MSG_PEEK):
                    return
        finally:
            events.close()

    def _read_body(self) -> bytes:
        length = self._check_head()
        # The budget is taken as the body comes: a length that is only claimed costs nobody anything.
        self._reader.allow(self.context.limits.body_s)
        try:
            body = bytearray()
            while len(body) < length and (chunk := self.rfile.read(min(_CHUNK, length - len(body)))):
                body += chunk
                self._unread = length - len(body)
                self._hold(len(body))
        except TimeoutError as error:
            self._unread = 0  # too slow: do not read the rest
            raise RequestRefused(408, f"the body took longer than {self.context.limits.body_s:g} s") from error
        if len(body) < length:
            raise ConnectionError(f"the client left after {len(body)} of {length} bytes")
        self._unread = 0
        self.connection.settimeout(self.context.limits.write_s)
        return bytes(body)

    def _check_head(self) -> int:
        """Check what is known before the body is read; returns the body's length."""
        length = self.headers.get("Content-Length")
        if length is None:
            raise RequestRefused(411, "header Content-Length is missing")
        # `isdigit` alone takes digits of other scripts, which `int` reads and no proxy does; 18 digits fit 64 bits.
        if not (length.isascii() and length.isdigit()) or len(length) > 18:
            raise RequestRefused(400, f"header Content-Length is not a number of bytes: {length[:40]!r}")
        self._unread = int(length)
        self._check_token()
        most = self.context.limits.max_body
        if self._unread > most:
            raise RequestRefused(413, f"the body has {length} bytes, at most {most} are allowed")
        return self._unread

    def _check_token(self) -> None:
        token = self.context.token
        if token and not hmac.compare_digest(_token_in(self.headers.get("Authorization", "")), token.encode()):
            raise RequestRefused(
                401,
                "a token is needed: Authorization: Bearer <token>, or http://x:<token>@host:port/ as the address",
                {"WWW-Authenticate": 'Bearer, Basic realm="emac"'},
            )

    def _send_json(self, value: Mapping[str, Any]) -> None:
        self._send(HttpResponse(200, json.dumps(value, default=str).encode(), "application/json"), PAGE_HEADERS)

    def _send(self, response: HttpResponse, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if response.status != 200:  # what the sender goes on to send may be anything, so no further request is read
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(response.body)
        self.wfile.flush()

    def _refuse(self, refusal: RequestRefused) -> None:
        logger.info("%s: %d %s", self.client_address, refusal.response.status, refusal)
        self.connection.settimeout(self.context.limits.write_s)
        self._send(refusal.response, refusal.headers)
        # Read and drop the rest of the body: closing a socket with unread bytes resets the connection, and the sender
        # would see that instead of the reason.
        self._reader.allow(self.context.limits.drain_s)
        while self._unread > 0:
            chunk = self.rfile.read1(min(self._unread, 1 << 20))
            if not chunk:
                return
            self._unread -= len(chunk)

    def log_message(self, format: str, *args: Any) -> None:
        """Log a request as a debug message instead of printing it."""
        logger.debug("%s " + format, self.client_address, *args)


def _token_in(authorization: str) -> bytes:
    """The token in a header `Authorization`; empty if there is none.

    It stands by itself (`Bearer`), or is the password of any user (`Basic`, RFC 7617): HTTP clients send the latter for
    `http://x:TOKEN@host/`, and the original's clients can say it in no other way.
    """
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return credentials.encode()
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(credentials, validate=True).partition(b":")[2]
    except ValueError:  # binascii.Error is one; so is a character that is not ASCII
        return b""
