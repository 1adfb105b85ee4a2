"""The interface of every rollout executor: it plays a list of jobs and gives their outcomes in the list's order.

A rollout is a generator. It yields a question when it needs an answer from the caller's process (a policy lives there,
and answers for many rollouts at once), or None after a step that needed no answer. What it returns is the job's value.
`rollouts.play` is the rollout of one episode:

    def evaluate(game):                  # runs in a worker, which keeps it, and the environments that it holds
        episode = yield from play(environment, game, agent)
        return episode.won

    with make_executor("local", workers=8) as executor:
        for outcome in executor.run(evaluate, games, answer=lambda questions: policy.act(questions)):
            ...                          # in the order of `games`, each as early as that order allows

Outcomes are identical across backends, unless the policy draws random numbers: questions come in another order. A
worker that dies, or whose rollout makes no step for `step_timeout_s`, is replaced and its job is played again from the
start, at most `retries` times. Then the outcome has a `fault` that says why. Nothing of a lost attempt is kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

# An executor passes jobs, questions, answers and values on without looking into them: hence `Any`.
Rollout = Generator[Any, Any, Any]
RolloutFunction = Callable[[Any], Rollout]  # job -> its rollout
AnswerFunction = Callable[[Sequence[Any]], Sequence[Any]]  # questions of several rollouts -> their answers
KeyFunction = Callable[[Any], Hashable]  # job -> what a worker loads for it
EndFunction = Callable[["JobOutcome"], None]

Self = TypeVar("Self", bound="RolloutExecutor")


class JobOutcome(NamedTuple):
    """The outcome of one job. `fault` is empty, or says why there is no `value` after so many `attempts`."""

    job: Any
    value: Any
    attempts: int = 1
    fault: str = ""
    number: int = 0  # of the job, among those of the run


class MethodCall(NamedTuple):
    """A job without a rollout: its value is what `function` returns for the worker's copy of the rollout function."""

    function: Callable[[Any], Any]


class RolloutExecutor(ABC):
    """Plays jobs; a context manager."""

    @abstractmethod
    def run(
        self,
        play: RolloutFunction,
        jobs: Sequence[Any],
        *,
        answer: AnswerFunction | None = None,
        key: KeyFunction | None = None,
        on_end: EndFunction | None = None,
    ) -> Iterator[JobOutcome]:
        """Play all `jobs`; yields their outcomes in order, each as soon as it and all before it are known.

        `answer` answers the questions of several rollouts at once. `key` names what a worker loads for a job (the
        game): a job goes to a worker that has loaded it before, if that one is free. An exception in a rollout is
        raised here, in the turn of its job; only MemoryError counts as the loss of the worker.

        `on_end` is called with each outcome as soon as its job has ended: jobs before it may go on.
        """

    @abstractmethod
    def close(self) -> None:
        """End the workers; may be called twice."""

    def run_one(self, play: RolloutFunction, job: Any, *, answer: AnswerFunction | None = None) -> JobOutcome:
        """Play one job, as `run` does."""
        (outcome,) = self.run(play, [job], answer=answer)
        return outcome

    def call(self, function: Callable[[Any], Any], play: RolloutFunction) -> JobOutcome:
        """Have a worker call `function(play)` on its own copy of `play`, for example a method of `play`'s class.

        The outcome's value is what the function returns. Loss of the worker and exceptions are as in `run`.
        """
        return self.run_one(play, MethodCall(function))

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def rollout_of(play: RolloutFunction, job: Any) -> Rollout:
    """The rollout of `job`. Whatever `play` raises is raised when the rollout is first advanced."""
    if isinstance(job, MethodCall):
        return job.function(play)
    return (yield from play(job))


def answer_all(answer: AnswerFunction | None, questions: Sequence[Any]) -> Sequence[Any]:
    """The answers to `questions`, without a call if there are none. Raises ValueError without `answer`."""
    if not questions:
        return ()
    if answer is None:
        raise ValueError("an episode asks, but nobody answers: give run(…, answer=…)")
    return answer(questions)


class JobBoard:
    """The jobs of one run: those that wait, the outcomes of the others, and which outcome is due next."""

    def __init__(
        self,
        jobs: Sequence[Any],
        key: KeyFunction | None,
        homes: dict[Hashable, int],
        on_end: EndFunction | None = None,
    ) -> None:
        """`homes` maps a key to the number of the worker that has loaded it; it is kept up to date."""
        self._on_end = on_end or (lambda outcome: None)
        self.jobs = list(jobs)
        self.keys = [key(job) if key else None for job in self.jobs]
        self.homes = homes
        self.attempts = [0] * len(self.jobs)
        self.waiting = deque(range(len(self.jobs)))
        self._ended: dict[int, JobOutcome | Exception] = {}  # not given out yet: a job before them is still played
        self._due = 0

    @property
    def finished(self) -> bool:
        """Whether every outcome has been given out."""
        return self._due == len(self.jobs)

    def pick(self, number: int) -> int | None:
        """A job for worker `number`: the first whose key it has loaded, or nobody has; else the first of all."""
        if not self.waiting:
            return None
        # A job is kept for the worker that has its game loaded, unless a worker would be idle for it.
        mine = (index for index in self.waiting if self.homes.get(self.keys[index], number) == number)
        index = next(mine, self.waiting[0])
        self.waiting.remove(index)
        self.attempts[index] += 1
        self.homes[self.keys[index]] = number
        return index

    def end(self, index: int, value: Any) -> None:
        """A rollout has ended with `value`."""
        self._ended[index] = outcome = JobOutcome(self.jobs[index], value, self.attempts[index], number=index)
        self._on_end(outcome)

    def fail(self, index: int, error: Exception) -> None:
        """A rollout has raised `error`."""
        self._ended[index] = error

    def lose(self, index: int, reason: str, retries: int) -> None:
        """A rollout was lost with its worker: the job waits again, or gets its `fault` after all `retries`."""
        # In front: its outcome is due before those of later jobs, which wait for it.
        if self.attempts[index] <= retries:
            self.waiting.appendleft(index)
        else:
            self._ended[index] = outcome = JobOutcome(self.jobs[index], None, self.attempts[index], reason, index)
            self._on_end(outcome)

    def take_due(self) -> Iterator[JobOutcome]:
        """The outcomes that are due, in order; raises what a rollout raised when it is its turn."""
        while self._due in self._ended:
            outcome = self._ended.pop(self._due)
            self._due += 1
            # Raised in its turn: the outcomes before it are the same as on any other backend.
            if isinstance(outcome, Exception):
                raise outcome
            yield outcome
