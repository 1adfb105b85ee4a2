"""Commands and their parts, words and their base forms."""

from __future__ import annotations

import pytest

from lavis.tasks.commands import Command, Lemmatizer, parse


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("go to desk 1", ("go to", "", "desk 1")),
        ("open fridge 1", ("open", "", "fridge 1")),
        ("take apple 1 from fridge 1", ("take", "apple 1", "fridge 1")),
        ("put apple 1 in/on fridge 1", ("put", "apple 1", "fridge 1")),
        ("heat apple 1 with microwave 1", ("heat", "apple 1", "microwave 1")),
        ("use desklamp 1", ("use", "desklamp 1", "")),
        ("look", ("look", "", "")),
        ("take apple 1", ("take", "apple 1", "")),
        ("", ("", "", "")),
    ],
)
def test_parts(text: str, parts: tuple[str, str, str]) -> None:
    assert parse(text) == Command(*parts)


def test_inflected_words_match_their_base_forms() -> None:
    lemmatizer = Lemmatizer({"put", "plate", "1", "in/on", "shelf", "open", "take", "heat"})
    said = ["putting the plates 1 in/on shelves 1", "opened shelf 1", "took a plate 1", "heat plate 2"]
    assert lemmatizer(said) == ["put plate 1 in / on shelf 1", "open shelf 1", "take plate 1", "heat plate 2"]
    assert lemmatizer.name.startswith("spaCy")
