"""Renders docs/results.md from the figures of all experiments; the texts are in the template `results.md`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from xrl_alignment.lab.results.settings import EXPERIMENTS

SHOWN = {
    "a": "(a) text, rendered state without labels",
    "numbers": "text, rendered state with labels",
    "b": "(b) only the rendered state with labels shows what lies where",
    "c": "(c) text, black frames",
}

TITLES = {
    "shipped": "the student of the official games",
    "student": "the student over several seeds, with its DAgger rounds",
    "phase_two": "what phase 2 adds",
    "pooled": "phase 2 beside the expert's games",
    "reflexion": "what Reflexion adds",
    "images": "what images can be worth",
    "looking": "students that look",
    "ablations": "one switch at a time",
}

SWITCHES = {
    "expert": "the expert that is cloned",
    "history": "tokens of a prompt, at most",
    "notes": "notes, where only the image shows objects",
    "driver": "who drives in a DAgger round",
    "games": "training games",
    "batches": "batches of cloning",
}

EYES = {
    "none": "nothing",
    "labels": "what the labels of its frame name",
    "frame": "what its frame shows",
    "labels-around": "what the labels of frames in all four directions name",
    "around": "what frames in all four directions show",
    "surfaces": "every open surface of the room",
    "everything": "everything",
}

STUDENTS = {
    "black": "blind: learned and plays with black frames",
    "frames": "looks: learned and plays with frames",
    "the same, black": "the same, given black frames",
    "around": "looks around: frames in all four directions",
}


def render(results: Mapping[str, Any]) -> str:
    """The page as Markdown; `results` is what `results.json` holds.

    Each experiment has its figures, and how they were made (sizes, machine, seconds). What was not run is left out.
    """
    # Markdown of our own figures, no HTML: nothing to escape.
    environment = Environment(  # nosec B701
        # Strict: a figure that the template names and nobody has computed is an error, not a gap on the page.
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # The template's own words for figures, such as `{{ row.success | rate }}`.
    environment.filters |= {
        "rate": rate,
        "span": span,
        "gain": gain,
        "by_seed": by_seed,
        "minutes": minutes,
        "saved": saved,
        "share_saved": share_saved,
        "games": games,
    }
    return environment.get_template("results.md").render(
        **{name: results[name]["figures"] if name in results else None for name in EXPERIMENTS},
        made=results,
        missing=[title for name, title in TITLES.items() if name not in results],
        machines=" and ".join(sorted({one["machine"] for made in results.values() for one in _origins(made)})),
        shown=SHOWN,
        switches=SWITCHES,
        eyes=EYES,
        students=STUDENTS,
        titles=TITLES,
    )


def _origins(made: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """How an experiment's figures were made: the newest, and those of earlier calls on other machines or versions."""
    return [made, *(origin for origin in made.get("kept", {}).values() if "machine" in origin)]


def rate(value: float | None) -> str:
    """A share with three decimals."""
    return "-" if value is None else f"{value:.3f}"


def span(interval: Sequence[float]) -> str:
    """An interval of shares."""
    return f"{interval[0]:.3f} to {interval[1]:.3f}"


def gain(row: Mapping[str, Any]) -> str:
    """A paired difference with its interval; bold if the interval excludes zero."""
    low, high = row["interval"]
    text = f"{row['difference']:+.3f} ({low:+.3f} to {high:+.3f})"
    return f"**{text}**" if low > 0 or high < 0 else text


def saved(share: float) -> str:
    """The share of the steps that is saved, in parentheses; nothing if none is."""
    return f"({-100 * share:.1f} %)" if share else ""


def share_saved(row: Mapping[str, Any]) -> str:
    """The share of the steps that is saved, in percent, with its interval; bold if that excludes zero."""
    low, high = row["interval"]
    text = f"{100 * row['saved']:+.1f} % ({100 * low:+.1f} to {100 * high:+.1f})"
    return f"**{text}**" if low > 0 or high < 0 else text


def by_seed(values: Sequence[float]) -> str:
    """One share for each seed."""
    return ", ".join(map(rate, values))


def games(figures: Mapping[str, Any]) -> str:
    """The game lists of an experiment: split, number and hash of each, wherever they stand in its figures."""
    # The figures are nested as deep as the experiment has switches.
    lists = {
        text for value in figures.values() if isinstance(value, Mapping) for text in games(value).split("; ") if text
    }
    if "games_hash" in figures:
        lists.add(f"{figures.get('split', '')} {figures['games']}, `{figures['games_hash']}`".strip())
    return "; ".join(sorted(lists))


def minutes(seconds: Mapping[str, float], prefix: str = "") -> str:
    """Wall time of all steps whose name begins with `prefix`."""
    return f"{sum(value for name, value in seconds.items() if name.startswith(prefix)) / 60:.0f}"
