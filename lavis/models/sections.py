"""Checks the `model:` and `run:` sections of a config without a model: types, keys, values. Loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lavis.common.config import check_sections, load_yaml, merged, plain, read_option, to_dot_list
from lavis.common.errors import ConfigError, MissingFileError, unknown
from lavis.common.run_settings import TEXTS, read_settings
from lavis.models.blip2_models import options as blip2_options
from lavis.models.download import in_hub_cache, is_hub_id
from lavis.models.hf_vlm import options as hf_vlm_options

LIBRARY_ROOT = Path(__file__).resolve().parents[1]
WEIGHT_FILES = (".pth", ".pt", ".bin", ".safetensors")
# By architecture: the yaml of each type, the type if none is named, and the check of a whole section.
_KNOWN: dict[str, tuple[Mapping[str, str], str, Callable[[Mapping[str, Any]], object]]] = {
    "blip2_emac": (blip2_options.MODEL_TYPES, "tiny", blip2_options.checked_options),
    "hf_vlm": (hf_vlm_options.MODEL_TYPES, "default", hf_vlm_options.checked_options),
}


def check_section(section: Mapping[str, Any]) -> None:
    """ConfigError for what building the model would refuse at once; MissingFileError for a checkpoint that is absent.

    An architecture of one's own passes: only its class knows its keys.
    """
    for key in ("arch", "model_type"):
        if not isinstance(section.get(key), str | None):
            raise ConfigError(f"model.{key}: {section[key]!r} is no name")
    arch = section.get("arch") or "blip2_emac"
    if arch not in _KNOWN:
        return
    types, default, check = _KNOWN[arch]
    name = section.get("model_type") or default
    if name not in types:
        raise ConfigError(unknown("model type", name, types))
    whole = plain(merged(load_yaml(LIBRARY_ROOT / types[name]).model, {**section, "model_type": name}))
    check(whole)
    for key in ("pretrained", "ref_pretrained"):
        path = whole.get(key)
        if not isinstance(path, str) or Path(path).suffix not in WEIGHT_FILES or "://" in path:
            continue  # a folder, a hub id or an address: whoever reads it says whether it is there
        there = Path(path).exists() or (LIBRARY_ROOT / "models" / path).exists()  # a file of ours, too
        # The reference is loaded whatever `load_pretrained` says.
        if not there and (key == "ref_pretrained" or whole.get("load_pretrained", True)):
            raise MissingFileError(f"model.{key}: no weight file {path}")
    # A name with an owner may be an id of the hub, which loading asks; a path can only be a folder.
    path = whole.get("llm_model")
    if not isinstance(path, str) or not path or Path(path).exists() or (LIBRARY_ROOT / "models" / path).exists():
        return
    if path.startswith(("/", "./", "../")):
        raise MissingFileError(f"model.llm_model: no folder {path}")
    if not is_hub_id(path) and not in_hub_cache(path):
        raise MissingFileError(blip2_options.NO_LLM.format(path))


def changed_keys(section: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a `model:` section that differ from its type's own yaml; architecture and type stay."""
    arch = section.get("arch") or "blip2_emac"
    if arch not in _KNOWN:
        return dict(section)
    types, default, _ = _KNOWN[arch]
    own = plain(load_yaml(LIBRARY_ROOT / types[section.get("model_type") or default]).model)
    return {key: value for key, value in section.items() if key in ("arch", "model_type") or own.get(key) != value}


def check_config(cfg_path: str, options: Sequence[str]) -> dict[str, Any]:
    """What `Config` will say of a file and `options`, as far as that needs no class; the data are not looked at.

    Returns the `model:` section that they make, without what its type's own yaml adds. Raises MissingFileError or
    ConfigError. A pipe passes, because it can be read only once; it returns no keys.
    """
    if Path(cfg_path).exists() and not Path(cfg_path).is_file():
        return {}
    changes = merged({}, *(read_option(option, TEXTS) for option in to_dot_list(options)))
    user = load_yaml(cfg_path)
    check_sections(user, changes, cfg_path)
    model = user.get("model") or {}
    if (changes.get("model") or {}).get("arch") not in (None, model.get("arch")):
        model = {}  # the file's keys are those of another architecture (`Config.build_model_config`)
    whole = merged({"run": user.get("run") or {}, "model": model}, changes)
    read_settings(whole.run)
    section = plain(whole.model)
    check_section(section)
    return section
