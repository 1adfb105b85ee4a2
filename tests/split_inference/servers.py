"""A real `alfworld_server.py` as a process, and a client that may misbehave."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading

from xrl_alignment.paths import REPO_ROOT

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
