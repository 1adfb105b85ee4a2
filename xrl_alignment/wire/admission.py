"""Who is let in, and what waits: requests, their answers, sessions and the queue. No HTTP in here.

- `Pending` is one request that waits for the loop's answer;
- `Inbox` is the bounded queue from which the loop takes its work;
- `Admission` knows the sessions: which request is new, which is a retry, who has gone silent.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from xrl_alignment.wire import protocol
from xrl_alignment.wire.protocol import Bye, Hello, Message

MAX_SESSIONS = 4096
Answer = Mapping[str, Any] | Sequence[str]


class Response(NamedTuple):
    """Status, body and content type of one HTTP response."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


class Refusal(Exception):
    """A request that is not let in: HTTP status and reason."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.response = Response(status, f"{reason}\n".encode())
        self.headers = dict(headers or {})


class Pending:
    """One request that waits for the loop's answer."""

    def __init__(self, message: Message, wire: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.message = message
        self.wire = wire  # "v1" or "v2"
        self.answered_at: float | None = None
        self._clock = clock
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._response: Response | None = None

    def reply(self, answer: Answer) -> None:
        """Answer the client: a dict with `kind`, or a list of actions ([] = the episode is over).

        Either form serves both wires: `{"kind": "action", "action": a}` and `[a]` mean the same.
        Raises RuntimeError when called twice: an answer moves the episode, so it must be one.
        """
        response = _encode_answer(answer, self.wire)
        if not self._settle(response):
            raise RuntimeError("a request was answered twice")

    def release(self, reason: str) -> None:
        """Let the waiting handler go without an answer (the server stops); does nothing after `reply`."""
        self._settle(Response(503, f"{reason}\n".encode()))

    def wait(self) -> Response:
        """Block until `reply` or `release`."""
        self._done.wait()
        assert self._response is not None
        return self._response

    def _settle(self, response: Response) -> bool:
        with self._lock:
            if self._response is not None:
                return self._response.status != 200  # the loop may still answer what a stop released
            self._response = response
            self.answered_at = self._clock()
        self._done.set()
        return True


class Inbox:
    """The bounded queue between the handlers and the loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[Pending] = deque()
        self._changed = threading.Condition()
        self.closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, pending: Pending) -> None:
        """Queue `pending`; raises Refusal 503 when the queue is full or closed."""
        with self._changed:
            if self.closed:
                raise Refusal(503, "the server is stopping")
            if len(self._waiting) >= self._limit:
                raise Refusal(503, f"{self._limit} requests are waiting already", {"Retry-After": "1"})
            self._waiting.append(pending)
            self._changed.notify()

    def take(
        self,
        max_items: int,
        timeout_s: float,
        window_s: float,
        longest_s: float = 0.0,
        complete: Callable[[], bool] = lambda: False,
    ) -> list[Pending]:
        """Wait up to `timeout_s` for a first request, then gather more until `complete()`, or none comes any more.

        That is, none for `window_s`, but for no longer than `longest_s` (or `window_s`, if that is longer) in all.
        """
        taken = self._pop(max_items, time.monotonic() + timeout_s)
        deadline = time.monotonic() + max(window_s, longest_s)
        while taken and len(taken) < max_items and not complete():
            more = self._pop(max_items - len(taken), min(time.monotonic() + window_s, deadline))
            if not more:
                break
            taken += more
        return taken

    def close(self) -> list[Pending]:
        """Take no more, wake the loop, and return what was still waiting."""
        with self._changed:
            self.closed = True
            left = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        return left

    def _pop(self, max_items: int, deadline: float) -> list[Pending]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self.closed, max(0.0, deadline - time.monotonic()))
            return [self._waiting.popleft() for _ in range(min(max_items, len(self._waiting)))]


@dataclass
class _Session:
    seq: int
    digest: str
    pending: Pending
    heard_at: float


class Admission:
    """Lets requests in: a new one is queued, a retry gets the answer of the first, a stale one is refused.

    A session sends one request at a time, with growing `seq`. Only its last request is kept: a client retries nothing
    older than that.
    """

    def __init__(self, inbox: Inbox, session_timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._inbox = inbox
        self._timeout = session_timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[str, _Session] = {}
        self._unanswered: set[Pending] = set()

    def __len__(self) -> int:
        return len(self._sessions)

    def admit_v1(self, message: Message) -> Pending:
        """Queue a v1 observation; v1 has no sessions, so a repeated body is a new observation."""
        with self._lock:
            return self._enqueue(message, "v1")

    def admit_v2(self, message: Message, digest: str) -> Pending:
        """Queue a v2 message, or return what already waits (or was answered) for the same `(session, seq)`.

        Raises Refusal: 410 unknown session (the server restarted, or took its work back: say hello again),
        409 stale or conflicting `seq`, 503 full.
        """
        with self._lock:
            known = self._sessions.get(message.session)
            if known is None:
                return self._first(message, digest)
            known.heard_at = self._clock()
            if message.seq == known.seq:
                if digest != known.digest:
                    raise Refusal(409, f"seq {message.seq} came before with another body")
                return known.pending
            if message.seq < known.seq:
                raise Refusal(409, f"seq {message.seq} is older than {known.seq}")
            if known.pending.answered_at is None and not isinstance(message, Bye):
                raise Refusal(409, f"seq {known.seq} of this session is still being answered")
            return self._queue(message, digest)

    def all_waiting(self) -> bool:
        """Whether no session is free to send anything: then waiting for more requests is in vain."""
        with self._lock:
            return all(session.pending.answered_at is None for session in self._sessions.values())

    def forget_silent(self) -> list[Pending]:
        """Drop the sessions that were answered and not heard of for the timeout; one `Bye` for each."""
        now = self._clock()
        with self._lock:
            silent = {name: s for name, s in self._sessions.items() if self._silent_for(s, now) > self._timeout}
            for name in silent:
                del self._sessions[name]
        reason = f"silent for {self._timeout:g} s"
        return [Pending(Bye(name, s.seq, reason), "v2", self._clock) for name, s in silent.items()]

    def close(self) -> None:
        """Let every waiting handler go."""
        self._inbox.close()
        with self._lock:
            waiting = list(self._unanswered)
        for pending in waiting:
            pending.release("the server stopped before it answered")

    def finished(self, pending: Pending) -> None:
        """The handler has its answer."""
        with self._lock:
            self._unanswered.discard(pending)

    def _first(self, message: Message, digest: str) -> Pending:
        if isinstance(message, Bye):  # said twice, or after the server forgot it
            pending = Pending(message, "v2", self._clock)
            pending.reply({"kind": "bye"})
            return pending
        if not isinstance(message, Hello):
            raise Refusal(410, f"unknown session {message.session[:80]!r}: say hello first")
        if len(self._sessions) >= MAX_SESSIONS:
            raise Refusal(503, f"{MAX_SESSIONS} sessions are open already", {"Retry-After": "10"})
        return self._queue(message, digest)

    def _queue(self, message: Message, digest: str) -> Pending:
        pending = self._enqueue(message, "v2")
        if isinstance(message, Bye):
            del self._sessions[message.session]
        else:
            self._sessions[message.session] = _Session(message.seq, digest, pending, self._clock())
        return pending

    def _enqueue(self, message: Message, wire: str) -> Pending:
        pending = Pending(message, wire, self._clock)
        self._inbox.put(pending)
        self._unanswered.add(pending)
        return pending

    def _silent_for(self, session: _Session, now: float) -> float:
        answered_at = session.pending.answered_at
        return 0.0 if answered_at is None else now - max(answered_at, session.heard_at)


def _encode_answer(answer: Answer, wire: str) -> Response:
    if isinstance(answer, Mapping):
        if wire == "v2":
            return Response(200, protocol.encode_reply_v2(answer), "application/json")
        answer = [answer["action"]] if answer.get("action") is not None else []
    if wire == "v1":
        return Response(200, protocol.encode_reply_v1(answer))
    action = answer[0] if answer else None
    return Response(200, protocol.encode_reply_v2({"kind": "action", "action": action}), "application/json")
