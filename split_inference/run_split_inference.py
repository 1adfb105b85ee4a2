#!/usr/bin/env python3
"""Runs the ALFWorld server and the model's client together, each with its own Python interpreter.

    python run_split_inference.py --server-python venv_py36/bin/python --client-python venv_vllm/bin/python \\
        --env thor --model-path Qwen/Qwen2-VL-7B-Instruct --output-dir runs/qwen --num-samples 100

Options that `--help` does not list go to the client (`alfworld_vllm_client.py --help`); options after `--server-args`
go to the server. The manager prints the output of both, each line marked with who wrote it. It ends with the client's
exit code; 1 if the server ended first, 130 or 143 after Ctrl-C or SIGTERM. In every case it stops both, with all
processes that they started. It gives both a new token (or that of ALFWORLD_SERVER_TOKEN), so that nobody else can use
the server.

It needs only the standard library of Python 3.6 or newer, so it runs in any environment.
"""

import argparse
import contextlib
import ctypes
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

HERE = os.path.dirname(os.path.abspath(__file__))
TOKEN_VARIABLE = "ALFWORLD_SERVER_TOKEN"  # in the environment, where other users of the machine cannot read it
READY = b"ALFWorld server listening on "
_PR_SET_PDEATHSIG = 1  # prctl(2)
_TICK_S = 0.2


class ChildProgram:
    """A child process in its own process group; its output is forwarded line by line, each with a mark."""

    def __init__(self, name: str, command: List[str], environment: Dict[str, str]) -> None:
        self.name = name
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            # A group of its own: signals to it reach all that it starts, and Ctrl-C reaches the manager alone.
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform.startswith("linux") else None,
        )
        assert self.process.stdout is not None  # it is a pipe
        self.output = self.process.stdout
        self.open = True
        self._rest = b""  # the beginning of a line that is not complete yet

    def forward(self) -> List[bytes]:
        """Print the output that has arrived; returns its complete lines. At the end of output, `open` becomes False."""
        piece = os.read(self.output.fileno(), 1 << 16)
        self.open = bool(piece)
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        if not piece and self._rest:
            lines.append(self._rest)
        # One write for all lines, so that lines of two programs do not mix.
        mark = f"{self.name} | ".encode()
        _print(b"".join(mark + line + b"\n" for line in lines))
        return lines

    def signal_group(self, number: int) -> None:
        """Send a signal to the process and to all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def _die_with_parent() -> None:
    """Runs in the child: the kernel then stops it when this manager is killed (Linux)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _print(text: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody reads our output any more; the run goes on
        os.write(1, text)


def say(text: str) -> None:
    """Print a line of the manager itself."""
    _print(f"manager | {text}\n".encode("utf-8", "replace"))


class Interrupted(Exception):
    """A signal asks the manager to stop; the argument is its number."""


class Manager:
    """Starts the server, waits until it listens, starts the client, and stops both."""

    def __init__(self, arguments: argparse.Namespace, client_options: List[str]) -> None:
        self._arguments = arguments
        self._client_options = client_options
        self._selector = selectors.DefaultSelector()
        self._programs = []  # type: List[ChildProgram]
        # A token of its own for each run, unless the user set one.
        token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(32)
        self._environment = dict(os.environ, **{TOKEN_VARIABLE: token})

    def run(self) -> int:
        """Run both programs; returns the exit code."""

        def interrupt(number: int, frame: Any) -> None:
            raise Interrupted(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, interrupt)
        try:
            return self._run()
        except Interrupted as interrupted:
            number = interrupted.args[0]
            say(f"stopping: {signal.Signals(number).name}")
            return 128 + number
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # stopping is under way
            self._stop()

    def _run(self) -> int:
        arguments = self._arguments
        # `-u`: the output comes line by line as it is written, not when a buffer is full.
        command = [arguments.server_python, "-u", os.path.join(HERE, "alfworld_server.py")]
        command += ["--host", arguments.host, "--port", str(arguments.port), "--env", arguments.env]
        command += self._folders()
        server = self._start("server", (command + arguments.server_args))
        # The server's own line says that it listens, and on which port: with --port 0 only the server knows it.
        port, deadline = "", time.monotonic() + arguments.start_timeout
        while not port:
            for program, line in self._forward(_TICK_S):
                if program is server and READY in line:
                    port = line.rpartition(b":")[2].decode()
            if not port and not server.open:
                say(f"the server ended ({_describe_exit(server.process.wait())}) before it listened")
                return 1
            if not port and time.monotonic() >= deadline:
                say(f"the server does not listen after {arguments.start_timeout:g} seconds (--start-timeout)")
                return 1
        command = [arguments.client_python, "-u", os.path.join(HERE, "alfworld_vllm_client.py")]
        command += ["--host", arguments.host, "--port", port]
        command += self._folders()
        client = self._start("client", (command + self._client_options))
        while True:
            self._forward(_TICK_S)
            # In this order: a client whose server dies ends with an error soon after it, maybe before this tick.
            code = client.process.poll()
            if code != 0 and server.process.poll() is not None:
                say(f"the server ended ({_describe_exit(server.process.returncode)}) before the client")
                return 1
            if code is not None:
                return code if code >= 0 else 128 - code  # after a signal as a shell says it: 128 + its number

    def _folders(self) -> List[str]:
        """The options that name folders of games: the server lets clients name no others."""
        folders = {"--data-dir": self._arguments.data_dir, "--traj-dir": self._arguments.traj_dir}
        options = []  # type: List[str]
        for option, folder in folders.items():
            if folder:  # expanded here, once: the server expands no variables in what a client names
                options += [option, os.path.expandvars(os.path.expanduser(folder))]
        return options

    def _start(self, name: str, command: List[str]) -> ChildProgram:
        program = ChildProgram(name, command, self._environment)
        self._programs.append(program)
        self._selector.register(program.output, selectors.EVENT_READ, program)
        say(f"{name} is process {program.process.pid}")
        return program

    def _forward(self, seconds: float) -> List[Tuple[ChildProgram, bytes]]:
        """Wait up to `seconds` for output and print it; returns the complete lines."""
        lines = []
        if not self._selector.get_map():  # a program may close its output and go on
            time.sleep(seconds)
        for key, _ in self._selector.select(seconds):
            program = key.data
            lines += [(program, line) for line in program.forward()]
            if not program.open:
                self._selector.unregister(key.fileobj)
        return lines

    def _stop(self) -> None:
        """Send SIGTERM, to the client first; then SIGKILL to what does not end, and to what it left running."""
        for program in reversed(self._programs):
            if program.process.poll() is None:
                program.process.terminate()
            deadline = time.monotonic() + self._arguments.stop_timeout
            while (program.open or program.process.poll() is None) and time.monotonic() < deadline:
                if program.process.poll() is not None:  # its last output is in the pipe; its children may not add to it
                    program.signal_group(signal.SIGKILL)
                self._forward(_TICK_S)
            program.signal_group(signal.SIGKILL)
            program.process.wait()
            program.output.close()
        self._selector.close()


def _describe_exit(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds of at least 0")
    return value


def parse_arguments(argv: Optional[List[str]] = None) -> Tuple[argparse.Namespace, List[str]]:
    """The command line, and the options that go to the client."""
    parser = argparse.ArgumentParser(
        description="Runs the ALFWorld server and the model's client together, each with its own Python interpreter.",
        epilog="All other options go to the client: see alfworld_vllm_client.py --help.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--server-python", default=sys.executable, help="interpreter with alfworld (3.6 or newer)")
    parser.add_argument("--client-python", default=sys.executable, help="interpreter with vLLM (3.10 or newer)")
    parser.add_argument("--host", default="localhost", help="address of the server")
    parser.add_argument("--port", type=int, default=5555, help="port of the server; 0 takes any free one")
    parser.add_argument("--env", default="thor", help="the server's engine: thor, textworld or household")
    parser.add_argument("--data-dir", help="folder of games, for both")
    parser.add_argument("--traj-dir", help="folder of trajectory files to take games from, for both")
    parser.add_argument(
        "--start-timeout", type=_seconds, default=120.0, help="seconds to wait until the server listens"
    )
    parser.add_argument(
        "--stop-timeout", type=_seconds, default=15.0, help="seconds to wait until each program ends by itself"
    )
    parser.add_argument(
        "--server-args", nargs=argparse.REMAINDER, default=[], help="all options after this one go to the server"
    )
    return parser.parse_known_args(argv)


def main(argv: Optional[List[str]] = None) -> int:
    """Run both programs; returns the exit code."""
    arguments, client_options = parse_arguments(argv)
    for option, program in (("--server-python", arguments.server_python), ("--client-python", arguments.client_python)):
        if not shutil.which(program):  # now, not after the minutes in which the server starts
            sys.stderr.write(f"error: {option} {program}: there is no such program; give a Python interpreter\n")
            return 2
    try:
        return Manager(arguments, client_options).run()
    except OSError as error:  # an interpreter that the system cannot run
        sys.stderr.write(f"error: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
