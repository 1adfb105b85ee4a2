"""A real `alfworld_server.py` as a process, a client that may misbehave, and a real server of a model."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from lavis.common.paths import REPO_ROOT
from tests import warm
from tests.ports import free_port

SERVER = REPO_ROOT / "split_inference" / "alfworld_server.py"
PATIENCE_S = 120  # far more than anything here takes


class RunningServer:
    """The process, the port that it listens on, and the lines that it printed until then."""

    def __init__(self, *options: str, python: str = sys.executable, env: dict[str, str] | None = None) -> None:
        command = [python, str(SERVER), "--port", "0", *options]
        environ = os.environ | {"OMP_NUM_THREADS": "1", **(env or {})}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ, text=True
        )
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if "listening on" in line:
                break
        assert self.lines and "listening on" in self.lines[-1], self.lines
        self.port = int(self.lines[-1].rpartition(":")[2])
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True)
        self._reader.start()

    def connect(self) -> RawClient:
        return RawClient(self.port)

    def wait(self) -> int:
        """The exit code; all that was printed is in `lines` then."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.wait()
        self.process.stdout.close()


class RawClient:
    """A connection over which anything can be sent."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("localhost", port), timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines = self.socket.makefile("rb")

    def ask(self, command: str, **arguments: object) -> dict:
        self.send(json.dumps({"command": command, **arguments}).encode() + b"\n")
        return self.answer()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> dict:
        line = self._lines.readline()
        assert line.endswith(b"\n"), f"the server has closed the connection ({line!r})"
        return json.loads(line)

    def closed(self) -> bool:
        """Whether the server has closed the connection (waits for it, or for another line)."""
        try:
            return self._lines.readline() == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self._lines.close()
        self.socket.close()


class ServedModel:
    """`transformers serve` (or another command that takes `--port`) until the end of a `with`; gives its address."""

    def __init__(self, model: Path, log: Path, command: Sequence[str] = (), options: Sequence[str] = ()) -> None:
        port = free_port()
        self.address = f"http://localhost:{port}/v1"
        self._health = f"http://localhost:{port}/health"
        self._log = open(log, "w+")
        more = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        given = [str(model), "--port", str(port), *(options or ("--device", "cpu"))]
        self.process: subprocess.Popen | warm.Program
        if command:
            environment = os.environ | more
            self.process = subprocess.Popen(
                [*command, *given], stdout=self._log, stderr=subprocess.STDOUT, env=environment
            )
        else:
            serve = ["-m", "transformers.cli.transformers", "serve"]
            self.process = warm.Program([*serve, *given], more=more, stdout=self._log, stderr=subprocess.STDOUT)

    def __enter__(self) -> str:
        while not self._answers():
            assert self.process.poll() is None, self._log.seek(0) or self._log.read()
            time.sleep(0.2)
        return self.address

    def __exit__(self, *exc: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:  # it waits for an answer that is still being written
            self.process.kill()
            self.process.wait()
        self._log.close()

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self._health, timeout=5).close()
        except OSError:
            return False
        return True


def children(pid: int) -> list[int]:
    """The processes that `pid` has started and that still run."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def alive(pid: int) -> bool:
    """Whether the process still runs; a dead one that nobody has asked about does not."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for `condition`, for as long as it may take on a busy machine."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
