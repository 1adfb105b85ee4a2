"""Logs, means and curves of a run, all on rank 0: stderr, `log.txt`, TensorBoard, Weights & Biases."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lavis.common.dist_utils import is_main_process
from lavis.common.errors import ConfigError, MissingExtraError
from lavis.common.files import append_line


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


class RunLog:
    """`log.txt` (one JSON object a line) and TensorBoard curves in `folder`; W&B where a project is named."""

    def __init__(self, folder: Path, *, wandb_project: str = "", config: Mapping[str, Any] | None = None) -> None:
        self._path = folder / "log.txt"
        self._writer: Any = None
        self._wandb: Any = None
        if not is_main_process():
            return
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and rank 0 alone writes

        self._writer = SummaryWriter(str(folder / "tensorboard"))
        if wandb_project:
            self._wandb = _open_wandb(wandb_project, folder, config or {})

    def line(self, **content: Any) -> None:
        """Append one line to `log.txt`."""
        if self._writer:
            append_line(self._path, json.dumps(content))

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
    """A W&B run named after the folder, which a resumed run continues; `WANDB_MODE=offline` keeps it on the disk."""
    try:
        import wandb
    except ImportError:
        raise MissingExtraError("run.wandb_project needs the extra 'wandb': pip install -e '.[wandb]'") from None
    try:
        return wandb.init(project=project, dir=str(folder), config=dict(config), resume="allow", id=folder.name)
    except wandb.Error as error:
        raise ConfigError(f"run.wandb_project: {error}; WANDB_MODE=offline writes a file instead") from error
