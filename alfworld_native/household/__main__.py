"""`python -m alfworld_native.household`: generate games."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from alfworld_native.games import RELEASE, data_root
from alfworld_native.household import generator
from alfworld_native.household.frozen import GAMES, make_test_set
from alfworld_native.household.generator import VERIFY, generate
from alfworld_native.household.levels import LEVELS
from alfworld_native.household.mixture import read_mixture
from lavis.common.program import run_program
from lavis.common.progress import Bar

_KNOBS = ("rooms", "receptacles", "clutter", "instances", "count", "goals", "hidden", "new_names", "max_steps")


def main(arguments: list[str] | None = None) -> int:
    """Generate the games that the arguments ask for."""
    options = _parse(arguments)
    with Bar("games") as bar:
        if options.test_set:
            for name in options.test_set:
                make_test_set(name, options.out, lambda made, total: bar.show(made, total, "made"))
        else:
            given = {name: getattr(options, name) for name in _KNOBS}
            knobs: dict[str, Any] = {
                name: tuple(v) if isinstance(v, list) else v for name, v in given.items() if v is not None
            }
            level = LEVELS[options.level]
            if knobs.get("goals", 1) > 1 and "goals" not in level.changed():
                # Several goals need tasks that bring something (`GameLevel`): `compound` has all of these.
                knobs["kinds"] = tuple(kind for kind in level.kinds if kind in LEVELS["compound"].kinds)
            generate(
                options.out,
                options.num_train,
                options.num_heldout,
                options.seed,
                level=dataclasses.replace(level, **knobs),
                levels=read_mixture(" ".join(options.levels)) if options.levels else None,
                max_receptacles=options.max_receptacles,
                verify=options.verify,
                replace=options.replace,
                progress=lambda made, total: bar.show(made, total, "made"),
            )
    print(f"games: {data_root(options.out) / RELEASE}")
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m alfworld_native.household",
        description=generator.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--out", required=True, help="folder for the games")
    add("--num-train", type=int, default=2000)
    add("--num-heldout", type=int, default=100)
    add("--seed", type=int, default=0)
    add("--max-receptacles", type=int, help="largest room (default: the level's, 16)")
    add("--verify", choices=VERIFY, default="native", help="who checks that a game can be solved")
    add("--replace", action="store_true", help="delete other generated games that are in the folder")
    add("--level", choices=LEVELS, default="standard", help="how hard the games are (docs/levels.md)")
    add("--levels", nargs="+", metavar="LEVEL=WEIGHT", help="a mixture of levels, each with its share of the games")
    add("--test-set", choices=LEVELS, nargs="+", help=f"make the frozen test sets of these levels, {GAMES} games each")
    knobs = parser.add_argument_group("knobs", "each takes the place of the level's own value")
    add = knobs.add_argument
    add("--rooms", type=int, help="rooms joined into one, 1 to 4")
    add("--receptacles", type=int, nargs=2, metavar=("LEAST", "MOST"))
    add("--clutter", type=float, nargs=2, metavar=("LEAST", "MOST"),
        help="objects for each receptacle, but at least 12 in all, and no more than --instances of each type that the "
        "rooms have")  # fmt: skip
    add("--instances", type=int, help="distractors of one type, at most")
    add("--count", type=int, help="objects that `put two … in …` asks for, 2 to 5")
    add("--goals", type=int, help="goals at once, 1 to 3")
    # `store_const`, not `store_true`: None says that the flag was not given, and the level's own value stays.
    add("--hidden", action="store_const", const=True, help="what is asked for lies in closed containers that take it")
    add("--new-names", action="store_const", const=True, help="object names that no ALFWorld game has")
    add("--max-steps", type=int, help="steps in which a game can be solved, at most")
    options = parser.parse_args(arguments)
    if not options.out:  # a shell's variable without a value; empty means $ALFWORLD_DATA to all that reads games
        parser.error("--out is empty: name a folder for the games")
    if options.test_set:
        # A frozen set has its own level, seed and number of games.
        own = ("out", "test_set")
        ignored = [n for n, value in vars(options).items() if n not in own and value != parser.get_default(n)]
        if ignored:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in ignored)
            parser.error(f"--test-set makes frozen games: leave out {flags}")
    return options


if __name__ == "__main__":
    run_program(main)
