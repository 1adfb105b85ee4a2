"""Reads the logs that the original released: `world.log`, `trial_<n>.log`, `env_results_trial_<n>.json`.

The original counts slots: a slot is solved once any game in it was won, and the game in a slot changes from trial to
trial. Here the same logs are counted by game as well. This project's own logs have the same format.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xrl_alignment.agents.language.history import EpisodeTrace
from xrl_alignment.agents.reflexion.trial_log import parse_trial_log
from xrl_alignment.show.report.run_data import ReportError, read_world_log

_NUMBER = re.compile(r"(?:env_results_trial|trial)_(\d{1,4})\.(?:json|log)")
_LARGEST = 256 << 20  # bytes of a log that are read


@dataclass
class Trial:
    """One trial (round): its block of `world.log`, each slot's result, each slot's episode."""

    number: int
    block: dict[str, float] = field(default_factory=dict)
    results: dict[int, dict[str, Any]] = field(default_factory=dict)  # by slot
    episodes: dict[int, EpisodeTrace] = field(default_factory=dict)  # by slot

    def game(self, slot: int) -> str:
        """The game in a slot: its id if the results name it, else the room and the task that its episode shows."""
        result = self.results.get(slot, {})
        # The original's results name the task type only ("pick_and_place"); an id holds a slash.
        named = str(result.get("game") or result.get("type") or "")
        if "/" in named or slot not in self.episodes:
            return named
        return self.episodes[slot].opening


@dataclass
class Logs:
    """A folder of logs, and what is missing or damaged in it."""

    trials: list[Trial]
    notices: list[str]


@dataclass(frozen=True)
class Count:
    """After a trial: solved slots as the log says and as the results say, distinct games solved, distinct games met."""

    trial: int
    logged: int | None
    slots: int | None
    games: int | None
    met: int | None
    total: int | None
    seconds: float | None


def is_logs(folder: Path) -> bool:
    """Whether `folder` holds such logs."""
    return (folder / "world.log").is_file() or any(folder.glob("env_results_trial_*.json"))


def log_folder(folder: Path) -> Path | None:
    """The folder that holds the original's logs: `folder` or its `logging_results`."""
    return next((place for place in (folder, folder / "logging_results") if is_logs(place)), None)


def read_logs(folder: Path) -> Logs:
    """Everything in `folder`; what cannot be read becomes a notice, not an error."""
    notices: list[str] = []
    trials: dict[int, Trial] = {}
    world = folder / "world.log"
    if not world.is_file():
        notices.append("world.log is missing: no times, and no count of its own")
    else:
        try:
            blocks = read_world_log(world)
            if not blocks:
                notices.append("world.log holds no block that begins with ROUND: a log of another version?")
            for block in blocks:
                trials.setdefault(int(block["ROUND"]), Trial(int(block["ROUND"]))).block = block
        except ReportError as error:
            notices.append(str(error))
    for path in sorted(folder.glob("*trial_*")):
        match = _NUMBER.fullmatch(path.name)
        if not match:
            continue
        # A trial may have results, a log of its episodes, its block in world.log, or any of the three.
        trial = trials.setdefault(int(match[1]), Trial(int(match[1])))
        try:
            if path.stat().st_size > _LARGEST:
                raise ValueError(f"it has more than {_LARGEST >> 20} MiB")
            text = path.read_text(encoding="utf-8", errors="replace")
            if path.suffix == ".json":
                content = json.loads(text)
                if not isinstance(content, dict):
                    raise ValueError(f"it holds a {type(content).__name__}, not results by slot")
                trial.results = {
                    int(name.rpartition("_")[2]): result  # env_<slot>
                    for name, result in content.items()
                    if isinstance(result, dict) and name.rpartition("_")[2].isdigit()
                }
            else:
                trial.episodes = parse_trial_log(text)
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            notices.append(f"{path.name} cannot be read: {type(error).__name__}: {str(error)[:200]}")
    ordered = [trials[number] for number in sorted(trials)]
    if without := [str(trial.number) for trial in ordered if not trial.results]:
        notices.append(f"no results of trial {', '.join(without)} (env_results_trial_<n>.json): not counted by game")
    if silent := [str(trial.number) for trial in ordered if not trial.episodes]:
        notices.append(f"no episodes of trial {', '.join(silent)} (trial_<n>.log): not known why these failed")
    return Logs(ordered, notices)


def recount(trials: list[Trial]) -> list[Count]:
    """The count by slot and the count by game after each trial."""
    counts: list[Count] = []
    before: set[int] = set()
    solved: set[str] = set()
    met: set[str] = set()
    for trial in trials:
        # The original's results say which slots count as solved by now. A game is solved in the trial in which its slot
        # becomes so.
        now = {slot for slot, result in trial.results.items() if result.get("is_success") is True}
        solved |= {trial.game(slot) for slot in now - before}
        met |= {trial.game(slot) for slot in trial.results}
        before |= now
        known = bool(trial.results) and "" not in solved | met
        block = trial.block
        counts.append(
            Count(
                trial.number,
                _whole(block.get("SUCCESS")),
                len(now) if trial.results else None,
                len(solved) if known else None,
                len(met) if known else None,
                _whole(block.get("TOTAL")) or len(trial.results) or None,
                block.get("TIME"),
            )
        )
    return counts


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
