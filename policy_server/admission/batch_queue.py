"""A bounded queue in front of the model: waiting jobs are answered in batches, within a deadline, or refused.

Everything here runs on the event loop's thread, except the model call, which has a thread of its own. So no state needs
a lock, and the event loop stays free while the model works.
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
from policy_server.refusals import RequestRefused

JobT = TypeVar("JobT")
OutputT = TypeVar("OutputT")


@dataclass(frozen=True)
class ModelAnswer(Generic[OutputT]):
    """What a model made of a job, and the seconds that the job spent in the queue and in the model."""

    output: OutputT
    queue_s: float
    model_s: float


@dataclass(eq=False)  # two jobs with equal fields are still two jobs
class _WaitingJob(Generic[JobT, OutputT]):
    model: str
    job: JobT
    since: float
    answer: asyncio.Future[ModelAnswer[OutputT]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class BatchQueue(Generic[JobT, OutputT]):
    """Calls `answer(model, jobs)` with batches of up to `max_batch` jobs, in order of arrival.

    `answer` runs in this object's thread and returns an output or an exception for each job.

    A batch starts as soon as the model is free, with one exception. If more jobs were present at the end of the last
    batch (in it or waiting) than are waiting now, the queue waits for the missing ones, but at most `window_s`: their
    clients have just got an answer and will send the next request soon. So a single client never waits, and clients
    that act in step share a batch.
    """

    def __init__(
        self,
        answer: Callable[[str, list[JobT]], Sequence[OutputT | Exception]],
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
        self._waiting: deque[_WaitingJob[JobT, OutputT]] = deque()
        self._arrived = asyncio.Event()
        self._expected = 1
        self._batch_s = 1.0  # seconds for a batch, an exponential moving average
        self._closed = False  # no new requests; accepted ones may still submit their job
        self._ending = False  # no new jobs
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def start(self) -> None:
        """Begin to answer; call it on the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="batches")

    def check_room(self) -> None:
        """RequestRefused (503) if the queue accepts no new request now."""
        if self._closed:
            raise _shutting_down()
        self._check_full()

    def _check_full(self) -> None:
        if len(self._waiting) >= self.limit:
            # By then the jobs that wait now have been answered, a batch after the other.
            wait = self._batch_s * len(self._waiting) / self.max_batch
            reason = f"{len(self._waiting)} requests are waiting already"
            raise RequestRefused(503, "queue_full", reason, max(1, math.ceil(wait)))

    async def ask(self, model: str, job: JobT, timeout_s: float) -> ModelAnswer[OutputT]:
        """The model's answer.

        Raises RequestRefused (503) if the queue is full or `timeout_s` passes, and whatever the model raised for this
        job. A cancelled caller leaves the queue. While the queue drains, requests accepted before may still ask.
        """
        if self._ending:
            raise _shutting_down()
        self._check_full()
        waiting: _WaitingJob[JobT, OutputT] = _WaitingJob(model, job, asyncio.get_running_loop().time())
        self._waiting.append(waiting)
        self._arrived.set()
        try:
            done, _ = await asyncio.wait({waiting.answer}, timeout=timeout_s)
            if not done:
                reason = f"not answered within {timeout_s:g} s"
                raise RequestRefused(503, "too_late", reason, max(1, math.ceil(self._batch_s)))
            return waiting.answer.result()
        finally:
            waiting.answer.cancel()
            with contextlib.suppress(ValueError):  # a batch has taken it
                self._waiting.remove(waiting)

    def drain(self, seconds: float) -> None:
        """Accept no new requests; refuse jobs that still wait after `seconds`."""
        if not self._closed:
            self._closed = True
            asyncio.get_running_loop().call_later(seconds, self._refuse_all)

    async def stop(self) -> None:
        """Refuse the waiting jobs, finish the current batch, end the thread."""
        self._closed = True
        self._refuse_all()
        self._ending = True
        self._arrived.set()  # `_run` may sleep until the next arrival: this one wakes it, and it sees `_ending`
        if self._task is not None:
            await self._task
        await asyncio.to_thread(self._thread.shutdown)

    def _refuse_all(self) -> None:
        for waiting in self._waiting:
            if not waiting.answer.done():
                waiting.answer.set_exception(_shutting_down())

    async def _run(self) -> None:
        """Batch after batch, until no more jobs can come."""
        loop = asyncio.get_running_loop()
        while True:
            # Wait for a job, then for those expected with it.
            while not self._waiting:
                if self._ending:
                    return
                await self._next_arrival(None)
            until = loop.time() + self.window_s
            while len(self._waiting) < self._expected and not self._ending and (left := until - loop.time()) > 0:
                await self._next_arrival(left)
            # The oldest job decides the model: so no model's jobs wait for ever behind those of a busier one. Later
            # jobs for the same model go with it; the others keep their order.
            batch: list[_WaitingJob[JobT, OutputT]] = []
            rest: deque[_WaitingJob[JobT, OutputT]] = deque()
            for waiting in self._waiting:
                fits = len(batch) < self.max_batch and (not batch or waiting.model == batch[0].model)
                (batch if fits else rest).append(waiting)
            self._waiting = rest
            # Answered already: refused while the queue drains, or given up by its caller. The model need not see it.
            batch = [waiting for waiting in batch if not waiting.answer.done()]
            if not batch:
                continue
            started = loop.time()
            jobs = [waiting.job for waiting in batch]
            answers = await loop.run_in_executor(self._thread, self._call_model, batch[0].model, jobs)
            model_s = loop.time() - started
            # An exponential moving average over about five batches, from which `Retry-After` is estimated.
            self._batch_s += 0.2 * (model_s - self._batch_s)
            self._metrics.batches.observe(len(batch))
            self._metrics.stages.labels("batch").observe(model_s)
            for waiting, answer in zip(batch, answers, strict=True):
                if waiting.answer.done():  # its client has left, or its deadline has passed
                    continue
                if isinstance(answer, Exception):
                    waiting.answer.set_exception(answer)
                else:
                    waiting.answer.set_result(ModelAnswer(answer, started - waiting.since, model_s))
            # Those answered just now will probably ask again: the next batch waits for as many (`window_s` at most).
            self._expected = min(self.max_batch, len(batch) + len(self._waiting))

    def _call_model(self, model: str, jobs: list[JobT]) -> Sequence[OutputT | Exception]:
        """The one call outside the event loop; whatever it raises goes to its own jobs, and the queue continues."""
        try:
            return self._answer(model, jobs)
        except Exception as error:
            return [error] * len(jobs)

    async def _next_arrival(self, timeout_s: float | None) -> None:
        # An event of arrivals before this call says nothing: whoever calls has just looked at the queue.
        self._arrived.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._arrived.wait(), timeout_s)


def _shutting_down() -> RequestRefused:
    return RequestRefused(503, "shutting_down", "the server is shutting down", retry_after_s=5)
