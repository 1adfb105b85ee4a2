"""Trains the demo model's vision encoder, the file `lavis/models/tiny/vision.safetensors`, from nothing.

    python -m xrl_alignment.make_vision --games DIR … --out lavis/models/tiny/vision.safetensors --steps 4000

InstructBLIP's vision encoder, Q-Former and projection were trained to map images into Vicuna's embedding space before
EMAC+ trains the projection further. Here is the small counterpart: in rendered frames of generated rooms, each of the
Q-Former's queries detects one or two types of objects (`LOOKS_FOR`) within the agent's reach and reads the number on
the label. A linear `head` gives the type and the number; composed with the language model's embeddings it becomes the
projection: a query that found "mug 2" gives the vector of " mug" plus that of " 2", one that found nothing gives zero.

Frames are of single moments that a player might see: objects put elsewhere, doors opened, labels exchanged.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from lavis.common.program import read_first, run_program

BATCH = 48


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--games", required=True, nargs="+", metavar="DIR", help="generated games (environments.household)"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="FILE")
    parser.add_argument("--steps", type=int, default=4000, help=f"batches of {BATCH} frames (4000)")
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes are answered at once.
    read_first(parse_arguments)

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from alfworld_native.base import Game
from alfworld_native.drawing import frames
from alfworld_native.drawing.labels import CELLS, FrameLabel
from alfworld_native.drawing.state import RoomState
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.games import find_games
from lavis.common.allocator import bound_kernel_cache, keep_freed_memory
from lavis.common.devices import autocast
from lavis.common.files import make_folder
from lavis.models.blip2_models.blip2_emac import Blip2Emac
from lavis.models.blip2_models.emac_config import VISION
from lavis.models.blip2_models.text import LlmTokenizer
from lavis.training import Updater
from xrl_alignment.builders.student import ImageProcessor, load_student
from xrl_alignment.lab.pretraining.descent import descend, rate_factor
from xrl_alignment.lab.pretraining.files import read_splits, write_weights

# One line a query. Two types share one only if they never lay together in any of 3,300 games.
LOOKS_FOR = (
    ("alarmclock", "glassbottle"),
    ("apple",),
    ("baseballbat", "plate"),
    ("basketball", "butterknife"),
    ("book",),
    ("bowl",),
    ("box", "winebottle"),
    ("bread", "wateringcan"),
    ("candle", "tomato"),
    ("cd", "towel"),
    ("cellphone", "toiletpaper"),
    ("cloth", "vase"),
    ("creditcard", "ladle"),
    ("cup", "tissuebox"),
    ("desklamp", "spraybottle"),
    ("dishsponge", "tennisracket"),
    ("egg", "soapbar"),
    ("floorlamp", "statue"),
    ("fork", "remotecontrol"),
    ("handtowel", "spoon"),
    ("kettle", "pencil"),
    ("keychain", "spatula"),
    ("knife", "teddybear"),
    ("laptop", "soapbottle"),
    ("lettuce", "watch"),
    ("mug",),
    ("newspaper", "saltshaker"),
    ("pan",),
    ("papertowelroll", "pen"),
    ("peppershaker",),
    ("pillow", "potato"),
    ("plunger", "pot"),
)
TYPES = tuple(kind for pair in LOOKS_FOR for kind in pair)
QUERY_OF = {kind: query for query, pair in enumerate(LOOKS_FOR) for kind in pair}
NUMBERS = 9  # 1 to 9; larger ones are not read
SCENES = 4  # moments drawn of a game, each from `VIEWS` places where there is something
VIEWS = 4  # and one more, often of an empty place
EXCHANGED = 0.5  # share of the games whose labels are of other types than what they hang on
REUSE = 3  # times that a frame is learned from
POOL = 1920  # frames kept to choose from
SHARPNESS = 8.0  # from the head's values to the scores of a choice
WARMUP_STEPS = 100


class Seen(NamedTuple):
    """A frame, uint8 (224, 224, 3), with what there is to find in it, as indices, -1 for nothing.

    `kinds`, `numbers`: int64 (queries,), into `TYPES`, and the number less one. `cell_kinds`, `cell_numbers`: the same
    for each patch of the vision encoder, (256,), where a dark label covers it.
    """

    frame: np.ndarray
    kinds: Tensor
    numbers: Tensor
    cell_kinds: Tensor
    cell_numbers: Tensor


def moments(games: Sequence[Game], rng: random.Random) -> Iterator[Seen]:
    """Frames without end."""
    environment = NativeEnvironment()
    while True:
        environment.reset(rng.choice(games))
        state = renamed(environment.room_state(), rng)
        places = sorted(set(state.receptacle_locations.values()))
        for _ in range(SCENES):
            scene = rearranged(state, rng)
            views = [replace(scene, location=location) for location in places]
            # Places with something within reach are shown more often than others.
            full = [seen for seen in views if seen.in_reach()]
            for seen in (*rng.sample(full, min(VIEWS, len(full))), rng.choice(views)):
                frame, labels = frames.render_labelled(seen)
                yield Seen(frame, *targets([label for label in labels if label.kind == "in reach"]))


def renamed(state: RoomState, rng: random.Random) -> RoomState:
    """`state` with other numbers on its objects, now and then with the names of other types."""
    exchanged = rng.random() < EXCHANGED
    names = dict(state.names)
    for key, name in state.names.items():
        kind = name.split()[0]
        if key not in state.receptacle_locations and kind in QUERY_OF:
            kind = rng.choice(TYPES) if exchanged else kind
            number = rng.randint(1, NUMBERS) if rng.random() < 0.2 else rng.randint(1, 3)
            names[key] = f"{kind} {number}"
    return replace(state, names=names)


def rearranged(state: RoomState, rng: random.Random) -> RoomState:
    """`state` with some objects lying elsewhere, some doors open, and perhaps something in the hand."""
    contents = {receptacle: list(keys) for receptacle, keys in state.contents.items()}
    moving = rng.choice((0.0, 0.3, 0.8))
    loose = []
    for keys in contents.values():
        loose += [key for key in keys if rng.random() < moving]
        keys[:] = [key for key in keys if key not in loose]
    rng.shuffle(loose)
    held = loose.pop() if loose and rng.random() < 0.4 else None
    for key in loose:
        contents[rng.choice(list(contents))].append(key)
    opened = frozenset(key for key in sorted(state.openable) if rng.random() < 0.7)
    return replace(state, contents={r: tuple(keys) for r, keys in contents.items()}, opened=opened, held=held)


def targets(labels: Sequence[FrameLabel]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What `Seen` says of `labels`. Of several objects of a type any would do: that with the smallest number counts."""
    kinds, numbers = torch.full((2, len(LOOKS_FOR)), -1)
    cell_kinds, cell_numbers = torch.full((2, CELLS, CELLS), -1)
    for label in sorted(labels, reverse=True):  # so the smallest number of a type is written last
        kind, number = label.name.split()
        if kind in QUERY_OF and int(number) <= NUMBERS:
            found = torch.tensor([TYPES.index(kind), int(number) - 1])
            kinds[QUERY_OF[kind]], numbers[QUERY_OF[kind]] = found
            covered = (label.row, slice(label.column, label.column + label.width))
            cell_kinds[covered], cell_numbers[covered] = found
    return kinds, numbers, cell_kinds.flatten(), cell_numbers.flatten()


def code(kinds: Tensor, numbers: Tensor) -> Tensor:
    """Targets as the head's values: (…, types + numbers), 1 for the type, 1 for the number, else 0."""
    return torch.cat([one_hot(kinds, len(TYPES)), one_hot(numbers, NUMBERS)], dim=-1)


def one_hot(index: Tensor, size: int) -> Tensor:
    """float32 (…, size); an `index` of -1 gives a row of zeros."""
    return functional.one_hot(index + 1, size + 1)[..., 1:].float()


def loss_of(values: Tensor, kinds: Tensor, numbers: Tensor) -> Tensor:
    """Of the head's values (N, places, types + numbers): squared error, choice of a type or nothing, of a number.

    Most places hold nothing; they count together as much as those that hold something.
    """
    wanted = code(kinds, numbers)
    found = kinds >= 0
    squared = (values - wanted).pow(2).sum(-1)
    of_types, of_numbers = values.split([len(TYPES), NUMBERS], dim=-1)
    # The choice between "nothing", with a fixed score of 0.5, and the types; numbers only where there is an object.
    nothing = torch.full_like(of_types[..., :1], 0.5)
    choice = torch.cat([nothing, of_types], dim=-1) * SHARPNESS
    kind = functional.cross_entropy(choice.flatten(0, 1), (kinds + 1).flatten(), reduction="none").view_as(kinds)
    number = functional.cross_entropy(of_numbers[found] * SHARPNESS, numbers[found])
    return (squared + kind)[found].mean() + (squared + kind)[~found].mean() + number


def found_rate(values: Tensor, kinds: Tensor, numbers: Tensor) -> tuple[float, float]:
    """Share of the objects that are named rightly, type and number; share of the empty queries that stay so."""
    # A query names an object if the value of its best type is nearer to 1 than to 0.
    best, kind = values[..., : len(TYPES)].max(-1)
    number = values[..., len(TYPES) :].argmax(-1)
    found = kinds >= 0
    right = (best > 0.5) & (kind == kinds) & (number == numbers)
    return right[found].float().mean().item(), (best[~found] <= 0.5).float().mean().item()


def projection(head: nn.Linear, embedding: Tensor, tokenizer: LlmTokenizer) -> tuple[Tensor, Tensor]:
    """Weight (H, queries' width) and bias (H,) of the projection: the head, its values replaced by word vectors."""
    words = [*TYPES, *(str(number + 1) for number in range(NUMBERS))]
    ids = [tokenizer.encode(f" {word}") for word in words]
    if broken := [word for word, found in zip(words, ids, strict=True) if len(found) != 1]:
        raise ValueError(f"not single tokens of the model's tokenizer: {', '.join(broken)}")
    # head(x) = W x + b gives a value for each word, and the projection weights the words' vectors V by these values:
    # Vᵀ (W x + b) = (Vᵀ W) x + Vᵀ b.
    vectors = embedding[torch.tensor([found[0] for found in ids])]
    return vectors.T @ head.weight, vectors.T @ head.bias


def train(
    model: Blip2Emac,
    vis_processor: ImageProcessor,
    games: Sequence[Game],
    *,
    steps: int,
    lr: float,
    seed: int,
    out: Path,
) -> None:
    """Train vision encoder, Q-Former and head for `steps` batches or a few more; prints and saves after every pool."""
    rng = random.Random(seed)
    source = moments(games, rng)
    torch.manual_seed(seed)
    width = len(TYPES) + NUMBERS
    patch_width = model.visual_encoder.config.hidden_size
    # The second head reads the patches themselves: a signal at every label, which the encoder learns from first.
    head, cell_head = nn.Linear(model.query_tokens.shape[-1], width), nn.Linear(patch_width, width)
    parts = [model.visual_encoder, model.ln_vision, model.Qformer, head, cell_head]
    weights = [model.query_tokens, *(weight for part in parts for weight in part.parameters())]
    for weight in weights:
        weight.requires_grad_(True)
    optimizer = torch.optim.AdamW(weights, lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    updater = Updater(optimizer, weights, max_norm=1.0)
    pool: list[Seen] = []
    started, step = time.monotonic(), 0
    while step < steps:
        # The oldest third of the pool gives way to fresh frames, on which the model is judged before it learns them.
        pool = pool[POOL // REUSE :] if len(pool) == POOL else pool
        fresh = [next(source) for _ in range(POOL - len(pool))]
        rates = evaluate(model, head, vis_processor, fresh[: 4 * BATCH])
        pool += fresh
        losses = []
        order = rng.sample(range(len(pool)), len(pool))
        for start in range(0, len(order) - BATCH + 1, BATCH):  # the pool once, in random order
            batch = [pool[i] for i in order[start : start + BATCH]]
            cells, queries = read(model, stacked_images(batch, vis_processor))
            _, kinds, numbers, cell_kinds, cell_numbers = zip(*batch, strict=True)
            of_queries = loss_of(head(queries), torch.stack(kinds), torch.stack(numbers))
            of_cells = loss_of(cell_head(cells), torch.stack(cell_kinds), torch.stack(cell_numbers))
            factor = rate_factor(step, 1 - step / steps, warm_up=WARMUP_STEPS, decay=0.5)
            descend(updater, of_queries + of_cells, lr * factor)
            losses.append((of_queries.item(), of_cells.item()))
            step += 1
        save(model, head, out)
        means = [sum(column) / len(losses) for column in zip(*losses, strict=True)]
        minutes = (time.monotonic() - started) / 60
        print(
            f"{min(step / steps, 1):4.0%}  step {step} in {minutes:.1f} min, "
            f"{max(steps - step, 0) / step * minutes:.1f} to go, loss {means[0]:.3f} (patches {means[1]:.3f}); "
            f"before, on frames not seen yet: named {rates[0]:.3f}, empty {rates[1]:.3f}",
            flush=True,
        )


def stacked_images(batch: Sequence[Seen], vis_processor: ImageProcessor) -> Tensor:
    """Images (N, 3, S, S) float32."""
    return torch.stack([vis_processor(seen.frame) for seen in batch])


def read(model: Blip2Emac, images: Tensor) -> tuple[Tensor, Tensor]:
    """Features of the patches (N, 256, width) and of the queries (N, queries, width) for `images`, float32."""
    with autocast(torch.device("cpu")):
        features = model.vision.encode_image(images)
        queries = model.query_tokens.expand(len(images), -1, -1)
        output = model.Qformer(input_ids=None, query_embeds=queries, encoder_hidden_states=features).last_hidden_state
    # The first position is that of the class token, no patch.
    return features[:, 1:].float(), output.float()


@torch.no_grad()
def evaluate(
    model: Blip2Emac, head: nn.Linear, vis_processor: ImageProcessor, seen: Sequence[Seen]
) -> tuple[float, float]:
    """`found_rate` on frames that were not trained on."""
    parts = [seen[i : i + BATCH] for i in range(0, len(seen), BATCH)]
    values = torch.cat([head(read(model, stacked_images(part, vis_processor))[1]) for part in parts])
    return found_rate(values, torch.stack([one.kinds for one in seen]), torch.stack([one.numbers for one in seen]))


def save(model: Blip2Emac, head: nn.Linear, out: Path) -> None:
    """Write vision encoder, Q-Former and projection in bfloat16 under the model's own names."""
    embedding = model.llm_model.get_input_embeddings().weight
    assert isinstance(embedding, Tensor)
    weight, bias = projection(head, embedding.detach(), model.llm_tokenizer)
    state: Mapping[str, Tensor] = model.policy_state_dict()
    kept = {key: value for key, value in state.items() if not key.startswith(("llm_model.", "llm_proj."))}
    played = read_splits(official=False)
    write_weights({**kept, "llm_proj.weight": weight, "llm_proj.bias": bias}, out, played)


def main() -> None:
    """Command line."""
    arguments = parse_arguments()
    bound_kernel_cache()
    keep_freed_memory()
    make_folder(arguments.out.absolute().parent)
    options = {"load_basemodel": False, "init_seed": arguments.seed, "allow_random": list(VISION)}
    model, vis_processor = load_student({"model_type": "demo", **options}, torch.device("cpu"))
    assert isinstance(model, Blip2Emac)  # this command makes parts of it
    games = [game for folder in arguments.games for game in find_games("household_train", data=folder)]
    settings = {name: getattr(arguments, name) for name in ("steps", "lr", "seed", "out")}
    train(model.train(), vis_processor, games, **settings)


if __name__ == "__main__":
    run_program(main)
