"""Household games in Inspect (extra `inspect`): inspect eval examples/inspect_household.py --model openai/gpt-4o-mini.

Options: -T games=20 -T admissible=true; --epochs 5 --epochs-reducer max for the best of five trials.
"""

import sys

from alfworld_native import choose_games
from alfworld_native.base import check_count
from lavis.common.errors import missing_extra

try:
    from inspect_ai import Task, task

    from xrl_alignment.adapters.inspect import household_task
except ModuleNotFoundError as error:
    sys.exit(f"error: {missing_extra('inspect', error)}")


@task
def household(games: int = 20, admissible: bool = False) -> Task:
    """Generated games in rooms that no training game has."""
    check_count("games", games)
    chosen = choose_games("household", "household_heldout", num=games, num_train=0, num_heldout=games)
    return household_task(chosen, admissible=admissible)
