"""Renders docs/audit.md from the audit's figures (the text is in the template `audit.md`), and docs/scores.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from xrl_alignment.lab.audit.experiments import SECTIONS
from xrl_alignment.lab.audit.figures import counted
from xrl_alignment.lab.audit.published import read_published
from xrl_alignment.play.evaluation.page import page
from xrl_alignment.play.evaluation.protocols import PROTOCOLS, protocols_table
from xrl_alignment.play.evaluation.scores import Row


def render(results: Mapping[str, Any]) -> str:
    """The page as Markdown; a section that was not run is named as missing."""
    # Markdown of our own figures, no HTML: nothing to escape.
    environment = Environment(  # nosec B701
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"share": share, "rate": rate, "steps": steps, "of": of}
    return environment.get_template("audit.md").render(
        **{name: results[name]["figures"] if name in results else None for name in SECTIONS},
        made=results,
        # Of the sections that play games: released logs are whole, or not there.
        unfinished=any(section["sizes"]["only_done"] for name, section in results.items() if name != "logs"),
        missing=[name for name in SECTIONS if name not in results],
        minutes=round(sum(section["seconds"] for section in results.values()) / 60),
        machines=" and ".join(sorted({f"{section['machine']}, {section['date']}" for section in results.values()})),
        counted=counted,
        protocol_names=list(PROTOCOLS),
        registry=PROTOCOLS,
        commands=commands(results),
    )


def share(figures: Mapping[str, Any]) -> str:
    """A success rate with its interval."""
    low, high = figures["interval"]
    return f"{figures['success']:.3f} ({low:.3f} to {high:.3f})"


def of(figures: Mapping[str, Any]) -> str:
    """How many of how many."""
    return f"{figures['solved']} of {figures['games']}"


def rate(value: float | None) -> str:
    """A share, or a dash."""
    return "–" if value is None else f"{value:.3f}"


def steps(value: float | None) -> str:
    """Mean steps, or a dash if nothing was solved."""
    return "–" if value is None else f"{value:.1f}"


def commands(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and command of every evaluation behind the page, in order."""
    found: dict[str, str] = {}

    def collect(value: Any) -> None:
        if isinstance(value, Mapping) and "command" in value and "name" in value:
            found[value["name"]] = value["command"]
        elif isinstance(value, Mapping):
            for inner in value.values():
                collect(inner)

    for section in results.values():
        collect(section["figures"])
    return list(found.items())


def scores_page(rows: Sequence[Row]) -> str:
    """The protocols, the published rates by protocol, and the table of our own results."""
    parts = [
        "# Scores and protocols",
        "Two success rates on ALFWorld can be compared only if they were made by the same rules. This page lists the "
        "rules that are known, what was published under each, and what this project measured. `make audit-alfworld` "
        "writes it. `evaluate.py --protocol NAME` plays by the rules of a name and refuses an option that contradicts "
        "them; other games than the protocol's own may be chosen, and then the card says so.",
        "## Protocols",
        protocols_table(),
        "*Counted:* the first trial of each game; or a game that was solved in one of several trials; or a slot of the "
        "list that was solved in one of them, whichever game it had then. The first is a success rate. The others grow "
        "with the number of trials.",
        "## Published",
        "† seen in an abstract or a summary, not in the source's own table. A rate is never compared with one of "
        "another table here.",
    ]
    published = read_published()
    for name in [*PROTOCOLS, None]:  # a table for each protocol, so that no rate stands beside one of another
        listed = [rate for rate in published if rate.protocol == name]
        if not listed:
            continue
        lines = ["| who | sees | split | games, seeds | success | source |", "| --- | --- | --- | --- | ---: | --- |"]
        for each in sorted(listed, key=lambda rate: (rate.split, -rate.success)):
            games = f"{each.games or 'not known'}, {each.seeds if each.games else 'not known'}"
            sees = "images" if each.images else "text"
            mark = "†" if each.abstract else ""
            lines.append(f"| {each.who} | {sees} | {each.split} | {games} | {each.success:.3f}{mark} | {each.source} |")
        parts += [f"### {f'`{name}`' if name else 'The protocol is not known'}", "\n".join(lines)]
    # The page of the table has its own title, which becomes a section here.
    measured = page(rows).replace("\n## ", "\n### ").replace("# Scores", "## Measured here", 1)
    return "\n\n".join([*parts, measured])
