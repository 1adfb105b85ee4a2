"""Greedy actions: the language model in vLLM against the same language model in this process.

    make vllm-env
    python benchmarks/engines.py --json engines.json
    python benchmarks/engines.py --device cuda --shape vicuna7b --prompts 64 [--url http://gpu2:8000/v1]

Three policies take turns with the same batches: `vllm` (an engine in a child process, or a server at `--url`),
`in_process` as users get it (with this project's decoder, `lavis/models/fast_llm`), and `transformers`, which differs
from `in_process` in one thing: Transformers' own `generate` writes the answers, with this project's attention. All get
images and prompts of 400 tokens and write exactly `--tokens` tokens each; all times include images, projection and
messages. Every timed batch has new images, so that vLLM has none of its prompts in the prefix cache. On a CPU vLLM
compiles the model and reads more prompts at a time than by default (`VLLM_ARGUMENTS`); on a GPU it does so by default.

`vllm_over_transformers` and `vllm_over_in_process` are ratios of actions per second. The target is for the first one.
The second one is what a user gains by `policy.name=vllm`; it is smaller, because this project's decoder is faster than
Transformers'. `equal_answers` is the share of answers that are equal in `vllm` and `in_process` (16 bits round
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

from alfworld_native.language.commands import normalise
from lavis.common.allocator import bound_kernel_cache, keep_freed_memory
from lavis.common.devices import autocast
from lavis.common.program import run_program
from lavis.models.student import Question
from lavis.processors.blip_processors import BlipImageEvalProcessor
from xrl_alignment.agents.policies.base import Policy, PolicyInput, process_images
from xrl_alignment.agents.policies.in_process import InProcessPolicy
from xrl_alignment.agents.policies.vllm.process import find_python
from xrl_alignment.builders.student import load_student, make_policy
from xrl_alignment.settings.policy import PolicyConfig

VLLM_ARGUMENTS = {
    "cpu": ["--no-enforce-eager", "--max-num-batched-tokens", "16384", "--no-enable-prefix-caching"],
    "cuda": [],
}
BACKBONE = {"llm_weights": "tiny/backbone.safetensors", "freeze_llm": True}


class TransformersPolicy(InProcessPolicy):
    """Runs the model in this process with Transformers' own `generate`."""

    def _act(self, batch: Sequence[PolicyInput]) -> list[str]:
        images = process_images(self.vis_processor, [item.image for item in batch])
        questions = [Question(item.prompt, (image,)) for item, image in zip(batch, images, strict=True)]
        tokenizer = self.model.llm_tokenizer
        with torch.no_grad(), autocast(self.model.device):
            embeds, mask = self.model.prompt_embeds(questions, room=self.max_length - 1)
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
    """Add options for the model, the amount of work, and the place of vLLM."""
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--shape", default="tiny", choices=("tiny", *_shapes.SHAPES), help="tiny: the project's own")
    parser.add_argument("--prompts", type=int, default=32, help="prompts in a batch")
    parser.add_argument("--tokens", type=int, default=12, help="tokens of each answer")
    parser.add_argument("--repeats", type=int, default=5, help="timed batches after the first")
    parser.add_argument("--url", default="", help="a running server, instead of an engine started here")
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
    """`repeats` batches of the same `count` prompts of 400 tokens (and image tokens), each with new images."""
    texts = _shapes.samples(model, count)["text_input"]
    random = np.random.default_rng(0)
    images = random.integers(0, 255, (repeats, count, 224, 224, 3), dtype=np.uint8)
    return [[PolicyInput(text, image) for text, image in zip(texts, part, strict=True)] for part in images]


def timed(policies: Mapping[str, Policy], work: Sequence[Sequence[PolicyInput]]) -> dict[str, tuple[float, list[str]]]:
    """For each policy: median seconds of a batch, without the first, and all answers. The policies take turns."""
    seconds = {name: [] for name in policies}
    answers = {name: [] for name in policies}
    for batch in work:
        for name, policy in policies.items():
            start = time.perf_counter()
            answers[name] += policy.act(batch)
            seconds[name].append(time.perf_counter() - start)
    return {name: (statistics.median(seconds[name][1:]), answers[name]) for name in policies}


def measure(device: str, shape: str, prompts: int, tokens: int, repeats: int, url: str, python: str) -> Result:
    """All policies on the same batches. InferenceEngineFault if there is no vLLM."""
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
