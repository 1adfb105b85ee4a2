"""Errors that several rooms raise or catch. All are EmacErrors: programs print them as one line."""

from __future__ import annotations

from lavis.common.errors import EmacError


class EnvironmentFault(EmacError, RuntimeError):
    """A user's mistake around an environment (game file, command type, order of calls); its text says what to do."""


class RolloutError(EmacError, RuntimeError):
    """Workers cannot be had; the text says why."""


class EndpointFault(EmacError, ValueError):
    """The endpoint cannot be used as it is (wrong key, unknown model, down): the run pauses, its state is kept."""


class BudgetSpent(EndpointFault):
    """`expert.max_calls` or `expert.max_cost_usd` is reached: the run pauses, its state is kept."""


class PromptTooLong(EndpointFault):
    """A prompt does not fit the model even with all that may be left out left out."""


class InferenceEngineFault(EndpointFault):
    """An inference engine cannot be used (unreachable, another model, wrong settings); the text says why."""
