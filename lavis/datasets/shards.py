"""Episode shards: immutable HDF5 files of one episode each, as online training and `collect` write them.

    <folder>/round000_env0012_steps013.h5
        image (steps, H, W, 3) uint8                       one chunk per image, packed with LZ4 (HDF5's filter 32004)
        text_input, text_output, text_output_neg, … (steps,)     UTF-8 of fixed length
        step (steps,)                                      its number in the episode, if not all steps are stored
        whatever else belongs to a step (steps, …)         any numeric type
        attributes: version, game, …

The name contains the number of steps, so a folder is opened by listing it. After the HDF5 data follows an index (JSON,
its length, a mark; HDF5 ignores it) with the place of each row's bytes and a checksum of the file: reading a row is one
read of the file, and no file stays open. Through HDF5 an image and its texts take fifteen times as long in random
order, and opening a file alone takes as long as ten rows (`benchmarks/loader.py`). Other programs read shards with h5py
as usual, the images after `import hdf5plugin`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import struct
import sys
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import h5py
import lz4.block
import numpy as np
from h5py import h5d, h5f, h5p, h5s, h5t, h5z

from lavis.common.errors import FileError, MissingFileError
from lavis.common.files import replaced
from lavis.datasets.records import BadSampleError, Record, blank_image, task_type_of

VERSION = 2
MAX_ROW = 1 << 28  # bytes of a row unpacked: no frame is as large, and a few bytes of a hostile shard may claim more
NAME = re.compile(r".*_steps(\d+)\.h5")
IMAGE = "image"
STEP = "step"
_ERRNO = re.compile(r"errno = (\d+)")
_TEXTS = ("text_input", "text_output", "text_output_neg")
_LZ4_FILTER = 32004
# In front of a packed chunk: its bytes unpacked, those of a block unpacked (here the same), those of the block packed.
_LZ4_HEADER = struct.Struct(">QII")
_END = struct.Struct("<Q8s")  # the index's length in bytes, and the mark
_MARK = b"emac-idx"
_CHECKSUM = b', "crc32": %d}'  # the index's end: checksum of all bytes before the index and of the index without it
_CHECKED = re.compile(rb'(.*), "crc32": (\d+)\}', re.DOTALL)


class ShardError(BadSampleError):
    """A shard that cannot be read; the text names the file."""


def write_shard(path: Path, fields: Mapping[str, Sequence], attributes: Mapping[str, Any]) -> None:
    """Write one episode; the file appears under its name only when it is whole and on disk (`files.replaced`).

    `fields` are equally long sequences: `image` of uint8 (H, W, 3), of strings, or of numbers or arrays of one shape.
    Images are taken one by one, so such a sequence may read them from elsewhere. Raises ValueError if lengths or
    shapes differ, FileError if the disk is full or the folder cannot be written.
    """
    lengths = {name: len(rows) for name, rows in fields.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise ValueError(
            f"an episode's fields must have the same length of at least 1 to become {path.name}: {lengths}"
        )
    try:
        with replaced(path) as temporary:
            with h5py.File(temporary, "w") as file:
                file.attrs.update({"version": VERSION, **attributes})
                for name, rows in fields.items():
                    if name == IMAGE:
                        _write_images(file, rows)
                    elif isinstance(rows[0], str):
                        # Text of fixed length lies in one piece, so that the index can name the place of each row.
                        texts = [row.encode("utf-8") for row in rows]
                        kind = h5py.string_dtype("utf-8", max(1, *map(len, texts)))
                        file.create_dataset(name, data=np.array(texts, dtype=kind), dtype=kind)
                    else:
                        file.create_dataset(name, data=np.stack([np.asarray(row) for row in rows]))
            # The index follows the HDF5 data. For each field it has type and shape of a row, and the place of the first
            # row; or start and size of each packed row, because HDF5 has no single place for data in packed chunks.
            layout: dict[str, dict[str, Any]] = {}
            with contextlib.closing(h5f.open(os.fsencode(temporary), h5f.ACC_RDONLY)) as stored:
                for key in stored:
                    dataset = h5d.open(stored, key)
                    steps, *shape = dataset.shape
                    start, chunks = dataset.get_offset(), []
                    if start is None:
                        infos = [dataset.get_chunk_info(step) for step in range(steps)]
                        start, chunks = 0, [(info.byte_offset, info.size) for info in infos]
                    place = {"steps": steps, "start": start, "chunks": chunks}
                    layout[key.decode()] = {"dtype": dataset.dtype.str, "shape": shape, **place}
            # Its checksum is of the whole file so far, and of the index without it.
            index = json.dumps({"version": VERSION, "game": attributes.get("game", ""), "fields": layout}).encode()
            index = index[:-1] + _CHECKSUM % zlib.crc32(index, _checksum(temporary, temporary.stat().st_size))
            with open(temporary, "ab") as end:
                end.write(index + _END.pack(len(index), _MARK))
    except (OSError, RuntimeError) as error:
        # HDF5 tells what the system said (a full disk) within a text of its own; of closing a file, as RuntimeError.
        told = _ERRNO.search(str(error))
        if not told and isinstance(error, RuntimeError):
            raise
        reason = os.strerror(int(told[1])) if told else getattr(error, "strerror", None) or error
        raise FileError(f"shard {path} could not be written: {reason}") from error


def _write_images(file: h5py.File, images: Sequence[np.ndarray]) -> None:
    """Each image is a chunk of its own, packed here: h5py has no LZ4, but writes chunks that are packed already."""
    shape = images[0].shape
    # A chunk for each image, so that one image is one piece of the file.
    properties = h5p.create(h5p.DATASET_CREATE)
    properties.set_chunk((1, *shape))
    properties.set_obj_track_times(False)  # the same steps are the same bytes, whenever they are written
    properties.set_filter(_LZ4_FILTER, h5z.FLAG_OPTIONAL, (0,))
    space = h5s.create_simple((len(images), *shape))
    dataset = h5d.create(file.id, IMAGE.encode(), h5t.NATIVE_UINT8, space, properties)
    for step in range(len(images)):
        image = images[step]
        if image.dtype != np.uint8 or image.ndim != 3:
            raise ValueError(f"images of a shard are uint8 (H, W, 3), not {image.dtype} {image.shape}")
        if image.shape != shape:
            raise ValueError(f"images of a shard have one shape, not {shape} and {image.shape}")
        # As HDF5's LZ4 filter packs a chunk. What does not shrink is stored unpacked: `_unpacked` sees it by its size.
        pixels = image.tobytes()
        block = lz4.block.compress(pixels, store_size=False)
        block = block if len(block) < len(pixels) else pixels
        header = _LZ4_HEADER.pack(len(pixels), len(pixels), len(block))
        dataset.write_direct_chunk((step, 0, 0, 0), header + block)


def _unpacked(chunk: bytes, size: int) -> bytes:
    """The `size` bytes of a packed chunk."""
    block = memoryview(chunk)[_LZ4_HEADER.size :]
    return bytes(block) if len(block) == size else lz4.block.decompress(block, uncompressed_size=size)


@lru_cache(maxsize=256)
def _dtype(name: str) -> np.dtype:
    return np.dtype(name)


class _Field:
    """The place of a field's rows in the file, and their type and shape.

    Small, because thousands of shards stay known: lists of pairs would take four times as much memory.
    """

    __slots__ = ("dtype", "shape", "size", "sizes", "start", "starts", "steps")

    def __init__(self, *, dtype: str, shape: list[int], steps: int, start: int, chunks: list[list[int]]) -> None:
        self.dtype = _dtype(dtype)
        self.shape = tuple(shape)  # of a row
        self.size = self.dtype.itemsize * math.prod(shape)  # bytes of a row
        self.steps = steps
        self.start = start  # of the first row, bytes from the file's beginning; the others follow it, unless packed
        # Of each row of a packed field.
        self.starts = array("q", [first for first, _ in chunks]) if chunks else None
        self.sizes = array("q", [size for _, size in chunks]) if chunks else None

    def check(self, end: int) -> None:
        """ValueError if the first `end` bytes of the file cannot hold the rows, or a row is larger than MAX_ROW.

        Who reads a shard goes through its steps, so their number must not be one that somebody wrote into the index.
        """
        if self.starts is not None and self.sizes is not None:
            # Every packed row must end before the index begins.
            held = len(self.starts) == self.steps and min(self.starts) >= 0 and min(self.sizes) > 0
            held = held and max(map(sum, zip(self.starts, self.sizes, strict=True))) <= end
        else:
            held = self.start >= 0 and self.start + self.steps * self.size <= end
        if self.steps < 1 or not 0 < self.size <= MAX_ROW or not held:
            raise ValueError(f"its index claims {self.steps} rows of {self.size} bytes, which the file does not hold")

    def read(self, descriptor: int, step: int) -> str | np.ndarray:
        """A row from the open file; ValueError or LZ4BlockError if it is cut short."""
        # A packed row has a place of its own; other rows lie one after the other.
        start, size = self.start + step * self.size, self.size
        if self.starts and self.sizes:
            start, size = self.starts[step], self.sizes[step]
        data = os.pread(descriptor, size, start)
        if len(data) != size:
            raise ValueError("the file ends before its data")
        if self.starts:
            data = _unpacked(data, self.size)
        if self.dtype.kind == "S":  # HDF5 fills texts of fixed length up with zero bytes
            return data.rstrip(b"\0").decode("utf-8")
        return np.frombuffer(data, self.dtype).reshape(self.shape)


class Shard:
    """What one file holds: `steps`, `game` (empty if it is not known), and the rows of its fields."""

    __slots__ = ("_fields", "game", "path", "steps")

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            # From the end backwards: the mark, the length of the index, the index.
            tail = os.pread(file.fileno(), _END.size, max(0, size - _END.size))
            length, mark = _END.unpack(tail) if len(tail) == _END.size else (0, b"")
            end = size - _END.size - length  # of HDF5's data, where the index begins
            if mark != _MARK or end < 0:
                raise ValueError(
                    "it has no index at its end (cut short, or of another version): the command that made it plays "
                    "its game again"
                )
            index = json.loads(os.pread(file.fileno(), length, end))
        if index["version"] != VERSION:
            raise ShardError(f"{path}: shards of version {index['version']} cannot be read, only {VERSION}")
        self.game: str = index["game"]
        # Interned: the names are the same in thousands of shards, and JSON makes new texts for each.
        self._fields = {sys.intern(name): _Field(**layout) for name, layout in index["fields"].items()}
        for field in self._fields.values():
            field.check(end)
        self.steps = min(field.steps for field in self._fields.values())
        if not isinstance(self.game, str):
            raise ValueError(f"its game is {type(self.game).__name__}, not text")
        for name in self._fields.keys() & set(_TEXTS):
            if self._fields[name].dtype.kind != "S" or self._fields[name].shape:
                raise ValueError(f"its {name} is not text")

    def read(self, step: int, names: Sequence[str]) -> dict[str, Any]:
        """Some fields of one step: texts, or read-only arrays; ShardError if that fails."""
        lacking = [name for name in names if name not in self._fields]
        if lacking:
            raise ShardError(f"{self.path}: it has no {lacking[0]}, only {', '.join(self._fields)}")
        if not 0 <= step < self.steps:
            raise ShardError(f"{self.path}: it has no step {step}, only {self.steps}")
        try:
            # Opened for one step only: thousands of shards are known, and a process may have 1,024 files open.
            descriptor = os.open(self.path, os.O_RDONLY)
            try:
                return {name: self._fields[name].read(descriptor, step) for name in names}
            finally:
                os.close(descriptor)
        except Exception as error:  # there is no error that a damaged index cannot cause
            raise ShardError(f"{self.path}, step {step}: the shard is damaged: {error}") from error

    def earlier_rows(self, step: int, count: int) -> list[int]:
        """The rows of at most `count` states right before row `step`, oldest first; what is not stored is left out.

        ShardError as `read`.
        """
        rows = range(max(0, step - count), step)
        if STEP not in self:
            return list(rows)
        # Not all states are stored: a row counts if its state lies at most `count` before this one.
        now = int(self.read(step, (STEP,))[STEP])
        return [row for row in rows if 0 < now - int(self.read(row, (STEP,))[STEP]) <= count]

    def earlier_images(self, step: int, count: int) -> list[np.ndarray]:
        """The images of `earlier_rows`."""
        return [self.read(row, (IMAGE,))[IMAGE] for row in self.earlier_rows(step, count)]

    def row_size(self, name: str) -> int:
        """Bytes of a row of the field `name`, unpacked; 0 if there is no such field."""
        return self._fields[name].size if name in self._fields else 0

    def __contains__(self, name: str) -> bool:
        return name in self._fields


def open_shard(path: Path | str) -> Shard:
    """A shard, ready to be read from; ShardError names one that is missing, damaged, foreign or of another version."""
    path = os.fspath(path)
    try:
        stat = os.stat(path)
        return _known(path, stat.st_ino, stat.st_mtime_ns)
    except ShardError:
        raise
    except Exception as error:  # there is no error that a damaged index cannot cause
        raise ShardError(f"shard {path} cannot be read: {error}") from error


def _checksum(path: Path, size: int) -> int:
    """Checksum of a file's first `size` bytes, read in pieces: a shard may be larger than what memory has room for."""
    value = 0
    with open(path, "rb") as file:
        while size and (piece := file.read(min(size, 1 << 20))):
            value = zlib.crc32(piece, value)
            size -= len(piece)
    return value


def check_shard(path: Path | str) -> None:
    """ShardError if a shard is missing, cut short, or not what was written; reads all of it.

    Shards of before the checksum are only read to their index.
    """
    open_shard(path)
    path = Path(path)
    with open(path, "rb") as file:
        file.seek(-_END.size, os.SEEK_END)
        (length, _) = _END.unpack(file.read())
        at = file.seek(-_END.size - length, os.SEEK_END)
        match = _CHECKED.fullmatch(file.read(length))
    if match and zlib.crc32(match[1] + b"}", _checksum(path, at)) != int(match[2]):
        raise ShardError(f"shard {path} is damaged: its checksum is not that of what was written")


@lru_cache(maxsize=1 << 10)
def _known(path: str, inode: int, changed: int) -> Shard:
    """A shard of twenty steps takes two kilobytes, to open it 40 µs; a file that was replaced is opened again.

    A run draws from all the shards that it has ever written, so the number that stays known is what its memory grows
    by: 2 MB. To read a row of another shard takes three times as long (60 instead of 20 µs), a batch takes thousands.
    """
    return Shard(path)


class ShardFolder:
    """All shards of a folder as one sequence of records, in the order of their names.

    `blank_images` gives black images instead of the stored ones, and is the only way to read shards without images.
    With `frames` above 1 a record has the images of the states before it, too. With `skip_bad` above 0 somebody who
    reads leaves bad samples out, and `games` has none of shards that cannot be read. Raises MissingFileError for a
    folder that is not there; it may be empty.
    """

    skipped: Sequence[str] = ()

    def __init__(self, folder: Path | str, *, blank_images: bool = False, frames: int = 1, skip_bad: int = 0) -> None:
        self.skip_bad = skip_bad
        self.folder = os.fspath(folder)
        self.frames = frames
        self.blank_images = blank_images
        if not os.path.isdir(self.folder):
            raise MissingFileError(f"no folder of shards {self.folder}")
        self.names = sorted(name for name in os.listdir(self.folder) if name.endswith(".h5") and name[0] != ".")
        self._ends = list(accumulate(self._steps(name) for name in self.names))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def where(self, index: int) -> str:
        """`…/round000_env0012_steps013.h5, step 4`."""
        path, step = self.place(index)
        return f"{path}, step {step}"

    def place(self, index: int) -> tuple[str, int]:
        """The shard that holds record `index`, and its step in it."""
        shard = bisect_right(self._ends, index)
        return os.path.join(self.folder, self.names[shard]), index - (self._ends[shard - 1] if shard else 0)

    def games(self) -> set[str]:
        """The games of all shards."""
        found = set()
        for name in self.names:
            try:
                found.add(open_shard(os.path.join(self.folder, name)).game)
            except ShardError:
                if not self.skip_bad:
                    raise
        return found

    def read(self, index: int) -> Record:
        """One transition; BadSampleError names a shard that is damaged or has no images."""
        path, step = self.place(index)
        shard = open_shard(path)
        if shard.steps != (claimed := self._steps(os.path.basename(path))):
            raise ShardError(f"{path}: its name says that it has {claimed} steps, but it has {shard.steps}")
        if IMAGE not in shard and not self.blank_images:
            hint = "to train on black ones set datasets.alfworld_cap.blank_images=True"
            raise ShardError(f"{path}: it has no images; {hint}")
        row = shard.read(step, _TEXTS if self.blank_images else (IMAGE, *_TEXTS))
        if not row["text_output"].strip():
            raise ShardError(f"{path}, step {step}: text_output is empty")
        earlier: Sequence[np.ndarray] = ()
        if self.frames > 1:
            if self.blank_images:
                earlier = [blank_image()] * len(shard.earlier_rows(step, self.frames - 1))
            else:
                earlier = shard.earlier_images(step, self.frames - 1)
        row.setdefault(IMAGE, blank_image())
        return Record(**row, earlier=earlier, task_type=task_type_of(shard.game), game=shard.game)

    def _steps(self, name: str) -> int:
        """How many records a file counts for: what its name says, but no more than it can hold.

        A name from elsewhere may claim any number, and a record takes at least one byte. `read` tells which name is
        wrong; a damaged file counts, too, so that `read` tells of it.
        """
        path, match = os.path.join(self.folder, name), NAME.fullmatch(name)
        if match:
            return max(1, min(int(match.group(1)), os.path.getsize(path)))
        try:
            return open_shard(path).steps
        except ShardError:
            if not self.skip_bad:
                raise
            return 1  # bad sample
