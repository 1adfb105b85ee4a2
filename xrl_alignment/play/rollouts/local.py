"""An executor whose workers are processes of this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection as pipes
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

from lavis.common.program import signal_name
from xrl_alignment.play.rollouts.parallel import ParallelExecutor, WorkerRecord
from xrl_alignment.play.rollouts.worker import WorkerReply, worker_process

PIPE_S = 60.0  # for the next bytes of a reply that has begun, on a busy machine
_EXIT_S = 30.0  # how long the exit code of an ended process may take to arrive, on a busy machine
PRELOAD = [  # modules that most workers need and that load fast: nothing that imports torch
    "alfworld_native.drawing.frames",
    "alfworld_native.engine.environment",
    "xrl_alignment.play.evaluation.player",
    "alfworld_native.experts.explorer",
]
_HIDING = threading.Lock()  # several threads may use executors, each its own


@dataclass
class LocalHandle:
    """A worker process, the caller's end of its pipe, and how many calls it was told.

    A reply names the call that it answers: one that comes twice would else be taken for the answer to the next call.
    """

    process: BaseProcess
    pipe: pipes.Connection
    told: int = 0


class LocalExecutor(ParallelExecutor[LocalHandle]):
    """Workers are processes of this machine.

    They come from a fork server that has imported once what most of them need. So a worker only loads what is its own,
    and no process is forked while other threads of this one hold locks. Workers do not import the program that was
    started: what they play must be defined in a module.
    """

    def __init__(self, **options: Any) -> None:
        """`options` are those of `ParallelExecutor`."""
        super().__init__(**options)
        self._context: ForkServerContext | SpawnContext
        if "forkserver" in multiprocessing.get_all_start_methods():
            self._context = multiprocessing.get_context("forkserver")
            self._context.set_forkserver_preload(PRELOAD)
            with _hidden_main():
                forkserver.ensure_running()  # it imports while this process goes on
        else:
            self._context = multiprocessing.get_context("spawn")

    def start_process(self) -> LocalHandle:
        """See `ParallelExecutor`."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=worker_process, args=(theirs,), daemon=True, name="rollout")
        with _hidden_main():
            process.start()
        theirs.close()  # so that the end of the worker closes the pipe
        # A worker that is stopped in the middle of a message would hold this process for ever: a read or a write that
        # waits for longer than PIPE_S raises BlockingIOError. Windows' pipes are no sockets, and have no such times.
        if os.name != "nt":
            # The option belongs to the socket, whichever descriptor it was set by.
            with socket.socket(fileno=os.dup(ours.fileno())) as same:
                limit = struct.pack("ll", int(PIPE_S), int(PIPE_S % 1 * 1e6))  # a `timeval`: seconds, microseconds
                same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
                same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        return LocalHandle(process, ours)

    def tell(self, worker: WorkerRecord[LocalHandle], call: str, *arguments: Any) -> None:
        """See `ParallelExecutor`."""
        worker.handle.told += 1
        # Dead, or it does not read: `hear` will report it, or its step takes too long.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, BlockingIOError):
            worker.handle.pipe.send((call, arguments))

    def hear(
        self, workers: Sequence[WorkerRecord[LocalHandle]], timeout_s: float
    ) -> list[tuple[WorkerRecord[LocalHandle], WorkerReply]]:
        """See `ParallelExecutor`."""
        readable = set(pipes.wait([worker.handle.pipe for worker in workers], timeout_s))
        return [(worker, self.receive(worker)) for worker in workers if worker.handle.pipe in readable]

    def receive(self, worker: WorkerRecord[LocalHandle], *, begun: bool = True) -> WorkerReply:
        """The next reply of one worker, which has `begun` to come, or may take as long as it likes to begin."""
        process, pipe = worker.handle.process, worker.handle.pipe
        try:
            if not begun:
                pipe.poll(None)
            said = pipe.recv()
        except BlockingIOError:
            return WorkerReply("broken", detail="stopped in the middle of a reply")
        except (EOFError, OSError):
            process.join(_EXIT_S)
            code = process.exitcode
            if code is None or code >= 0:
                return WorkerReply("died", detail=f"ended by itself (exit code {code})")
            name = signal_name(-code)
            # The kernel ends what takes the machine's last memory with SIGKILL, and leaves no word about it.
            perhaps = ", perhaps because memory ran out" if name == "SIGKILL" else ""
            return WorkerReply("died", detail=f"was killed by {name}{perhaps}")
        except Exception as error:  # there is none that pickle may not raise for what is no pickle
            # The worker's environment has written to the pipe: what follows may be in the middle of anything.
            return WorkerReply("broken", detail=f"said what is no reply: {type(error).__name__}")
        match said:
            case (int(call), WorkerReply() as reply):
                if call == worker.handle.told:
                    return reply
                return WorkerReply("broken", detail=f"answered call {call} when call {worker.handle.told} was due")
        return WorkerReply("broken", detail=f"said what is no reply: {type(said).__name__}")

    def end(self, workers: Sequence[WorkerRecord[LocalHandle]], patience_s: float) -> None:
        """See `ParallelExecutor`."""
        for worker in workers:
            worker.handle.pipe.close()
            if worker.job is not None or not patience_s:
                worker.handle.process.kill()
        # All have been told before the first one is waited for: they end at the same time.
        deadline = time.monotonic() + patience_s
        for worker in workers:
            process = worker.handle.process
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
            process.close()


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    """Processes started in this block do not import the program that runs: it may import a model's libraries."""
    with _HIDING:
        program = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = program
