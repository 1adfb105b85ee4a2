"""What workers play in the tests of executors: in a module, so that a worker process can import it."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import struct
import time
from pathlib import Path

import psutil

from alfworld_native.engine import world
from xrl_alignment.play.rollouts.worker import WorkerReply


def answer(questions):
    return [f"{kind} {about}" for kind, about in questions]


class Asking:
    """Asks twice, with a step between, and returns what it heard."""

    def __call__(self, job):
        first = yield ("first", job)
        yield None
        second = yield ("second", first)
        return job, first, second


class Walking:
    """Makes `steps` steps of `step_s` seconds; writes a line when it begins and when it ends."""

    def __init__(self, log: Path | None = None, steps: int = 3, step_s: float = 0.0) -> None:
        self.log, self.steps, self.step_s = log, steps, step_s

    def __call__(self, job):
        self.note(f"begun {job}")
        for _ in range(self.steps):
            time.sleep(self.step_s)
            yield None
        self.note(f"ended {job}")
        return job, os.getpid()

    def note(self, text: str) -> None:
        if self.log:
            with open(self.log, "a") as file:
                file.write(f"{text}\n")


class Held(Walking):
    """Jobs from 10 on walk until the file `go` exists; the log says which process plays what."""

    def __init__(self, log: Path, go: Path) -> None:
        super().__init__(log)
        self.go = go

    def __call__(self, job):
        if job >= 10:
            self.note(f"holds {os.getpid()}")
        while job >= 10 and not self.go.exists():
            time.sleep(0.01)
            yield None
        return (yield from super().__call__(job))


class Failing(Walking):
    """Fails at job 2 in the way it is told to, always, or only the first time (`once` names a file that remembers)."""

    def __init__(self, how: str, once: Path | None = None) -> None:
        super().__init__()
        self.how, self.once = how, once

    def __call__(self, job):
        if job == 2 and not (self.once and self.once.exists()):
            if self.once:
                self.once.touch()
            getattr(self, self.how)()
        return (yield from super().__call__(job))[0]

    def hang(self) -> None:
        time.sleep(600)

    def die(self) -> None:
        os._exit(3)

    def exhaust(self) -> None:
        bytearray(1 << 60)

    def refuse(self) -> None:
        raise ValueError("no such game")

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def babble(self) -> None:
        """As a library that prints to a file that it has closed."""
        self.say(struct.pack("!i", 20) + b"warning: no display\n")

    def lie(self) -> None:
        """What can be read, but is no reply."""
        self.say_object(("done", 17))

    def repeat(self) -> None:
        """The reply to an earlier call once more."""
        self.say_object((1, WorkerReply("done", "again")))

    def cut(self) -> None:
        """Half a reply, and no more."""
        self.say(struct.pack("!i", 1 << 20) + b"half")

    def say_object(self, message: object) -> None:
        text = pickle.dumps(message)
        self.say(struct.pack("!i", len(text)) + text)

    def say(self, data: bytes) -> None:
        """Write to the pipe, and hang."""
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    os.write(int(name), data)
        time.sleep(600)

    def be_odd(self) -> None:
        raise Odd(1, 2)


class Odd(Exception):
    """Cannot be made again from its arguments, so it cannot be sent to another process."""

    def __init__(self, one, two) -> None:
        super().__init__(f"{one} and {two} are odd")


class Counting:
    """Counts the jobs that this copy of it has played."""

    def __init__(self) -> None:
        self.played = 0

    def __call__(self, job):
        self.played += 1
        yield None
        return job

    def count(self) -> int:
        return self.played


class Unsendable:
    """Returns what cannot leave its process: a function by a name that is not its own, or without one."""

    def __call__(self, job):
        yield None
        return NAMELESS if job else lambda: job


NAMELESS = lambda: None  # noqa: E731  # pickle looks for `<lambda>`


class Loading:
    """Loads games with the native engine and says how often this process has read a file."""

    def __call__(self, game):
        world.load_world(game.path)
        yield None
        return os.getpid(), world._load.cache_info().misses


class Placed(Walking):
    """Says on which node it was played: each has a raylet of its own."""

    def __call__(self, job):
        yield from super().__call__(job)
        return job, os.environ["RAY_RAYLET_PID"]


class Hosted(Walking):
    """Says which process keeps the worker that played it: of a Ray worker, the actor."""

    def __call__(self, job):
        yield from super().__call__(job)
        return job, psutil.Process().parent().ppid()  # a worker is a fork of a fork server, which the host started
