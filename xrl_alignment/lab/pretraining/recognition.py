"""Trains a vision encoder that recognises objects by their looks, on close views without labels.

    python -m xrl_alignment.lab.pretraining.recognition --games DIR … --out DIR --minutes 60

Frames show single moments that a player might see (objects put elsewhere, doors opened), half of them with objects of
other types in the same places, so that every type occurs. A linear head on the encoder's patches says which types lie
where: the renderer knows. Two losses teach it:

- a patch of an object says its type, all others say "nothing": cross-entropy, as in semantic segmentation (Long,
  Shelhamer and Darrell 2015), in which nothing weighs less;
- the largest margin of a type over "nothing" among all patches says whether the type is in view: binary cross-entropy.

Frames have training variants of objects (`alfworld_native/drawing/looks.py`). `confusion` measures on held-out ones.

Tree of `--out`: `encoder.pt` (weights, head, optimizer, step, minutes so far: a run continues from it), `log.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from lavis.common.program import read_first, run_program


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", required=True, nargs="+", metavar="DIR", help="generated games")
    parser.add_argument("--official", action="store_true", help="ALFWorld's official training games, too")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--seed", type=int, default=0)
    student_help = "training begins with this student's encoder instead of with random weights"
    parser.add_argument("--student", type=Path, metavar="FILE.safetensors", help=student_help)
    return parser.parse_args(argv)


if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes are answered at once.
    read_first(parse_arguments)

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from alfworld_native.base import Game
from alfworld_native.drawing import frames
from alfworld_native.drawing.close import CloseScene, close_scene, owners, paint_scene, visible_boxes
from alfworld_native.drawing.ids import kind_of
from alfworld_native.drawing.state import RoomState
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.games import find_games
from lavis.checkpoints import save_whole
from lavis.common.allocator import bound_kernel_cache, keep_freed_memory
from lavis.common.devices import autocast
from lavis.common.errors import ConfigError
from lavis.common.files import append_line, locked, make_folder
from lavis.models.blip2_models.conv_encoder import PATCH, ConvEncoder, ConvEncoderConfig
from lavis.training import Updater
from xrl_alignment.lab.pretraining.descent import descend, rate_factor
from xrl_alignment.lab.pretraining.vision import QUERY_OF, TYPES, rearranged

SIZE = 224
GRID = SIZE // PATCH
EXCHANGED = 0.5  # share of the scenes whose objects are of other types
SCENES, VIEWS = 3, 5  # scenes drawn of a game; views of a scene with something to see
CROWDED = (
    0.6  # share of the views in which more lies within reach: a frame of many objects teaches more than one of two
)
EMPTY = 0.2  # share of the other views: of any place, often an empty one
ROOMS = 0.04  # share of views of the whole room, in which nothing is to be named
BATCH, REUSE, POOL = 24, 4, 2048  # frames of a step; passes over a frame before a new one replaces it; frames at hand
WARMUP_STEPS, DECAY_SHARE = 100, 0.35
NOTHING = 0.15  # weight of patches that show nothing
VIEW_WEIGHT = 0.3
LEAST_LENGTH = 12  # pixels of the longer side of what is visible, from which an object is counted in figures
JUDGED = 384  # frames on which the encoder is judged after every pool
LEAST_PIXELS = 24  # visible ones, from which an object has to be named; what shows less may be named or not
MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073]).view(1, 3, 1, 1) * 255  # CLIP's, as blip_image_eval has them
STD = torch.tensor([0.26862954, 0.26130258, 0.27577711]).view(1, 3, 1, 1) * 255


class Seen(NamedTuple):
    """A frame, uint8 (224, 224, 3), with what is in it.

    `objects`: rows (type, x, y, width, height, visible pixels), int64 (n, 6). `patches`: the type that each patch
    shows, counted from 1, or 0 for nothing, uint8 (GRID, GRID).
    """

    frame: np.ndarray
    objects: np.ndarray
    patches: np.ndarray


def views(
    games: Sequence[Game],
    rng: random.Random,
    *,
    held_out: bool = False,
    crowding: float = CROWDED,
) -> Iterator[Seen]:
    """Frames without end."""
    environment = NativeEnvironment()
    while True:
        environment.reset(rng.choice(games))
        start = environment.room_state()
        places = sorted(set(start.receptacle_locations.values()))
        for _ in range(SCENES):
            state = rearranged(start, rng)
            if rng.random() < EXCHANGED:
                state = other_types(state, rng)
            seed = rng.randrange(1 << 30)
            full = [view for view in (replace(state, location=place) for place in places) if view.in_reach()]
            for view in rng.sample(full, min(VIEWS, len(full))):
                if rng.random() < crowding:
                    view = crowded(view, rng)
                elif rng.random() < EMPTY:
                    view = replace(view, location=rng.choice(places))
                if rng.random() < ROOMS:
                    nothing = np.zeros((0, 6), np.int64), np.zeros((GRID, GRID), np.uint8)
                    yield Seen(frames.render(view, show_ids=False), *nothing)
                elif (scene := close_scene(view, SIZE, seed, held_out)) is not None:
                    yield seen_of(scene)


def seen_of(scene: CloseScene) -> Seen:
    """The frame of a scene, with its objects."""
    owner = owners(scene, SIZE)
    objects = [
        (TYPES.index(kind), (x0 + x1) // 2, (y0 + y1) // 2, x1 - x0, y1 - y0, pixels)
        for name, (x0, y0, x1, y1, pixels) in visible_boxes(scene, owner).items()
        if (kind := kind_of(name)) in QUERY_OF
    ]
    # A patch shows what its middle shows; that in the middle of a thing shows it, so that small ones have one, too.
    kinds = [kind_of(thing.name) for thing in scene.things[:255]]
    table = np.array([0, *(TYPES.index(kind) + 1 if kind in QUERY_OF else 0 for kind in kinds)], np.uint8)
    patches = table[owner[PATCH // 2 :: PATCH, PATCH // 2 :: PATCH]].copy()
    for number, x, y, _, _, pixels in sorted(objects, key=lambda row: -row[5]):
        if pixels >= LEAST_PIXELS:
            patches[min(y // PATCH, GRID - 1), min(x // PATCH, GRID - 1)] = number + 1
    return Seen(paint_scene(scene, SIZE), np.array(objects, np.int64).reshape(-1, 6), patches)


def crowded(state: RoomState, rng: random.Random) -> RoomState:
    """`state` with up to a dozen objects more at one of the receptacles within reach."""
    here = {key for key, location in state.receptacle_locations.items() if location == state.location}
    target = rng.choice(sorted(key for key in here if state.contents.get(key)))
    elsewhere = sorted(key for place, keys in state.contents.items() if place not in here for key in keys)
    more = rng.sample(elsewhere, min(len(elsewhere), rng.randint(2, 12)))
    contents = {place: tuple(key for key in keys if key not in more) for place, keys in state.contents.items()}
    contents[target] += tuple(more)
    return replace(state, contents=contents, opened=state.opened | ({target} & state.openable))


def other_types(state: RoomState, rng: random.Random) -> RoomState:
    """`state`, each object of a type drawn at random."""
    names = dict(state.names)
    for number, (key, name) in enumerate(state.names.items()):
        if key not in state.receptacle_locations and kind_of(name) in QUERY_OF:
            names[key] = f"{rng.choice(TYPES)} {number + 1}"
    return replace(state, names=names)


def new_encoder() -> ConvEncoder:
    """An encoder that has learned nothing."""
    return ConvEncoder(ConvEncoderConfig(SIZE, 1 + len(TYPES), batch_norm=True))


def encoder_weights(student: Path) -> dict[str, Tensor]:
    """The encoder's weights in a student's file, float32: its batch norms are folded into the convolutions.

    ConfigError if that student has another encoder.
    """
    start = "visual_encoder."
    found = {
        key.removeprefix(start): value.float() for key, value in load_file(student).items() if key.startswith(start)
    }
    if found.keys() != new_encoder().eval().folded().state_dict().keys():
        raise ConfigError(f"{student} has no encoder as recognition trains it: give a student that plays by looks")
    return found


@torch.no_grad()
def started_from(student: Path, pixels: Tensor) -> ConvEncoder:
    """The encoder of a shipped student, to be trained further: its folded batch norms are put back.

    Each norm takes the mean and deviation that its convolution has on `pixels` (N, 3, S, S) as stored ones, and as
    shift and scale: then it changes nothing but adds the folded bias.
    """
    folded = encoder_weights(student)
    model = new_encoder()

    def put_back(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None and norm.running_var is not None
        norm.running_var[:], norm.running_mean[:] = torch.var_mean(inputs[0], (0, 2, 3))
        norm.weight[:] = (norm.running_var + norm.eps).sqrt()
        norm.bias[:] = norm.running_mean + folded[norms[norm]]

    norms = {
        module: f"{name.removesuffix('1')}0.bias"
        for name, module in model.named_modules()
        if isinstance(module, nn.BatchNorm2d)
    }
    # One forward pass sets all norms in its order: when a hook runs, the norms before it already give what the folded
    # encoder gave there.
    hooks = [norm.register_forward_pre_hook(put_back) for norm in norms]
    weights = {key: value for key, value in folded.items() if key in model.state_dict()}
    model.load_state_dict(weights, strict=False)
    model.eval().scores(pixels)
    for hook in hooks:
        hook.remove()
    return model


def pixels_of(batch: Sequence[Seen]) -> Tensor:
    """Normalised frames (N, 3, S, S) float32."""
    frames_ = torch.from_numpy(np.stack([seen.frame for seen in batch])).permute(0, 3, 1, 2)
    return (frames_ - MEAN) / STD


def targets(batch: Sequence[Seen]) -> tuple[Tensor, Tensor, Tensor]:
    """What each patch shows, int64 (N, P), 0 for nothing; what is in view and what of it counts, (N, types)."""
    there, counts = np.zeros((len(batch), len(TYPES)), np.float32), np.ones((len(batch), len(TYPES)), np.float32)
    for i, seen in enumerate(batch):
        kinds, pixels = seen.objects[:, 0], seen.objects[:, 5]
        # What hardly shows may be named or not; the second line overwrites that if another one of its type shows well.
        counts[i, kinds] = 0.0
        there[i, kinds[pixels >= LEAST_PIXELS]] = counts[i, kinds[pixels >= LEAST_PIXELS]] = 1.0
    patches = torch.from_numpy(np.stack([seen.patches for seen in batch]).astype(np.int64))
    return patches.flatten(1), torch.from_numpy(there), torch.from_numpy(counts)


def margins(scores: Tensor) -> Tensor:
    """Of scores (N, 1 + types, P): the largest margin of each type over "nothing" among the patches, (N, types)."""
    return (scores[:, 1:] - scores[:, :1]).amax(2)


def loss_of(scores: Tensor, patches: Tensor, there: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the patches, and binary cross-entropy of what is in view, each for one object on average."""
    weights = torch.ones(scores.shape[1])
    weights[0] = NOTHING
    of_patches = functional.cross_entropy(scores, patches, weight=weights)
    of_view = functional.binary_cross_entropy_with_logits(margins(scores), there, reduction="none") * counts
    return of_patches, of_view.sum() / there.sum().clamp(min=1)


@torch.no_grad()
def in_view(encoder: ConvEncoder, seen: Sequence[Seen]) -> Tensor:
    """Margins (N, types) of the types in view: above 0 the encoder names the type."""
    encoder.eval()
    found = []
    for start in range(0, len(seen), 64):
        with autocast(torch.device("cpu")):
            found.append(margins(encoder.scores(pixels_of(seen[start : start + 64])).float()))
    return torch.cat(found)


def precision_recall(scores: Tensor, seen: Sequence[Seen]) -> dict[str, np.ndarray]:
    """For each type: `right` (named: a score above 0, and in view), `wrong` (named, not in view), `missed`.

    Objects whose visible part is less than `LEAST_LENGTH` pixels in its longer side, or of less than `LEAST_PIXELS`
    pixels, may be named or not.
    """
    there, some = np.zeros((len(seen), len(TYPES)), bool), np.zeros((len(seen), len(TYPES)), bool)
    for i, one in enumerate(seen):
        for kind, _, _, width, height, pixels in one.objects.tolist():
            some[i, kind] = True
            there[i, kind] |= max(width, height) >= LEAST_LENGTH and pixels >= LEAST_PIXELS
    named = scores.numpy() > 0
    return {"right": (named & there).sum(0), "wrong": (named & ~some).sum(0), "missed": (~named & there).sum(0)}


def rates(counts: dict[str, np.ndarray]) -> tuple[float, float]:
    """Precision and recall over all types."""
    right, wrong, missed = (float(counts[key].sum()) for key in ("right", "wrong", "missed"))
    return right / max(right + wrong, 1), right / max(right + missed, 1)


def train(
    games: Sequence[Game],
    judged: Sequence[Game],
    out: Path,
    *,
    minutes: float,
    lr: float,
    seed: int,
    student: Path | None = None,
) -> None:
    """Train for `minutes`, those of earlier runs into `out` counted; prints and saves after every pool.

    `student` is a file whose encoder the first run begins with. `judged` are games in rooms that `games` do not have:
    what is printed is measured in them, on held-out variants.
    """
    torch.manual_seed(seed)
    model = new_encoder()
    if student is not None:
        first = views(games, random.Random(seed))
        model = started_from(student, pixels_of([next(first) for _ in range(96)]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.02)
    updater = Updater(optimizer, list(model.parameters()), max_norm=2.0)
    spent, step = 0.0, 0
    if (out / "encoder.pt").exists():
        saved = torch.load(out / "encoder.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        spent, step = saved["minutes"], saved["step"]
    rng = random.Random(f"{seed} {step}")  # with the step: a run that continues draws other frames than its beginning
    source = views(games, rng)
    # The same frames after every pool, whatever the seed: so figures of several runs can be compared.
    test_source = views(judged, random.Random(999), held_out=True, crowding=0.0)
    test = [next(test_source) for _ in range(JUDGED)]
    pool: list[Seen] = []
    started = time.monotonic() - spent * 60
    while (spent := (time.monotonic() - started) / 60) < minutes:
        # The oldest frames go: each new one replaces one that was learned from REUSE times.
        keep = pool[POOL // REUSE :] if len(pool) == POOL else pool
        begun = time.monotonic()
        pool = keep + [next(source) for _ in range(POOL // REUSE)]
        rendered = time.monotonic() - begun
        model.train()
        losses = []
        order = rng.sample(range(len(pool)), len(pool))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            batch = [pool[i] for i in order[start : start + BATCH]]
            pixels, (patches, there, counts) = pixels_of(batch), targets(batch)
            if rng.random() < 0.5:  # mirrored
                pixels = pixels.flip(3)
                patches = patches.unflatten(1, (GRID, GRID)).flip(2).flatten(1)
            with autocast(torch.device("cpu")):
                scores = model.scores(pixels).float()
            of_patches, of_view = loss_of(scores, patches, there, counts)
            left = 1 - (time.monotonic() - started) / 60 / minutes
            factor = rate_factor(step, left, warm_up=WARMUP_STEPS, decay=DECAY_SHARE)
            descend(updater, of_patches + VIEW_WEIGHT * of_view, lr * factor)
            losses.append((of_patches.item(), of_view.item()))
            step += 1
        named = rates(precision_recall(in_view(model, test), test))
        spent = (time.monotonic() - started) / 60
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "minutes": spent, "step": step}
        save_whole(out / "encoder.pt", state)
        means = [sum(column) / len(losses) for column in zip(*losses, strict=True)]
        line = {
            "step": step, "minutes": round(spent, 1), "rendering": round(rendered, 1),
            "losses": [round(mean, 3) for mean in means],
            "precision, recall": [round(rate, 3) for rate in named],
        }  # fmt: skip
        append_line(out / "log.jsonl", json.dumps(line))
        print(json.dumps(line), flush=True)


def main() -> None:
    """Command line."""
    arguments = parse_arguments()
    bound_kernel_cache()
    keep_freed_memory()
    make_folder(arguments.out.absolute())
    games = [game for folder in arguments.games for game in find_games("household_train", data=folder)]
    games += find_games("train") if arguments.official else []
    judged = [game for folder in arguments.games for game in find_games("household_heldout", data=folder)]
    settings = {name: getattr(arguments, name) for name in ("minutes", "lr", "seed", "student")}
    with locked(arguments.out / ".lock", arguments.out):
        train(games, judged, arguments.out, **settings)


if __name__ == "__main__":
    run_program(main)
