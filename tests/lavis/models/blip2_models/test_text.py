"""Rows and tokenizers: which side is cut, where pads stand, which BOS."""

from __future__ import annotations

from pathlib import Path

import pytest

from lavis.models.blip2_models import text
from lavis.models.blip2_models.text import IGNORE


class Letters:
    """A tokenizer with one id for each letter."""

    bos_id, eos_id, pad_id = 1, 2, 0

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(i) for i in ids if i > 2)

    def __len__(self) -> int:
        return 300


def test_prompts_are_cut_on_the_left() -> None:
    assert text.encode_prompts(Letters(), ["abcde", "abc"], 4) == [[1, *map(ord, "cde")], [1, *map(ord, "abc")]]
    assert text.encode_prompts(Letters(), ["abcde"]) == [[1, *map(ord, "abcde")]]
    assert text.encode_prompts(Letters(), ["", "abc"], 4) == [[1], [1, *map(ord, "abc")]]
    assert text.encode_prompts(Letters(), ["abc"], 1) == [[1]]


def test_outputs_are_cut_on_the_right() -> None:
    assert text.encode_output(Letters(), "abc  \n", 9) == [*map(ord, "abc"), 2]
    assert text.encode_output(Letters(), "abcdef", 4) == [*map(ord, "abc")]  # a long answer loses its end
    assert text.encode_output(Letters(), "", 4) == [2]


def test_training_rows() -> None:
    rows = text.training_rows([[1, 5], [1]], [[7, 2], [8, 9, 6, 2]], pad_id=0)
    assert rows.ids.tolist() == [[1, 5, 7, 2, 0], [1, 8, 9, 6, 2]]
    assert rows.mask.tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert rows.labels.tolist() == [[IGNORE, IGNORE, 7, 2, IGNORE], [IGNORE, 8, 9, 6, 2]]


def test_prompt_rows() -> None:
    rows = text.prompt_rows([[1, 5], [1]], pad_id=0)
    assert rows.ids.tolist() == [[1, 5], [0, 1]]
    assert rows.mask.tolist() == [[1, 1], [0, 1]]


def test_sentencepiece_as_the_original_used_it(golden_case: Path) -> None:
    tokenizer = text.load_llm_tokenizer(str(golden_case / "llm"))
    assert isinstance(tokenizer, text.SentencePieceTokenizer)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (2, 2)
    assert tokenizer.pad_id == len(tokenizer) - 1
    ids = tokenizer.encode("go to desk 1")
    assert tokenizer.decode([1, *ids[:2], 0, *ids[2:], 2, tokenizer.pad_id]) == "go to desk 1"


@pytest.mark.parametrize(("name", "message"), [("", "model.llm_model is empty"), ("no/such/folder", "no/such/folder")])
def test_no_tokenizer(monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        text.load_llm_tokenizer(name)
