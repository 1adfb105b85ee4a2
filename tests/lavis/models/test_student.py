"""LAVIS's batches as questions, and the limits of an answer."""

from __future__ import annotations

import pytest
import torch

from lavis.common.errors import ConfigError
from lavis.models.student import Decoding, questions_of, texts_of

IMAGES = torch.arange(6.0).view(2, 3)


def test_one_question_for_each_image() -> None:
    first, second = questions_of({"image": IMAGES}, ["a", "b"])
    assert (first.prompt, second.prompt) == ("a", "b") and second.encoded is None
    assert torch.equal(second.images[-1], IMAGES[1])
    assert [question.prompt for question in questions_of({"image": IMAGES}, "a")] == ["a", "a"]


@pytest.mark.parametrize("key", ["encoded", "query_output"])
def test_what_was_computed_of_the_images_replaces_them(key: str) -> None:
    questions = questions_of({key: IMAGES}, ["a", "b"])
    assert torch.equal(questions[1].encoded, IMAGES[1]) and not questions[1].images


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ({"prompt": ["a"]}, "samples lack 'image'; they have prompt"),
        ({"image": IMAGES[:0]}, "samples hold no sample: image is empty"),
        ({"image": IMAGES[:1]}, r"samples\['prompt'\] has 2 prompts for 1 images"),
    ],
)
def test_images_that_do_not_fit(samples: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        questions_of(samples, ["a", "b"])


def test_texts_that_do_not_fit() -> None:
    samples = {"image": IMAGES, "one": ["a", "b"], "few": ["a"], "single": "ab"}
    assert texts_of(samples, "one", "one") == (["a", "b"], ["a", "b"])
    with pytest.raises(ValueError, match="samples lack 'none'; they have image, one"):
        texts_of(samples, "none")
    for key in ("few", "single"):
        with pytest.raises(ValueError, match=f"{key}.*: expected a list of 2 strings"):
            texts_of(samples, key)


def test_lengths_count_a_bos_as_in_the_original() -> None:
    decoding = Decoding(max_length=32, min_length=5)
    assert (decoding.max_new, decoding.min_new) == (31, 4) and Decoding(min_length=0).min_new == 0
    with pytest.raises(ConfigError, match="max_length=1: at least 2"):
        _ = Decoding(max_length=1).max_new


def test_more_answers_than_a_search_keeps() -> None:
    for options in ({"num_beams": 2}, {"num_beams": 1}, {"num_beams": 2, "use_nucleus_sampling": True}):
        with pytest.raises(ConfigError, match=f"num_captions=3 is more than num_beams={options['num_beams']}"):
            Decoding(num_captions=3, **options)
    assert Decoding(num_captions=3, num_beams=1, use_nucleus_sampling=True).num_captions == 3
