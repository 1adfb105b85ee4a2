"""The learner's process as its server sees it: started, watched, started again when something kills it, stopped."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from lavis.common.errors import EmacError
from lavis.common.paths import REPO_ROOT
from lavis.common.program import LIFELINE, lifeline, signal_name

MAX_DEATHS = 3  # in a row; an episode that the learner learns between two deaths begins a new row
STOP_S = 15.0
RAISED = re.compile(r"\[rank\d+\]: ([\w.]+(?:Error|Exception)\b.*)")  # the end of a traceback, in a process group
INTERRUPTED = 130  # the exit code of a program that SIGTERM or Ctrl-C ended


class LearnerFault(EmacError, RuntimeError):
    """The learner has ended and cannot continue; the text holds its error."""


class LearnerProcess:
    """`python -m xrl_alignment.learner RUN_DIR`, with its output in `learner.log` of the run directory.

    When the server's process ends, the learner ends too, also if the server was killed
    (`lavis.common.program.lifeline`).
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.log = run_dir / "learner.log"
        self.deaths = 0  # how often a signal has ended the learner in this server's life
        self.finished = False  # whether the learner has learned all episodes of the run, and has ended
        self._deaths_here = 0
        self._died_at = -1
        self._process: subprocess.Popen | None = None
        self._open = ExitStack()
        self._line = self._open.enter_context(lifeline())
        self._log_begins = 0  # at this byte of the log begins what the process that runs now has printed

    def start(self) -> None:
        """Start it, unless it runs."""
        if self._process is not None:
            return
        path = [str(REPO_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]  # the server may run in any folder
        with open(self.log, "ab") as output:
            self._log_begins = output.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "xrl_alignment.learner", str(self.run_dir)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the server, which then stops it
                env={**os.environ, LIFELINE: str(self._line), "PYTHONPATH": os.pathsep.join(path)},
                pass_fds=[self._line],
            )

    def check(self, learned: int) -> str:
        """Look whether the learner still runs. If a signal has ended it, start it again and return a line for the log.

        Otherwise the text is empty. `learned` is the number of episodes that the learner has learned so far. Raises
        LearnerFault if the learner ended with an error, or died `MAX_DEATHS` times at the same episode.
        """
        code = self._process.poll() if self._process and not self.finished else None
        if code is None:
            return ""
        if code == 0:
            self.finished = True
            return ""
        if code > 0 and code != INTERRUPTED:
            printed = self.log.read_bytes()[self._log_begins :].decode(errors="replace")
            raise LearnerFault(f"the learner ended with code {code}: {last_words(printed)} (its log: {self.log})")
        # What kills it at one episode again and again will do so for ever; other deaths are the machine's accidents.
        self.deaths += 1
        self._deaths_here = self._deaths_here + 1 if learned == self._died_at else 1
        self._died_at = learned
        how = "was interrupted" if code > 0 else f"was killed by {signal_name(-code)}"
        if self._deaths_here >= MAX_DEATHS:
            raise LearnerFault(
                f"the learner {how} {MAX_DEATHS} times in a row after {learned} episodes: the machine may lack memory "
                f"(lower run.batch_size); its log: {self.log}"
            )
        self._process = None
        self.start()
        return f"the learner {how} after {learned} episodes; it is started again, from its last saved state"

    def stop(self) -> None:
        """End it; a later resume continues from its last saved state."""
        if self._process and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._open.close()


def last_words(printed: str) -> str:
    """Why the learner ended: its error line, else what the first process of a group raised, else its last line.

    The other processes of a group raise errors as well, when they lose the first, and then their launcher prints more.
    """
    lines = printed.splitlines()
    if errors := [line for line in lines if line.startswith("error: ")]:
        return errors[-1].removeprefix("error: ")[:500]
    raised = [found[1] for line in lines if (found := RAISED.match(line))]
    return (raised or lines[-1:] or ["it printed nothing"])[0][:500]
