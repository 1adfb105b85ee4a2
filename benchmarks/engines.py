"""Greedy actions by vLLM against the same language model in this process.

    make vllm-env
    python benchmarks/engines.py --json engines.json
    python benchmarks/engines.py --device cuda --shape vicuna7b --prompts 64 [--url http://gpu2:8000/v1]

Three policies take turns at the same batches: `vllm`, an engine in a process of the program's own (or a server at
`--url`), `in_process` as users get it (this project's decoder, `lavis/models/fast_llm`), and
`transformers`, which differs from it in one thing: Transformers' own `generate` writes the batch's answers, with this
project's attention. All get pictures and prompts of 400 tokens and write exactly `--tokens` tokens each; pictures,
projection and messages are in all times.
Every timed batch has new pictures, so that vLLM has read none of it before. On a CPU vLLM compiles the model and reads
more prompts at a time than by default (`VLLM_ARGUMENTS`); on a GPU it does so by itself.

`vllm_over_transformers` and `vllm_over_in_process` are ratios of actions a second. The target is held against
Transformers; the other one is what a user gains by `policy.name=vllm`, which is less, because this project's decoder is
faster than Transformers' too. `equal_answers`: the share of answers in which vLLM and `in_process` agree (16 bits round
differently).
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

from lavis.common.allocator import bound_kernel_cache, keep_freed_memory
from lavis.processors.blip_processors import BlipImageEvalProcessor
from xrl_alignment.actions import normalise
from xrl_alignment.assembly import load_student, make_policy
from xrl_alignment.config import PolicyConfig, run_program
from xrl_alignment.policies import InProcessPolicy, Policy, PolicyInput, autocast, stack_images
from xrl_alignment.vllm_process import find_python

VLLM_ARGUMENTS = {
    "cpu": ["--no-enforce-eager", "--max-num-batched-tokens", "16384", "--no-enable-prefix-caching"],
    "cuda": [],
}
BACKBONE = {"llm_weights": "tiny/backbone.safetensors", "freeze_llm": True}


class TransformersPolicy(InProcessPolicy):
    """In this process, by Transformers' own `generate`."""

    def _act(self, batch: Sequence[PolicyInput]) -> list[str]:
        samples = {
            "image": stack_images(self.vis_processor, [item.image for item in batch]).to(self.model.device),
            "prompt": [item.prompt for item in batch],
        }
        tokenizer = self.model.llm_tokenizer
        with torch.no_grad(), autocast(self.model.device):
            embeds, mask = self.model.prompt_embeds(samples, room=self.max_length - 1)
            ids = self.model.llm_model.generate(
                inputs_embeds=embeds,
                attention_mask=mask,
                do_sample=False,
                min_new_tokens=self.min_length - 1,
                max_new_tokens=self.max_length - 1,
                eos_token_id=tokenizer.eos_id,
                pad_token_id=0,
            )
        return [normalise(tokenizer.decode([i or tokenizer.eos_id for i in row]).strip()) for row in ids.tolist()]


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
    bound_kernel_cache()  # memory as in evaluate.py and dagger_server.py
    keep_freed_memory()
    if not url:
        python = find_python(python)
    model, vis_processor = build(shape, device)
    work = batches(model, prompts, repeats + 1)
    length = {"num_beams": 1, "max_length": tokens + 1, "min_length": tokens + 1}  # they count a BOS
    vllm = {"name": "vllm", "base_urls": [url] if url else [], "vllm_python": python}
    vllm |= {} if url else {"vllm_args": VLLM_ARGUMENTS[device]}
    sections = {"in_process": PolicyConfig(**length), "vllm": PolicyConfig(**length, **vllm)}
    with ExitStack() as cleanup:
        policies = {name: make_policy(section, model, vis_processor, prompts) for name, section in sections.items()}
        for policy in policies.values():
            cleanup.callback(policy.close)
        policies["transformers"] = TransformersPolicy(
            model=model, vis_processor=vis_processor, max_batch=prompts, **length
        )
        found = timed(policies, work)
    (own, wanted), (served, got), (plain, _) = (found[name] for name in ("in_process", "vllm", "transformers"))
    rows = [
        {"engine": name, "shape": f"{shape}, {device}", "prompts": prompts, "s": s, "actions/s": prompts / s}
        for name, (s, _) in found.items()
    ]
    equal = sum(a == b for a, b in zip(wanted, got, strict=True)) / len(wanted)
    target = 3.0 if device == "cuda" else 1.5
    ratios = {"vllm_over_in_process": own / served, "vllm_over_transformers": plain / served, "equal_answers": equal}
    return Result(rows, ratios, {"vllm_over_transformers": target})


if __name__ == "__main__":
    run_program(lambda: run("Greedy actions: vLLM against this process", measure, options))
