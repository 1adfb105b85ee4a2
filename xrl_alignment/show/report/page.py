"""Renders the page about a run: figures become tables of texts here, and markup in the template `report.html`."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from lavis.common.errors import MissingFileError
from lavis.common.files import write_bytes
from xrl_alignment.agents.experts.llm.accounting import Usage
from xrl_alignment.agents.language.plain import plain
from xrl_alignment.runs.transitions import Transition
from xrl_alignment.show import PAGE
from xrl_alignment.show.report.charts import charts, data_url
from xrl_alignment.show.report.episodes import (
    best_and_worst,
    causes_table,
    memories_table,
    read_episodes,
    rounds_table,
    types_table,
)
from xrl_alignment.show.report.failures import CAUSES, cause
from xrl_alignment.show.report.lead import lead
from xrl_alignment.show.report.loops import find_loops, loop_parts
from xrl_alignment.show.report.original import Logs, log_folder, read_logs, recount
from xrl_alignment.show.report.run_data import (
    RoundCost,
    find_runs,
    parsed_settings,
    played,
    read_costs,
    read_rounds,
    sample_steps,
    told_to_agent,
)
from xrl_alignment.show.report.strips import FilmStrip, film_strip
from xrl_alignment.show.report.tables import (
    Table,
    differing_settings,
    flatten,
    missing_baselines,
    number,
    paired_table,
    share,
    success_table,
    task_type_table,
)

PROMPT_LINES = 8  # the end of a prompt: what the model had just read
STRIPS = 2  # best episodes of a run, and as many worst ones
CHARTS = 4  # that are seen at once; the others are in a part that opens
_TEMPLATE = "report.html"


class ShownStep(NamedTuple):
    """One step of an episode: its number (from 1), its frame (a `data:` URL), who said what, the end of the prompt."""

    number: int
    frame: str
    actions: Table
    prompt: str


def write_report(run_dir: Path | str, summary: dict[str, Any], *others: Path, out: Path | None = None) -> Path:
    """Write `report.html` into `run_dir`, or the page `out`, and return its path; `others` are shown beside it.

    A folder is a run directory or that of EMAC+'s loop, holds some, or holds logs of the original (`world.log`,
    `trial_<n>.log`, …).
    `summary`: entries that hold `success` are evaluations (`untrained`, `bc`, …) with `success_admissible`, `games`,
    `mean_steps`, `per_task_type` and `won` (by game) beside it; everything else is listed as a fact (versions, seed,
    hash of the games). Raises MissingFileError when a folder is none.
    """
    folders = [Path(run_dir), *others]
    runs: dict[str, Path] = {}
    loops: dict[str, Path] = {}
    logs: dict[str, Logs] = {}
    # A folder holds runs or loops, or else the original's logs; names are made different.
    for folder in folders:
        if not folder.is_dir():
            raise MissingFileError(f"no run directory {folder}")
        found = find_runs(folder), find_loops(folder)
        for here, all_ in zip(found, (runs, loops), strict=True):
            # Two folders may hold runs of equal names; a folder that is a run itself is named by its own name.
            for name, path in here.items():
                prefix = f"{folder.resolve().name}/" if others and path != folder else ""
                all_[_unused(plain(f"{prefix}{name}"), all_)] = path
        if not any(found) and (place := log_folder(folder)):
            logs[_unused(plain(folder.resolve().name), logs)] = read_logs(place)
    title = f"EMAC+ run: {', '.join(folder.resolve().name for folder in folders)}"
    page = render(title, runs, summary, logs, loops)
    path = out or folders[0] / "report.html"
    # A journal of an older version may hold half a surrogate pair of a model's text: it becomes a `?`.
    write_bytes(path, page.encode("utf-8", "replace"))
    return path


def render(
    title: str,
    runs: dict[str, Path],
    summary: dict[str, Any],
    logs: Mapping[str, Logs] | None = None,
    loops: Mapping[str, Path] | None = None,
) -> str:
    """The page as HTML; `runs` are run directories by name, `summary` as for `write_report`, `logs` the original's.

    `loops` are folders of EMAC+'s loop by name.
    """
    loops = loops or {}
    # A summary mixes evaluations, which are the entries with `success`, and facts.
    evaluations = {name: entry for name, entry in summary.items() if isinstance(entry, dict) and "success" in entry}
    facts = {name: entry for name, entry in summary.items() if name not in evaluations}
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        # What a client or a model has written becomes text on the page, never markup.
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    settings = {
        name: (path / "config.yaml").read_text("utf-8", "replace")
        for name, path in [*runs.items(), *loops.items()]
        if (path / "config.yaml").exists()
    }
    games = [(f"{name}: played", ", ".join(where)) for name, path in runs.items() if (where := played(path))]
    games += [(f"{name}: the agent got", told.shows) for name, path in runs.items() if (told := told_to_agent(path))]
    parts = [loop_parts(name, path) for name, path in loops.items()]
    return environment.get_template(_TEMPLATE).render(
        title=title,
        style=Markup((PAGE / "base.css").read_text("utf-8")),  # noqa: S704 # nosec B704 - our own file, no run's text
        lead=[*(part.lead for part in parts), *lead(runs, evaluations)],
        success=success_table(evaluations),
        lacking=missing_baselines(evaluations),
        task_types=task_type_table(evaluations),
        paired=paired_table(evaluations),
        charts=charts(runs),
        charts_open=CHARTS,
        side_by_side=side_by_side(runs) if len(runs) > 1 else Table([], []),
        runs=[run_parts(name, path) for name, path in runs.items()],
        loops=parts,
        logs=[log_parts(name, found) for name, found in (logs or {}).items()],
        prompt_lines=PROMPT_LINES,
        facts=Table(["what", "value"], [*games, *flatten(facts)], text_columns=2),
        differing=differing_settings({name: parsed_settings(text) for name, text in settings.items()}),
        settings_by_run=list(settings.items()),
    )


class RunParts(NamedTuple):
    """What the page shows of one run."""

    name: str
    notices: list[str]
    rounds: Table  # world.log's
    trials: Table
    task_types: Table
    causes: Table
    memories: Table
    costs: Table
    strips: list[FilmStrip]
    steps: list[ShownStep]


def run_parts(name: str, run: Path) -> RunParts:
    """Everything of a run; what is not there is empty and in `notices`."""
    episodes = read_episodes(run)
    return RunParts(
        name,
        missing(run),
        world_log_table(read_rounds(run)),
        rounds_table(episodes),
        types_table(episodes),
        causes_table(episodes),
        memories_table(run, episodes),
        _cost_table(read_costs(run)),
        [film_strip(run, why, episode) for why, episode in best_and_worst(episodes, STRIPS)],
        [_shown(*numbered) for numbered in sample_steps(run)],
    )


def missing(run: Path) -> list[str]:
    """What a run has not written, or not yet, in sentences."""
    parts = {
        "state/episodes.jsonl": "no episode has ended: nothing is said of episodes",
        "state/metrics.jsonl": "there are no curves of loss and rewards",
        "logging_results/world.log": "no round has ended",
        "state/buffer": "there are no frames",
        "config.yaml": "its settings are not known",
        "DONE": "the run has not ended, or was stopped: figures are those so far",
    }
    return [f"{name} is missing: {what}" for name, what in parts.items() if not (run / name).exists()]


def side_by_side(runs: dict[str, Path]) -> Table:
    """The runs in a row each: how much was played, solved, and how long it took."""
    rows = []
    for name, path in runs.items():
        rounds, episodes = read_rounds(path), read_episodes(path)
        solved = {episode.game for episode in episodes if episode.solved}
        seconds = [sum(r.get(key, 0.0) for r in rounds) for key in ("TIME", "ROLLOUT", "TRAINING")]
        usd = _total_usd(read_costs(path))
        games = f"{len(solved)} of {len({episode.game for episode in episodes})}"
        figures = [*(f"{value:.0f}" for value in seconds), usd]
        rows.append([name, str(len(rounds)), str(len(episodes)), games, *figures])
    head = [
        "run",
        "rounds",
        "episodes",
        "games solved alone",
        "seconds",
        "of them rollout",
        "training in rounds",
        "USD",
    ]
    return Table(head, rows)


def log_parts(name: str, logs: Logs) -> LogParts:
    """The count by slot beside the count by game, and why episodes failed."""
    rows = []
    for c in recount(logs.trials):  # "–" for what the logs do not tell
        counts = map(number, (c.logged, c.slots, c.games, c.met, c.total))
        # The results say it best; without them the log's own count is shown.
        slots = c.logged if c.slots is None else c.slots
        rows.append([str(c.trial), *counts, _rate(slots, c.total), _rate(c.games, c.met), number(c.seconds, 0)])
    head = ["trial", "solved, world.log", "slots solved", "games solved", "games met", "slots", "share of slots"]
    head += ["share of games", "seconds"]
    failed: Counter[str] = Counter()
    for trial in logs.trials:
        failed.update(cause(episode) for episode in trial.episodes.values() if not episode.won)
    causes = [[what, CAUSES[what], str(n), share(n / failed.total())] for what, n in failed.most_common()]
    why = Table(["cause", "what it means", "failed", "share"], causes, text_columns=2)
    return LogParts(name, logs.notices, Table(head, rows, text_columns=0), why)


class LogParts(NamedTuple):
    """What the page shows of a folder of the original's logs."""

    name: str
    notices: list[str]
    counts: Table
    causes: Table


def _rate(part: int | None, whole: int | None) -> str:
    return f"{part / whole:.2f}" if part is not None and whole else "–"


def _unused(name: str, names: Container[str]) -> str:
    """`name`, with a number if another folder has the same name."""
    return next(new for new in (name, *(f"{name} ({n})" for n in range(2, 1000))) if new not in names)


def world_log_table(rounds: list[dict[str, float]]) -> Table:
    """The blocks of `world.log`, a row each; the log counts rounds from 0, the page from 1."""
    head = [
        "round",
        "solved",
        "newly solved",
        "failed",
        "games",
        "accuracy",
        "seconds",
        "rollout",
        "training",
        "staleness",
        "missing labels",
    ]
    keys = ["SUCCESS", "ADDITIONAL SUCCESS", "FAIL", "TOTAL"]
    rows = [
        [
            f"{r['ROUND'] + 1:.0f}",
            *(f"{r.get(key, 0):.0f}" for key in keys),
            f"{r.get('ACCURACY', 0):.2f}",
            *(number(r.get(key), 1) for key in ("TIME", "ROLLOUT", "TRAINING", "STALENESS")),
            f"{r['MISSING LABELS']:.1%}" if "MISSING LABELS" in r else number(None),
        ]
        for r in rounds
    ]
    return Table(head, rows, text_columns=0)


def _cost_table(costs: list[RoundCost]) -> Table:
    head = ["round", "calls", "prompt tokens", "cached by the endpoint", "answer tokens", "USD", "from expert.cache"]
    rows = []
    # A row for each round, then their sum.
    for label, part in [*((f"{cost.round + 1}", [cost]) for cost in costs), ("all", costs)]:
        usage = sum((cost.usage for cost in part), Usage())
        known = [cost.known for cost in part if cost.known is not None]
        tokens = [usage.calls, usage.prompt, usage.cached, usage.completion]
        rows.append([label, *map(str, tokens), _total_usd(part), number(sum(known) or None)])
    return Table(head, rows if costs else [], text_columns=0)


def _total_usd(costs: Sequence[RoundCost]) -> str:
    # Rounds without prices add nothing; if no round has any, the sum is not 0 but unknown.
    known = [cost.usd for cost in costs if cost.usd is not None]
    return number(sum(known) if known else None, 4)


def _shown(index: int, step: Transition) -> ShownStep:
    png = io.BytesIO()
    Image.fromarray(step.image).save(png, format="PNG")
    silent = "(not asked)" if step.executed == step.text_output else "(an empty answer)"
    actions = [
        ("policy", step.text_output_neg or silent),
        ("expert (label)", step.text_output),
        ("executed", step.executed),
        ("answer", step.feedback),
    ]
    table = Table([f"step {index + 1}", "text"], actions, text_columns=2)
    prompt = "\n".join(step.text_input.splitlines()[-PROMPT_LINES:])
    return ShownStep(index + 1, data_url("png", png.getvalue()), table, prompt)
