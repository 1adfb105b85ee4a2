"""The predicted peak of memory against the measured one, for steps of several shapes, each in a process of its own.

    python benchmarks/memory.py --json memory.json [--device cuda --shapes vicuna7b --batches 4 32]

On a CPU the peak is the process's largest resident set during a step after the first; on an accelerator what torch had
allocated. Images are encoded in the step, no optimiser. `worst_error` is the largest relative error of all rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import _shapes
import torch
from _bench import Result, run

from lavis.models.memory import Work, predict

TARGET = 0.15


def options(parser: argparse.ArgumentParser) -> None:
    """What is measured."""
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--shapes", nargs="+", default=["tiny", "cpu", "medium"], choices=tuple(_shapes.SHAPES))
    parser.add_argument("--phases", nargs="+", default=["bc", "dpo"], choices=("bc", "dpo"))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])


def step(shape: str, device: str, phase: str, batch: int) -> _shapes.Cost:
    """What one step costs."""
    torch.set_num_threads(1)
    model = _shapes.build(shape, device, reference=phase == "dpo")
    inputs = _shapes.samples(model, batch)
    call = model.dpo_forward if phase == "dpo" else model
    return _shapes.cost_of(model, lambda: call(inputs)["loss"], repeats=1)


def measure(device: str, shapes: Sequence[str], phases: Sequence[str], batches: Sequence[int]) -> Result:
    """A row for every shape, phase and batch."""
    rows, errors = [], []
    for shape, phase, batch in ((s, p, b) for s in shapes for p in phases for b in batches):
        cost = _shapes.measured(step, shape, device, phase, batch)
        work = Work(phase, batch, _shapes.PROMPT_TOKENS, _shapes.ANSWER_TOKENS, stored=False)
        predicted = sum(predict(_shapes.SHAPES[shape].model, work, device, optimizer=False).values())
        errors.append(abs(predicted / cost.peak - 1))
        rows.append(
            {
                "step": phase,
                "shape": f"{shape}, {device}",
                "batch": batch,
                "predicted MiB": predicted / 2**20,
                "measured MiB": cost.peak / 2**20,
                "of it the step's": cost.added / 2**20,
                "predicted / measured": predicted / cost.peak,
            }
        )
    return Result(rows, {"worst_error": max(errors)}, {})


if __name__ == "__main__":
    run(f"Peak of memory, predicted and measured (to be within {TARGET:.0%})", measure, options)
