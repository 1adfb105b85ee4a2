"""What a run directory says, without what depends on the clock: runs that are the same function agree in all of it."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lavis.datasets.shards import open_shard
from xrl_alignment.runs.checkpoint import load_checkpoint

_CLOCK = re.compile(r"^(TIME|ROLLOUT|TRAINING|TIME SPLIT): .*$", re.MULTILINE)
_WEIGHTS = ("model", "optimizer", "training_step", "episodes")


def journal(run: Path) -> list[dict[str, Any]]:
    """The journal's lines without the seconds that an episode took."""
    lines = map(json.loads, (run / "state/episodes.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def digest(value: object) -> str:
    """A hash of nested containers of tensors, arrays and plain values; equal for equal bits."""
    hashed = hashlib.sha256()
    _add(hashed, value)
    return hashed.hexdigest()[:16]


def _add(hashed: Any, value: object) -> None:
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            _add(hashed, key)
            _add(hashed, value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            _add(hashed, item)
    elif isinstance(value, torch.Tensor):
        _add(hashed, value.detach().contiguous().numpy())
    elif isinstance(value, np.ndarray):
        hashed.update(f"{value.dtype} {value.shape}".encode() + value.tobytes())
    else:
        hashed.update(repr(value).encode())


def weights(file: Path) -> dict[str, str]:
    """What a checkpoint holds of the learner."""
    content = load_checkpoint(file)
    return {name: digest(content[name]) for name in _WEIGHTS}


def facts(run: Path) -> dict[str, object]:
    """Journal, shards, memories, results, logs and every checkpoint with its random states, by name."""
    found: dict[str, object] = {f"episode {number}": line for number, line in enumerate(journal(run))}
    found |= {line["shard"]: shard(run / "state/buffer" / line["shard"]) for line in journal(run)}
    for name in ("state/memories.json", "state/games.json", "state/environment.json"):
        found[name] = (run / name).read_text()
    for path in sorted((run / "logging_results").iterdir()):
        found[path.name] = _CLOCK.sub("", path.read_text())
    for path in (*sorted(run.glob("emma_checkpoint_*.pth")), run / "state/trainer.pth"):
        content = load_checkpoint(path)
        found |= {f"{path.name} {name}": digest(content[name]) for name in (*_WEIGHTS, "random", "references")}
    return found


def shard(path: Path) -> str:
    """A hash of all rows: the file itself holds the time at which it was written."""
    opened = open_shard(path)
    return digest([opened.read(step, sorted(opened._fields)) for step in range(opened.steps)])


def differences(one: dict[str, object], other: dict[str, object]) -> list[str]:
    """The names under which two runs differ."""
    return sorted(name for name in {**one, **other} if one.get(name) != other.get(name))


def faults(run: Path, *, rounds: int) -> list[str]:
    """What is wrong with a run that has ended: every game once in a round until it is solved, nothing left behind."""
    games: list[str] = json.loads((run / "state/games.json").read_text())
    played = Counter((line["round"], line["game"]) for line in journal(run))
    solved: set[str] = set()
    wrong = [] if (run / "DONE").exists() else ["no DONE"]
    for number in range(rounds):
        wanted = {(number, game): 1 for game in games if game not in solved}
        if (found := {key: times for key, times in played.items() if key[0] == number}) != wanted:
            wrong.append(f"round {number}: {found} instead of {wanted}")
        here = [line for line in journal(run) if line["round"] == number]
        solved |= {line["game"] for line in here if line["won"] and not line["assisted"]}
        wrong += [f"{line['game']} is not env {line['env']}" for line in here if games[line["env"]] != line["game"]]
    return wrong + [f"{path} was left behind" for path in run.rglob(".*") if path.is_file()]
