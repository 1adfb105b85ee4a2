"""What a run with AI2-THOR leaves on its machine, and how it goes again: simulators, displays, pipes, temporary files.

The client of such a run, and all that it starts, has a folder of its own as TMPDIR. Pipes and temporary files lie
there, and the folder's name in the environment of a process says to which run the process belongs. A killed run leaves
both behind; `remove_leftovers` removes them and touches no other run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import tempfile
from pathlib import Path

import psutil

from lavis.common.files import write_atomically

PREFIX = "emac-thor-"
VARIABLE = "TMPDIR"
GRACE_S = 10.0  # between SIGTERM and SIGKILL; AI2-THOR's own `stop` gives Unity one second


def make_scratch(directory: Path) -> Path:
    """Make the folder that a run's client gets as TMPDIR; `state/scratch` in the run directory names it."""
    scratch = Path(tempfile.mkdtemp(prefix=PREFIX))
    write_atomically(_record(directory), lambda file: file.write(str(scratch).encode()))
    return scratch


def remove_leftovers(directory: Path) -> list[str]:
    """Stop every process that a run's client has started, remove its scratch folder; returns what there was, in words.

    Call it while this process's own server holds the run directory, or after the run: whatever is found then belongs to
    a client that has ended or lost its server.
    """
    scratch = _recorded(directory)
    if scratch is None:
        return []
    processes = _processes(scratch)
    _stop(list(processes))
    found = [f"process {process.pid} ({name})" for process, name in processes.items()]
    if _is_ours(scratch):
        pipes = sum(stat.S_ISFIFO(path.lstat().st_mode) for path in scratch.rglob("*"))
        found += [f"{pipes} pipes in {scratch}"] if pipes else []
        shutil.rmtree(scratch, ignore_errors=True)
    _record(directory).unlink(missing_ok=True)
    return found


def _record(directory: Path) -> Path:
    return directory / "state" / "scratch"


def _recorded(directory: Path) -> Path | None:
    """The recorded folder; None without one, and where the file names anything that `make_scratch` cannot have made."""
    try:
        scratch = Path(_record(directory).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return scratch if scratch.is_absolute() and scratch.name.startswith(PREFIX) else None


def _is_ours(scratch: Path) -> bool:
    """Whether it is a folder of this user, and no link to one."""
    try:
        entry = scratch.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(entry.st_mode) and entry.st_uid == os.getuid()


def _processes(scratch: Path) -> dict[psutil.Process, str]:
    """The processes of this user whose environment names the folder, and their names."""
    found = {}
    for process in psutil.process_iter():
        try:
            if process.uids().real == os.getuid() and process.environ().get(VARIABLE) == str(scratch):
                found[process] = process.name()
        except psutil.Error:  # it has ended, or is not ours to look into
            continue
    return found


def _stop(processes: list[psutil.Process]) -> None:
    _send(signal.SIGTERM, processes)
    _, alive = psutil.wait_procs(processes, timeout=GRACE_S)
    _send(signal.SIGKILL, alive)
    psutil.wait_procs(alive, timeout=GRACE_S)


def _send(number: int, processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
