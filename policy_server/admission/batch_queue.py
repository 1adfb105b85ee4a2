"""A bounded queue in front of the model: what waits is answered together, in time, or refused.

Everything here runs on the event loop's thread, but for the model call, which has a thread of its own. So nothing needs
a lock, and a busy model never keeps the server from answering.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from policy_server.metrics import Metrics
from policy_server.refusals import Refusal

JobT = TypeVar("JobT")
Answers = Sequence["str | Exception"]


@dataclass(frozen=True)
class Answered:
    """A model's text, and where the time went (seconds)."""

    text: str
    queue_s: float
    model_s: float


@dataclass(eq=False)  # each is itself, whatever is asked
class _Waiting(Generic[JobT]):
    model: str
    job: JobT
    since: float
    answer: asyncio.Future[Answered] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class BatchQueue(Generic[JobT]):
    """Hands jobs to `answer(model, jobs)` in batches of up to `max_batch`, in the order of their arrival.

    `answer` runs in this object's thread and gives a text or an exception for each job. A batch begins as soon as the
    model is free. Only if more jobs were around when the last batch ended (in it or waiting) than are waiting now, it
    waits for the missing ones, at most `window_s`: their clients have just got an answer and will ask again. So a
    single client never waits, and many in step fill a batch.
    """

    def __init__(
        self,
        answer: Callable[[str, list[JobT]], Answers],
        *,
        limit: int,
        max_batch: int,
        window_s: float,
        metrics: Metrics,
    ) -> None:
        self.limit = limit
        self.max_batch = max_batch
        self.window_s = window_s
        self._answer = answer
        self._metrics = metrics
        self._waiting: deque[_Waiting[JobT]] = deque()
        self._arrived = asyncio.Event()
        self._expected = 1
        self._batch_s = 1.0  # how long a batch takes, a moving average
        self._closed = ""
        self._ending = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def start(self) -> None:
        """Begin to answer; call it on the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="batches")

    def check_room(self) -> None:
        """Refusal (503) where nothing new can be let in now."""
        if self._closed:
            raise self._shutting_down()
        self._check_full()

    def _shutting_down(self) -> Refusal:
        return Refusal(503, "shutting_down", self._closed, retry_after_s=5)

    def _check_full(self) -> None:
        if len(self._waiting) >= self.limit:
            wait = self._batch_s * len(self._waiting) / self.max_batch
            raise Refusal(
                503, "queue_full", f"{len(self._waiting)} requests are waiting already", max(1, math.ceil(wait))
            )

    async def ask(self, model: str, job: JobT, timeout_s: float) -> Answered:
        """The model's answer; Refusal (503) where the queue is full or `timeout_s` passes, or what the model raised.

        Whoever stops waiting (cancelled) leaves the queue. While it drains, requests still ask that were let in before.
        """
        if self._ending:
            raise self._shutting_down()
        self._check_full()
        waiting = _Waiting(model, job, asyncio.get_running_loop().time())
        self._waiting.append(waiting)
        self._arrived.set()
        try:
            done, _ = await asyncio.wait({waiting.answer}, timeout=timeout_s)
            if not done:
                raise Refusal(503, "too_late", f"not answered within {timeout_s:g} s", max(1, math.ceil(self._batch_s)))
            return waiting.answer.result()
        finally:
            waiting.answer.cancel()
            with contextlib.suppress(ValueError):  # it has been taken out
                self._waiting.remove(waiting)

    def drain(self, seconds: float) -> None:
        """Let nothing new in; whoever waits after `seconds` is refused."""
        if not self._closed:
            self._closed = "the server is shutting down"
            asyncio.get_running_loop().call_later(seconds, self._refuse_all)

    async def stop(self) -> None:
        """Refuse whoever still waits, answer the batch in hand, end the thread."""
        self._closed = self._closed or "the server is shutting down"
        self._refuse_all()
        self._ending = True
        self._arrived.set()
        if self._task is not None:
            await self._task
        await asyncio.to_thread(self._thread.shutdown)

    def _refuse_all(self) -> None:
        for waiting in self._waiting:
            if not waiting.answer.done():
                waiting.answer.set_exception(self._shutting_down())

    async def _run(self) -> None:
        while await self._gather():
            batch = self._take()
            if not batch:
                continue
            loop = asyncio.get_running_loop()
            started = loop.time()
            jobs = [waiting.job for waiting in batch]
            answers = await loop.run_in_executor(self._thread, self._answered, batch[0].model, jobs)
            self._settle(batch, answers, started, loop.time() - started)
            self._expected = min(self.max_batch, len(batch) + len(self._waiting))

    def _answered(self, model: str, jobs: list[JobT]) -> Answers:
        """The one call that leaves the event loop; the queue survives whatever happens in it."""
        try:
            return self._answer(model, jobs)
        except Exception as error:
            return [error] * len(jobs)

    async def _gather(self) -> bool:
        """Wait for a job, then for the ones that are expected with it; False when there will be none."""
        while not self._waiting:
            if self._ending:
                return False
            await self._next_arrival(None)
        loop = asyncio.get_running_loop()
        until = loop.time() + self.window_s
        while len(self._waiting) < self._expected and not self._ending and (left := until - loop.time()) > 0:
            await self._next_arrival(left)
        return True

    async def _next_arrival(self, timeout_s: float | None) -> None:
        self._arrived.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._arrived.wait(), timeout_s)

    def _take(self) -> list[_Waiting[JobT]]:
        """The oldest job and those behind it that ask the same model; the others keep their places."""
        batch: list[_Waiting[JobT]] = []
        rest: deque[_Waiting[JobT]] = deque()
        for waiting in self._waiting:
            fits = len(batch) < self.max_batch and (not batch or waiting.model == batch[0].model)
            (batch if fits else rest).append(waiting)
        self._waiting = rest
        return [waiting for waiting in batch if not waiting.answer.done()]

    def _settle(self, batch: list[_Waiting[JobT]], answers: Answers, started: float, model_s: float) -> None:
        self._batch_s += 0.2 * (model_s - self._batch_s)
        self._metrics.batch(len(batch), model_s)
        for waiting, answer in zip(batch, answers, strict=True):
            if waiting.answer.done():  # it has given up
                continue
            if isinstance(answer, Exception):
                waiting.answer.set_exception(answer)
            else:
                waiting.answer.set_result(Answered(answer, started - waiting.since, model_s))
