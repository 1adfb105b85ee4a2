"""What does not differ between students: how an answer is chosen among candidates or beams, losses, replicas."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lavis.common.errors import ConfigError, unknown
from lavis.common.run_settings import DPO_BETA
from lavis.models.base_model import BaseModel
from lavis.models.losses import bc, dpo
from lavis.models.student import BcParts, DpoParts, Question, Samples, Student, questions_of, texts_of

if TYPE_CHECKING:
    from typing_extensions import Self

ALTERNATIVES = 8  # beams among which an answer is looked for that is not forbidden


class StudentModel(BaseModel, Student):
    """A model that learns to act: what the project's own tasks, learner and policies use (`lavis.models.student`).

    TypeError when a class is instantiated that lacks what `Student` declares and this class does not have.
    """

    dpo_beta: float = DPO_BETA  # temperature of DPO's implicit reward; a run sets it (`run.dpo_beta`)
    mix_ratio: float = 0.5  # weight of the cloning term in DPO's loss
    frames: int = 1  # images of a question that it reads
    sees: bool = True  # whether its answers depend on them
    reference: nn.Module | None  # DPO's reference policy, if there is one: the parts that are its own
    swaps_reference: bool = False  # whether the reference's weights take the places of the policy's while it speaks

    def act(
        self, questions: Sequence[Question], *, normalise: Callable[[str], str] = str.strip, **decoding: Any
    ) -> list[str]:
        """One answer to each question, see `Student.act`."""
        answers: dict[int, str] = {}
        if choosing := [n for n, question in enumerate(questions) if question.candidates]:
            groups = [questions[n].candidates for n in choosing]
            # The sum over the answer's tokens and `</s>`: the probability of the whole command, short or long.
            for n, group, scores in zip(choosing, groups, self.score(_at(questions, choosing), groups), strict=True):
                answers[n] = group[max(range(len(group)), key=scores.__getitem__)]
        if writing := [n for n in range(len(questions)) if n not in answers]:
            texts = self.write(_at(questions, writing), **decoding)
            answers |= zip(writing, map(normalise, texts), strict=True)
        if again := [n for n in writing if answers[n] in questions[n].forbidden]:
            # One more search for all of these together, wide enough that most find another answer.
            wide = {**decoding, "use_nucleus_sampling": False, "num_beams": ALTERNATIVES, "num_captions": ALTERNATIVES}
            found = [normalise(text) for text in self.write(_at(questions, again), **wide)]
            # `write` gives the answers to one question after each other, the best one first.
            for place, n in enumerate(again):
                others = found[place * ALTERNATIVES : (place + 1) * ALTERNATIVES]
                answers[n] = next((text for text in others if text not in questions[n].forbidden), answers[n])
        return [answers[n] for n in range(len(questions))]

    def losses(self, batch: Samples, objective: str) -> BcParts | DpoParts:
        """The loss of `objective`, "bc" or "dpo", and its parts; ConfigError for another name."""
        if objective not in ("bc", "dpo"):
            raise ConfigError(unknown("objective", objective, ("bc", "dpo")))
        return bc(self, batch) if objective == "bc" else dpo(self, batch)

    def sequence_logps(self, samples: Samples, *keys: str) -> tuple[Tensor, ...]:
        """As `answer_logps`, of the answers in `samples[key]` to `text_input`: one tensor (N,) for every key."""
        prompts, *outputs = texts_of(samples, "text_input", *keys)
        answers = list(zip(*outputs, strict=True))
        return self.answer_logps(questions_of(samples, prompts), answers).unbind(1)

    @torch.no_grad()
    def reference_logps(self, samples: Samples) -> tuple[Tensor, Tensor]:
        """The reference policy's (chosen, rejected) log-probabilities, (N,) each: constants of a transition."""
        with self.as_reference():
            chosen, rejected = self.sequence_logps(samples, "text_output_pos", "text_output_neg")
        return chosen, rejected

    def encoded(self, questions: Sequence[Question]) -> Sequence[Question]:
        """The questions as they are; a student whose reference reads images as the policy does computes that once."""
        return questions

    @property
    def has_reference(self) -> bool:
        """Whether there is a reference policy."""
        return getattr(self, "reference", None) is not None

    def replica(self, device: torch.device) -> Self:
        """A copy of the policy on `device`, straight to there, in evaluation mode and without the reference."""
        there: dict[int, Any] = {}  # deepcopy's memo: what is in it is not copied
        # Each tensor goes straight to `device`: a whole second copy on the first one may not fit there.
        if self.has_reference:
            there[id(self.reference)] = nn.Module()
        for name, parameter in self.named_parameters():
            if not name.startswith("reference."):
                there[id(parameter)] = nn.Parameter(parameter.detach().to(device, copy=True), parameter.requires_grad)
        for name, buffer in self.named_buffers():
            if not name.startswith("reference."):
                there[id(buffer)] = buffer.to(device, copy=True)
        # What is no tensor (settings, tokenizer, hooks) is copied as usual; tensors are found in the memo.
        copied = copy.deepcopy(self, there)
        copied.reference = None
        return copied.eval()

    # ---- LAVIS's names of the same ----------------------------------------------------------------------------------

    def predict_answers(
        self,
        samples: Samples,
        num_beams: int = 5,
        inference_method: str = "generate",
        max_len: int = 10,
        min_len: int = 1,
        num_ans_candidates: int = 128,
        answer_list: Sequence[str] | None = None,
        prompt: str = "",
        length_penalty: float = 0,
        **kwargs: object,
    ) -> list[str]:
        """Answers to the N questions in `samples["text_input"]` about `samples["image"]`, without blanks around them.

        `prompt` may have a place `{}` for the question. "generate" writes; "rank" chooses the most probable one of
        `answer_list` (all of them are weighed: `num_ans_candidates` limits LAVIS's search, and changes nothing here).
        """
        texts = texts_of(samples, "text_input")[0]
        asked = questions_of(samples, [prompt.format(text) if prompt else text for text in texts])
        if inference_method == "generate":
            options = {"num_beams": num_beams, "max_length": max_len, "min_length": min_len}
            return [text.strip() for text in self.write(asked, length_penalty=length_penalty, **options)]
        if inference_method != "rank" or not answer_list:
            raise ConfigError(f"inference_method={inference_method!r}: `generate`, or `rank` with an answer_list")
        scores = self.score(asked, [answer_list] * len(asked))  # N rows, a log-probability for each answer
        return [answer_list[max(range(len(row)), key=row.__getitem__)] for row in scores]

    def predict_class(self, samples: Samples, candidates: Sequence[str], n_segments: int = 1) -> list[int]:
        """For each of the N questions in `samples["prompt"]` the number of the most probable of `candidates`.

        `n_segments` is LAVIS's, which computes in so many parts to save memory; the result does not depend on it.
        """
        asked = questions_of(samples, samples["prompt"])
        return [max(range(len(row)), key=row.__getitem__) for row in self.score(asked, [candidates] * len(asked))]


def _at(questions: Sequence[Question], rows: Sequence[int]) -> list[Question]:
    return [questions[row] for row in rows]
