"""The curves of one or several runs as SVG images inside the page."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import NamedTuple

import matplotlib
from matplotlib.figure import Figure

from xrl_alignment.report.run_data import EPISODE_WINDOW, Points, read_metrics, read_rounds, running_success, thin

RATE_LIMITS = (-0.03, 1.03)  # of a chart that shows a share: 0 and 1 stay visible


class Chart(NamedTuple):
    """An image with its title; `source` is a `data:` URL."""

    title: str
    source: str


def charts(runs: dict[str, Path]) -> list[Chart]:
    """Success by round, success by episode, then every scalar of the runs, one line for each run."""
    rounds = {name: [(r["ROUND"], r["ACCURACY"]) for r in read_rounds(path)] for name, path in runs.items()}
    episodes = {name: thin(running_success(path)) for name, path in runs.items()}
    metrics = {name: read_metrics(path) for name, path in runs.items()}
    shares = [
        ("games solved so far, by round", "round", rounds),
        (f"solved by the policy alone, last {EPISODE_WINDOW} episodes", "episode", episodes),
    ]
    found = []
    for title, x_label, series in shares:
        series = {name: points for name, points in series.items() if points}
        if series:
            found.append(_chart(title, x_label, series, RATE_LIMITS))
    for tag in sorted({tag for curves in metrics.values() for tag in curves if not tag.startswith("round/")}):
        series = {name: thin(curves[tag]) for name, curves in metrics.items() if tag in curves}
        found.append(_chart(tag, "step", series))
    return found


def data_url(kind: str, content: bytes) -> str:
    """An image of the media type `image/<kind>` as a `data:` URL."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def _chart(title: str, x_label: str, series: dict[str, Points], y_limits: tuple[float, float] | None = None) -> Chart:
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
    with matplotlib.rc_context({"svg.hashsalt": "emac"}):  # the same data gives the same bytes
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return Chart(title, data_url("svg+xml", buffer.getvalue()))
