"""`python -m xrl_alignment.environments.household`: generate games."""

from __future__ import annotations

import argparse
from pathlib import Path

from lavis.common.progress import Bar
from xrl_alignment.common.program import run_program
from xrl_alignment.environments.games import RELEASE
from xrl_alignment.environments.household import generator
from xrl_alignment.environments.household.furnish import MAX_RECEPTACLES
from xrl_alignment.environments.household.generator import VERIFY, generate


def main(arguments: list[str] | None = None) -> int:
    """Generate the games that the arguments ask for."""
    parser = argparse.ArgumentParser(
        prog="python -m xrl_alignment.environments.household",
        description=generator.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", required=True, help="folder for the games")
    parser.add_argument("--num-train", type=int, default=2000)
    parser.add_argument("--num-heldout", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-receptacles", type=int, default=MAX_RECEPTACLES, help="largest room (default 16)")
    parser.add_argument("--verify", choices=VERIFY, default="native", help="who checks that a game can be solved")
    parser.add_argument("--replace", action="store_true", help="delete other generated games that are in the folder")
    options = parser.parse_args(arguments)
    with Bar("games") as bar:
        generate(
            options.out,
            options.num_train,
            options.num_heldout,
            options.seed,
            max_receptacles=options.max_receptacles,
            verify=options.verify,
            replace=options.replace,
            progress=lambda made, total: bar.show(made, total, "made"),
        )
    print(f"games: {Path(options.out) / RELEASE}")
    return 0


if __name__ == "__main__":
    run_program(main)
