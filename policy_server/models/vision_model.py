"""The interface of a vision-language model: `answer(jobs) -> texts`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from PIL import Image

from lavis.common.errors import EmacError
from policy_server.games.prompts import ModelPrompt


class ModelLoadError(EmacError, OSError):
    """A model cannot be loaded; the text names its path and the reason."""


@dataclass(frozen=True)
class ModelJob:
    """One request as a model sees it.

    `image` is RGB. `temperature` 0 means greedy decoding. `max_tokens` limits the answer.
    """

    image: Image.Image
    prompt: ModelPrompt
    temperature: float
    max_tokens: int


class VisionModel(Protocol):
    """A loaded model: its device (`cpu`, `cuda:0`) and the bytes of its weights."""

    device: str
    bytes: int

    def answer(self, jobs: Sequence[ModelJob]) -> list[str]:
        """One text for each job, in order. Raises ValueError if a job does not fit the model."""
        ...


def tensor_bytes(model: torch.nn.Module) -> int:
    """Bytes of all parameters and buffers of `model`."""
    tensors = (*model.parameters(), *model.buffers())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
