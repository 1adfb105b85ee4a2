"""`runner_base`: fine-tuning over epochs, with validation, checkpoints and an exact resume.

    <output_dir>/<job_id>/
        log.txt                    JSON lines: the config, then figures of training and of every evaluation
        checkpoint_<epoch>.pth     after every epoch
        checkpoint_best.pth        the best validation so far (only with run.valid_splits)
        checkpoint_stopped.pth     where a SIGTERM stopped the run
        result/<split>_epoch<epoch>.json    every prediction
        evaluate.txt               JSON lines: figures of the test splits
        tensorboard/               curves

One update takes `accum_grad_iters` batches from each process. Its loss is the mean of these batches' losses, and a
batch's loss is the mean over the tokens (BC) or pairs (DPO) of all processes, so that the number of processes among
which a batch is shared does not matter.
"""

from __future__ import annotations

import json
import logging
import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from lavis.common import optims  # noqa: F401  (registers the schedules)
from lavis.common.config import Config
from lavis.common.dist_utils import barrier, gathered, get_rank, get_world_size, is_main_process, local_rank, summed
from lavis.common.logger import Averages, ProgressLine, RunLog
from lavis.common.registry import registry
from lavis.datasets.annotations import too_many
from lavis.datasets.data_utils import prepare_sample
from lavis.datasets.datasets.base_dataset import BaseDataset
from lavis.datasets.records import BadSampleError
from lavis.datasets.samplers import EvalSampler, TrainStream
from lavis.models import BaseModel
from lavis.models.references import ReferenceLogps
from lavis.runners import checkpoint
from lavis.runners.parallel import Replicas

if TYPE_CHECKING:
    from lavis.tasks.base_task import BaseTask

logger = logging.getLogger(__name__)


class Stopped(Exception):
    """SIGTERM came and a checkpoint was written; the text says how to go on."""


@registry.register_runner("runner_base")
class RunnerBase:
    """Trains `model` on `datasets["train"]` and evaluates it; `task` says with which loss and which figures.

    Built as in LAVIS. The model goes to the run's device here.
    """

    def __init__(
        self, cfg: Config, task: BaseTask, model: BaseModel, datasets: Mapping[str, BaseDataset], job_id: str = ""
    ) -> None:
        self.config = cfg
        self.task = task
        self.is_main = is_main_process()
        self.settings = task.settings
        self.datasets = dict(datasets)
        self._check_splits()
        self.device = run_device(self.settings.device)
        if not self.settings.amp:
            model.amp = None
        if self.device.type == "cpu":
            model = model.float()
        model = model.to(self.device)
        task.prepare(model, self.datasets)
        self.replicas = Replicas(
            model, fsdp=self.settings.fsdp, find_unused_parameters=self.settings.find_unused_parameters
        )
        job = job_id or self.settings.job_id or gathered(datetime.now().strftime("%Y%m%d%H%M%S"))[0]
        self.output_dir = Path(self.settings.output_dir) / job
        self.result_dir = self.output_dir / "result"
        self.result_dir.mkdir(parents=True, exist_ok=True)
        self.averages = Averages()
        self.best = {"agg_metrics": -math.inf, "epoch": -1}
        self.epoch = 0  # the one under way; `max_epoch` when training is done
        self.batches = 0  # micro-batches done, this run's place in the training stream
        self.skipped: set[str] = set()
        self.references: ReferenceLogps | None = None  # where DPO may remember what its reference said
        self._last_saved: Path | None = None
        self._stop_asked = self._stop_agreed = False
        self.log = RunLog(self.output_dir, wandb_project=self.settings.wandb_project, config=cfg.to_dict())
        if not self.settings.evaluate:
            self._prepare_training()

    # ---- what a run consists of -------------------------------------------------------------------------------------

    def train(self) -> None:
        """Train from where the run stands to its end, then evaluate the test splits with the best weights.

        Raises Stopped after SIGTERM.
        """
        began = time.monotonic()
        self.log.line(config=self.config.to_dict())
        self._resume()
        with self._stopping_on_sigterm():
            for epoch in range(self._first_epoch(), self.max_epoch):
                self.epoch = epoch
                self.train_epoch(epoch)
                self.end_epoch(epoch)
        self.epoch = self.max_epoch
        # Episodes cannot be left half-way; all is saved by now, so SIGTERM may end the process.
        with self._stopping_on_sigterm() if self.task.needs_data else nullcontext():
            self.evaluate("best" if self.settings.valid_splits else self.label(self.max_epoch - 1), reload_best=True)
        logger.info("Training time %.0f s, results in %s", time.monotonic() - began, self.output_dir)
        self.log.close()

    def _first_epoch(self) -> int:
        """The epoch to go on with: one whose last batch is done but which was not ended is ended first."""
        epoch, rest = divmod(self.batches, self.batches_per_epoch)
        return epoch - 1 if rest == 0 and self.averages.means() else epoch

    @property
    def max_epoch(self) -> int:
        """Number of epochs."""
        return self.settings.max_epoch

    @property
    def batches_per_epoch(self) -> int:
        """Micro-batches of one epoch."""
        return self.stream.batches_per_epoch

    def label(self, epoch: int) -> int:
        """What checkpoints and results of this epoch are numbered by."""
        return epoch

    def train_epoch(self, epoch: int) -> None:
        """The rest of an epoch's batches, an update after every `accum_grad_iters` and after the last."""
        self.replicas.model.train()
        end = (epoch + 1) * self.batches_per_epoch
        with ProgressLine(f"epoch {epoch}", self.batches_per_epoch, self.batches % self.batches_per_epoch) as line:
            while self.batches < end:
                size = min(self.settings.accum_grad_iters, end - self.batches)
                for turn in range(size):
                    figures = self.train_batch(epoch, size, last=turn == size - 1)
                    line.advance(f"epoch {epoch}, loss {figures['loss']:.4f}")
                self._stop_if_asked()

    def train_batch(self, epoch: int, size: int, *, last: bool) -> dict[str, float]:
        """Forward and backward of one of the `size` batches of an update, and the update itself with the `last` one."""
        self.lr_scheduler.step(cur_epoch=epoch, cur_step=self.batches % self.batches_per_epoch)
        samples = prepare_sample(next(self._stream_batches), self.device)
        if self.references is not None:
            self.references.add_to(samples, self._places(samples))
        with self.replicas.accumulating(last):
            output = self.task.train_step(self.replicas.call, samples)
            weight = self.task.weight(self.replicas.model, samples)
            figures, share = self._shared_figures(output, weight, samples)
            # Gradients are averaged over processes; the share turns that into the mean over all items.
            self.scaler.scale(output["loss"] * (share / size)).backward()
        if last:
            self._update()
        self.batches += 1
        self._note(figures)
        return figures

    def _update(self) -> None:
        if self.settings.clip_grad_norm:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.replicas.parameters(), self.settings.clip_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def _shared_figures(
        self, output: Mapping[str, torch.Tensor], weight: float, samples: Mapping[str, Any]
    ) -> tuple[dict[str, float], float]:
        """Means over all processes, and this process's share of the loss (1 on average); also passes on a stop."""
        names, skipped = sorted(output), samples["skipped"]
        local = [output[name].item() * weight for name in names]
        totals = summed([*local, weight, float(self._stop_asked), float(len(skipped))], self.device)
        total_weight, stop, bad = totals[len(names) :]
        figures = {name: total / total_weight for name, total in zip(names, totals, strict=False)}
        if not math.isfinite(figures["loss"]):
            raise ValueError(
                f"the loss is {figures['loss']} at batch {self.batches} of the run: lower run.init_lr, set "
                f"run.clip_grad_norm, or look at the data there: {self._described(samples)}"
            )
        self._stop_agreed = stop > 0
        if bad:
            self._count_skipped(skipped)
        return figures, weight * get_world_size() / total_weight

    def _count_skipped(self, skipped: list[str]) -> None:
        new = {message for part in gathered(skipped) for message in part} - self.skipped
        self.skipped |= new
        for message in sorted(new):
            logger.warning("skipped: %s", message)
        if len(self.skipped) > self.settings.skip_bad_samples:
            raise BadSampleError(too_many(sorted(self.skipped), self.settings.skip_bad_samples))

    def _note(self, figures: Mapping[str, float]) -> None:
        lr = self.optimizer.param_groups[0]["lr"]
        self.averages.update(**figures, lr=lr)
        if self.batches % self.settings.log_freq == 0:
            values = {**figures, "lr": lr}
            self.log.line(train_batches=self.batches, **{f"train_{key}": value for key, value in values.items()})
            self.log.curves("train", self.batches, values)

    def end_epoch(self, epoch: int) -> None:
        """Validate, log the epoch's means and figures, write checkpoints."""
        # First, and before anything is logged: a run that is stopped here ends this epoch when it is resumed.
        found = {split: self.eval_epoch(split, self.label(epoch)) for split in self.settings.valid_splits}
        means, self.averages = self.averages.means(), Averages()
        self.log.line(epoch=self.label(epoch), **{f"train_{key}": value for key, value in means.items()})
        logger.info("epoch %s: %s", epoch, ", ".join(f"{key} {value:.5g}" for key, value in means.items()))
        for split, figures in found.items():
            if split == self.settings.valid_splits[0] and figures["agg_metrics"] > self.best["agg_metrics"]:
                self.best = {"agg_metrics": figures["agg_metrics"], "epoch": self.label(epoch)}
                self.save("best", epoch + 1)
            self.log.line(epoch=self.label(epoch), **{f"{split}_{key}": value for key, value in figures.items()})
        self.save(self.label(epoch), epoch + 1)

    # ---- evaluation -------------------------------------------------------------------------------------------------

    def evaluate(self, cur_epoch: int | str = "best", reload_best: bool = False) -> dict[str, dict[str, Any]]:
        """Figures of every test split, which also go to `evaluate.txt`; first the best weights, if asked for."""
        best = self.output_dir / "checkpoint_best.pth"
        if reload_best and self.settings.test_splits and best.is_file():
            self.replicas.load_trainable(checkpoint.load(best)["model"])
        found = {split: self.eval_epoch(split, cur_epoch) for split in self.settings.test_splits}
        for split, figures in found.items():
            self.log.line(epoch=cur_epoch, **{f"{split}_{key}": value for key, value in figures.items()})
            if self.is_main:
                with open(self.output_dir / "evaluate.txt", "a", encoding="utf-8") as file:
                    file.write(json.dumps({split: figures}) + "\n")
        return found

    @torch.no_grad()
    def eval_epoch(self, split: str, cur_epoch: int | str) -> dict[str, Any]:
        """The task's figures of one split with the weights as they are."""
        self.replicas.model.eval()
        loader = _UntilStopped(self._eval_loader(split), self._agree_on_stop) if self.task.needs_data else None
        with self.replicas.evaluated() as model:
            results = self.task.evaluation(model, loader, self.device)
        self._stop_if_asked()
        if self.task.needs_data:
            results += [{"skipped": message} for message in self.datasets[split].source.skipped]
        figures = self.task.after_evaluation(results, split, cur_epoch, self.result_dir)
        self.log.curves(split, self.batches, figures)
        shown = {key: value for key, value in figures.items() if isinstance(value, (int, float))}
        logger.info("%s: %s", split, ", ".join(f"{key} {value:.4g}" for key, value in shown.items()))
        return figures

    def _eval_loader(self, split: str) -> DataLoader:
        dataset = self.datasets[split]
        return DataLoader(
            dataset,
            batch_size=self.settings.batch_size_eval,
            sampler=EvalSampler(len(dataset), rank=get_rank(), world_size=get_world_size()),
            num_workers=self.settings.num_workers,
            collate_fn=dataset.collater,
        )

    # ---- saving and resuming ----------------------------------------------------------------------------------------

    def save(self, name: int | str, epoch: int) -> None:
        """Write `checkpoint_<name>.pth`; `epoch` is the next one to train. Every process must call it."""
        path = self.output_dir / f"checkpoint_{name}.pth"
        content = {
            "model": self.replicas.trainable_state(),
            "optimizer": self.replicas.optimizer_state(self.optimizer),
            "scaler": self.scaler.state_dict(),
            "config": self.config.to_dict(),
            "epoch": epoch,
            "batches": self.batches,
            "arch": self._architecture(),
            "base_hash": self.replicas.model.base_hash(),
            "global_batch": self.stream.global_batch,
            "accum_grad_iters": self.settings.accum_grad_iters,
            "random": gathered(random_state(self.device)),
            "best": self.best,
            "averages": self.averages.state(),
            "references": self._shared_references(),
        }
        if self.is_main:
            checkpoint.save(path, content)
        barrier()
        self._last_saved = path

    def _shared_references(self) -> dict[str, Any]:
        """What DPO's reference has said to any process, which all then know; every process must ask."""
        if self.references is None:
            return {}
        for state in gathered(self.references.state()):
            self.references.restore(state)
        return self.references.state()

    def _architecture(self) -> str:
        return f"{self.config.model_cfg.arch} {self.config.model_cfg.get('model_type', '')}".strip()

    def _resume(self) -> None:
        """Continue from `run.resume_ckpt_path`, if it is set."""
        wanted = self.settings.resume_ckpt_path
        path = checkpoint.newest(self.output_dir) if wanted == "latest" else wanted and Path(wanted)
        if not path:
            return
        content = checkpoint.load(Path(path))
        self._check_fits(content, path)
        try:
            self.replicas.load_trainable(content["model"])
            self.replicas.load_optimizer(self.optimizer, content["optimizer"])
        except (ValueError, RuntimeError, KeyError) as error:
            raise checkpoint.CheckpointError(f"{path} does not fit this model: {error}") from error
        if content["scaler"]:
            self.scaler.load_state_dict(content["scaler"])
        self.batches = content["batches"]
        self._last_saved = Path(path)
        self.best = content["best"]
        self.averages.restore(content["averages"])
        if self.references is not None and content["references"]:
            self.references.restore(content["references"])
        if get_rank() < len(content["random"]):
            restore_random(content["random"][get_rank()], self.device)
        logger.info("Going on from %s: %s batches are done", path, self.batches)

    def _check_fits(self, content: Mapping[str, Any], path: Path | str) -> None:
        """CheckpointError where the checkpoint is of another model, or counts batches of another size."""
        mine = {
            "arch": self._architecture(),
            "base_hash": self.replicas.model.base_hash(),
            "global_batch": self.stream.global_batch,
            "accum_grad_iters": self.settings.accum_grad_iters,
        }
        for key, value in mine.items():
            if content[key] != value:
                theirs, ours = (str(side)[:24] for side in (content[key], value))
                hint = {"global_batch": " (run.batch_size_train × processes)"}.get(key, "")
                raise checkpoint.CheckpointError(f"{path} has {key} {theirs}, this run {ours}{hint}")

    @property
    def _stream_batches(self) -> Iterator[dict[str, Any]]:
        if self._loader is None:
            self.stream.start, self.stream.stop = self.batches, self.max_epoch * self.batches_per_epoch
            dataset = self.datasets[self.settings.train_splits[0]]
            self._loader = iter(
                DataLoader(
                    dataset,
                    batch_sampler=self.stream,
                    num_workers=self.settings.num_workers,
                    collate_fn=dataset.collater,
                    pin_memory=self.device.type == "cuda",
                )
            )
        return self._loader

    def _prepare_training(self) -> None:
        """Optimiser, schedule, scaler and the stream of batches."""
        settings = self.settings
        parameters = self.replicas.parameters()
        if not parameters:
            raise ValueError("nothing trains: every part of the model is frozen (model.freeze_…)")
        # As in LAVIS: no weight decay for biases and norms.
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=settings.init_lr, betas=(0.9, settings.beta2))
        # fp16 gradients underflow without scaling; bf16 has fp32's range and needs none.
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.replicas.model.amp == torch.float16)
        self.stream = TrainStream(
            len(self.datasets[settings.train_splits[0]]),
            batch_size=settings.batch_size_train,
            rank=get_rank(),
            world_size=get_world_size(),
            seed=settings.seed,
        )
        self._loader: Iterator[dict[str, Any]] | None = None
        if settings.objective == "dpo":
            self._prepare_references()
        self._count_skipped(list(self.datasets[settings.train_splits[0]].source.skipped))
        self.lr_scheduler = registry.get_lr_scheduler_class(settings.lr_sched)(
            optimizer=self.optimizer,
            max_epoch=self.max_epoch,
            min_lr=settings.min_lr,
            init_lr=settings.init_lr,
            decay_rate=settings.lr_decay_rate,
            warmup_start_lr=settings.warmup_lr,
            warmup_steps=settings.warmup_steps,
        )

    def _prepare_references(self) -> None:
        """Let DPO remember what its reference says of a transition, unless that cannot be, which is then logged."""
        asked = "DPO asks its reference again at every batch: "
        if self.settings.fsdp:
            logger.info("%srun.fsdp=True, and its shards answer to all processes at once", asked)
        elif not self.datasets[self.settings.train_splits[0]].always_same():
            hint = "preprocess.vis_processor.train.name=blip_image_eval lets it be asked once for each transition"
            logger.info("%sthe training processors draw anew in every epoch; %s", asked, hint)
        else:
            self.references = ReferenceLogps(self.replicas.model)

    def _described(self, samples: Mapping[str, Any], limit: int = 4) -> str:
        """The first samples of a training batch: file, step or entry, game."""
        source = self.datasets[self.settings.train_splits[0]].source
        pairs = zip(samples["instance_id"], samples["game"], strict=True)
        named = [f"{source.where(number)} ({game or 'a game unknown'})" for number, game in pairs]
        more = len(named) - limit
        return "; ".join(named[:limit]) + (f" and {more} more" if more > 0 else "")

    def _places(self, samples: Mapping[str, Any]) -> list[tuple[str, int]]:
        """Each sample's file, by its name in the data's folder, and number in it."""
        source = self.datasets[self.settings.train_splits[0]].source
        places = [source.place(index) for index in samples["instance_id"]]
        return [(Path(path).name, number) for path, number in places]

    def _check_splits(self) -> None:
        """ValueError where the run names a split that the datasets do not have, or more than one to train on."""
        settings = self.settings
        if len(settings.train_splits) > 1:
            raise ValueError(f"run.train_splits: one split at most, not {settings.train_splits}")
        wanted = [] if settings.evaluate else [*settings.train_splits, *settings.valid_splits]
        if not settings.evaluate and not settings.train_splits:
            raise ValueError("run.train_splits is empty: name one, or set run.evaluate=True")
        for split in [*wanted, *settings.test_splits]:
            if split not in self.datasets and self.task.needs_data:
                raise ValueError(
                    f"there is no split {split!r}; datasets have: {', '.join(self.datasets) or 'none'}. Set "
                    f"datasets.alfworld_cap.build_info.annotations.{split}.storage"
                )

    # ---- stopping ---------------------------------------------------------------------------------------------------

    def _stopping_on_sigterm(self) -> _OnSigterm:
        def ask() -> None:
            self._stop_asked = True

        return _OnSigterm(ask)

    def _agree_on_stop(self) -> bool:
        """Whether any process was asked to stop: all learn of it at the same batch."""
        self._stop_agreed = summed([float(self._stop_asked)], self.device)[0] > 0
        return self._stop_agreed

    def _stop_if_asked(self) -> None:
        """Write a checkpoint and leave, where the processes have agreed to. After training the last one serves."""
        if not self._stop_agreed:
            return
        if self.epoch < self.max_epoch:
            self.save("stopped", self.epoch)
        self.log.close()
        done = f"stopped by SIGTERM after {self.batches} batches"
        raise Stopped(f"{done}; go on with run.resume_ckpt_path={self._last_saved}")


class _UntilStopped:
    """A loader's batches, until `stop` says that they are to end."""

    def __init__(self, loader: DataLoader, stop: Callable[[], bool]) -> None:
        self._loader = loader
        self._stop = stop

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return takewhile(lambda batch: not self._stop(), self._loader)


class _OnSigterm:
    """Calls `ask` on SIGTERM while the block runs; the old handler comes back after it."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask

    def __enter__(self) -> None:
        self._old = signal.signal(signal.SIGTERM, lambda number, frame: self._ask())

    def __exit__(self, *exc: object) -> None:
        signal.signal(signal.SIGTERM, self._old)


def run_device(name: str) -> torch.device:
    """`auto` is this process's GPU where there is one; ValueError for no device's name or a GPU that is not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and torch.cuda.is_available():
        return torch.device("cuda", local_rank())
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"run.device is {name}, but torch {torch.__version__} sees no GPU; use run.device=cpu")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"run.device: {name!r} is not one of auto, cpu, cuda, cuda:<index>") from error


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The states of the generators that training draws from."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random(state: Mapping[str, torch.Tensor], device: torch.device) -> None:
    """Continue from `random_state`."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
