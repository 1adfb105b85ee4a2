"""`python -m xrl_alignment.environments.prove`: compare the native engine with TextWorld."""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections import Counter
from pathlib import Path

from lavis.common.errors import ConfigError
from lavis.common.files import write_atomically
from lavis.common.progress import Bar
from xrl_alignment.common.errors import EnvironmentFault
from xrl_alignment.common.program import run_program
from xrl_alignment.environments.games import HOW_TO_GET_GAMES, cache_root, data_root
from xrl_alignment.environments.prove.comparison import Mismatch, compare, describe
from xrl_alignment.environments.prove.page import report
from xrl_alignment.environments.prove.transcripts import Transcript, recorded, transcripts_file

DEFAULT_STEPS = 60


def main(arguments: list[str] | None = None) -> int:
    """Run the proof; 0 without mismatches, 1 with. Raises an EmacError where it cannot run."""
    options = _parse(arguments)
    if options.games < 1 or options.steps < 0:
        raise ConfigError(f"--games {options.games} --steps {options.steps}: at least 1 game, and no negative number")
    paths = find_all(data_root(options.data), options.seed)
    return prove(paths if options.all else paths[: options.games], options, found=len(paths))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser = argparse.ArgumentParser(prog="python -m xrl_alignment.environments.prove", description=__doc__)
    parser.add_argument("--data", help="folder with json_2.1.1 (default: $ALFWORLD_DATA, else ~/.cache/alfworld)")
    parser.add_argument("--games", type=int, default=50, help="number of games to draw (default: 50)")
    parser.add_argument("--all", action="store_true", help="every game under the folder")
    parser.add_argument("--steps", type=int, default=DEFAULT_STEPS, help="steps a game (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="for drawing games (default: 0)")
    parser.add_argument("--workers", type=int, default=cores, help="TextWorld processes (default: %(default)s)")
    parser.add_argument("--cache", type=Path, help="folder of transcripts (default: prove in the project's cache)")
    parser.add_argument("--no-cache", action="store_true", help="neither read nor keep transcripts")
    parser.add_argument(
        "--plain-oracle", action="store_true", help="TextWorld without any shortcut; implies --no-cache"
    )
    parser.add_argument("--out", type=Path, help="write the result as Markdown")
    return parser.parse_args(arguments)


def find_all(folder: Path, seed: int) -> list[Path]:
    """Game files below `folder` in an order drawn by `seed`, so that the first ones are a fair sample."""
    paths = sorted(folder.rglob("game.tw-pddl"))
    if not paths:
        raise EnvironmentFault(f"no game.tw-pddl below {folder}: {HOW_TO_GET_GAMES} (or give --data DIR)")
    random.Random(seed).shuffle(paths)
    return paths


def prove(paths: list[Path], options: argparse.Namespace, found: int) -> int:
    """Record what is missing, compare all, print and write the result (of `found` games); the exit code."""
    cache = None
    if not options.no_cache and not options.plain_oracle:
        cache = transcripts_file(options.cache or cache_root() / "prove", options.steps)
    transcripts: dict[str, Transcript] = {}
    mismatches: list[Mismatch] = []
    verbs: Counter[str] = Counter()  # of admissible commands
    jobs = ((str(path), options.steps, options.plain_oracle) for path in paths)
    with Bar("games", sys.stderr) as bar:
        for path, transcript in recorded(jobs, cache, options.workers):
            transcripts[path] = transcript
            verbs.update(row[0].split()[0] for row in transcript.rows[1:] if row[5])
            mismatch = compare(path, transcript)
            if mismatch is not None:
                mismatches.append(mismatch)
                print(f"MISMATCH {describe(mismatch, transcript)}", flush=True)
            bar.show(len(transcripts), len(paths), f"compared, {len(mismatches)} mismatches")
    compared = sum(len(transcript.rows) for transcript in transcripts.values())
    print(f"{len(transcripts)} games, {compared} steps compared, {len(mismatches)} mismatches")
    if options.out:
        page = report(transcripts, mismatches, verbs, found)
        write_atomically(options.out, lambda file: file.write(page.encode()))
    return 1 if mismatches else 0


if __name__ == "__main__":
    run_program(main)
