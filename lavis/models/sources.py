"""Where each part of a model comes from, read off its settings: file, shapes, dtype, bytes. Nothing is loaded.

The model is built on the `meta` device, without storage, and the files' names and shapes go through the same functions
that load their weights: what fits here fits there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lavis.common.errors import EmacError, MissingFileError
from lavis.common.utils import is_url
from lavis.models import download
from lavis.models.blip2_models import emac_weights, weights
from lavis.models.blip2_models.blip2_emac import Blip2Emac
from lavis.models.blip2_models.emac_config import (
    KEYS_OF_PARTS,
    PARTS,
    check_llm,
    checked_options,
    frozen_parts,
    package_path,
    required_parts,
)
from lavis.models.memory import skeleton

# Parts that a file still to be downloaded is expected to bring, by its key.
_BROUGHT_BY = {
    "llm_model": ("llm_model",),
    "llm_weights": ("llm_model",),
    "base_model": ("ln_vision", "Qformer", "query_tokens", "llm_proj"),
    "vit_weights": ("visual_encoder",),
}
_ROWS = (".embed_tokens.weight", "lm_head.weight")


@dataclass(frozen=True)
class PartSource:
    """A part of a model: its weights' number, dtype and bytes in memory, and where they come from.

    `state` is `found` (`origin` says where, and the shapes fit), `pending` (`origin` is to be downloaded), `random`
    (no file is named, which is how a part that trains may begin), or `fault` (`origin` says what is wrong).
    """

    part: str
    tensors: int
    parameters: int
    dtype: str
    bytes: int
    frozen: bool
    state: str
    origin: str


def part_sources(section: Mapping[str, Any]) -> list[PartSource]:
    """What brings each part of the model that a `model:` section describes, in the order of `emac_config.PARTS`.

    ConfigError if the settings cannot be used or the language model's sizes are not known.
    """
    options = checked_options(section)
    model = meta_model(options)
    faults: dict[str, str] = {}  # by part
    pending: dict[str, str] = {}
    for key, name, load in _files(options, model):
        # A whole model that was loaded before brings its own vision encoder.
        if key == "vit_weights" and "visual_encoder" in model.sources:
            continue
        parts = [part for part in _BROUGHT_BY.get(key, ()) if part not in model.sources]
        try:
            place = _place(name)
            if place is None:
                where = f" to {download.cached_path(name)}" if is_url(name) else ", from the hub"
                pending |= dict.fromkeys(parts, f"{name} (model.{key}), to be downloaded{where}")
            else:
                load(place)
        except EmacError as error:
            text = str(error).removeprefix(f"model.{key}: ")
            faults |= dict.fromkeys(parts or PARTS, f"model.{key}: {text}")
    described = []
    for part in PARTS:
        own = getattr(model, part)
        values = [own] if isinstance(own, torch.nn.Parameter) else list(own.parameters())
        state, origin = "random", "random weights"
        # What was loaded counts before what went wrong, because a later file may bring what an earlier one lacked.
        if part in model.sources:
            state, origin = "found", model.sources[part]
        elif part in faults:
            state, origin = "fault", faults[part]
        elif part in pending:
            state, origin = "pending", pending[part]
        elif part in model.required_parts:
            state, origin = "fault", f"no file brings its weights: set {KEYS_OF_PARTS[part]}"
        described.append(
            PartSource(
                part=part,
                tensors=len(values),
                parameters=sum(value.numel() for value in values),
                dtype=str(values[0].dtype).removeprefix("torch."),
                bytes=sum(value.nbytes for value in values),
                frozen=part in model.frozen,
                state=state,
                origin=origin,
            )
        )
    return described


def meta_model(options: Mapping[str, Any]) -> Blip2Emac:
    """The model of complete `options` on the `meta` device, without tokenizer: names, shapes and dtypes only."""
    parts = skeleton(options, on_cpu=False)
    # Whether there is a tokenizer decides which weights the Q-Former has; nothing is tokenized here, so any object
    # does.
    reads_text: Any = object() if options["qformer_text_input"] else None
    nothing: Any = None
    with torch.device("meta"):
        model = Blip2Emac(
            visual_encoder=parts["visual_encoder"],
            ln_vision=parts["ln_vision"],
            qformer=parts["Qformer"],
            query_tokens=parts["query_tokens"],
            llm_model=parts["llm_model"],
            llm_tokenizer=nothing,
            qformer_tokenizer=reads_text,
            frozen=frozen_parts(options),
        )
    model.required_parts = tuple(required_parts(options))
    return model


def _files(options: Mapping[str, Any], model: Blip2Emac) -> list[tuple[str, str, Callable[[str], None]]]:
    """Key, name and loading function of every weight file that the options name, in the order of loading."""
    named: list[tuple[str, str, Callable[[str], None]]] = []
    if options["llm_weights"]:
        named.append(("llm_weights", package_path(options["llm_weights"]), partial(emac_weights.load_llm, model)))
    elif not options["llm_config"]:
        named.append(("llm_model", package_path(options["llm_model"]), lambda path: _load_llm(model, path, options)))
    if options["load_basemodel"]:
        load = partial(emac_weights.base_loader(options), model)
        named.append(("base_model", package_path(options["base_model"]), load))
    if options["vit_weights"]:
        named.append(("vit_weights", package_path(options["vit_weights"]), partial(emac_weights.load_vision, model)))
    if options["load_pretrained"] and options["pretrained"]:
        named.append(("pretrained", package_path(options["pretrained"]), model.load_checkpoint))
    return named


def _place(name: str) -> str | None:
    """The local file or folder of `name`; None for a URL or hub id that is still to be downloaded."""
    if is_url(name):
        path = download.cached_path(name)
        return str(path) if path.is_file() else None
    if Path(name).exists():
        return name
    from huggingface_hub import snapshot_download  # only here: most settings name files

    if not download.is_hub_id(name):
        raise MissingFileError(f"{name} does not exist")
    try:
        return snapshot_download(name, local_files_only=True)
    except Exception:  # not in the cache; the hub's client raises many kinds
        return None


def _load_llm(model: Blip2Emac, path: str, options: Mapping[str, Any]) -> None:
    """As Transformers loads a folder: its tables may have fewer rows than the model, which adds [PAD]."""
    check_llm(options)
    found = weights.to_native({f"llm_model.{name}": value for name, value in weights.read_shapes(path).items()})
    own = {name: value for name, value in model.policy_state_dict().items() if name.startswith("llm_model.")}
    for name in (name for name in own if name.endswith(_ROWS) and name in found):
        # Room for [PAD] and for tables that were padded to a multiple of 64; more would be another model.
        if 0 <= len(own[name]) - len(found[name]) <= 64:
            found[name] = torch.empty_like(own[name])
    # Tied word embeddings: the head is the embedding, and not a parameter of its own.
    if "llm_model.lm_head.weight" not in own:
        found.pop("llm_model.lm_head.weight", None)
    weights.require_match(own, found, path)
    model.sources["llm_model"] = path
