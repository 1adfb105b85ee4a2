"""Everything that is to be known of the model on one accelerator, in one call of a few minutes.

    python benchmarks/gpu.py --json gpu.json                         # an H200; Vicuna-7B and EVA-CLIP-g, full shape
    python benchmarks/gpu.py --json gpu.json --parts plain act --limit 300           # some parts again, with more time
    python benchmarks/gpu.py --device cpu --shape nano --largest 2   # the same code on a CPU, tiny

Random weights, bfloat16; nothing is downloaded. Parts, each in a process of its own that ends after `--limit` seconds:

    dpo      DPO steps of batches 4, 8, … (memory, samples a second, utilisation of `PEAK_FLOPS`, what was predicted)
    first    DPO of 4 with images and reference yet to be computed; cloning at the paper scale's batch of 128
    plain    the plain baseline at batches 1, 2, …
    act      actions: all environments at once, 32 prompts of unlike length at once, one at a time

Each figure is printed and in the file as soon as it is there. A batch that does not fit is left out; a part that fails
or takes too long is named in the table and costs nothing but its own figures and the ratios that need them. The
inference engine at the same shape is measured by `benchmarks/engines.py`.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection

import _shapes
import torch
from _bench import Result, run
from dpo_step import stored
from generate import LENGTHS, OPTIONS, rows_of

from lavis.models.memory import Work, predict

PEAK_FLOPS = 790e12  # an H200's in bfloat16, as it is reached (the data sheet says 989)


Row = dict[str, object]
Send = Callable[[Row], None]


def options(parser: argparse.ArgumentParser) -> None:
    """The device, the shape, how far batches grow, how long a part may take."""
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--shape", default="vicuna7b", choices=tuple(_shapes.SHAPES))
    parser.add_argument("--largest", type=int, default=128, help="largest batch that is tried")
    parser.add_argument("--environments", type=int, default=64, help="environments that act at once")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=tuple(PARTS), help="what is measured")
    parser.add_argument("--limit", type=float, default=130, help="seconds for each part, building the model included")


# ---- in a part's process --------------------------------------------------------------------------------------------


def step_flops(model: _shapes.Blip2Emac, tokens: int) -> float:
    """Operations that a training step needs: 2 a weight and token forward, and as many for the gradient's way back."""
    layers = sum(p.numel() for p in model.llm_model.model.layers.parameters())
    return 2 * 2 * layers * tokens


def attempt(model: _shapes.Blip2Emac, phase: str, batch: int, send: Send) -> bool:
    """Measure and send one kind of step at one batch; False where memory does not suffice."""
    try:
        send(step_row(model, phase, batch))
        fits = True
    except torch.OutOfMemoryError as error:
        print(f"{phase}, batch {batch}: does not fit ({str(error).splitlines()[0]})", flush=True)
        fits = False
    # Behind the handler: while it runs, the exception keeps the step's tensors alive.
    model.zero_grad(set_to_none=True)
    gc.collect()
    torch.cuda.empty_cache()
    return fits


def step_row(model: _shapes.Blip2Emac, phase: str, batch: int) -> Row:
    """The table's row for a kind of step; torch.OutOfMemoryError where memory does not suffice."""
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
    return row


def growing(model: _shapes.Blip2Emac, phase: str, first: int, largest: int, send: Send) -> None:
    """Rows for batches `first`, twice that, … until one does not fit."""
    batch = first
    while batch <= largest and attempt(model, phase, batch, send):
        batch *= 2


def first_times(model: _shapes.Blip2Emac, largest: int, send: Send) -> None:
    """DPO where nothing is stored yet, and cloning."""
    attempt(model, "dpo, first time", min(4, largest), send)
    attempt(model, "bc", min(128, largest), send)


def acting(model: _shapes.Blip2Emac, environments: int, send: Send) -> None:
    """Actions a second: all environments at once, 32 prompts at once, and one at a time."""
    samples = _shapes.samples(model.eval(), environments, LENGTHS)
    cuda = model.device.type == "cuda"
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
        send({"what": what, "batch": len(calls[0]), "s": seconds / len(calls), "a second": count / seconds})


PARTS: Mapping[str, Callable[[_shapes.Blip2Emac, int, int, Send], None]] = {
    "dpo": lambda model, largest, environments, send: growing(model, "dpo", min(4, largest), largest, send),
    "first": lambda model, largest, environments, send: first_times(model, largest, send),
    "plain": lambda model, largest, environments, send: growing(model, "plain dpo", 1, min(largest, 16), send),
    "act": lambda model, largest, environments, send: acting(model, environments, send),
}


def part(name: str, device: str, shape: str, largest: int, environments: int, rows: Connection) -> None:
    """Build the model and measure one of `PARTS`; what it finds goes into `rows`."""
    if device == "cpu":
        torch.set_num_threads(1)
    model = _shapes.build(shape, device)
    model.shape = shape
    PARTS[name](model, largest, environments, rows.send)


# ---- in the program -------------------------------------------------------------------------------------------------


def rows_of_part(name: str, limit: float, *arguments: object) -> Iterator[Row]:
    """The rows of a part as they come, and one that says so where it failed or did not end in `limit` seconds."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=part, args=(name, *arguments, theirs), daemon=True)
    deadline = time.monotonic() + limit
    process.start()
    theirs.close()
    problem = f"not done after {limit:g} s"
    try:
        while ours.poll(max(0.0, deadline - time.monotonic())):
            yield ours.recv()
    except EOFError:
        process.join()
        problem = f"failed with exit code {process.exitcode}, see above" if process.exitcode else ""
    finally:
        process.kill()
        process.join()
    if problem:
        yield {"what": name, "problem": problem}


def shown(row: Row) -> Row:
    """The row, after it was printed."""
    print(
        ", ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items())
    )
    sys.stdout.flush()
    return row


def ratios_of(rows: Sequence[Row]) -> dict[str, float]:
    """The figures that are wanted, as far as the rows have them."""
    rows = [row for row in rows if "a second" in row]
    of = {name: [row for row in rows if row["what"] == name] for name in {row["what"] for row in rows}}
    best = {name: max(row["a second"] for row in group) for name, group in of.items()}
    ratios: dict[str, float] = {}
    if "dpo" in of:
        ratios["dpo_batch_4_gb"] = of["dpo"][0]["peak GB"]
        ratios["largest_dpo_batch"] = float(of["dpo"][-1]["batch"])
    if "dpo" in of and "plain dpo" in of:
        ratios["speedup"] = best["dpo"] / best["plain dpo"]
    if used := [row["utilisation"] for row in rows if "utilisation" in row]:
        ratios["utilisation"] = max(used)
    if errors := [abs(row["predicted GB"] / row["peak GB"] - 1) for row in rows if "predicted GB" in row]:
        ratios["prediction_error"] = max(errors)
    if "act, all environments" in best:
        ratios["actions_per_second"] = best["act, all environments"]
    if {"act, 32 at once", "act, one at a time"} <= best.keys():
        ratios["batch_speedup"] = best["act, 32 at once"] / best["act, one at a time"]
    return ratios


def measure(
    device: str, shape: str, largest: int, environments: int, parts: Sequence[str], limit: float
) -> Iterator[Result]:
    """All that is known so far, after every row."""
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: no CUDA device; `--device cpu --shape nano --largest 2` runs the same code on a CPU")
    targets = {"speedup": 4.0, "largest_dpo_batch": 32.0, "utilisation": 0.4, "batch_speedup": 8.0}
    rows: list[Row] = []
    for name in parts:
        for row in rows_of_part(name, limit, device, shape, largest, environments):
            rows.append(shown(row))
            yield Result(rows, ratios_of(rows), targets if device == "cuda" else {})


if __name__ == "__main__":
    run("The model on an accelerator", measure, options)
