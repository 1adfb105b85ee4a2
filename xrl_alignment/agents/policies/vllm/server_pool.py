"""Shares requests among several servers of one model: load balancing, session affinity, failover.

    pool = ServerPool(urls, call=…, check=…)
    answers = pool.ask(requests, sessions)        # in order, whichever server answered

The pool does not look into requests. It takes a server that fails out of use, gives that server's requests to the
others, and uses it again after `check` passes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from xrl_alignment.agents.policies.vllm.base import ServerUnavailable
from xrl_alignment.common.call_pool import CallPool
from xrl_alignment.common.errors import InferenceEngineFault

MAX_REQUESTS_PER_CALL = 32  # limits the size of a message
AFFINITY_SLACK = 8  # a session keeps its server while that has at most so many requests more than the least busy one
CHECK_INTERVAL_S = 0.5  # between two checks of a server while no server is in use
POLL_S = 0.1

logger = logging.getLogger(__name__)


@dataclass
class PooledServer:
    """One server of a pool and its state."""

    url: str
    requests: int = 0  # in progress, from this pool
    answered: int = 0
    reason: str = ""  # why it is out of use; empty: it is in use
    failed_at: float = 0.0  # the last failed call or check (monotonic seconds)
    checking: bool = False  # a check is in progress

    def failed(self, error: Exception) -> None:
        """A call or a check has failed: out of use from now on."""
        self.reason, self.failed_at = str(error) or "it does not answer", time.monotonic()


class ServerPool:
    """Asks several servers as if they were one.

    `call(url, requests)` gives an answer for each request. It raises `ServerUnavailable` if another server may be asked
    instead, and anything else if that would not help. `check(url)` raises `ServerUnavailable` or `InferenceEngineFault`
    for a server that cannot be used. A request goes to the server that its session used last, because that engine has
    the beginning of the prompt in its KV cache (the pool remembers the last `max_sessions` sessions), else to the
    server with the fewest requests in progress. A server out of use is checked again after `retry_s`. If no server is
    in use, `ask` waits for one, `patience_s` at most.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        call: Callable[[str, Sequence[Any]], Sequence[Any]],
        check: Callable[[str], None],
        max_sessions: int = 4096,
        retry_s: float = 10.0,
        patience_s: float = 60.0,
    ) -> None:
        if not urls:
            raise ValueError("a pool needs the URL of at least one server")
        self.servers = [PooledServer(url) for url in dict.fromkeys(urls)]
        self._call = call
        self._check = check
        self._max_sessions = max_sessions
        self._retry_s = retry_s
        self._patience_s = patience_s
        self._sessions: OrderedDict[str, PooledServer] = OrderedDict()
        self._lock = threading.Lock()
        self._threads = CallPool(4 * len(self.servers))  # several calls at each: messages are limited in size

    def ask(self, requests: Sequence[Any], sessions: Sequence[str] = ()) -> list[Any]:
        """An answer for each request, in order; `sessions` names each one's session (empty: none).

        Raises InferenceEngineFault if no server is left, and whatever `call` raises besides `ServerUnavailable`.
        """
        sessions = sessions or [""] * len(requests)
        answers: list[Any] = [None] * len(requests)
        # Calls that may still fail, by request. Two for each server: the first failure may be that of a server which
        # was restarted meanwhile; a request that fails everywhere twice is itself the fault.
        tries = [2 * len(self.servers)] * len(requests)
        calls = self._start(requests, sessions, range(len(requests)))
        while calls:
            done, _ = wait(calls, return_when=FIRST_COMPLETED)
            for future in done:
                server, share = calls.pop(future)
                try:
                    for index, answer in zip(share, future.result(), strict=True):
                        answers[index] = answer
                except ServerUnavailable as error:
                    if not server.reason:
                        logger.warning("%s is out of use: %s", server.url, error)
                    server.failed(error)
                    for index in share:
                        tries[index] -= 1
                    if not all(tries[index] for index in share):
                        raise InferenceEngineFault(f"every server failed at the same request: {error}") from error
                    calls |= self._start(requests, sessions, share)
        return answers

    def close(self) -> None:
        """Accept no more calls; calls in progress end by themselves."""
        self._threads.shutdown()

    def _start(
        self, requests: Sequence[Any], sessions: Sequence[str], indices: Iterable[int]
    ) -> dict[Future[Sequence[Any]], tuple[PooledServer, list[int]]]:
        """Send the requests with these `indices`; returns the calls, each with its server and indices."""
        # The servers in use. If there is none, they are checked until one is, or until the patience ends.
        self._start_checks(self._retry_s)
        attempts = Retrying(
            retry=retry_if_result(lambda servers: not servers),
            stop=stop_after_delay(self._patience_s),
            wait=wait_fixed(POLL_S),
            before_sleep=lambda state: self._start_checks(CHECK_INTERVAL_S),
        )
        try:
            up = attempts(lambda: [server for server in self.servers if not server.reason])
        except RetryError:
            reasons = "; ".join(f"{server.url}: {server.reason}" for server in self.servers)
            raise InferenceEngineFault(f"no inference engine is left ({reasons})") from None
        # Each request's server. A request counts as in progress at once, so that the next one sees the load.
        shares: dict[int, list[int]] = {}
        with self._lock:
            for index in indices:
                server = self._choose(up, sessions[index])
                server.requests += 1
                shares.setdefault(self.servers.index(server), []).append(index)
        # A server's share, in messages of limited size.
        calls = {}
        for number, share in shares.items():
            for start in range(0, len(share), MAX_REQUESTS_PER_CALL):
                part = share[start : start + MAX_REQUESTS_PER_CALL]
                server = self.servers[number]
                calls[self._threads.submit(self._ask_one, server, [requests[i] for i in part])] = (server, part)
        return calls

    def _choose(self, up: Sequence[PooledServer], session: str) -> PooledServer:
        """The session's last server unless it is out of use or much busier than another; else the least busy one."""
        least = min(up, key=lambda server: server.requests)
        known = self._sessions.get(session)
        if known is not None and not known.reason and known.requests <= least.requests + AFFINITY_SLACK:
            least = known
        if session:
            self._sessions[session] = least
            self._sessions.move_to_end(session)
            if len(self._sessions) > self._max_sessions:
                self._sessions.popitem(last=False)
        return least

    def _ask_one(self, server: PooledServer, requests: Sequence[Any]) -> Sequence[Any]:
        try:
            answers = self._call(server.url, requests)
            with self._lock:
                server.answered += len(requests)
            return answers
        finally:  # also after a failure: `_start` has counted them when it chose the server
            with self._lock:
                server.requests -= len(requests)

    def _start_checks(self, interval_s: float) -> None:
        """Check, in threads, the servers whose last failure is `interval_s` ago: one that hangs delays no request."""
        for server in self.servers:
            if server.reason and not server.checking and time.monotonic() - server.failed_at >= interval_s:
                server.checking = True
                self._threads.submit(self._check_one, server)

    def _check_one(self, server: PooledServer) -> None:
        try:
            self._check(server.url)
        except (ServerUnavailable, InferenceEngineFault) as error:
            server.failed(error)
        else:
            logger.warning("%s is in use again", server.url)
            server.reason = ""
        finally:
            server.checking = False
