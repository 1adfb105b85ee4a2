"""One HTML file about a run: success, curves, a few steps as the model saw them, settings; opens without a network.

    python -m xrl_alignment.report RUN_DIR [--summary FILE]

`RUN_DIR` is a run directory, or a folder with several (the demo's two phases). What is not there is left out.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from PIL import Image

from lavis.common.files import write_atomically
from lavis.datasets.shards import ShardError, open_shard
from xrl_alignment.common.program import run_program
from xrl_alignment.dagger.replay import Transition, read_transition

Points = list[tuple[float, float]]

STEPS_SHOWN = 6
PROMPT_LINES = 8
CURVE_POINTS = 400
EPISODE_WINDOW = 25
_ROUND_LINE = re.compile(
    r"^(ROUND|SUCCESS|ADDITIONAL SUCCESS|FAIL|TOTAL|ACCURACY|TIME|ROLLOUT|TRAINING): ([\d.]+)", re.MULTILINE
)
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; margin: .6rem 0; } td, th { padding: .2rem .7rem; border-bottom: 1px solid #ddd; }
th { text-align: left; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { background: #f6f6f6; padding: .6rem; overflow-x: auto; white-space: pre-wrap; font-size: 12.5px; margin: 0; }
.step { display: flex; gap: 1rem; margin: 1rem 0; } .step img { width: 224px; height: 224px; flex: none; }
.step > div { min-width: 0; flex: 1; } .charts img { max-width: 100%; } .note { color: #666; }
"""


def write_report(run_dir: Path | str, summary: dict[str, Any]) -> Path:
    """Write `report.html` into `run_dir` and return its path.

    `summary`: entries that hold `success` are evaluations (`untrained`, `bc`, …) with `success_admissible`, `games`,
    `mean_steps` and `per_task_type` beside it; everything else is listed as a fact (versions, seed, hash of the games).
    Raises FileNotFoundError when `run_dir` is no folder.
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise FileNotFoundError(f"no run directory {run_dir}")
    evaluations = {name: entry for name, entry in summary.items() if isinstance(entry, dict) and "success" in entry}
    facts = {name: entry for name, entry in summary.items() if name not in evaluations}
    runs = find_runs(run_dir)
    parts = [
        _success_table(evaluations),
        _task_type_table(evaluations),
        _charts(runs),
        *(_rounds_table(name, read_rounds(path)) for name, path in runs.items()),
        *(_steps(name, sample_steps(path)) for name, path in runs.items()),
        _facts_table(facts),
        *(_settings(name, path) for name, path in runs.items()),
    ]
    title = f"EMAC+ run: {escape(run_dir.resolve().name)}"
    page = (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"</head>\n<body><h1>{title}</h1>\n{''.join(parts)}</body></html>\n"
    )
    path = run_dir / "report.html"
    write_atomically(path, lambda file: file.write(page.encode("utf-8")))
    return path


# --- reading ---------------------------------------------------------------------------------------------------------


def find_runs(run_dir: Path) -> dict[str, Path]:
    """Every run directory at or below `run_dir` (it holds `state/`), by its path from there, or its start if unique."""
    paths = sorted(state.parent for state in run_dir.rglob("state") if state.is_dir())
    names = [path.relative_to(run_dir).as_posix() if path != run_dir else path.resolve().name for path in paths]
    starts = [name.split("/")[0] for name in names]
    return dict(zip(starts if len(set(starts)) == len(starts) else names, paths, strict=True))


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file, [] where there is none; a last line cut off by a crash is left out."""
    if not path.exists():
        return []
    try:
        text = path.read_text(encoding="utf-8")
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def read_summary(path: Path) -> dict[str, Any]:
    """The figures that `make demo` writes; ValueError where the file holds something else."""
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(summary, dict):
        raise ValueError(f"{path} is no summary: it holds a {type(summary).__name__}")
    return summary


def read_metrics(run: Path) -> dict[str, Points]:
    """The curves of a run by tag, as (step, value); of a step that a resume repeated, the last value counts."""
    curves: dict[str, dict[float, float]] = {}
    for line in read_json_lines(run / "state" / "metrics.jsonl"):
        curves.setdefault(line["tag"], {})[line["step"]] = line["value"]
    return {tag: sorted(points.items()) for tag, points in curves.items()}


def read_rounds(run: Path) -> list[dict[str, float]]:
    """The blocks of `logging_results/world.log`, one dict a round with the log's own names."""
    path = run / "logging_results" / "world.log"
    if not path.exists():
        return []
    rounds: list[dict[str, float]] = []
    for name, value in _ROUND_LINE.findall(path.read_text(encoding="utf-8")):
        if name == "ROUND":
            rounds.append({})
        if rounds:
            rounds[-1][name] = float(value)
    return rounds


def sample_steps(run: Path, count: int = STEPS_SHOWN) -> list[tuple[int, Transition]]:
    """Up to `count` steps (their number, the transition) spread evenly over the last episode that was stored."""
    shards = sorted((run / "state" / "buffer").glob("round*.h5"))
    if not shards:
        return []
    try:
        steps = open_shard(shards[-1]).steps
        shown = sorted({round(i * (steps - 1) / max(count - 1, 1)) for i in range(count)})
        return [(index, read_transition(shards[-1], index)) for index in shown]
    except ShardError:  # the shard of a killed run or a full disk: the report goes without
        return []


def thin(points: Points, limit: int = CURVE_POINTS) -> Points:
    """At most `limit` points: means of equal runs of neighbours."""
    size = -(-len(points) // limit)
    groups = [points[i : i + size] for i in range(0, len(points), size)] if points else []
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def running_success(run: Path, window: int = EPISODE_WINDOW) -> Points:
    """(episode number, share of the last `window` training episodes that the policy solved by itself)."""
    solved = [
        float(r["won"] and not r.get("assisted", False)) for r in read_json_lines(run / "state" / "episodes.jsonl")
    ]
    last = [solved[max(0, end - window) : end] for end in range(1, len(solved) + 1)]
    return [(float(number), sum(part) / len(part)) for number, part in enumerate(last, start=1)]


# --- writing ---------------------------------------------------------------------------------------------------------


def _number(value: Any, digits: int = 2) -> str:
    if isinstance(value, float):
        return f"{value:.{digits}f}"
    return "–" if value is None else str(value)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1) -> str:
    """An HTML table; all but the first `text_columns` columns are aligned as numbers. Cells are escaped here."""

    def line(cells: Sequence[str], tag: str) -> str:
        kinds = ["" if i < text_columns else ' class="n"' for i in range(len(cells))]
        marked = (f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))
        return f"<tr>{''.join(marked)}</tr>\n"

    return f"<table>\n{line(head, 'th')}{''.join(line(row, 'td') for row in rows)}</table>\n"


def _success_table(evaluations: dict[str, dict]) -> str:
    if not evaluations:
        return ""
    rows = []
    for name, entry in evaluations.items():
        low, high = entry.get("interval") or (None, None)
        interval = f"{low:.2f} to {high:.2f}" if low is not None else "–"
        figures = [_number(entry["success"]), interval, _number(entry.get("success_admissible"))]
        rows.append([name, _number(entry.get("games")), *figures, _number(entry.get("mean_steps"), 1)])
    head = ["phase", "games", "success, free text", "95 % interval", "success, admissible", "mean steps"]
    note = (
        '<p class="note">Every game is played once. Free text: the model writes the command. '
        "Admissible: it chooses among the commands that the engine accepts now, which is a much easier task; "
        "the two are never mixed.</p>"
    )
    return f"<h2>Success</h2>\n{note}\n{_table(head, rows)}"


def _task_type_table(evaluations: dict[str, dict]) -> str:
    """Rows are task types; each evaluation has a column for free text and one for admissible commands."""
    types = sorted({kind for entry in evaluations.values() for kind in entry.get("per_task_type") or {}})
    if not types:
        return ""
    head = ["task type", *(f"{name}, {mode}" for name in evaluations for mode in ("free", "admissible"))]
    rows = []
    for kind in types:
        row = [kind]
        for entry in evaluations.values():
            figures = (entry.get("per_task_type") or {}).get(kind, {})
            if not isinstance(figures, dict):
                figures = {"success": figures}
            row += [_number(figures.get("success")), _number(figures.get("success_admissible"))]
        rows.append(row)
    return f"<h2>Success by task type</h2>\n{_table(head, rows)}"


def _chart(title: str, x_label: str, series: dict[str, Points], y_limits: tuple[float, float] | None = None) -> str:
    """An inline SVG picture of one line for each run."""
    figure = Figure(figsize=(5.2, 2.9), layout="constrained")
    axes = figure.add_subplot(title=title, xlabel=x_label)
    for name, points in series.items():
        marker = "o" if len(points) < 15 else ""
        axes.plot([x for x, _ in points], [y for _, y in points], label=name, marker=marker, markersize=3)
    axes.set(ylim=y_limits)
    axes.grid(alpha=0.3)
    if len(series) > 1:
        axes.legend(fontsize="x-small")
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "emac"}):  # same data, same bytes
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return f'<img alt="{escape(title)}" src="data:image/svg+xml;base64,{_base64(buffer)}">\n'


def _base64(buffer: io.BytesIO) -> str:
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _charts(runs: dict[str, Path]) -> str:
    metrics = {name: read_metrics(path) for name, path in runs.items()}
    charts = []
    rounds = {name: [(r["ROUND"], r["ACCURACY"]) for r in read_rounds(path)] for name, path in runs.items()}
    episodes = {name: thin(running_success(path)) for name, path in runs.items()}
    own = [("games solved so far, by round", "round", rounds)]
    own.append((f"solved by the policy alone, last {EPISODE_WINDOW} episodes", "episode", episodes))
    for title, x_label, series in own:
        series = {name: points for name, points in series.items() if points}
        if series:
            charts.append(_chart(title, x_label, series, (-0.03, 1.03)))
    for tag in sorted({tag for curves in metrics.values() for tag in curves if not tag.startswith("round/")}):
        series = {name: thin(curves[tag]) for name, curves in metrics.items() if tag in curves}
        charts.append(_chart(tag, "step", series))
    return f'<h2>Curves</h2>\n<div class="charts">\n{"".join(charts)}</div>\n' if charts else ""


def _rounds_table(name: str, rounds: list[dict[str, float]]) -> str:
    if not rounds:
        return ""
    head = ["round", "solved", "newly solved", "failed", "games", "accuracy", "seconds", "rollout", "training"]
    keys = ["ROUND", "SUCCESS", "ADDITIONAL SUCCESS", "FAIL", "TOTAL"]
    rows = [
        [
            *(f"{r.get(key, 0):.0f}" for key in keys),
            f"{r.get('ACCURACY', 0):.2f}",
            *(f"{r[key]:.1f}" if key in r else "-" for key in ("TIME", "ROLLOUT", "TRAINING")),
        ]
        for r in rounds
    ]
    note = (
        '<p class="note">Games of the training run; a game once solved stays solved. Seconds: the round, and of it '
        "playing and training.</p>"
    )
    return f"<h2>Rounds: {escape(name)}</h2>\n{note}\n{_table(head, rows, text_columns=0)}"


def _steps(name: str, steps: list[tuple[int, Transition]]) -> str:
    if not steps:
        return ""
    blocks = []
    for index, step in steps:
        png = io.BytesIO()
        Image.fromarray(step.image).save(png, format="PNG")
        text = "\n".join(step.text_input.splitlines()[-PROMPT_LINES:])
        silent = "(not asked)" if step.executed == step.text_output else "(an empty answer)"
        actions = [
            ("policy", step.text_output_neg or silent),
            ("expert (label)", step.text_output),
            ("executed", step.executed),
            ("answer", step.feedback),
        ]
        blocks.append(
            f'<div class="step"><img alt="frame at step {index}" src="data:image/png;base64,{_base64(png)}">'
            f"<div>{_table([f'step {index}', ''], actions, text_columns=2)}<pre>{escape(text)}</pre></div></div>\n"
        )
    note = (
        f'<p class="note">The last stored episode; of the text that the model got, the last {PROMPT_LINES} lines.</p>'
    )
    return f"<h2>Steps: {escape(name)}</h2>\n{note}\n{''.join(blocks)}"


def _flatten(facts: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _number(value, 3)


def _facts_table(facts: dict[str, Any]) -> str:
    return f"<h2>Facts</h2>\n{_table(['what', 'value'], _flatten(facts), text_columns=2)}" if facts else ""


def _settings(name: str, run: Path) -> str:
    path = run / "config.yaml"
    if not path.exists():
        return ""
    text = escape(path.read_text(encoding="utf-8"))
    return f"<h2>Settings: {escape(name)}</h2>\n<details><summary>config.yaml</summary><pre>{text}</pre></details>\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_dir", type=Path, help="a run directory, or a folder that holds some")
    parser.add_argument("--summary", type=Path, help="figures of the evaluations (default: RUN_DIR/summary.json)")
    arguments = parser.parse_args(argv)
    source = arguments.summary or arguments.run_dir / "summary.json"
    if arguments.summary and not source.is_file():
        raise FileNotFoundError(f"no summary {source}")
    if arguments.run_dir.is_dir() and not find_runs(arguments.run_dir):
        raise FileNotFoundError(f"no run in {arguments.run_dir}: a run directory holds a folder `state`")
    print(write_report(arguments.run_dir, read_summary(source) if source.is_file() else {}))


if __name__ == "__main__":
    run_program(main)
