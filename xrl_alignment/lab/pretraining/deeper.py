"""A deeper language model that answers as the one it was made of: copies of layers, which add nothing yet.

    [layer 0] [layer 1] [copy of 1] [layer 2] [copy of 2] [layer 3]

A layer of a Llama adds to the hidden state what its `o_proj` gives (attention), then what its `down_proj` gives. Both
are zero in a copy, so it changes nothing until it is trained (block expansion: Wu et al. 2024, arXiv:2401.02415).
"""

from __future__ import annotations

import re
from collections.abc import Set
from pathlib import Path
from typing import Any

import torch

from lavis.common.config import plain
from lavis.common.errors import ConfigError
from lavis.models.played import games_of_weights
from xrl_alignment.builders.student import load_student, model_section
from xrl_alignment.lab.pretraining.files import write_weights

LAYER = re.compile(r"(llm_model\.model\.layers\.)(\d+)(\..+)")
OUTPUTS = ("o_proj.weight", "down_proj.weight")


def make_deeper(options: dict[str, Any], after: Set[int], path: Path) -> dict[str, Any]:
    """The options of a model with a copy behind each of the layers `after` (from 0) of the model that `options` name.

    Its weights are written to `path`. ConfigError for a layer that the model lacks, and for a language
    model that does not train: its layers are no weights of ours.
    """
    weights = load_student(options, torch.device("cpu"))[0].trainable_state_dict()
    layers = {int(match[2]) for name in weights if (match := LAYER.fullmatch(name))}
    if missing := sorted(after - layers):
        there = f"its layers are 0 to {max(layers)}" if layers else "its language model does not train"
        raise ConfigError(f"--deeper {missing[0]}: the model has no such layer to train, {there}")
    made = {}
    for name, weight in weights.items():
        if not (match := LAYER.fullmatch(name)):
            made[name] = weight
            continue
        begin, layer, rest = match[1], int(match[2]), match[3]
        place = layer + sum(other < layer for other in after)
        made[f"{begin}{place}{rest}"] = weight
        if layer in after:
            made[f"{begin}{place + 1}{rest}"] = torch.zeros_like(weight) if rest.endswith(OUTPUTS) else weight.clone()
    write_weights(made, path, games_of_weights(model_section(options)), torch.float32)
    # `llm_weights` are those of the shallow model, and `path` has them all.
    changed = {"pretrained": str(path), "llm_weights": None}
    config = {**plain(options.get("llm_config") or {}), "num_hidden_layers": len(layers) + len(after)}
    return {**options, **changed, "llm_config": config}
