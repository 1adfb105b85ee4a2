"""The lists of names against what can be built by them."""

from xrl_alignment.common.choices import CLIENT_EXPERTS, ENVIRONMENT_NAMES, EXPERT_NAMES
from xrl_alignment.environments import ENVIRONMENTS
from xrl_alignment.experts import EXPERTS


def test_names_are_those_that_can_be_built() -> None:
    assert set(EXPERT_NAMES) == set(EXPERTS)
    assert set(ENVIRONMENT_NAMES) == {*ENVIRONMENTS, "household"}


def test_experts_of_the_client_are_experts() -> None:
    assert set(CLIENT_EXPERTS) < set(EXPERT_NAMES)
