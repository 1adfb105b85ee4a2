"""An executor whose workers run on the nodes of a Ray cluster, or of a Ray on this machine only (docs/rollouts.md).

A Ray actor needs seconds of processor time to start, and there may be many more environments than cores. So there are
few actors: each is a `RayHost`, which keeps worker processes on its node as `LocalExecutor` does.
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

from lavis.common.errors import MissingExtraError
from xrl_alignment.common.errors import RolloutError
from xrl_alignment.play.rollouts.base import RolloutFunction
from xrl_alignment.play.rollouts.local import LocalExecutor, LocalHandle
from xrl_alignment.play.rollouts.parallel import ParallelExecutor, WorkerRecord
from xrl_alignment.play.rollouts.worker import WorkerReply

HOST_WORKERS = 8  # at most for each actor: they are lost together
_CONNECT_S = 5.0
_END_S = 20.0  # for a host to end workers that play, which it kills


class RayHost:
    """An actor: keeps worker processes and passes calls on to them. Its methods run in threads, one for each worker."""

    def __init__(self) -> None:
        self._local = LocalExecutor(workers=1)
        self._workers: dict[int, WorkerRecord[LocalHandle]] = {}
        self._starting = threading.Lock()

    def start(self, number: int) -> WorkerReply:
        """Start worker `number` and wait until it is ready."""
        with self._starting:
            self._workers[number] = worker = WorkerRecord(number, self._local.start_process())
        return self._local.receive(worker, begun=False)

    def call(self, number: int, call: str, *arguments: Any) -> WorkerReply:
        """Have worker `number` carry out a call of `RolloutRunner`; waits for its reply."""
        worker = self._workers[number]
        worker.job = number  # any number: `end` gives no time to a worker with a job
        self._local.tell(worker, call, *arguments)
        reply = self._local.receive(worker, begun=False)
        worker.job = None
        return reply

    def end(self, numbers: Sequence[int], patience_s: float) -> None:
        """End workers; those without a job may take `patience_s` to close their environments."""
        self._local.end([self._workers.pop(number) for number in numbers], patience_s)


@dataclass
class _HostRecord:
    """A host and the numbers of the workers that it keeps."""

    actor: Any
    numbers: set[int] = field(default_factory=set)
    ending: list[Any] = field(default_factory=list)  # Ray's references to calls of `end`, perhaps not carried out yet


@dataclass
class RayHandle:
    """How a worker is reached: through its host, by its number."""

    host: _HostRecord
    number: int
    reply: Any  # Ray's reference to the reply that is awaited


class RayExecutor(ParallelExecutor[RayHandle]):
    """Workers are processes on the nodes of a cluster.

    `address` is the cluster's (`host:6379`, or `auto` for the one that runs on this machine); empty: `$RAY_ADDRESS`,
    else a new Ray on this machine only. A connection that the program has already is used, and kept open. Each worker
    takes one of the cluster's processors; workers that find no free one wait for it while the others play. Every node
    needs this project installed, and the games under the same path.

    Raises MissingExtraError without Ray, RolloutError if no cluster answers.
    """

    def __init__(self, *, address: str = "", **options: Any) -> None:
        super().__init__(**options)
        self._ray = import_ray()
        self._owned = not self._ray.is_initialized()
        if self._owned:
            connect(self._ray, address, self.workers)
        # How many workers share a host: few enough to spread over all nodes, and for a host to fit on each.
        sizes = [int(node["Resources"].get("CPU", 0)) for node in self._ray.nodes() if node["Alive"]]
        room = [size for size in sizes if size]
        if not room:
            raise RolloutError("no node of the cluster has the processor that a worker takes")
        self._workers_per_host = min(HOST_WORKERS, math.ceil(self.workers / len(room)), *room)
        self._host_class = self._ray.remote(RayHost).options(
            num_cpus=self._workers_per_host,
            # One call to end a worker, while each of the others waits for its worker.
            max_concurrency=self._workers_per_host + 1,
            scheduling_strategy="SPREAD",
        )
        self._hosts: list[_HostRecord] = []
        self._shared: tuple[RolloutFunction | None, Any] = (None, None)

    def close(self) -> None:
        """End all workers, and the connection unless the program had it before."""
        super().close()
        for host in self._hosts:
            self._ray.kill(host.actor)
        self._hosts.clear()
        if self._owned and self._ray.is_initialized():
            self._ray.shutdown()

    def start_process(self) -> RayHandle:
        """Start a worker on a host that has room, or on a new one."""
        # Hosts that do not even end a worker are killed: a worker that is started there would never be ready.
        for host in list(self._hosts):
            late = self._ray.wait(host.ending, num_returns=len(host.ending), timeout=_END_S)[1] if host.ending else []
            host.ending = []
            if late:
                self._ray.kill(host.actor)
                self._hosts.remove(host)
        room = next((host for host in self._hosts if len(host.numbers) < self._workers_per_host), None)
        if room is None:
            room = _HostRecord(self._host_class.remote())
            self._hosts.append(room)
        room.numbers.add(self.hired)
        return RayHandle(room, self.hired, room.actor.start.remote(self.hired))

    def tell(self, worker: WorkerRecord[RayHandle], call: str, *arguments: Any) -> None:
        """See `ParallelExecutor`."""
        if call == "begin" and len(arguments) == 2:  # the rollout function travels to each node only once
            job, play = arguments
            if self._shared[0] is not play:
                self._shared = play, self._ray.put(play)
            arguments = job, self._shared[1]
        handle = worker.handle
        handle.reply = handle.host.actor.call.remote(handle.number, call, *arguments)

    def hear(
        self, workers: Sequence[WorkerRecord[RayHandle]], timeout_s: float
    ) -> list[tuple[WorkerRecord[RayHandle], WorkerReply]]:
        """See `ParallelExecutor`."""
        by_reference = {worker.handle.reply: worker for worker in workers}
        # First until one reply is there; then all that have come, without waiting.
        self._ray.wait(list(by_reference), timeout=timeout_s)
        there, _ = self._ray.wait(list(by_reference), num_returns=len(by_reference), timeout=0)
        heard: list[tuple[WorkerRecord[RayHandle], WorkerReply]] = []
        errors = self._ray.exceptions
        for worker in (by_reference[reference] for reference in there):
            try:
                reply = self._ray.get(worker.handle.reply)
            except (errors.RayActorError, errors.OutOfMemoryError, errors.NodeDiedError) as error:
                if worker.handle.host in self._hosts:  # its other workers will be told the same
                    self._hosts.remove(worker.handle.host)
                reply = WorkerReply("died", detail=" ".join(str(error).split()))
            except errors.RayError as error:  # a value or a question that Ray cannot send
                reply = WorkerReply("error", RolloutError(str(error).strip().splitlines()[-1]), str(error))
            heard.append((worker, reply))
        return heard

    def end(self, workers: Sequence[WorkerRecord[RayHandle]], patience_s: float) -> None:
        """See `ParallelExecutor`."""
        ended = []
        for host in self._hosts:
            numbers = [worker.number for worker in workers if worker.handle.host is host]
            host.numbers.difference_update(numbers)
            if numbers:
                host.ending.append(host.actor.end.remote(numbers, patience_s))
                ended.append(host.ending[-1])
        if ended and patience_s:  # longer than a host's own patience, which begins when the call arrives
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.wait(ended, num_returns=len(ended), timeout=2 * patience_s)

    def why_not_ready(self) -> str:
        """See `ParallelExecutor`."""
        free = self._ray.available_resources().get("CPU", 0)
        return f": the cluster has {free:g} free processors, see `ray status`"


def import_ray() -> Any:
    """Ray's module; MissingExtraError if it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("the ray backend needs Ray: pip install -e '.[ray]'") from error
    return ray


def connect(ray: Any, address: str, cpus: int) -> None:
    """Connect this program to the cluster at `address` (empty: `$RAY_ADDRESS`), else to a new Ray here with `cpus`.

    Raises RolloutError if no cluster answers.
    """
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    address = address or os.environ.get("RAY_ADDRESS", "")
    if not address:
        # Ray counts processors and does not reserve them, so there may be more workers than cores.
        ray.init(address="local", num_cpus=cpus + HOST_WORKERS, include_dashboard=False, **options)
        return
    try:
        # Ray would try for a minute, and give the reason only in its log. `auto` and `ray://…` only Ray can resolve.
        host, colon, port = address.rpartition(":")
        if colon and "//" not in address and port.isdigit():
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
        ray.init(address=address, **options)
    except (OSError, RuntimeError, ValueError) as error:
        if "AuthToken" in "".join(traceback.format_exception(error)):
            raise RolloutError(
                f"the Ray cluster at {address} requires its token: set RAY_AUTH_MODE=token and copy its "
                "~/.ray/auth_token"
            ) from error
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RolloutError(
            f"no Ray cluster answers at {address} ({reason}): start one with run_scripts/ray/head.sh"
        ) from error
