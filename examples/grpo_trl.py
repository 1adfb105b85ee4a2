"""Trains a chat model with TRL's GRPO on generated household games (extra `trl`): python examples/grpo_trl.py MODEL."""

import argparse

from lavis.common.errors import missing_extra
from lavis.common.program import run_program


def positive_integer(text: str) -> int:
    """A number of the command line: TRL reads 0 steps as three epochs."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return int(text)


def main() -> None:
    """Choose games, train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a chat model that calls tools, for instance Qwen/Qwen3-0.6B")
    parser.add_argument("--out", default="output/grpo")
    parser.add_argument("--games", type=positive_integer, default=64)
    parser.add_argument("--steps", type=positive_integer, default=100)
    parser.add_argument(
        "--tokens", type=positive_integer, default=2048, help="longest completion, the tools' answers included"
    )
    options = parser.parse_args()

    # Below the command line, because they take seconds.
    try:
        import torch
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer
    except ModuleNotFoundError as error:
        raise missing_extra("trl", error) from None

    from alfworld_native import choose_games
    from xrl_alignment.adapters.trl import Household, rows

    games = choose_games("household", "household_train", num=options.games, num_train=options.games, num_heldout=0)
    settings = GRPOConfig(
        options.out,
        max_steps=options.steps,
        max_completion_length=options.tokens,
        report_to="none",
        bf16=torch.cuda.is_available(),
    )
    trainer = GRPOTrainer(
        options.model,
        args=settings,
        train_dataset=Dataset.from_list(rows(games)),
        environment_factory=lambda: Household(games),
    )
    trainer.train()


if __name__ == "__main__":
    run_program(main)
