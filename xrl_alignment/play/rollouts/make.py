"""Makes the executor that a setting or a command line names."""

from __future__ import annotations

from lavis.common.errors import ConfigError, unknown
from xrl_alignment.common.choices import BACKENDS, STEP_TIMEOUT_S
from xrl_alignment.play.rollouts.base import RolloutExecutor
from xrl_alignment.play.rollouts.local import LocalExecutor
from xrl_alignment.play.rollouts.ray import RayExecutor
from xrl_alignment.play.rollouts.sequential import SequentialExecutor


def make_executor(
    backend: str,
    *,
    workers: int = 1,
    interleave: int = 1,
    step_timeout_s: float = STEP_TIMEOUT_S,
    retries: int = 2,
    address: str = "",
) -> RolloutExecutor:
    """The executor called `backend`, one of `BACKENDS`.

    `interleave` is for `sequential`, which has no workers; `address` (empty: Ray on this machine only) is for `ray`.
    `step_timeout_s=0` means no limit.
    Raises ConfigError for settings that exclude each other, MissingExtraError if Ray is not installed, RolloutError if
    its cluster cannot be reached.
    """
    if backend not in BACKENDS:
        raise ConfigError(unknown("rollout backend", backend, BACKENDS))
    if workers < 1 or retries < 0 or step_timeout_s < 0:
        raise ConfigError(
            f"an executor needs at least 1 worker, 0 retries and 0 s for a step, not {workers}, {retries} and "
            f"{step_timeout_s:g}"
        )
    if backend != "ray" and address:
        raise ConfigError(f"a cluster's address ({address}) has no effect unless the backend is ray: it is {backend}")
    if backend == "sequential":
        if workers > 1:
            raise ConfigError(
                f"the sequential backend plays in this process: for {workers} workers choose local or ray"
            )
        return SequentialExecutor(interleave)
    if backend == "local":
        return LocalExecutor(workers=workers, retries=retries, step_timeout_s=step_timeout_s)
    return RayExecutor(workers=workers, retries=retries, step_timeout_s=step_timeout_s, address=address)
