"""`python -m alfworld_native.prove`: compare the native engine with TextWorld."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path

from alfworld_native.engine.gamefile import read_game
from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import HOW_TO_GET_GAMES, cache_root, data_root
from alfworld_native.prove.comparison import compare, describe
from alfworld_native.prove.page import Proof, report
from alfworld_native.prove.transcripts import recorded, transcripts_file
from alfworld_native.prove.versions import in_other_versions, version_of
from lavis.common.errors import ConfigError
from lavis.common.files import writable, write_text
from lavis.common.program import run_program
from lavis.common.progress import Bar

DEFAULT_STEPS = 60


def main(arguments: list[str] | None = None) -> int:
    """Run the proof; 0 without mismatches, 1 with. Raises an EmacError if the proof cannot run."""
    options = _parse(arguments)
    if options.games < 1 or options.steps < 0:
        raise ConfigError(f"--games {options.games} --steps {options.steps}: at least 1 game, and no negative number")
    if options.out:
        writable("--out", options.out)  # it is written after all games, of which there may be thousands
    proof = Proof()
    folder = data_root(options.data)
    paths = sorted(folder.rglob("game.tw-pddl"))
    if not paths:
        raise EnvironmentFault(f"no game.tw-pddl below {folder}: {HOW_TO_GET_GAMES} (or give --data DIR)")
    random.Random(options.seed).shuffle(paths)  # so that the first ones are a fair sample
    proof.found = len(paths)
    versions = playable(paths if options.all else paths[: options.games], proof)
    # Games in other versions' texts exist only while they are compared.
    with tempfile.TemporaryDirectory() as written:
        told = list(in_other_versions(list(versions.items())[: options.other_versions], Path(written)))
        versions |= {path: version_of(read_game(path)) for path in told}
        return prove(versions, set(told), proof, options)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    # Those that this process may use: a container or taskset gives fewer than the machine has.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser = argparse.ArgumentParser(prog="python -m alfworld_native.prove", description=__doc__)
    parser.add_argument("--data", help="any folder with games (default: $ALFWORLD_DATA, else ~/.cache/alfworld)")
    parser.add_argument("--games", type=int, default=50, help="number of games to draw (default: 50)")
    parser.add_argument("--all", action="store_true", help="every game under the folder")
    parser.add_argument(
        "--other-versions", type=int, default=0, metavar="N", help="play N games in ALFWorld's other versions, too"
    )
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


def playable(paths: list[Path], proof: Proof) -> dict[Path, str]:
    """The games that the native engine plays, each with its version; `proof` notes the others and the reason.

    Raises EnvironmentFault if it plays none.
    """
    versions = {}
    for path in paths:
        try:
            versions[path] = version_of(read_game(path))
        except EnvironmentFault as error:
            # Counted by reason, without the path: one line for thousands of games of an unknown version.
            proof.refused[str(error).removeprefix(f"game file {path}").lstrip(": ")] += 1
    if not versions:
        raise EnvironmentFault(f"none of {len(paths)} games can be played: {', '.join(proof.refused)}")
    return versions


def prove(versions: dict[Path, str], told: set[Path], proof: Proof, options: argparse.Namespace) -> int:
    """Record what is missing, compare all, print and write the result; the exit code.

    `versions` are the games, each with its version; those of `told` have other texts than their own.
    """
    cache = None
    if not options.no_cache and not options.plain_oracle:
        # `--plain-oracle` plays without any shortcut, and a cache of transcripts is one.
        cache = transcripts_file(options.cache or cache_root() / "prove", options.steps)
    jobs = ((str(path), options.steps, options.plain_oracle) for path in versions)
    with Bar("games", sys.stderr) as bar:
        for path, transcript in recorded(jobs, cache, options.workers):
            mismatch = compare(path, transcript)
            game = Path(path)
            proof.add(game, versions[game], transcript, mismatch is not None, game in told)
            if mismatch is not None:
                print(f"MISMATCH {describe(mismatch, transcript)}", flush=True)
            total = proof.total()
            bar.show(total["games"], len(versions), f"compared, {total['mismatches']} mismatches")
    total = proof.total()
    print(f"{total['games']} games, {total['steps']} steps compared, {total['mismatches']} mismatches")
    for reason, number in proof.refused.items():
        print(f"{number} not played: {reason}")
    if options.out:
        page = report(proof)
        write_text(options.out, page)
    return 1 if total["mismatches"] else 0


if __name__ == "__main__":
    run_program(main)
