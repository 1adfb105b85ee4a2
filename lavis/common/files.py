"""Files that are whole or not there: everything that must survive a crash is written through this module."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from lavis.common.errors import ConfigError, FileError

# Bytes of a file's name on Linux, less what names of files beside it and of temporary ones have more
# (`.NAME.world.log.4194304.tmp`).
_NAME_MAX = 255 - 40
_TEMPORARY = re.compile(r"\..+\.\d+\.tmp")  # what `replaced` calls its temporary files


class LockedError(FileError):
    """Another process writes there; the text names it."""


@contextlib.contextmanager
def replaced(path: Path | str) -> Iterator[Path]:
    """A temporary neighbour of `path` to write to; afterwards it is synced to disk and renamed to `path`.

    The folder is synced as well: without that, a power loss may undo the rename after the file was relied on.

    If the block raises, or the process is killed in it, an older file at `path` stays as it was.
    """
    path = Path(path)
    if not path.parent.is_dir():  # asking takes microseconds; mkdir on a busy disk takes milliseconds
        path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not (path.is_file() or path.is_dir()):  # for root, the rename would put a file there
        raise FileError(f"{path} could not be written: it is a device or a pipe; give a file's path")
    # Beside `path`, because a rename is atomic only within one file system; with the process's number, because two
    # processes may write the same cache.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        sync(temporary)  # before the rename: else the name may reach the disk before the content
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path | str, write: Callable[[BinaryIO], Any]) -> None:
    """Call `write(binary_file)`; the file appears at `path` only when it is whole and on disk.

    Raises FileError, naming `path`, if it cannot be written (full disk, rights).
    """
    try:
        with replaced(path) as temporary, open(temporary, "wb") as file:
            write(file)
    except FileError:  # an OSError as well, but its text is complete
        raise
    except OSError as error:
        raise FileError(f"{path} could not be written: {error.strerror or error}") from error


def write_bytes(path: Path | str, data: bytes) -> None:
    """Make `data` the content of `path`; see `write_atomically`."""
    write_atomically(path, lambda file: file.write(data))


def write_text(path: Path | str, text: str) -> None:
    """Make `text` the content of `path` (UTF-8); see `write_atomically`."""
    write_bytes(path, text.encode())


def whole_lines(content: bytes) -> bytes:
    """`content` without what stands after its last newline: a line whose writer was killed while it wrote."""
    return content[: content.rfind(b"\n") + 1]


def read_json(path: Path | str) -> Any:
    """What a JSON file of ours holds; FileError if it is damaged or cannot be read."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else f"damaged ({error})"
        raise FileError(f"{path} is not readable: {why}; it is made anew if you delete it") from error


def write_json(path: Path | str, content: Any) -> None:
    """Write `content` as JSON (UTF-8, one space of indentation); see `write_atomically`."""
    # A model may write half a surrogate pair, which UTF-8 cannot hold; JSON can, as `\udXXX`.
    data = json.dumps(content, indent=1, ensure_ascii=False).encode("utf-8", "backslashreplace")
    write_bytes(path, data)


def write_cache(path: Path | str, write: Callable[[BinaryIO], Any]) -> None:
    """`write_atomically` for a cache: a folder that cannot be written costs time only, so that is no error."""
    with contextlib.suppress(OSError):
        write_atomically(path, write)


def append_line(path: Path | str, line: str) -> None:
    """Append one line of text, whole or not at all; FileError if that fails. A half line before it gets its end."""
    try:
        with open(path, "ab+", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(-1, os.SEEK_END)
            data = (b"\n" if size and file.read(1) != b"\n" else b"") + f"{line}\n".encode()
            try:
                if file.write(data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                file.truncate(size)
                raise
    except OSError as error:
        raise FileError(f"{path} could not be written: {error.strerror or error}") from error


@contextlib.contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """A write to `path` that the system refuses (full disk) is a FileError that names it: the system's own does not."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:  # of opening: it names the file, and may be another kind of error
            raise
        raise FileError(f"{path} could not be written: {error.strerror or error}") from error


def make_folder(path: Path | str) -> None:
    """Make a folder and those above it, if they are not there; FileError if that fails."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"the folder {path} could not be made: {error.strerror or error}") from error


def open_to_others(folder: Path | str) -> None:
    """Give the weights in `folder` the rights of its config: safetensors makes them readable for their owner alone."""
    mode = next(Path(folder).glob("*config.json")).stat().st_mode
    for file in Path(folder).glob("*.safetensors"):
        file.chmod(mode)


def writable(setting: str, path: Path, *, folder: bool = False) -> Path:
    """The value `path` of a setting, after a look whether this file (or `folder`) can be written: before hours of work.

    Raises ConfigError; leaves nothing behind.
    """
    if not folder and len(os.fsencode(path.name)) > _NAME_MAX:
        raise ConfigError(f"{setting}={path}: give a name of at most {_NAME_MAX} bytes")
    place = path.absolute() if folder else path.absolute().parent
    while not place.exists():
        place = place.parent
    taken = not folder and path.exists() and not (path.is_file() and os.access(path, os.W_OK))
    try:
        with tempfile.TemporaryFile(dir=place):  # root may write in /proc, by its mode; no file can be made there
            pass
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # a full disk, which is told as such
            raise
        taken = True
    if taken:
        wanted = "a folder" if folder else "a file's path in a folder"
        raise ConfigError(f"{setting}={path} cannot be written: give {wanted} of yours")
    return path


def new_folder(path: Path | str) -> Path:
    """Make a folder that was not there, and those above it: `path`, or `path-2`, `path-3`, … where that exists.

    FileError if that fails. Two processes never get the same one.
    """
    path, number = Path(path), 1
    found = path
    make_folder(path.parent)
    while True:
        try:
            found.mkdir()  # it fails if the folder is there: asking first would let two processes get the same one
            return found
        except FileExistsError:
            number += 1
            found = path.with_name(f"{path.name}-{number}")
        except OSError as error:
            raise FileError(f"the folder {found} could not be made: {error.strerror or error}") from error


def remove_temporaries(folder: Path | str) -> None:
    """Remove what killed processes left of `replaced` in a folder in which nobody else writes now."""
    for entry in Path(folder).glob(".*.tmp"):
        if _TEMPORARY.fullmatch(entry.name):
            entry.unlink(missing_ok=True)


def locked(path: Path | str, folder: Path | str) -> TextIO:
    """The open file `path`, which locks `folder` until it is closed or its process ends, however it ends.

    Raises LockedError, which names the process that holds it, and FileError if `path` cannot be opened.
    """
    import fcntl  # Windows has none: training runs on Linux and macOS, the environments everywhere

    try:
        file = open(path, "a+", encoding="utf-8")  # "w" would wipe out the holder's number before the lock is had
    except OSError as error:
        raise FileError(f"the lock {path} could not be opened: {error.strerror or error}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        holder = file.read().strip()
        file.close()
        raise LockedError(f"process {holder} is writing to {folder}: wait for its end, or stop it") from error
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def sync(path: Path | str) -> None:
    """Wait until a file's content, or a folder's list of names, is on disk."""
    windows = os.name == "nt"
    if windows and os.path.isdir(path):
        return  # Windows opens no folders
    descriptor = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
