"""Logs, means and curves of a run, all on rank 0: stderr, `log.txt`, TensorBoard, Weights & Biases."""

from __future__ import annotations

import json
import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from lavis.common.dist_utils import gathered, is_main_process
from lavis.common.errors import ConfigError, MissingExtraError
from lavis.common.files import append_line


def setup_logger() -> None:
    """Lines on stderr: everything from rank 0, warnings from the others."""
    logging.basicConfig(
        level=logging.INFO if is_main_process() else logging.WARNING,
        format="%(asctime)s [%(levelname)s] %(message)s",
        force=True,  # `basicConfig` does nothing if an imported library has given the root logger a handler
    )


class Averages:
    """Running means of named figures; `state` and `restore` carry them over a resume."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}

    def update(self, **values: float) -> None:
        """Take in one value for each name."""
        # Sum and number, not the mean: with both, a resumed run goes on as if it had never stopped.
        for name, value in values.items():
            total = self._sums.setdefault(name, [0.0, 0.0])
            total[0] += value
            total[1] += 1

    def means(self) -> dict[str, float]:
        """The means so far."""
        return {name: total / number for name, (total, number) in self._sums.items()}

    def state(self) -> dict[str, list[float]]:
        """Plain containers for a checkpoint."""
        return {name: list(total) for name, total in self._sums.items()}

    def restore(self, state: Mapping[str, list[float]]) -> None:
        """Continue from `state`."""
        self._sums = {name: list(total) for name, total in state.items()}


class SmoothedValue:
    """LAVIS's series of values: figures of the newest `window_size`, and the mean of all; `fmt` names what is shown."""

    def __init__(self, window_size: int = 20, fmt: str = "{median:.4f} ({global_avg:.4f})") -> None:
        self.deque: deque[float] = deque(maxlen=window_size)
        self.total = 0.0
        self.count = 0
        self.fmt = fmt

    def update(self, value: float, n: int = 1) -> None:
        """Take in a value that stands for `n`."""
        self.deque.append(value)
        self.count += n
        self.total += value * n

    def synchronize_between_processes(self) -> None:
        """Let `global_avg` be that of all processes, each of which must call it; the window stays this process's."""
        # Counts and totals are added, not means averaged: processes may have seen different numbers of samples.
        parts = gathered((self.count, self.total))
        self.count, self.total = sum(part[0] for part in parts), sum(part[1] for part in parts)

    @property
    def median(self) -> float:
        """Median of the window, the lower of two middle ones, as torch has it."""
        return sorted(self.deque)[(len(self.deque) - 1) // 2] if self.deque else math.nan

    @property
    def avg(self) -> float:
        """Mean of the window."""
        return sum(self.deque) / len(self.deque) if self.deque else math.nan

    @property
    def global_avg(self) -> float:
        """Mean of all values."""
        return self.total / self.count if self.count else math.nan

    @property
    def max(self) -> float:
        """Largest value of the window."""
        return max(self.deque, default=math.nan)

    @property
    def value(self) -> float:
        """The newest value."""
        return self.deque[-1] if self.deque else math.nan

    def __str__(self) -> str:
        figures = {name: getattr(self, name) for name in ("median", "avg", "global_avg", "max", "value")}
        return self.fmt.format(**figures)


class MetricLogger:
    """LAVIS's meters by name (also as attributes), and `log_every`, which goes over batches and logs them."""

    def __init__(self, delimiter: str = "\t") -> None:
        self.meters: defaultdict[str, SmoothedValue] = defaultdict(SmoothedValue)
        self.delimiter = delimiter

    def add_meter(self, name: str, meter: SmoothedValue) -> None:
        """Use `meter` for the values called `name`."""
        self.meters[name] = meter

    def update(self, **values: Any) -> None:
        """Take in a number, or a tensor of one number, for each name."""
        for name, value in values.items():
            self.meters[name].update(float(value.detach() if isinstance(value, torch.Tensor) else value))

    def __getattr__(self, name: str) -> SmoothedValue:
        # `copy` and `pickle` ask an object that has no attributes yet: looking for `meters` here would never end.
        if name != "meters" and name in self.meters:
            return self.meters[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __str__(self) -> str:
        return self.delimiter.join(f"{name}: {meter}" for name, meter in self.meters.items())

    def global_avg(self) -> str:
        """The means of all values, as text."""
        return self.delimiter.join(f"{name}: {meter.global_avg:.4f}" for name, meter in self.meters.items())

    def synchronize_between_processes(self) -> None:
        """`SmoothedValue.synchronize_between_processes` of every meter."""
        for meter in self.meters.values():
            meter.synchronize_between_processes()

    def log_every(self, iterable: Collection[Any], print_freq: int, header: str = "") -> Iterator[Any]:
        """The items of `iterable`; after every `print_freq` of them, and after the last, a line with all meters."""
        began = time.monotonic()
        for number, item in enumerate(iterable):
            yield item
            # The generator goes on when the caller asks for the next item: the time includes what it did with this one.
            if number % print_freq == 0 or number == len(iterable) - 1:
                seconds = (time.monotonic() - began) / (number + 1)
                parts = (header, f"[{number}/{len(iterable)}]", str(self), f"time: {seconds:.4f}")
                logging.info("%s", self.delimiter.join(parts))


def import_wandb() -> Any:
    """The module `wandb`; MissingExtraError without it."""
    try:
        import wandb
    except ImportError:
        raise MissingExtraError("run.wandb_project needs the extra 'wandb': pip install -e '.[wandb]'") from None
    return wandb


class RunLog:
    """`log.txt` (one JSON object a line) and TensorBoard curves in `folder`; W&B too if a project is named.

    Nothing is opened or written before the first line or curve: a run that is refused leaves the log of an earlier run
    in the same folder as it is. `WANDB_MODE=offline` in the environment keeps W&B's run on the disk. The first line
    raises MissingExtraError if W&B is not installed, and ConfigError if it cannot start.
    """

    def __init__(self, folder: Path, *, wandb_project: str = "", config: Mapping[str, Any] | None = None) -> None:
        self._folder = folder
        self._project = wandb_project
        self._config = dict(config or {})
        self._writer: Any = None
        self._wandb: Any = None

    def _open(self) -> None:
        """Open what is not open yet, on rank 0."""
        if self._writer or not is_main_process():
            return
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and rank 0 alone writes

        if self._project:
            wandb = import_wandb()
            name = self._folder.name
            try:
                # The W&B run has the folder's name as its id, so that a resumed run continues its curves.
                self._wandb = wandb.init(
                    project=self._project, dir=str(self._folder), config=self._config, resume="allow", id=name
                )
            except wandb.Error as error:
                raise ConfigError(f"run.wandb_project: {error}; WANDB_MODE=offline writes a file instead") from error
        self._writer = SummaryWriter(str(self._folder / "tensorboard"))

    def line(self, **content: Any) -> None:
        """Append one line to `log.txt`."""
        self._open()
        if self._writer:
            append_line(self._folder / "log.txt", json.dumps(content))

    def curves(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        """A point for every number in `values`."""
        self._open()
        # Figures such as those of each task type are dictionaries, which are no points of a curve.
        numbers = {f"{split}/{key}": value for key, value in values.items() if isinstance(value, (int, float))}
        if self._writer:
            for name, value in numbers.items():
                self._writer.add_scalar(name, value, step)
        if self._wandb:
            self._wandb.log(numbers, step=step)

    def close(self) -> None:
        """Write out what is buffered; a later line opens the log again."""
        if self._writer:
            self._writer.close()
        if self._wandb:
            self._wandb.finish()
        self._writer = self._wandb = None
