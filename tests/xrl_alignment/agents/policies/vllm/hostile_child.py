"""A child process that stands where vLLM's child stands, and attacks; not a test itself.

    hostile_child.py … FD --model FOLDER … --attack=NAME     # the command line of `process.VllmProcess`

It says that it is ready (but for the attacks of `BEFORE`), reads a question, and answers it as the attack says.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

LOG = 200 << 20  # bytes of output
WELL = [[[5, []], [6, [[6, -0.5]]]]]  # one prompt's answer: two tokens, one of them with a log-probability


def say(connection: Connection, message: Any) -> None:
    """Send a message."""
    connection.send_bytes(message if isinstance(message, bytes) else json.dumps(message).encode())


def hold_in_another_session(connection: Connection) -> None:
    """Die, while a process that nobody can find holds the pipe, until the other end is closed."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    connection.recv_bytes()
        os._exit(0)
    time.sleep(0.2)
    os._exit(7)


def shut(connection: Connection) -> None:
    """Close the pipe, and live on."""
    connection.close()
    time.sleep(600)


def claim(connection: Connection) -> None:
    """Announce a terabyte."""
    os.write(connection.fileno(), struct.pack("!i", -1) + struct.pack("!Q", 1 << 40) + b"{")
    time.sleep(600)


def drip(connection: Connection) -> None:
    """Announce an answer, and send a byte of it now and then."""
    os.write(connection.fileno(), struct.pack("!i", 1 << 20))
    while True:
        os.write(connection.fileno(), b" ")
        time.sleep(0.1)


def babble(connection: Connection) -> None:
    """Answer questions that nobody has asked, for ever."""
    while True:
        say(connection, {"number": 10**9, "answers": WELL})


def flood_the_log(connection: Connection) -> None:
    """Print much, then end with an error full of control characters."""
    os.truncate(1, LOG)  # a hole: it takes no room on the disk
    os.lseek(1, 0, os.SEEK_END)
    os.write(1, b"\nRuntimeError: \x1b[2J\x1b]0;mine\x07 the end\n")
    os._exit(3)


def misbehave(connection: Connection) -> None:
    """Answer a question twice, answer one that nobody asked, be ready again; then answer well."""
    number = json.loads(connection.recv_bytes())["number"]
    connection.recv_bytes()
    for message in ({"number": 77, "answers": []}, {"ready": True}, *[{"number": number, "answers": WELL}] * 2):
        say(connection, message)
    time.sleep(600)


def answering(**content: Any) -> Callable[[Connection], None]:
    """An attack that answers its question with `content`."""

    def attack(connection: Connection) -> None:
        number = json.loads(connection.recv_bytes())["number"]
        connection.recv_bytes()
        say(connection, {"number": number, **content})
        time.sleep(600)

    return attack


def saying(message: Any) -> Callable[[Connection], None]:
    """An attack that says `message` to the first question."""

    def attack(connection: Connection) -> None:
        connection.recv_bytes()
        connection.recv_bytes()
        say(connection, message)
        time.sleep(600)

    return attack


WRONG_MESSAGES: dict[str, Callable[[Connection], None]] = {
    "no JSON": saying(b"\xff\x00\x80 vLLM"),
    "deep JSON": saying(b"[" * 100_000),
    "a list": saying([]),
    "a number": saying(5),
    "without a number": saying({"answers": WELL}),
    "a number that is none": saying({"number": {}, "answers": WELL}),
    "neither answers nor error": answering(),
    "a terabyte": claim,
}
WRONG_ANSWERS: dict[str, Callable[[Connection], None]] = {
    "an error that is no text": answering(error={"a": 5}),
    "an error of surrogates": answering(error="\ud800\x1b[2J" * 1000),
    "no list": answering(answers=5),
    "for too few prompts": answering(answers=[]),
    "for too many prompts": answering(answers=WELL * 2),
    "tokens without log-probabilities": answering(answers=[[5, 6]]),
    "a token that is text": answering(answers=[[["look", []]]]),
    "a negative token": answering(answers=[[[-1, []]]]),
    "a token of no vocabulary": answering(answers=[[[10**30, []]]]),
    "log-probabilities that are none": answering(answers=[[[5, [["a", {}]]]]]),
    "log-probabilities in threes": answering(answers=[[[5, [[1, 2, 3]]]]]),
}
SILENT: dict[str, Callable[[Connection], None]] = {
    "never reads": lambda connection: time.sleep(600),
    "reads and is silent": lambda connection: [connection.recv_bytes() for _ in range(100)],
    "stops": lambda connection: os.kill(os.getpid(), signal.SIGSTOP),
    "drips": drip,
    "babbles": babble,
}
ENDING: dict[str, Callable[[Connection], None]] = {
    "is killed": lambda connection: os.kill(os.getpid(), signal.SIGKILL),
    "closes the pipe": shut,
    "leaves the pipe to another": hold_in_another_session,
    "floods its log": flood_the_log,
}
BEFORE: dict[str, Callable[[Connection], None]] = {
    "no JSON": lambda connection: (say(connection, b"\xff"), time.sleep(600)),
    "not ready": lambda connection: (say(connection, {"number": 0, "answers": []}), time.sleep(600)),
    "closes the pipe": shut,
    "leaves the pipe to another": hold_in_another_session,
}
AFTER = {**WRONG_MESSAGES, **WRONG_ANSWERS, **SILENT, **ENDING, "misbehaves, and answers": misbehave}


def main() -> None:
    """Attack."""
    connection = Connection(int(next(argument for argument in sys.argv[1:] if argument.isdigit())))
    moment, _, name = sys.argv[-1].removeprefix("--attack=").partition(":")
    if moment == "before":
        BEFORE[name](connection)
    else:
        say(connection, {"ready": True})
        AFTER[name](connection)


if __name__ == "__main__":
    main()
