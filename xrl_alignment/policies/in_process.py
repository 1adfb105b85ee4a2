"""The policy that runs `Blip2Emac` in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lavis.common.errors import ConfigError, unknown
from xrl_alignment.language.commands import normalise
from xrl_alignment.policies.base import PolicyInput, autocast, require_commands, stack_images

if TYPE_CHECKING:
    import torch

    from lavis.models.blip2_models.blip2_emac import Blip2Emac


class InProcessPolicy:
    """Runs `Blip2Emac` in this process.

    With `decode="free"` the model writes its action, as in the original. With `decode="admissible"` the action is the
    most probable of the admissible commands, by the sum of its tokens' log-probabilities. `num_beams`, `max_length` and
    `min_length` are those of `Blip2Emac.generate`; at most `max_batch` inputs are computed together.
    """

    def __init__(
        self,
        *,
        model: Blip2Emac,
        vis_processor: Callable[[np.ndarray], torch.Tensor],
        decode: str = "free",
        num_beams: int = 5,
        max_length: int = 128,
        min_length: int = 5,
        max_batch: int = 32,
    ) -> None:
        if decode not in ("free", "admissible"):
            raise ConfigError(unknown("policy.decode", decode, ("free", "admissible")))
        self.model = model
        self.vis_processor = vis_processor
        self.decode = decode
        self.num_beams = num_beams
        self.max_length = max_length
        self.min_length = min_length
        self.max_batch = max_batch

    def act(self, batch: Sequence[PolicyInput]) -> list[str]:
        """One normalised action for each input.

        Raises ConfigError if `decode="admissible"` gets an input without admissible commands.
        """
        actions: list[str] = []
        for start in range(0, len(batch), self.max_batch):
            actions += self._act(batch[start : start + self.max_batch])
        return actions

    def close(self) -> None:
        """Does nothing: this policy holds only its model."""

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
