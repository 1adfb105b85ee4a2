"""The original's replay buffers, in memory, for code that has a training loop of its own.

A run of this project keeps its transitions on disk instead, and decodes only what it draws (`runs.replay`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from lavis.common.errors import ConfigError


class BaseBuffer:
    """A ring of the newest `buffer_size` transitions; `sample` draws uniformly, with replacement.

    It draws from NumPy's global generator, which `set_seed` seeds, as in the original. Rows are kept as they are
    given, without a copy. `device` is where the images of a batch go.
    """

    def __init__(self, buffer_size: int = 100_000, device: torch.device | str = "cpu") -> None:
        if buffer_size < 1:
            raise ConfigError(f"buffer_size={buffer_size}: a buffer holds at least one transition")
        self.buffer_size = buffer_size
        if device == "auto":  # the original's default
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(device)
        self.pos = 0  # where the next transition goes
        self._rows: list[tuple[Any, ...]] = []

    def __len__(self) -> int:
        """Number of transitions that can be drawn."""
        return len(self._rows)

    def size(self) -> int:
        """The same, under the original's name."""
        return len(self)

    @property
    def full(self) -> bool:
        """Whether the next transition replaces the oldest."""
        return len(self) == self.buffer_size

    def add(self, *row: Any) -> None:
        """Store one transition; the fields are the subclass's."""
        raise NotImplementedError

    def extend(self, *columns: Iterable[Any]) -> None:
        """Store several: an iterable for each argument of `add`, in `add`'s order; ValueError if one is shorter."""
        for row in zip(*columns, strict=True):
            self.add(*row)

    def reset(self) -> None:
        """Forget all transitions."""
        self._rows.clear()
        self.pos = 0

    @staticmethod
    def swap_and_flatten(arr: np.ndarray) -> np.ndarray:
        """From (steps, environments, …) to (environments · steps, …), one environment after another."""
        # As Stable-Baselines3's buffers do it: the steps of one environment stay together.
        swapped = arr.swapaxes(0, 1)
        flat = swapped.reshape(swapped.shape[0] * swapped.shape[1], *swapped.shape[2:])
        return flat if arr.ndim > 2 else flat[:, None]  # the original: a number is a row of one

    def sample(self, batch_size: int) -> dict[str, Any]:
        """A batch for `Blip2Emac`: `image`, float (batch_size, 3, H, W), and lists of texts."""
        if not self._rows:
            raise ConfigError("the replay buffer is empty: add transitions before a batch is drawn")
        return self._get_samples(np.random.randint(len(self), size=batch_size))

    def to_torch(self, images: Sequence[np.ndarray]) -> torch.Tensor:
        """Images of one shape, stacked, on this buffer's device."""
        return torch.as_tensor(np.stack(images)).to(self.device)

    def _store(self, *row: Any) -> None:
        # `pos` goes round; once the ring is full it points to the oldest row.
        if len(self) < self.buffer_size:
            self._rows.append(row)
        else:
            self._rows[self.pos] = row
        self.pos = (self.pos + 1) % self.buffer_size

    def _get_samples(self, batch_inds: Iterable[int]) -> dict[str, Any]:
        raise NotImplementedError

    def _columns(self, batch_inds: Iterable[int]) -> list[list[Any]]:
        return [list(column) for column in zip(*(self._rows[i] for i in batch_inds), strict=True)]


class ImitationBuffer(BaseBuffer):
    """Transitions for behavioural cloning; `xrl_alignment.utils.ReplayBuffer`."""

    def add(self, visual_ob: np.ndarray, text_input: str, text_output: str) -> None:
        """Store an image, (3, H, W) as the image processor gives it, its prompt and the expert's action."""
        self._store(visual_ob, text_input, text_output)

    def _get_samples(self, batch_inds: Iterable[int]) -> dict[str, Any]:
        images, inputs, outputs = self._columns(batch_inds)
        return {"image": self.to_torch(images), "text_input": inputs, "text_output": outputs}


class PreferenceBuffer(BaseBuffer):
    """Preference pairs for DPO; `xrl_alignment.utils.DPOReplayBuffer`."""

    def add(self, visual_ob: np.ndarray, text_input: str, w_text_output: str, l_text_output: str) -> None:
        """Store an image, its prompt, the chosen action (the expert's) and the rejected one (the policy's own)."""
        self._store(visual_ob, text_input, w_text_output, l_text_output)

    def _get_samples(self, batch_inds: Iterable[int]) -> dict[str, Any]:
        images, inputs, chosen, rejected = self._columns(batch_inds)
        texts = {"text_input": inputs, "text_output_pos": chosen, "text_output_neg": rejected}
        return {"image": self.to_torch(images), **texts}


ReplayBuffer = ImitationBuffer  # the original's names; within this project they belong to `runs.replay`
DPOReplayBuffer = PreferenceBuffer
