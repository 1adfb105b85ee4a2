"""Everything that is to be known of the model on one accelerator, in one call of a few minutes.

    python benchmarks/gpu.py --json gpu.json                         # an H200; Vicuna-7B and EVA-CLIP-g, full shape
    python benchmarks/gpu.py --device cpu --shape nano --largest 2   # the same code on a CPU, tiny

Random weights, bfloat16. Measures: DPO steps of 4 (memory, samples a second), the plain baseline and this project's
step each at its own best batch, the largest DPO batch, cloning at the paper's batch of 128, utilisation of the
accelerator (`PEAK_FLOPS`), actions a second at 64 environments and one at a time, and how far the prediction of memory
is off (no figure on a CPU, where libraries and allocator outweigh a tiny model). A batch that does not fit is left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping

import _shapes
import torch
from _bench import Result, run
from dpo_step import stored
from generate import OPTIONS, rows_of

from lavis.models.memory import Work, predict

PEAK_FLOPS = 790e12  # an H200's in bfloat16, as it is reached (the data sheet says 989)


def options(parser: argparse.ArgumentParser) -> None:
    """The device, the shape and how far batches grow."""
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--shape", default="vicuna7b", choices=tuple(_shapes.SHAPES))
    parser.add_argument("--largest", type=int, default=128, help="largest batch that is tried")
    parser.add_argument("--environments", type=int, default=64, help="environments that act at once")


def step_flops(model: _shapes.Blip2Emac, tokens: int) -> float:
    """Operations that a training step needs: 2 a weight and token forward, and as many for the gradient's way back."""
    layers = sum(p.numel() for p in model.llm_model.model.layers.parameters())
    return 2 * 2 * layers * tokens


def attempt(model: _shapes.Blip2Emac, phase: str, batch: int) -> dict[str, object] | None:
    """One kind of step at one batch, as a row of the table; None where memory does not suffice."""
    inputs = _shapes.samples(model, batch)
    steps: Mapping[str, Callable[[], torch.Tensor]] = {
        "dpo": lambda: model.dpo_forward(kept)["loss"],
        "bc": lambda: model(kept)["loss"],
        "plain dpo": lambda: _shapes.plain_dpo_loss(model, inputs),
    }
    try:
        kept = stored(model, inputs) if phase != "plain dpo" else inputs
        cost = _shapes.cost_of(model, steps[phase], repeats=2)
    except torch.OutOfMemoryError:
        model.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        return None
    row = {
        "what": phase,
        "batch": batch,
        "s": cost.seconds,
        "a second": batch / cost.seconds,
        "peak GB": cost.peak / 1e9,
    }
    if phase == "plain dpo":
        return row
    answers = _shapes.ANSWER_TOKENS - 1
    length = model.query_tokens.shape[1] + _shapes.PROMPT_TOKENS + answers * (2 if phase == "dpo" else 1)
    work = Work(phase, batch, _shapes.PROMPT_TOKENS, _shapes.ANSWER_TOKENS)
    predicted = sum(predict(_shapes.SHAPES[model.shape].model, work, model.device.type, optimizer=False).values())
    return row | {
        "utilisation": step_flops(model, batch * length) / cost.seconds / PEAK_FLOPS,
        "predicted GB": predicted / 1e9,
    }


def growing(model: _shapes.Blip2Emac, phase: str, first: int, largest: int) -> list[dict[str, object]]:
    """Rows for batches `first`, twice that, … until one does not fit."""
    rows, batch = [], first
    while batch <= largest and (row := attempt(model, phase, batch)) is not None:
        rows.append(row)
        batch *= 2
    return rows


def acting(model: _shapes.Blip2Emac, environments: int) -> list[dict[str, object]]:
    """Actions a second, all at once and one at a time."""
    samples = _shapes.samples(model, environments, tuple(range(40, 401, 24)))
    cuda, rows = model.device.type == "cuda", []
    few = min(environments, 8)
    for what, calls, count in (
        ("act at once", [range(environments)], environments),
        ("act one at a time", [[i] for i in range(few)], few),
    ):
        for _ in range(2):  # the first call warms up
            start = _shapes.clock(cuda)
            for part in calls:
                model.generate(rows_of(samples, part), **OPTIONS)
            seconds = _shapes.clock(cuda) - start
        rows.append({"what": what, "batch": len(calls[0]), "s": seconds / len(calls), "a second": count / seconds})
    return rows


def measure(device: str, shape: str, largest: int, environments: int) -> Result:
    """All of it on one model."""
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: no CUDA device; `--device cpu --shape nano --largest 2` runs the same code on a CPU")
    model = _shapes.build(shape, device)
    model.shape = shape
    dpo = growing(model, "dpo", min(4, largest), largest)
    plain = growing(model, "plain dpo", 1, min(largest, 16))
    cloning = [row for row in [attempt(model, "bc", min(128, largest))] if row]
    acts = acting(model.eval(), environments)
    best = {name: max(row["a second"] for row in rows) for name, rows in (("ours", dpo), ("plain", plain))}
    ratios = {
        "speedup": best["ours"] / best["plain"],
        "dpo_batch_4_gb": dpo[0]["peak GB"],
        "largest_dpo_batch": float(dpo[-1]["batch"]),
        "utilisation": max(row["utilisation"] for row in dpo + cloning),
        "batch_speedup": acts[0]["a second"] / acts[1]["a second"],
        "prediction_error": max(abs(row["predicted GB"] / row["peak GB"] - 1) for row in dpo + cloning),
    }
    targets = {"speedup": 4.0, "largest_dpo_batch": 32.0, "utilisation": 0.4, "batch_speedup": 8.0}
    return Result([*dpo, *plain, *cloning, *acts], ratios, targets if device == "cuda" else {})


if __name__ == "__main__":
    run("The model on an accelerator", measure, options)
