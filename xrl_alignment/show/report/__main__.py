"""One HTML file about runs: success, curves, failures, film strips, time, cost, settings; opens without a network.

    python -m xrl_alignment.report RUN_DIR [RUN_DIR …] [--summary FILE] [--out FILE]

`RUN_DIR` is a run directory, a folder that holds several (the demo's two phases), the folder of EMAC+'s loop, or one
with the logs that the original released. Several are shown side by side. The page says what is not there.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from lavis.common.errors import MissingFileError
from lavis.common.program import read_first, run_program
from xrl_alignment.show.report.loops import find_loops
from xrl_alignment.show.report.original import log_folder
from xrl_alignment.show.report.run_data import find_runs, read_summary


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; MissingFileError for a folder that holds no run, and for a summary that is not there."""
    parser = argparse.ArgumentParser(prog="python -m xrl_alignment.report", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("run_dir", type=Path, nargs="+", help="run directories, folders of some, of EMAC+'s loops, or original logs")
    add("--summary", type=Path, help="figures of the evaluations (default: summary.json in each RUN_DIR)")
    add("--out", type=Path, help="the page (default: report.html in the first RUN_DIR)")
    arguments = parser.parse_args(argv)
    if arguments.summary and not arguments.summary.is_file():
        raise MissingFileError(f"no summary {arguments.summary}")
    for folder in arguments.run_dir:
        if folder.is_dir() and not find_runs(folder) and not find_loops(folder) and not log_folder(folder):
            raise MissingFileError(
                f"no run in {folder}: a run directory holds a folder `state`, that of EMAC+'s loop `evaluations` and "
                "`buffer`, the original's logs are `world.log` and `env_results_trial_<n>.json`"
            )
    return arguments


if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes are answered at once.
    read_first(parse_arguments)

from xrl_alignment.show.report.page import write_report


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, read, write, print the page's path."""
    arguments = parse_arguments(argv)
    first, *others = arguments.run_dir
    source = arguments.summary or first / "summary.json"
    summary = read_summary(source) if source.is_file() else {}
    # Beside the first folder's figures stand those of the others' evaluations, with their folder as it was given: two
    # folders may have one name.
    for folder in () if arguments.summary else others:
        if (path := folder / "summary.json").is_file():
            entries = read_summary(path).items()
            found = {name: entry for name, entry in entries if isinstance(entry, dict) and "success" in entry}
            summary |= {f"{folder}: {name}": entry for name, entry in found.items()}
    print(write_report(first, summary, *others, out=arguments.out))


if __name__ == "__main__":
    run_program(main)
