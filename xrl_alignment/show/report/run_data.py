"""Reads what a run directory holds for the report; files that a crash cut in half included."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import yaml

from lavis.common.errors import ConfigError, EmacError
from lavis.common.files import whole_lines
from lavis.datasets.shards import ShardError, open_shard
from xrl_alignment.agents.experts.llm.accounting import Usage, read_calls
from xrl_alignment.runs.transitions import Transition, read_transition
from xrl_alignment.settings.schema import EnvironmentConfig

Points = list[tuple[float, float]]
Numbers = TypeVar("Numbers", bound=tuple[float, ...])

STEPS_SHOWN = 6
SETTINGS_DEPTH = 50  # mappings and lists in one another; a run writes at most five
CURVE_POINTS = 400  # of a curve; longer ones are thinned
_LARGEST = 1e12  # number in a world.log: rounds, games, seconds
_ROUND_LINE = re.compile(
    r"^(ROUND|SUCCESS|ADDITIONAL SUCCESS|FAIL|TOTAL|ACCURACY|TIME|ROLLOUT|TRAINING|STALENESS|MISSING LABELS)"
    r": (\d+(?:\.\d+)?)",
    re.MULTILINE,
)


class ReportError(EmacError, ValueError):
    """A file that the report is made from cannot be used; the text names it and the reason."""


def find_runs(run_dir: Path) -> dict[str, Path]:
    """Every run directory (it holds `state/`) at or below `run_dir`, by name.

    The name is the first folder on the way there ("bc") if these differ, else the whole way.
    """
    paths = sorted(state.parent for state in run_dir.rglob("state") if state.is_dir())
    # `output/demo/bc/<run>` and `…/dpo/<run>` are called bc and dpo; two runs below one folder need the whole way.
    names = [path.relative_to(run_dir).as_posix() if path != run_dir else path.resolve().name for path in paths]
    starts = [name.split("/")[0] for name in names]
    return dict(zip(starts if len(set(starts)) == len(starts) else names, paths, strict=True))


@lru_cache(maxsize=16)  # a page asks for the same run's settings many times; who gets them changes nothing
def parsed_settings(text: str) -> dict[str, Any]:
    """The settings of a run, {} if they cannot be read, or if reading them would never end.

    An alias makes a few lines endless, and the reader's time grows with the square of the depth. No run writes either.
    """
    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > SETTINGS_DEPTH:
                return {}
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):  # ValueError: a date of month 13
        return {}
    return content if isinstance(content, dict) else {}


def told_to_agent(run: Path) -> EnvironmentConfig | None:
    """The settings that say what the agent was told and shown; None if the run's settings cannot be read."""
    try:
        given = parsed_settings((run / "config.yaml").read_text("utf-8", "replace")).get("environment")
        known = vars(EnvironmentConfig())
        # What has another type is damage, or of a later version.
        items = (given or {}).items()
        taken: dict[str, Any] = {key: value for key, value in items if type(value) is type(known.get(key))}
        return EnvironmentConfig(**taken) if given else None
    except (OSError, ConfigError, AttributeError, TypeError):
        return None


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file, [] if there is none; a last line cut off by a crash is left out.

    Raises ReportError if another line is no object.
    """
    if not path.exists():
        return []
    content, found = path.read_bytes(), []
    for number, line in enumerate(whole_lines(content).splitlines(), start=1):
        try:
            found.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            # A JSON error says "line 1" of every line, so only its reason and column are of use.
            reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
            raise ReportError(f"{path} is damaged: line {number}: {reason}") from error
        if not isinstance(found[-1], dict):
            raise ReportError(f"{path} is damaged: line {number} is no object")
    return found


def read_summary(path: Path) -> dict[str, Any]:
    """The figures that `make demo` writes; ReportError if the file holds something else."""
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{path} is not JSON: {error}") from error
    if not isinstance(summary, dict):
        raise ReportError(f"{path} is no summary: it holds a {type(summary).__name__}")
    return summary


def read_metrics(run: Path) -> dict[str, Points]:
    """The curves of a run by tag, as (step, value); of a step that a resume repeated, the last value counts.

    Raises ReportError if a line lacks one of them.
    """
    path = run / "state" / "metrics.jsonl"
    curves: dict[str, dict[float, float]] = {}
    for line in read_json_lines(path):
        try:
            step = float(line["step"])
            if not math.isfinite(step):
                raise ValueError("its step is no number")
            curves.setdefault(str(line["tag"]), {})[step] = float(line["value"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ReportError(f"{path} is damaged: {type(error).__name__} {error} in {str(line)[:80]}") from error
    return {tag: sorted(points.items()) for tag, points in curves.items()}


def read_rounds(run: Path) -> list[dict[str, float]]:
    """The blocks of `logging_results/world.log`, one dict a round with the log's own names."""
    path = run / "logging_results" / "world.log"
    return read_world_log(path) if path.exists() else []


def read_world_log(path: Path) -> list[dict[str, float]]:
    """The blocks of a `world.log`, this project's or the original's; ReportError for a number that cannot be one."""
    rounds: list[dict[str, float]] = []
    for name, value in _ROUND_LINE.findall(path.read_text(encoding="utf-8", errors="replace")):
        if float(value) > _LARGEST:  # 400 digits are infinite, which is no number of a round
            raise ReportError(f"{path} is damaged: {name}: {value[:20]}… is too large")
        if name == "ROUND":
            rounds.append({})
        if rounds:
            rounds[-1][name] = float(value)
    return rounds


class RoundCost(NamedTuple):
    """What a round's calls of a language model cost; `usd` is None without prices, `known` if nobody has counted."""

    round: int
    usage: Usage
    usd: float | None
    known: int | None  # answers that came from `expert.cache`


def read_costs(run: Path) -> list[RoundCost]:
    """What the teacher cost, by round; [] for a run without one. A round that was interrupted is among them."""
    usages, prices = read_calls(run / "state" / "expert_calls.jsonl")
    known = {int(step): int(count) for step, count in read_metrics(run).get("expert/cache_hits", [])}
    return [
        RoundCost(round, usage, prices.cost(usage) if prices else None, known.get(round))
        for round, usage in sorted({**dict.fromkeys(known, Usage()), **usages}.items())
    ]


def sample_steps(run: Path, count: int = STEPS_SHOWN) -> list[tuple[int, Transition]]:
    """Up to `count` steps (their number, the transition) spread evenly over the last episode that was stored."""
    shards = sorted((run / "state" / "buffer").glob("round*.h5"))
    if not shards:
        return []
    try:
        steps = open_shard(shards[-1]).steps
        # `count` places from the first step to the last, evenly; of a short episode each step once.
        shown = sorted({round(i * (steps - 1) / max(count - 1, 1)) for i in range(count)})
        return [(index, read_transition(shards[-1], index)) for index in shown]
    except ShardError:  # the shard of a killed run or a full disk: the report does without
        return []


def played(run: Path) -> list[str]:
    """Where a run's games were really played (`engine split`) and the hash of their list; [] in an older run."""
    path = run / "state" / "environment.json"
    if not path.exists():
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return [*map(str, content["environments"]), f"games {content['games_hash']}"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ReportError(f"{path} is damaged: {error}") from error


def thin(points: Sequence[Numbers], limit: int = CURVE_POINTS) -> list[Numbers]:
    """At most `limit` points, each the mean of equally many neighbours, number by number."""
    size = -(-len(points) // limit)  # points in a group, rounded up
    groups = [points[i : i + size] for i in range(0, len(points), size)] if points else []
    return [cast(Numbers, tuple(sum(numbers) / len(group) for numbers in zip(*group, strict=True))) for group in groups]
