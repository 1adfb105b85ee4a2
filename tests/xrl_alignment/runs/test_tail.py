"""A log that grows, is cut, or is replaced while it is read."""

from __future__ import annotations

from pathlib import Path

from xrl_alignment.runs.tail import Tail


def read(tail: Tail) -> list[bytes]:
    tail.began_anew()
    return [line for _, line in tail.lines()]


def test_only_whole_new_lines_are_read(tmp_path: Path):
    path = tmp_path / "log"
    tail = Tail(path)
    assert not tail.began_anew() and read(tail) == []
    path.write_bytes(b"one\ntwo\nthr")
    assert read(tail) == [b"one", b"two"]
    assert read(tail) == []
    with open(path, "ab") as file:
        file.write(b"ee\n")
    assert not tail.began_anew() and list(tail.lines()) == [(8, b"three")]


def test_a_shorter_or_replaced_log_is_read_from_its_beginning(tmp_path: Path):
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\n")
    tail = Tail(path)
    assert read(tail) == [b"one", b"two"]
    path.write_bytes(b"one\n")
    assert tail.began_anew() and list(tail.lines()) == [(0, b"one")]
    (tmp_path / "new").write_bytes(b"other\nlines\n")
    (tmp_path / "new").replace(path)
    assert tail.began_anew() and [line for _, line in tail.lines()] == [b"other", b"lines"]


def test_lines_longer_than_a_piece_are_whole(tmp_path: Path):
    path = tmp_path / "log"
    long = b"x" * (3 << 20)
    path.write_bytes(b"a\n" + long + b"\nb\n")
    assert list(Tail(path).lines()) == [(0, b"a"), (2, long), (3 + len(long), b"b")]
