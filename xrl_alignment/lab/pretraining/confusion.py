"""Measures how well a student's vision encoder recognises objects: precision and recall of each type, confusions.

    python -m xrl_alignment.lab.pretraining.confusion --games DIR … --frames 1500 --out docs/confusion.png

The encoder is that of `model.model_type=student_looks`, or of `--pretrained FILE`. Frames are close views of moments
in the given games' held-out rooms, with held-out variants of objects, half of them with objects of other types in the
same places. Counted are objects whose visible part is at least 12 pixels long. Prints JSON; the picture shows, for
every type (row), as what the patch in the middle of such an object counts (column).
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path

from lavis.common.program import read_first, run_program


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", nargs="+", required=True, metavar="DIR", help="generated games")
    parser.add_argument("--pretrained", default="", metavar="FILE", help="weights of the student (the shipped ones)")
    parser.add_argument("--frames", type=int, default=1500)
    parser.add_argument("--out", type=Path, metavar="FILE.png")
    return parser.parse_args(argv)


if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes are answered at once.
    read_first(parse_arguments)

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from alfworld_native.base import Game
from alfworld_native.games import find_games
from lavis.common.devices import autocast
from lavis.common.files import write_atomically
from lavis.models.blip2_models.blip2_emac import Blip2Emac
from xrl_alignment.builders.student import load_student
from xrl_alignment.lab.pretraining.recognition import (
    GRID,
    LEAST_LENGTH,
    LEAST_PIXELS,
    PATCH,
    Seen,
    pixels_of,
    precision_recall,
    rates,
    views,
)
from xrl_alignment.lab.pretraining.vision import TYPES


@torch.no_grad()
def findings(model: Blip2Emac, seen: Sequence[Seen]) -> Tensor:
    """The encoder's features (N, 1 + P, D) of frames."""
    found = []
    for start in range(0, len(seen), 64):
        with autocast(torch.device("cpu")):
            found.append(model.visual_encoder(pixels_of(seen[start : start + 64])).last_hidden_state.float())
    return torch.cat(found)


def confusion(features: Tensor, seen: Sequence[Seen]) -> np.ndarray:
    """How often an object of a type (row) counts as nothing or as a type (columns): (types, 1 + types)."""
    counts = np.zeros((len(TYPES), 1 + len(TYPES)), int)
    best = features[:, 1:].argmax(2).unflatten(1, (GRID, GRID)).numpy()  # feature 0, "nothing", is 1/2
    for i, one in enumerate(seen):
        for kind, x, y, width, height, pixels in one.objects.tolist():
            if max(width, height) >= LEAST_LENGTH and pixels >= LEAST_PIXELS:
                # The middle of a box can lie on the frame's last pixel, and so in a patch that does not exist.
                counts[kind, best[i, min(y // PATCH, GRID - 1), min(x // PATCH, GRID - 1)]] += 1
    return counts


def picture(counts: np.ndarray) -> Figure:
    """The table of confusions: shares of each row."""
    order = sorted(range(len(TYPES)), key=lambda kind: TYPES[kind])
    # Rows and columns by name, "nothing" first; a type without an object keeps a row of zeros.
    shares = counts[order][:, [0, *(kind + 1 for kind in order)]] / np.maximum(counts[order].sum(1, keepdims=True), 1)
    names = [TYPES[kind] for kind in order]
    figure = Figure(figsize=(9.6, 9.4), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_yticks(range(len(names)), names, fontsize=6.5)
    axes.set_xticks(range(1 + len(names)), ["nothing", *names], fontsize=6.5, rotation=90)
    axes.set_ylabel("object")
    axes.set_xlabel("what the patch in its middle counts as")
    return figure


def measure(model: Blip2Emac, games: Sequence[Game], frames: int, seed: int = 7) -> tuple[dict, np.ndarray]:
    """Precision and recall, over all types and of each, with the table of confusions."""
    # Nothing is put within reach on purpose: the frames are those that a player meets.
    source = views(games, random.Random(seed), held_out=True, crowding=0.0)
    seen = [next(source) for _ in range(frames)]
    features = findings(model, seen)
    # The first feature says which types the image shows, near 1 or near 0; named is what lies above 0 here.
    counts = precision_recall(features[:, 0, 1:] - 0.5, seen)
    precision, recall = rates(counts)
    types = {}
    for kind in sorted(range(len(TYPES)), key=lambda kind: TYPES[kind]):
        right, wrong, missed = (int(counts[key][kind]) for key in ("right", "wrong", "missed"))
        types[TYPES[kind]] = {
            "objects": right + missed,
            "precision": round(right / max(right + wrong, 1), 3),
            "recall": round(right / max(right + missed, 1), 3),
        }
    figures = {"frames": frames, "precision": round(precision, 3), "recall": round(recall, 3), "types": types}
    return figures, confusion(features, seen)


def main() -> None:
    """Command line."""
    arguments = parse_arguments()
    options = {"model_type": "student_looks"}
    if arguments.pretrained:
        options["pretrained"] = arguments.pretrained
    model, _ = load_student(options, torch.device("cpu"))
    assert isinstance(model, Blip2Emac)
    games = [game for folder in arguments.games for game in find_games("household_heldout", data=folder)]
    figures, counts = measure(model.eval(), games, arguments.frames)
    print(json.dumps(figures))
    if arguments.out:
        figure = picture(counts)
        write_atomically(arguments.out, lambda file: figure.savefig(file, format="png", dpi=90))


if __name__ == "__main__":
    run_program(main)
