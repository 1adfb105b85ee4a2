"""Any image-text-to-text model of Transformers with a chat template, such as Qwen2-VL."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lavis.common.devices import pick_device
from lavis.common.errors import ConfigError, MissingExtraError
from policy_server.models.vision_model import (
    ChatAnswer,
    ChatJob,
    ChatTurn,
    ModelJob,
    ModelLoadError,
    tensor_bytes,
    until_stop,
)
from policy_server.settings import ModelSettings

if TYPE_CHECKING:
    from transformers import BitsAndBytesConfig


class TransformersModel:
    """An image-text-to-text model with its processor.

    Weights come from safetensors files only. Nothing is unpickled, and code from the model's folder never runs.
    """

    def __init__(self, settings: ModelSettings) -> None:
        """Load processor and weights.

        Raises ConfigError (a setting that cannot be used), ModelLoadError (no such model, or one of another kind),
        MissingExtraError (a package is missing).
        """
        device = pick_device(settings.device, "model.device")
        # "auto": the dtype that the weights are stored in. On a CPU float32, for many have no instructions for half
        # precision.
        auto = torch.float32 if device.type == "cpu" else "auto"
        options: dict[str, Any] = {"dtype": auto if settings.dtype == "auto" else getattr(torch, settings.dtype)}
        if settings.quantization != "none":
            options |= {"quantization_config": _quantization(settings.quantization), "device_map": {"": str(device)}}
        # A folder without a model is refused before Transformers looks for a hub model of that name.
        path = os.path.expanduser(settings.path)
        looks_local = settings.path.startswith((".", "/", "~")) or settings.path.count("/") > 1
        if looks_local and not (Path(path) / "config.json").is_file():
            raise ConfigError(f"model.path={settings.path}: no config.json in there; give a model's folder or a hub id")
        self.processor, model = _load(path, options)
        self.model = model.eval() if "device_map" in options else model.to(device).eval()
        # Rows of a batch have prompts of different lengths; with padding on the left all answers begin at one column.
        self.processor.tokenizer.padding_side = "left"
        self.device = str(device)
        self.bytes = tensor_bytes(self.model)
        self.top_p = settings.top_p
        added = self.processor.tokenizer.added_tokens_decoder.values()
        image = getattr(self.processor, "image_token", None) or ""
        self._special = {image, *(str(token) for token in added if token.special)} - {""}

    def answer(self, jobs: Sequence[ModelJob]) -> list[str]:
        """One text for each job, from one `generate` call; each row has its own temperature and length.

        Sampling is nucleus sampling (Holtzman et al. 2020) with `top_p`. Raises ConfigError if prompt and answer need
        more positions than the model has.
        """
        asked = [
            ChatJob(
                (ChatTurn("system", (job.prompt.instructions,)), ChatTurn("user", (job.image, job.prompt.text))),
                job.temperature,
                job.max_tokens,
            )
            for job in jobs
        ]
        return [answer.text for answer in self._generate(asked, self.top_p)]

    def chat(self, jobs: Sequence[ChatJob]) -> list[ChatAnswer]:
        """The next message of each conversation. Raises ConfigError as `answer`, and if there is no chat template."""
        # One call has one `top_p`, and either images or none: processors take no list in which some rows have images.
        ways = [(job.top_p or self.top_p, any(turn.images for turn in job.turns)) for job in jobs]
        answers: dict[int, ChatAnswer] = {}
        for way in dict.fromkeys(ways):
            rows = [row for row, own in enumerate(ways) if own == way]
            answers |= zip(rows, self._generate([jobs[row] for row in rows], way[0]), strict=True)
        return [answers[row] for row in range(len(jobs))]

    @torch.inference_mode()
    def _generate(self, jobs: Sequence[ChatJob], top_p: float) -> list[ChatAnswer]:
        """One `generate` call for jobs that all have images, or all have none."""
        from transformers import LogitsProcessorList, StoppingCriteriaList

        images = [[image for turn in job.turns for image in turn.images] for job in jobs]
        inputs = self.processor(
            text=[self._written(job) for job in jobs],
            images=images if any(images) else None,
            padding=True,
            return_tensors="pt",
        ).to(self.device)
        start = inputs["input_ids"].shape[1]
        # Prompt and answer must fit into the positions that the model has.
        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        need = start + max(job.max_tokens for job in jobs)
        if limit and need > limit:
            raise ConfigError(f"prompt, image and answer need {need} tokens; the model has {limit} positions")
        limits = torch.tensor([job.max_tokens for job in jobs], device=self.device)  # (rows,)
        temperatures = torch.tensor([[job.temperature] for job in jobs], device=self.device)  # (rows, 1)

        def ended(ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
            over = ids.shape[1] - start >= limits
            for row, job in enumerate(jobs):
                # A text that just ended is within as many tokens as it has characters, and one before it.
                if job.stop and not over[row]:
                    tail = ids[row, max(start, ids.shape[1] - 1 - max(map(len, job.stop))) :]
                    over[row] = until_stop(self._text(tail), job.stop)[1]
            return over

        generated = self.model.generate(
            **inputs,
            max_new_tokens=int(limits.max()),
            stopping_criteria=StoppingCriteriaList([ended]),
            logits_processor=LogitsProcessorList([lambda ids, scores: by_row(scores, temperatures)]),
            do_sample=bool((temperatures > 0).any()),
            temperature=1.0,
            top_p=top_p,
            top_k=0,
        )
        prompts = inputs["attention_mask"].sum(1).tolist()
        rows = zip(jobs, generated[:, start:].tolist(), prompts, strict=True)
        return [self._answer(job, ids[: job.max_tokens], prompt) for job, ids, prompt in rows]

    def _answer(self, job: ChatJob, ids: list[int], prompt_tokens: int) -> ChatAnswer:
        """The answer in a row's new tokens, which may have an end and pads behind it."""
        ends = self.model.generation_config.eos_token_id
        ends = {ends} if isinstance(ends, int) else set(ends or ())
        written = next((place + 1 for place, id_ in enumerate(ids) if id_ in ends), len(ids))
        ended = any(id_ in ends for id_ in ids[:written])
        text = self._text(ids[:written])
        if until_stop(text, job.stop)[1]:  # what stands behind it are pads, while other rows went on
            written = next(n for n in range(1, written + 1) if until_stop(self._text(ids[:n]), job.stop)[1])
            text, ended = until_stop(self._text(ids[:written]), job.stop)
        return ChatAnswer(text, not ended, prompt_tokens, written)

    def _text(self, ids: Any) -> str:
        return self.processor.tokenizer.decode(ids, skip_special_tokens=True)

    def _written(self, job: ChatJob) -> str:
        """The conversation as the chat template writes it, up to where the answer begins."""
        messages = [
            {
                "role": turn.role,
                "content": [
                    {"type": "text", "text": self._plain(part)} if isinstance(part, str) else {"type": "image"}
                    for part in turn.parts
                ],
            }
            for turn in job.turns
        ]
        try:
            return self.processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # jinja's kinds: no template, or one that takes no such turn
            raise ConfigError(f"the model's chat template cannot write this conversation: {error}") from error

    def _plain(self, text: str) -> str:
        """`text` with a blank inside each special token: a client's words must not end a turn or count as an image."""
        for token in self._special:
            text = text.replace(token, f"{token[0]} {token[1:]}")
        return text


def by_row(scores: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """Logits (rows, vocabulary) divided by each row's temperature (rows, 1).

    At temperature 0 only the most probable token keeps a finite logit, so sampling becomes greedy decoding.
    """
    best = torch.full_like(scores, -torch.inf).scatter_(1, scores.argmax(1, keepdim=True), 0.0)
    # The clamp only avoids a division by 0 in rows that take `best` anyway.
    return torch.where(temperatures > 0, scores / temperatures.clamp(min=1e-4), best)


def _load(path: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """Processor and model of `path`, a folder or a hub id."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(path, trust_remote_code=False)
        # Safetensors alone: a checkpoint in pickle can run code when it is read.
        return processor, AutoModelForImageTextToText.from_pretrained(
            path, use_safetensors=True, trust_remote_code=False, **options
        )
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise MissingExtraError(f"model.path={path} needs a package that is not installed: {reason}") from error
    # Not found, no network, damaged, or not an image-text-to-text model; TypeError: a .json file that holds no object.
    except (OSError, ValueError, TypeError) as error:
        raise ModelLoadError(f"model.path={path} cannot be loaded: {' '.join(str(error).split())}") from error


def _quantization(name: str) -> BitsAndBytesConfig:
    for package in ("bitsandbytes", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(f"model.quantization={name} needs {package}: pip install -e '.[quantization]'")
    from transformers import BitsAndBytesConfig

    if name == "int8":
        # bitsandbytes warns in each layer of each step that it multiplies in 16 bits. This is how int8 works there.
        logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
