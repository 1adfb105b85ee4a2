"""Draws what `make_student` has written of its training: success of the games that the student played, by hours."""

from __future__ import annotations

import contextlib
import json
import math
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from xrl_alignment.show.report.charts import RATE_LIMITS, svg

WINDOW = 40  # games of a level that a point counts, as many or a few more
COLUMNS = 4

Curve = list[tuple[float, float]]  # hours, success


def read_progress(path: Path) -> list[dict[str, Any]]:
    """The lines of a `progress.jsonl`, one for each pool: the last, if a run was killed and repeated the pool.

    Half a line, which a kill or a full disk leaves, is left out.
    """
    found: dict[int, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        with contextlib.suppress(ValueError):
            read = json.loads(line)
            found[read["pool"]] = read
    return list(found.values())


def success_by_hours(lines: Iterable[Mapping[str, Any]]) -> dict[str, Curve]:
    """Level -> success over its last `WINDOW` games, at the end of each pool that had some, against hours of training.

    A level is in it from its first `WINDOW` games on. Hours are those of all runs into the folder.
    """
    hours, curves = 0.0, dict[str, Curve]()
    recent: dict[str, deque[tuple[int, int]]] = {}  # won and played, by level and pool
    for line in lines:
        hours += line["seconds"] / 3600
        for level, (won, played) in line["own"].items():
            window = recent.setdefault(level, deque())
            window.append((won, played))
            while sum(games for _, games in window) - window[0][1] >= WINDOW:
                window.popleft()
            games = sum(games for _, games in window)
            if games >= WINDOW:
                curves.setdefault(level, []).append((hours, sum(won for won, _ in window) / games))
    return curves


def drawn(lines: Iterable[Mapping[str, Any]]) -> bytes:
    """`success_by_hours` as SVG: a panel for each level."""
    curves = success_by_hours(lines)
    rows = max(1, math.ceil(len(curves) / COLUMNS))
    figure = Figure(figsize=(7.6, 0.5 + 1.4 * rows), layout="constrained")
    panels = list(figure.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False).flat)
    for axes, (level, curve) in zip(panels, sorted(curves.items()), strict=False):
        axes.plot([hours for hours, _ in curve], [success for _, success in curve], linewidth=1)
        axes.set_title(level, fontsize=9)
        axes.set(ylim=RATE_LIMITS)
        axes.grid(alpha=0.3)
    for axes in panels[len(curves) :]:
        axes.set_axis_off()
    figure.supxlabel("hours of training, playing included", fontsize=9)
    figure.supylabel(f"success, last {WINDOW} own games or more", fontsize=9)
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        return svg(figure)
