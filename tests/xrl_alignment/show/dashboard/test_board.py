"""The board: newest state of each part, viewers that come, leave, and do not listen."""

from __future__ import annotations

import json
import math
import socket
import threading
import time

import pytest

from xrl_alignment.show.dashboard.board import Board
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


def test_a_full_house_goes_in_turns():
    board = Board(max_viewers=2, turn_s=3600)
    first, second = board.watch(), board.watch()
    with pytest.raises(RequestRefused):
        board.watch()
    for viewer in (first, second):
        viewer.since -= 3601
    hung_up = []
    first.attach(lambda: hung_up.append("first"))
    second.attach(lambda: hung_up.append("second"))
    third = board.watch()
    assert hung_up == ["first"] and list(first) == [] and board.viewers == 2
    first.close()  # its connection has ended; the place is another's by now
    assert board.viewers == 2
    fourth = board.watch()
    assert hung_up == ["first", "second"]
    with pytest.raises(RequestRefused):
        board.watch()
    for viewer in (second, third, fourth):
        viewer.close()
    assert board.viewers == 0


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
    server = PageServer("127.0.0.1", 0, limits=Limits(event_s=3)).start()
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
        assert longest < 1.5, "nobody waits for the deaf one"  # who did would wait for its 3 s
        assert received.is_alive()
    finally:
        server.stop()
        received.join(PATIENCE_S)
        deaf.close()
        listening.close()
    assert board.viewers == 0


def view(server: PageServer, receive_buffer: int = 0) -> socket.socket:
    """A connection that has asked for the events."""
    viewer = socket.socket()
    viewer.settimeout(PATIENCE_S)
    if receive_buffer:
        viewer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    viewer.connect(("127.0.0.1", server.port))
    viewer.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return viewer


def wait_for(condition) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_viewers_that_never_read_make_room_for_others():
    """They held all places for as long as a message may take, and while the system kept what they did not read."""
    board = Board()
    board.put("big", "big", "x" * (1 << 18))
    server = PageServer("127.0.0.1", 0, limits=Limits(event_s=3600)).start()
    server.mount(BoardPages(board))
    deaf = []
    try:
        deaf = [view(server, receive_buffer=4096) for _ in range(16)]
        wait_for(lambda: [viewer.sending_since < math.inf for viewer in list(board._watching)] == [True] * 16)
        time.sleep(1.1)
        for _ in range(3):
            with view(server) as viewer:
                assert viewer.recv(1 << 16).startswith(b"HTTP/1.1 200")
        wait_for(lambda: len(server._connections) <= 16)  # those that have lost their place are closed, too
    finally:
        server.stop()
        for viewer in deaf:
            viewer.close()


def test_little_is_kept_for_a_viewer_that_does_not_read():
    board = Board()
    server = PageServer("127.0.0.1", 0, limits=Limits(event_s=0.2)).start()
    server.mount(BoardPages(board))
    try:
        with view(server, receive_buffer=4096):
            wait_for(lambda: board.viewers == 1)
            sent = 0
            while board.viewers:
                assert sent < 1 << 20, "a megabyte is not kept"
                board.put("part", "part", f"{sent}" + "x" * (1 << 14))
                sent += 1 << 14
                time.sleep(0.05)
    finally:
        server.stop()


def test_viewers_that_leave_make_room_though_nothing_is_new():
    board = Board(max_viewers=2, still_here_s=3600)
    board.put("run", "run", {})
    server = PageServer("127.0.0.1", 0).start()
    server.mount(BoardPages(board))
    try:
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as viewer:
                viewer.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert viewer.recv(1 << 16).startswith(b"HTTP/1.1 200")
        wait_for(lambda: not board.viewers)  # long before a comment would be sent
    finally:
        server.stop()
