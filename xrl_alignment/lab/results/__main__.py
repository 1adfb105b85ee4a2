"""Runs the experiments of docs/results.md and writes the page (`make results`).

    python -m xrl_alignment.results --cfg-path configs/results/full.yaml --page docs/results.md
    python -m xrl_alignment.results --cfg-path configs/results/quick.yaml

Every experiment consists of steps, each one of the project's programs; `results.output` keeps their data, checkpoints,
figures and logs. A step that is done is not run again, so a run that was stopped continues with the same command.
All figures are written to `results.json` there, or beside the page, which is made from them. The experiments can be run
one by one (`results.experiments`, `results.regimes`), not at once: figures that the file holds already stay. They must
have been made with the same sizes; if the machine or the versions were others, the file says so (`kept`).
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lavis.common.files import writable
from lavis.common.program import parse_args, read_first, run_program
from xrl_alignment.lab.results.settings import ResultsConfig, ResultsFile
from xrl_alignment.settings.loading import load_config

# Sizes that say which figures are made, not how: calls that differ in these add to one another.
WHICH = ("experiments", "output", "jobs", "switches", "regimes", "curve", "batch_curve")


def _page(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--page", type=Path, metavar="FILE", help="also write the page of all figures")


def read_command_line() -> tuple[ResultsConfig, Path | None]:
    """Sizes, and where the page is written; ConfigError for settings that cannot be used."""
    example = "configs/results/quick.yaml"
    arguments = parse_args(__doc__, _page, settings="xrl_alignment/lab/results/settings.py", example=example)
    if arguments.page:
        writable("--page", arguments.page)  # it is written after a day of experiments
    return load_config(ResultsFile, arguments.cfg_path, arguments.options).results, arguments.page


if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes are answered at once.
    read_first(read_command_line)

from lavis.common.errors import ConfigError
from lavis.common.files import locked, make_folder, read_json, write_bytes, write_json, write_text
from xrl_alignment.common.versions import versions
from xrl_alignment.lab.results.curves import curves
from xrl_alignment.lab.results.experiments import RUN
from xrl_alignment.lab.results.lab import Lab
from xrl_alignment.lab.results.page import render
from xrl_alignment.show.report.charts import svg


def main() -> None:
    """Run what is missing, write the figures and the page."""
    sizes, page = read_command_line()
    output = Path(sizes.output)
    make_folder(output)
    with closing(locked(output / ".lock", output)):
        results = _run(sizes, output, page)
    if page:
        write_text(page, render(results))
        write_bytes(page.with_suffix(".svg"), svg(curves(results)))
        print(f"page: {page}")


def _run(sizes: ResultsConfig, output: Path, page: Path | None) -> dict[str, Any]:
    """Run the experiments and write their figures; returns all figures that the file holds then."""
    path = page.with_suffix(".json") if page else output / "results.json"
    results = read_json(path) if path.is_file() else {}
    for name in sizes.experiments:
        refuse_other_sizes(path, name, results.get(name, {}), sizes)
    for name in sizes.experiments:
        lab = Lab(output, jobs=sizes.jobs, say=lambda text: print(text, flush=True))
        figures = RUN[name](lab, sizes)
        # Figures of parts that an earlier call has run stay; the file is written after each experiment, so that a
        # stopped run loses one at most.
        made = {"machine": f"{os.cpu_count()} cores, {platform.machine()}", "versions": versions()}
        results[name] = {"sizes": asdict(sizes), **with_earlier(results.get(name, {}), figures, made, lab.seconds())}
        write_json(path, results)
    print(f"figures: {path}")
    return results


def refuse_other_sizes(path: Path, name: str, before: Mapping[str, Any], sizes: ResultsConfig) -> None:
    """ConfigError if figures `before` of the experiment `name` were made with other sizes: the page names one set."""
    if not before.get("sizes"):
        return
    made = asdict(ResultsConfig()) | before["sizes"]  # a size that came later has its default
    for key, value in asdict(sizes).items():
        # The points of a curve are compared with its first one: those of two calls do not belong together.
        of_one_call = name == "ablations" and key in ("curve", "batch_curve")
        if (key not in WHICH or of_one_call) and made[key] != value:
            raise ConfigError(
                f"{path}: its figures of {name} were made with results.{key}={made[key]}, not {value}: name another "
                f"results.output or --page, or remove {name} from the file"
            )


def with_earlier(
    before: Mapping[str, Any], figures: Mapping[str, Any], made: Mapping[str, Any], seconds: Mapping[str, float]
) -> dict[str, Any]:
    """An experiment's new `figures` with those of an earlier call that this one has not made anew.

    `made` says how the new ones were made. Earlier ones that were made otherwise are named in `kept`, with how.
    """
    stay = [part for part in before.get("figures", {}) if part not in figures]
    origins = {key: before[key] for key in made if key in before}
    kept = {part: before.get("kept", {}).get(part, origins) for part in stay}
    notes = {
        "kept": {part: origin for part, origin in kept.items() if origin != made},
        "taken_from": before.get("taken_from") if stay else None,  # written by hand: of figures from elsewhere
    }
    return {
        "figures": before.get("figures", {}) | figures,
        **made,
        "seconds": before.get("seconds", {}) | seconds,
        **{key: note for key, note in notes.items() if note},
    }


if __name__ == "__main__":
    run_program(main)
