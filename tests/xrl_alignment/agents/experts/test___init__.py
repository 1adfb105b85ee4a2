"""Experts by name."""

from types import SimpleNamespace

import pytest

from alfworld_native.experts.alfworld import AlfworldExpert, ClientExpert
from lavis.common.errors import ConfigError
from xrl_alignment.agents.experts import make_expert
from xrl_alignment.common.choices import EXPERT_NAMES


def test_every_name_builds_an_expert():
    for name in EXPERT_NAMES:
        options = {"teacher": SimpleNamespace(pool=None, admissible=False, grounding=False)} if name == "openai" else {}
        assert make_expert(name, **options).name == name


def test_alfworlds_experts_sit_beside_the_environment_or_at_the_other_end_of_the_wire():
    assert isinstance(make_expert("planner", environment=object()), AlfworldExpert)
    assert isinstance(make_expert("planner"), ClientExpert)
    assert isinstance(make_expert("client", environment=object()), ClientExpert)


def test_options_reach_the_explorer():
    assert make_expert("explorer", order="listing", seed=2).order == "listing"


def test_unknown_name_lists_what_exists():
    with pytest.raises(ConfigError, match="unknown expert 'oracle': choose one of client, explorer, handcoded"):
        make_expert("oracle")
    with pytest.raises(TypeError, match="'client' takes no options, got seed"):
        make_expert("client", seed=1)
    with pytest.raises(TypeError, match="'openai' takes one option, teacher"):
        make_expert("openai")
