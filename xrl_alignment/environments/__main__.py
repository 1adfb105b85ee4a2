"""Lists the splits of games: `python -m xrl_alignment.environments [--data DIR]`."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence

from xrl_alignment.common.errors import EnvironmentFault
from xrl_alignment.common.program import run_program
from xrl_alignment.environments.base import Game
from xrl_alignment.environments.games import data_root, find_games, find_splits, games_hash
from xrl_alignment.language.sentences import TASK_TYPES


def main(arguments: list[str] | None = None) -> int:
    """Print one column per split: games of each task type, their sum, the hash of the list ("empty" without games).

    Raises EnvironmentFault where no split has a game."""
    parser = argparse.ArgumentParser(prog="python -m xrl_alignment.environments", description=__doc__)
    parser.add_argument("--data", default=None, help="folder with json_2.1.1 (default: $ALFWORLD_DATA)")
    data = parser.parse_args(arguments).data
    found = _games_of(find_splits(data) or ["train"], data)
    columns = {split: _column(games) for split, games in found.items()}
    print(f"games in {data_root(data)}")
    print(f"{'':32}" + "".join(f"{split:>20}" for split in columns))
    for i, label in enumerate([*TASK_TYPES, "all", "hash of the list"]):
        print(f"{label:32}" + "".join(f"{cells[i]:>20}" for cells in columns.values()))
    return 0


def _games_of(splits: Sequence[str], data: str | None) -> dict[str, list[Game]]:
    """The games of each split, in order; a split may have none, but not all of them."""
    games: dict[str, list[Game]] = {}
    fault: EnvironmentFault | None = None
    for split in splits:
        try:
            games[split] = find_games(split, data)
        except EnvironmentFault as error:
            games[split], fault = [], fault or error
    if fault and not any(games.values()):
        raise fault
    return games


def _column(games: Sequence[Game]) -> list[str]:
    counts = Counter(game.task_type for game in games)
    numbers = [counts[kind] for kind in TASK_TYPES]
    return [*map(str, (*numbers, len(games))), games_hash(games) if games else "empty"]


if __name__ == "__main__":
    run_program(main)
