"""Runs `Blip2Emac`'s language model in a vLLM engine that is a child process of this program, asked through a pipe.

That is for one machine. For a large language model, or several machines, start servers (docs/vllm.md) and name them in
`policy.base_urls`.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lavis.common.devices import half_type
from lavis.common.paths import REPO_ROOT
from lavis.models.convert import export_llm
from xrl_alignment.agents.language.plain import one_line
from xrl_alignment.agents.policies.vllm.base import WRONG_FORM, ServedAdapter, WrittenToken, require_tokens
from xrl_alignment.common.errors import InferenceEngineFault

if TYPE_CHECKING:
    from lavis.models.blip2_models.blip2_emac import Blip2Emac

DEFAULT_PYTHON = REPO_ROOT / ".venv-vllm" / "bin" / "python"
CHILD = Path(__file__).with_name("child")
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
GPU_MEMORY = "0.5"  # vLLM's share; the learner and the vision model need some, too
START_S = 900.0  # a large model takes minutes to read from disk
STOP_S = 20.0
MAX_ANSWER = 32 << 20  # bytes of a message, as of a server's answer (`http_client`)
LOG_END = 1 << 16  # bytes of the log in which an error is looked for
MAX_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # of adapters: what vLLM may be told
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; the default takes most of the memory
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    # One process for scheduler and model: two would each wait for the other in a busy loop that uses a whole core.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": str(os.cpu_count() or 1),  # all cores: this program waits for the answer
}
# Make glibc keep freed memory. Otherwise it maps, zeroes and unmaps every large intermediate tensor again: two thirds
# of the time for which the tiny model reads 32 prompts (on a Xeon 310 instead of 115 ms).
CPU_ENVIRONMENT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}


def find_python(named: str = "") -> str:
    """The interpreter that has vLLM: the one `named` (`policy.vllm_python`), this one, or that of `make vllm-env`.

    Raises InferenceEngineFault if there is none; it says how to get one.
    """
    if named:
        if not (found := shutil.which(named)):
            raise InferenceEngineFault(f"policy.vllm_python={named} is not an interpreter that can be started")
        return found
    if importlib.util.find_spec("vllm"):
        return sys.executable
    if os.access(DEFAULT_PYTHON, os.X_OK):
        return str(DEFAULT_PYTHON)
    raise InferenceEngineFault(
        "vLLM is not installed here: run `make vllm-env`, or name an interpreter that has it (policy.vllm_python), or "
        "running servers (policy.base_urls)"
    )


class VllmProcess:
    """A vLLM engine in a child process that serves `model`'s language model until `close`; an `InferenceClient`.

    The language model's weights are written to a temporary folder for it. `url` is the name of this engine where a
    server's address is expected. `arguments` are added to vLLM's command line. vLLM's output goes to a log file. Every
    method raises InferenceEngineFault if the process has ended or refuses.
    """

    url = "vLLM's process"

    def __init__(
        self, model: Blip2Emac, *, python: str = "", arguments: Sequence[str] = (), timeout_s: float = 300.0
    ) -> None:
        python = find_python(python)  # before anything is written
        # For this user only (mode 0700). Everything lies in it: a name in the shared folder could be another's link.
        self._folder = Path(tempfile.mkdtemp(prefix="emac-llm-"))
        self._at_exit = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        llm = self._weights = self._folder / "llm"
        export_llm(model, llm)
        # As in-process policies do: mixed precision on a CPU (`devices.half_type`), whatever type the weights have.
        dtype = half_type(model.device) if model.device.type == "cpu" else model.llm_model.dtype
        named = any(argument.startswith("--dtype") for argument in arguments)
        self._dtype = torch.float32 if named else dtype  # of prompts: that of the engine, or float32, which fits any
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._adapter: ServedAdapter | None = None
        self._asked: dict[int, Future[Any]] = {}
        self._outgoing: SimpleQueue[tuple[bytes, memoryview | bytes] | None] = SimpleQueue()  # None ends `_write`
        self._fault = ""  # why no more questions are taken
        self._ready: Future[None] = Future()
        self.log = self._folder / "vllm.log"
        self._connection, theirs = Pipe()
        command = [python, "-W", "ignore::DeprecationWarning", str(CHILD), str(theirs.fileno()), "--model", str(llm)]
        command += ["--dtype", DTYPES[dtype], "--enable-prompt-embeds"]
        command += ["--max-model-len", str(model.llm_model.config.max_position_embeddings)]
        if torch.cuda.is_available():
            command += ["--gpu-memory-utilization", GPU_MEMORY]
        else:
            command += ["--enforce-eager"]  # compiling needs a C++ compiler and Python's headers
        command += _adapter_arguments(model.llm_model)
        # Variables that the user has set keep their values.
        environment = {**({} if torch.cuda.is_available() else CPU_ENVIRONMENT), **ENVIRONMENT, **os.environ}
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
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._listener.start()
        self._writer.start()

    def wait(self, timeout_s: float = START_S) -> None:
        """Wait until it is ready; if it ends before that, or takes longer, its process is ended and its log stays."""
        try:
            try:
                self._ready.result(timeout_s)
            except FutureTimeoutError:  # not the builtin in Python 3.10
                raise InferenceEngineFault(f"vLLM is not ready after {timeout_s:.0f} s: {self._last_error()}") from None
        except BaseException:  # also Ctrl-C: the process would go on running
            self._end()
            raise

    def complete(self, url: str, prompts: Sequence[Tensor], **options: Any) -> list[list[WrittenToken]]:
        """See `InferenceClient.complete`."""
        # All prompts as one tensor (sum of the T, H), sent as bytes: no text form, no copy for each prompt.
        values = torch.cat([prompt.to(self._dtype) for prompt in prompts]).cpu().contiguous()
        question: dict[str, Any] = {
            "dtype": DTYPES[self._dtype],
            "width": values.shape[1],
            "lengths": [len(prompt) for prompt in prompts],
            "options": options,
        }
        if self._adapter:
            question["adapter"] = _plain(self._adapter)
        answers = self._ask(question, values.view(torch.uint8).numpy().reshape(-1).data)
        try:
            return written_answers(answers, len(prompts))
        except WRONG_FORM as error:
            raise InferenceEngineFault(self._wrong(error)) from error

    def use_adapter(self, url: str, adapter: ServedAdapter) -> None:
        """See `InferenceClient.use_adapter`."""
        self._ask({"load": _plain(adapter)}, b"")
        self._adapter = adapter

    def model_at(self, url: str) -> str:
        """The folder that was made for this process: the model's weights lie in its folder `llm`."""
        return str(self._folder)

    def close(self) -> None:
        """End the process and remove its files."""
        self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, question: dict[str, Any], data: memoryview | bytes) -> Any:
        """The engine's answers to a question and its prompts; whatever their form is."""
        future: Future[Any] = Future()
        with self._lock:
            if self._fault:
                raise InferenceEngineFault(self._fault)
            number = next(self._numbers)
            self._asked[number] = future
        # Another thread writes: a process that does not read would hold this one for ever.
        self._outgoing.put((json.dumps({"number": number, **question}).encode(), data))
        try:
            return future.result(self._timeout_s)
        except FutureTimeoutError:  # not the builtin in Python 3.10
            raise InferenceEngineFault(
                f"vLLM's process gives no answer within {self._timeout_s:.0f} s (policy.timeout_s)"
            ) from None
        finally:
            with self._lock:
                self._asked.pop(number, None)

    def _write(self) -> None:
        """Send every question and its prompts, until the process ends; `_listen` then says why."""
        with suppress(OSError):
            while (question := self._outgoing.get()) is not None:
                for part in question:
                    self._connection.send_bytes(part)

    def _listen(self) -> None:
        """Give every answer to the call that waits for it, until the process ends or says what it should not."""
        try:
            while True:
                self._take(json.loads(self._connection.recv_bytes(MAX_ANSWER)))
        except EOFError:
            fault = self._gone()
        except OSError as error:
            # Without a number it is the connection's own: the message is larger than MAX_ANSWER.
            fault = self._wrong(error) if error.errno is None else self._gone()
        except WRONG_FORM as error:
            fault = self._wrong(error)
        # Whoever waits for an answer, or for the start, gets the reason; and whoever asks from now on.
        with self._lock:
            self._fault = fault
            left: list[Future[Any]] = [*self._asked.values(), *([] if self._ready.done() else [self._ready])]
            self._asked.clear()
        for future in left:
            future.set_exception(InferenceEngineFault(fault))
        end_group(self.process)  # nothing that it says is heard any more

    def _take(self, message: Any) -> None:
        """Take in a message; one of another form raises one of WRONG_FORM."""
        if not isinstance(message, dict):
            raise TypeError(f"a message is a {type(message).__name__}")
        if "ready" in message:
            if not self._ready.done():
                self._ready.set_result(None)
            return
        number, reason = message["number"], message.get("error")
        answers = message["answers"] if reason is None else []
        if not self._ready.done() or not isinstance(number, int):
            raise ValueError("an answer before any question")
        with self._lock:
            future = self._asked.pop(number, None)
        if future is None:  # nobody waits for it any more
            return
        if reason is None:
            future.set_result(answers)
        else:
            future.set_exception(InferenceEngineFault(f"vLLM refuses a request: {one_line(str(reason))}"))

    def _gone(self) -> str:
        """Why the pipe is closed: most likely the process has ended."""
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            return self._wrong(EOFError("it has closed its pipe, and goes on"))
        when = "" if self._ready.done() else " before it was ready"
        return f"vLLM ended with exit code {self.process.returncode}{when}: {self._last_error()}"

    def _wrong(self, error: BaseException) -> str:
        return f"vLLM's process does not answer as it should ({one_line(str(error), 100)}; log: {self.log})"

    def _end(self) -> None:
        end_group(self.process)
        self._outgoing.put(None)
        # What the process has started may hold the pipe, in a session of its own: closing our end would wake nobody.
        with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as pipe:
            pipe.shutdown(socket.SHUT_RDWR)
        self._listener.join()
        self._writer.join()
        self._connection.close()
        shutil.rmtree(self._weights, ignore_errors=True)
        self._at_exit.detach()  # the log stays, unless `close` removes it

    def _last_error(self) -> str:
        """The last line of the log that names an error, and the log's path."""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - LOG_END))
            lines = log.read(LOG_END).decode("utf-8", "replace").splitlines()
        errors = [line for line in lines if "Error" in line or "error:" in line]
        return f"{one_line((errors or lines or ['it printed nothing'])[-1])} (log: {self.log})"


def written_answers(answers: Any, prompts: int) -> list[list[WrittenToken]]:
    """The tokens that the process says it has written after each of `prompts`; another form raises one of WRONG_FORM.

    `answers` is what its JSON holds: for each prompt `[[token, [[other token, its log-probability], …]], …]`.
    """
    if len(answers) != prompts:
        raise ValueError(f"{len(answers)} answers to {prompts} prompts")
    written = [
        [WrittenToken(token, {int(name): float(value) for name, value in tops}) for token, tops in answer]
        for answer in answers
    ]
    for tokens in written:
        require_tokens(tokens)
    return written


def _adapter_arguments(llm: nn.Module) -> list[str]:
    """What the engine must know of the adapters that it will be given: their rank and their places."""
    matrices = {name: weight for name, weight in llm.named_parameters() if ".lora_A." in name}
    if not matrices:
        return []
    rank = max(map(len, matrices.values()))
    # Without their places vLLM 0.32 adapts its embedding table, too, and ends at a batch in which some prompts are read
    # and others continued: it looks up the latter's tokens alone.
    places = {name.split(".lora_A.")[0].rpartition(".")[2] for name in matrices}
    allowed = min(most for most in MAX_RANKS if most >= rank)
    return ["--enable-lora", "--max-lora-rank", str(allowed), "--lora-target-modules", *sorted(places)]


def _plain(adapter: ServedAdapter) -> list[Any]:
    return [adapter.name, adapter.number, str(adapter.folder)]


def end_group(process: subprocess.Popen) -> None:
    """End a process that leads a session of its own, with its children."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:  # first a request, after STOP_S by force
            os.killpg(process.pid, number)
            process.wait(STOP_S)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()
