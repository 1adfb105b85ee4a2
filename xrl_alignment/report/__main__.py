"""One HTML file about a run: success, curves, a few steps as the model saw them, settings; opens without a network.

    python -m xrl_alignment.report RUN_DIR [--summary FILE]

`RUN_DIR` is a run directory, or a folder that holds several (the demo's two phases). The page leaves out what is not
there.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from lavis.common.errors import MissingFileError
from xrl_alignment.common.program import run_program
from xrl_alignment.report.page import write_report
from xrl_alignment.report.run_data import find_runs, read_summary


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, read, write, print the page's path."""
    parser = argparse.ArgumentParser(prog="python -m xrl_alignment.report", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run_dir", type=Path, help="a run directory, or a folder that holds some")
    parser.add_argument("--summary", type=Path, help="figures of the evaluations (default: RUN_DIR/summary.json)")
    arguments = parser.parse_args(argv)
    source = arguments.summary or arguments.run_dir / "summary.json"
    if arguments.summary and not source.is_file():
        raise MissingFileError(f"no summary {source}")
    if arguments.run_dir.is_dir() and not find_runs(arguments.run_dir):
        raise MissingFileError(f"no run in {arguments.run_dir}: a run directory holds a folder `state`")
    print(write_report(arguments.run_dir, read_summary(source) if source.is_file() else {}))


if __name__ == "__main__":
    run_program(main)
