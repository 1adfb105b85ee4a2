"""Reads the results of runs with several trials, as EMMA has released them, and counts them by slot and by game.

A folder holds `env_results_trial_<trial>.json`: for each slot `env_<n>` whether it is solved so far, and the game that
it had in this trial (`type`). Runs of this project write the same files (`logging_results/`).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from lavis.common.errors import FileError
from xrl_alignment.play.evaluation.metrics import share

_TRIAL = re.compile(r"env_results_trial_(\d+)\.json")


def count_trials(folder: Path) -> dict[str, Any]:
    """Success by slot, by game and in the first trial, and by slot after each trial.

    A game is solved if it was the game of a slot in the trial in which that slot was solved. FileError for a folder
    without such files, with a gap in their numbers, which begin with 0, or with one that cannot be read.
    """
    files = sorted((int(found[1]), path) for path in folder.glob("*.json") if (found := _TRIAL.fullmatch(path.name)))
    if not files:
        raise FileError(f"{folder} holds no env_results_trial_<trial>.json")
    # Without an earlier one another trial would count as the first, and its game as the one that solved a slot.
    for wanted, (number, _) in enumerate(files):
        if number != wanted:
            raise FileError(f"{folder} lacks env_results_trial_{wanted}.json: give all trials from 0 on")
    solved: dict[str, str] = {}  # slot -> the game with which it was solved
    games: set[str] = set()
    moved, curve = 0, []
    before: dict[str, str] = {}
    slots: dict[str, Any] = {}
    for number, path in files:
        slots = _read(path)
        # The original's logs have the game under `type`; this project's have it under `game`, and the task type there.
        now = {slot: str(state.get("game") or state["type"]) for slot, state in slots.items()}
        games |= set(now.values())
        # The original may give a slot another game in a later trial, so slots and games are counted apart.
        moved = max(moved, sum(before.get(slot, game) != game for slot, game in now.items()))
        before = now
        for slot, state in slots.items():
            if state["is_success"]:
                solved.setdefault(slot, now[slot])
        curve.append([number, len(solved)])
    return {
        "trials": len(files),
        "slots_with_another_game": moved,
        "first_trial": share(curve[0][1], len(slots)),
        "by_slot": share(len(solved), len(slots)),
        "by_game": share(len(set(solved.values())), len(games)),
        "curve": curve,
    }


def _read(path: Path) -> dict[str, Any]:
    """Slot -> its state after the trial."""
    try:
        slots = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {error}") from error
    complete = isinstance(slots, dict) and all(
        isinstance(state, dict) and isinstance(state.get("is_success"), bool) and "type" in state
        for state in slots.values()
    )
    if not complete:
        raise FileError(f"{path} is no result of a trial: each slot needs is_success and type")
    return slots
