"""The curves of one or several runs as SVG images inside the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from xrl_alignment.common.intervals import wilson_interval
from xrl_alignment.show.report.episodes import read_episodes, single_trials
from xrl_alignment.show.report.run_data import Points, read_metrics, read_rounds, thin

_SIZE = (5.2, 2.9)  # inches
RATE_LIMITS = (-0.03, 1.03)  # of a chart that shows a share: 0 and 1 stay visible
SOLVED = "games that the policy alone has solved so far"
BY_ROUND = "solved alone, of the unsolved games played in a round"
# What stands first, and its title. Tags with the same title share a chart.
_TITLES = {
    "train/loss": "loss",
    "train/chosen_reward": "DPO's rewards: chosen and rejected",
    "train/rejected_reward": "DPO's rewards: chosen and rejected",
    "train/nll": "negative log-likelihood of the label",
    "train/lr": "learning rate",
}
_PART = "round/seconds_"  # the curves of a round's parts (`dagger.rounds`)


class Chart(NamedTuple):
    """An image with its title; `source` is a `data:` URL."""

    title: str
    source: str


def charts(runs: dict[str, Path]) -> list[Chart]:
    """Games solved so far, success of each round, loss, rewards; then the other scalars and the time."""
    metrics = {name: read_metrics(path) for name, path in runs.items()}
    found = []
    if any(read_rounds(path) for path in runs.values()):
        found.append(Chart(SOLVED, data_url("svg+xml", svg(solved_so_far(runs)))))
        found.append(Chart(BY_ROUND, data_url("svg+xml", svg(round_success(runs)))))
    tags = {tag for curves in metrics.values() for tag in curves if not tag.startswith("round/")}
    # Chosen and rejected reward mean something beside each other only, so they are one chart.
    figures: dict[str, list[str]] = {}
    for tag in sorted(tags, key=lambda tag: ([*_TITLES, tag].index(tag), tag)):
        figures.setdefault(_TITLES.get(tag, tag), []).append(tag)
    for title, parts in figures.items():
        series = {
            f"{name}, {tag.removeprefix('train/').replace('_', ' ')}" if len(parts) > 1 else name: thin(curves[tag])
            for name, curves in metrics.items()
            for tag in parts
            if tag in curves
        }
        by_round = all(tag.startswith("expert/") for tag in parts)
        found.append(_chart(title, "round", _from_one(series)) if by_round else _chart(title, "training step", series))
    for name, curves in metrics.items():
        times = {tag.removeprefix(_PART): points for tag, points in curves.items() if tag.startswith(_PART)}
        if times:
            found.append(_chart(f"where a round's time goes, seconds: {name}", "round", _from_one(times)))
    return found


def _from_one(series: dict[str, Points]) -> dict[str, Points]:
    """Points by round, which files count from 0 and pages from 1."""
    return {name: [(round + 1, value) for round, value in points] for name, points in series.items()}


def solved_so_far(runs: dict[str, Path], size: tuple[float, float] = _SIZE) -> Figure:
    """After each round the share of a run's games that its policy has solved alone so far, with its 95 % interval."""
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    axes = figure.add_subplot(title=SOLVED, xlabel="round", ylabel="share, 95 % interval", ylim=RATE_LIMITS)
    for name, path in runs.items():
        # A round that a crash cut in half lacks its numbers.
        rounds = [r for r in read_rounds(path) if r.get("TOTAL", 0) >= max(1, r.get("SUCCESS", 0))]
        _add_rates(axes, name, [(int(r["ROUND"]), int(r.get("SUCCESS", 0)), int(r["TOTAL"])) for r in rounds])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small")
    return figure


def round_success(runs: dict[str, Path]) -> Figure:
    """What each run's policy solved in each finished round, of the games that it played alone, with its interval.

    Not by episode: short won games end first, so a curve over a round's episodes begins high and always falls. The
    ground is tinted at rounds whose episodes the expert mostly drove: there the policy could not solve alone.
    """
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot(title=BY_ROUND, xlabel="round", ylabel="share, 95 % interval", ylim=RATE_LIMITS)
    for colour, (name, path) in enumerate(runs.items()):
        finished = {r["ROUND"] for r in read_rounds(path)}
        trials = [trial for trial in single_trials(read_episodes(path)) if trial.round in finished]
        alone = [(trial.round, trial.solved, trial.alone) for trial in trials if trial.alone]
        _add_rates(axes, name, alone, color=f"C{colour}")
        for number, trial in enumerate(trial for trial in trials if trial.driven):
            label = "" if number else f"{_shown(name)}: the expert drove"
            axes.axvspan(trial.round + 0.6, trial.round + 1.4, color=f"C{colour}", alpha=0.15, linewidth=0, label=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small")
    return figure


def _add_rates(axes: Axes, name: str, rounds: Sequence[tuple[int, int, int]], color: str | None = None) -> None:
    """A curve of (round from 0, solved, played), each point with its interval."""
    rates = [solved / played for _, solved, played in rounds]
    bounds = [wilson_interval(solved, played) for _, solved, played in rounds]
    # Error bars are distances from the point.
    below = [rate - low for rate, (low, _) in zip(rates, bounds, strict=True)]
    above = [high - rate for rate, (_, high) in zip(rates, bounds, strict=True)]
    numbers = [round + 1 for round, _, _ in rounds]
    axes.errorbar(numbers, rates, yerr=[below, above], label=_shown(name), marker="o", capsize=3, color=color)


def data_url(kind: str, content: bytes) -> str:
    """An image of the media type `image/<kind>` as a `data:` URL."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def _shown(name: str) -> str:
    """`name` for matplotlib, which takes what is between two `$` for a formula, and leaves `_…` out of a legend."""
    return (" " if name.startswith("_") else "") + name.replace("$", r"\$")


def _chart(title: str, x_label: str, series: dict[str, Points]) -> Chart:
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot(title=_shown(title), xlabel=x_label)
    for name, points in series.items():
        marker = "o" if len(points) < 15 else ""
        axes.plot([x for x, _ in points], [y for _, y in points], label=_shown(name), marker=marker, markersize=3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))  # rounds and steps are whole
    axes.grid(alpha=0.3)
    if len(series) > 1:
        axes.legend(fontsize="x-small")
    return Chart(title, data_url("svg+xml", svg(figure)))


def svg(figure: Figure) -> bytes:
    """`figure` as SVG; the same data gives the same bytes."""
    buffer = io.BytesIO()
    # Ids inside an SVG are random, and it holds the time, unless told otherwise.
    with matplotlib.rc_context({"svg.hashsalt": "emac"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
