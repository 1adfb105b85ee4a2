"""Renders the page about a run: figures become tables of texts here, and markup in the template `report.html`."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

from lavis.common.errors import MissingFileError
from lavis.common.files import write_atomically
from xrl_alignment.experts.llm.accounting import Usage
from xrl_alignment.report.charts import charts, data_url
from xrl_alignment.report.run_data import RoundCost, find_runs, played, read_costs, read_rounds, sample_steps
from xrl_alignment.runs.transitions import Transition

PROMPT_LINES = 8
_TEMPLATE = "report.html"


class Table(NamedTuple):
    """Rows of texts under a head; all columns but the first `text_columns` are aligned as numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1


class ShownStep(NamedTuple):
    """One step of an episode: its number, its frame (a `data:` URL), who said what, the end of the prompt."""

    number: int
    frame: str
    actions: Table
    prompt: str


def write_report(run_dir: Path | str, summary: dict[str, Any]) -> Path:
    """Write `report.html` into `run_dir` and return its path.

    `summary`: entries that hold `success` are evaluations (`untrained`, `bc`, …) with `success_admissible`, `games`,
    `mean_steps` and `per_task_type` beside it; everything else is listed as a fact (versions, seed, hash of the games).
    Raises MissingFileError when `run_dir` is no folder.
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise MissingFileError(f"no run directory {run_dir}")
    page = render(f"EMAC+ run: {run_dir.resolve().name}", find_runs(run_dir), summary)
    path = run_dir / "report.html"
    write_atomically(path, lambda file: file.write(page.encode("utf-8")))
    return path


def render(title: str, runs: dict[str, Path], summary: dict[str, Any]) -> str:
    """The page as HTML; `runs` are run directories by name, `summary` as for `write_report`."""
    evaluations = {name: entry for name, entry in summary.items() if isinstance(entry, dict) and "success" in entry}
    facts = {name: entry for name, entry in summary.items() if name not in evaluations}
    rounds = {name: _rounds_table(read_rounds(path)) for name, path in runs.items()}
    costs = {name: _cost_table(read_costs(path)) for name, path in runs.items()}
    steps = {name: [_shown(*numbered) for numbered in sample_steps(path)] for name, path in runs.items()}
    settings = {name: path / "config.yaml" for name, path in runs.items()}
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(_TEMPLATE).render(
        title=title,
        success=_success_table(evaluations),
        task_types=_task_type_table(evaluations),
        charts=charts(runs),
        costs_by_run=[(name, table) for name, table in costs.items() if table.rows],
        rounds_by_run=[(name, table) for name, table in rounds.items() if table.rows],
        steps_by_run=[(name, shown) for name, shown in steps.items() if shown],
        prompt_lines=PROMPT_LINES,
        facts=Table(["what", "value"], [*_played_rows(runs), *_flatten(facts)], text_columns=2),
        settings_by_run=[(name, file.read_text("utf-8")) for name, file in settings.items() if file.exists()],
    )


def _number(value: Any, digits: int = 2) -> str:
    if isinstance(value, float):
        return f"{value:.{digits}f}"
    return "–" if value is None else str(value)


def _success_table(evaluations: dict[str, dict]) -> Table:
    rows = []
    for name, entry in evaluations.items():
        low, high = entry.get("interval") or (None, None)
        interval = f"{low:.2f} to {high:.2f}" if low is not None else "–"
        figures = [_number(entry["success"]), interval, _number(entry.get("success_admissible"))]
        rows.append([name, _number(entry.get("games")), *figures, _number(entry.get("mean_steps"), 1)])
    head = ["phase", "games", "success, free text", "95 % interval", "success, admissible", "mean steps"]
    return Table(head, rows)


def _task_type_table(evaluations: dict[str, dict]) -> Table:
    """Rows are task types; each evaluation has a column for free text and one for admissible commands."""
    types = sorted({kind for entry in evaluations.values() for kind in entry.get("per_task_type") or {}})
    rows = []
    for kind in types:
        row = [kind]
        for entry in evaluations.values():
            figures = (entry.get("per_task_type") or {}).get(kind, {})
            if not isinstance(figures, dict):
                figures = {"success": figures}
            row += [_number(figures.get("success")), _number(figures.get("success_admissible"))]
        rows.append(row)
    return Table(["task type", *(f"{name}, {mode}" for name in evaluations for mode in ("free", "admissible"))], rows)


def _rounds_table(rounds: list[dict[str, float]]) -> Table:
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
        "missing labels",
    ]
    keys = ["ROUND", "SUCCESS", "ADDITIONAL SUCCESS", "FAIL", "TOTAL"]
    rows = [
        [
            *(f"{r.get(key, 0):.0f}" for key in keys),
            f"{r.get('ACCURACY', 0):.2f}",
            *(f"{r[key]:.1f}" if key in r else "-" for key in ("TIME", "ROLLOUT", "TRAINING")),
            f"{r['MISSING LABELS']:.1%}" if "MISSING LABELS" in r else "-",
        ]
        for r in rounds
    ]
    return Table(head, rows, text_columns=0)


def _cost_table(costs: list[RoundCost]) -> Table:
    head = ["round", "calls", "prompt tokens", "cached by the endpoint", "answer tokens", "USD", "from expert.cache"]
    rows = []
    for label, part in [*((f"{cost.round}", [cost]) for cost in costs), ("all", costs)]:
        usage = sum((cost.usage for cost in part), Usage())
        known = [cost.known for cost in part if cost.known is not None]
        tokens = [usage.calls, usage.prompt, usage.cached, usage.completion]
        usd = [cost.usd for cost in part if cost.usd is not None]
        rows.append([label, *map(str, tokens), _number(sum(usd) if usd else None, 4), _number(sum(known) or None)])
    return Table(head, rows if costs else [], text_columns=0)


def _shown(number: int, step: Transition) -> ShownStep:
    png = io.BytesIO()
    Image.fromarray(step.image).save(png, format="PNG")
    silent = "(not asked)" if step.executed == step.text_output else "(an empty answer)"
    actions = [
        ("policy", step.text_output_neg or silent),
        ("expert (label)", step.text_output),
        ("executed", step.executed),
        ("answer", step.feedback),
    ]
    table = Table([f"step {number}", ""], actions, text_columns=2)
    prompt = "\n".join(step.text_input.splitlines()[-PROMPT_LINES:])
    return ShownStep(number, data_url("png", png.getvalue()), table, prompt)


def _played_rows(runs: dict[str, Path]) -> list[tuple[str, str]]:
    return [(f"{name}: played", ", ".join(where)) for name, path in runs.items() if (where := played(path))]


def _flatten(facts: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _number(value, 3)
