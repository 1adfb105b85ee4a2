"""The two kinds of models behind one method, `answer(jobs) -> texts`.

`TransformersModel`: any image-text-to-text model of Transformers with a chat template, such as Qwen2-VL.
`EmacModel`: the project's own `Blip2Emac`, by the same policy object that training and evaluation use.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image

from policy_server.games.prompts import Question
from policy_server.settings import ModelSettings
from xrl_alignment.devices import pick_device

BLIP2_PREFIX = "blip2_emac:"


@dataclass(frozen=True)
class Job:
    """One request as a model sees it: RGB picture, question, sampling temperature (0: greedy), answer's tokens."""

    image: Image.Image
    question: Question
    temperature: float
    max_tokens: int


class VisionModel(Protocol):
    """A loaded model."""

    device: str
    bytes: int

    def answer(self, jobs: Sequence[Job]) -> list[str]:
        """One text for each job, in order; ValueError for a job that does not fit the model."""
        ...


def load_model(settings: ModelSettings) -> VisionModel:
    """Load what the settings name.

    Raises ValueError (a path or an option that cannot be used), OSError (no such model), ImportError (a package is
    missing); each says what to do.
    """
    if settings.kind == "blip2_emac" or settings.path.startswith(BLIP2_PREFIX):
        return EmacModel(settings)
    return TransformersModel(settings)


def expected_bytes(settings: ModelSettings) -> int:
    """The size of the weight files where they lie in a folder, else 0: known only after loading."""
    return sum(file.stat().st_size for file in Path(settings.path).glob("*.safetensors"))


class TransformersModel:
    """An image-text-to-text model with its processor. Weights are read from safetensors only, never unpickled."""

    def __init__(self, settings: ModelSettings) -> None:
        from transformers import AutoModelForImageTextToText, AutoProcessor

        device = pick_device(settings.device, "model.device")
        options: dict[str, Any] = {"dtype": _dtype(settings.dtype, device)}
        if settings.quantization != "none":
            options |= {"quantization_config": _quantization(settings.quantization), "device_map": {"": str(device)}}
        _check_source(settings.path)
        try:
            self.processor = AutoProcessor.from_pretrained(settings.path)
        except ImportError as error:
            raise ImportError(f"{settings.path}: its processor needs another package: {error}") from error
        model = AutoModelForImageTextToText.from_pretrained(settings.path, use_safetensors=True, **options)
        self.model = model.eval() if "device_map" in options else model.to(device).eval()
        self.processor.tokenizer.padding_side = "left"  # an answer begins where its prompt ends
        self.device = str(device)
        self.bytes = _size(self.model)
        self.top_p = settings.top_p

    @torch.inference_mode()
    def answer(self, jobs: Sequence[Job]) -> list[str]:
        """One text for each job: one call, each row with its own temperature and length."""
        from transformers import LogitsProcessorList, StoppingCriteriaList

        inputs = self.processor(
            text=[self._chat(job.question) for job in jobs],
            images=[job.image for job in jobs],
            padding=True,
            return_tensors="pt",
        ).to(self.device)
        start = inputs["input_ids"].shape[1]
        self._check_room(start, jobs)
        limits = torch.tensor([job.max_tokens for job in jobs], device=self.device)
        temperatures = torch.tensor([[job.temperature] for job in jobs], device=self.device)
        made = self.model.generate(
            **inputs,
            max_new_tokens=int(limits.max()),
            stopping_criteria=StoppingCriteriaList([lambda ids, scores, **_: ids.shape[1] - start >= limits]),
            logits_processor=LogitsProcessorList([lambda ids, scores: by_row(scores, temperatures)]),
            do_sample=bool((temperatures > 0).any()),
            temperature=1.0,
            top_p=self.top_p,
            top_k=0,
        )
        answers = [row[: job.max_tokens] for row, job in zip(made[:, start:], jobs, strict=True)]
        return self.processor.tokenizer.batch_decode(answers, skip_special_tokens=True)

    def _chat(self, question: Question) -> str:
        """The chat template's text with the picture before the question."""
        messages = [
            {"role": "system", "content": [{"type": "text", "text": question.instructions}]},
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question.text}]},
        ]
        return self.processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    def _check_room(self, prompt: int, jobs: Sequence[Job]) -> None:
        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        need = prompt + max(job.max_tokens for job in jobs)
        if limit and need > limit:
            raise ValueError(f"prompt, picture and answer need {need} tokens; the model has {limit} positions")


def by_row(scores: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """Logits (rows, vocabulary) divided by each row's temperature (rows, 1); at 0 only the best token is left."""
    best = torch.full_like(scores, -torch.inf).scatter_(1, scores.argmax(1, keepdim=True), 0.0)
    return torch.where(temperatures > 0, scores / temperatures.clamp(min=1e-4), best)


class EmacModel:
    """`Blip2Emac`, which reads ALFWorld's text as it was trained to. It decodes greedily: temperatures do not apply."""

    MAX_LENGTH = 32  # tokens of a command; the original counts a BOS among them

    def __init__(self, settings: ModelSettings) -> None:
        from xrl_alignment.assembly import load_student
        from xrl_alignment.policies import InProcessPolicy

        for key, default in (("quantization", "none"), ("dtype", "auto")):
            if getattr(settings, key) != default:
                raise ValueError(f"model.{key}: Blip2Emac is served in the precision it was trained in; leave it out")
        device = pick_device(settings.device, "model.device")
        model_type = settings.path.removeprefix(BLIP2_PREFIX)
        model, vis_processor = load_student({"model_type": model_type, **settings.options}, device)
        self.policy = InProcessPolicy(
            model=model, vis_processor=vis_processor, num_beams=1, max_length=self.MAX_LENGTH, min_length=1
        )
        self.device = str(device)
        self.bytes = _size(model)

    def answer(self, jobs: Sequence[Job]) -> list[str]:
        """One command for each job."""
        from xrl_alignment.policies import PolicyInput

        return self.policy.act([PolicyInput(job.question.text, np.asarray(job.image)) for job in jobs])


def _dtype(name: str, device: torch.device) -> torch.dtype | str:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    return getattr(torch, name)


def _quantization(name: str) -> Any:
    for package in ("bitsandbytes", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"model.quantization={name} needs {package}: pip install 'emac-plus[quantization]'")
    from transformers import BitsAndBytesConfig

    if name == "int8":
        # It warns in each layer of each step that 16 bits go into its product; that is what int8 means there.
        logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)


def _check_source(path: str) -> None:
    """Tell a mistyped folder from a hub id: both are just words with slashes."""
    folder = Path(path).expanduser()
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1
    if looks_local and not (folder / "config.json").is_file():
        raise ValueError(f"model.path={path}: no config.json in there; give a model's folder or a hub id")


def _size(model: torch.nn.Module) -> int:
    tensors = (*model.parameters(), *model.buffers())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
