"""Processes of one run (LAVIS's names): this process's number, starting up, and exchange between ranks.

Everything here also works in a run of one process, where no process group exists.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from lavis.common.errors import ConfigError

T = TypeVar("T")


def is_dist_avail_and_initialized() -> bool:
    """Whether this process belongs to a group."""
    return dist.is_available() and dist.is_initialized()


def get_world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if is_dist_avail_and_initialized() else 1


def get_rank() -> int:
    """This process's number."""
    return dist.get_rank() if is_dist_avail_and_initialized() else 0


def is_main_process() -> bool:
    """Whether this is rank 0, which writes logs and results."""
    return get_rank() == 0


def main_process(function: Callable[..., T]) -> Callable[..., T | None]:
    """Decorator: run on rank 0 only, `None` elsewhere."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> T | None:
        return function(*args, **kwargs) if is_main_process() else None

    return wrapper


def launched_world_size() -> int:
    """How many processes `torch.distributed.run` started (1 without it)."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """This process's number on its machine, which is its GPU's number."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def init_distributed_mode(*, device: str, world_size: int = 0, dist_url: str = "env://") -> None:
    """Join the group that `torch.distributed.run` started; nothing in a single process.

    NCCL on GPUs, Gloo on CPUs. `world_size`, if set, must be the number of started processes: ConfigError otherwise.
    The processes meet at `dist_url`: `env://` (the launcher's address), `tcp://host:port` or `file:///a/new/file`.
    """
    launched = launched_world_size()
    if world_size and world_size != launched:
        raise ConfigError(
            f"run.world_size is {world_size}, but {launched} process(es) were started: start "
            f"python -m torch.distributed.run --nproc_per_node={world_size} …, or set run.world_size={launched}"
        )
    # A second run in the same processes finds the group that the first one made.
    if launched == 1 or is_dist_avail_and_initialized():
        return
    if torch.device(device).type == "cuda":
        # Before NCCL starts: it takes the current GPU, which is the first one in every process.
        torch.cuda.set_device(local_rank())
        backend = "nccl"
    else:
        backend = "gloo"
    if dist_url.startswith("tcp://") and not dist_url.endswith(f":{os.environ.get('MASTER_PORT')}"):
        # The launcher tells torch that it has opened the meeting point itself. That is true of its own port alone: at
        # another one all processes would wait for somebody to open it.
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    # `env://` would find both numbers itself; the other two forms must be told.
    rank = int(os.environ.get("RANK", "-1"))
    dist.init_process_group(
        backend, init_method=dist_url, world_size=launched, rank=rank, timeout=timedelta(minutes=30)
    )


def end_distributed_mode() -> None:
    """Leave the group, if there is one: together with the others, or at once if called while an error is handled.

    A process that ended while the other one still worked was aborted once (Gloo: "terminate called without an active
    exception"); that waiting prevents it is not proved.
    """
    if is_dist_avail_and_initialized():
        if sys.exc_info()[0] is None:  # after an error the others may never come
            barrier()
        dist.destroy_process_group()


def barrier() -> None:
    """Wait for all processes."""
    if is_dist_avail_and_initialized():
        dist.barrier()


def summed(values: list[float], device: torch.device) -> list[float]:
    """Element-wise sums over all processes, in float64."""
    if not is_dist_avail_and_initialized():
        return values
    # float64: counts of tokens stay exact up to 2^53.
    total = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return total.tolist()


def gathered(value: T) -> list[T]:
    """Every process's value, in order of rank, on every process. Not for large values.

    Between processes of one run values travel pickled; nothing from outside the run comes this way.
    """
    if not is_dist_avail_and_initialized():
        return [value]
    # All processes must call it, in the same order of calls: a collective operation waits for the slowest.
    values: list[Any] = [None] * get_world_size()
    dist.all_gather_object(values, value)
    return values
