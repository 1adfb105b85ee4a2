"""The lists of names."""

from xrl_alignment.common.choices import CLIENT_EXPERTS, EXPERT_NAMES


def test_experts_of_the_client_are_experts() -> None:
    assert set(CLIENT_EXPERTS) < set(EXPERT_NAMES)
