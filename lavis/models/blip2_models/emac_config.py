"""What a `model:` section of Blip2Emac asks for: which parts are frozen, which files they need, whether those fit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers.utils import cached_file

from lavis.common.config import load_yaml, merged, plain
from lavis.common.errors import ConfigError, MissingFileError, first_sentence
from lavis.common.registry import registry
from lavis.common.utils import is_url
from lavis.models import download
from lavis.models.base_model import LIBRARY_ROOT
from lavis.models.blip2_models import weights
from lavis.models.blip2_models.options import CONFIG_DEFAULTS, MODEL_TYPES, NO_LLM, PARTS, VISION, checked_options

__all__ = ["CONFIG_DEFAULTS", "MODEL_TYPES", "PARTS", "VISION", "checked_options"]  # these moved to options.py

# Which key brings a part, for messages.
KEYS_OF_PARTS = {
    "visual_encoder": "model.vit_weights: EVA-CLIP-g's own file, eva_vit_g.pth",
    "ln_vision": "model.base_model",
    "Qformer": "model.base_model",
    "query_tokens": "model.base_model",
    "llm_proj": "model.base_model or model.pretrained",
    "llm_model": "model.llm_model, a folder or hub id, or model.llm_weights",
}
BASE_PARTS = ("Qformer", "query_tokens", "ln_vision", "llm_proj")  # of which `base_model` has some


def model_section(name: str) -> dict[str, Any]:
    """The whole `model:` section of a yaml file (its keys over its type's), or of the model type `name`.

    Raises MissingFileError or ConfigError if there is none.
    """
    own: Mapping[str, Any] = {}
    if Path(name).suffix in (".yaml", ".yml"):
        own = load_yaml(name).get("model")
        if not own:
            raise ConfigError(f"{name} has no section model:")
        name = own.get("model_type") or "tiny"
    base = load_yaml(registry.get_model_class("blip2_emac").default_config_path(name)).model
    return plain(merged({"model": base}, {"model": own}).model)


def frozen_parts(options: Mapping[str, Any]) -> list[str]:
    """Names of the parts that the config's `freeze_*` keys freeze."""
    # LAVIS freezes the encoder and leaves `ln_vision` to train; null says that it goes with the encoder.
    freeze_ln = options["freeze_vit"] if options["freeze_ln_vision"] is None else options["freeze_ln_vision"]
    flags = {
        "visual_encoder": options["freeze_vit"],
        "ln_vision": freeze_ln,
        "Qformer": options["freeze_qformer"],
        "query_tokens": options["freeze_qformer"],
        "llm_proj": options["freeze_proj_layer"],
        "llm_model": options["freeze_llm"],
    }
    return [part for part in PARTS if flags[part]]


def required_parts(options: Mapping[str, Any]) -> list[str]:
    """Names of the parts that must come from a file before the model may train or act.

    All that is frozen; with a `base_model` the whole vision side, whether it trains or not; not those in
    `allow_random`.
    """
    required = set(frozen_parts(options))
    # They train only in part then, and a random rest would make what they learn worthless.
    if options["adaptor_tuning"]:
        required |= {"Qformer", "query_tokens"}
    if options["load_basemodel"]:
        required |= set(VISION)
    return [part for part in PARTS if part in required and part not in (options["allow_random"] or ())]


def check_files(options: Mapping[str, Any]) -> None:
    """Look at every file that complete `options` name, before any is loaded; what has a URL is downloaded first.

    Only names and shapes are read. Raises MissingFileError, ConfigError or WeightsError, which name the key, for a file
    that is missing, damaged, of another part, or made for another language model.
    """
    width = check_llm(options)
    base: dict[str, Tensor] = {}
    if options["load_basemodel"]:
        base = _checked_file("base_model", options, width, BASE_PARTS)
    # If base_model brings a vision encoder, `vit_weights` is not loaded, and so need not be there.
    if options["vit_weights"] and not any(name.startswith("visual_encoder.") for name in base):
        _checked_file("vit_weights", options, width, VISION[:1])
    for key in ("llm_weights", "pretrained" if options["load_pretrained"] else "", "ref_pretrained"):
        if key and options[key]:
            _checked_file(key, options, width)


def _checked_file(
    key: str, options: Mapping[str, Any], width: int | None, parts: Sequence[str] = ()
) -> dict[str, Tensor]:
    """Native names and shapes of the file under `key`, which must have one of `parts`, for an LLM of `width`."""
    path = package_path(options[key])
    with key_named(key, options):
        state = weights.to_native(weights.read_shapes(path))
        # A file may also hold the reference policy's parts, under a prefix (EMMA's whole checkpoints).
        found = {name.split(".")[0].removeprefix(weights.REFERENCE_PREFIX) for name in state}
        if parts and not found & {*parts}:
            what = "vision encoder" if parts == VISION[:1] else "Q-Former or projection"
            held = ", ".join(sorted(found & {*PARTS})) or "none of the model's parts"
            raise weights.WeightsError(f"{path} has no {what}, which this key should bring; it holds {held}")
        projection = state.get("llm_proj.weight")
        # A projection that is not loaded may have any width.
        if key == "base_model" and not options["load_proj_layer"]:
            projection = None
        if width and projection is not None and len(projection) != width:
            raise weights.WeightsError(
                f"{path} projects to a language model of width {len(projection)}, model.llm_model="
                f"{options['llm_model']} has {width} (Vicuna-7B 4096, 13B 5120): name files that belong together"
                f"{', or set model.load_proj_layer=False: a new projection trains' if key == 'base_model' else ''}"
            )
    return state


@contextmanager
def key_named(key: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Puts `model.<key>` in front of the messages about its file, and a URL behind if the file is missing."""
    try:
        yield
    except MissingFileError as error:
        preset = MODEL_TYPES.get(options["model_type"])
        url = load_yaml(LIBRARY_ROOT / preset).model.get(key) if preset else None
        hint = f"; leave model.{key} out, and {url} is downloaded once" if is_url(url) else ""
        raise MissingFileError(f"model.{key}: {error}{'' if url == options[key] else hint}") from error
    except weights.WeightsError as error:
        raise weights.WeightsError(f"model.{key}: {error}") from error


def check_llm(options: Mapping[str, Any]) -> int | None:
    """The width of the language model, None if that is not known yet; ConfigError if it cannot be used.

    Compares its config.json with `llm_expects` and looks whether a folder's files are whole.
    """
    name = package_path(options["llm_model"])
    if options["llm_config"]:
        folder = Path(name) / "config.json"
        # The sizes stand in the settings, so no folder is read. One of that name may be there all the same, and then it
        # must not be another model's.
        own = _config_json(name) if folder.is_file() else {}
        for key, wanted in options["llm_config"].items():
            if own.get(key, wanted) != wanted:
                raise ConfigError(
                    f"model.llm_config: {key} {wanted} describes another language model than model.llm_model={name} "
                    f"({key} {own[key]}): set model.llm_config={{}} model.llm_weights='' for that folder, or name "
                    "it as model.llm_tokenizer if only its tokenizer is meant"
                )
        return _width(options["llm_config"])
    if not name:
        raise ConfigError("model.llm_model is empty: name the folder or hub id of a language model")
    config = _config_json(name)
    for key, wanted in (options["llm_expects"] or {}).items():
        if config and config.get(key) != wanted:
            raise ConfigError(
                f"model.llm_model: {name} has {key} {config.get(key)}, model.llm_expects says {wanted}: base_model was "
                "trained with another one (Vicuna v1.1; v1.5 is Llama 2); name that, or set model.llm_expects={}"
            )
    folder = Path(package_path(options["llm_tokenizer"] or name))
    if options["llm_expects"] and folder.is_dir() and not (folder / "tokenizer.model").is_file():
        raise MissingFileError(
            f"model.llm_tokenizer: {folder} has no tokenizer.model: copy it from Vicuna v1.1's folder, or set "
            "model.llm_expects={} to use another tokenizer"
        )
    if Path(name).is_dir() and not options["llm_weights"]:
        with key_named("llm_model", options):
            weights.read_shapes(name)
    return _width(config)


def _width(config: Mapping[str, Any]) -> int | None:
    """Of what the language model reads: some of OPT's sizes embed tokens in fewer numbers than their layers have."""
    return config.get("word_embed_proj_dim") or config.get("hidden_size")


def _config_json(name: str) -> dict[str, Any]:
    """config.json of a folder or hub id; empty for what is neither, which loading the tokenizer will tell."""
    path = Path(name) / "config.json"
    try:
        if not Path(name).is_dir():
            # Without an owner it is hardly an id: the hub, which may be out of reach for minutes, is not asked.
            own = not download.is_hub_id(name)
            path = Path(cached_file(name, "config.json", local_files_only=own) or path)
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it holds no JSON object")
        return content
    except (OSError, ValueError) as error:
        if not Path(name).is_dir() and not download.is_hub_id(name):
            raise MissingFileError(NO_LLM.format(name)) from error
        if not Path(name).is_dir():
            return {}
        reason = "is not there" if isinstance(error, FileNotFoundError) else f"cannot be read ({first_sentence(error)})"
        raise MissingFileError(
            f"model.llm_model: {path} {reason}: name the folder with config, weights and tokenizer, or copy it again"
        ) from error


def lora_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `adapters.add_lora` that the config's `lora_*` keys give."""
    return {key: options[f"lora_{key}"] for key in ("rank", "alpha", "dropout", "targets")}


def package_path(name: object) -> str:
    """A path as given, or one of the package's own folders (`tiny` -> lavis/models/tiny)."""
    # A path that exists wins over a folder of the package with the same name.
    own = LIBRARY_ROOT / "models" / str(name)
    return str(own) if name and not Path(str(name)).exists() and own.exists() else str(name)
