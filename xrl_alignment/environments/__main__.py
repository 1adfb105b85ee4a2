"""Lists the splits of games: `python -m xrl_alignment.environments [--data DIR]`."""

from __future__ import annotations

import argparse
from collections import Counter

from xrl_alignment.common.program import run_program
from xrl_alignment.environments.games import data_root, find_games, find_splits, games_hash
from xrl_alignment.language.sentences import TASK_TYPES


def main(arguments: list[str] | None = None) -> int:
    """Print one column per split: games of each task type, their sum, the hash of the list.

    Raises EnvironmentFault where there are no games."""
    parser = argparse.ArgumentParser(prog="python -m xrl_alignment.environments", description=__doc__)
    parser.add_argument("--data", default=None, help="folder with json_2.1.1 (default: $ALFWORLD_DATA)")
    data = parser.parse_args(arguments).data
    columns: dict[str, list[str]] = {}
    for split in find_splits(data) or ["train"]:
        games = find_games(split, data)
        counts = Counter(game.task_type for game in games)
        columns[split] = [str(counts[kind]) for kind in TASK_TYPES] + [str(len(games)), games_hash(games)]
    print(f"games in {data_root(data)}")
    print(f"{'':32}" + "".join(f"{split:>20}" for split in columns))
    for i, label in enumerate([*TASK_TYPES, "all", "hash of the list"]):
        print(f"{label:32}" + "".join(f"{cells[i]:>20}" for cells in columns.values()))
    return 0


if __name__ == "__main__":
    run_program(main)
