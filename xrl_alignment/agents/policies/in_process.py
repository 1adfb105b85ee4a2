"""The policy that asks a student in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from alfworld_native.language.commands import is_thought, normalise, rejected_now, visited_now
from lavis.common.devices import autocast
from lavis.common.errors import ConfigError, unknown
from xrl_alignment.agents.policies.base import PolicyInput, model_reads, process_images, require_commands

if TYPE_CHECKING:
    from lavis.models.student import Question, Student


class InProcessPolicy:
    """Asks `model` in this process.

    With `decode="free"` the model writes its action, as in the original. With `decode="admissible"` the action is the
    most probable of the admissible commands, by the sum of its tokens' log-probabilities; if a thought costs no step
    (`PolicyInput.may_think`) and the model begins one, the answer is that thought. `num_beams`, `max_length` and
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
        min_length: int = 1,
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
            images = process_images(self.vis_processor, [(*item.earlier, item.image) for item in part])
            questions: list[Question] = []
            for item, seen in zip(part, images, strict=True):
                # Only what is written freely is compared with forbidden commands: the settings refuse the rest
                # (PolicyConfig). A greedy model would otherwise repeat what the game has just refused.
                rejected = rejected_now(item.steps) if self.skip_rejected else ()
                visited = visited_now(item.steps) if self.skip_visited else ()
                questions.append(Question(item.prompt, seen, forbidden={*rejected, *visited}))
            with torch.no_grad(), autocast(self.model.device):
                if self.decode == "free":
                    actions += self._said(questions)
                    continue
                # First what the model would think, then, of those that do not think, what they choose.
                chosen = [""] * len(part)
                thinking = [i for i, item in enumerate(part) if item.may_think]
                for i, said in zip(thinking, self._said([questions[i] for i in thinking]), strict=True):
                    chosen[i] = said if is_thought(said) else ""
                choosing = [i for i, thought in enumerate(chosen) if not thought]
                lists = [replace(questions[i], candidates=part[i].admissible_commands) for i in choosing]
                for i, command in zip(choosing, self._said(lists), strict=True):
                    chosen[i] = command
                actions += chosen
        return actions

    def _said(self, questions: Sequence[Question]) -> list[str]:
        """What the model writes, or chooses of a question's candidates."""
        if not questions:
            return []
        return self.model.act(
            questions,
            normalise=normalise,
            num_beams=self.num_beams,
            max_length=self.max_length,
            min_length=self.min_length,
            length_penalty=0,  # a beam's score is the sum of its log-probabilities, as in the original
            repetition_penalty=1.0,
        )

    def close(self) -> None:
        """Does nothing: this policy holds only its model."""
