"""Shares requests among several servers of one model: who is least busy, who knows a session, who is gone.

    pool = ServerPool(urls, call=…, check=…)
    answers = pool.ask(requests, sessions)        # in order, whichever server answered

Knows nothing of what a request is. A server that fails is left out, what it had in hand goes to the others, and it is
taken back when `check` passes again.
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

from xrl_alignment.common.call_pool import CallPool
from xrl_alignment.common.errors import EngineFault

MAX_SHARE = 32  # requests of one call: bounds the size of a message
STICKY_SLACK = 8  # requests by which a session's own server may be busier than the least busy one
PAUSE_S = 0.5  # between two looks at servers that are all gone

logger = logging.getLogger(__name__)


class ServerGone(Exception):
    """A server did not answer a call, or answered that it is broken: another one may be asked."""


@dataclass
class Server:
    """One server and what is known of it."""

    url: str
    requests: int = 0  # in its hands, from here
    answered: int = 0
    reason: str = ""  # why it is left out; empty: it is in use
    left: float = 0.0  # since when, or when it was last looked at (monotonic seconds)
    looking: bool = False  # it is being looked at


class ServerPool:
    """Asks several servers as if they were one.

    `call(url, requests)` gives an answer for each request; it raises `ServerGone` where another server may be asked
    instead, and anything else where that would not help. `check(url)` raises `ServerGone` or `EngineFault` for a server
    that cannot be used. A request goes to the server that its session used last (the last `max_sessions` of them are
    remembered: an engine keeps what it has read of a prompt), else to the one with the fewest requests in hand. A
    server that is gone is looked at again after `retry_s`; if all are gone, `ask` waits `patience_s` for one.
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
        self.servers = [Server(url) for url in dict.fromkeys(urls)]
        self._call = call
        self._check = check
        self._max_sessions = max_sessions
        self._retry_s = retry_s
        self._patience_s = patience_s
        self._sessions: OrderedDict[str, Server] = OrderedDict()
        self._lock = threading.Lock()
        self._threads = CallPool(4 * len(self.servers))

    def ask(self, requests: Sequence[Any], sessions: Sequence[str] = ()) -> list[Any]:
        """An answer for each request, in order; `sessions` names each one's session (empty: none).

        Raises EngineFault when no server is left, and whatever `call` raises beside `ServerGone`.
        """
        sessions = sessions or [""] * len(requests)
        answers: list[Any] = [None] * len(requests)
        tries = [2 * len(self.servers)] * len(requests)  # that are left
        calls = self._start(requests, sessions, range(len(requests)))
        while calls:
            done, _ = wait(calls, return_when=FIRST_COMPLETED)
            for future in done:
                server, share = calls.pop(future)
                try:
                    for index, answer in zip(share, future.result(), strict=True):
                        answers[index] = answer
                except ServerGone as error:
                    self._leave_out(server, str(error))
                    for index in share:
                        tries[index] -= 1
                    if not all(tries[index] for index in share):
                        raise EngineFault(f"no server answers a request that all have tried: {error}") from error
                    calls |= self._start(requests, sessions, share)
        return answers

    def close(self) -> None:
        """Take no more calls; those on their way end by themselves."""
        self._threads.shutdown()

    def _start(
        self, requests: Sequence[Any], sessions: Sequence[str], indices: Iterable[int]
    ) -> dict[Future, tuple[Server, list[int]]]:
        """Hand out the requests named by `indices`; the calls that are now in progress."""
        up = self._in_use()
        shares: dict[int, list[int]] = {}
        with self._lock:
            for index in indices:
                server = self._choose(up, sessions[index])
                server.requests += 1
                shares.setdefault(self.servers.index(server), []).append(index)
        calls = {}
        for number, share in shares.items():
            for start in range(0, len(share), MAX_SHARE):
                part = share[start : start + MAX_SHARE]
                server = self.servers[number]
                calls[self._threads.submit(self._ask_one, server, [requests[i] for i in part])] = (server, part)
        return calls

    def _choose(self, up: Sequence[Server], session: str) -> Server:
        least = min(up, key=lambda server: server.requests)
        known = self._sessions.get(session)
        if known is not None and not known.reason and known.requests <= least.requests + STICKY_SLACK:
            least = known
        if session:
            self._sessions[session] = least
            self._sessions.move_to_end(session)
            if len(self._sessions) > self._max_sessions:
                self._sessions.popitem(last=False)
        return least

    def _ask_one(self, server: Server, requests: Sequence[Any]) -> Sequence[Any]:
        try:
            answers = self._call(server.url, requests)
            with self._lock:
                server.answered += len(requests)
            return answers
        finally:
            with self._lock:
                server.requests -= len(requests)

    def _leave_out(self, server: Server, reason: str) -> None:
        if not server.reason:
            logger.warning("%s is left out: %s", server.url, reason)
        server.reason, server.left = reason or "it does not answer", time.monotonic()

    def _in_use(self) -> list[Server]:
        """The servers that may be asked; where there is none, wait for one. Looks at those that were left out."""
        deadline = time.monotonic() + self._patience_s
        self._look(self._retry_s)
        while not (up := [server for server in self.servers if not server.reason]):
            if time.monotonic() > deadline:
                reasons = "; ".join(f"{server.url}: {server.reason}" for server in self.servers)
                raise EngineFault(f"no inference engine is left ({reasons})")
            self._look(PAUSE_S)
            time.sleep(PAUSE_S / 5)
        return up

    def _look(self, older_than_s: float) -> None:
        """Have servers checked that were left out some time ago, aside: one that hangs keeps nobody waiting."""
        for server in self.servers:
            if server.reason and not server.looking and time.monotonic() - server.left >= older_than_s:
                server.looking = True
                self._threads.submit(self._look_at, server)

    def _look_at(self, server: Server) -> None:
        try:
            self._check(server.url)
        except (ServerGone, EngineFault) as error:
            server.reason, server.left = str(error), time.monotonic()
        else:
            logger.warning("%s is back", server.url)
            server.reason = ""
        finally:
            server.looking = False
