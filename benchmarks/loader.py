"""The data loader alone: shards against JPEG + JSON for each sample, and what two workers deliver.

    python benchmarks/loader.py [--json FILE]

Frames are 224 × 224 ones of generated rooms. Reading is measured in processor time of one process: opening, reading,
decoding one sample in random order. In its first epoch a process opens every shard, once. Delivery is measured in wall
time of a DataLoader with two workers, normalised tensors out.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import _bench
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from alfworld_native import choose_games
from lavis.datasets.datasets.alfworld_dataset import AlfworldDataset
from lavis.datasets.records import Source
from lavis.datasets.shards import ShardFolder
from lavis.processors import BaseProcessor, BlipImageEvalProcessor
from xrl_alignment.lab.collect import Plan, collect

GAMES, DELIVERED = 400, 6000


def measure() -> _bench.Result:
    """Both comparisons."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        games = choose_games("household", "household_train", num=GAMES, num_train=GAMES, num_heldout=1, data=folder)
        collect(Plan(keep_failed=True), games, data)
        source = ShardFolder(data)
        order = random.Random(0).sample(range(len(source)), k=len(source))
        first = seconds_each(source.read, order)
        pairs = write_pairs(source, Path(folder) / "pairs")
        shards, files = (
            min(seconds_each(read, order) for _ in range(3))
            for read in (source.read, lambda index: read_pair(pairs, index))
        )
        sizes = [sum(path.stat().st_size for path in place.iterdir()) / len(source) for place in (data, pairs)]
        delivered = samples_a_second(source)
    rows = [
        row(f"shards, first epoch ({len(source.names)} are opened)", first, sizes[0]),
        row("shards, later epochs", shards, sizes[0]),
        row("JPEG + JSON", files, sizes[1]),
        {"what": "loader, 2 workers, tensors out", "samples a second": delivered},
    ]
    ratios = {"JPEG + JSON / shards": files / shards, "JPEG + JSON / shards, first epoch": files / first}
    ratios |= {"samples a second, 2 workers": delivered}
    return _bench.Result(rows, ratios, {"JPEG + JSON / shards": 5.0, "samples a second, 2 workers": 1000.0})


def row(what: str, seconds: float, size: float) -> dict[str, object]:
    """A row of the table: seconds of one core and bytes on disk for a sample."""
    return {"what": what, "ms of one core": 1000 * seconds, "samples a second": 1 / seconds, "bytes": round(size)}


def write_pairs(source: Source, folder: Path) -> Path:
    """Every sample as a JPEG (quality 95) and a JSON file."""
    folder.mkdir()
    for index in range(len(source)):
        record = source.read(index)
        Image.fromarray(record.image).save(folder / f"{index}.jpg", quality=95)
        texts = {"text_input": record.text_input, "text_output": record.text_output}
        (folder / f"{index}.json").write_text(json.dumps(texts))
    return folder


def read_pair(folder: Path, index: int) -> tuple[np.ndarray, dict]:
    """What `ShardFolder.read` gives, from two files."""
    with Image.open(folder / f"{index}.jpg") as file:
        image = np.asarray(file.convert("RGB"))
    return image, json.loads((folder / f"{index}.json").read_text())


def seconds_each(read: Callable[[int], object], order: list[int]) -> float:
    """Processor seconds of one read."""
    began = time.process_time()
    for index in order:
        read(index)
    return (time.process_time() - began) / len(order)


def samples_a_second(source: Source) -> float:
    """What a loader with two workers delivers once it runs."""
    dataset = AlfworldDataset(
        source=source, vis_processor=BlipImageEvalProcessor(image_size=224), text_processor=BaseProcessor()
    )
    order = random.Random(0).choices(range(len(source)), k=DELIVERED)
    options = {"num_workers": 2, "multiprocessing_context": "fork", "collate_fn": dataset.collater}
    loader = iter(DataLoader(dataset, batch_size=32, sampler=order, **options))
    next(loader)
    began = time.perf_counter()
    count = sum(len(batch["image"]) for batch in loader)
    return count / (time.perf_counter() - began)


if __name__ == "__main__":
    _bench.run("Data loader: shards against JPEG + JSON", measure)
