"""Converts stored transitions: shards of a run or of `collect` to LAVIS JSON with image files, and back.

    python -m xrl_alignment.convert --to lavis RUN_DIR/state/buffer DIR
    python -m xrl_alignment.convert --to shards DIR/annotations.json OTHER_DIR [--images FOLDER]

PNG images (the default) survive both ways unchanged. Episodes stay together: an entry's `episode` names the shard that
it came from; without that key, consecutive entries of the same `game` make a shard, as long as their `step` grows.
`collection.json` goes along, which says how `collect` made the data.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from lavis.common.errors import ConfigError, EmacError, FileError
from lavis.common.files import make_folder, read_json, sync, write_json
from lavis.common.program import run_program
from lavis.common.progress import Bar
from lavis.datasets.annotations import AnnotationFile
from lavis.datasets.shards import STEP, open_shard
from xrl_alignment.play.collection.storage import annotation, save_image, write_list
from xrl_alignment.runs.transitions import Transition, read_transition, shard_name, write_shard

LONGEST_SHARD = 100  # transitions of a shard if the entries name neither episode nor game


def to_lavis(shards: Path, out: Path, image_format: str = "png") -> int:
    """Write `out/annotations.json` and `out/images/` from a folder of shards; returns the number of transitions."""
    paths = sorted(shards.glob("*.h5"))
    if not paths:
        raise ConfigError(f"no shards (*.h5) in {shards}" if shards.is_dir() else f"there is no folder {shards}")
    count = 0

    # A generator: the list is written while shards are read, and no more than one transition is in memory.
    def entries() -> Iterator[bytes]:
        nonlocal count
        with Bar("shards") as bar:
            for number, path in enumerate(paths):
                shard = open_shard(path)
                for step in range(shard.steps):
                    item = read_transition(path, step)
                    name = f"images/{path.stem}_{step:03d}.{image_format}"
                    save_image(out / name, item)
                    count += 1
                    # A shard has the field `step` only if some state of the episode has no transition.
                    turn = int(shard.read(step, (STEP,))[STEP]) if STEP in shard else step
                    entry = {"image": name, **annotation(item, shard.game, turn), "episode": path.stem}
                    yield json.dumps(entry, ensure_ascii=False).encode()
                bar.show(number + 1, len(paths), f"{count} transitions")

    write_list(out / "annotations.json", entries())
    return count


def to_shards(annotations: Path, out: Path, images: Path | None = None) -> int:
    """Write one shard for each episode of a LAVIS annotation file into `out`; returns the number of transitions."""
    if annotations.is_dir():  # as `collect` fills it
        if any(annotations.glob("*.h5")):
            raise ConfigError(f"{annotations} holds shards already, which --to lavis reads")
        annotations /= "annotations.json"
    source = AnnotationFile(annotations, images or annotations.parent)
    if not len(source):
        raise ConfigError(f"{annotations} holds no entries")

    before: Any = None  # the step of the entry before
    again = 0  # how often an episode's steps began anew

    def episode_of(index: int) -> tuple[Any, ...]:
        nonlocal before, again
        entry = source.entry(index)
        # Two episodes of one game that follow each other: the second one's steps begin anew.
        step = entry.get("step")
        if isinstance(step, int) and isinstance(before, int) and step <= before:
            again += 1
        before = step
        # Without a name, blocks of LONGEST_SHARD entries count as episodes.
        named = entry.get("episode") or entry.get("game")
        return entry.get("episode", ""), entry.get("game", ""), 0 if named else index // LONGEST_SHARD, again

    with Bar("transitions") as bar:
        # Consecutive entries of one episode make a shard.
        for env, ((_, game, *_), of_episode) in enumerate(groupby(range(len(source)), episode_of)):
            indices = list(of_episode)
            transitions = []
            for index in indices:
                record, entry = source.read(index), source.entry(index)
                transitions.append(
                    Transition(
                        image=np.asarray(record.image, dtype=np.uint8),
                        text_input=record.text_input,
                        text_output=record.text_output,
                        text_output_neg=record.text_output_neg,
                        executed=entry.get("executed", record.text_output),
                        feedback=entry.get("feedback", ""),
                    )
                )
            # A shard keeps the images of an episode as one array, so they need one size.
            sizes = {item.image.shape for item in transitions}
            if len(sizes) > 1:
                raise ConfigError(f"{source.where(indices[0])}: the images of one episode have several sizes: {sizes}")
            turns = [source.entry(index).get("step") for index in indices]
            numbers = [turn for turn in turns if isinstance(turn, int)]
            known = numbers if len(numbers) == len(turns) else ()  # an episode of elsewhere says nothing of its steps
            write_shard(out / shard_name(0, env, len(transitions)), transitions, {"game": game}, turns=known)
            bar.show(indices[-1] + 1, len(source), f"{env + 1} shards")
    return len(source)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, convert, print the count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a folder of shards, or an annotation file")
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument("--to", choices=("lavis", "shards"), required=True)
    images = "of --to shards: folder of the annotation file's images (default: beside it)"
    parser.add_argument("--images", type=Path, help=images)
    parser.add_argument("--image-format", choices=("png", "jpg"), help="of --to lavis (png)")
    arguments = parser.parse_args(argv)
    without_effect = {"lavis": "images", "shards": "image_format"}[arguments.to]
    if getattr(arguments, without_effect):
        raise ConfigError(f"--{without_effect.replace('_', '-')} has no effect with --to {arguments.to}: leave it out")
    if not arguments.out.name:
        raise ConfigError(f"{arguments.out} is the folder that this runs in: name a new one")
    if arguments.out.exists() and (not arguments.out.is_dir() or any(arguments.out.iterdir())):
        raise ConfigError(f"{arguments.out} is not an empty folder: name a new one")
    # Written beside it first: a half of the data looks like all of it.
    unfinished = arguments.out.with_name(f".{arguments.out.name}.{os.getpid()}.tmp")
    try:
        make_folder(unfinished)
        if arguments.to == "lavis":
            count = to_lavis(arguments.source, unfinished, arguments.image_format or "png")
        else:
            count = to_shards(arguments.source, unfinished, arguments.images)
        source = arguments.source if arguments.source.is_dir() else arguments.source.parent
        if (made := source / "collection.json").is_file():
            # With a format that `collect` does not write: it must not go on with a folder that it has not filled.
            write_json(unfinished / made.name, {**read_json(made), "format": "converted"})
        os.replace(unfinished, arguments.out)
        sync(arguments.out.absolute().parent)
    except EmacError:  # some are OSErrors, of a source that cannot be read
        raise
    except OSError as error:
        raise FileError(f"{arguments.out} could not be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    print(f"{count} transitions in {arguments.out}")


if __name__ == "__main__":
    run_program(main)
