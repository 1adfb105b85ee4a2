"""The predicted peak of memory against the measured one, for models of the hub, each step in a process of its own.

    python benchmarks/hf_vlm_memory.py --json memory.json [--families llava --phases dpo --batches 4 --low-memory]

Models are random, of 20 to 40 million weights, and have adapters of rank 16 in the language model; prompts have 300
tokens of text beside the image's. The peak is the process's largest resident set during a step after the first, on a
CPU, without an optimiser (acting: during the second call). `worst_error` is the largest relative error of all rows.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import _shapes
import torch
from _bench import Result, run
from transformers import AutoModelForImageTextToText

from lavis.models import load_model
from lavis.models.hf_vlm import memory as hf_vlm_memory
from lavis.models.hf_vlm import tiny
from lavis.models.memory import Work, predict

FAMILIES = ("qwen2_5_vl", "idefics3", "llava")
PROMPT_TOKENS, ANSWER_TOKENS = 300, 10
WIDTH, LAYERS = 512, 6
FREEZE = {"adapters": ["vision"], "vision": ["language"], "both": []}


def make_folder(family: str, folder: Path) -> None:
    """A model 512 wide, of 6 layers, with a vision encoder 256 wide of 4 layers, and a vocabulary of 8,000."""
    config, processor = tiny.parts(family)
    text, vision = config.text_config, config.vision_config
    text.hidden_size, text.intermediate_size, text.num_hidden_layers = WIDTH, 1408, LAYERS
    text.num_attention_heads, text.num_key_value_heads, text.vocab_size = 8, 4, 8000
    text.head_dim = WIDTH // 8
    vision.hidden_size, vision.intermediate_size = 256, 1024
    if family == "qwen2_5_vl":
        text.layer_types = ["full_attention"] * LAYERS
        text.rope_parameters = {**text.rope_parameters, "mrope_section": [16, 8, 8]}
        vision.out_hidden_size, vision.depth, vision.num_heads = WIDTH, 4, 4
        processor.image_processor.size = {"shortest_edge": 56 * 56, "longest_edge": 281 * 281}
    else:
        vision.num_hidden_layers, vision.num_attention_heads = 4, 4
    AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    tiny.save_processor(processor, folder)


def step(section: dict[str, object], work: Work) -> _shapes.Cost:
    """What one step costs, with its gradients."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = load_model("hf_vlm", "default", options=section)
    questions = hf_vlm_memory.questions_of_work(model, work)
    if work.phase == "dpo":
        model.set_reference()
    peaks = []
    for _ in range(2):  # the first call also loads kernels: their memory is no step's
        before = _shapes.reset_peak(cuda=False)
        if work.phase == "generate":
            model.eval().write(questions, num_beams=work.beams, max_length=work.answer + 1, min_length=work.answer + 1)
        else:
            hf_vlm_memory.step(model, questions, work)
        peaks.append(_shapes.peak_bytes(cuda=False))
    return _shapes.Cost(0.0, peaks[-1], before, 0.0, [])


def options(parser: argparse.ArgumentParser) -> None:
    """What is measured."""
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=tiny.FAMILIES)
    parser.add_argument("--phases", nargs="+", default=["bc", "dpo"], choices=("bc", "dpo", "generate"))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--trains", default="adapters", choices=tuple(FREEZE), help="which part has adapters")
    parser.add_argument("--model", nargs="*", default=[], metavar="KEY=VALUE", help="more keys of the model: section")


def measure(
    families: Sequence[str], phases: Sequence[str], batches: Sequence[int], trains: str, model: Sequence[str]
) -> Result:
    """A row for every family, phase and batch."""
    from lavis.common.config import merged, plain, read_option

    more = plain(merged({}, *map(read_option, model)))
    rows, errors = [], []
    with tempfile.TemporaryDirectory(prefix="emac-memory-") as temporary:
        for family in families:
            folder = Path(temporary) / family
            make_folder(family, folder)
            section = {"arch": "hf_vlm", "path": str(folder), "freeze": FREEZE[trains], **more}
            for phase, batch in ((p, b) for p in phases for b in batches):
                work = Work(phase, batch, PROMPT_TOKENS, ANSWER_TOKENS, beams=3)
                cost = _shapes.measured(step, section, work)
                parts = predict(section, work, "cpu", optimizer=False)
                predicted = sum(parts.values())
                errors.append(abs(predicted / cost.peak - 1))
                rows.append(
                    {
                        "step": phase,
                        "family": family,
                        "batch": batch,
                        "predicted MiB": predicted / 2**20,
                        "measured MiB": cost.peak / 2**20,
                        "of it the step's": cost.added / 2**20,
                        "activations, predicted": parts["activations"] / 2**20,
                        "before, predicted": (predicted - parts["activations"]) / 2**20,
                        "predicted / measured": predicted / cost.peak,
                    }
                )
    return Result(rows, {"worst_error": max(errors)}, {})


if __name__ == "__main__":
    run("Peak of memory of models of the hub, predicted and measured", measure, options)
