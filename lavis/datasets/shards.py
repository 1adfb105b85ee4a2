"""Episode shards: HDF5 files of one episode each, as online training and `xrl_alignment.collect` write them.

    <folder>/round000_env0012_steps013.h5
        images (steps, H, W, 3) uint8, one chunk a picture     may be absent: labels and texts only
        text_input, text_output, text_output_neg (steps,)      UTF-8
        attributes: version, game, …

The name tells the number of steps, so a folder is opened by listing it. Reading goes through HDF5's low-level
interface, which opens a file ten times as fast as h5py's convenient one.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path

import h5py
import numpy as np
from h5py import h5a, h5d, h5f, h5g, h5p, h5s

from lavis.datasets.records import BadSampleError, Record, blank_image, task_type_of

NAME = re.compile(r".*_steps(\d+)\.h5")
_TEXTS = (b"text_input", b"text_output", b"text_output_neg")


class ShardFolder:
    """All shards of a folder as one sequence of records, in the order of their names.

    `blank_images` gives black pictures instead of the stored ones, and is the only way to read shards without pictures.
    Raises FileNotFoundError for a folder that is not there; it may be empty.
    """

    def __init__(self, folder: Path | str, *, blank_images: bool = False) -> None:
        self.folder = Path(folder)
        self.blank_images = blank_images
        if not self.folder.is_dir():
            raise FileNotFoundError(f"no folder of shards {self.folder}")
        self.names = sorted(name for name in (entry.name for entry in self.folder.glob("*.h5")) if name[0] != ".")
        self._ends = np.cumsum([self._steps(name) for name in self.names], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def where(self, index: int) -> str:
        """`…/round000_env0012_steps013.h5, step 4`."""
        path, step = self.place(index)
        return f"{path}, step {step}"

    def place(self, index: int) -> tuple[Path, int]:
        """The shard that holds record `index`, and its step in it."""
        shard = int(np.searchsorted(self._ends, index, side="right"))
        return self.folder / self.names[shard], index - (int(self._ends[shard - 1]) if shard else 0)

    def read(self, index: int) -> Record:
        """One transition; BadSampleError names a shard that is damaged or has no pictures."""
        path, step = self.place(index)
        try:
            texts, game = _texts_of(str(path))
            text = [field[step] for field in texts]
            image = blank_image() if self.blank_images else _read_image(str(path), step)
        except KeyError:
            raise BadSampleError(
                f"{path}: it has no pictures or lacks a field; for black ones: datasets.alfworld_cap.blank_images=True"
            ) from None
        except (OSError, IndexError, ValueError) as error:
            raise BadSampleError(f"{path}, step {step}: the shard is damaged: {error}") from error
        if not text[1].strip():
            raise BadSampleError(f"{path}, step {step}: text_output is empty")
        return Record(image, *text, task_type=task_type_of(game), game=game)

    def _steps(self, name: str) -> int:
        if match := NAME.fullmatch(name):
            return int(match.group(1))
        with h5py.File(self.folder / name, "r") as file:
            return len(file["text_output"])


@lru_cache(maxsize=256)
def _texts_of(path: str) -> tuple[list[list[str]], str]:
    """All texts of a shard and its game: neighbours are asked for soon, and texts of 256 shards are a few MB."""
    file = h5f.open(path.encode(), h5f.ACC_RDONLY)
    try:
        fields = [h5py.Dataset(h5d.open(file, field))[:] for field in _TEXTS]
        root = h5g.open(file, b"/")
        game = h5py.AttributeManager(h5py.Group(root)).get("game", "") if h5a.exists(root, b"game") else ""
        return [[value.decode("utf-8") for value in field] for field in fields], str(game)
    finally:
        file.close()


def _read_image(path: str, step: int) -> np.ndarray:
    """One picture, uint8 (H, W, 3)."""
    dataset = _open_images(path, os.getpid())
    shape = (1, *dataset.shape[1:])
    image = np.empty(shape, dtype=np.uint8)
    space = dataset.get_space()
    space.select_hyperslab((step, 0, 0, 0), shape)
    dataset.read(h5s.create_simple(shape), space, image)
    return image[0]


@lru_cache(maxsize=128)
def _open_images(path: str, process: int) -> h5d.DatasetID:
    """The pictures of a shard, left open: opening takes as long as decoding one. Each process has its own."""
    access = h5p.create(h5p.DATASET_ACCESS)
    access.set_chunk_cache(0, 0, 1.0)  # samples come in random order: kept pictures would cost memory for nothing
    return h5d.open(h5f.open(path.encode(), h5f.ACC_RDONLY), b"images", access)
