"""Runners: training and evaluation over epochs (`runner_base`) or over iterations (`runner_iter`)."""

from lavis.runners.runner_base import RunnerBase
from lavis.runners.runner_iter import RunnerIter

__all__ = ["RunnerBase", "RunnerIter"]
