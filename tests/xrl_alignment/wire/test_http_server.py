"""The server and its handler (`http_handler`) over real sockets: what they let in, answer, refuse and outlast."""

import base64
import hmac
import http.client
import json
import logging
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import closing
from urllib.parse import quote

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xrl_alignment.wire import v1, v2
from xrl_alignment.wire.admission import HttpResponse, RequestRefused
from xrl_alignment.wire.http_server import DaggerHTTPServer, Limits, ServerError
from xrl_alignment.wire.messages import Bye, Hello, Observation, bytes_of, md5_hex

IMAGE = np.zeros((4, 4, 3), np.uint8)
V1_BODY = v1.encode(Observation("You see a desk 1.", "text", {"won": False}, "pick-1/t", False, IMAGE))
HELLO = v2.encode(Hello("s", 0, ("g",)))
PATIENCE_S = 60  # far more than anything here takes, also on a busy machine


def observation(seq: int, session: str = "s", text: str = "You see a desk 1.") -> bytes:
    return v2.encode(Observation(text, image=IMAGE, session=session, seq=seq))


class Loop(threading.Thread):
    """The smallest user of the transport: answers observations with the number of messages it has seen."""

    def __init__(self, server: DaggerHTTPServer) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.seen = []
        self.over = threading.Event()
        self.start()

    def run(self) -> None:
        while not self.over.is_set():
            for pending in self.server.take(8, timeout_s=0.05):
                self.seen.append(pending.message)
                if isinstance(pending.message, Observation):
                    pending.reply([f"action {len(self.seen)}"])
                else:
                    pending.reply({"kind": type(pending.message).__name__.lower()})


@pytest.fixture
def start():
    """Starts servers (`loop=False`: nobody answers) and stops them all at the end."""
    running = []

    def make(loop: bool = True, host: str = "127.0.0.1", **options):
        server = DaggerHTTPServer(host, 0, **options)
        server.start()
        running.append((server, Loop(server) if loop else None))
        return running[-1]

    yield make
    for server, loop in running:
        if loop:
            loop.over.set()
            loop.join(PATIENCE_S)
        server.stop()


def connect(server: DaggerHTTPServer) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)


def ask(connection, body: bytes, content_type: str = v2.CONTENT_TYPE, **headers: str) -> tuple[int, bytes]:
    connection.request("POST", "/", body, {"MD5": md5_hex(body), "Content-Type": content_type, **headers})
    response = connection.getresponse()
    return response.status, response.read()


def post(server: DaggerHTTPServer, body: bytes, content_type: str = v2.CONTENT_TYPE, **headers: str):
    with closing(connect(server)) as connection:
        return ask(connection, body, content_type, **headers)


def post_v1(server: DaggerHTTPServer, body: bytes = V1_BODY) -> tuple[int, bytes]:
    return post(server, body, "text/plain")


def get(server: DaggerHTTPServer, path: str, **headers: str) -> tuple[int, bytes]:
    with closing(connect(server)) as connection:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()


def raw(server: DaggerHTTPServer, data: bytes, pause_s: float = 0.0, *, last: bool = False) -> bytes:
    """Send `data` (a byte at a time when pausing), perhaps as the last of it, and return all that comes back."""
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)) as connection:
        try:
            if pause_s:
                for at in range(len(data)):
                    connection.sendall(data[at : at + 1])
                    time.sleep(pause_s)
            else:
                connection.sendall(data)
            if last:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # refused before everything was sent: the answer is still there to be read
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
        return received


class InThread(threading.Thread):
    """Runs a function in a thread; `result()` waits for what it returns."""

    def __init__(self, function, *arguments) -> None:
        super().__init__(daemon=True)
        self._call = lambda: function(*arguments)
        self._results = []
        self.start()

    def run(self) -> None:
        self._results.append(self._call())

    def result(self):
        self.join(PATIENCE_S)
        assert self._results, f"no answer within {PATIENCE_S} s"
        return self._results[0]


# --- v1 ---------------------------------------------------------------------------------------------------------------


def test_v1_client_written_like_the_originals(start):
    server, loop = start()
    image = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    body = (
        "[#OBSERVATION]You are in the middle of a room.\nYour task is to: put a mug in desk."
        "[#HISTORY]Interact with a household to solve a task.\n> [#INFORMATION]{'won': False, 'admissible_commands': "
        "[['look', 'go to desk 1']]}[#TYPE]pick_and_place_simple-Mug-None-Desk-308/trial_1[#DONE]False[#IMAGE]"
        + json.dumps(image.tolist())
    ).encode("utf-8")
    with closing(connect(server)) as connection:
        headers = {"Content-Length": str(len(body)), "MD5": md5_hex(body)}
        connection.request("POST", "/", body=body, headers=headers)
        response = connection.getresponse()
        reply = response.read()
    assert (response.status, reply) == (200, b"['action 1']") and response.headers["MD5"] == md5_hex(reply)
    seen = loop.seen[0]
    assert (seen.image == image).all() and seen.task_type.startswith("pick_and_place_simple-")
    assert seen.admissible_commands == ["look", "go to desk 1"] and not seen.done


def test_v1_replies_to_every_answer_form(start):
    server, _ = start(loop=False)
    for answer, body in ([], b"[]"), (["SKIP"], b"['SKIP']"), ({"kind": "action", "action": "look"}, b"['look']"):
        result = InThread(post_v1, server)
        (pending,) = server.take(1, timeout_s=PATIENCE_S)
        pending.reply(answer)
        assert result.result() == (200, body)


def test_v1_client_that_dies_while_it_waits_does_not_hold_up_the_loop(start):
    server, _ = start(loop=False)
    head = f"POST / HTTP/1.1\r\nContent-Length: {len(V1_BODY)}\r\nMD5: {md5_hex(V1_BODY)}\r\n\r\n"
    with closing(socket.create_connection(("127.0.0.1", server.port))) as connection:
        connection.sendall(head.encode() + V1_BODY)
        (pending,) = server.take(1, timeout_s=PATIENCE_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset, not a polite end
    pending.reply(["look"])
    result = InThread(post_v1, server)
    server.take(1, timeout_s=PATIENCE_S)[0].reply(["go to desk 1"])
    assert result.result() == (200, b"['go to desk 1']")


# --- v2 ---------------------------------------------------------------------------------------------------------------


def test_v2_retry_gets_the_same_reply_and_moves_nothing(start):
    server, loop = start()
    post(server, HELLO)
    first = post(server, observation(1))
    assert first == (200, b'{"kind": "action", "action": "action 2"}')
    assert post(server, observation(1)) == first and post(server, observation(1)) == first
    assert len(loop.seen) == 2
    assert post(server, observation(2))[1] == b'{"kind": "action", "action": "action 3"}'


def test_v2_reply_to_a_dead_connection_is_kept_for_the_retry(start):
    server, _ = start(loop=False)
    hello = InThread(post, server, HELLO)
    server.take(1, timeout_s=PATIENCE_S)[0].reply({"kind": "welcome"})
    assert hello.result()[0] == 200
    body = observation(1)
    head = f"POST / HTTP/1.1\r\nContent-Type: {v2.CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\nMD5: {md5_hex(body)}"
    with closing(socket.create_connection(("127.0.0.1", server.port))) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        (pending,) = server.take(1, timeout_s=PATIENCE_S)
    waiting = InThread(post, server, body)  # retried while the loop still thinks
    assert server.take(1, timeout_s=0.1) == []
    pending.reply(["go to desk 1"])
    expected = (200, b'{"kind": "action", "action": "go to desk 1"}')
    assert waiting.result() == expected and post(server, body) == expected


def test_v2_stale_conflicting_and_unknown_requests_are_refused(start):
    server, loop = start()
    assert post(server, observation(1))[0] == 410
    post(server, HELLO)
    post(server, observation(5))
    assert post(server, observation(4))[0] == 409
    status, reason = post(server, observation(5, text="something else"))
    assert status == 409 and b"another body" in reason
    assert len(loop.seen) == 2


def test_v2_bye_ends_a_session_and_may_be_repeated(start):
    server, loop = start()
    post(server, HELLO)
    bye = v2.encode(Bye("s", 1))
    assert post(server, bye) == post(server, bye) == (200, b'{"kind": "bye"}')
    assert loop.seen[1:] == [Bye("s", 1)] and post(server, observation(2))[0] == 410


def test_two_sessions_are_taken_together_without_waiting_out_the_window(start):
    server, _ = start(loop=False)
    for name in "ab":
        hello = InThread(post, server, v2.encode(Hello(name, 0, ())))
        server.take(1, timeout_s=PATIENCE_S)[0].reply({"kind": "welcome"})
        hello.result()
    results = [InThread(post, server, observation(1, name)) for name in "ab"]
    taken = server.take(8, timeout_s=PATIENCE_S, window_s=3600)  # who waited it out would end the test
    assert sorted(pending.message.session for pending in taken) == ["a", "b"]
    for pending in taken:
        pending.reply([f"for {pending.message.session}"])
    for name, result in zip("ab", results, strict=True):
        assert json.loads(result.result()[1])["action"] == f"for {name}"


def test_answers_on_a_kept_connection_are_sent_at_once(start):
    """Nagle's algorithm against delayed acknowledgements would cost 40 ms a round trip."""
    server, _ = start()
    with closing(connect(server)) as connection:
        ask(connection, HELLO)
        kept = connection.sock
        for seq in range(1, 21):
            assert ask(connection, observation(seq))[0] == 200
        assert connection.sock is kept
        deadline = time.monotonic() + PATIENCE_S  # it is idle a moment after its reply has left
        while not server._connections._idle and time.monotonic() < deadline:
            time.sleep(0.01)
        (accepted,) = server._connections._idle
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        body = observation(21)
        kept.sendall(
            f"POST / HTTP/1.1\r\nContent-Type: {v2.CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n"
            f"MD5: {md5_hex(body)}\r\n\r\n".encode()
            + body
        )
        answer = kept.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b'"action": "action 22"}')  # one segment


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "body", "status", "reason"),
    [
        ({"MD5": "0" * 32}, V1_BODY, 400, "damaged"),
        ({"MD5": None}, V1_BODY, 400, "MD5 is missing"),
        ({"Content-Length": None}, b"", 411, "Content-Length is missing"),
        ({"Content-Length": "-1"}, b"", 400, "not a number of bytes"),
        ({"Content-Length": "1e3"}, b"", 400, "not a number of bytes"),
        ({}, V1_BODY.replace(b"[#TYPE]", b""), 400, "[#TYPE] is missing"),
        ({}, V1_BODY[: V1_BODY.index(b"[[[")] + b"[[1, 2, 3]]", 400, "height \u00d7 width \u00d7 3"),
        ({}, V1_BODY.replace(b"{'won': False}", b"open('x')"), 400, "Python literal"),
        ({}, b"", 400, "missing"),
        ({"Content-Type": v2.CONTENT_TYPE}, V1_BODY, 400, "claims"),
    ],
)
def test_bad_requests_get_a_reason_and_queue_nothing(start, head, body, status, reason):
    server, _ = start(loop=False)
    headers = {"Content-Length": str(len(body)), "MD5": md5_hex(body), "Content-Type": "text/plain"} | head
    lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
    answer = raw(server, "\r\n".join(["POST / HTTP/1.1", *lines, "", ""]).encode() + body)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()) and reason in answer.decode()
    assert server.take(1, timeout_s=0) == [] and get(server, "/health")[0] == 200


def test_hundred_megabytes_are_refused_with_a_reason(start):
    server, _ = start(loop=False, limits=Limits(drain_s=PATIENCE_S))
    status, reason = post_v1(server, bytes(100_000_000))
    assert status == 413 and b"at most 20971520" in reason
    polite = b"POST / HTTP/1.1\r\nContent-Length: 100000000\r\nMD5: x\r\nExpect: 100-continue\r\n\r\n"
    assert raw(server, polite).startswith(b"HTTP/1.1 413 ")


def test_expect_100_continue_is_honoured(start):
    server, _ = start()
    head = f"POST / HTTP/1.1\r\nContent-Length: {len(V1_BODY)}\r\nMD5: {md5_hex(V1_BODY)}\r\nConnection: close\r\n"
    answer = raw(server, head.encode() + b"Expect: 100-continue\r\n\r\n" + V1_BODY)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK") and answer.endswith(b"['action 1']")


def test_client_that_dies_in_the_middle_of_its_body(start):
    server, loop = start()
    with closing(socket.create_connection(("127.0.0.1", server.port))) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nContent-Length: 5000\r\nMD5: x\r\n\r\n" + V1_BODY[:100])
    assert post_v1(server)[0] == 200 and len(loop.seen) == 1


def test_slow_headers_and_slow_bodies_time_out(start):
    server, _ = start(loop=False, limits=Limits(header_s=0.5, body_s=0.2))
    answer = raw(server, b"POST / HTTP/1.1\r\nX: " + b"y" * 60, pause_s=0.01)
    assert answer.startswith(b"HTTP/1.1 408 ") and b"the headers took longer than 0.5 s" in answer
    answer = raw(server, b"POST / HTTP/1.1\r\nContent-Length: 10\r\nMD5: x\r\n\r\nabc")
    assert answer.startswith(b"HTTP/1.1 408 ") and b"the body took longer than 0.2 s" in answer


def test_a_head_has_a_limit(start):
    server, _ = start(limits=Limits(drain_s=0.1))
    head = b"POST / HTTP/1.1\r\n" + b"".join(b"X%d: %s\r\n" % (i, b"y" * 1000) for i in range(60))
    answer = raw(server, head)  # 60 kB: what the standard library takes for a head may have 6 MB
    assert answer.startswith(b"HTTP/1.1 431 ") and b"the headers are longer than 32768 bytes" in answer
    assert post_v1(server)[0] == 200


def test_a_waiting_request_counts_as_what_it_was_decoded_to(start):
    server, _ = start(loop=False)
    deep = {"a": [[]] * 5000}  # 20 kB on the wire
    thread = InThread(post, server, v2.encode(Hello("a", 0, ("g",))))
    server.take(1, PATIENCE_S)[0].reply({"kind": "welcome"})
    assert thread.result()[0] == 200
    thread = InThread(post, server, v2.encode(Observation("x", information=deep, session="a", seq=1), "zlib"))
    (pending,) = server.take(1, PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while server._budget.held != (size := bytes_of(pending.message)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server._budget.held == size > 5000 * 56
    pending.reply(["look"])
    assert thread.result()[0] == 200


def test_idle_connections_are_closed_without_a_word(start):
    """`raw` returns when the server closes: the limit that is long here would end the test."""
    stranger, _ = start(limits=Limits(header_s=0.1, idle_s=3600))
    assert raw(stranger, b"") == b""
    known, _ = start(limits=Limits(header_s=3600, idle_s=0.1))
    head = f"POST / HTTP/1.1\r\nContent-Length: {len(V1_BODY)}\r\nMD5: {md5_hex(V1_BODY)}\r\n\r\n"
    assert raw(known, head.encode() + V1_BODY).endswith(b"['action 1']")


def test_connections_that_send_nothing_make_room(start, caplog):
    server, _ = start(limits=Limits(max_connections=2, header_s=3600, idle_s=3600))
    idle = [socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) for _ in range(2)]
    idle[0].sendall(b"GET /status HTTP/1.1\r\nX-Slow: ")
    kept = connect(server)
    assert ask(kept, V1_BODY, "text/plain")[0] == 200
    assert idle[0].recv(1) == b""
    half = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
    half.sendall(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf")
    assert idle[1].recv(1) == b""
    assert get(server, "/health")[0] == 200
    assert half.recv(1) == b""  # who has sent no whole request goes before who has
    assert ask(kept, V1_BODY, "text/plain")[0] == 200
    for connection in (*idle, half, kept):
        connection.close()
    assert [entry for entry in caplog.records if entry.levelname == "ERROR"] == []


def test_connections_that_wait_for_answers_are_kept(start):
    server, _ = start(loop=False, limits=Limits(max_connections=2))
    waiting = [socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) for _ in range(2)]
    head = f"POST / HTTP/1.1\r\nMD5: {md5_hex(V1_BODY)}\r\nContent-Length: {len(V1_BODY)}\r\n\r\n".encode()
    for connection in waiting:
        connection.sendall(head + V1_BODY)
    taken = []
    while len(taken) < 2:
        taken += server.take(2, timeout_s=PATIENCE_S)
    assert raw(server, b"")[:12] == b"HTTP/1.1 503"
    for pending in taken:
        pending.reply(["look"])
    for connection in waiting:
        assert b"['look']" in connection.recv(1 << 16)
        connection.close()


@given(data=st.binary(min_size=1, max_size=300), prefix=st.sampled_from([b"", b"POST / HTTP/1.1\r\n", b"GET /"]))
@settings(max_examples=25, deadline=None)
def test_random_bytes_do_not_hurt(fuzzed_server, data, prefix):
    raw(fuzzed_server, prefix + data + b"\r\n\r\n", last=True)
    assert get(fuzzed_server, "/health") == (200, b'{"status": "ok"}')
    assert fuzzed_server.take(1, timeout_s=0) == []


@pytest.fixture(scope="module")
def fuzzed_server():
    server = DaggerHTTPServer("127.0.0.1", 0)
    server.start()
    yield server
    server.stop()


# --- the server itself ------------------------------------------------------------------------------------------------


def test_health_and_status(start):
    server, _ = start(status=lambda: {"round": 2})
    post(server, HELLO)
    assert json.loads(get(server, "/status?x=1")[1]) == {"round": 2, "wire": {"sessions": 1, "queued": 0, "bytes": 0}}
    assert get(server, "/elsewhere")[0] == 404
    assert raw(server, b"PUT / HTTP/1.1\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 405 ")


def test_another_host_needs_a_token(start):
    with pytest.raises(ValueError, match=r"server\.host=0\.0\.0\.0.*server\.token"):
        DaggerHTTPServer("0.0.0.0", 0)
    server, loop = start(host="0.0.0.0", token="sesame")
    assert post_v1(server)[0] == 401 and post(server, HELLO, Authorization="Bearer wrong")[0] == 401
    assert get(server, "/status")[0] == 401 and get(server, "/health")[0] == 200
    assert get(server, "/status", Authorization="Bearer sesame")[0] == 200
    assert loop.seen == [] and post(server, HELLO, Authorization="Bearer sesame")[0] == 200


TOKEN = "sesame:open/dich@16%"  # with what an address must quote, and a colon


def basic(password: str, user: str = "x") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_a_v1_client_elsewhere_gives_the_token_in_the_address(start, monkeypatch, caplog):
    """The original's clients call `requests.post(url, data=…, headers={"MD5": …})`, and nothing else."""
    requests = pytest.importorskip("requests")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    caplog.set_level(logging.DEBUG)
    server, loop = start(host="0.0.0.0", token=TOKEN)
    answers = []
    for password in (TOKEN, TOKEN.upper(), ""):
        url = f"http://x:{quote(password, safe='')}@127.0.0.1:{server.port}/"
        answers.append(requests.post(url, data=V1_BODY, headers={"MD5": md5_hex(V1_BODY)}, timeout=PATIENCE_S))
    assert [answer.status_code for answer in answers] == [200, 401, 401]
    assert answers[0].text == "['action 1']" and len(loop.seen) == 1
    assert "http://x:<token>@host:port/" in answers[1].text and "Basic" in answers[1].headers["WWW-Authenticate"]
    encoded = basic(TOKEN).split()[1]
    assert "401" in caplog.text and TOKEN not in caplog.text and encoded not in caplog.text


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        TOKEN,
        f"Token {TOKEN}",
        f"Basic {TOKEN}",
        "Basic",
        "Basic ====",
        "Basic \xe9\xe9\xe9\xe9",
        "Basic " + base64.b64encode(TOKEN.encode()).decode(),  # without a user
        basic("", user=TOKEN),
        basic(TOKEN + "x"),
        basic(TOKEN[:-1]),
        basic(TOKEN + "\0"),
        f"{basic(TOKEN)} {basic(TOKEN)}",
        "Bearer",
        f"Bearer  {TOKEN}",
        "Basic " + "A" * 20_000,
    ],
)
def test_whatever_is_not_the_token_is_refused_before_the_body(start, authorization):
    server, loop = start(host="0.0.0.0", token=TOKEN)
    head = f"POST / HTTP/1.1\r\nMD5: {md5_hex(V1_BODY)}\r\nContent-Length: {len(V1_BODY)}\r\n"
    head += f"Authorization: {authorization}\r\n\r\n"
    answer = raw(server, head.encode("latin-1") + V1_BODY)
    assert answer.startswith(b"HTTP/1.1 401 ") and loop.seen == [] and TOKEN.encode() not in answer


def test_the_token_is_compared_in_constant_time(start, monkeypatch):
    compared = []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda sent, token: compared.append(sent) or compare(sent, token))
    server, _ = start(host="0.0.0.0", token=TOKEN)
    for header in (basic("wrong"), basic(TOKEN), f"bearer {TOKEN}"):
        post(server, V1_BODY, "text/plain", Authorization=header)
    assert compared == [b"wrong", TOKEN.encode(), TOKEN.encode()]


def test_on_this_machine_no_token_is_needed_and_one_does_no_harm(start):
    server, _ = start()
    for headers in ({}, {"Authorization": basic("any")}, {"Authorization": "Basic ===="}):
        assert post(server, V1_BODY, "text/plain", **headers)[0] == 200


def test_busy_port_names_the_process_and_leaves_it_alone():
    listen = "s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)"
    holder = f"import socket, sys; {listen}; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        port = int(process.stdout.readline())
        with pytest.raises(ServerError, match=rf"port {port} is held by .*python.*\(process {process.pid}\)"):
            DaggerHTTPServer("127.0.0.1", port)
        assert process.poll() is None
        process.stdin.close()


@pytest.mark.parametrize(
    ("host", "port", "reason"), [("127.0.0.1", 70_000, "0 to 65535"), ("192.0.2.1", 0, "192.0.2.1")]
)
def test_a_port_that_cannot_be_opened(host, port, reason):
    with pytest.raises(ServerError, match=reason):
        DaggerHTTPServer(host, port, token="t")


def test_stop_releases_everyone(start, monkeypatch):
    server, _ = start(loop=False)
    results = [InThread(post_v1, server), InThread(post, server, HELLO)]
    while len(server._queue) < 2:
        time.sleep(0.005)
    (taken,) = server.take(1, timeout_s=0)
    idle = connect(server)
    idle.connect()
    close = server._connections.close_all
    monkeypatch.setattr(server._connections, "close_all", lambda grace_s: close(PATIENCE_S))
    server.stop()
    assert len(server._connections) == 0  # each has ended by itself, the idle one too
    assert [result.result()[0] for result in results] == [503, 503]
    assert server.take(1, timeout_s=PATIENCE_S) == []
    taken.reply(["look"])  # the loop may still answer: nobody hears it
    with pytest.raises(ConnectionRefusedError):
        connect(server).connect()


def test_full_queue_says_when_to_come_again(start):
    server, _ = start(loop=False, queue_limit=1)
    waiting = InThread(post_v1, server)
    while len(server._queue) < 1:
        time.sleep(0.005)
    with closing(connect(server)) as connection:
        connection.request("POST", "/", HELLO, {"MD5": md5_hex(HELLO), "Content-Type": v2.CONTENT_TYPE})
        response = connection.getresponse()
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
    server.take(1, timeout_s=0)[0].reply(["look"])
    assert waiting.result()[0] == 200
    again = InThread(post, server, HELLO)  # the refused request left no trace
    server.take(1, timeout_s=PATIENCE_S)[0].reply({"kind": "welcome"})
    assert again.result()[0] == 200


def test_silent_session_comes_as_bye_and_must_say_hello_again(start):
    server, loop = start(session_timeout_s=0.2)
    post(server, HELLO)
    deadline = time.monotonic() + PATIENCE_S
    while len(loop.seen) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert loop.seen[1] == Bye("s", 0, "silent for 0.2 s")
    assert post(server, observation(1))[0] == 410 and post(server, HELLO)[0] == 200


def test_sessions_keep_no_frame_that_was_answered(start):
    server, loop = start()
    loop.seen = deque(maxlen=1)
    body = v2.encode(Observation("x" * 16_000, image=np.zeros((1024, 1024, 3), np.uint8), session="name", seq=1), "png")
    rss = psutil.Process().memory_info().rss
    with closing(connect(server)) as connection:
        for number in range(128):  # 128 decoded frames are 400 MB
            name = f"{number:04d}"
            assert ask(connection, v2.encode(Hello(name, 0, ("g" * 500,) * 50)))[0] == 200
            assert ask(connection, body.replace(b'"name"', b'"' + name.encode() + b'"'))[0] == 200
    assert psutil.Process().memory_info().rss - rss < 60 << 20
    assert len(server._admission) == 128 and server._budget.held == 0


def test_requests_beyond_the_budget_wait_and_are_then_told_to_come_again(start):
    server, _ = start(loop=False, limits=Limits(max_held=8 << 20))
    large = np.zeros((900, 900, 3), np.uint8)
    waiting = [InThread(post, server, v2.encode(Hello(name, 0, ("g",)))) for name in "ab"]
    taken = [server.take(1, PATIENCE_S)[0] for _ in waiting]
    for pending in taken:
        pending.reply({"kind": "welcome"})
    assert [thread.result()[0] for thread in waiting] == [200, 200]
    threads, body = [], [v2.encode(Observation("x", image=large, session=name, seq=1)) for name in "ab"]
    threads.append(InThread(post, server, body[0]))
    (first,) = server.take(1, PATIENCE_S)
    budget, patience_s = server._budget, server._budget._patience_s
    budget.take(4 << 20)  # others, who wait for their answers
    budget._patience_s = 0.2
    status, reason = post(server, body[1])
    assert status == 503 and b"other requests hold" in reason
    budget._patience_s = patience_s
    budget.give_back(4 << 20)
    threads.append(InThread(post, server, body[1]))
    (second,) = server.take(1, PATIENCE_S)
    for pending in (first, second):
        pending.reply(["look"])
    assert [thread.result()[0] for thread in threads] == [200, 200] and budget.held == 0


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "127.0.0.1:1"}, 200),
        ({"Host": "localhost"}, 200),
        ({"Host": "[::1]:7860"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example:7860"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Transfer-Encoding": "chunked"}, 411),
    ],
)
def test_a_web_page_is_not_answered(start, headers, status):
    server, loop = start()
    assert post(server, HELLO, **headers)[0] == status
    assert len(loop.seen) == (status == 200)
    assert get(server, "/status", **headers)[0] == status


def test_a_server_for_other_machines_goes_by_its_token_not_by_its_name(start):
    server, _ = start(host="0.0.0.0", token="sesame")
    assert post(server, HELLO, Authorization="Bearer sesame", Host="gpu-machine:7860")[0] == 200


def test_get_with_a_body_is_one_request(start):
    server, loop = start()
    inner = b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = raw(server, b"GET /health HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(inner) + inner)
    assert answer.count(b"HTTP/1.1 ") == 1 and answer.startswith(b"HTTP/1.1 400") and b"GET has no body" in answer


@pytest.mark.parametrize("path", ["/status", "/health"])
@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
)
def test_a_page_that_loads_an_address_as_an_image_gets_nothing(start, path, site, status):
    """Such a request names no origin; what is answered may be used by no other site's page either."""
    server, _ = start()
    assert get(server, path, **{"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"})[0] == status
    with closing(connect(server)) as connection:
        connection.request("GET", path)
        headers = connection.getresponse().headers
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin" and headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "line",
    [
        b"Content-Length : %d",
        b"Content-Length\t: %d",
        b"X: a\r\n Content-Length: %d",
        b"X: a\r\n\tb\r\nContent-Length: %d",
        b" Content-Length: %d",
        b"X: a\rContent-Length: %d",
        b"X: \0\r\nContent-Length: %d",
        b"no header\r\nContent-Length: %d",
        b": nameless\r\nContent-Length: %d",
        b"From nobody\r\nContent-Length: %d",
        b"\xa0X: a\r\nContent-Length: %d",
    ],
)
def test_what_can_be_read_in_two_ways_is_not_read(start, line):
    """Python's parser ends the headers at such a line, or joins it to the one before: the body became a request."""
    server, _ = start(limits=Limits(drain_s=0.1))
    inner = b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for path in (b"GET /health", b"POST /"):
        answer = raw(server, path + b" HTTP/1.1\r\n" + line % len(inner) + b"\r\nHost: localhost\r\n\r\n" + inner)
        assert answer.count(b"HTTP/1.1 ") == 1 and answer.startswith(b"HTTP/1.1 400"), answer
        assert b"a line of the headers is no header" in answer


def test_a_second_host_is_refused(start):
    server, _ = start()
    answer = raw(server, b"GET /status HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400") and b"Host once" in answer


# --- pages for browsers -----------------------------------------------------------------------------------------------


class Notices:
    """Pages: one that everybody may see, one that needs the token, and events until `close`."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.left = threading.Event()

    def is_public(self, path: str) -> bool:
        return path == "/"

    def get(self, path: str):
        if path == "/events":
            return self
        if path in ("/", "/private"):
            return HttpResponse(200, path.encode(), "text/html")
        raise RequestRefused(404, "nothing there")

    def attach(self, hang_up) -> None:
        """It never hangs up."""

    def __iter__(self):
        yield b"event: hello\n\n"
        self.over.wait(PATIENCE_S)
        yield b"event: bye\n\n"

    def close(self) -> None:
        if self.over.is_set():
            self.left.set()
        self.over.set()


def test_pages_are_shown_by_the_rules_of_the_server(start):
    server, loop = start(token="sesame")
    assert get(server, "/")[0] == 404
    server.mount(Notices())
    assert get(server, "/") == (200, b"/") and get(server, "/private")[0] == 401
    known = {"Authorization": "Bearer sesame"}
    assert get(server, "/private", **known) == (200, b"/private") and get(server, "/other", **known)[0] == 404
    evil, here = "evil.example", f"127.0.0.1:{server.port}"
    rebound = {"Host": evil, "Origin": f"http://{evil}"}
    for refused in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}, {"Origin": f"http://{evil}"}, rebound):
        assert get(server, "/private", **known, **refused)[0] == 403
    assert get(server, "/private", **known, Origin=f"http://{here}")[0] == 200, "the page's own scripts"
    assert post(server, HELLO, **known, Origin=f"http://{here}")[0] == 403, "but no page sends messages"
    assert get(server, "/", **{"Sec-Fetch-Site": "cross-site"})[0] == 200, "a link from elsewhere leads to the page"
    assert post(server, HELLO, **known)[0] == 200 and len(loop.seen) == 1, "messages go on as before"


def test_events_are_sent_as_they_come_and_end_with_the_server(start):
    server, _ = start(loop=False)
    notices = Notices()
    server.mount(notices)
    with closing(connect(server)) as connection:
        connection.request("GET", "/events")
        response = connection.getresponse()
        assert response.headers["Content-Type"] == "text/event-stream" and response.headers["Content-Length"] is None
        assert response.read1() == b"event: hello\n\n"
        server.stop()
        assert response.read() == b"event: bye\n\n" and notices.left.wait(PATIENCE_S)
