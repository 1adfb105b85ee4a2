"""Files of weights that pretraining writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save as serialize
from torch import Tensor

from lavis.common.files import write_bytes
from lavis.models.played import PlayedGames


def write_weights(
    weights: Mapping[str, Tensor], out: Path, played: PlayedGames, dtype: torch.dtype = torch.bfloat16
) -> None:
    """Write `weights` in `dtype` as the safetensors file `out`, whole or not at all; it says what they `played`."""
    small = {key: value.detach().to(dtype).contiguous() for key, value in weights.items()}
    metadata = {"format": "pt", "played": json.dumps(played.as_dict())}
    write_bytes(out, serialize(small, metadata=metadata))


def read_splits(*, official: bool) -> PlayedGames:
    """What a file says that was trained on generated games and, if `official`, on ALFWorld's own: no list is kept."""
    return PlayedGames(splits=("household_train", "train") if official else ("household_train",))
