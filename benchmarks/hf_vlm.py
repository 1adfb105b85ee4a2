"""A DPO step of a vision-language model of the hub, here and in TRL's DPOTrainer: same model, adapters and pairs.

    python benchmarks/hf_vlm.py --json hf_vlm.json [--batch 4 --steps 5]

The model is a random Qwen2.5-VL of a few million weights; prompts have 100 image tokens and some 250 of text, answers a
few. Each side runs in a process of its own, reads images and texts, computes the loss and its gradient, and makes an
update. The reference policy is the adapters as they were before training, which TRL (1.16) copies under the name "ref";
then the policy's adapters are moved, the same on every side. TRL computes the reference in each step, for it refuses
to precompute it for images; here its log-probabilities are cached (`cached`), or computed, too (`computed`). The other
difference: TRL puts the chosen and the rejected answer into rows of their own, so each prompt is computed twice.

Without TRL (it is no dependency) the other side is a plain PyTorch step in the same form: rows for both answers, and a
second model as reference. `same_loss` is the largest difference of losses in the first step. Memory is what the steps
add to the process, at its peak.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib.util
import multiprocessing
import queue
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from _bench import Result, run
from PIL import Image
from torch import Tensor
from transformers import AutoModelForImageTextToText, Qwen2_5_VLProcessor

from lavis.models import HfVlm, load_model
from lavis.models.hf_vlm import tiny
from lavis.models.references import ReferenceLogps

BETA = 0.1
SEEN = "> go to shelf 1\nYou arrive at shelf 1. On the shelf 1, you see a mug 1, a book 2, and a cd 3.\n"
SIDES = ("cached", "computed", "plain", "trl")


def make_folder(folder: str) -> None:
    """A Qwen2.5-VL, 256 wide, of 6 layers, with 100 tokens an image."""
    config, processor = tiny.parts("qwen2_5_vl")
    text, vision = config.text_config, config.vision_config
    text.hidden_size, text.intermediate_size, text.num_hidden_layers = 256, 1024, 6
    text.layer_types = ["full_attention"] * 6
    text.rope_parameters = {**text.rope_parameters, "mrope_section": [16, 8, 8]}
    vision.hidden_size, vision.intermediate_size, vision.out_hidden_size, vision.depth = 128, 512, 256, 4
    processor.image_processor.size = {"shortest_edge": 56 * 56, "longest_edge": 281 * 281}
    # Without the line's end behind an answer's end, which TRL would learn and we do not.
    processor.chat_template = processor.chat_template.replace("<|im_end|>\n", "<|im_end|>")
    torch.manual_seed(0)
    AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    tiny.save_processor(processor, Path(folder))


def pairs(batch: int) -> dict[str, list]:
    """LAVIS's batch; prompts differ in length."""
    random = np.random.default_rng(0)
    frames = [random.integers(0, 256, (300, 300, 3), dtype=np.uint8) for _ in range(batch)]
    prompts = [f"Your task is to: put a mug in desk {n}.\n{SEEN * (8 + n)}>" for n in range(batch)]
    chosen, rejected = ["take mug 1 from shelf 1"] * batch, [f"go to shelf {n + 2}" for n in range(batch)]
    return {"image": frames, "text_input": prompts, "text_output_pos": chosen, "text_output_neg": rejected}


def student(folder: str) -> HfVlm:
    """Ours, its reference the adapters as they are; DPO alone, on summed log-probabilities, as TRL's."""
    options = {"path": folder, "lora_rank": 16, "avg_log_probs": False, "mix_ratio": 0.0}
    model: Any = load_model("hf_vlm", "default", options=options)
    model.dpo_beta = BETA
    move_adapters(model, seed=1)
    model.set_reference()
    return model


@torch.no_grad()
def move_adapters(model: HfVlm, seed: int) -> None:
    """Add noise to the policy's adapters (peft's `default`, beside which TRL puts its reference)."""
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if ".lora_" in name and ".default." in name:
            parameter.add_(torch.randn_like(parameter) * 0.02)


def step_of(side: str, model: HfVlm, batch: dict[str, list]) -> Callable[[], Tensor]:
    """The loss of one step of a side, whose policy has moved away from the reference."""
    if side in ("cached", "computed"):
        move_adapters(model, seed=2)
        cache = ReferenceLogps(model)

        def ours() -> Tensor:
            samples: dict[str, Any] = dict(batch)
            if side == "cached":
                cache.add_to(samples, [("shard", n) for n in range(len(batch["image"]))])
            return model.losses(samples, "dpo").loss

        if side == "cached":
            ours()  # the first draw of these transitions fills the cache
        return ours
    loss = _trl(model, batch) if side == "trl" else _plain(model, batch)  # these copy the reference first
    move_adapters(model, seed=2)
    return loss


def _plain(model: HfVlm, batch: dict[str, list]) -> Callable[[], Tensor]:
    """Rows of prompt and answer, for both answers, through the policy and through a second model."""
    policy = model.base
    reference = copy.deepcopy(model.vlm).requires_grad_(False)
    processor, end = model.chat.processor, "<|im_end|>"
    answers = [*batch["text_output_pos"], *batch["text_output_neg"]]
    prompts = [model.chat._write(text, 1) for text in batch["text_input"]] * 2  # the template, as everybody applies it
    images = [[Image.fromarray(frame)] for frame in batch["image"]] * 2

    def loss() -> Tensor:
        texts = [prompt + answer + end for prompt, answer in zip(prompts, answers, strict=True)]
        inputs = processor(text=texts, images=images, padding=True, padding_side="right", return_tensors="pt")
        lengths = [model.answer_tokens(answer) for answer in answers]

        def logps(network: Any) -> Tensor:
            logits = network(**inputs).logits[:, :-1].log_softmax(-1)
            taken = logits.gather(2, inputs["input_ids"][:, 1:, None])[..., 0]
            ends = inputs["attention_mask"].sum(1) - 1
            rows = zip(range(len(answers)), ends, lengths, strict=True)
            return torch.stack([taken[row, end - length : end].sum() for row, end, length in rows]).view(2, -1)

        with torch.no_grad():
            known = logps(reference)
        chosen, rejected = logps(policy) - known
        return -F.logsigmoid(BETA * (chosen - rejected)).mean()

    return loss


def _trl(model: HfVlm, batch: dict[str, list]) -> Callable[[], Tensor]:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    def said(role: str, text: str) -> list[dict[str, str]]:
        return [{"role": role, "content": text}]

    rows = [
        {
            "images": [Image.fromarray(frame)],
            "prompt": said("user", prompt),
            "chosen": said("assistant", chosen),
            "rejected": said("assistant", rejected),
        }
        for frame, prompt, chosen, rejected in zip(*batch.values(), strict=True)
    ]
    settings = DPOConfig(
        output_dir=tempfile.mkdtemp(),
        beta=BETA,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_length=None,
        report_to="none",
        per_device_train_batch_size=len(rows),
        remove_unused_columns=False,
    )
    # TRL hashes its processor by value, which a class made at run time does not survive: the original's, same parts.
    processor = Qwen2_5_VLProcessor.__new__(Qwen2_5_VLProcessor)
    processor.__dict__.update(vars(model.chat.processor))
    trainer = DPOTrainer(
        model=model.vlm, args=settings, train_dataset=Dataset.from_list(rows), processing_class=processor
    )
    examples = [trainer.train_dataset[n] for n in range(len(rows))]
    return lambda: trainer.compute_loss(trainer.model, trainer.data_collator(copy.deepcopy(examples)))


def measured(side: str, folder: str, batch: int, steps: int, answer: Any) -> None:
    """Runs in a child: puts the first loss, seconds of a step (the median), and bytes that the steps add."""
    torch.set_num_threads(1)
    model = student(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step = step_of(side, model, pairs(batch))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.0)
    losses, seconds = [], []
    for _ in range(steps + 1):
        start = time.perf_counter()
        loss = step()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
        losses.append(loss.item())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer.put({"side": side, "loss": losses[0], "s": sorted(seconds[1:])[steps // 2], "mib": (peak - before) / 1024})


def measure(batch: int, steps: int) -> Result:
    """Every side in a process of its own."""
    sides = [side for side in SIDES if side != "trl" or importlib.util.find_spec("trl")]
    context = multiprocessing.get_context("spawn")
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        make_folder(folder)
        for side in sides:
            answer = context.Queue()
            child = context.Process(target=measured, args=(side, folder, batch, steps, answer))
            child.start()
            while side not in found and (child.is_alive() or not answer.empty()):
                with contextlib.suppress(queue.Empty):
                    found[side] = answer.get(timeout=1)
            child.join()
            if child.exitcode:
                raise RuntimeError(f"the side {side} failed")
    other = found[sides[-1]]
    ratios = {
        "cached_speedup": other["s"] / found["cached"]["s"],
        "computed_speedup": other["s"] / found["computed"]["s"],
        "memory_saving": other["mib"] / found["cached"]["mib"],
        "same_loss": max(abs(row["loss"] - found["cached"]["loss"]) for row in found.values()),
    }
    return Result(list(found.values()), ratios, {"cached_speedup": 1.5, "memory_saving": 1.0})


def options(parser: argparse.ArgumentParser) -> None:
    """The benchmark's own options."""
    parser.add_argument("--batch", type=int, default=4, help="pairs in a step")
    parser.add_argument("--steps", type=int, default=5)


if __name__ == "__main__":
    run("A DPO step of a model of the hub, against TRL's", measure, options)
