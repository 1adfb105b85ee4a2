"""Puts the student that plays by looks together: encoder, Q-Former, projection, language model.

    python -m xrl_alignment.lab.pretraining.reading --encoder DIR --language-model DIR --games DIR … --reader FILE \\
        --out FILE

`--encoder` is the folder of `recognition`, or a student's file whose encoder is taken; `--language-model` is the folder
of `by_looks`. The encoder's features say which types each patch shows, and its first one which types the image shows. A
Q-Former learns to read them: query q answers for the types `vision.LOOKS_FOR[q]`, and a linear head gives a value near
1 for a type that the encoder names, else near 0. Composed with the word vectors of the language model
(`by_looks.ToldStudent`) the head becomes the projection. The reader learns from the encoder's findings in rendered
frames, which are computed once.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lavis.common.program import read_first, run_program


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    encoder_help = "of recognition, or a student (FILE.safetensors)"
    parser.add_argument("--encoder", required=True, type=Path, metavar="DIR", help=encoder_help)
    parser.add_argument("--language-model", required=True, type=Path, metavar="DIR", help="of by_looks")
    parser.add_argument("--games", nargs="+", required=True, metavar="DIR", help="generated games")
    parser.add_argument("--official", action="store_true", help="ALFWorld's official training games, too")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.safetensors")
    reader_help = "the Q-Former and its head: written here, or read if it is there (it reads any encoder's findings)"
    parser.add_argument("--reader", required=True, type=Path, metavar="FILE.pt", help=reader_help)
    parser.add_argument("--frames", type=int, default=2500)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes are answered at once.
    read_first(parse_arguments)

import torch
from torch import Tensor, nn
from torch.nn import functional

from alfworld_native.base import Game
from alfworld_native.games import find_games
from lavis.checkpoints import save_whole
from lavis.common.allocator import bound_kernel_cache, keep_freed_memory
from lavis.common.devices import autocast
from lavis.common.errors import MissingFileError
from lavis.common.files import make_folder
from lavis.models.blip2_models.blip2 import LN_VISION_EPS, Float32LayerNorm, init_qformer
from lavis.models.blip2_models.conv_encoder import ConvEncoder
from lavis.training import Updater
from xrl_alignment.lab.pretraining.by_looks import ToldStudent, told_student
from xrl_alignment.lab.pretraining.descent import descend, rate_factor
from xrl_alignment.lab.pretraining.files import read_splits, write_weights
from xrl_alignment.lab.pretraining.recognition import encoder_weights, new_encoder, pixels_of, views
from xrl_alignment.lab.pretraining.vision import LOOKS_FOR, QUERY_OF, SHARPNESS, TYPES

QFORMER: dict[str, Any] = {
    "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 384,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
BATCH = 64
OWN_QUERY = torch.tensor([QUERY_OF[kind] for kind in TYPES])


class Reader(nn.Module):
    """What stands between the encoder's features and the projection, under Blip2Emac's names, and the head."""

    def __init__(self, width: int):
        super().__init__()
        self.ln_vision = Float32LayerNorm(width, eps=LN_VISION_EPS)
        self.Qformer, self.query_tokens = init_qformer(len(LOOKS_FOR), width, QFORMER, False)
        self.head = nn.Linear(QFORMER["hidden_size"], len(TYPES))

    def forward(self, features: Tensor) -> Tensor:
        """Values (N, Q, types) of features (N, 1 + P, D)."""
        queries = self.query_tokens.expand(len(features), -1, -1)
        seen = self.ln_vision(features)
        output = self.Qformer(input_ids=None, query_embeds=queries, encoder_hidden_states=seen).last_hidden_state
        return self.head(output).float()


@torch.no_grad()
def findings(encoder: ConvEncoder, games: Sequence[Game], number: int, rng: random.Random) -> Tensor:
    """The encoder's features of `number` frames: (N, 1 + P, D), bfloat16."""
    source = views(games, rng)
    found: list[Tensor] = []
    while sum(len(part) for part in found) < number:
        # Features are kept in the precision that they are computed in: half the memory, and nothing is lost.
        with autocast(torch.device("cpu")):
            found.append(encoder(pixels_of([next(source) for _ in range(64)])).last_hidden_state.bfloat16())
    return torch.cat(found)[:number]


def loss_of(values: Tensor, named: Tensor) -> Tensor:
    """Of the queries' values (N, Q, types): squared error and cross-entropy of value > 1/2, for one object on average.

    `named` (N, types): the types that the encoder names, each for its own query; all other values have to be 0.
    """
    # A query that is not a type's own has to give 0 for it: the projection adds up what all queries say.
    wanted = torch.zeros_like(values)
    wanted[:, OWN_QUERY, torch.arange(len(TYPES))] = named
    entropy = functional.binary_cross_entropy_with_logits(SHARPNESS * (values - 0.5), wanted, reduction="none")
    return ((values - wanted) ** 2 + entropy).sum() / named.sum().clamp(min=1)


def named_by(features: Tensor) -> Tensor:
    """The types that the encoder names, (N, types) float, of its features (N, 1 + P, D)."""
    return (features[:, 0, 1:] > 0.5).float()


def learn_to_read(features: Tensor, *, steps: int, lr: float, seed: int) -> Reader:
    """A reader of `features`; prints how often it says what the encoder says."""
    torch.manual_seed(seed)
    reader = Reader(features.shape[2])
    optimizer = torch.optim.AdamW(reader.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    updater = Updater(optimizer, list(reader.parameters()), max_norm=1.0)
    held = features[-512:]  # only to measure: never trained on
    features = features[:-512]
    for step in range(steps):
        batch = features[torch.randint(len(features), (BATCH,))].float()
        with autocast(torch.device("cpu")):
            values = reader(batch)
        loss = loss_of(values, named_by(batch))
        descend(updater, loss, lr * rate_factor(step, 1 - step / steps, warm_up=100, decay=2 / 3))
        if step % 100 == 99 or step + 1 == steps:
            precision, recall = agreement(reader, held)
            print(
                f"step {step + 1}, loss {loss.item():.3f}, precision {precision:.3f}, recall {recall:.3f}", flush=True
            )
    centre(reader.eval(), features[:512].float())
    return reader


@torch.no_grad()
def centre(reader: Reader, features: Tensor) -> None:
    """Shift the head so that the values of what is not named are 0 in the mean.

    Cross-entropy pulls them a little below 0, alike everywhere: -0.05 for each of 58 types. The projection adds up.
    """
    with autocast(torch.device("cpu")):
        values = torch.cat([reader(part) for part in features.split(128)])
    empty = torch.ones_like(values)
    empty[:, OWN_QUERY, torch.arange(len(TYPES))] -= named_by(features)
    reader.head.bias.sub_((values * empty).sum((0, 1)) / empty.sum((0, 1)))


@torch.no_grad()
def agreement(reader: Reader, features: Tensor) -> tuple[float, float]:
    """Precision and recall of the reader's values against what the encoder names."""
    with autocast(torch.device("cpu")):
        values = torch.cat([reader(part.float()) for part in features.split(128)])
    said, named = values[:, OWN_QUERY, torch.arange(len(TYPES))] > 0.5, named_by(features) > 0.5
    right = (said & named).sum().item()
    return right / max(said.sum().item(), 1), right / max(named.sum().item(), 1)


def student_state(encoder: ConvEncoder, reader: Reader, told: ToldStudent) -> dict[str, Tensor]:
    """All weights of the student under Blip2Emac's names, with the language model of `told`.

    The head gives a value for each type, W x + b, and a token is n + Vᵀ (W x + b), V being the types' word vectors
    minus that of "nothing", n (`ToldStudent.image_tokens`). So the projection is (Vᵀ W) x + (Vᵀ b + n).
    """
    change = told.words - told.nothing
    parts = {f"visual_encoder.{key}": value for key, value in encoder.state_dict().items()}
    parts |= {key: value for key, value in reader.state_dict().items() if not key.startswith("head.")}
    parts["llm_proj.weight"] = change.T @ reader.head.weight
    parts["llm_proj.bias"] = change.T @ reader.head.bias + told.nothing
    llm = told.llm_model.state_dict()
    # The output layer is the embedding, which stands in the file already.
    return parts | {f"llm_model.{key}": value for key, value in llm.items() if key != "lm_head.weight"}


def main() -> None:
    """Command line."""
    arguments = parse_arguments()
    bound_kernel_cache()
    keep_freed_memory()
    given: Path = arguments.encoder
    language_model = arguments.language_model / "llm.safetensors"
    for file in (given if given.suffix == ".safetensors" else given / "encoder.pt", language_model):
        if not file.is_file():
            raise MissingFileError(f"{file} is not there: give the folders that recognition and by_looks have written")
    make_folder(arguments.reader.absolute().parent)
    told = told_student(language_model)
    # Batch norms are folded into the convolutions: the student that ships has none.
    encoder = new_encoder().eval()
    if given.suffix == ".safetensors":
        encoder = encoder.folded()
        encoder.load_state_dict(encoder_weights(given))
    else:
        encoder.load_state_dict(torch.load(given / "encoder.pt", weights_only=True)["model"])
        encoder = encoder.folded()
    games = [game for folder in arguments.games for game in find_games("household_train", data=folder)]
    games += find_games("train") if arguments.official else []
    if arguments.reader.exists():
        reader = Reader(encoder.config.hidden_size).eval()
        reader.load_state_dict(torch.load(arguments.reader, weights_only=True))
    else:
        features = findings(encoder, games, arguments.frames, random.Random(arguments.seed))
        reader = learn_to_read(features, steps=arguments.steps, lr=arguments.lr, seed=arguments.seed)
        save_whole(arguments.reader, reader.state_dict())
    with torch.no_grad():
        played = read_splits(official=True)  # the language model began with that of `student`
        write_weights(student_state(encoder, reader, told), arguments.out, played)


if __name__ == "__main__":
    run_program(main)
