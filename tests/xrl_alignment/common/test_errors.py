"""The shared errors: each is an EmacError, which programs print as one line, and the built-in one that fits."""

import inspect

import pytest

from lavis.common.errors import EmacError
from xrl_alignment.common import errors

CLASSES = [value for value in vars(errors).values() if inspect.isclass(value) and value is not EmacError]


@pytest.mark.parametrize("kind", CLASSES)
def test_each_is_a_users_mistake_and_a_builtin_error(kind):
    assert issubclass(kind, EmacError) and issubclass(kind, RuntimeError | ValueError)
    assert str(kind("what to do")) == "what to do"


def test_a_spent_budget_pauses_a_run_as_a_fault_of_the_endpoint_does():
    assert all(issubclass(kind, errors.EndpointFault) for kind in (errors.BudgetSpent, errors.PromptTooLong))
