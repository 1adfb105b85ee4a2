"""A vLLM engine of our own: `Blip2Emac`'s language model in a child process on this machine, fed through a pipe.

For one machine. Where the language model is large or several servers share the work, start servers yourself
(docs/engines.md) and name them in `policy.base_urls`.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lavis.models.blip2_models import adapters
from lavis.models.convert import export_llm
from xrl_alignment.common.errors import EngineFault
from xrl_alignment.common.paths import REPO_ROOT
from xrl_alignment.policies.vllm.policy import Weighed

DEFAULT_PYTHON = REPO_ROOT / ".venv-vllm" / "bin" / "python"
CHILD = Path(__file__).with_name("child")
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
GPU_SHARE = "0.5"  # of the memory; the learner and the vision model need some too
START_S = 900.0  # a large model is read from disk first
STOP_S = 20.0
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; the default takes most of the memory
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    # Scheduler and model in that one process: in two, each waits for the other in a busy loop, on a core of its own.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": str(os.cpu_count() or 1),  # all cores: this program waits while it answers
}
# glibc keeps freed memory. Otherwise every large intermediate tensor is mapped, zeroed and unmapped again: two thirds
# of the time that the tiny model needs to read 32 prompts (a Xeon: 310 instead of 115 ms).
CPU_ENVIRONMENT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}


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


class VllmProcess:
    """`model`'s language model, whose weights are written to a temporary folder, in a vLLM process until `close`.

    Answers what a `VllmClient` does; `url` stands for it where a server's address is asked for. `arguments` are added
    to vLLM's command line. What it prints goes to a log. Every method raises EngineFault where that process has ended
    or refuses.
    """

    url = "vLLM's process"

    def __init__(
        self, model: torch.nn.Module, *, python: str = "", arguments: Sequence[str] = (), timeout_s: float = 300.0
    ) -> None:
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
        self._dtype = torch.float32 if named else dtype  # of prompts: what it computes in, or whatever `arguments` say
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._asked: dict[int, Future[list[list[list[Any]]]]] = {}
        self._ready: Future[None] = Future()
        self.log = Path(tempfile.gettempdir()) / f"{Path(self._folder.name).name}.log"
        self._connection, theirs = Pipe()
        limit = model.llm_model.config.max_position_embeddings
        command = [python, "-W", "ignore::DeprecationWarning", str(CHILD), str(theirs.fileno()), "--model", str(llm)]
        command += ["--dtype", DTYPES[dtype], "--max-model-len", str(limit), "--enable-prompt-embeds"]
        environment = {**ENVIRONMENT, **os.environ}
        if torch.cuda.is_available():
            command += ["--gpu-memory-utilization", GPU_SHARE]
        else:
            command.append("--enforce-eager")  # compiling needs a C++ compiler and Python's headers
            environment = CPU_ENVIRONMENT | environment
        with theirs, self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=llm,  # not here: this project's folders are no packages of that interpreter
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # it may have children of its own; the group is ended as one
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def wait(self, timeout_s: float = START_S) -> None:
        """Until it is ready; where it ends before, or is not ready in time, it is closed and its log is kept."""
        try:
            try:
                self._ready.result(timeout_s)
            except TimeoutError:
                raise EngineFault(f"vLLM is not ready after {timeout_s:.0f} s: {self._last_words()}") from None
        except BaseException:  # Ctrl-C too: a process would be left
            self._end()
            raise

    def complete(self, url: str, prompts: Sequence[Tensor], **options: Any) -> list[list[Weighed]]:
        """What it writes after each prompt (T, H); see `VllmClient.complete`."""
        values = torch.cat([prompt.to(self._dtype) for prompt in prompts]).cpu().contiguous()
        future: Future[list[list[list[Any]]]] = Future()
        with self._lock:
            number = next(self._numbers)
            question = {
                "number": number,
                "dtype": DTYPES[self._dtype],
                "width": values.shape[1],
                "lengths": [len(prompt) for prompt in prompts],
                "options": options,
            }
            self._asked[number] = future
            try:
                self._connection.send_bytes(json.dumps(question).encode())
                self._connection.send_bytes(values.view(torch.uint8).numpy().reshape(-1).data)
            except OSError:
                self._asked.pop(number)
                raise self._gone() from None
        try:
            answers = future.result(self._timeout_s)
        except TimeoutError:
            raise EngineFault(f"vLLM's process gives no answer in {self._timeout_s:.0f} s (policy.timeout_s)") from None
        return [[Weighed(token, dict(map(tuple, tops))) for token, tops in answer] for answer in answers]

    def model_at(self, url: str) -> str:
        """What is served: the folder of the model's own weights."""
        return self._folder.name

    def close(self) -> None:
        """End the process, remove its files."""
        self._end()
        self.log.unlink(missing_ok=True)

    def _listen(self) -> None:
        """Hand every answer to who waits for it, until the process ends."""
        try:
            while True:
                message = json.loads(self._connection.recv_bytes())
                if "ready" in message:
                    self._ready.set_result(None)
                    continue
                with self._lock:
                    future = self._asked.pop(message["number"])
                if "error" in message:
                    future.set_exception(EngineFault(f"vLLM refuses a request: {message['error'][:300]}"))
                else:
                    future.set_result(message["answers"])
        except (EOFError, OSError):
            gone = self._gone()
            with self._lock:
                left = [*self._asked.values(), *([] if self._ready.done() else [self._ready])]
                self._asked.clear()
            for future in left:
                future.set_exception(gone)

    def _gone(self) -> EngineFault:
        code = self.process.wait()
        when = "" if self._ready.done() else " before it was ready"
        return EngineFault(f"vLLM ended with exit code {code}{when}: {self._last_words()}")

    def _end(self) -> None:
        end_group(self.process)
        self._listener.join()
        self._connection.close()
        self._folder.cleanup()

    def _last_words(self) -> str:
        """The last line that names an error, and where the rest stands."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in lines if "Error" in line or "error:" in line]
        return f"{(errors or lines or ['it printed nothing'])[-1].strip()[:300]} (all of it: {self.log})"


def end_group(process: subprocess.Popen) -> None:
    """End a process that leads a session of its own, and its children."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(STOP_S)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()
