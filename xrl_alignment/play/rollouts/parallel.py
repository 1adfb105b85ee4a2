"""The common part of executors with workers: hands out jobs, collects questions, replaces lost workers."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from xrl_alignment.common.choices import STEP_TIMEOUT_S
from xrl_alignment.common.errors import RolloutError
from xrl_alignment.play.rollouts.base import (
    AnswerFunction,
    EndFunction,
    JobBoard,
    JobOutcome,
    KeyFunction,
    RolloutExecutor,
    RolloutFunction,
    answer_all,
)
from xrl_alignment.play.rollouts.worker import BEAT_S, WorkerReply

START_TIMEOUT_S = 180.0  # until the first worker is ready: it imports what its environment needs
_CLOSE_S = 2.0  # how long a worker may take to close its environments
_FAILED_STARTS = 3  # in a row: then the cause is common to all workers

Handle = TypeVar("Handle")


@dataclass
class WorkerRecord(Generic[Handle]):
    """What the caller knows of a worker; `handle` is how the backend reaches it."""

    number: int
    handle: Handle
    ready: bool = False
    job: int | None = None  # index of the job that it plays
    asking: bool = False  # its rollout waits for an answer
    deadline: float = float("inf")  # for its next step
    knows: RolloutFunction | None = None  # the function that it was given

    @property
    def plays(self) -> bool:
        """Whether its rollout is making steps: it does not wait for an answer."""
        return self.job is not None and not self.asking


class ParallelExecutor(RolloutExecutor, Generic[Handle]):
    """Workers that play one rollout each at a time. A backend says how to start, tell, hear and end a worker.

    A run starts the workers that it can use, never more than it has jobs; they are kept for the next run.
    """

    def __init__(
        self, *, workers: int, retries: int = 2, step_timeout_s: float = STEP_TIMEOUT_S, window_s: float = 0.005
    ) -> None:
        """`window_s` is how long a question waits for others before `answer` is called."""
        self.workers = workers
        self.retries = retries
        self.step_timeout_s = step_timeout_s
        self.window_s = window_s
        self.replaced: list[str] = []  # why workers were replaced, oldest first
        self.hired = 0  # how many workers were ever started
        self._crew: list[WorkerRecord[Handle]] = []
        self._failed_starts = 0
        self._start_by = float("inf")
        self._homes: dict[Hashable, int] = {}

    # --- what a backend does ---------------------------------------------------------------------------------------

    @abstractmethod
    def start_process(self) -> Handle:
        """Start a worker; returns its handle. The worker's first reply is `ready`."""

    @abstractmethod
    def tell(self, worker: WorkerRecord[Handle], call: str, *arguments: Any) -> None:
        """Have a worker carry out a call of `RolloutRunner`. A dead worker is no error here: `hear` reports it."""

    @abstractmethod
    def hear(
        self, workers: Sequence[WorkerRecord[Handle]], timeout_s: float
    ) -> list[tuple[WorkerRecord[Handle], WorkerReply]]:
        """The replies that have come, after waiting for a first one; `died` (with the reason) for a dead worker."""

    @abstractmethod
    def end(self, workers: Sequence[WorkerRecord[Handle]], patience_s: float) -> None:
        """End workers. Those without a job may take `patience_s` to close their environments."""

    def why_not_ready(self) -> str:
        """What the backend adds to the error that no worker was ready in time."""
        return ""

    # --- a run -----------------------------------------------------------------------------------------------------

    def run(
        self,
        play: RolloutFunction,
        jobs: Sequence[Any],
        *,
        answer: AnswerFunction | None = None,
        key: KeyFunction | None = None,
        on_end: EndFunction | None = None,
    ) -> Iterator[JobOutcome]:
        """See `RolloutExecutor.run`."""
        if getattr(play, "__module__", "") == "__main__":
            raise ValueError(f"workers cannot import {play!r} from the program that was started: move it to a module")
        board = JobBoard(jobs, key, self._homes, on_end)
        try:
            while not board.finished:
                self._staff(min(self.workers, len(board.jobs)))
                for worker in self._crew:
                    if worker.ready and worker.job is None:
                        worker.job = board.pick(worker.number)
                        if worker.job is None:
                            break
                        job = board.jobs[worker.job]
                        self._send(worker, "begin", *((job,) if worker.knows is play else (job, play)))
                        worker.knows = play
                asking = self._listen(board)
                answers = answer_all(answer, [question for _, question in asking])
                for (worker, _), said in zip(asking, answers, strict=True):
                    self._send(worker, "resume", said)
                yield from board.take_due()
        finally:  # also when the caller stops early: the outcomes of rollouts that still run have no use
            self._dismiss([worker for worker in self._crew if worker.job is not None], 0.0)

    def warm_up(self, workers: int | None = None) -> int:
        """Start workers before they are needed, and wait until they are ready; returns how many there are."""
        wanted = min(self.workers, workers or self.workers)
        while sum(worker.ready for worker in self._crew) < wanted:
            self._staff(wanted)
            self._take(self.hear([worker for worker in self._crew if not worker.ready], 1.0), None)
            self._check_starts()
        return len(self._crew)

    def close(self) -> None:
        """End all workers."""
        self._dismiss(list(self._crew), _CLOSE_S)

    def _staff(self, wanted: int) -> None:
        """Start workers until there are `wanted`."""
        while len(self._crew) < wanted:
            if not any(worker.ready for worker in self._crew):
                self._start_by = time.monotonic() + START_TIMEOUT_S
            self._crew.append(WorkerRecord(self.hired, self.start_process()))
            self.hired += 1

    def _send(self, worker: WorkerRecord[Handle], call: str, *arguments: Any) -> None:
        worker.asking = False
        worker.deadline = time.monotonic() + (self.step_timeout_s + BEAT_S if self.step_timeout_s else float("inf"))
        self.tell(worker, call, *arguments)

    def _listen(self, board: JobBoard) -> list[tuple[WorkerRecord[Handle], Any]]:
        """Hear workers until one is without a job, or questions were gathered for a window, or no more can come."""
        asking: list[tuple[WorkerRecord[Handle], Any]] = []
        until = float("inf")
        # A reply is to be expected of whoever plays, or is starting.
        while busy := [worker for worker in self._crew if worker.plays or not worker.ready]:
            now = time.monotonic()
            # Until the window ends or a step is late; and at least once a second a look at workers that only start.
            wait_s = min(until, min(worker.deadline for worker in busy), now + 1.0) - now
            heard = self.hear(busy, max(0.0, wait_s))
            asking += self._take(heard, board)
            now, alive = time.monotonic(), [worker for worker, _ in heard]
            for worker in busy:
                if worker.deadline < now and worker not in alive and worker in self._crew:
                    self._replace(worker, f"made no step for {self.step_timeout_s:g} s", board)
            self._check_starts()
            now = time.monotonic()
            until = min(until, now + self.window_s) if asking else until
            # Questions do not wait for workers that are only starting.
            playing = any(worker.plays for worker in self._crew)
            if now >= until or (asking and not playing) or (heard and not asking):
                break
        return asking

    def _take(
        self, heard: Sequence[tuple[WorkerRecord[Handle], WorkerReply]], board: JobBoard | None
    ) -> list[tuple[WorkerRecord[Handle], Any]]:
        """Note what was heard; returns the questions. Without a `board` no worker has a job."""
        asking = []
        for worker, reply in heard:
            if reply.kind == "ready":
                worker.ready, self._failed_starts = True, 0
            elif reply.kind == "ask":
                worker.asking = True
                asking.append((worker, reply.value))
            elif reply.kind == "playing":
                self._send(worker, "resume", None)
            elif reply.kind in ("died", "broken"):
                self._replace(worker, reply.detail, board)
            else:
                index, worker.job, worker.deadline = worker.job, None, float("inf")
                assert board is not None and index is not None, f"{reply.kind} from a worker without a job"
                if reply.kind == "done":
                    board.end(index, reply.value)
                else:  # the worker's traceback, for the error is raised here in the turn of its job
                    reply.value.__cause__ = RolloutError(f"in worker {worker.number}:\n{reply.detail}")
                    board.fail(index, reply.value)
        return asking

    def _replace(self, worker: WorkerRecord[Handle], reason: str, board: JobBoard | None) -> None:
        """A worker is lost: its job has to be played again. `_staff` starts another worker."""
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= _FAILED_STARTS:
                raise RolloutError(f"{_FAILED_STARTS} workers in a row have ended before they were ready: {reason}")
        self.replaced.append(reason)
        index, worker.job = worker.job, None
        self._dismiss([worker], 0.0)  # it may still run: a worker that hangs is killed
        if index is not None and board is not None:
            board.lose(index, reason, self.retries)

    def _check_starts(self) -> None:
        if time.monotonic() > self._start_by and not any(worker.ready for worker in self._crew):
            raise RolloutError(f"no worker was ready within {START_TIMEOUT_S:g} s{self.why_not_ready()}")

    def _dismiss(self, workers: Sequence[WorkerRecord[Handle]], patience_s: float) -> None:
        """End workers and forget them."""
        gone = {worker.number for worker in workers}
        self._crew = [worker for worker in self._crew if worker.number not in gone]
        for key in [key for key, home in self._homes.items() if home in gone]:
            del self._homes[key]
        self.end(workers, patience_s)
