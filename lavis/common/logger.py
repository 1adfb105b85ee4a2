"""Progress, curves and logs of a run, all on rank 0: a bar or plain lines, TensorBoard, `log.txt`."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lavis.common.dist_utils import is_main_process

T = TypeVar("T")
LINE_EVERY_S = 10.0


def setup_logger() -> None:
    """Lines on stderr: everything from rank 0, warnings from the others."""
    logging.basicConfig(
        level=logging.INFO if is_main_process() else logging.WARNING,
        format="%(asctime)s [%(levelname)s] %(message)s",
        force=True,
    )


class Averages:
    """Running means of named figures, each with its own weight; `state` and `restore` carry them over a resume."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}

    def update(self, weight: float = 1.0, **values: float) -> None:
        """Take in one value for each name."""
        for name, value in values.items():
            total = self._sums.setdefault(name, [0.0, 0.0])
            total[0] += value * weight
            total[1] += weight

    def means(self) -> dict[str, float]:
        """The means so far."""
        return {name: total / weight for name, (total, weight) in self._sums.items() if weight}

    def state(self) -> dict[str, list[float]]:
        """Plain containers for a checkpoint."""
        return {name: list(total) for name, total in self._sums.items()}

    def restore(self, state: Mapping[str, list[float]]) -> None:
        """Continue from `state`."""
        self._sums = {name: list(total) for name, total in state.items()}


class ProgressLine:
    """A bar with remaining time on a terminal; elsewhere a plain line every ten seconds and at the end."""

    def __init__(self, what: str, total: int, done: int = 0, stream: TextIO | None = None) -> None:
        self.text = what
        self._total, self._done, self._first = total, done, done
        self._stream = stream or sys.stdout
        self._began = self._shown = time.monotonic()
        self._bar: Progress | None = None
        if self._stream.isatty() and is_main_process():
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self._bar = Progress(
                *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(file=self._stream)
            )
            self._task = self._bar.add_task(what, total=total, completed=done)

    def __enter__(self) -> ProgressLine:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar:
            self._bar.stop()

    def advance(self, text: str | None = None) -> None:
        """One more is done; `text` says how it goes."""
        self._done += 1
        self.text = text or self.text
        if self._bar:
            self._bar.update(self._task, completed=self._done, description=self.text)
            return
        now = time.monotonic()
        if is_main_process() and (now - self._shown >= LINE_EVERY_S or self._done == self._total):
            self._shown = now
            left = (now - self._began) / (self._done - self._first) * (self._total - self._done)
            print(f"{self.text}: {self._done} of {self._total}, about {left:.0f} s left", file=self._stream, flush=True)


def progress(items: Iterable[T], what: str, total: int) -> Iterator[T]:
    """Iterate and show how far it is."""
    with ProgressLine(what, total) as line:
        for item in items:
            yield item
            line.advance()


class RunLog:
    """`log.txt` (one JSON object a line) and TensorBoard curves in `folder`; W&B where a project is named."""

    def __init__(self, folder: Path, *, wandb_project: str = "", config: Mapping[str, Any] | None = None) -> None:
        self._path = folder / "log.txt"
        self._writer = self._wandb = None
        if not is_main_process():
            return
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and rank 0 alone writes

        self._writer = SummaryWriter(str(folder / "tensorboard"))
        if wandb_project:
            self._wandb = _open_wandb(wandb_project, folder, config or {})

    def line(self, **content: Any) -> None:
        """Append one line to `log.txt`."""
        if self._writer:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(content) + "\n")

    def curves(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        """A point for every number in `values`."""
        numbers = {f"{split}/{key}": value for key, value in values.items() if isinstance(value, (int, float))}
        if self._writer:
            for name, value in numbers.items():
                self._writer.add_scalar(name, value, step)
        if self._wandb:
            self._wandb.log(numbers, step=step)

    def close(self) -> None:
        """Write out what is buffered."""
        if self._writer:
            self._writer.close()
        if self._wandb:
            self._wandb.finish()


def _open_wandb(project: str, folder: Path, config: Mapping[str, Any]) -> Any:
    """A W&B run named after the folder, which a resumed run goes on with; `WANDB_MODE=offline` keeps it on the disk."""
    try:
        import wandb
    except ImportError:
        raise ImportError("run.wandb_project needs the extra 'wandb': pip install -e '.[wandb]'") from None
    try:
        return wandb.init(project=project, dir=str(folder), config=dict(config), resume="allow", id=folder.name)
    except wandb.Error as error:
        raise ValueError(f"run.wandb_project: {error}; WANDB_MODE=offline writes a file instead") from error
