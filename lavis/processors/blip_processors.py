"""BLIP's image and caption processors on Pillow and torch alone; numerically what LAVIS made with torchvision.

Randomness comes from a `random.Random` that the constructor takes, so that a seeded run repeats itself.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from lavis.common.errors import ConfigError
from lavis.common.registry import registry
from lavis.processors.base_processor import BaseProcessor

FRAMES_AROUND = 4  # one for each direction
# Means and deviations of the images that CLIP was trained on (Radford et al. 2021); LAVIS uses them for EVA-CLIP, too.
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


def as_image(item: Image.Image | np.ndarray) -> Image.Image:
    """An RGB image from a PIL image or a uint8 array (H, W, 3); ValueError names the shape of anything else."""
    if isinstance(item, Image.Image):
        return item.convert("RGB")
    if isinstance(item, np.ndarray) and item.dtype == np.uint8 and item.ndim == 3 and item.shape[2] == 3:
        return Image.fromarray(item)
    what = f"{item.dtype} array of shape {item.shape}" if isinstance(item, np.ndarray) else type(item).__name__
    raise ValueError(f"image: expected a PIL image or a uint8 array (H, W, 3), got {what}")


def pixels(image_size: object) -> int:
    """`image_size`, the side of a square in pixels; ConfigError if no image has such a side."""
    if not isinstance(image_size, int) or isinstance(image_size, bool) or image_size < 1:
        raise ConfigError(f"image_size: {image_size!r} is no whole number of pixels above 0")
    return image_size


def words(max_words: object) -> int:
    """`max_words`, at which a text is cut; ConfigError if that is no number of words."""
    if not isinstance(max_words, int) or isinstance(max_words, bool) or max_words < 1:
        raise ConfigError(f"max_words: {max_words!r} is no whole number above 0")
    return max_words


def _by_colour(name: str, values: object) -> np.ndarray:
    """A number for each colour, float32 (3, 1, 1); ConfigError if there are no three finite ones."""
    try:
        numbers = np.array(values, dtype=np.float32).reshape(3, 1, 1)
    except (TypeError, ValueError):
        numbers = np.full((3, 1, 1), np.nan, np.float32)
    if not np.isfinite(numbers).all():
        raise ConfigError(f"{name}: {values!r} is no list of three numbers, for red, green and blue")
    return numbers


class BlipImageBaseProcessor(BaseProcessor):
    """What the image processors share: to a float tensor (3, H, W), normalised with CLIP's mean and deviation."""

    def __init__(self, mean: Sequence[float] | None = None, std: Sequence[float] | None = None) -> None:
        self.mean = _by_colour("mean", CLIP_MEAN if mean is None else mean)
        self.std = _by_colour("std", CLIP_STD if std is None else std)
        if not (self.std > 0).all():
            raise ConfigError(f"std: {std!r} divides, so it is above 0 for each colour")

    def normalise(self, image: Image.Image) -> Tensor:
        """0..255 to 0..1, then (x - mean) / std; float32 (3, H, W)."""
        # The transpose to (3, H, W) is done on bytes and the rest in place, which is four times as fast. NumPy, because
        # PyTorch would wake its threads for every image, which took four times as long between two resizes.
        pixels = np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1)).astype(np.float32)
        pixels /= 255
        pixels -= self.mean
        pixels /= self.std
        return torch.from_numpy(pixels)


@registry.register_processor("blip_image_eval")
class BlipImageEvalProcessor(BlipImageBaseProcessor):
    """Resize to a square with Pillow's bicubic filter, normalise.

    An image that is just four times as high as wide is four square frames, one below the other, as
    `environment.camera=around` renders them: the model reads them as a video.
    """

    deterministic = True

    def __init__(
        self, image_size: int = 384, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
    ) -> None:
        super().__init__(mean, std)
        self.image_size = pixels(image_size)

    def __call__(self, item: Image.Image | np.ndarray) -> Tensor:
        """float32 (3, image_size, image_size); of four frames (4, 3, image_size, image_size)."""
        size = (self.image_size, self.image_size)
        image = as_image(item)
        if frames := frames_around(image):
            return torch.stack([self(frame) for frame in frames])
        return self.normalise(image if image.size == size else image.resize(size, Image.Resampling.BICUBIC))


@registry.register_processor("blip2_image_train")
class Blip2ImageTrainProcessor(BlipImageBaseProcessor):
    """Random crop of a part of the area, resized; random left-right flip; normalise."""

    def __init__(
        self,
        image_size: int = 364,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        min_scale: float = 0.5,
        max_scale: float = 1.0,
        seed: int | None = None,
    ) -> None:
        super().__init__(mean, std)
        self.image_size = pixels(image_size)
        self.scale = (min_scale, max_scale)
        if not (all(isinstance(part, int | float) for part in self.scale) and 0 < min_scale <= max_scale <= 1):
            raise ConfigError(
                f"min_scale: {min_scale!r} and max_scale: {max_scale!r} are parts of the image's area: "
                "0 < min_scale <= max_scale <= 1"
            )
        self.random = random.Random(seed)

    def __call__(self, item: Image.Image | np.ndarray) -> Tensor:
        """float32 (3, image_size, image_size); of four frames (4, 3, image_size, image_size), each cropped anew."""
        # The random numbers are drawn in this order: another one would give a seed other images.
        image = as_image(item)
        if frames := frames_around(image):
            return torch.stack([self(frame) for frame in frames])
        image = image.crop(random_crop_box(image.size, self.scale, self.random))
        image = image.resize((self.image_size, self.image_size), Image.Resampling.BICUBIC)
        if self.random.random() < 0.5:
            image = ImageOps.mirror(image)
        return self.normalise(self.augment(image))

    def augment(self, image: Image.Image) -> Image.Image:
        """Further changes to the cropped image; none here."""
        return image


@registry.register_processor("blip_image_train")
class BlipImageTrainProcessor(Blip2ImageTrainProcessor):
    """As `blip2_image_train`, and two random changes of colour or geometry out of ten (RandAugment, strength 5)."""

    def __init__(self, image_size: int = 384, **settings: Any) -> None:
        super().__init__(image_size, **settings)

    def augment(self, image: Image.Image) -> Image.Image:
        """Two changes drawn with replacement."""
        # Sorted: which change a number draws must not depend on the table's order.
        for change in self.random.choices(sorted(CHANGES), k=2):
            image = CHANGES[change](image, self.random.choice((-1, 1)))
        return image


def frames_around(image: Image.Image) -> list[Image.Image]:
    """The four square frames of an image of `environment.camera=around`, one below the other; [] of another image."""
    side = image.width
    if image.height != FRAMES_AROUND * side:
        return []
    return [image.crop((0, top, side, top + side)) for top in range(0, image.height, side)]


def random_crop_box(size: tuple[int, int], scale: tuple[float, float], rng: random.Random) -> tuple[int, int, int, int]:
    """A random box (left, top, right, bottom) in an image of `size` (width, height).

    Area a random part of the image's within `scale`, aspect ratio log-uniform in 3/4..4/3; after ten failures the
    largest centred box with a ratio in that range (the rule of torchvision's RandomResizedCrop).
    """
    width, height = size
    for _ in range(10):
        area = width * height * rng.uniform(*scale)
        # Log-uniform: 3 / 4 is as likely as 4 / 3. From area A = w h and ratio r = w / h: w = √(A r), h = √(A / r).
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = rng.randint(0, width - w), rng.randint(0, height - h)
            return left, top, left + w, top + h
    # A very flat or very high image has no box of that area and ratio: its middle, as much as the ratio allows.
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


# RandAugment's strength is 5 of 10: half of each change's full range. Greys fill what a change leaves empty.
_SHEAR, _SHIFT, _ANGLE, _GAIN, _GREY = 0.15, 5, 15, 0.9 / 2, (128, 128, 128)


def _affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, fillcolor=_GREY)


CHANGES: dict[str, Callable[[Image.Image, int], Image.Image]] = {
    "Identity": lambda image, sign: image,
    "AutoContrast": lambda image, sign: ImageOps.autocontrast(image),
    "Equalize": lambda image, sign: ImageOps.equalize(image),
    "Brightness": lambda image, sign: ImageEnhance.Brightness(image).enhance(1 + sign * _GAIN),
    "Sharpness": lambda image, sign: ImageEnhance.Sharpness(image).enhance(1 + sign * _GAIN),
    "ShearX": lambda image, sign: _affine(image, 1, sign * _SHEAR, 0, 0, 1, 0),
    "ShearY": lambda image, sign: _affine(image, 1, 0, 0, sign * _SHEAR, 1, 0),
    "TranslateX": lambda image, sign: _affine(image, 1, 0, sign * _SHIFT, 0, 1, 0),
    "TranslateY": lambda image, sign: _affine(image, 1, 0, 0, 0, 1, sign * _SHIFT),
    "Rotate": lambda image, sign: image.rotate(sign * _ANGLE, fillcolor=_GREY),
}


@registry.register_processor("blip_caption")
class BlipCaptionProcessor(BaseProcessor):
    """Lower case, punctuation to blanks, single blanks, at most `max_words` words, with `prompt` in front."""

    deterministic = True

    def __init__(self, prompt: str = "", max_words: int = 50) -> None:
        if not isinstance(prompt, str):
            raise ConfigError(f"prompt: {prompt!r} is no text")
        self.prompt = prompt
        self.max_words = words(max_words)

    def __call__(self, item: str) -> str:
        """The prepared caption."""
        return self.prompt + self.pre_caption(item)

    def pre_caption(self, caption: str) -> str:
        """The caption without the prompt."""
        # The cleaning of BLIP's own training captions, to the letter.
        caption = re.sub(r"[.!\"()*#:;~]", " ", caption.lower())
        caption = re.sub(r"\s{2,}", " ", caption).rstrip("\n").strip(" ")
        return " ".join(caption.split(" ")[: self.max_words])


@registry.register_processor("blip_question")
class BlipQuestionProcessor(BaseProcessor):
    """Lower case, without punctuation, at most `max_words` words: questions of visual question answering."""

    deterministic = True

    def __init__(self, max_words: int = 50) -> None:
        self.max_words = words(max_words)

    def __call__(self, item: str) -> str:
        """The prepared question."""
        return self.pre_question(item)

    def pre_question(self, question: str) -> str:
        """As `__call__`, under LAVIS's name."""
        # Punctuation goes without a blank in its place, unlike a caption's: so in LAVIS.
        bare = re.sub(r"[.!\"()*#:;~]", "", question.lower()).rstrip(" ")
        return " ".join(bare.split(" ")[: self.max_words])


@registry.register_processor("blip_alfworld")
class BlipAlfworldProcessor(BlipCaptionProcessor):
    """The original's processor of an episode's text: lower case, at most `max_words` words, with `prompt` in front.

    Lines and punctuation stay. Words are what blanks separate; the text's end is cut.
    """

    deterministic = True

    def pre_caption(self, caption: str) -> str:
        """The text without the prompt."""
        return " ".join(caption.lower().split(" ")[: self.max_words])
