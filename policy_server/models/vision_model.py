"""The interface of a vision-language model: `answer(jobs) -> texts` for actions, `chat(jobs)` for conversations."""

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


@dataclass(frozen=True)
class ChatTurn:
    """A message of a conversation: `role` is system, user or assistant; `parts` are texts and RGB images in order."""

    role: str
    parts: tuple[str | Image.Image, ...]

    @property
    def text(self) -> str:
        """Its texts, one below the other."""
        return "\n".join(part for part in self.parts if isinstance(part, str))

    @property
    def images(self) -> list[Image.Image]:
        """Its images, in order."""
        return [part for part in self.parts if isinstance(part, Image.Image)]


@dataclass(frozen=True)
class ChatJob:
    """A conversation that the model continues.

    `temperature` 0 means greedy decoding; `top_p` None is the model's own. `max_tokens` limits the answer, which ends
    before the first of the texts in `stop`.
    """

    turns: tuple[ChatTurn, ...]
    temperature: float
    max_tokens: int
    top_p: float | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChatAnswer:
    """A model's message; `cut`: `max_tokens` ended it. The tokens of a student's prompt are those of its text alone."""

    text: str
    cut: bool
    prompt_tokens: int
    completion_tokens: int


class VisionModel(Protocol):
    """A loaded model: its device (`cpu`, `cuda:0`) and the bytes of its weights."""

    device: str
    bytes: int

    def answer(self, jobs: Sequence[ModelJob]) -> list[str]:
        """One text for each job, in order. Raises ValueError if a job does not fit the model."""
        ...

    def chat(self, jobs: Sequence[ChatJob]) -> list[ChatAnswer]:
        """The next message of each conversation, in order. Raises ValueError if a job does not fit the model."""
        ...


def until_stop(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """`text` before the first of the texts in `stop`, and whether there was one."""
    # The earliest place counts, whichever text of `stop` begins there.
    found = [place for each in stop if (place := text.find(each)) >= 0]
    return (text[: min(found)], True) if found else (text, False)


def tensor_bytes(model: torch.nn.Module) -> int:
    """Bytes of all parameters and buffers of `model`."""
    tensors = (*model.parameters(), *model.buffers())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
