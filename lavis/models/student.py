"""`Student`: all that policies, learner, caches, checkpoints, tasks and programs know of the model that learns to act.

    question (prompt, images) --act--> text          which answer the student gives
    question, answers --answer_logps--> (N, A)       how probable it finds given answers
    batch --losses--> record                         how far it is from the expert's answers

Every model is used through this protocol, none through its class. A model derives from `StudentModel`, which has what
does not differ from model to model (`act`, `losses`), and brings the rest: `write`, `score`, `answer_logps`, its
weights.

Shapes: N questions, A answers to each question.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from lavis.common.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self

# LAVIS's batch: `image`, and N texts under each of the names that a call reads (`text_input`, `text_output`, …).
Samples = Mapping[str, Any]
# From log-probabilities (n, A) of the questions numbered `rows` to their part of a loss.
RowLoss = Callable[[Tensor, Sequence[int]], Tensor]


@dataclass(frozen=True)
class Question:
    """What a student is asked: a prompt and its images.

    An image is what the student's own image processor (`vis_processors["eval"]` of `load_model_and_preprocess`) made of
    a frame: for Blip2Emac a float tensor (3, S, S), for a model with a processor inside the uint8 frame (H, W, 3)
    itself. The newest image is the last one; a student that reads one image reads that one, and a student that reads
    several (`Student.frames`) reads the newest ones.
    """

    prompt: str
    images: Sequence[Any]
    candidates: Sequence[str] = ()  # if there are any, the answer is the most probable one of them
    forbidden: Collection[str] = ()  # normalised answers that give way to the next best one
    encoded: Any = None  # of `Student.encoded`: what the student computed of the images, for itself alone


class BcParts(NamedTuple):
    """The loss of behavioural cloning, a scalar tensor."""

    loss: Tensor


class DpoParts(NamedTuple):
    """All parts of one DPO loss; each a scalar tensor, the last three without gradient."""

    loss: Tensor
    chosen_reward: Tensor
    rejected_reward: Tensor
    chosen_entropy: Tensor


@dataclass(frozen=True)
class Decoding:
    """How `write` chooses tokens: LAVIS's arguments of `generate`, with LAVIS's defaults.

    Lengths count as in the original, whose answers began with a BOS: `max_length=32` allows 31 new tokens,
    `min_length=1` demands none.
    """

    use_nucleus_sampling: bool = False
    num_beams: int = 5  # 1: greedy, or plain sampling; above 1 `use_nucleus_sampling` draws within a beam search
    max_length: int = 256
    min_length: int = 1
    top_p: float = 0.9
    repetition_penalty: float = 1.5
    length_penalty: float = 1
    num_captions: int = 1  # answers to each question
    temperature: float = 1

    def __post_init__(self) -> None:
        """Refuse more answers than a search keeps; plain sampling draws as many as it is asked for."""
        if self.num_captions > self.num_beams and not (self.use_nucleus_sampling and self.num_beams == 1):
            raise ConfigError(f"num_captions={self.num_captions} is more than num_beams={self.num_beams}")

    @property
    def max_new(self) -> int:
        """Most new tokens; ConfigError if there could be none."""
        if self.max_length < 2:
            raise ConfigError(
                f"max_length={self.max_length}: at least 2 (the original counts a BOS), for one new token"
            )
        return self.max_length - 1

    @property
    def min_new(self) -> int:
        """Fewest new tokens before the end."""
        return max(self.min_length - 1, 0)


class Student(Protocol):
    """A vision-language model that acts and learns. Every batch has N >= 1 questions.

    A model must bring what is abstract here; `StudentModel` and torch's `nn.Module` have the rest.
    """

    dpo_beta: float  # temperature of DPO's implicit reward; a run sets it (`run.dpo_beta`)
    mix_ratio: float  # weight of the cloning term in DPO's loss
    amp: torch.dtype | None  # dtype of mixed precision that the model asks for; None: none
    sources: dict[str, str]  # part -> the file, folder or hub id that brought all its weights
    frames: int  # images of a question that it reads: the current frame, and those of the states right before it
    sees: bool  # whether its answers depend on images at all

    # ---- acting ----

    def act(
        self, questions: Sequence[Question], *, normalise: Callable[[str], str] = str.strip, **decoding: Any
    ) -> list[str]:
        """One answer to each question: the most probable of its candidates, or else written freely and normalised.

        `decoding` has the arguments of `write`. A written answer that is `forbidden` gives way to the next best one of
        a beam search if the search finds one that is not.
        """
        ...

    @abstractmethod
    def write(self, questions: Sequence[Question], **decoding: Any) -> list[str]:
        """Answers written freely, N * `num_captions` texts, best first; no gradients. `decoding`: `Decoding`'s."""
        ...

    @abstractmethod
    def score(self, questions: Sequence[Question], candidates: Sequence[Sequence[str]]) -> list[list[float]]:
        """Summed log-probability of each of `candidates[n]` and its end, as an answer to question n; no gradients."""
        ...

    # ---- learning ----

    @abstractmethod
    def answer_logps(
        self,
        questions: Sequence[Question],
        answers: Sequence[Sequence[str]],
        *,
        mean: bool | None = None,
        row_loss: RowLoss | None = None,
    ) -> Tensor:
        """Log-probability of A answers to each question, their ends counted: (N, A), float32, differentiable.

        The sum over an answer's tokens, or their `mean`; None: as the model is configured (`avg_log_probs`).

        `row_loss` announces the loss that will be differentiated, as a sum over questions. A student may use it to
        compute gradients question by question, so that memory does not grow with N; the result is the same without.
        """
        ...

    def losses(self, batch: Samples, objective: str) -> BcParts | DpoParts:
        """The loss and its parts; `objective` is "bc" or "dpo".

        `batch` is LAVIS's: `image`, `text_input`, and `text_output` ("bc") or `text_output_pos`, `text_output_neg`
        ("dpo", optionally `ref_logps_pos` and `ref_logps_neg`, (N,), which save the reference policy's computation).
        """
        ...

    def encoded(self, questions: Sequence[Question]) -> Sequence[Question]:
        """The questions with `encoded`, if policy and reference read images alike, so that it is computed once.

        Questions that have it, and those of a student that cannot share this work, are returned as they are.
        """
        ...

    # ---- DPO's reference policy: the policy at the end of phase 1, frozen ----

    @property
    def has_reference(self) -> bool:
        """Whether `as_reference` can be used."""
        ...

    @abstractmethod
    def set_reference(self, state: Mapping[str, Tensor] | None = None) -> None:
        """Take the policy with the weights `state` (of `trainable_state_dict`) as reference; None: as it is now."""
        ...

    @abstractmethod
    def as_reference(self) -> AbstractContextManager[None]:
        """A context in which `answer_logps` speaks for the reference policy; ConfigError if there is none."""
        ...

    @abstractmethod
    def reference_hash(self) -> str:
        """Key of cached reference log-probabilities: equal as long as they hold."""
        ...

    # ---- sizes of texts ----

    @property
    @abstractmethod
    def max_answer_tokens(self) -> int:
        """Longer answers are cut to this, their end token counted."""
        ...

    @property
    @abstractmethod
    def encode(self) -> Callable[[str], list[int]]:
        """From a text to its token ids, without special tokens; can be pickled without the model's weights."""
        ...

    @property
    def encode_answer(self) -> Callable[[str], list[int]]:
        """As `encode`, of an answer as it follows a prompt: all that `answer_logps` sums over, but for its end."""
        return self.encode

    @abstractmethod
    def answer_tokens(self, answer: str) -> int:
        """Number of tokens of an answer and its end over which `answer_logps` sums (at most `max_answer_tokens`)."""
        ...

    @abstractmethod
    def budget(self, question: Question) -> int:
        """Tokens left for the text of the prompt, image tokens and special tokens counted; its own text is not read.

        A question without images stands for one with as many images as the student reads.
        """
        ...

    # ---- weights ----

    @abstractmethod
    def trainable_state_dict(self) -> dict[str, Tensor]:
        """The weights that train: what a checkpoint stores."""
        ...

    @abstractmethod
    def load_trainable(self, state: Mapping[str, Tensor]) -> None:
        """Load what `trainable_state_dict` gave; WeightsError lists what is missing, extra or does not fit."""
        ...

    @abstractmethod
    def base_hash(self) -> str:
        """Hash (hex) of the frozen weights, which a checkpoint belongs to; the same on every device."""
        ...

    def is_base(self, found: str, trained: Collection[str] = ()) -> bool:
        """Whether `found` is `base_hash`, or what an older version or a model whose `trained` train computes."""
        return found == self.base_hash()

    def require_sources(self) -> None:
        """ConfigError, which names the part, if weights that must come from a file are random."""
        ...

    def replica(self, device: torch.device) -> Self:
        """A copy of the policy on `device`, in evaluation mode and without the reference."""
        ...

    # ---- of torch's modules ----

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        ...

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """All weights; those with `requires_grad` train."""
        ...

    def train(self, mode: bool = True) -> Self:
        """Training mode for what trains."""
        ...

    def eval(self) -> Self:
        """Evaluation mode."""
        ...


def texts_of(samples: Samples, *keys: str) -> tuple[Sequence[str], ...]:
    """The texts under `keys`; ValueError if one is missing or does not have one string for each image."""
    count = _count(samples)
    for key in keys:
        if key not in samples:
            raise ValueError(f"samples lack {key!r}; they have {', '.join(samples)}")
        if isinstance(samples[key], str) or len(samples[key]) != count:
            raise ValueError(f"samples[{key!r}]: expected a list of {count} strings, one for each image")
    return tuple(samples[key] for key in keys)


def questions_of(samples: Samples, prompts: str | Sequence[str]) -> list[Question]:
    """LAVIS's batch as questions: `prompts[n]`, or one prompt for all, with `samples["image"][n]`.

    An item that is a tuple is several images, the newest last.

    `encoded` (of `Student.encoded`) may take the place of `image`; so may `query_output`, which is Blip2Emac's name for
    it. ValueError if there are no images, or not as many as prompts.
    """
    count = _count(samples)
    prompts = [prompts] * count if isinstance(prompts, str) else prompts
    if len(prompts) != count:
        raise ValueError(f"samples['prompt'] has {len(prompts)} prompts for {count} images")
    images: list[tuple[Any, ...]] = [()] * count
    if "image" in samples:
        images = [image if isinstance(image, tuple) else (image,) for image in samples["image"]]
    encoded = samples.get("encoded", samples.get("query_output", [None] * count))
    parts = zip(prompts, images, encoded, strict=True)
    return [Question(prompt, image, encoded=known) for prompt, image, known in parts]


def _count(samples: Samples) -> int:
    """How many images the samples hold; ValueError if there is none."""
    key = next((key for key in ("encoded", "query_output", "image") if key in samples), None)
    if key is None:
        raise ValueError(f"samples lack 'image'; they have {', '.join(samples) or 'nothing'}")
    if len(samples[key]) == 0:
        raise ValueError(f"samples hold no sample: {key} is empty")
    return len(samples[key])
