"""What every benchmark shares: `--json FILE`, a table on the screen, what machine and which versions.

A benchmark measures both sides of a ratio in one run on one machine, and ends with::

    if __name__ == "__main__":
        run("Wire v1 against v2", measure)

where `measure() -> Result`. The file holds `{"benchmark", "machine", "versions", "date", "ratios", "targets", "rows"}`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# `python benchmarks/x.py` finds this file but not the packages beside the folder, unless the project is installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

from lavis.common.program import run_program
from xrl_alignment.common.versions import versions


@dataclass(frozen=True)
class Result:
    """What a benchmark found: a table, ratios, and the least value that each ratio is meant to have."""

    rows: Sequence[Mapping[str, Any]]
    ratios: Mapping[str, float]
    targets: Mapping[str, float] = field(default_factory=dict)


def run(
    title: str,
    measure: Callable[..., Result | Iterator[Result]],
    options: Callable[[argparse.ArgumentParser], None] | None = None,
) -> None:
    """Parse the command line, measure, print, and write the file if one was asked for.

    `options` adds a benchmark's own options to the parser; `measure` gets them as keywords. It may be a generator: then
    the file holds its newest result at any time, and the last one is printed. What is missing ends in one line.
    """
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    if options is not None:
        options(parser)
    arguments = vars(parser.parse_args())
    file = arguments.pop("json")
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)  # before anything is measured

    def measured() -> None:
        found = measure(**arguments)
        for result in [found] if isinstance(found, Result) else found:
            if file:
                file.write_text(json.dumps(record(title, result), indent=1) + "\n", encoding="utf-8")
        print_result(title, result)

    run_program(measured)


def record(title: str, result: Result) -> dict[str, Any]:
    """The content of the JSON file."""
    return {
        "benchmark": title,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "ratios": dict(result.ratios),
        "targets": dict(result.targets),
        "rows": [dict(row) for row in result.rows],
    }


def machine() -> dict[str, Any]:
    """Processor, cores, memory in bytes, operating system."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "system": platform.platform(),
    }


def print_result(title: str, result: Result) -> None:
    """The table, then a line for each ratio."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    columns = list(dict.fromkeys(name for row in result.rows for name in row))
    table = Table(title=title)
    for name in columns:
        table.add_column(name, justify="left" if isinstance(result.rows[0].get(name), str) else "right")
    for row in result.rows:
        table.add_row(*(_cell(row.get(name, "")) for name in columns))
    console.print(table)
    for name, value in result.ratios.items():
        target = f"  (target {result.targets[name]:g})" if name in result.targets else ""
        console.print(f"{name} = {_cell(value)}{target}", highlight=False)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
