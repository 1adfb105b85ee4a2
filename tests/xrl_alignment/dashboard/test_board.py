"""The board: newest state of each part, viewers that come, leave, and do not listen."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest

from xrl_alignment.dashboard.board import Board
from xrl_alignment.wire.admission import HttpResponse, RequestRefused
from xrl_alignment.wire.http_handler import Limits
from xrl_alignment.wire.http_server import PageServer

PATIENCE_S = 60


def parse(events: bytes) -> list[tuple[str, object]]:
    blocks = [block.split("\n") for block in events.decode().split("\n\n") if block.startswith("event: ")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


def test_a_viewer_gets_every_part_and_then_what_changed():
    board = Board(still_here_s=0.05)
    board.put("run", "run", {"name": "a\nb"})
    board.put("session 0", "session", 1)
    watching = iter(board.watch())
    assert parse(next(watching)) == [("run", {"name": "a\nb"}), ("session", 1)]
    board.put("run", "run", {"name": "a\nb"})  # unchanged
    board.put("session 0", "session", 2)
    board.put("session 0", "session", 3)
    assert parse(next(watching)) == [("session", 3)]
    assert b": nothing new\n\n" in (next(watching), next(watching))
    board.drop("session 0")
    board.put("run", "run", {})
    board.close()
    assert parse(next(watching)) == [("run", {})]
    with pytest.raises(StopIteration):
        next(watching)


def test_the_number_of_viewers_is_bounded_and_a_place_is_free_again():
    board = Board(max_viewers=2)
    viewers = [board.watch(), board.watch()]
    with pytest.raises(RequestRefused, match="2 viewers watch already"):
        board.watch()
    viewers[0].close()  # before it has read anything
    viewers[0].close()
    assert board.viewers == 1
    board.watch()
    board.close()
    with pytest.raises(RequestRefused):
        board.watch()


class BoardPages:
    """Pages with nothing but a board's events."""

    def __init__(self, board: Board) -> None:
        self.board = board

    def is_public(self, path: str) -> bool:
        return False

    def get(self, path: str) -> HttpResponse:
        return self.board.watch()

    def close(self) -> None:
        self.board.close()


def test_a_viewer_that_does_not_read_is_dropped_and_holds_up_nobody():
    board = Board()
    server = PageServer("127.0.0.1", 0, limits=Limits(event_s=0.5)).start()
    server.mount(BoardPages(board))
    try:
        deaf, listening = (socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) for _ in range(2))
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for viewer in (deaf, listening):
            viewer.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = threading.Thread(target=lambda: [None for _ in iter(lambda: listening.recv(1 << 20), b"")])
        received.start()
        deadline = time.monotonic() + PATIENCE_S
        while board.viewers < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        longest = 0.0
        for number in range(10_000):
            began = time.monotonic()
            board.put("big", "big", f"{number}" + "x" * (1 << 20))
            longest = max(longest, time.monotonic() - began)
            if board.viewers == 1:
                break
            time.sleep(0.02)
        assert board.viewers == 1, "the deaf one was not dropped"
        assert longest < 0.3, "nobody waits for the deaf one"
        assert received.is_alive()
    finally:
        server.stop()
        received.join(PATIENCE_S)
        deaf.close()
        listening.close()
    assert board.viewers == 0


def test_viewers_that_leave_make_room_though_nothing_is_new():
    board = Board(max_viewers=2)
    board.put("run", "run", {})
    server = PageServer("127.0.0.1", 0).start()
    server.mount(BoardPages(board))
    try:
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as viewer:
                viewer.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert viewer.recv(1 << 16).startswith(b"HTTP/1.1 200")
        deadline = time.monotonic() + 10  # long before a comment would be sent
        while board.viewers:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        server.stop()
