"""The process that `tests.warm` starts programs from: it imports the libraries, then forks once for each request.

Started by its path, so that it has imported nothing of the project. A request is a line of JSON and four descriptors:
the program's stdin, stdout and stderr, and a pipe that gets its exit status. The reply is its process id.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from typing import Any

LIBRARIES = (
    "torch._dynamo",
    "torch.distributed.tensor",
    "torch.utils.data",
    "transformers.modeling_utils",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "transformers.models.vit.modeling_vit",
    "peft",
    "h5py",
    "gymnasium",
    "omegaconf",
)
LARGEST_REQUEST = 1 << 20


def serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork until the other side closes: None then, and in a forked process what it is to run."""
    running: dict[int, tuple[int, int]] = {}  # a process's own descriptor: its id, and the pipe that gets its status
    while True:
        for ready in select.select([connection, *running], [], [])[0]:
            if ready is not connection:
                pid, status = running.pop(ready)
                os.write(status, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
                close(ready, status)
                continue
            message, descriptors, _, _ = socket.recv_fds(connection, LARGEST_REQUEST, 4)
            if not message:
                return None
            *streams, status = descriptors
            if (pid := os.fork()) == 0:
                for target, stream in enumerate(streams):
                    os.dup2(stream, target)
                close(*descriptors, *running, *(pipe for _, pipe in running.values()))
                return json.loads(message)
            close(*streams)
            running[os.pidfd_open(pid)] = pid, status
            connection.send(str(pid).encode())


def close(*descriptors: int) -> None:
    """Close them all."""
    for descriptor in descriptors:
        os.close(descriptor)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests and for the programs
    for library in LIBRARIES:
        importlib.import_module(library)
    gc.freeze()
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        # Here and not in a function above: an exception or an exit ends the interpreter as that of any program.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["cwd"])
        option, *sys.argv = request["arguments"]
        if option == "-m":
            sys.path[0] = request["cwd"]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = [option, *sys.argv]
            sys.path[0] = os.path.dirname(os.path.abspath(option))
            runpy.run_path(option, run_name="__main__")
