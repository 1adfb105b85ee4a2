"""The frozen base that trained weights belong to: a checkpoint beside another base is refused.

A run's checkpoint holds what trained and nothing else, and the hash of the rest (`base_hash`). Weights of the right
shapes would load beside any base, and mean nothing there. So would adapters that count more or less than in training
(`adapter_scaling`).
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lavis.common.errors import EmacError, why_unreadable
from lavis.common.utils import is_url
from lavis.models import download
from lavis.models.base_model import BaseModel
from lavis.models.student import Student
from lavis.models.tensor_files import TensorFileError, load_tensors


class CheckpointError(EmacError, ValueError):
    """A checkpoint that is truncated, foreign, or belongs to another model or run; the text names both sides."""


def check_base(model: BaseModel | Student, path: Path | str, *, loaded: bool = False) -> None:
    """CheckpointError if `path` is a run's checkpoint, offline or online, of another frozen base than `model`'s.

    With `loaded` also if its weights are not in `model`: a class of one's own may not read `model.pretrained`.
    Weight files of other kinds (LAVIS's, safetensors) say nothing of a base and pass.
    """
    file = download.cached_path(str(path)) if is_url(path) else Path(path)
    if not file.is_file() or file.suffix == ".safetensors":
        return
    try:
        content = load_tensors(file, mmap=zipfile.is_zipfile(file))  # torch's older form cannot be mapped
    except (OSError, TensorFileError) as error:
        raise CheckpointError(f"{path} cannot be read as a checkpoint: {why_unreadable(file, error)}") from error
    if isinstance(content, dict) and isinstance(content.get("model"), dict) and "base_hash" in content:
        if not isinstance(content["base_hash"], str):
            raise CheckpointError(f"{path} is damaged: base_hash is {type(content['base_hash']).__name__}, not str")
        require_base(model, content, path)
        own = model.trainable_state_dict() if loaded else {}
        common = own.keys() & content["model"].keys()
        if common and not any(_alike(own[name], content["model"][name]) for name in common):
            raise CheckpointError(
                f"model.pretrained: the weights of {path} are not in the model: "
                f"{type(model).__name__}.from_config must load that file"
            )


def check_bases(model: BaseModel | Student, section: Mapping[str, Any]) -> None:
    """`check_base` for the checkpoints that a `model:` section has loaded into `model`."""
    # The reference is loaded whatever `load_pretrained` says.
    for key in ("pretrained", "ref_pretrained") if section.get("load_pretrained", True) else ("ref_pretrained",):
        if section.get(key):
            check_base(model, str(section[key]), loaded=key == "pretrained")


def _alike(own: Tensor, stored: Tensor) -> bool:
    """Whether the numbers are the same in the type of `own`."""
    return own.shape == stored.shape and torch.equal(own.cpu(), stored.to(own.dtype).cpu())


def require_base(model: BaseModel | Student, content: Mapping[str, Any], path: Path | str) -> None:
    """CheckpointError if the weights were trained on another frozen base than `model`'s."""
    config = content.get("config")
    section = config.get("model") if isinstance(config, dict) else None
    if model.is_base(content["base_hash"], content["model"].keys()):
        scaling = content.get("adapter_scaling")
        if scaling is None and isinstance(section, dict):  # of an older version; only what its settings say is known
            alpha, rank = section.get("lora_alpha"), section.get("lora_rank")
            scaling = alpha / rank if isinstance(alpha, int) and isinstance(rank, int) and rank > 0 else None
        require_scaling(model, scaling, path)
        return
    # What the settings in the file say of its base. Only short printable texts of them: the message goes to a terminal.
    keys = ("model_type", "path", "quantization", "llm_model", "llm_weights", "base_model", "vit_weights")
    texts = {key: section.get(key) for key in keys} if isinstance(section, dict) else {}
    named = [
        f"model.{key}={text[:200]}"
        for key, text in texts.items()
        if isinstance(text, str) and text and text.isprintable()
    ]
    files = f" ({' '.join(named)})" if named else ""
    raise CheckpointError(
        f"{path} was trained on the frozen base {content['base_hash'][:12]}{files}, "
        f"this model's frozen base is {model.base_hash()[:12]}: load the same base weights, in the same number format "
        "(model.dtype, model.llm_dtype, model.vit_precision)"
    )


def adapter_scaling(model: nn.Module | Student) -> float | None:
    """By what `model` multiplies the product of its adapters, `lora_alpha / lora_rank`; None without adapters."""
    assert isinstance(model, nn.Module)  # every student is one
    # By peft's names, without importing it, which takes seconds. All adapters of a model have one scaling.
    for module in model.modules():
        if hasattr(module, "lora_A"):
            scaling: Any = module.scaling
            return next(map(float, scaling.values()), None)
    return None


def base_of(model: BaseModel | Student) -> dict[str, Any]:
    """What a checkpoint says of the base of its weights, for `require_base`."""
    return {"base_hash": model.base_hash(), "adapter_scaling": adapter_scaling(model)}


def require_scaling(model: BaseModel | Student, scaling: object, path: Path | str) -> None:
    """CheckpointError if the adapters of `path` counted otherwise (`scaling`) than `model` counts them."""
    own = adapter_scaling(model)
    if isinstance(scaling, float) and own is not None and not math.isclose(own, scaling, rel_tol=1e-6):
        raise CheckpointError(
            f"the adapters of {path} were trained with lora_alpha / lora_rank = {scaling:g}, this model's count "
            f"{own:g} times: set model.lora_rank and model.lora_alpha as in that training"
        )
