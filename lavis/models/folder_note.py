"""What a folder of weights that this project wrote says of itself, in a file beside the weights (`emac_base.json`).

    {"base_hash": "3f0c…",                          the frozen base that adapters belong to; of adapters alone
     "played": {"games": […], "environments": […], …}}    what the weights have trained on (`lavis.models.played`)

A folder of somebody else has no such file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lavis.common.files import write_json
from lavis.models.blip2_models.weights import WeightsError

NOTE = "emac_base.json"


def read_note(folder: Path | str) -> dict[str, Any]:
    """The note in `folder`, empty without one; WeightsError if it is damaged."""
    path = Path(folder) / NOTE
    if not path.is_file():
        return {}
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(note, dict) or not isinstance(note.get("base_hash", ""), str):
            raise ValueError("no mapping with a text base_hash")
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is no note of a folder's weights: write the folder anew") from error
    return note


def write_note(folder: Path | str, *, base_hash: str = "", played: Mapping[str, Any] | None = None) -> None:
    """Write what is known: an absent key reads as unknown."""
    note = {"base_hash": base_hash} if base_hash else {}
    write_json(Path(folder) / NOTE, {**note, **({"played": dict(played)} if played is not None else {})})
