"""What all programs share: a command line in LAVIS's style, and how a program ends."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from lavis.common.errors import EmacError

T = TypeVar("T")


def parse_args(
    description: str | None,
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None,
    argv: list[str] | None = None,
    cfg_required: bool = True,
    *,
    settings: str = "docs/settings.md",
    example: str = "configs/dagger/demo_bc.yaml",
) -> argparse.Namespace:
    """Parse a program's command line in LAVIS's style: `--cfg-path FILE [--options key=value …]`.

    `add_arguments` may add further arguments to the parser. `settings` is the page that lists the program's settings;
    `example` is a settings file, which a command line without `--cfg-path` is told of. In the result `options` is
    always a list.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cfg-path", metavar="FILE", help="a yaml file of settings")
    parser.add_argument(
        "--options",
        metavar="KEY=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help=f"settings that override the file; {settings} lists all of them",
    )
    if add_arguments is not None:
        add_arguments(parser)
    arguments = parser.parse_args(argv)
    if cfg_required and not arguments.cfg_path:
        parser.error(f"--cfg-path FILE is required, for example --cfg-path {example}")
    return arguments


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; a real-time signal has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


LIFELINE = "EMAC_LIFELINE"  # the environment variable that names a lifeline's descriptor
_GRACE_S = 15.0  # for a program to close what it opened, once its starter has ended

# No space, quota used up, read-only file system: any write may meet them, and none is a bug.
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_REFUSED_PATH = (errno.EACCES, errno.ENAMETOOLONG)


def run_program(main: Callable[[], int | None]) -> None:
    """Run `main` and leave the process with its exit code.

    An `EmacError` (a user's mistake, a limit of the machine) and a full disk end in one line `error: …` on stderr and
    exit code 2; with `EMAC_TRACEBACK=1` in the environment the traceback is printed as well. Any other exception is a
    bug and shows its traceback. Ctrl-C and SIGTERM raise KeyboardInterrupt in `main`, so that it can close what it
    opened and stop what it started; they end in one line `interrupted` and exit code 130. A program that was started
    with a `lifeline` gets SIGTERM when the process that started it has ended.
    """
    if signal.getsignal(signal.SIGINT) is _end_at_once:  # of `read_first`: the imports are done
        signal.signal(signal.SIGINT, signal.default_int_handler)
    before, hook = signal.signal(signal.SIGTERM, _unwind), threading.excepthook
    threading.excepthook = _tell_of_thread
    # Taken out of the environment: a program that this one starts must not take the descriptor for its own lifeline.
    if descriptor := os.environ.pop(LIFELINE, ""):
        threading.Thread(target=_end_with_starter, args=(int(descriptor),), name="lifeline", daemon=True).start()
    try:
        code = main()
    except Exception as error:
        code = _tell(error)
    except KeyboardInterrupt as stop:
        print(f"interrupted: {stop}" if str(stop) else "interrupted", file=sys.stderr)
        code = 130  # what shells give a program that Ctrl-C has ended: 128 and the number of SIGINT
    finally:
        signal.signal(signal.SIGTERM, before)
        threading.excepthook = hook
    sys.exit(code or 0)


def read_first(read: Callable[[], T]) -> T:
    """What `read` makes of the command line, at the top of a program's module, above the imports that take seconds.

    `--help`, a usage error and a mistake in the settings end the program here, as in `run_program`, and have not waited
    for torch. The module that a program is started as is the only one that calls this (`if __name__ == "__main__":`).
    Ctrl-C in the imports, which have opened nothing that must be closed, ends the process at once, until `run_program`.
    """
    try:
        first = read()
    except (EmacError, OSError) as error:
        sys.exit(_tell(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a job in the background may ignore it
        signal.signal(signal.SIGINT, _end_at_once)
    return first


def _end_at_once(*_: object) -> None:
    # No exception: Transformers turns KeyboardInterrupt into "Could not import module … Are this object's requirements
    # defined correctly?", and an import of C code into others.
    os.write(2, b"interrupted\n")
    os._exit(130)


def _tell(error: BaseException) -> int:
    """Print a user's mistake, or what the file system refuses, as one line; the exit code. Whatever else is raised."""
    # A folder that the user may not enter, or a path that is too long; the error names it.
    refused = isinstance(error, OSError) and error.errno in _REFUSED_PATH and error.filename is not None
    if not (isinstance(error, EmacError) or _is_full_disk(error) or refused):
        raise error
    if os.environ.get("EMAC_TRACEBACK"):
        traceback.print_exc()
    print(f"error: {error}", file=sys.stderr)
    return 2


def _is_full_disk(error: BaseException | None) -> bool:
    if isinstance(error, OSError):
        return error.errno in _FULL_DISK
    # safetensors raises an error of its own, with Rust's words: "I/O error: No space left on device (os error 28)".
    theirs = type(error).__name__ == "SafetensorError"
    return theirs and any(f"(os error {number})" in str(error) for number in _FULL_DISK)


def _tell_of_thread(ended: threading.ExceptHookArgs) -> None:
    """A thread that only writes (TensorBoard's) meets a full disk, or a folder that is gone, as well: one line."""
    error = ended.exc_value
    name = error.filename if isinstance(error, FileNotFoundError) else None
    if _is_full_disk(error) or (name and not os.path.isdir(os.path.dirname(name))):
        print(f"warning: {error}", file=sys.stderr)
    else:
        threading.__excepthook__(ended)


def _unwind(*_: object) -> None:
    # `timeout` and batch queues send SIGTERM twice: the second must not interrupt the closing that the first began.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextmanager
def lifeline() -> Iterator[int]:
    """A pipe that ties programs to this process: give them the descriptor, and its number in the variable `LIFELINE`.

    The system closes this process's end however the process ends, SIGKILL included. A process that leads a group of its
    own (`start_new_session`) ends with all of it.
    """
    theirs, ours = os.pipe()
    try:
        yield theirs
    finally:
        os.close(theirs)
        os.close(ours)


def _end_with_starter(descriptor: int) -> None:
    os.set_inheritable(descriptor, False)
    os.read(descriptor, 1)  # nothing is ever written: this returns when the other end is closed
    os.kill(os.getpid(), signal.SIGTERM)  # `_unwind` raises in the main thread, and the program closes what it opened
    time.sleep(_GRACE_S)
    # Still here: something does not come back, for example a call into C. A leader takes its group with it.
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
