"""Policies: a batch of what agents see in, a batch of action strings out."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from xrl_alignment.actions import normalise

if TYPE_CHECKING:  # imported where it is used: rollout workers share this module and never run a model
    import torch


class PolicyInput(NamedTuple):
    """What the policy sees of one episode: the prompt, the picture (uint8, H × W × 3), the admissible commands.

    `session` names the episode, for policies that remember where they have read its prompt before.
    """

    prompt: str
    image: np.ndarray
    admissible_commands: Sequence[str] = ()
    session: str = ""


class Policy(Protocol):
    """Answers a batch of observations at once."""

    def act(self, batch: Sequence[PolicyInput]) -> list[str]:
        """One action string for each input, in order."""
        ...

    def close(self) -> None:
        """Give back what the policy holds beside its model (connections, processes)."""
        ...


def autocast(device: torch.device) -> torch.autocast:
    """Mixed precision as the run uses it: fp16 on CUDA (the original's), bf16 on CPU (5 × faster there than fp32)."""
    import torch

    return torch.autocast(device.type, dtype=torch.float16 if device.type == "cuda" else torch.bfloat16)


def stack_images(vis_processor: Callable[[np.ndarray], torch.Tensor], frames: Sequence[np.ndarray]) -> torch.Tensor:
    """`vis_processor` of each of `frames`, (N, 3, H, W); several are made at once, as Pillow lets other threads run."""
    import torch

    return torch.stack(list((_threads().map if len(frames) > 1 else map)(vis_processor, frames)))


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="images")


def require_commands(batch: Sequence[PolicyInput]) -> None:
    """ValueError where an input has no admissible commands to choose from."""
    if not all(item.admissible_commands for item in batch):
        raise ValueError("policy.decode=admissible: an observation came without admissible_commands")


class InProcessPolicy:
    """`Blip2Emac` in this process.

    `decode="free"` lets the model write its action (the original's way); `decode="admissible"` takes, among the
    commands that the engine would accept, the most probable one: by the sum of its tokens' log-probabilities.
    """

    def __init__(
        self,
        *,
        model,
        vis_processor,
        decode: str = "free",
        num_beams: int = 5,
        max_length: int = 128,
        min_length: int = 5,
        max_batch: int = 32,
    ) -> None:
        if decode not in ("free", "admissible"):
            raise ValueError(f"policy.decode is {decode!r}; it must be 'free' or 'admissible'")
        self.model = model
        self.vis_processor = vis_processor
        self.decode = decode
        self.num_beams = num_beams
        self.max_length = max_length
        self.min_length = min_length
        self.max_batch = max_batch

    def act(self, batch: Sequence[PolicyInput]) -> list[str]:
        """One normalised action for each input.

        Raises ValueError where `decode="admissible"` meets an input without admissible commands.
        """
        actions: list[str] = []
        for start in range(0, len(batch), self.max_batch):
            actions += self._act(batch[start : start + self.max_batch])
        return actions

    def close(self) -> None:
        """Nothing is held."""

    def _act(self, batch: Sequence[PolicyInput]) -> list[str]:
        import torch

        samples = {
            "image": stack_images(self.vis_processor, [item.image for item in batch]).to(self.model.device),
            "prompt": [item.prompt for item in batch],
        }
        with torch.no_grad(), autocast(self.model.device):
            if self.decode == "admissible":
                require_commands(batch)
                scores = self.model.score(samples, [list(item.admissible_commands) for item in batch])
                return [item.admissible_commands[int(np.argmax(row))] for item, row in zip(batch, scores, strict=True)]
            texts = self.model.generate(
                samples,
                num_beams=self.num_beams,
                max_length=self.max_length,
                min_length=self.min_length,
                length_penalty=0,
                repetition_penalty=1.0,
            )
        return [normalise(text) for text in texts]
