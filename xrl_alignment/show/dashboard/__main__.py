"""Shows a run directory in a browser: its games, curves and memories, and every finished episode step by step.

    python -m xrl_alignment.dashboard RUN_DIR [--port 7861]

Nothing is changed, so the run may still be going. Beside a run, the server itself shows the same page, with its
sessions live (`http://127.0.0.1:7860/`).
"""

from __future__ import annotations

import argparse
import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path

from lavis.common.errors import MissingFileError
from lavis.common.program import run_program
from xrl_alignment.show.dashboard.pages import Dashboard
from xrl_alignment.show.report.run_data import find_runs
from xrl_alignment.wire.http_server import PageServer


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, serve until Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m xrl_alignment.dashboard", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("run_dir", type=Path, help="a run directory")
    parser.add_argument("--port", type=int, default=7861, help="port on this machine; 0: any free one (default: 7861)")
    arguments = parser.parse_args(argv)
    run_dir = one_run(arguments.run_dir)
    with contextlib.ExitStack() as cleanup:
        server = PageServer("127.0.0.1", arguments.port, port_setting="--port")
        cleanup.callback(server.stop)
        server.mount(Dashboard(run_dir))
        server.start()
        print(f"Dashboard of {run_dir}: http://127.0.0.1:{server.port}/ (Ctrl-C ends it)", flush=True)
        threading.Event().wait()


def one_run(path: Path) -> Path:
    """The run directory at or below `path`; MissingFileError if there is none, or more than one."""
    runs = find_runs(path) if path.is_dir() else {}
    if not runs:
        raise MissingFileError(
            f"no run in {path}: a run directory holds a folder `state` (for the folder of EMAC+'s loop: python -m "
            "xrl_alignment.report)"
        )
    if len(runs) > 1:
        found = ", ".join(str(run) for run in runs.values())
        raise MissingFileError(f"{path} holds {len(runs)} runs; name one of them: {found}")
    return next(iter(runs.values()))


if __name__ == "__main__":
    run_program(main)
