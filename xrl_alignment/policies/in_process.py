"""`Blip2Emac` in this process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xrl_alignment.language.commands import normalise
from xrl_alignment.policies.base import PolicyInput, autocast, require_commands, stack_images


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
