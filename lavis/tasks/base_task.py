"""LAVIS's base class of tasks: builds model and datasets from a config, says what a training step and a result are.

A task of a third party derives from `BaseTask` and overrides what differs. The project's own tasks, which train a model
that acts on stored transitions, derive from `student_task.StudentTask`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lavis.common.config import Config
from lavis.common.dist_utils import barrier, gathered, is_main_process
from lavis.common.errors import ConfigError
from lavis.common.files import write_json
from lavis.common.logger import MetricLogger, SmoothedValue
from lavis.common.progress import progress
from lavis.common.registry import registry
from lavis.common.run_settings import RunSettings, read_settings
from lavis.datasets import builders  # noqa: F401  (registers the builders)
from lavis.datasets.data_utils import to_device
from lavis.models import BaseModel, load_preprocess

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)


class BaseTask:
    """A task with LAVIS's methods and arguments.

    Runners call, in this order: `setup_task`, `build_datasets`, `build_model`, `prepare`; `before_training`;
    `train_step` for each batch, or the task's own `train_epoch` (`train_iters`) for each epoch; then for each split
    `before_evaluation`, `evaluation`, which calls `valid_step` for each batch, and `after_evaluation`.
    """

    needs_data = True  # whether evaluation goes over a dataset
    own_keys = True  # whether `run:` may hold keys that runners do not know, for the task to read (`cfg.run_cfg`)
    inst_id_key = "instance_id"

    def __init__(self, **kwargs: Any) -> None:
        """Take no arguments; LAVIS's tasks pass none."""

    @classmethod
    def setup_task(cls, cfg: Config) -> Self:
        """The task as `cfg` describes it."""
        return cls()

    @classmethod
    def settings_of(cls, cfg: Config) -> RunSettings:
        """What runners read of `run:`."""
        return read_settings(cfg.run_cfg, own_keys=cls.own_keys)

    # ---- building ---------------------------------------------------------------------------------------------------

    def build_model(self, cfg: Config) -> BaseModel:
        """The model of the `model:` section; ConfigError if weights that must come from a file are random."""
        model = registry.get_model_class(cfg.model_cfg.arch).from_config(cfg.model_cfg)
        model.require_sources()
        return model

    def build_datasets(self, cfg: Config) -> dict[str, dict[str, Any]]:
        """The splits of each dataset; if a section names no image processor, the model's own (`preprocess:`) serves.

        An evaluation opens its own splits only. ConfigError if a split that the run needs is in no section.
        """
        if not cfg.datasets_cfg:
            raise ConfigError("the config names no dataset: put a section such as alfworld_cap under datasets:")
        settings = self.settings_of(cfg)
        vis_processors, _ = load_preprocess(cfg.config.get("preprocess") or {})
        made: dict[str, Any] = {}
        for name, section in cfg.datasets_cfg.items():
            made[str(name)] = registry.get_builder_class(str(name))(section)
            made[str(name)].configure(
                splits=settings.splits if settings.evaluate else None,
                vis_processors=vis_processors,
                skip_bad=settings.skip_bad_samples,
                seed=settings.seed,
            )
        # Before any file is opened: a large one is indexed first.
        settings.require_splits([split for builder in made.values() for split in builder.annotations()])
        return {name: builder.build_datasets() for name, builder in made.items()}

    def prepare(self, model: Any, datasets: Mapping[str, Any]) -> None:
        """Refuse, with a ConfigError, a model that cannot learn from these datasets (by split); nothing by default."""

    # ---- training ---------------------------------------------------------------------------------------------------

    def before_training(self, model: Any, dataset: Any, **kwargs: Any) -> None:
        """Called once before training."""
        model.before_training(dataset=dataset, task_type=type(self))

    def train_step(self, model: Any, samples: dict[str, Any]) -> Any:
        """The loss of a batch, and by name all the model's losses, for the log; `model(samples)` is its `forward`.

        A task may return the loss alone. ConfigError if the model returns none.
        """
        output = model(samples)
        if not isinstance(output, Mapping) or "loss" not in output:
            found = f"the keys {', '.join(map(str, output))}" if isinstance(output, Mapping) else type(output).__name__
            # Runners pass a stand-in (`Trained`), whose `module` is the model.
            kind = type(getattr(model, "module", model)).__name__
            raise ConfigError(f"forward of {kind} must return a dictionary with 'loss'; it returned {found}")
        return output["loss"], {name: value for name, value in output.items() if "loss" in name}

    def weight(self, model: Any, samples: Mapping[str, Any]) -> float:
        """What a process's loss weighs in the mean over processes: the same for all, as in LAVIS."""
        return 1.0

    def train_epoch(
        self,
        epoch: int,
        model: Any,
        data_loader: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: Any,
        scaler: Any = None,
        cuda_enabled: bool = False,
        log_freq: int = 50,
        accum_grad_iters: int = 1,
    ) -> dict[str, str]:
        """An epoch in a loop of the task's own.

        Runners have a loop of their own, which resumes at any batch; they call this method only if a task overrides it,
        `train_iters` or `_train_inner_loop`. It is what such a task finds with `super()`.
        """
        return self._train_inner_loop(
            epoch=epoch,
            iters_per_epoch=len(data_loader),
            model=model,
            data_loader=data_loader,
            optimizer=optimizer,
            scaler=scaler,
            lr_scheduler=lr_scheduler,
            log_freq=log_freq,
            cuda_enabled=cuda_enabled,
            accum_grad_iters=accum_grad_iters,
        )

    def train_iters(
        self, epoch: int, start_iters: int, iters_per_inner_epoch: int, model: Any, data_loader: Any, **loop: Any
    ) -> dict[str, str]:
        """The same for `runner_iter`: the next `iters_per_inner_epoch` batches; `loop` as for `train_epoch`."""
        return self._train_inner_loop(
            epoch=epoch,
            start_iters=start_iters,
            iters_per_epoch=iters_per_inner_epoch,
            model=model,
            data_loader=data_loader,
            **loop,
        )

    def _train_inner_loop(
        self,
        epoch: int,
        iters_per_epoch: int,
        model: Any,
        data_loader: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: Any,
        scaler: Any = None,
        start_iters: int | None = None,
        log_freq: int = 50,
        cuda_enabled: bool = False,
        accum_grad_iters: int = 1,
    ) -> dict[str, str]:
        """Forward, backward and, after every `accum_grad_iters` batches, a step; means of the losses as texts."""
        batches = iter(data_loader)
        meters = MetricLogger(delimiter="  ")
        meters.add_meter("lr", SmoothedValue(window_size=1, fmt="{value:.6f}"))
        for number in meters.log_every(range(iters_per_epoch), log_freq, f"Train: epoch [{epoch}]"):
            samples = {**next(batches), "epoch": epoch, "num_iters_per_epoch": iters_per_epoch, "iters": number}
            lr_scheduler.step(cur_epoch=epoch, cur_step=number)
            loss, parts = losses_of(self.train_step(model=model, samples=samples))
            # Gradients of an update's batches add up, and the update is to have their mean. The last update of an epoch
            # may have fewer batches.
            first = number - number % accum_grad_iters  # of the update
            scaled = loss / min(accum_grad_iters, iters_per_epoch - first)
            (scaler.scale(scaled) if scaler is not None else scaled).backward()
            if (number + 1) % accum_grad_iters == 0 or number + 1 == iters_per_epoch:
                # The scaler leaves a step out if float16 has overflowed in a gradient.
                if scaler is not None:
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    optimizer.step()
                optimizer.zero_grad()
            meters.update(lr=optimizer.param_groups[0]["lr"], **parts)
        meters.synchronize_between_processes()
        return {name: f"{meter.global_avg:.3f}" for name, meter in meters.meters.items()}

    # ---- evaluation -------------------------------------------------------------------------------------------------

    def before_evaluation(self, model: Any, dataset: Any, **kwargs: Any) -> None:
        """Called before each evaluation; `dataset` is None for a task that needs no data."""
        model.before_evaluation(dataset=dataset, task_type=type(self))

    def evaluation(self, model: Any, data_loader: Any, cuda_enabled: bool = True) -> list[Any]:
        """Results of this process's batches. The model's device counts, whatever `cuda_enabled` says."""
        results: list[Any] = []
        quiet = not is_main_process()
        for samples in progress(data_loader, "evaluated", len(data_loader), what="batches", quiet=quiet):
            results += self.valid_step(model=model, samples=to_device(samples, model.device))
        return results

    def valid_step(self, model: Any, samples: Mapping[str, Any]) -> list[Any]:
        """The results of one batch, a list; in two processes the last batch may hold samples of the first again."""
        raise NotImplementedError(f"{type(self).__name__} does not say in valid_step how a batch is evaluated")

    def inference_step(self, *args: Any, **kwargs: Any) -> Any:
        """For tasks that call it in `valid_step`; runners do not."""
        raise NotImplementedError(f"{type(self).__name__} has no inference_step")

    def add_skipped(self, results: Any, messages: Sequence[str]) -> None:
        """Tell of the samples that a split left out when it was opened, in the log; `results` are of `evaluation`."""
        for message in messages:
            logger.warning("left out of the evaluation: %s", message)

    def after_evaluation(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        """Figures from `val_result`, this process's results, `split_name` and `epoch`; the first process's count.

        `agg_metrics` among them is what the best checkpoint is chosen by. None: there are no figures, and no best.
        """
        return None

    @staticmethod
    def save_result(result: list[Any], result_dir: str | Path, filename: str, remove_duplicate: str = "") -> str:
        """Write all processes' results as `<result_dir>/<filename>.json`, and return that path.

        Every process must call it. Of results with the same value under the key `remove_duplicate` the first stays.
        """
        rows = [row for part in gathered(result) for row in part]
        if remove_duplicate:
            # A later key wins in a dictionary, so the rows are gone through from the end for the first one to stay. Ids
            # may be of any type: JSON makes texts of them.
            rows = list({json.dumps(row[remove_duplicate]): row for row in reversed(rows)}.values())[::-1]
        path = Path(result_dir) / f"{filename}.json"
        if is_main_process():
            write_json(path, rows)
        barrier()
        return str(path)


def has_own_loop(task: BaseTask) -> bool:
    """Whether the task's class overrides a method that goes over an epoch's batches."""
    names = ("train_epoch", "train_iters", "_train_inner_loop")
    return any(getattr(type(task), name) is not getattr(BaseTask, name) for name in names)


def check_own_loop(task: BaseTask, settings: RunSettings) -> None:
    """ConfigError if a loop of the task's own would leave a setting without effect."""
    if has_own_loop(task) and settings.clip_grad_norm:
        raise ConfigError(
            f"run.clip_grad_norm={settings.clip_grad_norm}: {type(task).__name__} goes over the batches in a loop of "
            "its own, in which runners clip nothing: leave it out, and clip in that loop"
        )


def losses_of(returned: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """What `train_step` returned, the loss alone or with others by name, as both; ConfigError if it is neither."""
    loss, parts = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not isinstance(parts, Mapping):
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ConfigError(
            f"train_step must return a loss (a tensor of one number), or a loss and a dictionary: {found}"
        )
    return loss, {**parts, "loss": loss}
