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

from lavis.common.files import write_text

PREFIX = "emac-thor-"
VARIABLE = "TMPDIR"
GRACE_S = 10.0  # between SIGTERM and SIGKILL; AI2-THOR's own `stop` gives Unity one second


def make_scratch(directory: Path) -> Path:
    """Make the folder that a run's client gets as TMPDIR; `state/scratch` in the run directory names it."""
    scratch = Path(tempfile.mkdtemp(prefix=PREFIX))
    write_text(_record(directory), str(scratch))
    return scratch


def remove_leftovers(directory: Path) -> list[str]:
    """Stop every process that a run's client has started, remove its scratch folder; returns what there was, in words.

    Call it while this process's own server holds the run directory, or after the run: whatever is found then belongs to
    a client that has ended or lost its server.
    """
    # Nothing is touched without a record, or if the record names anything that `make_scratch` cannot have made.
    try:
        scratch = Path(_record(directory).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    if not scratch.is_absolute() or not scratch.name.startswith(PREFIX):
        return []

    # The processes of this user whose environment names the folder.
    processes: dict[psutil.Process, str] = {}
    for process in psutil.process_iter():
        try:
            if process.uids().real == os.getuid() and process.environ().get(VARIABLE) == str(scratch):
                processes[process] = process.name()
        except psutil.Error:  # it has ended, or is not ours to look into
            continue
    # First they may end by themselves: a simulator that is killed leaves its display behind.
    alive = list(processes)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        _, alive = psutil.wait_procs(alive, timeout=GRACE_S)
    found = [f"process {process.pid} ({name})" for process, name in processes.items()]

    # The folder itself, if it is one of this user and no link to one: `lstat` follows no link.
    try:
        entry: os.stat_result | None = scratch.lstat()
    except OSError:
        entry = None
    if entry and stat.S_ISDIR(entry.st_mode) and entry.st_uid == os.getuid():
        pipes = sum(stat.S_ISFIFO(path.lstat().st_mode) for path in scratch.rglob("*"))
        found += [f"{pipes} pipes in {scratch}"] if pipes else []
        shutil.rmtree(scratch, ignore_errors=True)
    _record(directory).unlink(missing_ok=True)
    return found


def _record(directory: Path) -> Path:
    return directory / "state" / "scratch"
