"""What is refused before a body is read, as raw bytes on a socket."""

from __future__ import annotations

import json
import socket

import pytest

from tests.policy_server.servers import CAVE, encoded_image


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


def test_a_whole_body_in_small_pieces_is_fine(serve):
    data = encoded_image()
    pieces = [data[at : at + 100] for at in range(0, len(data), 100)]
    status, answer = talk(serve().url, head(Content_Length=len(data)), *pieces)
    assert status == 200 and "action" in answer


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "[", ""])
def test_on_loopback_without_keys_other_names_are_refused(serve, host):
    status, answer = talk(serve().url, head("/health", "GET", Host=host))
    assert (status, answer["error"]) == (421, "wrong_host")


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
