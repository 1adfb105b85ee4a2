"""Writes the memories of a round that has ended again, for example by a language model instead of by rules.

It starts from the memories with which the round began, so a second call changes nothing and loses nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from lavis.common.files import write_json
from xrl_alignment.agents.language.plain import plain_texts
from xrl_alignment.agents.reflexion.base import Reflector, update_memories
from xrl_alignment.runs.directory import RunDirectory, RunDirectoryError, is_texts


def finished_rounds(run_dir: Path) -> list[int]:
    """The rounds of a run directory that have ended, in order."""
    files = (run_dir / "logging_results").glob("env_results_trial_*.json")
    rounds = (file.stem.rpartition("_")[2] for file in files)
    return sorted(int(round) for round in rounds if round.isdecimal())


class NewMemories(NamedTuple):
    """All memories after a round, the file that has them, and whether a resume begins with them."""

    memories: dict[str, list[str]]
    path: Path
    used: bool


def reflect_on_round(
    directory: RunDirectory, round: int, reflector: Reflector, *, tell_objects: bool = True
) -> NewMemories:
    """Replace the memory that each failed game got in `round` by a new one.

    They are written to `env_results_trial_<round>.json` and to the state with which a resume begins. If a later round
    has begun, its games were played with the earlier memories: these stay on record, and the new ones are written to
    `reflections_<round>.json` alone. A trace that `reflector` cannot read gives no memory, and a warning. Raises
    RunDirectoryError for a round that has not ended, and what an endpoint raises (then nothing is changed).
    """
    rounds = finished_rounds(directory.path)
    if round not in rounds:
        known = ", ".join(map(str, rounds)) or "none"
        raise RunDirectoryError(f"round {round} of {directory.path} has not ended; rounds that have ended: {known}")
    # The memories with which the round began are those that the round before it has written.
    earlier = _results(directory, round - 1) if round else {}
    before = {result["game"]: result["memory"] for result in earlier.values()}
    traces = [record.trace() for record in directory.episodes() if record.round == round]
    memories = update_memories(traces, before, reflector, skip_unreadable=True, tell_objects=tell_objects)
    results = _results(directory, round)
    for result in results.values():
        result["memory"] = memories.get(result["game"], [])
    used = directory.memories()[0] == round + 1 and not any(r.round > round for r in directory.episodes())
    path = directory.round_results(round) if used else directory.results / f"reflections_{round}.json"
    write_json(path, results)
    if used:
        directory.save_memories(round + 1, memories)
    return NewMemories(memories, path, used)


def _results(directory: RunDirectory, round: int) -> dict[str, dict[str, Any]]:
    path = directory.round_results(round)
    try:
        results: dict[str, dict[str, Any]] = plain_texts(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{path} cannot be read: {error}") from error
    try:
        whole = all(isinstance(result["game"], str) and is_texts(result["memory"]) for result in results.values())
    except (AttributeError, KeyError, TypeError):
        whole = False
    if not whole:
        raise RunDirectoryError(f"{path} is damaged: it holds no results of a round by game")
    return results
