"""The files of a collection: annotations and images in LAVIS's form, and the list of what is done."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from PIL import Image

from lavis.common.errors import FileError
from lavis.common.files import sync, whole_lines, write_atomically, write_bytes, write_text
from lavis.datasets.shards import ShardError, open_shard
from xrl_alignment.play.collection.plan import Collected
from xrl_alignment.runs.transitions import Transition


def annotation(item: Transition, game: str, step: int) -> dict[str, Any]:
    """A transition's texts as a LAVIS annotation entry, and its `step` in the episode; what is empty is left out."""
    entry: dict[str, Any] = {
        "text_input": item.text_input,
        "text_output": item.text_output,
        "text_output_neg": item.text_output_neg,
    }
    entry |= {"task_type": game.split("-", 1)[0], "game": game, "executed": item.executed, "feedback": item.feedback}
    kept = {key: value for key, value in entry.items() if value or key in ("text_input", "text_output")}
    # The step is added last: that of the first turn is 0, and would be left out as empty.
    return {**kept, "step": step}


def save_image(path: Path, item: Transition) -> None:
    """Write a frame; the ending says whether as PNG (exact) or JPEG (quality 95)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(item.image)
    if path.suffix == ".png":
        image.save(path, compress_level=1)
    else:
        image.save(path, quality=95)


def sync_images(out: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Wait until the images of these annotations are on disk, so that the journal may rely on them."""
    images = [out / entry["image"] for entry in entries if "image" in entry]
    for path in images:
        sync(path)
    for folder in {path.parent for path in images}:  # a file's name stands in its folder, a folder's in its parent
        sync(folder)
        sync(folder.parent)


class CollectionJournal:
    """`episodes.jsonl` and the growing annotations: what is done, and where to continue after a crash.

    A line stands in `episodes.jsonl` only when its data is written; `at` in it is the length of the annotations then.
    """

    def __init__(self, out: Path) -> None:
        self._episodes = out / "episodes.jsonl"
        self._annotations = out / ".annotations.jsonl"
        # A last line without its end was being written when the machine stopped.
        content = self._episodes.read_bytes() if self._episodes.is_file() else b""
        whole = whole_lines(content)
        self.done, at = parse_episodes(whole, self._episodes)
        # A crash may leave half a line in the journal, and annotations of an episode that the journal does not know.
        for path, length in ((self._episodes, len(whole)), (self._annotations, at)):
            with open(path, "ab") as file:
                if file.tell() < length:  # `truncate` would fill it up with zeros
                    raise FileError(
                        f"{path} lacks data that {self._episodes.name} names (is its folder a copy without hidden "
                        "files, or a finished collection whose README.md was removed?): collect into another folder"
                    )
                file.truncate(length)
        sync(out)

    @contextmanager
    def writing(self) -> Iterator[Callable[[Collected, list[dict[str, Any]]], None]]:
        """A function that adds an episode."""
        with open(self._episodes, "a", encoding="utf-8") as episodes, open(self._annotations, "ab") as annotations:

            def add(episode: Collected, entries: list[dict[str, Any]]) -> None:
                # First the data, on disk, then the journal's line: what the journal names is there after a power cut.
                lines = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
                annotations.write(lines.encode())
                annotations.flush()
                os.fsync(annotations.fileno())
                self.done.append(episode)
                episodes.write(json.dumps({**asdict(episode), "at": annotations.tell()}) + "\n")
                episodes.flush()
                os.fsync(episodes.fileno())

            yield add

    def finish(self, out: Path, card: str) -> None:
        """Make `annotations.json`, one JSON list, of the lines (nothing without any), and the card `README.md`.

        The lines are removed last: with them there, a run after a crash does this again.
        """
        if self._annotations.stat().st_size:
            with open(self._annotations, "rb") as lines:
                write_list(out / "annotations.json", (line.strip() for line in lines))
        write_text(out / "README.md", card)
        self._annotations.unlink()


def forget_lost(out: Path) -> list[str]:
    """Take the episodes whose shard is gone or cut short out of `out`'s list; the names of these shards.

    The card goes, too: it counts them. The collection then continues, and plays these games again, as after a crash.
    Raises ShardError for one that is there and cannot be read: a disk may fail for a moment.
    """
    path = out / "episodes.jsonl"
    lines = whole_lines(path.read_bytes()).splitlines(keepends=True) if path.is_file() else []
    lost: dict[int, str] = {}  # by the number of the line
    for number, episode in enumerate(parse_episodes(b"".join(lines), path)[0]):
        try:
            if episode.shard:
                open_shard(out / episode.shard)
        except ShardError as error:
            if not isinstance(error.__cause__, (FileNotFoundError, ValueError)):
                raise
            lost[number] = episode.shard
    if lost:
        (out / "README.md").unlink(missing_ok=True)
        for name in lost.values():  # before the list: no damaged file may be there that nothing names
            (out / name).unlink(missing_ok=True)
        write_bytes(path, b"".join(line for number, line in enumerate(lines) if number not in lost))
    return [*lost.values()]


def parse_episodes(lines: bytes, path: Path) -> tuple[list[Collected], int]:
    """What the lines of `episodes.jsonl`, the file `path`, hold, and the last `at`; FileError if one is damaged."""
    try:
        contents = [json.loads(line) for line in lines.splitlines()]
        at = [int(content.pop("at")) for content in contents]
        return [Collected(**content) for content in contents], at[-1] if at else 0
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FileError(
            f"{path} is damaged ({error}): use another --out, or collect again into an empty one"
        ) from error


def write_list(path: Path, entries: Iterator[bytes]) -> None:
    """Write encoded JSON values as one list, a value a line."""

    def write(file: Any) -> None:  # by hand, an entry at a time: the whole list may be larger than the memory
        separator = b"[\n"
        for entry in entries:
            file.write(separator + entry)
            separator = b",\n"
        file.write(b"\n]\n" if separator == b",\n" else b"[]\n")

    write_atomically(path, write)
