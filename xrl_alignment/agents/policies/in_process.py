"""The policy that asks a student in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from alfworld_native.language.commands import normalise, rejected_now, visited_now
from lavis.common.devices import autocast
from lavis.common.errors import ConfigError, unknown
from xrl_alignment.agents.policies.base import PolicyInput, model_reads, process_images, require_commands

if TYPE_CHECKING:
    from lavis.models.student import Student


class InProcessPolicy:
    """Asks `model` in this process.

    With `decode="free"` the model writes its action, as in the original. With `decode="admissible"` the action is the
    most probable of the admissible commands, by the sum of its tokens' log-probabilities. `num_beams`, `max_length` and
    `min_length` are those of `student.Decoding`; at most `max_batch` inputs are computed together. With
    `skip_rejected` an answer that the environment has just rejected (`rejected_now`) gives way to the next best of a
    beam search, with `skip_visited` one that leads to where there can be nothing new (`visited_now`).
    """

    def __init__(
        self,
        *,
        model: Student,
        vis_processor: Callable[[np.ndarray], Any],
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
        # See `Policy`. A student that does not see is given black frames, so that a card cannot say otherwise.
        self.reads = tuple(each for each in model_reads(decode) if each != "image" or model.sees)
        self.num_beams = num_beams
        self.max_length = max_length
        self.min_length = min_length
        self.max_batch = max_batch
        self.skip_rejected = skip_rejected
        self.skip_visited = skip_visited

    @property
    def frames(self) -> int:
        """See `Policy`."""
        return self.model.frames

    def act(self, batch: Sequence[PolicyInput]) -> list[str]:
        """One normalised action for each input.

        Raises ConfigError if `decode="admissible"` gets an input without admissible commands.
        """
        # Here: rollout workers import this module and run no model.
        import torch

        from lavis.models.student import Question

        actions: list[str] = []
        for start in range(0, len(batch), self.max_batch):
            part = batch[start : start + self.max_batch]
            if self.decode == "admissible":
                require_commands(part)
            questions: list[Question] = []
            images = process_images(self.vis_processor, [(*item.earlier, item.image) for item in part])
            for item, seen in zip(part, images, strict=True):
                if self.decode == "admissible":
                    questions.append(Question(item.prompt, seen, candidates=item.admissible_commands))
                    continue
                # Only what is written freely is compared with forbidden commands: the settings refuse the rest
                # (PolicyConfig). A greedy model would otherwise repeat what the game has just refused.
                rejected = rejected_now(item.steps) if self.skip_rejected else ()
                visited = visited_now(item.steps) if self.skip_visited else ()
                questions.append(Question(item.prompt, seen, forbidden={*rejected, *visited}))
            with torch.no_grad(), autocast(self.model.device):
                actions += self.model.act(
                    questions,
                    normalise=normalise,
                    num_beams=self.num_beams,
                    max_length=self.max_length,
                    min_length=self.min_length,
                    length_penalty=0,  # a beam's score is the sum of its log-probabilities, as in the original
                    repetition_penalty=1.0,
                )
        return actions

    def close(self) -> None:
        """Does nothing: this policy holds only its model."""
