"""Rollout workers as Ray actors: on this machine, or on the nodes of a cluster (docs/rollouts.md)."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xrl_alignment.rollouts import ParallelExecutor, Play, Reply, RolloutError, Seat, Worker

_CONNECT_S = 5.0


@dataclass
class _Handle:
    actor: Any
    said: Any  # the reference of the reply that is waited for


class RayExecutor(ParallelExecutor):
    """Workers are Ray actors.

    `address` is a cluster's (`host:6379`, or `auto` for the one that runs on this machine); empty: `$RAY_ADDRESS`, else
    a Ray of our own on this machine. Where the program is connected already, that connection is used and kept. Each
    worker takes `cpus_per_worker` of the cluster's processors; one for which there is no room waits until there is,
    and the others play. The nodes need this project installed, and the games under the same path.

    Raises ImportError (names the extra) without Ray, RolloutError where no cluster answers.
    """

    name = "ray"

    def __init__(self, *, address: str = "", cpus_per_worker: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self._ray = _import_ray()
        self._owned = not self._ray.is_initialized()
        if self._owned:
            self._connect(address or os.environ.get("RAY_ADDRESS", ""), math.ceil(self.workers * cpus_per_worker))
        self._seat = self._ray.remote(Seat).options(num_cpus=cpus_per_worker, scheduling_strategy="SPREAD")
        self._shared: tuple[Play | None, Any] = (None, None)

    def close(self) -> None:
        """End all workers, and the connection if it is ours."""
        super().close()
        if self._owned and self._ray.is_initialized():
            self._ray.shutdown()

    def _connect(self, address: str, cpus: int) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if not address:
            # Processors are counted, not bound: environments that wait may be many more than there are cores.
            self._ray.init(address="local", num_cpus=cpus, include_dashboard=False, **options)
            return
        _check_reachable(address)
        try:
            self._ray.init(address=address, **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise RolloutError(_unreachable(address, error)) from error

    def _start(self) -> _Handle:
        actor = self._seat.remote()
        return _Handle(actor, actor.__ray_ready__.remote())

    def _tell(self, worker: Worker, call: str, *arguments: Any) -> None:
        if call == "begin" and len(arguments) == 2:  # what is played goes to each node once
            job, play = arguments
            if self._shared[0] is not play:
                self._shared = play, self._ray.put(play)
            arguments = job, self._shared[1]
        worker.handle.said = getattr(worker.handle.actor, call).remote(*arguments)

    def _hear(self, workers: Sequence[Worker], timeout_s: float) -> list[tuple[Worker, Reply]]:
        by_reference = {worker.handle.said: worker for worker in workers}
        self._ray.wait(list(by_reference), timeout=timeout_s)
        there, _ = self._ray.wait(list(by_reference), num_returns=len(by_reference), timeout=0)
        return [(by_reference[said], self._receive(said)) for said in there]

    def _receive(self, said: Any) -> Reply:
        errors = self._ray.exceptions
        try:
            reply = self._ray.get(said)
            return reply if isinstance(reply, Reply) else Reply("ready")
        except (
            errors.ActorDiedError,
            errors.ActorUnavailableError,
            errors.OutOfMemoryError,
            errors.NodeDiedError,
        ) as error:
            return Reply("died", detail=" ".join(str(error).split()))
        except errors.RayError as error:  # a result or a question that cannot leave its worker
            return Reply("error", RolloutError(str(error).strip().splitlines()[-1]), str(error))

    def _end(self, workers: Sequence[Worker], patience_s: float) -> None:
        idle = [worker for worker in workers if patience_s and worker.ready and worker.job is None]
        if idle:
            self._ray.wait([w.handle.actor.close.remote() for w in idle], num_returns=len(idle), timeout=patience_s)
        for worker in workers:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.kill(worker.handle.actor)

    def _why_not_ready(self) -> str:
        free = self._ray.available_resources().get("CPU", 0)
        return f": the cluster has {free:g} free processors, see `ray status`"


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ImportError("the ray backend needs Ray: pip install 'emac-plus[ray]'") from error
    return ray


def _check_reachable(address: str) -> None:
    """Ray itself would try for a minute, and its log would say why: a look at the port tells at once."""
    host, colon, port = address.rpartition(":")
    if not colon or "//" in address or not port.isdigit():
        return  # `auto`, `ray://…`: Ray's own business
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except OSError as error:
        raise RolloutError(_unreachable(address, error)) from error


def _unreachable(address: str, error: Exception) -> str:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return f"no Ray cluster answers at {address} ({reason}): start one with run_scripts/ray/head.sh"
