"""The figures of the audit's page: who solves the games, what the protocol alone moves, which gaps exceed chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from xrl_alignment.play.evaluation.protocols import BY_GAME, BY_SLOT, PROTOCOLS
from xrl_alignment.show.report.charts import RATE_LIMITS, svg

_WIDTH, _ROW = 7.2, 0.3  # inches
_COLOURS = ("#0b5cad", "#c2571a", "#3a7d44")


def figures(results: Mapping[str, Any]) -> dict[str, Figure]:
    """Name -> figure, of the sections that were run."""
    made = {}
    if "players" in results:
        made["players"] = players_figure(results["players"]["figures"])
    if "protocols" in results:
        made["protocols"] = protocols_figure(results["protocols"]["figures"])
    if "power" in results:
        made["power"] = gaps_figure(results["power"]["figures"]["gaps"])
    return made


def drawn(results: Mapping[str, Any]) -> dict[str, bytes]:
    """`figures` as SVG, with text as text: a reader can search it, and the files are a tenth as large."""
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        return {name: svg(figure) for name, figure in figures(results).items()}


def counted(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The share that a row's protocol counts: of the first trial, of games over all trials, or of slots."""
    # A row that was played under no protocol counts the first trial.
    way = PROTOCOLS[row["protocol"]].counted if row["protocol"] in PROTOCOLS else ""
    return {BY_SLOT: row["by_slot"] or row["best_of"], BY_GAME: row["best_of"]}.get(way, row["first_trial"])


def players_figure(by_split: Mapping[str, Mapping[str, Any]]) -> Figure:
    """A line for each player with its interval, the one that knows least at the top; a colour for each test split."""
    names = list(next(iter(by_split.values())))
    figure, axes = _rows(names)
    for number, (split, rows) in enumerate(by_split.items()):
        there = [place for place, name in enumerate(names) if name in rows]
        shares = [rows[names[place]]["first_trial"] for place in there]
        # Shifted, so that the error bars of two splits do not lie on each other.
        _points(axes, there, shares, _COLOURS[number], split, 0.12 * number)
    axes.set(xlabel="success in a single trial, 95 % interval", xlim=RATE_LIMITS)
    if len(by_split) > 1:
        axes.legend(loc="lower right", fontsize=8)
    return figure


def protocols_figure(by_player: Mapping[str, Mapping[str, Any]]) -> Figure:
    """A line for each protocol and a colour for each player: what the protocol's own way of counting gives."""
    names = list(next(iter(by_player.values())))
    figure, axes = _rows(names)
    for number, (who, rows) in enumerate(by_player.items()):
        there = [place for place, name in enumerate(names) if name in rows]
        shares = [counted(rows[names[place]]) for place in there]
        _points(axes, there, shares, _COLOURS[number % 3], who, 0.14 * (number - 1))
    axes.set(xlabel="the figure that the protocol reports, 95 % interval", xlim=RATE_LIMITS)
    axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=3, fontsize=7, frameon=False)
    return figure


def gaps_figure(gaps: Sequence[Mapping[str, Any]]) -> Figure:
    """A line for each published difference: blue if its interval excludes zero, grey if it does not."""
    names = [f"{gap['better']['who']} – {gap['base']['who']} ({gap['better']['split']})" for gap in gaps]
    figure, axes = _rows(names, size=6)
    for row, gap in enumerate(gaps):
        low, high = gap["interval"]
        colour = _COLOURS[0] if low > 0 or high < 0 else "#888888"
        error = [[gap["gap"] - low], [high - gap["gap"]]]
        axes.errorbar([gap["gap"]], [row], xerr=error, fmt="o", color=colour, capsize=2, markersize=4)
    # An interval that crosses this line says nothing of who is better.
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set(xlabel="difference in success, 95 % interval (Newcombe)")
    return figure


def _rows(names: Sequence[str], size: int = 8) -> tuple[Figure, Axes]:
    # A row is as high however many there are; the inch more is for the axis and its label.
    figure = Figure(figsize=(_WIDTH, 1.0 + _ROW * len(names)), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    axes.set_yticks(range(len(names)), names, fontsize=size)
    axes.invert_yaxis()
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.tick_params(axis="x", labelsize=8)
    return figure, axes


def _points(
    axes: Axes, rows: Sequence[int], shares: Sequence[Mapping[str, Any]], colour: str, label: str, shift: float
) -> None:
    rates = [share["success"] for share in shares]
    below = [share["success"] - share["interval"][0] for share in shares]
    above = [share["interval"][1] - share["success"] for share in shares]
    places = [row + shift for row in rows]
    # An interval's bound may pass the rate by a rounding error, and error bars must not be negative.
    error = [[max(0.0, each) for each in side] for side in (below, above)]
    axes.errorbar(rates, places, xerr=error, fmt="o", color=colour, capsize=2, markersize=4, label=label)
