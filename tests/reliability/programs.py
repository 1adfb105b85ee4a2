"""The project's programs as real processes that start in a moment: forks of a process that has imported everything."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

import alfworld_client
import dagger_server
import train
from lavis.common.program import run_program
from xrl_alignment.dagger.decoupled import __main__ as learner
from xrl_alignment.lab import collect, pipeline
from xrl_alignment.lab.results import __main__ as results

_FORK = multiprocessing.get_context("fork")
MAINS: dict[str, Callable[[], int | None]] = {
    "dagger_server.py": dagger_server.main,
    "alfworld_client.py": alfworld_client.main,
    "train.py": train.main,
    "xrl_alignment.lab.collect": collect.main,
    "xrl_alignment.dagger.decoupled": learner.main,
    "xrl_alignment.lab.pipeline": pipeline.main,
    "xrl_alignment.lab.results": results.main,
}


class Program:
    """`name` with its command line, its output in the file `log`; `setup` is called in it first.

    Start one only from a process without threads.
    """

    def __init__(self, name: str, *arguments: object, log: Path, setup: Callable[[], None] | None = None) -> None:
        self.name, self.log = name, log
        self._process = _FORK.Process(target=_run, args=(name, [str(value) for value in arguments], log, setup))
        self._process.start()

    def family(self) -> list[psutil.Process]:
        """What it has started, and what that has started."""
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    @property
    def running(self) -> bool:
        return self._process.is_alive()

    def wait(self, seconds: float | None = None) -> int | None:
        """The exit code; None where it still runs after `seconds`."""
        self._process.join(seconds)
        return self._process.exitcode

    def stop(self) -> None:
        """SIGSTOP, unless it has ended."""
        self._send(signal.SIGSTOP)

    def cont(self) -> None:
        """SIGCONT, unless it has ended."""
        self._send(signal.SIGCONT)

    def _send(self, number: int) -> None:
        if self.running:
            os.kill(self._process.pid, number)

    def kill(self) -> bool:
        """SIGKILL; whether that is what ended it."""
        self._process.kill()
        return self.wait() == -9


class Serving:
    """`serve(*arguments)` in a process of its own, for servers that are no program of the project."""

    def __init__(self, serve: Callable[..., None], *arguments: object) -> None:
        self._process = _FORK.Process(target=serve, args=arguments)
        self._process.start()

    kill, wait, running = Program.kill, Program.wait, Program.running


def _run(name: str, arguments: list[str], log: Path, setup: Callable[[], None] | None) -> None:
    with open(log, "ab") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    sys.argv = [name, *arguments]
    if setup:
        setup()
    run_program(MAINS[name])
