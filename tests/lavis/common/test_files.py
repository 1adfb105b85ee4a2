"""Files that are whole or not there, with real files."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

import lavis
from lavis.common.errors import ConfigError, FileError
from lavis.common.files import (
    LockedError,
    append_line,
    locked,
    make_folder,
    new_folder,
    read_json,
    remove_temporaries,
    replaced,
    whole_lines,
    writable,
    write_atomically,
    write_bytes,
    write_cache,
    write_json,
    write_text,
)


def half_written(file: BinaryIO) -> None:
    file.write(b"half of i")
    raise RuntimeError("stop")


def test_the_file_appears_whole_and_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "x.bin"
    write_atomically(path, lambda file: file.write(b"whole"))
    assert path.read_bytes() == b"whole"
    assert [entry.name for entry in path.parent.iterdir()] == ["x.bin"]


def test_texts_are_written_as_utf_8(tmp_path: Path) -> None:
    write_text(tmp_path / "x.md", "à\n")
    write_bytes(tmp_path / "x.bin", b"\xff")
    assert (tmp_path / "x.md").read_bytes() == b"\xc3\xa0\n" and (tmp_path / "x.bin").read_bytes() == b"\xff"


@pytest.mark.parametrize(
    ("content", "whole"), [(b"", b""), (b"ha", b""), (b"a\n", b"a\n"), (b"a\r\nb\nha", b"a\r\nb\n")]
)
def test_a_half_line_is_left_out(content: bytes, whole: bytes) -> None:
    assert whole_lines(content) == whole


def test_a_new_folder_is_nobody_elses(tmp_path: Path) -> None:
    made = [new_folder(tmp_path / "runs" / "20260101") for _ in range(3)]
    assert [path.name for path in made] == ["20260101", "20260101-2", "20260101-3"]
    assert all(path.is_dir() for path in made)
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="the folder .*file could not be made"):
        new_folder(tmp_path / "file" / "a")


def test_a_raising_writer_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError, match="stop"):  # a bug is not dressed up as a disk's failure
        write_atomically(path, half_written)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_a_process_killed_while_it_writes_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"old")
    code = (
        f"import os, signal, sys; sys.path.insert(0, {str(Path(lavis.__file__).parents[1])!r})\n"
        "from lavis.common.files import write_atomically\n"
        "def write(file):\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
        f"write_atomically({str(path)!r}, write)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"


def test_a_full_disk_is_a_file_error_that_names_the_path(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # the system refuses to write on, as on a full disk
    try:
        with pytest.raises(FileError, match=f"^{path} could not be written: File too large$"):
            write_atomically(path, lambda file: file.write(bytes(2000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_what_stands_in_the_way_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    path = tmp_path / "file" / "x.json"
    with pytest.raises(FileError, match=f"{path} could not be written"):
        write_json(path, {})
    with pytest.raises(FileError, match=f"{path} could not be written"):
        append_line(path, "x")
    with pytest.raises(FileError, match=f"the folder {path} could not be made"):
        make_folder(path)
    write_cache(path, lambda file: file.write(b"x"))  # a cache that cannot be written is no error


def test_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    """For root, a result written to /dev/null put a file in the device's place. A pipe here: anybody can make one."""
    path = tmp_path / "null"
    os.mkfifo(path)
    with pytest.raises(FileError, match=f"{path} could not be written: it is a device or a pipe"):
        write_json(path, {})
    with pytest.raises(ConfigError, match=f"--page={path} cannot be written"):
        writable("--page", path)
    assert path.is_fifo() and list(tmp_path.iterdir()) == [path]


def test_a_place_where_nothing_can_be_written_is_refused_beforehand(tmp_path: Path) -> None:
    assert writable("run.output", tmp_path / "new" / "x.json") and list(tmp_path.iterdir()) == []
    for length in (240, 300):  # of 240 bytes: its temporary file, and its card, would have too long names
        with pytest.raises(ConfigError, match=r"run.output=.*y.json: give a name of at most 215 bytes"):
            writable("run.output", tmp_path / f"{'y' * length}.json")
    with pytest.raises(ConfigError, match="run.output=/proc/x.json cannot be written"):
        writable("run.output", Path("/proc/x.json"))  # for root its mode says that it can


def test_replaced_is_for_libraries_that_write_by_path(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    with replaced(path) as temporary:
        assert temporary.parent == path.parent and not path.exists()
        temporary.write_text("new")
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_json_is_utf8_and_replaces_an_older_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for content in ({"a": 1}, {"ä": [1, None]}):
        write_json(path, content)
    assert json.loads(path.read_bytes().decode("utf-8")) == {"ä": [1, None]} and "ä" in path.read_text("utf-8")
    write_json(path, {"a": "\ud800"})  # half a surrogate pair, which a model may write and UTF-8 cannot hold
    assert json.loads(path.read_text("utf-8")) == read_json(path) == {"a": "\ud800"}
    path.write_text('{"a": ')
    with pytest.raises(FileError, match=f"^{path} is not readable: damaged .*; it is made anew if you delete it"):
        read_json(path)
    with pytest.raises(FileError, match="not readable: No such file"):
        read_json(tmp_path / "none.json")


def test_lines_are_appended(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    for line in ("one", "zwei ü"):
        append_line(tmp_path / "a" / "b" / "log.txt", line)
    assert (tmp_path / "a" / "b" / "log.txt").read_text("utf-8") == "one\nzwei ü\n"


def test_half_a_line_costs_no_other_line(tmp_path: Path) -> None:
    path = tmp_path / "table.jsonl"
    path.write_text('{"a": 1}\n{"b"')  # what a full disk has left of an older program's line
    append_line(path, '{"c": 3}')
    assert path.read_text() == '{"a": 1}\n{"b"\n{"c": 3}\n'
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 4, before[1]))  # a disk that is nearly full
    try:
        with pytest.raises(FileError, match="could not be written"):
            append_line(path, '{"d": 4}')
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == '{"a": 1}\n{"b"\n{"c": 3}\n'


def test_file_and_folder_are_synced_in_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, rename = os.fsync, os.replace

    def syncing(descriptor: int) -> None:
        done.append("sync " + Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("rename"), rename(a, b)))
    write_atomically(tmp_path / "x.bin", lambda file: file.write(b"whole"))
    assert done == [f"sync .x.bin.{os.getpid()}.tmp", "rename", f"sync {tmp_path.name}"]


def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (".trainer.pth.4711.tmp", ".hidden", "x.tmp", ".x.tmp"):
        (tmp_path / name).write_text("x")
    remove_temporaries(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".hidden", ".x.tmp", "x.tmp"]


def test_a_lock_is_held_until_its_file_is_closed(tmp_path: Path) -> None:
    held = locked(tmp_path / "lock", tmp_path)
    with pytest.raises(LockedError, match=f"process {os.getpid()} is writing to {tmp_path}: wait for its end"):
        locked(tmp_path / "lock", tmp_path)
    held.close()
    locked(tmp_path / "lock", tmp_path).close()


def test_a_lock_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(FileError, match=f"the lock {tmp_path}/lock could not be opened: Is a directory"):
        locked(tmp_path / "lock", tmp_path)
