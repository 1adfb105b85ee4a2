"""What goes wrong between us and a language model's endpoint. All are user-facing: root programs print one line."""

from __future__ import annotations


class EndpointFault(ValueError):
    """The endpoint cannot be used as it is (wrong key, unknown model, down): the run pauses, its state is kept."""


class BudgetSpent(EndpointFault):
    """`expert.max_calls` or `expert.max_cost_usd` is reached: the run pauses, its state is kept."""


class PromptTooLong(EndpointFault):
    """A prompt does not fit the model even with all that may be left out left out."""
