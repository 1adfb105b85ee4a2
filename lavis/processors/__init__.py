"""Processors: what prepares images and texts for a model."""

from __future__ import annotations

from collections.abc import Mapping

from lavis.common.errors import ConfigError
from lavis.common.registry import registry
from lavis.processors.base_processor import BaseProcessor
from lavis.processors.blip_processors import (
    Blip2ImageTrainProcessor,
    BlipAlfworldProcessor,
    BlipCaptionProcessor,
    BlipImageBaseProcessor,
    BlipImageEvalProcessor,
    BlipImageTrainProcessor,
    BlipQuestionProcessor,
)

__all__ = [
    "BaseProcessor",
    "Blip2ImageTrainProcessor",
    "BlipAlfworldProcessor",
    "BlipCaptionProcessor",
    "BlipImageEvalProcessor",
    "BlipImageTrainProcessor",
    "BlipQuestionProcessor",
    "load_processor",
    "processor_of",
]


def load_processor(name: str, cfg: Mapping[str, object] | None = None) -> BaseProcessor:
    """The processor registered as `name`, built from `cfg`."""
    return registry.get_processor_class(name).from_config(cfg)


def processor_of(section: object, key: str) -> BaseProcessor:
    """The processor of a config's section `{name: …}`.

    ConfigError, which names its `key`, if it has no name, or is one of texts where images are processed, or the other
    way round.
    """
    if not isinstance(section, Mapping) or not isinstance(section.get("name"), str):
        raise ConfigError(f"{key}: {section!r} is no section with the name of a processor, {{name: blip_image_eval}}")
    processor, name = load_processor(section["name"], section), section["name"]
    if "vis_processor" in key and isinstance(processor, (BlipCaptionProcessor, BlipQuestionProcessor)):
        raise ConfigError(f"{key}: {name} prepares texts, not images: name another, such as blip_image_eval")
    if "text_processor" in key and isinstance(processor, BlipImageBaseProcessor):
        raise ConfigError(f"{key}: {name} prepares images, not texts: name another, such as blip_caption")
    return processor
