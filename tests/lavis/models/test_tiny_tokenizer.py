"""The tiny model's tokenizer: names and numbers are one token each, everywhere; any text survives."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from lavis.models import tiny_tokenizer

TOKENIZER = Tokenizer.from_file(str(tiny_tokenizer.DEFAULT_OUT))
EPISODE = """You are in the middle of a room. Looking quickly around you, you see a cabinet 4, and a fridge 1.
Your task is to: heat some egg and put it in garbagecan.
> go to cabinet 4
You arrive at cabinet 4. On the cabinet 4, you see a mug 3, and a plate 12.
> open fridge 1
You open the fridge 1. The fridge 1 is open. In it, you see a apple 2, and a egg 1.
> take egg 1 from fridge 1
You pick up the egg 1 from the fridge 1.
> put egg 1 in/on garbagecan 1
Nothing happens.
> """


def ids(text: str) -> list[int]:
    """Token ids of a text."""
    return TOKENIZER.encode(text).ids


def pieces(text: str) -> list[str]:
    """The text's tokens as text."""
    return [TOKENIZER.decode([i]) for i in ids(text)]


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_any_text_survives(text: str) -> None:
    if not any(special in text for special in tiny_tokenizer.SPECIAL_TOKENS):
        assert TOKENIZER.decode(ids(text)) == text


@pytest.mark.parametrize("name", tiny_tokenizer.type_names())
def test_a_name_is_one_token_everywhere(name: str) -> None:
    (token,) = ids(f" {name}")
    sentences = (
        f"go to {name} 3",
        f"You see a {name} 12, and a {name} 1.",
        f"Your task is to: put some {name} on {name}.\n> ",
        f"Your task is to: clean some {name} and put it in {name}.",
        f"put {name} 1 in/on {name} 2",
    )
    for sentence in sentences:
        assert ids(sentence).count(token) == sentence.count(f" {name}"), pieces(sentence)


@pytest.mark.parametrize("number", range(1, tiny_tokenizer.LARGEST_NUMBER + 1))
def test_a_number_is_one_token_everywhere(number: int) -> None:
    (token,) = ids(f" {number}")
    for sentence in (
        f"open drawer {number}",
        f"You see a mug {number}, and a mug {number}.",
        f"> go to bed {number}\n",
    ):
        assert ids(sentence).count(token) == sentence.count(f" {number}")


def test_longer_words_are_not_cut_at_a_name() -> None:
    assert " pan" not in pieces("a panel")
    assert " cd" not in pieces("a cdrom")


def test_an_episode_is_short() -> None:
    steps = EPISODE.count("\n> ") - 1
    assert len(ids(EPISODE)) - len(ids(EPISODE.split("\n> ")[0])) <= 15 * steps
    assert pieces(EPISODE)[-1] == ".\n> "  # the model's turn begins after the same token every time


def test_the_committed_file_is_what_the_command_builds() -> None:
    built = json.loads(tiny_tokenizer.build_tokenizer().to_str())
    committed = json.loads(tiny_tokenizer.DEFAULT_OUT.read_text(encoding="utf-8"))
    assert built == committed
    assert TOKENIZER.get_vocab_size() <= 1024
    assert tiny_tokenizer.DEFAULT_OUT.stat().st_size < 200_000
