"""The learner as a group of processes (`run.learner_processes`), one a device, under torch's elastic launcher."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from xrl_alignment.dagger.decoupled.process import INTERRUPTED

USER_ERROR = 2  # the exit code of `lavis.common.program.run_program`
WATCH_S = 0.5


def launch(processes: int, run_dir: Path) -> int:
    """Start the learner of `run_dir` in so many processes of one group on this machine; the group's exit code.

    If SIGKILL or, before any other failed, another signal has ended one of them, this process ends the others and then
    itself by SIGKILL, so that the server, which watches it, sees a killed learner. Raises KeyboardInterrupt if this
    process is told to end.
    """
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=f"learner-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",  # any free port: several runs may share this machine
        max_restarts=0,  # the server starts a new group from the saved state, and counts the deaths
    )
    try:
        elastic_launch(config, sys.executable)("-m", "xrl_alignment.learner", str(run_dir))
    except SignalException as stop:
        raise KeyboardInterrupt from stop
    except ChildFailedError as error:
        # Processes that lose another one fail as well, by a signal of their own or with a code: the first one tells.
        codes = [failure.exitcode for failure in error.failures.values()]
        first = error.get_first_failure()[1].exitcode
        if -signal.SIGKILL in codes or first < 0 or first == INTERRUPTED:
            os.kill(os.getpid(), signal.SIGKILL)
        return USER_ERROR if USER_ERROR in codes else 1
    return 0


def end_with_launcher() -> None:
    """End this process of a group when its launcher has ended, however that ends, also before this call."""
    # Its number is in the run's id: the launcher may have ended already, and then the parent is another process.
    launcher = int(os.environ["TORCHELASTIC_RUN_ID"].rpartition("-")[2])

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(WATCH_S)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="launcher", daemon=True).start()
