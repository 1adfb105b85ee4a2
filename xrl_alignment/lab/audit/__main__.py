"""The audit of ALFWorld's scores: what a figure of this benchmark can carry (`make audit-alfworld`).

    python -m xrl_alignment.audit --page docs/audit.md --scores docs/scores.md
    python -m xrl_alignment.audit --quick --out output/audit-quick            # few games: whether everything runs
    python -m xrl_alignment.audit --sections logs --logs RUN/logging_results --page docs/audit.md

It plays the official games (valid_seen, and valid_unseen if it is there) with players that know little, with students
that it trains on 1 to 3,553 games, and under the rules of every protocol, and counts what the games give away. With
`--quick` it took 7 minutes of processor time (2026-11-25), at its full size an hour on one core (2026-11-27).
Each step is one of the project's programs and is done once, so a run that was stopped continues:

    DIR/
        data/, students/       the explorer's games, and the students that were cloned from them
        evaluations/           what evaluate.py wrote, with cards
        scores.jsonl           all of these as a table
        steps/, logs/          the command of each step that is done, and what it printed
        audit.json             all figures; beside the page if one is written, which is made from it
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import HOW_TO_GET_GAMES
from alfworld_native.household.levels import LEVELS
from lavis.common.errors import ConfigError
from lavis.common.files import writable
from lavis.common.program import read_first, run_program
from xrl_alignment.lab.audit.experiments import QUICK, SECTIONS, Sizes, needs_games, splits


def read_command_line(arguments: list[str] | None = None) -> tuple[argparse.Namespace, Sizes]:
    """Options and the audit's sizes; ConfigError or EnvironmentFault for what no audit could use."""
    parser = argparse.ArgumentParser(
        prog="python -m xrl_alignment.audit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("output/audit"), metavar="DIR", help="where everything is kept"
    )
    parser.add_argument("--quick", action="store_true", help="a few games of everything; its figures say nothing")
    parser.add_argument("--only-done", action="store_true", help="play nothing: the pages as far as the audit has come")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, metavar="NAME", help="default: all")
    parser.add_argument("--jobs", type=int, default=2, help="programs that run at once, each on one thread")
    parser.add_argument("--students", nargs="+", type=int, metavar="N", help="training games of each student")
    parser.add_argument(
        "--weak", type=int, metavar="N", help="those of the one that protocols are compared with; 0: none"
    )
    parser.add_argument("--levels", nargs="+", choices=LEVELS, metavar="NAME", help="levels; default: all")
    parser.add_argument("--logs", nargs="*", default=[], metavar="DIR", help="released runs: env_results_trial_*.json")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page, its figures and their numbers")
    parser.add_argument("--scores", type=Path, metavar="FILE", help="write the page of protocols and scores")
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else Sizes()
    # What the command line names takes the place of the size's own value.
    sizes = replace(
        sizes,
        students=tuple(options.students or sizes.students),
        weak=sizes.weak if options.weak is None else options.weak,
        levels=tuple(options.levels or sizes.levels),
        logs=tuple(options.logs),
        only_done=options.only_done,
    )
    names = [Path(folder).name for folder in sizes.logs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"--logs: several folders are called {twice[0]}, by which the page names a run: rename them")
    if min(*sizes.students, options.jobs) < 1 or sizes.weak < 0:
        raise ConfigError("--students and --jobs are numbers of at least 1, --weak one of at least 0")
    if "logs" in (options.sections or ()) and not sizes.logs:
        raise ConfigError("--sections logs counts released runs: name their folders, --logs DIR")
    for name, page in (("--page", options.page), ("--scores", options.scores)):
        if page:
            writable(name, page)  # both are written after an hour of playing
    options.sections = options.sections or [name for name in SECTIONS if name != "logs" or sizes.logs]
    if needs_games(options.sections) and not splits():
        raise EnvironmentFault(f"the audit plays valid_seen or valid_unseen, and neither is here: {HOW_TO_GET_GAMES}")
    return options, sizes


if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes are answered at once.
    read_first(read_command_line)

from lavis.common.files import locked, make_folder, read_json, write_bytes, write_json, write_text
from xrl_alignment.common.versions import versions
from xrl_alignment.lab.audit.figures import drawn
from xrl_alignment.lab.audit.page import render, scores_page
from xrl_alignment.lab.results.lab import Lab
from xrl_alignment.play.evaluation.scores import read_table


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing, write the figures, and the pages that are asked for."""
    options, sizes = read_command_line(arguments)
    make_folder(options.out)
    lab = Lab(options.out, jobs=options.jobs, say=lambda text: print(text, flush=True))
    path = options.page.with_suffix(".json") if options.page else options.out / "audit.json"
    with closing(locked(options.out / ".lock", options.out)):
        # Sections that are not asked for now keep the figures of an earlier call.
        results = read_json(path) if path.is_file() else {}
        sections = options.sections
        if sizes.only_done:  # it plays its games each time
            sections = [name for name in sections if name != "leakage"]

        # Sections are independent but for the students that two of them train, which the lab makes once.
        tables = lab.all([partial(SECTIONS[name], lab, sizes) for name in sections])
        for name, table in zip(sections, tables, strict=True):
            before = results.get(name, {})
            if sizes.only_done and (table := laid_over(before.get("figures", {}), table)) == before.get("figures"):
                continue  # nothing new: how it was made stays, too
            results[name] = {"figures": table, "seconds": seconds(lab, name), **made(sizes)}
        write_json(path, results)
    if options.page:
        for name, image in drawn(results).items():
            target = options.page.with_name(f"{options.page.stem}_{name}.svg")
            write_bytes(target, image)
        write_text(options.page, render(results))
        print(f"page: {options.page}")
    if options.scores:
        rows = read_table([options.out / "scores.jsonl"]) if (options.out / "scores.jsonl").is_file() else []
        write_text(options.scores, scores_page(rows))
        print(f"page: {options.scores}")
    print(f"figures: {path}")
    return 0


def laid_over(before: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    """A section's `table` as far as it has come, with the rows of an earlier call that it lacks."""
    rows = {key: {**before.get(key, {}), **row} if isinstance(row, dict) else row for key, row in table.items()}
    return before | rows


def seconds(lab: Lab, section: str) -> float:
    """The time of a section's programs when they ran, be it in an earlier call."""
    own = (f"evaluations/{section}/", *(("data/", "students/") if section == "players" else ()))
    return round(sum(taken for name, taken in lab.seconds().items() if name.startswith(own)), 1)


def made(sizes: Sizes) -> dict[str, Any]:
    """How the figures of a section were made."""
    return {
        "sizes": asdict(sizes) | {"logs": [Path(folder).name for folder in sizes.logs]},
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


if __name__ == "__main__":
    run_program(main)
