"""Text in and out of the language model: tokenizers behind one small interface, and the rows that the model reads.

Shapes: N rows, L tokens of text. The conventions (which side is cut, where pads stand, which BOS) are those of the
original InstructBLIP/EMMA code; the golden case proves them.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import cached_file

from lavis.common.errors import ConfigError, EmacError, MissingFileError, first_sentence

IGNORE = -100  # label of a position that carries no loss (PyTorch's convention)


class LlmTokenizer(Protocol):
    """What the model asks of a language model's tokenizer."""

    bos_id: int
    eos_id: int
    pad_id: int
    # Whether the blank before a word is part of the word's token ("> go" is ">", " go"), see `encode_output`.
    joins_blank: bool

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without any special token."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens dropped."""
        ...

    def __len__(self) -> int:
        """Number of embedding rows the tokenizer needs."""
        ...

    def save(self, folder: Path) -> None:
        """Write the files from which Transformers and inference engines load this tokenizer."""
        ...


class SentencePieceTokenizer:
    """Llama's and Vicuna's `tokenizer.model`, used as the original used it.

    InstructBLIP set bos, eos and unk all to `</s>` and added [PAD] behind the vocabulary, so prompts begin with id 2.
    The blank that ends a prompt is a token of its own, and sentencepiece gives the answer's first word another one.
    """

    joins_blank = False

    def __init__(self, model_file: Path) -> None:
        import sentencepiece  # needed for Vicuna only

        self._file = model_file
        self._processor = sentencepiece.SentencePieceProcessor(model_file=str(model_file))
        self.eos_id = self._processor.eos_id()
        self.bos_id = self.eos_id
        self.pad_id = self._processor.vocab_size()
        self._special = {self._processor.unk_id(), self.eos_id, self.pad_id}

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without any special token."""
        return self._processor.encode(text)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each."""
        return self._processor.encode(list(texts))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`; `</s>`, [PAD] and `<unk>` are dropped, `<s>` is a control piece that prints nothing."""
        # sentencepiece raises IndexError for an id behind its vocabulary, such as [PAD]'s.
        return self._processor.decode([i for i in ids if i not in self._special and i < self.pad_id])

    def __len__(self) -> int:
        return self.pad_id + 1

    def save(self, folder: Path) -> None:
        """Copy `tokenizer.model` and the files beside it; engines then begin prompts as Vicuna's files say."""
        for name in ("tokenizer.model", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            if (file := self._file.with_name(name)).is_file():
                shutil.copyfile(file, folder / name)


class FastTokenizer:
    """Any tokenizer that Transformers loads from a folder (`tokenizer.json`) or hub id."""

    def __init__(self, name_or_path: str) -> None:
        # A `tokenizer.json` alone does not say which of its tokens are special; these are the tiny model's.
        file = Path(name_or_path) / "tokenizer.json"
        if file.is_file() and not (Path(name_or_path) / "tokenizer_config.json").is_file():
            names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "[PAD]"}
            self._tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast(tokenizer_file=str(file), **names)
        else:
            self._tokenizer = AutoTokenizer.from_pretrained(name_or_path, trust_remote_code=False)
        if self._tokenizer.eos_token_id is None:
            raise ConfigError(f"the tokenizer {name_or_path} has no end-of-sequence token: Blip2Emac needs one")
        # Pads are masked wherever they stand, so any new token will do.
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.add_special_tokens({"pad_token": "[PAD]"})
        self.eos_id = self._tokenizer.eos_token_id
        self.bos_id = self.eos_id if self._tokenizer.bos_token_id is None else self._tokenizer.bos_token_id
        self.pad_id = self._tokenizer.pad_token_id
        # Found out by encoding: whether `> ` and an answer, read in one piece, are `>` and the answer with a blank. So
        # it is in byte-level BPE (GPT-2's, and most since). In the tiny model's tokenizer the cue is one token.
        ids = [(self.encode(f"\n> {word}"), word) for word in ("go to desk 1", "take mug 1 from desk 2", "look")]
        apart = (self.encode("\n> ") + self.encode(word) == whole for whole, word in ids)
        joined = (self.encode("\n>") + self.encode(f" {word}") == whole for whole, word in ids)
        self.joins_blank = all(joined) and not all(apart)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without any special token."""
        return self._tokenizer.encode(text, add_special_tokens=False)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each, on all cores."""
        return self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens dropped."""
        # Without the clean-up, which takes blanks before punctuation away that the model has written.
        text = self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)  # a list only for a list of rows
        return text

    def __len__(self) -> int:
        return len(self._tokenizer)

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json` and its config; a prompt encoded with them has `encode_prompts`' ids."""
        # On a copy: this tokenizer goes on without a BOS of its own, which `encode_prompts` puts in front.
        saved = copy.deepcopy(self._tokenizer)
        bos = saved.convert_ids_to_tokens(self.bos_id)
        if saved("a").input_ids[0] != self.bos_id:  # no other program would put it in front
            backend = saved.backend_tokenizer
            # In tokenizers' notation `$A` is the text.
            backend.post_processor = TemplateProcessing(single=[bos, "$A"], special_tokens=[(bos, self.bos_id)])
        saved.save_pretrained(folder)


def load_llm_tokenizer(name_or_path: str, key: str = "model.llm_model") -> LlmTokenizer:
    """The tokenizer in a folder (or hub id): sentencepiece if there is a `tokenizer.model`, else Transformers'.

    `key` is the setting that messages name. Raises ConfigError for an empty name or an unusable tokenizer,
    MissingFileError if there is none.
    """
    if not name_or_path:
        raise ConfigError(f"{key} is empty: name the folder or hub id of a language model")
    try:
        # sentencepiece first, as InstructBLIP used Vicuna (`use_fast=False`).
        # None, and no error, if folder or repository lack this file.
        model_file = cached_file(name_or_path, "tokenizer.model", _raise_exceptions_for_missing_entries=False)
        return FastTokenizer(name_or_path) if model_file is None else SentencePieceTokenizer(Path(model_file))
    except OSError as error:
        raise MissingFileError(
            f"{key}: no tokenizer in {name_or_path!r}, neither a folder nor a hub id that can be read"
        ) from error
    except EmacError:
        raise
    except Exception as error:  # sentencepiece and tokenizers raise RuntimeError and plain Exception for damaged files
        raise ConfigError(
            f"{key}: the tokenizer in {name_or_path!r} cannot be read ({first_sentence(error)}): download or "
            "copy its files again"
        ) from error


def encode_prompts(tokenizer: LlmTokenizer, texts: Sequence[str], max_len: int | None = None) -> list[list[int]]:
    """Of each prompt BOS and its ids; over `max_len` the left is cut: BOS and the last `max_len - 1` ids stay.

    The blank at a prompt's end goes to the answer if the tokenizer has it there (`encode_output`).
    """
    if tokenizer.joins_blank:
        texts = [text.removesuffix(" ") for text in texts]
    rows = tokenizer.encode_batch(texts)
    # The end of a prompt is the game's newest step, so it is the beginning that is cut.
    return [[tokenizer.bos_id, *(row if max_len is None else row[max(0, len(row) - (max_len - 1)) :])] for row in rows]


def encode_output(tokenizer: LlmTokenizer, text: str, max_len: int) -> list[int]:
    """An answer's ids and `</s>`, cut on the right to `max_len - 1` (the original counts a BOS that it then drops).

    Blanks before `</s>` vanish, as they do in the original's tokenizer; an empty answer is `[eos]`.

    Prompts end in `> `. A language model that learned from texts with `> go` knows the tokens `>` and ` go`, and has
    hardly ever seen `go` after a blank of its own: then (`joins_blank`) the blank belongs to the answer. Untrained,
    SmolLM2-135M gives the first token of the right action 6.1 nats instead of 13.3 (26 states of valid_seen).
    """
    answer = (f" {text}" if tokenizer.joins_blank else text).rstrip()
    return [*tokenizer.encode(answer), tokenizer.eos_id][: max_len - 1]


def written(tokenizer: LlmTokenizer, ids: Sequence[int]) -> str:
    """The text of new token ids, as far as `</s>`: behind it stand pads of id 0, which may be a word's id, too.

    The original turned every id 0 into `</s>` before decoding. In Vicuna's vocabulary 0 is `<unk>`, which its tokenizer
    drops as it drops `</s>`; in others 0 may be any token.
    """
    ids = list(ids)
    return tokenizer.decode(ids[: ids.index(tokenizer.eos_id)] if tokenizer.eos_id in ids else ids).strip()


@dataclass(frozen=True)
class Rows:
    """A batch of padded text rows.

    `ids` (N, L) int64, `mask` (N, L) int64 with 1 on real tokens, `labels` (N, L) int64: the id where loss is taken,
    `IGNORE` elsewhere.
    """

    ids: Tensor
    mask: Tensor
    labels: Tensor


def training_rows(prompts: Sequence[list[int]], outputs: Sequence[list[int]], pad_id: int) -> Rows:
    """Rows `prompt, output, pads` with labels on the output (`</s>` included); L is the longest row's length.

    The original pads to longest prompt + longest output; the columns it has more are pads in every row.
    """
    length = max(len(p) + len(o) for p, o in zip(prompts, outputs, strict=True))
    ids, mask, labels = [], [], []
    for prompt, output in zip(prompts, outputs, strict=True):
        # Pads are on the right: a causal model's real tokens never see them, so positions need no correction.
        pads = length - len(prompt) - len(output)
        ids.append(prompt + output + [pad_id] * pads)
        mask.append([1] * (length - pads) + [0] * pads)
        labels.append([IGNORE] * len(prompt) + output + [IGNORE] * pads)
    return Rows(torch.tensor(ids), torch.tensor(mask), torch.tensor(labels))


def prompt_rows(prompts: Sequence[list[int]], pad_id: int) -> Rows:
    """Rows `pads, prompt` for generation: the answer continues on the right; no labels are set."""
    # Pads are on the left, so that the last column holds every prompt's last token, whose logits begin the answer.
    ids = torch.full((len(prompts), max(map(len, prompts))), pad_id)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        start = ids.shape[1] - len(prompt)
        ids[row, start:] = torch.tensor(prompt)
        mask[row, start:] = 1
    return Rows(ids, mask, torch.full_like(ids, IGNORE))
