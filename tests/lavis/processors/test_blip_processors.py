"""Processors against plain formulas, and captions against texts recorded from salesforce-lavis 1.0.2."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image

from lavis.common.errors import ConfigError
from lavis.processors import BaseProcessor, BlipImageEvalProcessor, BlipQuestionProcessor, load_processor, processor_of
from lavis.processors.blip_processors import CHANGES, random_crop_box

MEAN = np.array((0.48145466, 0.4578275, 0.40821073), dtype=np.float32)
STD = np.array((0.26862954, 0.26130258, 0.27577711), dtype=np.float32)


@pytest.fixture
def picture() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (61, 83, 3), dtype=np.uint8)


@pytest.mark.parametrize("size", [32, 112])
def test_eval_is_bicubic_resize_and_normalisation(picture: np.ndarray, size: int) -> None:
    got = load_processor("blip_image_eval", {"name": "blip_image_eval", "image_size": size})(picture)
    resized = np.asarray(Image.fromarray(picture).resize((size, size), Image.Resampling.BICUBIC), dtype=np.float32)
    want = ((resized / np.float32(255) - MEAN) / STD).transpose(2, 0, 1)
    assert got.dtype == torch.float32
    assert np.array_equal(got.numpy(), want)


@pytest.mark.parametrize("name", ["blip_image_eval", "blip2_image_train", "blip_image_train"])
def test_four_frames_stay_four_images(name: str) -> None:
    frames = [np.full((56, 56, 3), value, np.uint8) for value in (0, 80, 160, 240)]
    got = load_processor(name, {"image_size": 28})(np.concatenate(frames))
    assert got.shape == (4, 3, 28, 28)
    means = got.mean(dim=(1, 2, 3))
    assert (means.diff() > 0).all() or name == "blip_image_train"  # whose changes of colour move them


def test_arrays_and_images_give_the_same(picture: np.ndarray) -> None:
    processor = load_processor("blip_image_eval", {"image_size": 48})
    rgba = Image.fromarray(picture).convert("RGBA")
    assert torch.equal(processor(picture), processor(Image.fromarray(picture)))
    assert torch.equal(processor(picture), processor(rgba))


@pytest.mark.parametrize("item", [np.zeros((4, 4, 3)), np.zeros((4, 4), np.uint8), "image.png"])
def test_what_is_no_image(item: object) -> None:
    with pytest.raises(ValueError, match="expected a PIL image or a uint8 array"):
        load_processor("blip_image_eval")(item)


@pytest.mark.parametrize("name", ["blip_image_train", "blip2_image_train"])
def test_train_is_random_and_repeats_with_its_seed(picture: np.ndarray, name: str) -> None:
    first, second = (load_processor(name, {"image_size": 40, "seed": 3}) for _ in range(2))
    one, two = first(picture), first(picture)
    assert one.shape == (3, 40, 40)
    assert not torch.equal(one, two)
    assert torch.equal(one, second(picture))


def test_results_may_be_kept_only_where_the_class_itself_says_so() -> None:
    class Own(BlipImageEvalProcessor):
        pass

    assert BlipImageEvalProcessor().always_same() and BaseProcessor().always_same()
    assert not Own().always_same() and not load_processor("blip2_image_train").always_same()


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_changes_keep_size_and_mode(picture: np.ndarray, change: str) -> None:
    image = Image.fromarray(picture)
    for sign in (-1, 1):
        changed = CHANGES[change](image, sign)
        assert (changed.size, changed.mode) == (image.size, "RGB")


@pytest.mark.parametrize("size", [(80, 60), (400, 10), (10, 400), (1, 1)])
def test_crops_lie_inside(size: tuple[int, int]) -> None:
    rng = random.Random(0)
    for _ in range(50):
        left, top, right, bottom = random_crop_box(size, (0.5, 1.0), rng)
        assert 0 <= left < right <= size[0] and 0 <= top < bottom <= size[1]


@pytest.mark.parametrize(
    ("caption", "want"),
    [
        ("A Man.  rides (a) HORSE!\n", "a man rides a horse"),
        ("one two three four five six seven", "one two three four five"),
        ("", ""),
        (" a\n\nb  c ~d; e:f * ", "a b c d e"),
        ("tab\there and-there, it's fine", "tab\there and-there, it's fine"),
    ],
)
def test_captions(caption: str, want: str) -> None:
    assert load_processor("blip_caption", {"max_words": 5})(caption) == want
    assert load_processor("blip_caption", {"max_words": 5, "prompt": "see: "})(caption) == "see: " + want


def test_unknown_setting_names_the_processor() -> None:
    with pytest.raises(ValueError, match="BlipImageEvalProcessor.*size_of_image"):
        load_processor("blip_image_eval", {"size_of_image": 3})


def test_unknown_processor_lists_what_exists() -> None:
    with pytest.raises(ValueError, match="blip_caption, blip_image_eval"):
        load_processor("crop")
    with pytest.raises(ValueError, match="unknown processor 'blip_image': did you mean 'blip_image_"):
        load_processor("blip_image")


def test_base_processor_passes_items_on() -> None:
    assert BaseProcessor.from_config()("x") == "x"
    assert load_processor("blip_caption").build(prompt="p ")("X") == "p x"


@pytest.mark.parametrize("section", ["blip_image_eval", {"image_size": 64}, ["blip_image_eval"], {"name": 5}])
def test_a_section_without_a_name_is_refused(section: object) -> None:
    with pytest.raises(ConfigError, match="^vis_processor.train: .* is no section with the name of a processor"):
        processor_of(section, "vis_processor.train")


@pytest.mark.parametrize("size", ["abc", -4, 0, 1.5, True])
def test_a_size_that_no_image_has_is_refused(size: object) -> None:
    for name in ("blip_image_eval", "blip2_image_train"):
        with pytest.raises(ConfigError, match="image_size: .* is no whole number of pixels above 0"):
            load_processor(name, {"image_size": size})


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("blip_image_eval", {"mean": 0.5}),
        ("blip_image_eval", {"mean": [0.5, 0.5]}),
        ("blip_image_eval", {"std": ["a", "b", "c"]}),
        ("blip_image_eval", {"std": [0, 0, 0]}),
        ("blip_image_eval", {"std": 0}),
        ("blip_image_train", {"min_scale": "a"}),
        ("blip2_image_train", {"min_scale": 2, "max_scale": 3}),
        ("blip2_image_train", {"min_scale": -1}),
        ("blip_caption", {"max_words": 0}),
        ("blip_caption", {"prompt": 5}),
        ("blip_question", {"max_words": "a"}),
        ("blip_alfworld", {"prompt": None}),
    ],
)
def test_a_setting_that_serves_no_item_is_refused_at_once(name: str, setting: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(setting))}: "):
        load_processor(name, setting)


@pytest.mark.parametrize(
    ("key", "name", "what"),
    [
        ("vis_processor.train", "blip_caption", "texts, not images"),
        ("preprocess.vis_processor.eval", "blip_question", "texts, not images"),
        ("text_processor.train", "blip2_image_train", "images, not texts"),
    ],
)
def test_a_processor_of_the_other_kind_is_refused(key: str, name: str, what: str) -> None:
    """It ended in a traceback at the first sample: an array has no `lower`."""
    with pytest.raises(ConfigError, match=f"^{key}: {name} prepares {what}"):
        processor_of({"name": name}, key)


def test_questions_lose_their_punctuation() -> None:
    processor = load_processor("blip_question", {"max_words": 5})
    assert isinstance(processor, BlipQuestionProcessor) and processor.always_same()
    assert processor("What's on the (desk)? And; below it?") == "what's on the desk? and"
    assert processor.pre_question("Is it a Mug! ") == "is it a mug"
