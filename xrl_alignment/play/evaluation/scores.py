"""The table of scores: one line for each result of `evaluate.py`, with all that the figures depend on.

`row_of` takes from a result what a comparison needs, `append` adds it to a JSON-lines file, `read_table` reads several.
A table is only ever appended to: a result that was made stays in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lavis.common.errors import FileError
from lavis.common.files import append_line, make_folder
from xrl_alignment.play.evaluation.protocols import NOT_NAMED

Row = dict[str, Any]
# What a row of an older version lacks, and what then stands in its place.
_SINCE: Row = {"protocol": NOT_NAMED, "protocol_games": True, "by_slot": None, "repeat_limit": 0, "thoughts": False}
_COPIED = (
    "date", "who", "kind", "decode", "engine", "split", "games_hash", "max_steps", "seed", "trials", "reflexion",
    "swap_memories", "sees", "versions", "protocol", "protocol_games", "repeat_limit", "thoughts",
)  # fmt: skip
_TEXTS = ("date", "who", "kind", "decode", "engine", "split", "games_hash", "reflexion", "sees", "protocol")
_LONGEST, _LARGEST = 1000, 1e15  # characters of a text, size of a number
_FIGURES = ("games", "solved", "success", "interval", "mean_steps", "rejected")


def row_of(result: Mapping[str, Any]) -> Row:
    """The row of a result; best-of-k figures are null after a single trial, costs if no language model was asked."""
    result = _SINCE | dict(result)
    row = {key: result[key] for key in _COPIED}
    row["first_trial"] = _figures(result["first_trial"])
    row["best_of"] = _figures(result["best_of"]) if result["trials"] > 1 else None
    row["by_slot"] = result.get("by_slot")
    asked = result.get("expert")  # only a language model has calls, and a cost
    row["cost"] = {"first_trial": asked["first_trial"], "total": asked["total"]} if asked else None
    row["calls"] = {name: asked.get(name, 0) for name in ("no_label", "cache_hits", "retries")} if asked else None
    row["trained_on"] = result["trained_on"]["games"]
    row["lost"] = sum(bool(episode["fault"]) for episode in result["episodes"][0])
    row["seconds"] = round(sum(result["rollouts"]["seconds"]), 1)
    return row


def append(path: Path, row: Row) -> None:
    """Add a row to the table; FileError if that fails."""
    make_folder(path.parent)  # at the first row
    append_line(path, json.dumps(row))


def read_table(paths: Iterable[Path]) -> list[Row]:
    """The rows of all tables, in order. FileError for a file that cannot be read, or a line that is no row."""
    rows = []
    for path in paths:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"the table {path} cannot be read: {error}") from error
        for number, line in enumerate(lines, start=1):
            row = _parsed(line)
            if row is None:
                raise FileError(f"{path}, line {number}, is no result of evaluate.py: remove the line")
            rows.append(row)
    return rows


def _parsed(line: str) -> Row | None:
    """The row in a line; None if it lacks something that the page shows, or has a value of another type there."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    # The page formats these values, and a table may come from a stranger: so each is checked before anything is shown.
    needed = {*_COPIED, "first_trial", "best_of", "cost", "calls", "trained_on"}
    if isinstance(row, dict):
        row = _SINCE | row
    if not isinstance(row, dict) or not row.keys() >= needed:
        return None
    texts = [row[key] for key in _TEXTS]
    whole = (
        all(isinstance(text, str) and len(text) <= _LONGEST and text.isprintable() for text in texts)
        and all(_is_number(row[key]) for key in ("max_steps", "seed", "trials", "repeat_limit"))
        and isinstance(row["versions"], dict)
        and _are_figures(row["first_trial"])
        and (row["best_of"] is None or _are_figures(row["best_of"]))
        and (row["by_slot"] is None or _is_share(row["by_slot"]))
        and isinstance(row["protocol_games"], bool)
        and isinstance(row["thoughts"], bool)
        and row["decode"] in ("free", "admissible")
        and (row["trained_on"] is None or _is_number(row["trained_on"]))
        and (row["cost"] is None or isinstance(row["cost"], dict))
    )
    for part in ("first_trial", "total") if whole and row["cost"] is not None else ():
        paid = row["cost"].get(part)
        if not isinstance(paid, dict) or "cost_usd" not in paid:
            return None
        whole &= paid["cost_usd"] is None or _is_number(paid["cost_usd"])  # None: no price is known
    return row if whole else None


def _is_number(value: object) -> bool:
    """Whether `value` can be formatted as a number: Python cannot do that with an integer of 400 digits."""
    return isinstance(value, int | float) and abs(value) < _LARGEST


def _are_figures(value: object) -> bool:
    """Whether `value` is what `_figures` makes; without a solved game there are no mean steps."""
    if not isinstance(value, dict) or not value.keys() >= set(_FIGURES):
        return False
    steps = value["mean_steps"]
    return _is_share(value) and _is_number(value["rejected"]) and (steps is None or _is_number(steps))


def _is_share(value: object) -> bool:
    """Whether `value` is a success rate with its interval."""
    if not isinstance(value, dict) or not value.keys() >= {"games", "solved", "success", "interval"}:
        return False
    bounds = value["interval"]
    return (
        all(_is_number(value[key]) for key in ("games", "solved", "success"))
        and isinstance(bounds, list)
        and len(bounds) == 2
        and all(map(_is_number, bounds))
    )


def _figures(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {key: summary[key] for key in _FIGURES}
