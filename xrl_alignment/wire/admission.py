"""Decides which requests are let in, and holds those that wait. No sockets here: `http_handler` does the HTTP.

- `PendingRequest` is one request that waits for the loop's answer;
- `ByteBudget` is the memory that all requests share;
- `RequestQueue` is the bounded queue from which the loop takes its work;
- `SessionAdmission` knows the sessions: which request is new, which is a retry, which session has gone silent.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from xrl_alignment.wire import v1, v2
from xrl_alignment.wire.messages import Bye, Hello, Message, without_content

MAX_SESSIONS = 4096  # open at once: what clients can make the server keep is bounded
LoopAnswer = Mapping[str, Any] | Sequence[str]


class HttpResponse(NamedTuple):
    """Status, body and content type of one HTTP response."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


class RequestRefused(Exception):
    """A request that is not let in: HTTP status and reason."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.response = HttpResponse(status, f"{reason}\n".encode())
        self.headers = dict(headers or {})


class PendingRequest:
    """One request that waits for the loop's answer."""

    def __init__(self, message: Message, wire: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.message = message
        self.wire = wire  # "v1" or "v2"
        self.answered_at: float | None = None
        self._clock = clock
        self._lock = threading.Lock()  # the loop's reply and a stop may come at once
        self._done = threading.Event()
        self._response: HttpResponse | None = None
        self._released = False  # `release` has made the response

    def reply(self, answer: LoopAnswer) -> None:
        """Answer the client: a dict with `kind`, or a list of actions ([] = the episode is over).

        Either form works on both wires: `{"kind": "action", "action": a}` and `[a]` mean the same.
        An error (`{"kind": "error", "reason": …}`) is HTTP status 400 on v1.
        Raises RuntimeError when called twice: each answer moves the episode on, so there must be only one.
        """
        # Into the mapping that v2 sends, or the list that v1 sends, whichever of the two forms the loop has used.
        if self.wire == "v2":
            if not isinstance(answer, Mapping):
                answer = {"kind": "action", "action": answer[0] if answer else None}
            response = HttpResponse(200, v2.encode_reply(answer), "application/json")
        elif isinstance(answer, Mapping) and answer.get("kind") == "error":  # a list of actions cannot say that
            response = HttpResponse(400, f"{answer.get('reason', '')}\n".encode("utf-8", "replace"))
        else:
            if isinstance(answer, Mapping):
                answer = [answer["action"]] if answer.get("action") is not None else []
            response = HttpResponse(200, v1.encode_reply(answer))
        if not self._settle(response) and not self._released:  # what a stop has released, the loop may still answer
            raise RuntimeError("a request was answered twice")

    def release(self, reason: str) -> None:
        """End the wait without an answer, because the server stops; does nothing after `reply`."""
        self._settle(HttpResponse(503, f"{reason}\n".encode()), released=True)

    def wait(self) -> HttpResponse:
        """Block until `reply` or `release`."""
        self._done.wait()
        assert self._response is not None
        return self._response

    def _settle(self, response: HttpResponse, *, released: bool = False) -> bool:
        """Make `response` the answer; False if there is one already."""
        with self._lock:
            if self._response is not None:
                return False
            self._response, self._released = response, released
            self.message = without_content(self.message)  # a retry needs the answer only
            self.answered_at = self._clock()
        self._done.set()
        return True


class ByteBudget:
    """Bytes that all requests together may hold: bodies that are read, and messages that wait for their answer."""

    def __init__(self, limit: int, patience_s: float = 5.0) -> None:
        self._limit = limit
        self._patience_s = patience_s
        self._held = 0
        self._changed = threading.Condition()

    @property
    def held(self) -> int:
        """Bytes that are taken."""
        return self._held

    def take(self, size: int) -> None:
        """Wait until `size` bytes are free, and take them; RequestRefused 503 if that lasts too long.

        A request above the limit gets its bytes when nobody else holds any.
        """
        # One request alone always gets its bytes, else one above the limit would wait for ever.
        with self._changed:
            if not self._changed.wait_for(lambda: not self._held or self._held + size <= self._limit, self._patience_s):
                raise RequestRefused(503, f"other requests hold {self._held} bytes", {"Retry-After": "1"})
            self._held += size

    def give_back(self, size: int) -> None:
        """Free `size` bytes."""
        with self._changed:
            self._held -= size
            self._changed.notify_all()


class RequestQueue:
    """The bounded queue between the HTTP handlers and the loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[PendingRequest] = deque()
        self._changed = threading.Condition()
        self.closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, pending: PendingRequest) -> None:
        """Queue `pending`; raises RequestRefused 503 when the queue is full or closed."""
        with self._changed:
            if self.closed:
                raise RequestRefused(503, "the server is stopping")
            if len(self._waiting) >= self._limit:
                raise RequestRefused(503, f"{self._limit} requests are waiting already", {"Retry-After": "1"})
            self._waiting.append(pending)
            self._changed.notify()  # one is enough: only the loop takes from the queue

    def take(
        self,
        max_items: int,
        timeout_s: float,
        window_s: float,
        longest_s: float = 0.0,
        complete: Callable[[], bool] = lambda: False,
    ) -> list[PendingRequest]:
        """Wait up to `timeout_s` for a first request, then gather more.

        Gathering ends when `max_items` are there, when `complete()`, when none has come for `window_s`, or when it has
        taken `longest_s` (or `window_s`, whichever is longer).
        """
        # A batch is worth waiting for: the policy answers it in less time than its observations one by one.
        taken = self._pop(max_items, time.monotonic() + timeout_s)
        deadline = time.monotonic() + max(window_s, longest_s)
        while taken and len(taken) < max_items and not complete():
            more = self._pop(max_items - len(taken), min(time.monotonic() + window_s, deadline))
            if not more:
                break
            taken += more
        return taken

    def close(self) -> None:
        """Accept no more requests, drop those that wait, and wake the loop."""
        with self._changed:
            self.closed = True
            self._waiting.clear()  # `SessionAdmission.close` answers them
            self._changed.notify_all()

    def _pop(self, max_items: int, deadline: float) -> list[PendingRequest]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self.closed, max(0.0, deadline - time.monotonic()))
            return [self._waiting.popleft() for _ in range(min(max_items, len(self._waiting)))]


@dataclass
class _OpenSession:
    """A session's last request: clients retry nothing older."""

    seq: int
    digest: str
    pending: PendingRequest
    heard_at: float


class SessionAdmission:
    """Lets requests in: queues a new one, gives a retry the answer of the first, refuses a stale one.

    A session sends one request at a time, with growing `seq`.
    """

    def __init__(
        self, queue: RequestQueue, session_timeout_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._queue = queue
        self._timeout = session_timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[str, _OpenSession] = {}
        self._unanswered: set[PendingRequest] = set()

    def __len__(self) -> int:
        return len(self._sessions)

    def admit_v1(self, message: Message) -> PendingRequest:
        """Queue a v1 observation; v1 has no sessions, so a repeated body is a new observation."""
        with self._lock:
            return self._enqueue(message, "v1")

    def admit_v2(self, message: Message, digest: str) -> PendingRequest:
        """Queue a v2 message, or return the request that came before with the same `(session, seq)`.

        Raises RequestRefused: 410 for an unknown session (the server was restarted, or has closed the session because
        it was silent: the client has to say hello again), 409 for a stale or conflicting `seq`, 503 for a full queue.
        """
        with self._lock:
            known = self._sessions.get(message.session)
            if known is None:
                if isinstance(message, Bye):  # repeated, or sent after the server has closed the session
                    pending = PendingRequest(message, "v2", self._clock)
                    pending.reply({"kind": "bye"})
                    return pending
                if not isinstance(message, Hello):
                    raise RequestRefused(410, f"unknown session {message.session[:80]!r}: say hello first")
                if len(self._sessions) >= MAX_SESSIONS:
                    raise RequestRefused(503, f"{MAX_SESSIONS} sessions are open already", {"Retry-After": "10"})
                return self._admit(message, digest)
            # Also a request that is refused below shows that the client lives.
            known.heard_at = self._clock()
            # A retry, which gets the answer of the first; a number of the past; a new one, after its answer or at once.
            if message.seq == known.seq:
                if digest != known.digest:
                    raise RequestRefused(409, f"seq {message.seq} came before with another body")
                return known.pending
            if message.seq < known.seq:
                raise RequestRefused(409, f"seq {message.seq} is older than {known.seq}")
            if known.pending.answered_at is None and not isinstance(message, Bye):
                raise RequestRefused(409, f"seq {known.seq} of this session is still being answered")
            return self._admit(message, digest)

    def all_waiting(self) -> bool:
        """Whether every session waits for an answer: then no further request can come."""
        with self._lock:
            return all(session.pending.answered_at is None for session in self._sessions.values())

    def forget_silent(self) -> list[PendingRequest]:
        """Close the sessions that were answered and then silent for the timeout; returns a `Bye` for each."""
        now = self._clock()
        with self._lock:
            # A session that waits for its answer is not silent: the loop may think for longer than the timeout.
            silent = {
                name: session
                for name, session in self._sessions.items()
                if (answered_at := session.pending.answered_at) is not None
                and now - max(answered_at, session.heard_at) > self._timeout
            }
            for name in silent:
                del self._sessions[name]
        # The loop gets a `Bye` as if the client had said it: there is one way by which games become free again.
        reason = f"silent for {self._timeout:g} s"
        return [PendingRequest(Bye(name, s.seq, reason), "v2", self._clock) for name, s in silent.items()]

    def close(self) -> None:
        """Release every request that waits."""
        self._queue.close()  # first, so that nothing new is let in
        with self._lock:  # a copy: each handler that is released calls `finished`, which changes the set
            waiting = list(self._unanswered)
        for pending in waiting:
            pending.release("the server stopped before it answered")

    def finished(self, pending: PendingRequest) -> None:
        """Note that the handler of `pending` has its answer."""
        with self._lock:
            self._unanswered.discard(pending)

    def _admit(self, message: Message, digest: str) -> PendingRequest:
        pending = self._enqueue(message, "v2")
        if isinstance(message, Bye):
            del self._sessions[message.session]
        else:
            self._sessions[message.session] = _OpenSession(message.seq, digest, pending, self._clock())
        return pending

    def _enqueue(self, message: Message, wire: str) -> PendingRequest:
        pending = PendingRequest(message, wire, self._clock)
        self._queue.put(pending)  # may refuse, and then nothing is noted
        self._unanswered.add(pending)
        return pending
