"""Memories from a trial log (`trial_<round>.log`): the original's entry point `update_memory`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from lavis.common.errors import FileError, MissingFileError
from xrl_alignment.language.history import EpisodeTrace
from xrl_alignment.reflexion.base import Reflector, update_memories
from xrl_alignment.reflexion.rule import RuleReflector


def update_memory(
    trial_log_path: Path | str, env_configs: dict[str, dict[str, Any]], reflector: Reflector | None = None
) -> dict[str, dict[str, Any]]:
    """Read `trial_<round>.log` and add a memory to each failed entry of `env_configs`.

    `env_configs` maps `env_<i>` to `{"memory": [...], "is_success": bool, "type": task type, ...}`. It is changed in
    place and returned. Without a `reflector` the rules of `RuleReflector` write the memories. Raises MissingFileError,
    or FileError for a log that cannot be read.
    """
    traces = parse_trial_log(_read(Path(trial_log_path)))
    reflector = reflector or RuleReflector()
    for key, config in env_configs.items():
        found = traces.get(int(key.rpartition("_")[2]))
        if config["is_success"] or found is None:
            continue
        trace = EpisodeTrace(key, config.get("type") or "", found.opening, found.steps, won=False)
        config["memory"] = update_memories([trace], {key: config["memory"]}, reflector)[key]
    return env_configs


def parse_trial_log(text: str) -> dict[int, EpisodeTrace]:
    """Episodes of a `trial_<round>.log` by environment number; text before an episode's opening is left out."""
    traces = {}
    blocks = re.findall(r"#####\s+Environment #(\d+):\n(.*?)\s+STATUS: (\w+)\s+#####", text, re.DOTALL)
    for number, episode, status in blocks:
        task = max(episode.rfind("Your task is to:"), 0)  # the last one: few-shot examples may stand before it
        start = max(episode.rfind("You are in the middle", 0, task), 0)  # `look` may answer with the same words later
        head, *turns = re.split(r"^> ?", episode[start:], flags=re.MULTILINE)
        steps = tuple(_step(turn) for turn in turns)
        if steps and steps[-1] == ("", ""):  # the cue for an action that was not taken any more
            steps = steps[:-1]
        traces[int(number)] = EpisodeTrace(f"env_{number}", "", head.strip(), steps, status == "OK")
    return traces


def _step(turn: str) -> tuple[str, str]:
    action, _, feedback = turn.partition("\n")
    return action.strip(), feedback.strip()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise MissingFileError(f"trial log {path} does not exist; a run writes it to logging_results/") from error
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"trial log {path} cannot be read: {error}") from error
