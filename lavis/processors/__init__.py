"""Processors: what prepares images and texts for a model."""

from __future__ import annotations

from collections.abc import Mapping

from lavis.common.registry import registry
from lavis.processors.base_processor import BaseProcessor
from lavis.processors.blip_processors import (
    Blip2ImageTrainProcessor,
    BlipCaptionProcessor,
    BlipImageEvalProcessor,
    BlipImageTrainProcessor,
)

__all__ = [
    "BaseProcessor",
    "Blip2ImageTrainProcessor",
    "BlipCaptionProcessor",
    "BlipImageEvalProcessor",
    "BlipImageTrainProcessor",
    "load_processor",
]


def load_processor(name: str, cfg: Mapping[str, object] | None = None) -> BaseProcessor:
    """The processor registered as `name`, built from `cfg`."""
    return registry.get_processor_class(name).from_config(cfg)
