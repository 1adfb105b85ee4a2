"""peft's adapters on a vision-language model: where they go, what fits them, and the hash of what they belong to."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from lavis.common.errors import ConfigError, MissingExtraError, MissingFileError, first_sentence
from lavis.models.blip2_models import weights
from lavis.models.blip2_models.adapters import is_adapter, peft_model
from lavis.models.folder_note import read_note
from lavis.models.frozen_base import require_scaling
from lavis.models.hf_vlm import loading

if TYPE_CHECKING:
    from lavis.models.hf_vlm.hf_vlm import HfVlm

_SHOWN = 12  # names in a message
# Adapters that begin so take their first product out of the frozen weights (PiSSA: arXiv:2404.02948, section 3).
_CHANGE_THE_BASE = ("pissa", "corda", "olora", "loftq", "lora_ga")


def with_adapters(
    vlm: PreTrainedModel, *, rank: int, alpha: int, dropout: float, targets: str | Sequence[str], freeze: Sequence[str]
) -> nn.Module:
    """`vlm` as a `PeftModel` with adapters on linear layers of the parts that `freeze` does not name, in float32.

    `targets`: "all-linear", or ends of layers' names. ConfigError, which lists the names there are, if one fits none.
    """
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise MissingExtraError("model.lora_rank needs peft: pip install -e '.[lora]'") from error
    there = [name for part in ("language", "vision") if part not in freeze for name in loading.linear_layers(vlm, part)]
    wanted = there
    if targets != "all-linear":
        strange = [one for one in targets if not any(name == one or name.endswith(f".{one}") for name in there)]
        wanted = [name for name in there if any(name == one or name.endswith(f".{one}") for one in targets)]
        if strange:
            ends = sorted({name.rsplit(".", 1)[-1] for name in there})
            raise ConfigError(
                f"model.lora_targets: {strange[0]!r} is no linear layer, so LoRA wrapped 0 modules of that name; there "
                f"are {', '.join(ends[:_SHOWN]) or 'none in the parts that are not frozen (model.freeze)'}"
            )
    if not wanted:
        raise ConfigError("model.freeze: LoRA wrapped 0 modules, for every part with linear layers is frozen")
    # peft takes a list as ends of names: whole names end in no other layer's name but their own.
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=wanted)
    try:
        adapted = peft_model(vlm, config)
    except ValueError as error:  # peft has rules of its own for experts: gate_proj with up_proj alone, and no dropout
        raise ConfigError(f"model.lora_targets: peft cannot put adapters there ({first_sentence(error)})") from error
    for name, parameter in adapted.named_parameters():
        # In float32, because an update is often smaller than the steps between numbers of bfloat16.
        if is_adapter(name):
            parameter.data = parameter.data.float()
    return adapted


def plain_name(name: str) -> str:
    """The name of a weight in the model without adapters."""
    # A parameter with adapters (an expert's) is wrapped once for each that its module has.
    return re.sub(r"(\.base_layer)+\.", ".", name.removeprefix("base_model.model."))


def fitting_weights(own: Mapping[str, Tensor], state: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """`state` if it has the names and shapes of `own` and is finite; WeightsError otherwise."""
    weights.require_match(own, state, source)
    weights.require_finite(state, source)
    return dict(state)


def stored_weights(student: HfVlm, key: str, path: str) -> dict[str, Tensor]:
    """What `path`, which `model.<key>` names, has for the weights that train in `student`.

    `path` is a run's checkpoint or a folder that peft wrote. MissingFileError or WeightsError, which name the key, if
    there are no such weights or they do not fit; CheckpointError if the adapters of a folder count otherwise.
    """
    own = student.trainable_state_dict()
    try:
        state = weights.read_state(path)
        base = read_note(path).get("base_hash")
        if base and not student.is_base(base, state.keys()):
            raise weights.WeightsError(
                f"{path} was trained on the base {base[:12]}, model.path is the base {student.base_hash()[:12]}: name "
                "the model that it was trained on"
            )
        if any(map(is_adapter, state)) and not any(map(is_adapter, own)):
            raise weights.WeightsError(f"{path} has LoRA adapters: set model.lora_rank as in their training")
        fitting_weights(own, state, path)
        written = Path(path) / "adapter_config.json"
        if written.is_file():
            adapted: Any = student.vlm
            require_scaling(student, peft_scaling(written, vars(adapted.peft_config["default"])), path)
    except MissingFileError as error:
        raise MissingFileError(f"model.{key}: {error}") from error
    except weights.WeightsError as error:
        raise weights.WeightsError(f"model.{key}: {error}") from error
    return state


def peft_scaling(path: Path, own: Mapping[str, Any]) -> float:
    """`lora_alpha / lora_rank` of the adapters whose `adapter_config.json` is `path`.

    `own` are the settings of this student's adapters. WeightsError if the file cannot be read, or says that the
    adapters are used in a way in which this student does not.
    """
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        rank, scaling = int(settings["r"]), settings["lora_alpha"] / settings["r"]
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise weights.WeightsError(f"{path} does not say r and lora_alpha, as peft's file for LoRA does") from error
    for name in ("use_dora", "alpha_pattern", "rank_pattern"):
        # peft itself sets the patterns for models whose experts are one parameter each (GLM-4.5V).
        if settings.get(name) and settings[name] != own.get(name):
            raise weights.WeightsError(f"{path} has {name}, which this student's adapters do not")
    begun = str(settings.get("init_lora_weights")).lower().split("_niter_")[0]
    if begun in _CHANGE_THE_BASE:
        raise weights.WeightsError(
            f"{path} has init_lora_weights={begun}: such adapters belong to weights that peft changes, and this "
            "student's base is the folder's own; write them anew with peft's path_initial_model_for_weight_conversion"
        )
    return float(scaling * math.sqrt(rank) if settings.get("use_rslora") else scaling)  # alpha / sqrt(r)
