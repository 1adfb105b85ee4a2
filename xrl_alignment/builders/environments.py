"""Games and environments of an `environment:` section."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from xrl_alignment.config.schema import EnvironmentConfig
from xrl_alignment.environments import choose_games, make_environment
from xrl_alignment.environments.base import Environment, Game


def games_of(settings: EnvironmentConfig, number: int) -> list[Game]:
    """`number` games of an `environment:` section; household games are generated on first use."""
    return choose_games(
        settings.name,
        settings.split,
        num=number,
        data=settings.data or None,
        seed=settings.seed,
        num_train=settings.num_train,
        num_heldout=settings.num_heldout,
    )


def environment_factory(
    settings: EnvironmentConfig, max_steps: int, expert: str | None = None
) -> Callable[[], Environment]:
    """Makes environments of an `environment:` section; `expert` is one that is computed beside the game, or None."""
    return partial(make_environment, settings.name, max_steps=max_steps, show_ids=settings.show_ids, expert=expert)
