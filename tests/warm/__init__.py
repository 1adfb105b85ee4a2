"""Programs of the project as processes that find the libraries imported.

torch and Transformers take five seconds of processor time or more to import, and the tests start a hundred programs. So
one process imports the libraries, and nothing of the project, and forks for each program (`tests/warm/forks.py`). All
that the project does at a start is done anew, its own imports included; how a cold start answers is tested where
nothing is started here: by the pipelines' servers and clients, the installation's tests and those of the start-up. So
are processor time and memory: a forked process pays for pages that it shares.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from lavis.common.paths import REPO_ROOT


@functools.cache
def _forks() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        # It ends when this process does: nothing is left at the other end of its socket.
        command = [sys.executable, str(Path(__file__).with_name("forks.py")), str(theirs.fileno())]
        subprocess.Popen(command, pass_fds=[theirs.fileno()], env={**os.environ, "OMP_NUM_THREADS": "1"})
    return ours


class Program:
    """`python ARGUMENTS…` with the part of `subprocess.Popen`'s interface that the tests use.

    `stdout` and `stderr` are a file, PIPE (read as text), DEVNULL, or None for the tests' own; STDOUT for `stderr`.
    Its environment is the tests' and `more`, though what a library reads when it is imported was read before.
    It computes with one thread unless it sets another number itself.
    """

    def __init__(
        self,
        arguments: Sequence[object],
        *,
        more: Mapping[str, str] | None = None,
        stdout: IO | int | None = None,
        stderr: IO | int | None = None,
        cwd: Path = REPO_ROOT,
    ) -> None:
        self.args = list(map(str, arguments))
        self.returncode: int | None = None
        self._status, status = os.pipe()
        with contextlib.ExitStack() as theirs:
            nothing = theirs.enter_context(open(os.devnull, "r+b"))
            theirs.callback(os.close, status)

            def end_of(stream: IO | int | None, own: int) -> tuple[int, IO[str] | None]:
                if stream == subprocess.PIPE:
                    read, write = os.pipe()
                    theirs.callback(os.close, write)
                    return write, open(read, encoding="utf-8", errors="replace")
                if stream == subprocess.DEVNULL:
                    return nothing.fileno(), None
                return (own if stream is None else stream if isinstance(stream, int) else stream.fileno()), None

            out, self.stdout = end_of(stdout, 1)
            err, self.stderr = (out, None) if stderr == subprocess.STDOUT else end_of(stderr, 2)
            request = {"arguments": self.args, "environment": {**os.environ, **(more or {})}, "cwd": str(cwd)}
            socket.send_fds(_forks(), [json.dumps(request).encode()], [nothing.fileno(), out, err, status])
        self.pid = int(_forks().recv(32))

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, a signal's negated; TimeoutExpired after `timeout` seconds."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(os.read(self._status, 32))
            os.close(self._status)
        return self.returncode

    def poll(self) -> int | None:
        """The exit code, None while the program runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end; what it wrote to the pipes."""
        deadline = None if timeout is None else time.monotonic() + timeout
        texts = ["", ""]

        def read(index: int, stream: IO[str]) -> None:
            with stream:
                texts[index] = stream.read()

        streams = [(index, stream) for index, stream in enumerate((self.stdout, self.stderr)) if stream]
        readers = [threading.Thread(target=read, args=pair, daemon=True) for pair in streams]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return texts[0], texts[1]

    def send_signal(self, number: int) -> None:
        """A signal, if the program has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run(
    arguments: Sequence[object],
    patience_s: float = 280,
    more: Mapping[str, str] | None = None,
    cwd: Path = REPO_ROOT,
) -> subprocess.CompletedProcess[str]:
    """Start a program and wait for its end, at most so long; what it wrote, and its exit code."""
    program = Program(arguments, more=more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd)
    try:
        out, errors = program.communicate(patience_s)
    finally:
        program.kill()
    return subprocess.CompletedProcess(program.args, program.wait(), out, errors)
