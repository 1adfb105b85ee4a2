"""Checks of a model, part by part: what brings its weights, whether shapes fit, dtype and bytes. Loads no weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from xrl_alignment.lab.doctor.finding import Finding

_LEVELS = {"found": "ok", "pending": "warn", "random": "ok", "fault": "fail"}


def is_model(name: str) -> bool:
    """Whether `name` is a model type or a yaml with a `model:` section, and no weight file or folder."""
    # Imports stand in the functions of this module: the doctor has to run even if what they need is missing.
    from lavis.models.blip2_models.emac_config import MODEL_TYPES

    return name in MODEL_TYPES or Path(name).suffix in (".yaml", ".yml")


def check_model(name: str, options: Sequence[str] = ()) -> Iterator[Finding]:
    """The parts of the model type or yaml `name`, with `options` ("model.base_model=…") over its settings."""
    from lavis.common.config import merged, read_option
    from lavis.common.errors import ConfigError, EmacError, unknown

    try:
        sections = merged({}, *(read_option(option) for option in options))
        for section in sections:
            if section != "model":
                raise ConfigError(unknown("section", str(section), ["model"]))
        given = sections.get("model") or {}
    except EmacError as error:
        yield Finding("fail", f"model {name}", str(error), "correct the settings")
        return
    yield from check_parts(name, given)


def check_parts(name: str, given: Mapping[str, Any]) -> Iterator[Finding]:
    """The parts of the model type or yaml `name`, with the keys `given` over its settings."""
    from lavis.common.config import merged, plain
    from lavis.common.errors import EmacError
    from lavis.models.blip2_models.emac_config import model_section
    from lavis.models.sources import part_sources

    try:
        parts = part_sources(plain(merged({"model": model_section(name)}, {"model": given}).model))
    except EmacError as error:
        yield Finding("fail", f"model {name}", str(error), "correct the settings")
        return
    advice = {
        "pending": "it is downloaded at the first start; without a network name a file",
        "fault": "the model does not train or act so",
    }
    for part in parts:
        fits = ", shapes fit" if part.state == "found" else ""
        use = "frozen" if part.frozen else "trains"
        size = f"{part.tensors} tensors, {part.parameters:,} weights, {part.dtype}, {_size(part.bytes)}, {use}"
        detail = f"{size}; {part.origin}{fits}"
        yield Finding(_LEVELS[part.state], f"model.{part.part}", detail, advice.get(part.state, ""))
    # Once loaded: in the dtypes that the settings ask for, without gradients and optimiser.
    total = sum(part.bytes for part in parts)
    yield Finding("ok", f"model {name}", f"{sum(p.parameters for p in parts):,} weights, {_size(total)} once loaded")


def check_hub_model(given: Mapping[str, Any]) -> Iterator[Finding]:
    """A model of the hub (`model.arch=hf_vlm`): settings, config, processor, dtype and bytes. No weight is read."""
    import torch

    from lavis.common.errors import EmacError
    from lavis.models.hf_vlm.chat import Chat
    from lavis.models.hf_vlm.loading import count_weights, load_config, load_processor
    from lavis.models.hf_vlm.options import checked_options

    try:
        options = checked_options(given)
        config = load_config(options["path"])
        processor = load_processor(options["path"], config)
        sizes = {"images": options["images"], "longest": options["max_txt_len"]}
        Chat(processor, config, **sizes, image_last=options["image_last"])
        dtype, quantised = options["dtype"], options["quantization"]
        count, size = count_weights(options["path"], config, getattr(torch, dtype), quantised)
    except EmacError as error:
        yield Finding("fail", "model hf_vlm", str(error), "correct the settings")
        return
    weights = f"{count:,} weights, {dtype if quantised == 'none' else quantised}, {_size(size)}"
    found = f"{options['path']}: a {config.model_type}, with processor and chat template"
    yield Finding("ok", "model hf_vlm", f"{weights}; {found}")


def check_own_model(name: str) -> Finding:
    """A model `module:Class`: whether the class is there and acts. What it needs is known to itself alone."""
    from lavis.common.errors import EmacError
    from xrl_alignment.builders.student import default_type

    try:
        default_type(name)
    except EmacError as error:
        return Finding("fail", f"model {name}", str(error), "correct model.arch")
    return Finding("ok", f"model {name}", "a class of your own; what it needs is not known before it is built")


def _size(count: int) -> str:
    return f"{count / 1024**3:.2f} GiB" if count >= 1024**3 else f"{count / 1024**2:.2f} MiB"
