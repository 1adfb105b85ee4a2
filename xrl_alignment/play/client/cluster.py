"""A client on every node of a Ray cluster, all for one server (`alfworld_client.py --executor ray`).

Each node's client holds its own sessions and speaks to the server itself; this program only places clients. So work is
handed out as it is among any clients: whoever is ready asks for the next game, and a faster node plays more of them.
"""

from __future__ import annotations

import io
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from lavis.common.errors import ConfigError
from xrl_alignment.common.errors import RolloutError
from xrl_alignment.common.network import is_loopback
from xrl_alignment.play.client.play import play
from xrl_alignment.play.client.report import ClientReport
from xrl_alignment.play.rollouts.ray import connect, import_ray

LOOK_S = 2.0  # between two looks at the cluster: nodes may join and leave
END_S = 30.0  # for the other clients, when the server has told the first one that all games are over
GOODBYE_S = 10.0  # for clients that are cancelled to give their games back
SHORT_LIFE_S = 60.0
MAX_LOSSES = 3  # if so many clients in a row were lost soon after their start, all clients share the cause


@dataclass
class NodeClient:
    """A client on a node: how many environments it has, and when it was started."""

    node: str
    workers: int
    started: float = field(default_factory=time.monotonic)


def play_on_cluster(
    job: Mapping[str, Any], *, num_workers: int, address: str = "", report: ClientReport | None = None
) -> dict[str, Any]:
    """Play with `num_workers` environments on the nodes of the cluster at `address` until the server has no more work.

    `job` are the arguments of `client.play.play` for every node's client, without `num_workers` and `report`. Each
    environment takes one of the processors that the cluster counts. If there are fewer processors than environments,
    the other environments are started when nodes join: with 8 environments on one node of 4 processors, 4 play at once,
    and the other 4 begin on the next node. If a node is lost, its environments are started again on other nodes, and
    the server reassigns its games. Returns the sum of what the clients return.

    Raises what a client raises, ConfigError for a server's address that only one node could reach, RolloutError if no
    cluster answers or if clients are lost again and again.
    """
    if num_workers < 1:
        raise ConfigError(f"the number of workers must be at least 1, not {num_workers}")
    ray = import_ray()
    owned = not ray.is_initialized()
    if owned:
        connect(ray, address, num_workers)
    try:
        with report or ClientReport() as said:
            return _Cluster(ray, job, num_workers, said).play()
    finally:
        if owned:
            ray.shutdown()


def spread(workers: int, free: Mapping[str, int]) -> dict[str, int]:
    """How many of `workers` each node gets: in proportion to its `free` processors, and never more than these."""
    room = sum(free.values())
    shares: dict[str, int] = {}
    wanted, given, seen = min(workers, room), 0, 0
    # The share of the nodes so far, rounded down, less what they have: so the rounded shares add up to `wanted`.
    for node, size in free.items():
        seen += size
        shares[node] = wanted * seen // room - given if room else 0
        given += shares[node]
    return {node: share for node, share in shares.items() if share}


def summed_up(summaries: Sequence[Mapping[str, Any]], seconds: float) -> dict[str, Any]:
    """What `play` returns, for clients that played at the same time for `seconds`."""
    total: dict[str, Any] = {
        name: sum(summary[name] for summary in summaries) for name in ("episodes", "won", "steps", "bytes_sent")
    }
    kinds: dict[str, list[int]] = {}
    for kind, (won, played) in (item for summary in summaries for item in summary["per_task_type"].items()):
        before = kinds.get(kind, [0, 0])
        kinds[kind] = [before[0] + won, before[1] + played]
    success = total["won"] / total["episodes"] if total["episodes"] else 0.0
    # Each client tells what the server had counted when it left: the largest number is the newest.
    known = [solved for summary in summaries if (solved := summary.get("solved_by_policy")) is not None]
    total |= {"success": success, "solved_by_policy": max(known, default=None), "seconds": seconds}
    return {**total, "per_task_type": dict(sorted(kinds.items()))}


class _Cluster:
    """The clients of one run, by Ray's reference to what each will return."""

    def __init__(self, ray: Any, job: Mapping[str, Any], num_workers: int, report: ClientReport) -> None:
        self._ray = ray
        self._num_workers = num_workers
        self._report = report
        # Sent to each node once, not with every client.
        self._job = ray.put(dict(job))
        self._local = is_loopback(urlsplit(job["server_url"]).hostname or "")
        # Ray would start a lost client again by itself, where and when it likes; `_start` counts processors first.
        self._client = ray.remote(max_retries=0)(client_program)
        self._clients: dict[Any, NodeClient] = {}
        self._losses = 0

    def play(self) -> dict[str, Any]:
        """Start clients, and replace lost ones, until one of them says that the server has no more work."""
        began = time.monotonic()
        summaries: list[dict[str, Any]] = []
        try:
            while not summaries:
                self._start()
                if not self._clients:
                    self._report.say_once("the cluster counts no free processor: waiting for a node")
                    time.sleep(LOOK_S)
                    continue
                done, _ = self._ray.wait(list(self._clients), timeout=LOOK_S)
                summaries += self._results(done)
            summaries += self._results(self._wait_for_all(END_S))
        finally:
            # Those that still play, or wait for a place, give their games back and end.
            for reference in self._clients:
                self._ray.cancel(reference)
            self._wait_for_all(GOODBYE_S)
        return summed_up(summaries, time.monotonic() - began)

    def _start(self) -> None:
        """Place the environments that have no node yet on nodes with free processors."""
        lacking = self._num_workers - sum(client.workers for client in self._clients.values())
        if not lacking:
            return
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # Ray is an extra

        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        if self._local and len({node["NodeManagerAddress"] for node in nodes}) > 1:
            raise ConfigError("the server's address is each node's own: give --host, the server's name in the network")
        taken: Counter[str] = Counter()
        for client in self._clients.values():
            taken[client.node] += client.workers
        free = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) - taken[node["NodeID"]] for node in nodes}
        names = {node["NodeID"]: node["NodeManagerHostname"] for node in nodes}
        for node, workers in spread(lacking, {node: size for node, size in free.items() if size > 0}).items():
            there = NodeAffinitySchedulingStrategy(node, soft=False)  # this node or none: its processors were counted
            client = self._client.options(num_cpus=workers, scheduling_strategy=there).remote(self._job, workers)
            self._clients[client] = NodeClient(node, workers)
            self._report.say(f"{workers} environments on node {names[node]}")

    def _results(self, done: Iterable[Any]) -> Iterator[dict[str, Any]]:
        """What clients returned. A lost client is forgotten, so that `_start` places its environments anew."""
        errors = self._ray.exceptions
        for reference in done:
            client = self._clients.pop(reference)
            try:
                yield self._ray.get(reference)
            except errors.RayTaskError as error:
                raise (error.cause or error) from None  # as it was raised on the node
            except errors.RayError as error:
                reason = " ".join(str(error).split())[:300]
                # A node that goes after hours is one loss. Clients that are lost at once, again and again, share a
                # cause, and starting more of them would not help.
                short = time.monotonic() - client.started < SHORT_LIFE_S
                self._losses = self._losses + 1 if short else 0
                if self._losses >= MAX_LOSSES:
                    raise RolloutError(
                        f"clients were lost {MAX_LOSSES} times in a row soon after their start: {reason}"
                    ) from error
                self._report.say(f"a client is lost, its games go to others: {reason}")

    def _wait_for_all(self, seconds: float) -> list[Any]:
        """The clients that have ended after `seconds`, at most."""
        clients = list(self._clients)
        return self._ray.wait(clients, num_returns=len(clients), timeout=seconds)[0] if clients else []


def client_program(job: Mapping[str, Any], workers: int) -> dict[str, Any]:
    """A node's client; runs there, in the main thread of a process of Ray's."""
    # Ray cancels a client by an interrupt that is only noted: a thread that waits for a lock does not see it. So a
    # timer's signal wakes the thread twice a second.
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)
    try:
        return play(**job, num_workers=workers, report=ClientReport(io.StringIO()))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
