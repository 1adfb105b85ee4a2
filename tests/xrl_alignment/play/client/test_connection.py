"""Waiting for a server, retrying, giving up, and what is said of a server that refuses."""

import http.server
import io
import socket
import threading
import time
from contextlib import closing

import pytest

from lavis.common.errors import ConfigError
from tests.ports import free_port
from tests.xrl_alignment.play.client.playing import native, quiet
from xrl_alignment.play.client.connection import ClientError, RetryingConnection
from xrl_alignment.play.client.play import play
from xrl_alignment.play.client.report import ClientReport
from xrl_alignment.wire import v2
from xrl_alignment.wire.http_handler import Limits
from xrl_alignment.wire.messages import md5_hex


def test_a_broken_connection_is_retried_with_the_same_bytes():
    """A server that cuts the connection after the request, then damages a reply, then answers."""
    received = []
    reply = b'{"kind": "finished"}'
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nMD5: %s\r\n\r\n"
    answers = [
        b"",
        head % (len(reply), b"0" * 32) + reply,
        head % (len(reply), md5_hex(reply).encode()) + reply,
    ]

    def serve(listener: socket.socket) -> None:
        for answer in answers:
            connection, _ = listener.accept()
            with closing(connection):
                connection.settimeout(60)
                data = b""
                while not data.endswith(b"the body"):
                    data += connection.recv(65536)
                received.append(data)
                connection.sendall(answer)

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        link = RetryingConnection(url, token="", patience_s=60, report=quiet())
        assert link.exchange(b"the body", v2.CONTENT_TYPE) == reply
        thread.join(60)
    assert len(received) == 3 and len(set(received)) == 1


def test_client_waits_for_a_server_that_is_late(master, games):
    port = free_port()
    report, result = io.StringIO(), []
    url = f"http://127.0.0.1:{port}"
    client = threading.Thread(target=lambda: result.append(play(url, native, games[:1], report=ClientReport(report))))
    client.start()
    while "waiting for the server" not in report.getvalue():
        assert client.is_alive()
        time.sleep(0.01)
    server = master(num_rounds=1, port=port)
    client.join(60)
    server.end()
    assert result[0]["episodes"] == 1 and report.getvalue().count("waiting for the server") == 1


def test_patience_ends(games):
    url = f"http://127.0.0.1:{free_port()}"
    for wire in ("v1", "v2"):
        with pytest.raises(ClientError, match=rf"no server at {url} for 0\.2 s .*dagger_server"):
            play(url, native, games, wire=wire, patience_s=0.2, report=quiet())
    for host in ("host.invalid", "host..invalid"):
        with pytest.raises(ClientError, match=f"no host is called {host}: check --host"):
            play(f"http://{host}:7860", native, games, report=quiet())


def test_patience_does_not_count_what_a_server_took_before_it_went_away():
    """A server that trains for a second, is stopped, and is there again at once."""
    reply = b'{"kind": "finished"}'
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nMD5: %s\r\n\r\n%s" % (
        len(reply),
        md5_hex(reply).encode(),
        reply,
    )

    def serve(listener: socket.socket) -> None:
        for pause_s, said in ((1.0, b""), (0.0, answer)):
            connection, _ = listener.accept()
            with closing(connection):
                connection.recv(65536)
                time.sleep(pause_s)
                connection.sendall(said)

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        link = RetryingConnection(url, token="", patience_s=0.7, report=quiet())
        assert link.exchange(b"the body", v2.CONTENT_TYPE) == reply


def test_refusals_name_the_server_and_the_reason(master, games):
    url = master(token="sesame").url
    with pytest.raises(ClientError, match=r"refuses \(401\).*--token"):
        play(url, native, games, token="wrong", report=quiet())
    with pytest.raises(ClientError, match="the games are too few"):
        play(master(welcome={"kind": "error", "reason": "the games are too few"}).url, native, games, report=quiet())
    with pytest.raises(ClientError, match=r"\(413\)"):
        play(master(limits=Limits(max_body=500)).url, native, games, report=quiet())


def test_another_kind_of_server_is_told_apart(games):
    with http.server.HTTPServer(("127.0.0.1", 0), Stranger) as stranger:
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{stranger.server_port}"
        with pytest.raises(ClientError, match="does not answer like a dagger server"):
            play(url, native, games, report=quiet())
        stranger.shutdown()


class Stranger(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments) -> None:
        pass


@pytest.mark.parametrize("url", ["127.0.0.1:7860", "https://127.0.0.1", "http://127.0.0.1:99999", "http://a b:80"])
def test_server_url_is_checked(url):
    with pytest.raises(ValueError, match="server URL"):
        play(url, native, [])


@pytest.mark.parametrize("token", ["two\nlines", "a pasted token…"])
def test_a_token_that_no_header_can_hold_is_refused(token):
    with pytest.raises(ConfigError, match="--token or EMAC_TOKEN"):
        RetryingConnection("http://127.0.0.1:80", token=token, patience_s=1, report=quiet())


def test_a_server_that_asks_for_a_pause_is_not_absent():
    """A busy server may be busy for longer than the client waits for one that is not there."""
    pauses = iter([1, 1, 1])

    class Busy(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            pause = next(pauses, None)
            body = b"ok" if pause is None else b"1024 requests are waiting already"
            self.send_response(200 if pause is None else 503)
            self.send_header(*(("MD5", md5_hex(body)) if pause is None else ("Retry-After", str(pause))))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert RetryingConnection(url, token="", patience_s=1.5, report=quiet()).exchange(b"x", "text/plain") == b"ok"
        server.shutdown()
