"""What the learner's process sees of a run directory, and what it writes there."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from lavis.common.dist_utils import is_main_process, main_process
from lavis.common.files import LockedError, locked
from xrl_alignment.runs.directory import EpisodeRecord, RunDirectoryError, RunPaths, cut_half_line
from xrl_alignment.runs.tail import Tail

PATIENCE_S = 20.0  # for the learner of a server that has just been killed: it ends within 15 s


class LearnerDirectory(RunPaths):
    """A run directory for one learner; the run's server writes all files but these:

        emma_checkpoint_<round>.pth
        state/trainer.pth             weights and optimiser at some episode of the journal
        state/published.safetensors   the newest weights for the policy
        state/learned.jsonl           log lines, curves, and a line with `episodes` after each episode
        state/learner.lock            held by the learner

    A second learner gets a RunDirectoryError after `patience_s`. In a process group the first process locks and writes.
    """

    def __init__(self, path: Path | str, *, patience_s: float = PATIENCE_S) -> None:
        super().__init__(path)
        self._tail = Tail(self.journal)
        self._seen = (0, 0)  # the saved memories that were read last: inode, time
        self._over = 0  # the round that they are for
        self._open: list[TextIO] = []
        if is_main_process():
            self._open.append(learner_lock(self, patience_s))
            cut_half_line(self.learned)
            # Line by line, so that the server hears of each at once.
            self._open.append(open(self.learned, "a", buffering=1, encoding="utf-8"))
        # Not by `getLogger`: a logger without parents, whose lines go to the server alone.
        self.logger = logging.Logger("learner", logging.INFO)
        self.logger.addHandler(_LineHandler(self))

    def close(self) -> None:
        """Close what is open; another learner may begin."""
        for file in self._open:
            file.close()

    def new_records(self) -> Iterator[EpisodeRecord]:
        """The episodes that were committed since the last look."""
        return (self.record(line) for _, line in self._tail.lines())

    def rounds_over(self) -> int:
        """How many rounds have ended; every episode of theirs is in the journal. Reads the file only when it is new."""
        try:
            stat = (self.state / "memories.json").stat()
        except FileNotFoundError:
            return 0
        # The file is replaced as a whole: a new one has another inode, or an old number again, and then another time.
        if (stat.st_ino, stat.st_mtime_ns) != self._seen:
            self._seen = (stat.st_ino, stat.st_mtime_ns)
            self._over = self.memories()[0]
        return self._over

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Tell the server one point of a curve."""
        self.tell(tag=tag, value=value, step=step)

    @main_process
    def tell(self, **facts: str | float) -> None:
        """Write a line for the server."""
        self._open[-1].write(json.dumps(facts) + "\n")


class _LineHandler(logging.Handler):
    """Tells the server what is logged: it writes the run's log."""

    def __init__(self, directory: LearnerDirectory) -> None:
        super().__init__()
        self._directory = directory

    def emit(self, record: logging.LogRecord) -> None:
        self._directory.tell(log=record.getMessage(), level=record.levelname)


def learner_lock(paths: RunPaths, patience_s: float = PATIENCE_S) -> TextIO:
    """The open file that keeps learners out of a run directory until it is closed.

    Waits for the end of a learner that writes there; RunDirectoryError if it still does after `patience_s`.
    """
    retrying = Retrying(
        retry=retry_if_exception_type(LockedError),
        stop=stop_after_delay(patience_s),
        wait=wait_fixed(0.2),
        reraise=True,
    )
    try:
        return retrying(locked, paths.state / "learner.lock", paths.path)
    except LockedError as error:
        raise RunDirectoryError(f"a second learner: {error}") from error
