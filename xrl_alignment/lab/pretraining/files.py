"""Files and folders of weights that pretraining writes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save as serialize
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from lavis.common.files import make_folder, open_to_others, write_bytes
from lavis.models.folder_note import write_note
from lavis.models.played import PlayedGames


def write_weights(
    weights: Mapping[str, Tensor], out: Path, played: PlayedGames, dtype: torch.dtype = torch.bfloat16
) -> None:
    """Write `weights` in `dtype` as the safetensors file `out`, whole or not at all; it says what they `played`."""
    small = {key: value.detach().to(dtype).contiguous() for key, value in weights.items()}
    metadata = {"format": "pt", "played": json.dumps(played.as_dict())}
    write_bytes(out, serialize(small, metadata=metadata))


def write_folder(model: PreTrainedModel, base: str, out: Path, played: PlayedGames) -> None:
    """Write `model` and the tokenizer of the folder or hub id `base` as the folder `out`, whole or not at all.

    Transformers loads it; its note says what the weights `played`.
    """
    make_folder(out.parent)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as folder:
        made = Path(folder) / "model"
        model.save_pretrained(made)
        AutoTokenizer.from_pretrained(base, trust_remote_code=False).save_pretrained(made)
        open_to_others(made)
        write_note(made, played=played.as_dict())
        made.rename(out)


def read_splits(*, official: bool) -> PlayedGames:
    """What a file says that was trained on generated games and, if `official`, on ALFWorld's own: no list is kept."""
    return PlayedGames(splits=("household_train", "train") if official else ("household_train",))
