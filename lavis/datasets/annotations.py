"""LAVIS annotation files: a JSON array, or one JSON object a line, with images in a folder.

A file may be far larger than memory. It is scanned once for the place of every entry; this index is kept in the cache
folder, and entries are read one at a time. The index of a million entries has 12 MB.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import zipfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from lavis.common.errors import EmacError, MissingFileError
from lavis.common.files import write_cache
from lavis.common.registry import registry
from lavis.datasets.records import UNREADABLE, BadSampleError, Record, blank_image, task_type_of

REQUIRED = ("text_input", "text_output")
OPTIONAL = ("image", "text_output_neg", "task_type", "game")  # texts, as those of `REQUIRED` are
_CHUNK = 1 << 20
_LARGEST_ENTRY = 16 << 20  # bytes; what is longer is a broken file, not an entry
_INDEX_VERSION = 3
_BETWEEN = re.compile(r"[\s,]*")
_BLANKS = " \t\r\n"  # JSON's
_BOM = "\xef\xbb\xbf"


class AnnotationError(EmacError, ValueError):
    """An annotation file that is not JSON; the text names the file and the byte."""


class AnnotationFile:
    """The entries of `path`, whose `image` fields are paths below `image_root`.

    Entries have `image` and the fields `REQUIRED`, and may have the others of `OPTIONAL` and the number `step` (the
    published ALFWorld SFT data has only the former, and `./` before its paths). With `blank_images` all images are
    black, and `image` is not needed. Raises MissingFileError, AnnotationError for a file that is not JSON, and
    BadSampleError when more than `skip_bad` entries lack a field; skipped ones are listed in `skipped`. With `frames`
    above 1 a record has the images of the states before it: those of the entries in front of its own which are of the
    same game and have the `step`s before it.
    """

    def __init__(
        self,
        path: Path | str,
        image_root: Path | str,
        *,
        skip_bad: int = 0,
        blank_images: bool = False,
        frames: int = 1,
    ) -> None:
        self.path = Path(path)
        self.image_root = Path(image_root)
        self.blank_images = blank_images
        self.frames = frames
        if not self.path.is_file():
            raise MissingFileError(
                f"no annotation file {self.path}: name a JSON file, or a folder that `python -m xrl_alignment.collect` "
                "has filled (docs/offline.md, Data)"
            )
        index = _load_index(self.path)
        bad = dict(index["bad"])
        if not blank_images:
            bad |= {int(number): "lacks image" for number in index["imageless"] if int(number) not in bad}
        self.skipped = [f"{self.path}, entry {number}: {reason}" for number, reason in sorted(bad.items())]
        if len(self.skipped) > skip_bad:
            raise BadSampleError(too_many(self.skipped, skip_bad))
        # As arrays, for there may be millions of entries (12 bytes an entry in the index, 8 here).
        good = np.ones(len(index["starts"]), dtype=bool)
        good[list(bad)] = False
        self._numbers = np.flatnonzero(good)
        self._starts, self._lengths, self._games = index["starts"], index["lengths"], index["games"]
        # Opened with the first read: a dataset that is pickled for a worker, or forked, opens its own.
        self._file: BinaryIO | None = None
        self._owner = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def games(self) -> set[str]:
        """The games of all entries; one is empty if an entry does not name its game."""
        return set(self._games)

    def where(self, index: int) -> str:
        """`train.json, entry 12`."""
        return "{}, entry {}".format(*self.place(index))

    def place(self, index: int) -> tuple[str, int]:
        """The file, and the entry's number in it."""
        return str(self.path), int(self._numbers[index])

    def entry(self, index: int) -> dict[str, Any]:
        """The entry as it is in the file; BadSampleError if it is not UTF-8."""
        number = self._numbers[index]
        # Each process has a file of its own, for a loader's workers are forked.
        if self._file is None or self._owner != os.getpid():
            self._file, self._owner = open(self.path, "rb"), os.getpid()
        # `pread` moves no file position, so that threads of one process may share the descriptor.
        data = os.pread(self._file.fileno(), int(self._lengths[number]), int(self._starts[number]))
        try:
            return json.loads(data, strict=False)
        except ValueError as error:
            raise BadSampleError(f"{self.where(index)} cannot be read: {error}") from error

    def read(self, index: int) -> Record:
        """The entry and its image; BadSampleError for an image that is missing or broken."""
        entry = self.entry(index)
        game = entry.get("game", "")
        return Record(
            image=blank_image() if self.blank_images else self._image(entry, index),
            text_input=entry["text_input"],
            text_output=entry["text_output"],
            text_output_neg=entry.get("text_output_neg", ""),
            task_type=entry.get("task_type") or task_type_of(game),
            game=game,
            earlier=self._earlier(entry, index) if self.frames > 1 else (),
        )

    def _earlier(self, entry: dict[str, Any], index: int) -> list[Image.Image | np.ndarray]:
        """The images of the states right before an entry, oldest first; BadSampleError if it does not say its step."""
        if not isinstance(now := entry.get("step"), int):
            raise BadSampleError(
                f"{self.where(index)} has no `step`, which tells the frames before it: set model.images=1, or collect "
                "the data anew"
            )
        found: list[Image.Image | np.ndarray] = []
        last = now
        for before in range(index - 1, max(-1, index - self.frames), -1):
            other = self.entry(before)
            step = other.get("step") if other.get("game") == entry.get("game") else None
            # An episode's entries follow one another; a step that is not smaller is of another one.
            if not isinstance(step, int) or not now - self.frames < step < last:
                break
            found.append(blank_image() if self.blank_images else self._image(other, before))
            last = step
        return found[::-1]

    def _image(self, entry: dict[str, Any], index: int) -> Image.Image:
        path = self.image_root / entry["image"]
        try:
            with Image.open(path) as file:
                return file.convert("RGB")
        except FileNotFoundError:
            raise BadSampleError(f"{self.where(index)}: no image {path}") from None
        except UNREADABLE as error:
            raise BadSampleError(f"{self.where(index)}: image {path} cannot be read: {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}


def too_many(bad: list[str], allowed: int) -> str:
    """The message about more bad samples than are allowed: the first three, and how to fix it."""
    more = f" … and {len(bad) - 3} more" if len(bad) > 3 else ""
    limit = f" allows {allowed}" if allowed else "=N of train.py tolerates up to N"
    return f"{'; '.join(bad[:3])}{more}; run.skip_bad_samples{limit}"


def check_entry(entry: object) -> str:
    """What is wrong with an entry; empty if nothing is."""
    if not isinstance(entry, dict):
        return f"is a {type(entry).__name__}, not an object with {', '.join(REQUIRED)}"
    lacking = [key for key in REQUIRED if key not in entry]
    if lacking:
        return f"lacks {', '.join(lacking)} (it has {', '.join(entry) or 'nothing'})"
    wrong = [key for key in (*REQUIRED, *OPTIONAL) if not isinstance(entry.get(key, ""), str)]
    if wrong:
        return f"{wrong[0]} is a {type(entry[wrong[0]]).__name__}, not a string"
    return "" if entry["text_output"].strip() else "text_output is empty"


def scan(path: Path) -> Iterator[tuple[int, int, Any]]:
    """Start, length (bytes) and value of every entry of a JSON array or of JSON lines, reading a little at a time.

    The bytes are read as Latin-1, so that characters are bytes; text in the values is therefore wrong where it is not
    ASCII. AnnotationError if the file is not JSON.
    """
    decoder = json.JSONDecoder(strict=False)
    with open(path, "rb") as file:
        text, base, array = file.read(_CHUNK).decode("latin-1"), 0, False
        position = len(_BOM) if text.startswith(_BOM) else 0
        while True:
            between = _BETWEEN.match(text, position)
            position = between.end() if between else position
            if position < len(text):
                if text[position] == "[" and not array:
                    array, position = True, position + 1
                    continue
                if text[position] == "]" and array:
                    # Entries after the list would be lost without a word (`cat a.json b.json`): only blanks may follow.
                    text, base = text[position + 1 :], base + position + 1
                    while True:
                        if more := text.lstrip(_BLANKS):
                            what = "more follows the end of the list: join several files into one list"
                            raise _broken(path, base + len(text) - len(more), what)
                        text, base = file.read(_CHUNK).decode("latin-1"), base + len(text)
                        if not text:
                            return
                try:
                    value, end = decoder.raw_decode(text, position)
                    # A number at the end of what was read may have further digits in the next piece.
                    if end < len(text) or not isinstance(value, (int, float)):
                        yield base + position, end - position, value
                        position = end
                        continue
                except json.JSONDecodeError as error:
                    # An entry that the piece cuts off is read again with the next piece. A broken one would collect
                    # the rest of the file in memory, so there is a largest entry.
                    if len(text) - position > _LARGEST_ENTRY:
                        raise _broken(path, base + error.pos, error.msg) from None
                except (ValueError, RecursionError) as error:  # a number of more digits than Python reads
                    raise _broken(path, base + position, str(error)) from None
            read = file.read(_CHUNK)
            if not read and position < len(text):
                raise _broken(path, base + position, "the entry that begins here does not end")
            if not read:
                if array:
                    raise _broken(path, base + position, "the list does not end with ]")
                return
            text, base, position = text[position:] + read.decode("latin-1"), base + position, 0


def _broken(path: Path, position: int, what: str) -> AnnotationError:
    return AnnotationError(f"{path} is not a JSON list or JSON lines: at byte {position}: {what}")


def cache_folder() -> Path:
    """The folder of the indices (not created here)."""
    return Path(registry.get_path("cache_root")) / "annotations"


def _load_index(path: Path) -> dict[str, Any]:
    """The places of all entries: from the cache while the file's size and time are unchanged, else by a scan."""
    stat = path.stat()
    stamp = f"{_INDEX_VERSION} {stat.st_size} {stat.st_mtime_ns}"
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:24]
    cache = cache_folder() / f"{name}.npz"
    with contextlib.suppress(OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile), np.load(cache) as known:
        if str(known["stamp"]) == stamp:
            bad, games = json.loads(str(known["bad"])), json.loads(str(known["games"]))
            arrays = {name: known[name] for name in ("starts", "lengths", "imageless")}
            return {**arrays, "bad": bad, "games": games}
    # Arrays of 8 and 4 bytes a number: a Python list of a million takes four times the memory.
    starts, lengths, imageless = array("q"), array("i"), array("q")
    bad, games = [], set()
    for number, (start, length, entry) in enumerate(scan(path)):
        starts.append(start)
        lengths.append(length)
        if reason := check_entry(entry):
            bad.append((number, reason))
            continue
        games.add(entry.get("game", ""))
        if "image" not in entry:
            imageless.append(number)
    arrays = {"starts": np.array(starts), "lengths": np.array(lengths), "imageless": np.array(imageless)}
    index = {**arrays, "bad": bad, "games": sorted(games)}
    # NumPy's archives hold lists of tuples by unpickling alone, which is never allowed here: they become JSON.
    content = {**index, "stamp": stamp, "bad": json.dumps(bad), "games": json.dumps(index["games"])}
    write_cache(cache, lambda file: np.savez(file, **content))
    return index
