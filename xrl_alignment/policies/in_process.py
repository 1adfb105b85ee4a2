"""The policy that runs `Blip2Emac` in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lavis.common.errors import ConfigError, unknown
from xrl_alignment.language.commands import normalise, rejected_now, visited_now
from xrl_alignment.policies.base import PolicyInput, autocast, require_commands, stack_images

if TYPE_CHECKING:
    import torch

    from lavis.models.blip2_models.blip2_emac import Blip2Emac

ALTERNATIVES = 8  # answers among which one is looked for that is not useless


class InProcessPolicy:
    """Runs `Blip2Emac` in this process.

    With `decode="free"` the model writes its action, as in the original. With `decode="admissible"` the action is the
    most probable of the admissible commands, by the sum of its tokens' log-probabilities. `num_beams`, `max_length` and
    `min_length` are those of `Blip2Emac.generate`; at most `max_batch` inputs are computed together. With
    `skip_rejected` an answer that the environment has just rejected (`rejected_now`) gives way to the next best of a
    beam search, with `skip_visited` one that leads to where there can be nothing new (`visited_now`).
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
        skip_rejected: bool = False,
        skip_visited: bool = False,
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
        self.skip_rejected = skip_rejected
        self.skip_visited = skip_visited

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
            actions = self._written(samples, num_beams=self.num_beams)
            return self._others(samples, [self._useless(item.steps) for item in batch], actions)

    def _written(self, samples: dict[str, Any], **options: Any) -> list[str]:
        texts = self.model.generate(
            samples,
            max_length=self.max_length,
            min_length=self.min_length,
            length_penalty=0,
            repetition_penalty=1.0,
            **options,
        )
        return [normalise(text) for text in texts]

    def _useless(self, steps: Sequence[tuple[str, str]]) -> set[str]:
        rejected = rejected_now(steps) if self.skip_rejected else ()
        visited = visited_now(steps) if self.skip_visited else ()
        return {*rejected, *visited}

    def _others(self, samples: dict[str, Any], useless: Sequence[set[str]], actions: list[str]) -> list[str]:
        """`actions`, each that is among its `useless` ones replaced by the next best where the search finds one."""
        rows = [row for row, action in enumerate(actions) if action in useless[row]]
        if not rows:
            return actions
        again = {"image": samples["image"][rows], "prompt": [samples["prompt"][row] for row in rows]}
        found = self._written(again, num_beams=ALTERNATIVES, num_captions=ALTERNATIVES)
        for place, row in enumerate(rows):
            choices = found[place * ALTERNATIVES : (place + 1) * ALTERNATIVES]
            actions[row] = next((text for text in choices if text not in useless[row]), actions[row])
        return actions
