"""Predicts the peak of a step of `HfVlm`, whatever its family: the step itself runs, on tensors without numbers.

`lavis.models.memory` is the program. Config and processor are read from the folder or from the hub's cache on this
machine; weights are neither read nor made, and nothing is downloaded. Questions have black frames of ALFWorld's size
and a text of `Work.prompt` tokens; tokens of images and of the chat template come on top, up to `model.max_txt_len`.

What is counted is what torch's operators make (`shadows.py`). Not in it: what a kernel takes while it runs, and what
bitsandbytes does, except for the numbers of one layer that it makes of 4 or 8 bits. A device's step is counted with the
CPU's operators, and attention that keeps no scores.

Shapes: N questions.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import nn
from transformers import AutoModelForImageTextToText

from lavis.common.devices import mixed_precision
from lavis.common.errors import ConfigError, EmacError, first_sentence
from lavis.models.hf_vlm import loading
from lavis.models.hf_vlm.chat import ALIGNED, CROSS_MASK, FRAME, Chat, Inputs
from lavis.models.hf_vlm.hf_vlm import CONSTRUCTED, HfVlm
from lavis.models.hf_vlm.options import amp_of, checked_options
from lavis.models.hf_vlm.shadows import Bytes, without_numbers
from lavis.models.student import Question

if TYPE_CHECKING:
    from lavis.models.memory import Work

# Bytes of a quantised weight with its scales: NF4 has one byte for 64 weights and 4 for 64 * 256, int8 4 for a row.
_NF4, _INT8 = 0.5 + 1 / 64 + 4 / (64 * 256), 1.0
# Holes that glibc's heap leaves between live activations, as a share of these: measured (`benchmarks/hf_vlm_memory.py`)
# 0.7 to 0.85, 1.4 to 1.75 with `model.low_memory`. With MALLOC_MMAP_THRESHOLD_=65536, which is slow, there are none:
# 505 MiB were measured for 504 counted, and 403 for 402.
CPU_HOLES, CPU_HOLES_RECOMPUTING = 0.75, 1.6
_WORD = "go "


class _Traced(HfVlm):
    """The student with the mixed precision that it would have on another device."""

    precision: torch.dtype | None = None

    def maybe_autocast(self) -> AbstractContextManager:
        """Autocast to `precision`, by the CPU's rules: a shadow says that it is on the CPU."""
        return nullcontext() if self.precision is None else torch.autocast("cpu", dtype=self.precision)


def predict(model: Mapping[str, object], work: Work, device: str, *, optimizer: bool = True) -> dict[str, int]:
    """Bytes at the peak of a step by purpose, without what a process has before it; their sum is the peak.

    `model` is a `model:` section, `device` "cpu" or "cuda". With the `optimizer` also AdamW's two states of what
    trains. ConfigError if the config cannot be read, or the network does what cannot be done without numbers.
    """
    options = checked_options(model)
    student = skeleton(options, on_cpu=device == "cpu")
    # What the hub's classes do cannot be foreseen; a bug of ours would be seen in the tests of all families.
    try:
        return _predicted(student, options, work, device, optimizer=optimizer)
    except EmacError:
        raise
    except Exception as error:
        kind = student.base.config.model_type
        raise ConfigError(
            f"the memory of a {kind} cannot be predicted, for its code needs numbers ({first_sentence(error)}): "
            "measure a step with run.batch_size=1"
        ) from error


def skeleton(options: Mapping[str, Any], *, on_cpu: bool) -> _Traced:
    """The student on torch's meta device, in the dtypes that it has on a CPU or on an accelerator.

    ConfigError if config or processor are not on this machine.
    """
    path = str(options["path"])
    config = loading.load_config(path, download=False)
    chat = Chat(
        loading.load_processor(path, config, download=False),
        config,
        images=options["images"],
        longest=options["max_txt_len"],
        image_last=options["image_last"],
    )
    dtype = getattr(torch, options["dtype"])
    quantised = options["quantization"] != "none"
    with torch.device("meta"):
        vlm = AutoModelForImageTextToText.from_config(config)
        vlm.to(torch.float32 if on_cpu and not quantised else dtype)  # `load_model` makes float32 of all on a CPU
        student = _Traced(
            vlm=vlm,
            chat=chat,
            sources={"vision": path, "language": path},
            **{name: options[name] for name in CONSTRUCTED},
        )
    amp = getattr(torch, amp_of(options) or "float32")
    if on_cpu and not quantised and amp == torch.float16 == dtype:
        amp = torch.float32  # see `HfVlm.float`
    student.precision = mixed_precision(torch.device("cpu" if on_cpu else "meta"), amp)
    return student


def _predicted(
    student: _Traced, options: Mapping[str, Any], work: Work, device: str, *, optimizer: bool
) -> dict[str, int]:
    trains = sum(p.numel() for p in student.parameters() if p.requires_grad)
    parts = _weights(student, options["quantization"])
    # Adapters that change nothing need no copy as reference: it is the base without them.
    starts_from_base = options["lora_rank"] and not (options["pretrained"] or options["ref_pretrained"])
    if work.phase == "dpo":
        parts["reference"] = 0 if starts_from_base else sum(p.nbytes for p in student.parameters() if p.requires_grad)
    if work.phase != "generate":
        parts["gradients"] = sum(p.nbytes for p in student.parameters() if p.requires_grad)
        if optimizer:
            parts["optimizer"] = 8 * trains  # AdamW: two moments in float32
    questions = questions_of_work(student, work)
    with Bytes() as counted:
        without_numbers(student)
        if work.phase == "generate":
            student.chat.end_id = max(1, student.chat.end_id)  # 0 is what shadows choose: no answer ends early
            before = counted.forget_peak()
            # Beam search reads each question `beams` times from the beginning. It cannot run without numbers, by which
            # it ends. Greedy search over so many rows takes the same but for a few scores of each word.
            student.write(questions * work.beams, num_beams=1, max_length=work.answer + 1)
        else:
            if work.phase == "dpo":
                student.set_reference()
            for weight in student.parameters():  # of the steps before, whose gradients are added up
                weight.grad = torch.zeros_like(weight) if weight.requires_grad else None
            before = counted.forget_peak()
            step(student, questions, work)
    parts["activations"] = counted.peak - before
    if device == "cpu":
        share = CPU_HOLES_RECOMPUTING if options["low_memory"] and work.phase != "generate" else CPU_HOLES
        parts["holes in the heap"] = int(share * parts["activations"])
    return parts


def _weights(student: HfVlm, quantization: str) -> dict[str, int]:
    """Bytes of weights and buffers; if weights are quantised, also of one layer's numbers as it computes with them."""
    own = [*student.parameters(), *student.buffers()]
    if quantization == "none":
        return {"weights": sum(value.nbytes for value in own)}
    last = student.base.get_output_embeddings()
    linear = [m.weight for m in student.base.modules() if isinstance(m, nn.Linear) and m is not last]
    packed = [weight for weight in linear if not weight.requires_grad]  # adapters are linear layers, too
    kept = sum(value.nbytes for value in own) - sum(weight.nbytes for weight in packed)
    small = sum(
        int(w.numel() * _NF4) if quantization == "4bit" else int(w.numel() * _INT8) + 4 * w.shape[0] for w in packed
    )
    largest = max((weight.nbytes for weight in packed), default=0)
    return {"weights": kept + small, "one layer out of its quantisation": largest}


def questions_of_work(student: HfVlm, work: Work) -> list[Question]:
    """N equal questions; answers of any words have `work.answer` tokens."""
    chat = student.chat
    frames = [Image.new("RGB", FRAME)] * chat.images
    inputs = chat.read(Question("x", frames))
    more = min(work.prompt, chat.longest - inputs["input_ids"].shape[1])
    (word, *_) = chat.encode(_WORD)
    longer: Inputs = dict(inputs)
    for key in [key for key in ALIGNED if key in inputs]:
        filling = {"input_ids": word, "attention_mask": 1}.get(key, 0)
        longer[key] = torch.cat([inputs[key], inputs[key].new_full((1, more), filling)], dim=1)
    if CROSS_MASK in inputs:
        longer[CROSS_MASK] = torch.cat([inputs[CROSS_MASK], inputs[CROSS_MASK][:, -1:].expand(-1, more, -1, -1)], dim=1)
    student.max_output_txt_len = work.answer
    return [Question("x", frames, encoded=longer)] * work.batch


def step(student: HfVlm, questions: list[Question], work: Work) -> None:
    """Forward and backward pass of a training step."""
    answers = [_WORD * work.answer] * work.batch
    samples = {
        "encoded": [question.encoded for question in questions],
        "text_input": ["x"] * work.batch,
        **dict.fromkeys(("text_output", "text_output_pos", "text_output_neg"), answers),
    }
    student.train().losses(samples, work.phase).loss.backward()
