"""A vLLM engine as a child process: reads prompts from a pipe, writes token ids back.

    python …/policies/vllm/child FD --model FOLDER --enable-prompt-embeds …   # arguments as of `vllm serve`

It runs under the interpreter that has vLLM and cannot import this project; the parent's end of the pipe is in
`policies/vllm/process.py`. Both use `multiprocessing.connection`: a message is a JSON text, and after a
question's text come its prompts as bytes (no bytes if it asks for LoRA adapters to be loaded). New prompts are read
while others are being continued (continuous batching). The process ends when the parent's end is closed.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.llm_engine import LLMEngine


def read(connection: Connection, questions: queue.SimpleQueue[tuple[dict[str, Any], bytes] | None]) -> None:
    """Put every question and its prompts into the queue, and None at the end."""
    try:
        while True:
            questions.put((json.loads(connection.recv_bytes()), connection.recv_bytes()))
    except (EOFError, OSError):
        questions.put(None)


class ChildEngine:
    """The engine and its requests in progress, by vLLM's names for them: a question's number and the place in it."""

    def __init__(self, connection: Connection, engine: LLMEngine) -> None:
        self.connection = connection
        self.engine = engine
        self.waiting: dict[str, tuple[int, int]] = {}
        self.answers: dict[int, list[Any]] = {}

    def add(self, question: dict[str, Any], data: bytes) -> None:
        """Load adapters, or start a question's requests; if vLLM refuses, answer with its reason."""
        number = question["number"]
        try:
            if "load" in question:
                self.engine.add_lora(LoRARequest(*question["load"]))
                self.tell({"number": number, "answers": []})
            else:
                self.start(number, question, data)
        except Exception as error:  # of any kind: the parent waits for an answer
            self.tell({"number": number, "error": f"{type(error).__name__}: {error}"})

    def start(self, number: int, question: dict[str, Any], data: bytes) -> None:
        """Start the requests of a question: all of them, or none."""
        options = {"temperature": 0, "output_kind": RequestOutputKind.FINAL_ONLY, "detokenize": False}
        options |= question["options"]
        if "logprob_token_ids" in options:
            options["logprobs"] = len(options["logprob_token_ids"])  # vLLM's HTTP server does this by itself
        adapter = LoRARequest(*question["adapter"]) if "adapter" in question else None
        names: list[str] = []
        try:
            parameters = SamplingParams(**options)
            # All prompts in one block, (sum of the T, H); `lengths` says how many rows each has. torch wants writable
            # memory.
            values = torch.frombuffer(bytearray(data), dtype=getattr(torch, question["dtype"]))
            parts = values.view(-1, question["width"]).split(question["lengths"])
            prompts = [{"prompt_embeds": prompt} for prompt in parts]
            for place, prompt in enumerate(self.engine.renderer.render_cmpl(prompts)):
                names.append(f"{number}-{place}")
                self.engine.add_request(names[-1], prompt, parameters, lora_request=adapter)
        except Exception:
            # Those that were added already would be computed for nobody.
            self.engine.abort_request(names)
            raise
        self.answers[number] = [None] * len(names)
        self.waiting |= {name: (number, place) for place, name in enumerate(names)}

    def step(self) -> None:
        """Compute one token of every request; answer the questions that are complete."""
        for output in self.engine.step():
            if output.finished:
                number, place = self.waiting.pop(output.request_id)
                # For each written token its id, and the log-probabilities that were asked for as (id, value).
                written = output.outputs[0]
                tops = written.logprobs or [{}] * len(written.token_ids)
                self.answers[number][place] = [
                    [token, [(other, top.logprob) for other, top in row.items()]]
                    for token, row in zip(written.token_ids, tops, strict=True)
                ]
                if all(answer is not None for answer in self.answers[number]):
                    self.tell({"number": number, "answers": self.answers.pop(number)})

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message."""
        self.connection.send_bytes(json.dumps(message).encode())


def main() -> None:
    """Serve until the parent's end is closed."""
    # The descriptor of the pipe's end that the parent has passed on (`pass_fds`).
    connection = Connection(int(sys.argv[1]))
    arguments = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(sys.argv[2:])
    engine = ChildEngine(connection, LLMEngine.from_engine_args(EngineArgs.from_cli_args(arguments)))
    questions: queue.SimpleQueue[tuple[dict[str, Any], bytes] | None] = queue.SimpleQueue()
    threading.Thread(target=read, args=(connection, questions), daemon=True).start()
    engine.tell({"ready": True})
    # With requests in progress the queue is only looked at; without any the process sleeps until a question comes.
    while True:
        while not (engine.waiting and questions.empty()):
            question = questions.get()
            if question is None:
                return
            engine.add(*question)
        engine.step()


if __name__ == "__main__":
    main()
