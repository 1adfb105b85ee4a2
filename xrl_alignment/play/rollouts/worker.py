"""A worker's side of a parallel executor: plays one rollout, moved on call by call, in a process or on a Ray node."""

from __future__ import annotations

import contextlib
import copy
import itertools
import pickle
import signal
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple

from xrl_alignment.play.rollouts.base import Rollout, RolloutFunction, rollout_of

BEAT_S = 1.0  # how often a worker reports that its rollout is making steps


class WorkerReply(NamedTuple):
    """What a worker reports.

    It is `ready`, its rollout has a question (`ask`), makes steps (`playing`), has ended (`done`) or raised (`error`).
    `broken` comes from a worker that has to be replaced, `died` is reported for one whose process has ended.
    """

    kind: Literal["ready", "ask", "playing", "done", "error", "broken", "died"]
    value: Any = None
    detail: str = ""


class RolloutRunner:
    """Plays one rollout at a time, and keeps the rollout function for the next one."""

    def __init__(self) -> None:
        self._play: RolloutFunction | None = None
        self._rollout: Rollout | None = None

    def begin(self, job: Any, play: RolloutFunction | None = None) -> WorkerReply:
        """Start to play `job` with `play` (None: the same function as before), until there is something to report."""
        if play is not None:
            self.close()
            self._play = play
        assert self._play is not None, "the first job of a worker comes with its rollout function"
        self._rollout = rollout_of(self._play, job)
        return self.resume(None)

    def resume(self, answer: Any) -> WorkerReply:
        """Continue with the answer to the last question, until there is something to report."""
        assert self._rollout is not None, "begin comes before resume"
        until = time.monotonic() + BEAT_S
        try:
            while (question := self._rollout.send(answer)) is None:
                answer = None
                if time.monotonic() >= until:
                    return WorkerReply("playing")
        except StopIteration as end:
            return WorkerReply("done", end.value)
        except MemoryError as error:
            return WorkerReply("broken", detail=f"ran out of memory: {error}")
        except Exception as error:  # raised again in the caller's process
            trace = traceback.format_exc()
            # `copy` makes the error anew, as pickle does on the other side: a constructor may refuse its own arguments.
            try:
                return WorkerReply("error", copy.copy(error), trace)
            except Exception:
                return WorkerReply("error", RuntimeError(f"{type(error).__name__}: {error}"), trace)
        return WorkerReply("ask", question)

    def close(self) -> None:
        """Close the rollout function, if it can be closed, and with it its environments."""
        if self._play is not None and hasattr(self._play, "close"):
            self._play.close()


def worker_process(pipe: Connection) -> None:
    """The whole life of a worker process: it carries out the calls that come through `pipe`, until it is closed.

    It says `(number of the call, its reply)`; that it is ready is number 0.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller, who closes the pipe
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    runner = RolloutRunner()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        pipe.send((0, WorkerReply("ready")))
        for number in itertools.count(1):
            call, arguments = pipe.recv()
            reply = getattr(runner, call)(*arguments)
            try:
                pipe.send((number, reply))
            except (pickle.PicklingError, TypeError, AttributeError, ValueError) as error:  # what pickle raises
                unsendable = TypeError(f"an episode's {reply.kind} cannot leave its worker: {error}")
                pipe.send((number, WorkerReply("error", unsendable)))
    runner.close()
