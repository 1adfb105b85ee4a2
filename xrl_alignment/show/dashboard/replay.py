"""A finished episode step by step: texts and actions from its shard, or from the journal if nothing was stored."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from alfworld_native.language.sentences import untold
from lavis.datasets.shards import IMAGE, NAME, Shard, ShardError, open_shard
from xrl_alignment.wire.images import MAX_PIXELS

MAX_STEPS = 10_000  # of an episode that can be shown; a longer one would take a look of the dashboard for itself
_TEXTS = ("text_output", "text_output_neg", "executed", "feedback")


def find_shard(buffer: Path, name: str) -> Shard:
    """The shard that a journal names.

    ShardError if it is not a file of the folder `buffer`, cannot be read, or has more than MAX_STEPS steps.
    """
    # A run directory may come from somebody else: neither a name nor a link may lead out of its buffer.
    if not NAME.fullmatch(name) or "/" in name or os.sep in name or name.startswith("."):
        raise ShardError(f"{name[:80]!r} is no name of a shard")
    path = buffer / name
    if path.is_symlink():
        raise ShardError(f"{name} is a link")
    shard = open_shard(path)
    if shard.steps > MAX_STEPS:
        raise ShardError(f"{name} has {shard.steps} steps, at most {MAX_STEPS} can be shown")
    return shard


def agreement(buffer: Path, name: str, unlabelled: int) -> tuple[int, int] | None:
    """In how many steps of an episode the agent wrote the expert's action, and in how many both were asked.

    In `unlabelled` steps the expert had no label, and the agent's own action stands in its place: they do not count.
    None if the shard cannot be read.
    """
    try:
        shard = find_shard(buffer, name)
        said = [shard.read(step, ("text_output", "text_output_neg")) for step in range(shard.steps)]
    except ShardError:
        return None
    asked = [(row["text_output"], row["text_output_neg"]) for row in said if row["text_output_neg"]]
    same = sum(label == own for label, own in asked)
    return max(0, same - unlabelled), max(0, len(asked) - unlabelled)


def read_record(journal: Path, start: int, size: int) -> dict[str, Any] | None:
    """A line of the journal; None if it is not there any more."""
    try:
        with open(journal, "rb") as file:
            file.seek(start)
            record = json.loads(file.read(size))
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def replay(record: dict[str, Any], buffer: Path, *, tell_objects: bool = True) -> dict[str, Any]:
    """An episode as the page shows it: facts, `steps`, how many `frames` there are, and what is missing (`notice`).

    `untold` are the sentences that the agent was not told: without `tell_objects` those that list objects.

    A step has what the agent had heard, what it wrote, the expert's label, what was executed, and the answer.
    `agent` is None if the agent was not asked, `expert` is None if no label was stored.
    """
    name, notice = str(record.get("shard", "")), ""
    # What the journal has of every episode: actions and answers.
    told = record.get("steps")
    pairs = [step for step in told if isinstance(step, list) and len(step) == 2] if isinstance(told, list) else []
    steps: list[dict[str, Any]] = [
        {"agent": None, "expert": None, "executed": str(action), "feedback": str(feedback)}
        for action, feedback in pairs
    ]
    frames = 0
    # What the shard has of a stored one: who said what, and frames.
    if name:
        try:
            shard = find_shard(buffer, name)
            rows = [shard.read(step, _TEXTS) for step in range(shard.steps)]
            steps = [
                {
                    "agent": row["text_output_neg"] or None,
                    "expert": row["text_output"],
                    "executed": row["executed"],
                    "feedback": row["feedback"],
                }
                for row in rows
            ]
            frames = shard.steps if IMAGE in shard else 0
        except ShardError as error:
            where = str(error).replace(f"{buffer}{os.sep}", "")  # without the folder in which the run is
            notice = f"The frames of this episode are missing: {where}."
    else:
        notice = "Nothing was stored of this episode but its texts: no frames, no labels."
    if record.get("unlabelled"):
        notice += f" The expert gave no label in {record['unlabelled']} of its states; there the agent's own stands."
    heard = str(record.get("opening", ""))
    for step in steps:
        # What the agent had heard when it acted: the opening, then the answer to the step before.
        step["heard"], heard = heard, step["feedback"]
    facts: dict[str, Any] = {}
    for key in ("round", "env", "game", "won", "assisted", "actions", "seconds"):
        fact = record.get(key)
        # The page's JSON knows neither NaN nor infinity; what is nested is shown as text.
        if isinstance(fact, float) and not math.isfinite(fact):
            fact = None
        facts[key] = fact if fact is None or isinstance(fact, (bool, float, int, str)) else str(fact)
    opening = str(record.get("opening", ""))
    hidden = () if tell_objects else (sentence for step in steps for sentence in untold(step["feedback"]))
    told = {"opening": opening, "untold": list(dict.fromkeys(hidden))}
    return {**facts, **told, "steps": steps, "frames": frames, "notice": notice}


def stored_frame(buffer: Path, name: str, step: int) -> np.ndarray:
    """The frame of a step: uint8 (H, W, 3). ShardError if there is none."""
    shard = find_shard(buffer, name)
    # Before it is read: a run directory may come from somebody else, with frames of any size.
    if shard.row_size(IMAGE) > 3 * MAX_PIXELS:
        raise ShardError(f"the frames of {name} have more than {MAX_PIXELS} pixels")
    image: np.ndarray = shard.read(step, (IMAGE,))[IMAGE]
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
        raise ShardError(f"{name} has no frame of step {step}")
    return image
