"""The mean of files of weights of one model, for instance of two runs of `make_student`.

    python -m xrl_alignment.lab.pretraining.mean A/student.safetensors B/student.safetensors --out student.safetensors

Each weight is the mean of theirs. The mean of models that began with the same weights may be better than each of them,
and acts as fast (Wortsman et al. 2022, arXiv:2203.05482). The file says what all of them have read.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lavis.common.program import read_first, run_program


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="weights (.safetensors) of the same model")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE")
    return parser.parse_args(argv)


if __name__ == "__main__":
    read_first(parse_arguments)

import torch
from torch import Tensor

from lavis.common.errors import ConfigError
from lavis.models.blip2_models.weights import read_state
from lavis.models.played import PlayedGames, played_by_file
from xrl_alignment.lab.pretraining.files import write_weights


def mean(files: list[Path]) -> tuple[dict[str, Tensor], PlayedGames]:
    """The mean of the weights in float32, and what they have read together; ConfigError if they are of two models."""
    total = {name: torch.zeros_like(weight, dtype=torch.float32) for name, weight in read_state(files[0]).items()}
    played = PlayedGames()
    for file in files:
        weights = read_state(file)
        if {name: weight.shape for name, weight in weights.items()} != {n: w.shape for n, w in total.items()}:
            raise ConfigError(f"{file} has weights of other names or shapes than {files[0]}: it is of another model")
        for name, weight in weights.items():
            total[name] += weight.float() / len(files)
        played = played.merged(played_by_file(file) or PlayedGames(unknown=(file.name,)))
    return total, played


def main() -> None:
    """Command line."""
    arguments = parse_arguments()
    weights, played = mean(arguments.files)
    write_weights(weights, arguments.out, played)
    print(f"{arguments.out}: the mean of {len(arguments.files)} files")


if __name__ == "__main__":
    run_program(main)
