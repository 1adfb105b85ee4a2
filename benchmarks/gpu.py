"""Everything that is to be known of the model on one accelerator, in one call of a few minutes.

    python benchmarks/gpu.py --json gpu.json                         # an H200; Vicuna-7B and EVA-CLIP-g, full shape
    python benchmarks/gpu.py --device cpu --shape nano --largest 2   # the same code on a CPU, tiny

Random weights, bfloat16. Measures: DPO steps of 4 (memory, samples a second; also with images and reference yet to be
computed), the plain baseline and this project's step each at its own best batch, the largest DPO batch, cloning at the
paper's batch of 128, utilisation of the accelerator (`PEAK_FLOPS`), actions a second at 64 environments, a batch of 32
prompts of unlike length against one at a time, and how far the prediction of memory is off. Each figure is printed when
it is there; a batch that does not fit is left out, and so is a ratio without its sides. The inference engine at the
same shape is measured by `benchmarks/engines.py`.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Mapping

import _shapes
import torch
from _bench import Result, run
from dpo_step import stored
from generate import LENGTHS, OPTIONS, rows_of

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
    """One kind of step at one batch, as a row of the table, which is printed; None where memory does not suffice."""
    try:
        row = step_row(model, phase, batch)
    except torch.OutOfMemoryError as error:
        print(f"{phase}, batch {batch}: does not fit ({str(error).splitlines()[0]})", flush=True)
        row = None
    # Behind the handler: while it runs, the exception keeps the step's tensors alive.
    model.zero_grad(set_to_none=True)
    gc.collect()
    torch.cuda.empty_cache()
    return row


def step_row(model: _shapes.Blip2Emac, phase: str, batch: int) -> dict[str, object]:
    """As `attempt`; torch.OutOfMemoryError where memory does not suffice."""
    inputs = _shapes.samples(model, batch)
    kept = stored(model, inputs) if phase in ("dpo", "bc") else inputs
    steps: Mapping[str, Callable[[], torch.Tensor]] = {
        "dpo": lambda: model.dpo_forward(kept)["loss"],
        "dpo, first time": lambda: model.dpo_forward(inputs)["loss"],
        "bc": lambda: model(kept)["loss"],
        "plain dpo": lambda: _shapes.plain_dpo_loss(model, inputs),
    }
    cost = _shapes.cost_of(model, steps[phase], repeats=2)
    row = {
        "what": phase,
        "batch": batch,
        "s": cost.seconds,
        "a second": batch / cost.seconds,
        "peak GB": cost.peak / 1e9,
    }
    if phase != "plain dpo":
        name, answers = phase.split(",")[0], _shapes.ANSWER_TOKENS - 1
        length = model.query_tokens.shape[1] + _shapes.PROMPT_TOKENS + answers * (2 if name == "dpo" else 1)
        work = Work(name, batch, _shapes.PROMPT_TOKENS, _shapes.ANSWER_TOKENS, stored=phase == name)
        predicted = sum(predict(_shapes.SHAPES[model.shape].model, work, model.device.type, optimizer=False).values())
        row["predicted GB"] = predicted / 1e9
        if phase == name:
            row["utilisation"] = step_flops(model, batch * length) / cost.seconds / PEAK_FLOPS
    return shown(row)


def shown(row: dict[str, object]) -> dict[str, object]:
    """The row, after it was printed."""
    print(
        ", ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items())
    )
    sys.stdout.flush()
    return row


def growing(model: _shapes.Blip2Emac, phase: str, first: int, largest: int) -> list[dict[str, object]]:
    """Rows for batches `first`, twice that, … until one does not fit."""
    rows, batch = [], first
    while batch <= largest and (row := attempt(model, phase, batch)) is not None:
        rows.append(row)
        batch *= 2
    return rows


def acting(model: _shapes.Blip2Emac, environments: int) -> list[dict[str, object]]:
    """Actions a second: all environments at once, 32 prompts at once, and one at a time."""
    samples = _shapes.samples(model, environments, LENGTHS)
    cuda, rows = model.device.type == "cuda", []
    some, few = min(environments, 32), min(environments, len(LENGTHS))  # every length once
    for what, calls in (
        ("act, all environments", [range(environments)]),
        ("act, 32 at once", [range(some)]),
        ("act, one at a time", [[i] for i in range(few)]),
    ):
        for _ in range(2):  # the first call warms up
            start = _shapes.clock(cuda)
            for part in calls:
                model.generate(rows_of(samples, part), **OPTIONS)
            seconds = _shapes.clock(cuda) - start
        count = sum(map(len, calls))
        rows.append(
            shown({"what": what, "batch": len(calls[0]), "s": seconds / len(calls), "a second": count / seconds})
        )
    return rows


def ratios_of(rows: list[dict[str, object]]) -> dict[str, float]:
    """The figures that are wanted, as far as the rows have them."""
    of = {name: [row for row in rows if row["what"] == name] for name in {row["what"] for row in rows}}
    best = {name: max(row["a second"] for row in group) for name, group in of.items()}
    ratios: dict[str, float] = {}
    if "dpo" in of:
        ratios["dpo_batch_4_gb"] = of["dpo"][0]["peak GB"]
        ratios["largest_dpo_batch"] = float(of["dpo"][-1]["batch"])
    if "dpo" in of and "plain dpo" in of:
        ratios["speedup"] = best["dpo"] / best["plain dpo"]
    used = [row["utilisation"] for row in rows if "utilisation" in row]
    if used:
        ratios["utilisation"] = max(used)
        ratios["prediction_error"] = max(
            abs(row["predicted GB"] / row["peak GB"] - 1) for row in rows if "predicted GB" in row
        )
    ratios["actions_per_second"] = best["act, all environments"]
    ratios["batch_speedup"] = best["act, 32 at once"] / best["act, one at a time"]
    return ratios


def measure(device: str, shape: str, largest: int, environments: int) -> Result:
    """All of it on one model."""
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: no CUDA device; `--device cpu --shape nano --largest 2` runs the same code on a CPU")
    torch.set_num_threads(1 if device == "cpu" else torch.get_num_threads())
    model = _shapes.build(shape, device)
    model.shape = shape
    rows = growing(model, "dpo", min(4, largest), largest)
    rows += filter(None, [attempt(model, "dpo, first time", min(4, largest)), attempt(model, "bc", min(128, largest))])
    rows += growing(model, "plain dpo", 1, min(largest, 16))
    rows += acting(model.eval(), environments)
    targets = {"speedup": 4.0, "largest_dpo_batch": 32.0, "utilisation": 0.4, "batch_speedup": 8.0}
    return Result(rows, ratios_of(rows), targets if device == "cuda" else {})


if __name__ == "__main__":
    run("The model on an accelerator", measure, options)
