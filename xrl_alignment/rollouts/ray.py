"""Rollout workers on the nodes of a Ray cluster, or under a Ray on this machine only (docs/rollouts.md).

A Ray actor takes seconds of a processor to start, and environments that wait may be many more than there are cores. So
the actors are few: each is a `Host`, which keeps worker processes on its node as `LocalExecutor` does.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from xrl_alignment.common.errors import RolloutError
from xrl_alignment.rollouts.executors import LocalExecutor, ParallelExecutor, Play, Reply, Worker

HOST_WORKERS = 8  # at most, for each actor: what is lost with it
_CONNECT_S = 5.0


class Host:
    """An actor: keeps worker processes, and hands calls on to them. Its methods run in threads, one for each worker."""

    def __init__(self) -> None:
        self._local = LocalExecutor(workers=1)
        self._workers: dict[int, Worker] = {}
        self._starting = threading.Lock()

    def start(self, number: int) -> Reply:
        """Start worker `number` and wait until it is ready."""
        with self._starting:
            self._workers[number] = worker = Worker(number, self._local.start_process())
        return self._local.receive(worker)

    def call(self, number: int, call: str, *arguments: Any) -> Reply:
        """Have worker `number` carry out a call of `Seat`."""
        worker = self._workers[number]
        worker.job = number  # only for `end`: it is not idle
        self._local.tell(worker, call, *arguments)
        reply = self._local.receive(worker)
        worker.job = None
        return reply

    def end(self, numbers: Sequence[int], patience_s: float) -> None:
        """End workers; those that idle may close their environments first."""
        self._local.end([self._workers.pop(number) for number in numbers], patience_s)


@dataclass
class _Place:
    """A host and the workers it keeps."""

    actor: Any
    numbers: set[int] = field(default_factory=set)


@dataclass
class _Handle:
    place: _Place
    number: int
    said: Any  # the reference of the reply that is waited for


class RayExecutor(ParallelExecutor):
    """Workers are processes on the nodes of a cluster.

    `address` is the cluster's (`host:6379`, or `auto` for the one that runs on this machine); empty: `$RAY_ADDRESS`,
    else a Ray of our own on this machine. Where the program is connected already, that connection is used and kept.
    Each worker takes `cpus_per_worker` of the cluster's processors; those for which there is no room wait until there
    is, and the others play. The nodes need this project installed, and the games under the same path.

    Raises ImportError (names the extra) without Ray, RolloutError where no cluster answers.
    """

    name = "ray"

    def __init__(self, *, address: str = "", cpus_per_worker: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self._ray = _import_ray()
        self._owned = not self._ray.is_initialized()
        if self._owned:
            self._connect(address or os.environ.get("RAY_ADDRESS", ""), math.ceil(self.workers * cpus_per_worker))
        self._seats = self._workers_of_a_host(cpus_per_worker)
        self._host = self._ray.remote(Host).options(
            num_cpus=cpus_per_worker * self._seats,
            max_concurrency=self._seats + 1,  # one that ends a worker while the others wait for theirs
            scheduling_strategy="SPREAD",
        )
        self._places: list[_Place] = []
        self._shared: tuple[Play | None, Any] = (None, None)

    def close(self) -> None:
        """End all workers, and the connection if it is ours."""
        super().close()
        for place in self._places:
            self._ray.kill(place.actor)
        self._places.clear()
        if self._owned and self._ray.is_initialized():
            self._ray.shutdown()

    def _connect(self, address: str, cpus: int) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if not address:
            # Processors are counted, not bound: environments that wait may be many more than there are cores.
            self._ray.init(address="local", num_cpus=cpus + HOST_WORKERS, include_dashboard=False, **options)
            return
        _check_reachable(address)
        try:
            self._ray.init(address=address, **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise RolloutError(_unreachable(address, error)) from error

    def _workers_of_a_host(self, cpus_per_worker: float) -> int:
        """So few that every node has its part, and that a host finds room on each."""
        sizes = [node["Resources"].get("CPU", 0) for node in self._ray.nodes() if node["Alive"]]
        room = [int(size / cpus_per_worker) for size in sizes if size >= cpus_per_worker]
        if not room:
            raise RolloutError(f"no node of the cluster has the {cpus_per_worker:g} processors that a worker takes")
        return min(HOST_WORKERS, math.ceil(self.workers / len(room)), *room)

    def start_process(self) -> _Handle:
        """Start a worker on a host that has room, or on a new one."""
        place = next((place for place in self._places if len(place.numbers) < self._seats), None)
        if place is None:
            place = _Place(self._host.remote())
            self._places.append(place)
        place.numbers.add(self.hired)
        return _Handle(place, self.hired, place.actor.start.remote(self.hired))

    def tell(self, worker: Worker, call: str, *arguments: Any) -> None:
        """See `ParallelExecutor`."""
        if call == "begin" and len(arguments) == 2:  # what is played goes to each node once
            job, play = arguments
            if self._shared[0] is not play:
                self._shared = play, self._ray.put(play)
            arguments = job, self._shared[1]
        handle = worker.handle
        handle.said = handle.place.actor.call.remote(handle.number, call, *arguments)

    def hear(self, workers: Sequence[Worker], timeout_s: float) -> list[tuple[Worker, Reply]]:
        """See `ParallelExecutor`."""
        by_reference = {worker.handle.said: worker for worker in workers}
        self._ray.wait(list(by_reference), timeout=timeout_s)
        there, _ = self._ray.wait(list(by_reference), num_returns=len(by_reference), timeout=0)
        return [(by_reference[said], self._receive(by_reference[said])) for said in there]

    def _receive(self, worker: Worker) -> Reply:
        errors = self._ray.exceptions
        try:
            return self._ray.get(worker.handle.said)
        except (errors.RayActorError, errors.OutOfMemoryError, errors.NodeDiedError) as error:
            if worker.handle.place in self._places:
                self._places.remove(worker.handle.place)
            return Reply("died", detail=" ".join(str(error).split()))
        except errors.RayError as error:  # a result or a question that Ray cannot carry
            return Reply("error", RolloutError(str(error).strip().splitlines()[-1]), str(error))

    def end(self, workers: Sequence[Worker], patience_s: float) -> None:
        """See `ParallelExecutor`."""
        ended = []
        for place in self._places:
            numbers = [worker.number for worker in workers if worker.handle.place is place]
            place.numbers.difference_update(numbers)
            if numbers:
                ended.append(place.actor.end.remote(numbers, patience_s))
        if ended and patience_s:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.wait(ended, num_returns=len(ended), timeout=2 * patience_s)

    def why_not_ready(self) -> str:
        """See `ParallelExecutor`."""
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
    if "AuthToken" in "".join(traceback.format_exception(error)):
        return f"the Ray cluster at {address} wants its token: set RAY_AUTH_MODE=token, and have its ~/.ray/auth_token"
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return f"no Ray cluster answers at {address} ({reason}): start one with run_scripts/ray/head.sh"
