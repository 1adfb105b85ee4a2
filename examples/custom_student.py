"""A student of one's own: a causal language model of Transformers that acts from the text alone, and learns whole.

    python examples/custom_student.py                       # a random one of 0.2 million weights learns one command
    python dagger_server.py --cfg-path configs/dagger/demo_bc.yaml \
        --options model.arch=examples.custom_student:TextStudent model.path=FOLDER_OR_HUB_ID
    python evaluate.py --cfg-path configs/evaluate/episodes.yaml \
        --options model.arch=examples.custom_student:TextStudent model.path=FOLDER model.pretrained=CHECKPOINT

A student brings what is abstract in `lavis.models.student.Student`: it writes, says how probable answers are, keeps a
frozen reference for DPO, and knows its sizes. `StudentModel` has the rest. This one is written to be read: it computes
question after question. A vision-language model of the hub needs no class (`model.arch=hf_vlm`, docs/models.md).
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
)

from lavis.common.errors import ConfigError, unknown
from lavis.common.paths import REPO_ROOT
from lavis.models.blip2_models import weights
from lavis.models.decoding import NewTokensPenalty, forget_decoding
from lavis.models.student import Decoding, Question, RowLoss
from lavis.models.student_model import StudentModel

KEYS = ("arch", "model_type", "path", "pretrained", "load_pretrained", "ref_pretrained")  # of the section `model:`
MAX_PROMPT, MAX_ANSWER = 512, 24  # tokens
TOKENIZER = REPO_ROOT / "lavis" / "models" / "tiny" / "tokenizer.json"  # of the demonstration below


class TextStudent(StudentModel):
    """`lm`, a causal language model, with its `tokenizer`; it reads the prompt and ignores the images."""

    reference: nn.Module | None
    sees = False  # an evaluation gives it black frames, and its card says so

    def __init__(self, lm: Any, tokenizer: Any, source: str) -> None:
        super().__init__()
        self.lm, self.tokenizer, self.sources = lm, tokenizer, {"lm": source}
        self.reference = None
        self._speaks_as_reference = False
        forget_decoding(lm)  # a chatbot's penalties and temperatures
        self.base_hash()  # now, while there is no reference: nothing of the policy is frozen

    @classmethod
    def from_config(cls, cfg: Mapping[str, Any]) -> TextStudent:
        """From `model.path`, a folder or hub id, and the checkpoints that the programs set."""
        for key in cfg:  # a misspelt `pretrained` would score the base in place of what was trained
            if key not in KEYS:
                raise ConfigError(unknown("key", f"model.{key}", [f"model.{known}" for known in KEYS]))
        if not cfg.get("path"):
            raise ConfigError("model.path: set it to a folder or hub id with a causal language model")
        try:
            lm = AutoModelForCausalLM.from_pretrained(cfg["path"], dtype=torch.float32)
            tokenizer = AutoTokenizer.from_pretrained(cfg["path"])
        except weights.UNLOADABLE as error:
            raise ConfigError(f"model.path={cfg['path']}: {weights.why_unloadable(cfg['path'], error)}") from error
        student = cls(lm, tokenizer, str(cfg["path"]))
        if cfg.get("pretrained") and cfg.get("load_pretrained", True):
            student.loaded(cfg["pretrained"])
        if cfg.get("ref_pretrained"):
            earlier = cls(copy.deepcopy(lm), tokenizer, str(cfg["path"])).loaded(cfg["ref_pretrained"])
            student.set_reference(earlier.trainable_state_dict())
        return student

    def loaded(self, checkpoint: str) -> TextStudent:
        """Itself, with the weights of a checkpoint; ConfigError if they are another model's."""
        found = self.load_checkpoint(checkpoint)
        if found.missing_keys or found.unexpected_keys:
            raise ConfigError(f"{checkpoint} holds other weights than a TextStudent of {self.sources['lm']}")
        return self

    # ---- acting and learning ----

    @torch.no_grad()
    def write(self, questions: Sequence[Question], **decoding: Any) -> list[str]:
        """Answers written freely, `num_captions` to each question."""
        options = Decoding(**decoding)
        beams = 1 if options.use_nucleus_sampling else max(options.num_beams, options.num_captions)
        texts: list[str] = []
        for question in questions:
            prompt = torch.tensor([self._prompt(question)], device=self.device)  # (1, L)
            own: dict[str, float] = {}  # of one way of decoding: Transformers warns of the other way's
            if options.use_nucleus_sampling:
                own = {"temperature": options.temperature, "top_p": options.top_p, "top_k": 0}
            elif beams > 1:
                own = {"length_penalty": options.length_penalty}
            written = self.lm.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=options.use_nucleus_sampling,
                num_beams=beams,
                num_return_sequences=options.num_captions,
                max_new_tokens=min(options.max_new, MAX_ANSWER),
                min_new_tokens=options.min_new,
                logits_processor=LogitsProcessorList([NewTokensPenalty(options.repetition_penalty)]),
                eos_token_id=self.tokenizer.eos_token_id,  # whatever the folder says: answers were learned with it
                pad_token_id=self.tokenizer.eos_token_id,
                **own,
            )
            texts += self.tokenizer.batch_decode(written[:, prompt.shape[1] :], skip_special_tokens=True)
        return [text.partition("\n")[0].strip() for text in texts]

    @torch.no_grad()
    def score(self, questions: Sequence[Question], candidates: Sequence[Sequence[str]]) -> list[list[float]]:
        """Summed log-probability of each candidate and its end."""
        pairs = zip(questions, candidates, strict=True)
        return [self.answer_logps([question], [group], mean=False)[0].tolist() for question, group in pairs]

    def answer_logps(
        self,
        questions: Sequence[Question],
        answers: Sequence[Sequence[str]],
        *,
        mean: bool | None = None,
        row_loss: RowLoss | None = None,
    ) -> Tensor:
        """Log-probabilities (N, A) of the answers and their ends: means over tokens, unless `mean` is False."""
        lm: Any = self.reference if self._speaks_as_reference else self.lm
        groups = []
        for question, group in zip(questions, answers, strict=True):
            prompt, told = self._prompt(question), [self._answer(answer) for answer in group]
            longest = max(map(len, told))
            # One row for each answer, padded on the right, where no earlier token sees it.
            rows = torch.tensor([prompt + ids + [0] * (longest - len(ids)) for ids in told], device=self.device)
            # Position i predicts token i + 1, so the answer's logits begin at the prompt's last token: (A, longest, V).
            logits = lm(rows).logits[:, len(prompt) - 1 : -1].float()
            logps = logits.log_softmax(-1).gather(2, rows[:, len(prompt) :, None]).squeeze(2)
            lengths = torch.tensor([[len(ids)] for ids in told], device=self.device)
            kept = torch.where(torch.arange(longest, device=self.device) < lengths, logps, 0.0)
            sums = kept.sum(1)
            groups.append(sums if mean is False else sums / lengths.squeeze(1))
        return torch.stack(groups)

    def _prompt(self, question: Question) -> list[int]:
        # Prompts end in "> ". A BPE tokenizer knows " go" as a token, so the blank belongs to the answer.
        return self.encode(question.prompt.rstrip(" "))[-MAX_PROMPT:]

    def _answer(self, answer: str) -> list[int]:
        return [*self.encode_answer(answer)[: MAX_ANSWER - 1], self.tokenizer.eos_token_id]

    # ---- DPO's reference ----

    def set_reference(self, state: Mapping[str, Tensor] | None = None) -> None:
        """A frozen copy of the policy, with the weights `state` if they are given."""
        self.reference = copy.deepcopy(self.lm).requires_grad_(False).eval()
        if state is not None:
            self.reference.load_state_dict({name.removeprefix("lm."): weight for name, weight in state.items()})

    def train(self, mode: bool = True) -> TextStudent:
        """Training mode for the policy; the reference computes without dropout."""
        super().train(mode)
        if self.reference is not None:
            self.reference.eval()
        return self

    @contextmanager
    def as_reference(self) -> Iterator[None]:
        """`answer_logps` computes with the reference."""
        if self.reference is None:
            raise ConfigError("DPO needs a reference policy: set model.ref_pretrained to the phase-1 checkpoint")
        self._speaks_as_reference = True
        try:
            yield
        finally:
            self._speaks_as_reference = False

    def reference_hash(self) -> str:
        """SHA-256 of the reference's weights."""
        digest = hashlib.sha256()
        for weight in self.reference.parameters() if self.reference is not None else ():
            digest.update(weight.detach().cpu().numpy().tobytes())
        return digest.hexdigest()

    def trainable_state_dict(self) -> dict[str, Tensor]:
        """The language model's weights."""
        return {name: weight for name, weight in super().trainable_state_dict().items() if name.startswith("lm.")}

    # ---- sizes ----

    @property
    def encode(self) -> Callable[[str], list[int]]:
        """From a text to token ids."""
        return partial(self.tokenizer.encode, add_special_tokens=False)

    @property
    def encode_answer(self) -> Callable[[str], list[int]]:
        """The same, of an answer, which begins with the blank that the prompt ends with."""
        return partial(_encode_answer, self.tokenizer)

    @property
    def max_answer_tokens(self) -> int:
        """Longer answers are cut."""
        return MAX_ANSWER

    def answer_tokens(self, answer: str) -> int:
        """How many tokens of the answer count, its end among them."""
        return len(self._answer(answer))

    def budget(self, question: Question) -> int:
        """Tokens of a prompt: longer ones lose their oldest steps."""
        return MAX_PROMPT


def _encode_answer(tokenizer: Any, answer: str) -> list[int]:
    return tokenizer.encode(f" {answer.strip()}", add_special_tokens=False)


if __name__ == "__main__":
    torch.manual_seed(0)
    own = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER), eos_token="</s>")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    student = TextStudent(LlamaForCausalLM(LlamaConfig(vocab_size=len(own), **sizes)), own, "random")
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    states = {"Your task is to: put a mug in desk.\n> ": "take mug 1", "You are at desk 1.\n> ": "go to shelf 2"}
    batch = {"image": [None] * 2, "text_input": list(states), "text_output": list(states.values())}
    for step in range(60):
        loss = student.losses(batch, "bc").loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            print(f"update {step + 1}: loss {loss.item():.3f}")
    print(student.act([Question(prompt, (None,)) for prompt in states], num_beams=1, max_length=12))
