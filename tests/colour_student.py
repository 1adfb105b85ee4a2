"""A second student, as unlike Blip2Emac as it can be: what works with both knows only the protocol `Student`.

It has no image processor, tokenizer, language model or LAVIS parts. It writes words, each by a linear layer over the
frame's mean colour, a frozen random code of the prompt, and the word before; it searches all answers of up to three
words. It learns for real.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lavis.models.student import Decoding, Question, RowLoss
from lavis.models.student_model import StudentModel

WORDS = ("<end>", "go", "to", "desk", "take", "mug", "look", "0", "1", "2", "3")
CODE = 8  # numbers of a prompt's code


class ColourStudent(StudentModel):
    """Answers over `WORDS`; images are uint8 frames (H, W, 3)."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.code = nn.Parameter(torch.randn(256, CODE, generator=generator), requires_grad=False)
        self.head = nn.Linear(3 + CODE + 2 * len(WORDS), len(WORDS))
        nn.init.normal_(self.head.weight, std=0.1, generator=generator)
        nn.init.zeros_(self.head.bias)
        self.reference: nn.Module | None = None
        self.sources = {"code": "this file"}
        self._speaks_as_reference = False

    @classmethod
    def from_config(cls, cfg: Mapping[str, Any]) -> ColourStudent:
        return cls(cfg.get("seed", 0))

    def answer_logps(
        self,
        questions: Sequence[Question],
        answers: Sequence[Sequence[str]],
        *,
        mean: bool | None = None,
        row_loss: RowLoss | None = None,
    ) -> Tensor:
        head: Any = self.reference if self._speaks_as_reference else self.head
        rows = []
        for question, group in zip(questions, answers, strict=True):
            colour = torch.as_tensor(np.asarray(question.images[-1]).mean((0, 1)) / 255, dtype=torch.float32)
            letters = torch.tensor(list(question.prompt.encode()) or [0])
            seen = torch.cat([colour.to(self.device), self.code[letters].mean(0)])
            for answer in group:
                ids = self._ids(answer)
                before = nn.functional.one_hot(torch.tensor([0, *ids[:-1]]), len(WORDS)).float().to(self.device)
                earlier = before.roll(1, 0)
                logits = head(torch.cat([seen.expand(len(ids), -1), before, earlier], dim=1)).float()
                logp = logits.log_softmax(-1)[range(len(ids)), ids]
                rows.append(logp.mean() if mean or mean is None else logp.sum())
        return torch.stack(rows).view(len(questions), -1)

    @torch.no_grad()
    def score(self, questions: Sequence[Question], candidates: Sequence[Sequence[str]]) -> list[list[float]]:
        pairs = zip(questions, candidates, strict=True)
        return [self.answer_logps([question], [group], mean=False)[0].tolist() for question, group in pairs]

    def write(self, questions: Sequence[Question], **decoding: Any) -> list[str]:
        options = Decoding(**decoding)
        words = range(1, len(WORDS))
        every = [" ".join(WORDS[i] for i in ids) for n in (1, 2, 3) for ids in itertools.product(words, repeat=n)]
        scores = self.score(questions, [every] * len(questions))
        best = [sorted(zip(row, every, strict=True), reverse=True)[: options.num_captions] for row in scores]
        return [text for row in best for _, text in row]

    def _ids(self, answer: str) -> list[int]:
        return [*self.encode(answer)[: self.max_answer_tokens - 1], 0]

    @property
    def encode(self) -> Any:
        return encode

    @property
    def max_answer_tokens(self) -> int:
        return 9

    def answer_tokens(self, answer: str) -> int:
        return len(self._ids(answer))

    def budget(self, question: Question) -> int:
        return 200

    def set_reference(self, state: Mapping[str, Tensor] | None = None) -> None:
        self.reference = copy.deepcopy(self.head).requires_grad_(False)
        if state is not None:
            self.reference.load_state_dict({name.removeprefix("head."): value for name, value in state.items()})

    @contextmanager
    def as_reference(self) -> Iterator[None]:
        self._speaks_as_reference = True
        yield
        self._speaks_as_reference = False

    def reference_hash(self) -> str:
        assert self.reference is not None
        return _digest(self.reference.parameters())

    def trainable_state_dict(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.state_dict().items() if name.startswith("head.")}

    def load_trainable(self, state: Mapping[str, Tensor]) -> None:
        assert state.keys() == self.trainable_state_dict().keys()
        self.load_state_dict(state, strict=False)

    def base_hash(self) -> str:
        return _digest([self.code])


def encode(text: str) -> list[int]:
    """Numbers of the words; unknown ones count as `<end>`."""
    return [WORDS.index(word) if word in WORDS else 0 for word in text.split()]


def _digest(weights: Any) -> str:
    return hashlib.sha256(b"".join(weight.detach().numpy().tobytes() for weight in weights)).hexdigest()
