"""Runs a list of episodes here, in worker processes, or on a Ray cluster; the results do not tell which.

An episode is a generator. It yields a question when it needs an answer from the caller's process (a policy lives
there, and answers for many episodes at once), or None to show that it made a step; what it returns is its result:

    def play(job):                       # runs in a worker, which keeps it (and the environments it holds)
        step = environment.reset(job)
        while not step.done:
            step = environment.step((yield question(step)))
        return step.won

    with make_executor("local", workers=8) as executor:
        for outcome in executor.run(play, jobs, answer=lambda questions: policy.act(questions)):
            ...                          # in the order of `jobs`, as soon as they are there

A worker that dies, or whose episode makes no step for `step_timeout_s`, is replaced, and the episode begins anew: at
most `retries` times, then its outcome says what was wrong. What a lost worker had played counts nowhere.
"""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import signal
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection as pipes
from multiprocessing import forkserver
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from xrl_alignment.common.choices import BACKENDS, STEP_TIMEOUT_S
from xrl_alignment.common.errors import RolloutError

START_TIMEOUT_S = 180.0
_BEAT_S = 1.0  # how often a worker that plays by itself says that it does
_CLOSE_S = 2.0  # how long a worker may take to close its environments
_EXIT_S = 30.0  # how long the exit code of a worker that has gone may take to arrive, on a busy machine
_PRELOAD = [  # the cheap part of what workers need; no torch
    "xrl_alignment.environments.drawing.frames",
    "xrl_alignment.environments.native.environment",
    "xrl_alignment.evaluation.episodes",
    "xrl_alignment.experts.explorer",
]
_FAILED_STARTS = 3  # in a row: then something is wrong with all of them
_HIDING = threading.Lock()  # executors may be used in several threads, each in its own

Episode = Generator[Any, Any, Any]
Play = Callable[[Any], Episode]
Answer = Callable[[Sequence[Any]], Sequence[Any]]
Key = Callable[[Any], Hashable]


class Outcome(NamedTuple):
    """What became of one job. `fault` is empty, or says why there is no `value` after so many `attempts`."""

    job: Any
    value: Any
    attempts: int = 1
    fault: str = ""


class RolloutExecutor(Protocol):
    """Runs episodes; a context manager."""

    name: str

    def run(self, play: Play, jobs: Sequence[Any], *, answer: Answer | None = None, key: Key | None = None) -> Iterator:
        """An `Outcome` for each job, in their order, each as soon as it and all before it are there.

        `answer` answers the questions of several episodes at once. `key` names what a worker loads for a job (the
        game): a job goes to a worker that has loaded it before, if that one is free. What an episode raises is raised
        here, in its turn; MemoryError counts as the loss of the worker.
        """
        ...

    def close(self) -> None:
        """End the workers; may be called twice."""
        ...


def make_executor(
    backend: str,
    *,
    workers: int = 1,
    interleave: int = 1,
    step_timeout_s: float = STEP_TIMEOUT_S,
    retries: int = 2,
    address: str = "",
    cpus_per_worker: float = 1.0,
) -> SequentialExecutor | ParallelExecutor:
    """The executor called `backend`, one of `BACKENDS`.

    `interleave` is for `sequential`, which has no workers; `address` (empty: Ray on this machine only) and
    `cpus_per_worker` are for `ray`. `step_timeout_s` 0 waits for ever.
    Raises ValueError for settings that do not go together, ImportError where Ray is not installed, RolloutError where
    its cluster cannot be reached.
    """
    if backend not in BACKENDS:
        raise ValueError(f"unknown rollout backend {backend!r}: choose one of {', '.join(BACKENDS)}")
    if workers < 1 or retries < 0 or step_timeout_s < 0:
        raise ValueError(
            f"an executor needs at least 1 worker, 0 retries and 0 s for a step, not {workers}, {retries} and "
            f"{step_timeout_s:g}"
        )
    if backend != "ray" and address:
        raise ValueError(f"a cluster's address ({address}) is of use only to the ray backend, not to {backend}")
    if backend == "sequential":
        if workers > 1:
            raise ValueError(f"the sequential backend plays in this process: for {workers} workers choose local or ray")
        return SequentialExecutor(interleave)
    options = {"workers": workers, "retries": retries, "step_timeout_s": step_timeout_s}
    if backend == "local":
        return LocalExecutor(**options)
    from xrl_alignment.rollouts.ray import RayExecutor

    return RayExecutor(**options, address=address, cpus_per_worker=cpus_per_worker)


# --- the worker's side ---------------------------------------------------------------------------------------------


class Reply(NamedTuple):
    """What a worker says: it is `ready`, it `ask`s, it is still `playing`, an episode is `done`, it met an `error`.

    `broken` is said by a worker that has to be replaced, `died` on behalf of one that is no more.
    """

    kind: str
    value: Any = None
    detail: str = ""


class Seat:
    """One worker's side: the episode it plays, moved on call by call. The same in a process and in a Ray actor."""

    def __init__(self) -> None:
        self._play: Play | None = None
        self._episode: Episode | None = None

    def begin(self, job: Any, play: Play | None = None) -> Reply:
        """Start an episode of `play` (None: of the same as before) and play until there is something to say."""
        if play is not None:
            self.close()
            self._play = play
        self._episode = self._play(job)
        return self.resume(None)

    def resume(self, answer: Any) -> Reply:
        """Go on with the answer to what was asked."""
        until = time.monotonic() + _BEAT_S
        try:
            while (question := self._episode.send(answer)) is None:
                answer = None
                if time.monotonic() >= until:
                    return Reply("playing")
        except StopIteration as end:
            return Reply("done", end.value)
        except MemoryError as error:
            return Reply("broken", detail=f"ran out of memory: {error}")
        except Exception as error:  # raised again in the caller's process
            return Reply("error", _portable(error), traceback.format_exc())
        return Reply("ask", question)

    def close(self) -> None:
        """Close what `play` holds, if it can be closed."""
        if hasattr(self._play, "close"):
            self._play.close()


def _portable(error: Exception) -> Exception:
    """`error`, or a RuntimeError that says the same where `error` would not survive the way to another process."""
    try:
        return copy.copy(error)
    except Exception:  # any constructor may refuse its own arguments
        return RuntimeError(f"{type(error).__name__}: {error}")


def _work(pipe: pipes.Connection) -> None:
    """The whole life of a worker process: it does what comes through `pipe`, and ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller, who closes the pipe
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    seat = Seat()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        pipe.send(Reply("ready"))
        while True:
            call, arguments = pipe.recv()
            reply = getattr(seat, call)(*arguments)
            try:
                pipe.send(reply)
            except (TypeError, AttributeError, ValueError) as error:
                pipe.send(Reply("error", TypeError(f"an episode's {reply.kind} cannot leave its worker: {error}")))
    seat.close()


# --- the caller's side ---------------------------------------------------------------------------------------------


class Board:
    """The jobs of one run: which wait, what became of the others, what is to be told next."""

    def __init__(self, jobs: Sequence[Any], key: Key | None, homes: dict[Hashable, int]) -> None:
        self.jobs = list(jobs)
        self.keys = [key(job) if key else None for job in self.jobs]
        self.homes = homes  # key -> number of the worker that has loaded it
        self.attempts = [0] * len(self.jobs)
        self.waiting = deque(range(len(self.jobs)))
        self._ended: dict[int, Outcome | Exception] = {}
        self._told = 0

    @property
    def finished(self) -> bool:
        """Every outcome has been told."""
        return self._told == len(self.jobs)

    def pick(self, number: int) -> int | None:
        """A job for worker `number`: one that it has loaded, else one that nobody has, else any."""
        if not self.waiting:
            return None
        mine = (index for index in self.waiting if self.homes.get(self.keys[index], number) == number)
        index = next(mine, self.waiting[0])
        self.waiting.remove(index)
        self.attempts[index] += 1
        self.homes[self.keys[index]] = number
        return index

    def end(self, index: int, value: Any) -> None:
        """An episode has ended."""
        self._ended[index] = Outcome(self.jobs[index], value, self.attempts[index])

    def fail(self, index: int, error: Exception) -> None:
        """An episode has raised `error`."""
        self._ended[index] = error

    def lose(self, index: int, reason: str, retries: int) -> None:
        """An episode was lost with its worker: again, or given up."""
        if self.attempts[index] <= retries:
            self.waiting.appendleft(index)
        else:
            self._ended[index] = Outcome(self.jobs[index], None, self.attempts[index], reason)

    def tell(self) -> Iterator[Outcome]:
        """What can be told now, in order; raises what an episode raised when it is its turn."""
        while self._told in self._ended:
            outcome = self._ended.pop(self._told)
            self._told += 1
            if isinstance(outcome, Exception):
                raise outcome
            yield outcome


def _answers(answer: Answer | None, questions: Sequence[Any]) -> Sequence[Any]:
    if not questions:
        return ()
    if answer is None:
        raise ValueError("an episode asks, but nobody answers: give run(…, answer=…)")
    return answer(questions)


class SequentialExecutor:
    """Plays in this process: environments step one after the other, and `interleave` episodes share each answer.

    With 1 this is the baseline: one episode, one step at a time.
    """

    name = "sequential"

    def __init__(self, interleave: int = 1) -> None:
        self.interleave = interleave
        self._plays: list[Play] = []

    def run(
        self, play: Play, jobs: Sequence[Any], *, answer: Answer | None = None, key: Key | None = None
    ) -> Iterator[Outcome]:
        """See `RolloutExecutor.run`."""
        if not any(known is play for known in self._plays):
            self._plays.append(play)
        board = Board(jobs, None, {})
        asking: list[tuple[int, Episode, Any]] = []
        try:
            while not board.finished:
                while board.waiting and len(asking) < self.interleave:
                    asking += self._advance(board, board.pick(0), None, play)
                    yield from board.tell()
                answers = _answers(answer, [question for *_, question in asking])
                moved, asking = asking, []
                for (index, episode, _), said in zip(moved, answers, strict=True):
                    asking += self._advance(board, index, said, episode)
                yield from board.tell()
        finally:
            for _, episode, _ in asking:
                episode.close()

    def _advance(self, board: Board, index: int, said: Any, episode: Episode | Play) -> list[tuple[int, Episode, Any]]:
        """Play until the next question; empty when the episode has ended."""
        try:
            episode = episode if isinstance(episode, Generator) else episode(board.jobs[index])
            while (question := episode.send(said)) is None:
                said = None
        except StopIteration as end:
            board.end(index, end.value)
        except Exception as error:
            board.fail(index, error)
        else:
            return [(index, episode, question)]
        return []

    def close(self) -> None:
        """Close what was played with."""
        for play in self._plays:
            if hasattr(play, "close"):
                play.close()
        self._plays.clear()

    def __enter__(self) -> SequentialExecutor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@dataclass
class Worker:
    """The caller's view of a worker; `handle` is the backend's own."""

    number: int
    handle: Any
    ready: bool = False
    job: int | None = None
    asking: bool = False
    deadline: float = field(default=float("inf"))
    knows: Play | None = None  # what it was given to play

    @property
    def plays(self) -> bool:
        """Its episode is going on, and does not wait for an answer."""
        return self.job is not None and not self.asking

    @property
    def speaks(self) -> bool:
        """Something will be heard of it: it plays, or is starting."""
        return self.plays or not self.ready


class ParallelExecutor(ABC):
    """Workers that play one episode each at a time. A backend says how to start, tell, hear and end one.

    Workers are started when a run has use for them, never more than it has jobs, and are kept for the next run.
    """

    name = "parallel"

    def __init__(
        self, *, workers: int, retries: int = 2, step_timeout_s: float = STEP_TIMEOUT_S, window_s: float = 0.005
    ) -> None:
        """`window_s` is how long a question waits for others before `answer` is called."""
        self.workers = workers
        self.retries = retries
        self.step_timeout_s = step_timeout_s
        self.window_s = window_s
        self.replaced: list[str] = []  # why workers were, oldest first
        self._crew: list[Worker] = []
        self.hired = 0
        self._failed_starts = 0
        self._start_by = float("inf")
        self._homes: dict[Hashable, int] = {}

    # --- what a backend does ---------------------------------------------------------------------------------------

    @abstractmethod
    def start_process(self) -> Any:
        """Start a worker; its handle. Its first reply is `ready`."""

    @abstractmethod
    def tell(self, worker: Worker, call: str, *arguments: Any) -> None:
        """Have a worker carry out a call of `Seat`; a worker that is dead says so when it is listened to."""

    @abstractmethod
    def hear(self, workers: Sequence[Worker], timeout_s: float) -> list[tuple[Worker, Reply]]:
        """Replies that are there, after waiting for a first one; `died` (with the reason) for a dead worker."""

    @abstractmethod
    def end(self, workers: Sequence[Worker], patience_s: float) -> None:
        """End workers: those that idle may close their environments for `patience_s`."""

    # --- a run -----------------------------------------------------------------------------------------------------

    def run(
        self, play: Play, jobs: Sequence[Any], *, answer: Answer | None = None, key: Key | None = None
    ) -> Iterator[Outcome]:
        """See `RolloutExecutor.run`."""
        if getattr(play, "__module__", "") == "__main__":
            raise ValueError(f"workers cannot import {play!r} from the program that was started: move it to a module")
        board = Board(jobs, key, self._homes)
        try:
            while not board.finished:
                self._staff(min(self.workers, len(board.jobs)))
                self._hand_out(play, board)
                asking = self._listen(board)
                answers = _answers(answer, [question for _, question in asking])
                for (worker, _), said in zip(asking, answers, strict=True):
                    self._send(worker, "resume", said)
                yield from board.tell()
        finally:  # also where the caller wants no more: whoever still plays, plays for nobody
            self._dismiss([worker for worker in self._crew if worker.job is not None], 0.0)

    def warm_up(self, workers: int | None = None) -> int:
        """Start workers before they are needed, and wait until they are ready; how many there are."""
        wanted = min(self.workers, workers or self.workers)
        while sum(worker.ready for worker in self._crew) < wanted:
            self._staff(wanted)
            self._take(self.hear([worker for worker in self._crew if not worker.ready], 1.0), None)
            self._check_starts()
        return len(self._crew)

    def close(self) -> None:
        """End all workers."""
        self._dismiss(list(self._crew), _CLOSE_S)

    def __enter__(self) -> ParallelExecutor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _staff(self, wanted: int) -> None:
        """Start workers until there are `wanted`."""
        while len(self._crew) < wanted:
            if not any(worker.ready for worker in self._crew):
                self._start_by = time.monotonic() + START_TIMEOUT_S
            self._crew.append(Worker(self.hired, self.start_process()))
            self.hired += 1

    def _hand_out(self, play: Play, board: Board) -> None:
        for worker in self._crew:
            if worker.ready and worker.job is None:
                worker.job = board.pick(worker.number)
                if worker.job is None:
                    return
                job = board.jobs[worker.job]
                self._send(worker, "begin", *((job,) if worker.knows is play else (job, play)))
                worker.knows = play

    def _send(self, worker: Worker, call: str, *arguments: Any) -> None:
        worker.asking = False
        worker.deadline = time.monotonic() + (self.step_timeout_s + _BEAT_S if self.step_timeout_s else float("inf"))
        self.tell(worker, call, *arguments)

    def _listen(self, board: Board) -> list[tuple[Worker, Any]]:
        """Hear workers until one has no work, or questions have been gathered: for a window, or all there can be."""
        asking: list[tuple[Worker, Any]] = []
        until = float("inf")
        while busy := [worker for worker in self._crew if worker.speaks]:
            now = time.monotonic()
            wait_s = min(until, min(worker.deadline for worker in busy), now + 1.0) - now
            heard = self.hear(busy, max(0.0, wait_s))
            asking += self._take(heard, board)
            self._replace_overdue(busy, heard, board)
            self._check_starts()
            now = time.monotonic()
            until = min(until, now + self.window_s) if asking else until
            # Workers that are only starting are not worth waiting for.
            playing = any(worker.plays for worker in self._crew)
            if now >= until or (asking and not playing) or (heard and not asking):
                break
        return asking

    def _take(self, heard: Sequence[tuple[Worker, Reply]], board: Board | None) -> list[tuple[Worker, Any]]:
        """Note what was heard; returns the questions."""
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
                self._finish(worker, reply, board)
        return asking

    def _finish(self, worker: Worker, reply: Reply, board: Board) -> None:
        index, worker.job, worker.deadline = worker.job, None, float("inf")
        if reply.kind == "done":
            board.end(index, reply.value)
            return
        reply.value.__cause__ = RolloutError(f"in worker {worker.number}:\n{reply.detail}")
        board.fail(index, reply.value)

    def _replace(self, worker: Worker, reason: str, board: Board | None) -> None:
        """A worker is lost: its episode is to be played again. `_staff` starts another."""
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= _FAILED_STARTS:
                raise RolloutError(f"{_FAILED_STARTS} workers in a row have ended before they were ready: {reason}")
        self.replaced.append(reason)
        index, worker.job = worker.job, None
        self._dismiss([worker], 0.0)
        if index is not None:
            board.lose(index, reason, self.retries)

    def _replace_overdue(self, busy: Sequence[Worker], heard: Sequence[tuple[Worker, Reply]], board: Board) -> None:
        now, alive = time.monotonic(), [worker for worker, _ in heard]
        for worker in busy:
            if worker.deadline < now and worker not in alive and worker in self._crew:
                self._replace(worker, f"made no step for {self.step_timeout_s:g} s", board)

    def _check_starts(self) -> None:
        if time.monotonic() > self._start_by and not any(worker.ready for worker in self._crew):
            raise RolloutError(f"no worker was ready within {START_TIMEOUT_S:g} s{self.why_not_ready()}")

    def why_not_ready(self) -> str:
        """More on that, for the error's text."""
        return ""

    def _dismiss(self, workers: Sequence[Worker], patience_s: float) -> None:
        """End workers and forget them."""
        gone = {worker.number for worker in workers}
        self._crew = [worker for worker in self._crew if worker.number not in gone]
        for key in [key for key, home in self._homes.items() if home in gone]:
            del self._homes[key]
        self.end(workers, patience_s)


class LocalExecutor(ParallelExecutor):
    """Workers are processes of this machine.

    They come from a fork server, which has imported once what most of them need: a worker costs what it loads itself,
    and no thread of this process is copied half-way. They do not run the program again that was started, so what they
    play must be defined in a module.
    """

    name = "local"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        self._context = multiprocessing.get_context(method)
        if method == "forkserver":
            self._context.set_forkserver_preload(_PRELOAD)
            with _hidden_main():
                forkserver.ensure_running()  # it imports while this process goes on

    def start_process(self) -> tuple[Any, pipes.Connection]:
        """See `ParallelExecutor`."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs,), daemon=True, name="rollout")
        with _hidden_main():
            process.start()
        theirs.close()  # so that the worker's death closes the pipe
        return process, ours

    def tell(self, worker: Worker, call: str, *arguments: Any) -> None:
        """See `ParallelExecutor`."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # dead: `hear` will find that out
            worker.handle[1].send((call, arguments))

    def hear(self, workers: Sequence[Worker], timeout_s: float) -> list[tuple[Worker, Reply]]:
        """See `ParallelExecutor`."""
        by_pipe = {worker.handle[1]: worker for worker in workers}
        return [(by_pipe[pipe], self.receive(by_pipe[pipe])) for pipe in pipes.wait(list(by_pipe), timeout_s)]

    def receive(self, worker: Worker) -> Reply:
        """The next reply of one worker."""
        process, pipe = worker.handle
        try:
            return pipe.recv()
        except (EOFError, OSError):
            process.join(_EXIT_S)
            return Reply("died", detail=_last_words(process.exitcode))

    def end(self, workers: Sequence[Worker], patience_s: float) -> None:
        """See `ParallelExecutor`."""
        for worker in workers:
            worker.handle[1].close()
            if worker.job is not None or not patience_s:
                worker.handle[0].kill()
        deadline = time.monotonic() + patience_s
        for worker in workers:
            process = worker.handle[0]
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
            process.close()


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    """Processes that are started in here do not import the program that runs: it may import a model's libraries."""
    with _HIDING:
        program = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = program


def _last_words(code: int | None) -> str:
    if code is None or code >= 0:
        return f"ended by itself (exit code {code})"
    name = signal.Signals(-code).name
    return f"was killed by {name}{', perhaps for want of memory' if name == 'SIGKILL' else ''}"
