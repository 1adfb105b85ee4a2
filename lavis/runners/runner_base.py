"""`runner_base`: fine-tuning over epochs, with validation, checkpoints and an exact resume.

    <output_dir>/<job_id>/
        log.txt                    JSON lines: the config, then figures of training and of every evaluation
        checkpoint_<epoch>.pth     after every epoch
        checkpoint_best.pth        the best validation so far (only with run.valid_splits)
        checkpoint_stopped.pth     where a SIGTERM stopped the run
        result/<split>_epoch<epoch>.json    every prediction
        evaluate.txt               JSON lines: figures of the test splits
        tensorboard/               curves
        .lock                      held by the run that trains here

One update takes `accum_grad_iters` batches from each process. Its loss is the mean of these batches' losses, and a
batch's loss is the mean over the tokens (BC) or pairs (DPO) of all processes, so that the number of processes among
which a batch is shared does not matter.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from lavis.checkpoints import restore_model, write
from lavis.common.config import Config
from lavis.common.devices import pick_device
from lavis.common.dist_utils import barrier, gathered, get_rank, get_world_size, is_main_process, summed
from lavis.common.errors import ConfigError
from lavis.common.files import append_line, locked, make_folder, new_folder, remove_temporaries
from lavis.common.logger import Averages, RunLog
from lavis.common.progress import Bar
from lavis.common.registry import registry
from lavis.datasets.data_utils import to_device
from lavis.models import BaseModel, StudentModel
from lavis.models.frozen_base import base_of, check_bases
from lavis.models.played import PlayedGames, games_of_weights, played_in
from lavis.models.references import ReferenceLogps
from lavis.runners import checkpoint
from lavis.runners.optimizer import make_optimizer, make_schedule
from lavis.runners.parallel import Replicas, Trained
from lavis.runners.run_data import EpochBatches, RunData
from lavis.runners.stopping import Stopped, StopSignal, UntilStopped
from lavis.tasks.base_task import BaseTask, check_own_loop, has_own_loop, losses_of
from lavis.training import Updater

logger = logging.getLogger(__name__)


@registry.register_runner("runner_base")
class RunnerBase:
    """Trains `model` on `run.train_splits` and evaluates it; `task` says with which loss and which figures.

    Built as in LAVIS; `datasets` are {dataset: {split: …}}. The model goes to the run's device here. The registry's
    paths "output_dir" and "result_dir" are this run's.
    """

    def __init__(
        self,
        cfg: Config,
        task: BaseTask,
        model: BaseModel,
        datasets: Mapping[str, Mapping[str, Any]],
        job_id: str = "",
    ) -> None:
        self.config = cfg
        self.task = task
        self.is_main = is_main_process()
        self.settings = task.settings_of(cfg)
        self.data = RunData(datasets, self.settings, required=task.needs_data)
        self.device = pick_device(self.settings.device)
        if not self.settings.amp:
            model.amp = None
        if self.device.type == "cpu":
            model = model.float()
        model = model.to(self.device)
        check_bases(model, cfg.model_cfg)
        task.prepare(model, self.data.splits)
        self.replicas = Replicas(
            model, fsdp=self.settings.fsdp, find_unused_parameters=self.settings.find_unused_parameters
        )
        parent, job = Path(self.settings.output_dir), job_id or self.settings.job_id
        if not job:  # the first process names the folder by the time and makes it; the others are told its name
            made = new_folder(parent / datetime.now().strftime("%Y%m%d%H%M%S")) if self.is_main else parent
            job = gathered(made.name)[0]
        self.output_dir = parent / job
        self.result_dir = self.output_dir / "result"
        make_folder(self.result_dir)
        registry.mapping["paths"].update(output_dir=str(self.output_dir), result_dir=str(self.result_dir))
        self.averages = Averages()
        self.best = dict(checkpoint.NOTHING_VALIDATED)
        self.epoch = 0  # the current one; `max_epoch` when training is done
        self.batches = 0  # micro-batches done, this run's place in the training stream
        self.games = PlayedGames()  # what the weights have been trained on
        self.references: ReferenceLogps | None = None  # caches reference log-probabilities, if DPO can
        self._last_saved: Path | None = None
        self._loader: Iterator[dict[str, Any]] | None = None
        self.stop = StopSignal(self.device)
        self.log = RunLog(self.output_dir, wandb_project=self.settings.wandb_project, config=cfg.to_dict())
        if not self.settings.evaluate:
            self._prepare_training()

    # ---- what a run consists of -------------------------------------------------------------------------------------

    def train(self) -> None:
        """Train from the run's current place to its end, then evaluate the test splits with the best weights.

        With `run.evaluate` it only evaluates, as in LAVIS. Raises Stopped after SIGTERM, and LockedError if another run
        trains in the same folder: the checkpoints of both would have the same names.
        """
        if self.settings.evaluate:
            with closing(self.log):
                self.evaluate("final")
            return
        lock = closing(locked(self.output_dir / ".lock", self.output_dir)) if self.is_main else nullcontext()
        with lock, closing(self.log):  # curves are written when the log is closed
            began = time.monotonic()
            if self.is_main:
                remove_temporaries(self.output_dir)
            self._resume()
            # Only now: a run that is refused writes nothing into the log of the one that has trained here.
            self.log.line(config=self.config.to_dict())
            self.task.before_training(model=self.replicas.model, dataset=self.data.train_set)
            with self.stop.on_sigterm():
                # A stopped run's epoch may have all its batches, and lack its validation.
                for epoch in range(self.epoch, self.max_epoch):
                    self.epoch = epoch
                    self.train_epoch(epoch)
                    self.end_epoch(epoch)
            self.epoch = self.max_epoch
            validated = checkpoint.best_in(self.output_dir, self.best) is not None
            last = "best" if validated else self.label(self.max_epoch - 1)
            if self.settings.valid_splits and not validated:
                logger.warning("no validation has given weights that are the best: the last ones are tested")
            # Episodes cannot be interrupted half-way; all is saved by now, so SIGTERM may end the process.
            with self.stop.on_sigterm() if self.task.needs_data else nullcontext():
                self.evaluate(last, reload_best=True)
            logger.info("Training time %.0f s, results in %s", time.monotonic() - began, self.output_dir)

    @property
    def max_epoch(self) -> int:
        """Number of epochs."""
        return self.settings.max_epoch

    @property
    def batches_per_epoch(self) -> int:
        """Micro-batches of one epoch."""
        return self.stream.batches_per_epoch

    @property
    def all_batches(self) -> int:
        """Micro-batches of the run."""
        return self.max_epoch * self.batches_per_epoch

    def label(self, epoch: int) -> int:
        """What checkpoints and results of this epoch are numbered by."""
        return epoch

    def train_epoch(self, epoch: int) -> None:
        """The rest of an epoch's batches, an update after every `accum_grad_iters` and after the last.

        If the task has a loop of its own, that goes over these batches, and only after them can a run stop and resume.
        """
        self.replicas.model.train()
        first = epoch * self.batches_per_epoch
        end = min(first + self.batches_per_epoch, self.all_batches)
        if has_own_loop(self.task) and self.batches < end:
            self.stream.start, self.stream.stop = self.batches, end
            batches = EpochBatches(self.data.train_batches(self.stream, self.device), end - self.batches, self.device)
            figures = self.own_loop(epoch, batches) or {}
            self.data.count_skipped(batches.skipped)
            self.batches = end
            self.averages.update(**{str(name): float(value) for name, value in figures.items()})
            self.stop.agree()
            self._stop_if_agreed()
            return
        with Bar("batches", quiet=not self.is_main) as bar:
            while self.batches < end:
                size = min(self.settings.accum_grad_iters, end - self.batches)
                for turn in range(size):
                    figures = self.train_batch(epoch, size, last=turn == size - 1)
                    text = f"epoch {epoch}, loss {figures['loss']:.4f}"
                    bar.show(self.batches - first, end - first, text)
                self._stop_if_agreed()

    def own_loop(self, epoch: int, batches: EpochBatches) -> Mapping[str, Any] | None:
        """The task's loop over an epoch, called with LAVIS's arguments; it returns means of figures, or nothing."""
        return self.task.train_epoch(epoch=epoch, data_loader=batches, **self.loop_parts())

    def loop_parts(self) -> dict[str, Any]:
        """What LAVIS's loops are given beside the batches."""
        scaler = self.updater.scaler
        return {
            "model": Trained(self.replicas),
            "optimizer": self.optimizer,
            "lr_scheduler": self.lr_scheduler,
            "scaler": scaler if scaler.is_enabled() else None,
            "cuda_enabled": self.device.type == "cuda",
            "log_freq": self.settings.log_freq,
            "accum_grad_iters": self.settings.accum_grad_iters,
        }

    def train_batch(self, epoch: int, size: int, *, last: bool) -> dict[str, float]:
        """Forward and backward of one of the `size` batches of an update, and the update itself with the `last` one."""
        self.lr_scheduler.step(cur_epoch=epoch, cur_step=self.batches % self.batches_per_epoch)
        if self._loader is None:
            self.stream.start, self.stream.stop = self.batches, self.all_batches
            self._loader = self.data.train_batches(self.stream, self.device)
        samples = to_device(next(self._loader), self.device)
        # LAVIS's models read these, for what changes with the progress of training.
        place = self.batches % self.batches_per_epoch
        samples.update(epoch=epoch, num_iters_per_epoch=self.batches_per_epoch, iters=place)
        if self.references is not None:
            self.references.add_to(samples, self.data.places(samples))

        def where() -> str:
            hint = "lower run.init_lr, set run.clip_grad_norm, or look at the data there"
            return f"at batch {self.batches} of the run: {hint}: {self.data.described(samples)}"

        with self.replicas.accumulating(last):
            loss, output = losses_of(self.task.train_step(model=Trained(self.replicas), samples=samples))
            # With ℓ_p, the mean over the w_p items of process p, the batch's loss is Σ_p w_p ℓ_p / W, W = Σ_p w_p. The
            # same exchange between processes says whether one of them was asked to stop, or skipped a sample.
            weight, names = self.task.weight(self.replicas.model, samples), sorted(output)
            told = [weight, float(self.stop.asked), float(len(samples.get("skipped", ())))]
            totals = summed([*(_number(output[name]) * weight for name in names), *told], self.device)
            total_weight, stop, skipped = totals[len(names) :]
            figures = {name: total / total_weight for name, total in zip(names, totals, strict=False)}
            self.stop.agreed = stop > 0
            if skipped:
                self.data.count_skipped(samples["skipped"])
            # Gradients are averaged over the P processes, so process p contributes (w_p P / W) ℓ_p / size.
            share = weight * get_world_size() / total_weight
            self.updater.add(loss * (share / size), figures["loss"], where)
        if last:
            self.updater.update(where)
        self.batches += 1
        lr = self.optimizer.param_groups[0]["lr"]
        self.averages.update(**figures, lr=lr)
        if self.batches % self.settings.log_freq == 0:
            values = {**figures, "lr": lr}
            self.log.line(train_batches=self.batches, **{f"train_{key}": value for key, value in values.items()})
            self.log.curves("train", self.batches, values)
        return figures

    def end_epoch(self, epoch: int) -> None:
        """Validate, log the epoch's means and figures, write checkpoints."""
        # First, and before anything is logged: a run that is stopped here ends this epoch when it is resumed.
        try:
            found = {split: self.eval_epoch(split, self.label(epoch)) for split in self.settings.valid_splits}
        except Exception as error:
            if get_world_size() == 1 and not isinstance(error, Stopped):  # in a group the others would wait in vain
                self.save("stopped", epoch)
                logger.info("the epoch was trained: resume with run.resume_ckpt_path=%s", self._last_saved)
            raise
        means, self.averages = self.averages.means(), Averages()
        self.log.line(epoch=self.label(epoch), **{f"train_{key}": value for key, value in means.items()})
        logger.info("epoch %s: %s", epoch, ", ".join(f"{key} {value:.5g}" for key, value in means.items()))
        for split, figures in found.items():
            if figures and "agg_metrics" not in figures:
                raise ConfigError(
                    f"after_evaluation of {type(self.task).__name__} gave {', '.join(figures)}, but no 'agg_metrics', "
                    "by which the best checkpoint is chosen"
                )
            if not figures:
                continue
            # The first split alone says which checkpoint is the best, as `val` in LAVIS: two cannot be compared.
            if split == self.settings.valid_splits[0] and checkpoint.is_better(figures, self.best):
                self.best = checkpoint.best_of(figures, self.label(epoch))
                self.save("best", epoch + 1)
            self.log.line(epoch=self.label(epoch), **{f"{split}_{key}": value for key, value in figures.items()})
        self.save(self.label(epoch), epoch + 1)

    # ---- evaluation -------------------------------------------------------------------------------------------------

    def evaluate(self, cur_epoch: int | str = "best", reload_best: bool = False) -> dict[str, dict[str, Any]]:
        """Figures of every test split (an evaluation's splits), which also go to `evaluate.txt`.

        First the best weights are loaded, if asked for. With `run.evaluate` the log gets the config before the figures.
        """
        if self.settings.evaluate:
            self.log.line(config=self.config.to_dict())
        splits = self.settings.splits if self.settings.evaluate else self.settings.test_splits
        if reload_best and splits and (best := checkpoint.best_in(self.output_dir, self.best)):
            self.replicas.load_trainable(checkpoint.load(best)["model"])
        found = {split: self.eval_epoch(split, cur_epoch) for split in splits}
        for split, figures in found.items():
            self.log.line(epoch=cur_epoch, **{f"{split}_{key}": value for key, value in figures.items()})
            if self.is_main and figures:
                append_line(self.output_dir / "evaluate.txt", json.dumps({split: figures}))
        return found

    @torch.no_grad()
    def eval_epoch(self, split: str, cur_epoch: int | str) -> dict[str, Any]:
        """The task's figures of one split with the weights as they are; empty if the task gives none.

        Each process passes its own results to the task. The figures of the first process count for all.
        """
        self.replicas.model.eval()
        self.task.before_evaluation(model=self.replicas.model, dataset=self.data.splits.get(split))
        loader = UntilStopped(self.data.eval_loader(split), self.stop.agree) if self.task.needs_data else None
        with self.replicas.evaluated() as model:
            results = self.task.evaluation(model, loader, cuda_enabled=self.device.type == "cuda")
        self._stop_if_agreed()
        if self.task.needs_data and (left_out := self.data.skipped_in(split)):
            self.task.add_skipped(results, left_out)
        found = None
        if results is not None:
            found = self.task.after_evaluation(val_result=results, split_name=split, epoch=cur_epoch)
        # The processes must agree on the figures: by them they decide whether to save a checkpoint, which all do
        # together.
        figures = gathered(found)[0] or {}
        self.log.curves(split, self.batches, figures)
        shown = {key: value for key, value in figures.items() if isinstance(value, (int, float))}
        logger.info("%s: %s", split, ", ".join(f"{key} {value:.4g}" for key, value in shown.items()))
        return figures

    @property
    def final_checkpoint(self) -> Path | None:
        """The best weights that training has written, the last ones if nothing was validated; None if it wrote none."""
        return None if self.settings.evaluate else checkpoint.best_in(self.output_dir, self.best) or self._last_saved

    # ---- saving and resuming ----------------------------------------------------------------------------------------

    def save(self, name: int | str, epoch: int) -> None:
        """Write `checkpoint_<name>.pth`; `epoch` is the next one to train. Every process must call it."""
        path = self.output_dir / f"checkpoint_{name}.pth"
        content = {
            "model": self.replicas.trainable_state(),
            "optimizer": self.replicas.optimizer_state(self.optimizer),
            "scaler": self.updater.scaler.state_dict(),
            "config": self.config.to_dict(),
            "epoch": epoch,
            "batches": self.batches,
            **base_of(self.replicas.model),
            **self._identity(),
            # Of every process: each draws for itself, dropout for example.
            "random": gathered(checkpoint.random_state(self.device)),
            "best": self.best,
            "averages": self.averages.state(),
            "references": self.references.shared_state() if self.references is not None else {},
            "played": self.games.as_dict(),
        }
        if self.is_main:
            write(path, content, buffers=[name for name, _ in self.replicas.model.named_buffers()])
        barrier()
        self._last_saved = path

    def _identity(self) -> dict[str, Any]:
        """What a checkpoint must have in common with the run that resumes it."""
        return {
            "arch": f"{self.config.model_cfg.arch} {self.config.model_cfg.get('model_type', '')}".strip(),
            "global_batch": self.stream.global_batch,
            "accum_grad_iters": self.settings.accum_grad_iters,
            "batches_per_epoch": self.batches_per_epoch,
            "batches_of_data": self.stream.batches_per_epoch,  # with `runner_iter` not those of an epoch
        }

    def _resume(self) -> None:
        """Continue from `run.resume_ckpt_path`, if it is set."""
        wanted = self.settings.resume_ckpt_path
        path = checkpoint.newest(self.output_dir) if wanted == "latest" else Path(wanted) if wanted else None
        checkpoint.require_own_folder(self.output_dir, path)
        if path is None:
            return
        content = checkpoint.load(path)
        checkpoint.require_fit(content, self._identity(), path)
        checkpoint.compare_settings(content, self.config.to_dict(), path, left=self.max_epoch - content["epoch"])
        # The optimiser's state brings the earlier run's settings; this run's win. (The schedule sets learning rates.)
        own = [{key: group[key] for key in ("weight_decay", "betas")} for group in self.optimizer.param_groups]

        def load(weights: Mapping[str, torch.Tensor]) -> None:
            self.replicas.load_trainable(weights)
            self.replicas.load_optimizer(self.optimizer, content["optimizer"])
            for group, values in zip(self.optimizer.param_groups, own, strict=True):
                group.update(values)

        restore_model(self.replicas.model, content, path, load)
        if content["scaler"]:
            self.updater.scaler.load_state_dict(content["scaler"])
        self.batches, self.epoch = content["batches"], content["epoch"]
        if self.batches > self.all_batches:
            raise ConfigError(f"{path} has {self.batches} batches already, this run is to have {self.all_batches}")
        if self.batches < self.all_batches:  # a longer run than before goes on in what was its last, shorter epoch
            self.epoch = min(self.epoch, self.batches // self.batches_per_epoch)
        self._last_saved = path
        # The data may be another than before; what the weights have learned of the earlier one stays in them.
        self.games = self.games.merged(played_in(content) or PlayedGames(unknown=(path.name,)))
        # The best of another split would pass for the best of this one, and for the last if nothing is validated now.
        before = list((content["config"].get("run") or {}).get("valid_splits") or [])
        best = content["best"] if self.settings.valid_splits[:1] == before[:1] else checkpoint.NOTHING_VALIDATED
        self.best = checkpoint.bring_best(dict(best), path.parent, self.output_dir, write=self.is_main)
        barrier()
        self.averages.restore(content["averages"])
        if self.references is not None and content["references"]:
            self.references.restore(content["references"])
        # A run that goes on in more processes than before has no stored state for the new ones.
        if get_rank() < len(content["random"]):
            checkpoint.restore_random(content["random"][get_rank()], self.device)
        logger.info("Resuming from %s: %s batches are done", path, self.batches)

    def _prepare_training(self) -> None:
        """Optimiser, updates, schedule, the stream of batches, and what the run will have been trained on."""
        check_own_loop(self.task, self.settings)
        self.optimizer = make_optimizer(self.replicas.model, self.settings)
        self.updater = Updater(
            self.optimizer,
            self.replicas.parameters(),
            half=self.replicas.model.amp == torch.float16,
            max_norm=self.settings.clip_grad_norm,
        )
        self.stream = self.data.train_stream()
        self.games = games_of_weights(self.config.model_cfg).merged(self.data.games())
        if self.settings.objective == "dpo":
            model = self.replicas.model
            if not isinstance(model, StudentModel):
                raise ConfigError(f"run.objective=dpo: {type(model).__name__} has no reference policy; leave it out")
            # Reference log-probabilities are cached per transition, unless something keeps them from being the same.
            again = "DPO computes the reference policy again at every batch: "
            if self.settings.fsdp:
                logger.info("%srun.fsdp=True shards it, so all processes must compute it together", again)
            elif not self.data.train_set.always_same():
                hint = (
                    "with preprocess.vis_processor.train.name=blip_image_eval it is computed once for each transition"
                )
                logger.info("%sthe training processors change images at random; %s", again, hint)
            else:
                config = self.config.to_dict()
                self.references = ReferenceLogps(model, [config.get(name) for name in ("datasets", "preprocess")])
        self.data.count_skipped(self.data.skipped_in(self.settings.train_splits[0]))
        self.lr_scheduler = make_schedule(self.optimizer, self.settings, self.max_epoch, self.batches_per_epoch)

    def _stop_if_agreed(self) -> None:
        """Write a checkpoint and leave if the processes have agreed to. After training the last one serves."""
        if not self.stop.agreed:
            return
        if self.epoch < self.max_epoch:
            self.save("stopped", self.epoch)
        done = f"stopped by SIGTERM after {self.batches} batches"
        raise Stopped(f"{done}; resume with run.resume_ckpt_path={self._last_saved}")


def _number(value: Any) -> float:
    return value.item() if isinstance(value, torch.Tensor) else float(value)
