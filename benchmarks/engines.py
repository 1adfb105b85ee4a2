"""Greedy actions by vLLM against the same language model in this process (Transformers' weights, this project's loop).

    make vllm-env
    python benchmarks/engines.py --json engines.json
    python benchmarks/engines.py --device cuda --shape vicuna7b --prompts 64 [--url http://gpu2:8000/v1]

`vllm_over_in_process`: actions a second over HTTP from one vLLM process on this machine, over actions a second of
`policy.name=in_process`. Both sides get pictures and prompts of 400 tokens and write exactly `--tokens` tokens each;
pictures, projection and messages are in both times. Every timed batch has new pictures, so that vLLM has read none of
it before. `equal_answers` is the share of answers in which both sides agree (they round differently in 16 bits).
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import _shapes
import numpy as np
import torch
from _bench import Result, run

from lavis.processors.blip_processors import BlipImageEvalProcessor
from xrl_alignment.assembly import load_student, make_policy
from xrl_alignment.config import PolicyConfig, run_program
from xrl_alignment.policies import Policy, PolicyInput
from xrl_alignment.vllm_server import find_python

BACKBONE = {"llm_weights": "tiny/backbone.safetensors", "freeze_llm": True}


def options(parser: argparse.ArgumentParser) -> None:
    """Which model, how much, and where vLLM is."""
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--shape", default="tiny", choices=("tiny", *_shapes.SHAPES), help="tiny: the project's own")
    parser.add_argument("--prompts", type=int, default=32, help="prompts in a batch")
    parser.add_argument("--tokens", type=int, default=12, help="tokens of each answer")
    parser.add_argument("--repeats", type=int, default=5, help="timed batches after the first")
    parser.add_argument("--url", default="", help="a server that runs already, instead of one started here")
    parser.add_argument(
        "--python",
        default=os.environ.get("EMAC_VLLM_PYTHON", ""),
        help="interpreter that has vLLM (default: this one, else that of `make vllm-env`)",
    )


def build(shape: str, device: str) -> tuple[torch.nn.Module, Callable]:
    """The model and its image processor."""
    if shape == "tiny":
        return load_student(BACKBONE, torch.device(device))
    model = _shapes.build(shape, device).eval()
    model.reference = None
    return model, BlipImageEvalProcessor(model.visual_encoder.config.image_size)


def batches(model: torch.nn.Module, count: int, repeats: int) -> list[list[PolicyInput]]:
    """`repeats` times the same `count` prompts of 400 tokens (image tokens beside them), with new pictures."""
    texts = _shapes.samples(model, count)["text_input"]
    random = np.random.default_rng(0)
    pictures = random.integers(0, 255, (repeats, count, 224, 224, 3), dtype=np.uint8)
    return [[PolicyInput(text, picture) for text, picture in zip(texts, part, strict=True)] for part in pictures]


def timed(policies: Mapping[str, Policy], work: Sequence[Sequence[PolicyInput]]) -> dict[str, tuple[float, list[str]]]:
    """Of each policy: median seconds of a batch after the first, and all answers. They take turns."""
    seconds = {name: [] for name in policies}
    answers = {name: [] for name in policies}
    for batch in work:
        for name, policy in policies.items():
            start = time.perf_counter()
            answers[name] += policy.act(batch)
            seconds[name].append(time.perf_counter() - start)
    return {name: (statistics.median(seconds[name][1:]), answers[name]) for name in policies}


def measure(device: str, shape: str, prompts: int, tokens: int, repeats: int, url: str, python: str) -> Result:
    """Both sides on the same batches. EngineFault where there is no vLLM."""
    if not url:
        python = find_python(python)
    if device == "cpu":
        torch.set_num_threads(1)
    model, vis_processor = build(shape, device)
    work = batches(model, prompts, repeats + 1)
    length = {"num_beams": 1, "max_length": tokens + 1, "min_length": tokens + 1}  # they count a BOS
    vllm = {"name": "vllm", "base_urls": [url] if url else [], "vllm_python": python}
    sections = {"in_process": PolicyConfig(**length), "vllm": PolicyConfig(**length, **vllm)}
    with ExitStack() as cleanup:
        policies = {name: make_policy(section, model, vis_processor, prompts) for name, section in sections.items()}
        for policy in policies.values():
            cleanup.callback(policy.close)
        found = timed(policies, work)
    (plain, wanted), (served, got) = found["in_process"], found["vllm"]
    rows = [
        {"engine": name, "shape": f"{shape}, {device}", "prompts": prompts, "s": s, "actions/s": prompts / s}
        for name, (s, _) in found.items()
    ]
    equal = sum(a == b for a, b in zip(wanted, got, strict=True)) / len(wanted)
    target = 3.0 if device == "cuda" else 1.5
    return Result(
        rows, {"vllm_over_in_process": plain / served, "equal_answers": equal}, {"vllm_over_in_process": target}
    )


if __name__ == "__main__":
    run_program(lambda: run("Greedy actions: vLLM against this process", measure, options))
