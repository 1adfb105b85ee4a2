"""Environments by name."""

import pytest

from xrl_alignment.common.errors import EnvironmentFault
from xrl_alignment.environments import Environment, make_environment


@pytest.mark.parametrize(("name", "made"), [("native", "native"), ("household", "native"), ("thor", "thor")])
def test_names(name, made):
    environment = make_environment(name, max_steps=7, show_ids=False)
    assert isinstance(environment, Environment)
    assert (environment.name, environment.max_steps, environment.show_ids) == (made, 7, False)


def test_textworld_with_an_expert():
    environment = make_environment("textworld", expert="planner")
    assert (environment.name, environment.expert) == ("textworld", "planner")


def test_unknown_name_lists_what_exists():
    with pytest.raises(EnvironmentFault, match="unknown environment 'natvie'.*native, textworld, thor, household"):
        make_environment("natvie")


def test_alfworld_experts_need_alfworlds_engine():
    with pytest.raises(EnvironmentFault, match="environment.name=textworld"):
        make_environment("native", expert="planner")
    with pytest.raises(EnvironmentFault, match="handcoded, planner"):
        make_environment("textworld", expert="perfect")
