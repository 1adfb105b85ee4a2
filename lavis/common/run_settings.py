"""The `run:` section of a training or evaluation yaml: names, types and defaults of all its keys."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lavis.common.config import is_no_text, not_a_list
from lavis.common.errors import ConfigError, unknown

OBJECTIVES = ("bc", "dpo")
DPO_BETA = 0.1  # the original's value


@dataclass
class RunSettings:
    """Names down to `log_freq` are LAVIS's.

    `runner_base` counts epochs (`max_epoch`); `runner_iter` counts batches (`max_iters`), with validation and a
    checkpoint after every `iters_per_inner_epoch`. `batch_size_train` is one process's; an update takes
    `accum_grad_iters` batches of every process. `amp` computes in the model's mixed precision (`model.amp`).
    `world_size` 0 takes the number of started processes. `resume_ckpt_path` is a checkpoint, or `latest`: the one with
    the most batches in the output folder if there is one, so that a job that a queue starts again continues; `job_id`
    then names the folder (by default the time).
    """

    task: str = "alfworld_action"
    runner: str = "runner_base"
    lr_sched: str = "linear_warmup_cosine_lr"
    init_lr: float = 1e-5
    min_lr: float = 0.0
    warmup_lr: float = -1.0
    warmup_steps: int = 0
    lr_decay_rate: float = 1.0
    weight_decay: float = 0.05
    beta2: float = 0.999
    max_epoch: int = 10
    max_iters: int = 0
    iters_per_inner_epoch: int = 0
    batch_size_train: int = 8
    batch_size_eval: int = 16
    num_workers: int = 2
    accum_grad_iters: int = 1
    max_len: int = 64
    min_len: int = 1
    num_beams: int = 5
    seed: int = 42
    output_dir: str = "output/finetune"
    amp: bool = True
    resume_ckpt_path: str | None = None
    evaluate: bool = False
    train_splits: list[str] = field(default_factory=lambda: ["train"])
    valid_splits: list[str] = field(default_factory=list)
    test_splits: list[str] = field(default_factory=list)
    device: str = "auto"
    world_size: int = 0
    dist_url: str = "env://"
    distributed: bool = True
    find_unused_parameters: bool = False
    log_freq: int = 50

    objective: str = "bc"  # bc: the expert's command alone; dpo: it over `text_output_neg`, needs model.ref_pretrained
    dpo_beta: float = DPO_BETA  # temperature of DPO's implicit reward (Rafailov et al. 2023, eq. 7)
    repetition_penalty: float = 1.0  # of decoding; 1.5 is LAVIS's, 1 is what the online policy uses
    length_penalty: float = 1.0
    clip_grad_norm: float = 0.0  # 0: off
    fsdp: bool = False  # shard weights, gradients and optimiser over the processes (an unfrozen language model)
    skip_bad_samples: int = 0
    job_id: str = ""
    num_threads: int = 0  # torch's threads; 0 leaves the choice to torch
    wandb_project: str = ""
    environment: dict[str, Any] = field(default_factory=dict)  # of the task alfworld_episode
    policy: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every value's range; ConfigError names the first that is wrong."""
        at_least = {"batch_size_train": 1, "batch_size_eval": 1, "accum_grad_iters": 1, "num_beams": 1, "max_len": 2}
        at_least |= dict.fromkeys(("init_lr", "min_lr", "warmup_steps", "weight_decay", "max_epoch", "max_iters"), 0)
        at_least |= dict.fromkeys(("num_workers", "clip_grad_norm", "skip_bad_samples", "num_threads", "world_size"), 0)
        at_least |= {"seed": 0, "min_len": 0, "log_freq": 1, "iters_per_inner_epoch": 0}
        for name, least in at_least.items():
            if getattr(self, name) < least:
                raise ConfigError(f"run.{name}: {getattr(self, name)!r} is not a number of at least {least}")
        if not 0 < self.dpo_beta < float("inf"):
            raise ConfigError(f"run.dpo_beta: {self.dpo_beta!r} is not a number above 0")
        if self.objective not in OBJECTIVES:
            raise ConfigError(unknown("run.objective", self.objective, OBJECTIVES))
        if self.runner == "runner_iter" and not (self.max_iters and self.iters_per_inner_epoch):
            raise ConfigError("run.runner=runner_iter needs run.max_iters and run.iters_per_inner_epoch, both above 0")
        if self.runner == "runner_iter" and self.max_iters % self.iters_per_inner_epoch:
            raise ConfigError(
                f"run.max_iters ({self.max_iters}) is not a multiple of run.iters_per_inner_epoch "
                f"({self.iters_per_inner_epoch})"
            )
        if self.evaluate and not self.splits:
            raise ConfigError("run.test_splits is empty: an evaluation needs a split, such as run.test_splits=[test]")
        if self.evaluate and self.resume_ckpt_path:
            raise ConfigError(
                f"run.resume_ckpt_path={self.resume_ckpt_path} continues a training; an evaluation reads its weights "
                "from model.pretrained: set run.resume_ckpt_path=null"
            )

    @property
    def splits(self) -> list[str]:
        """The splits that the run needs; an evaluation takes `valid_splits` where there are no `test_splits`."""
        if self.evaluate:
            return self.test_splits or self.valid_splits
        return [*self.train_splits, *self.valid_splits, *self.test_splits]

    def require_splits(self, known: Collection[str]) -> None:
        """ConfigError where the run needs a split that is not among the `known` ones."""
        for split in self.splits:
            if split not in known:
                raise ConfigError(
                    f"there is no split {split!r}; datasets have: {', '.join(known) or 'none'}. Set "
                    f"datasets.alfworld_cap.build_info.annotations.{split}.storage (or .url)"
                )


LISTS = frozenset(name for name, hint in get_type_hints(RunSettings).items() if hint == list[str])
TEXTS = frozenset(f"run.{name}" for name, hint in get_type_hints(RunSettings).items() if hint in (str, str | None))


def read_settings(run: DictConfig) -> RunSettings:
    """The typed `run:` section; ConfigError names an unknown key and the nearest one, or a value of a wrong type."""
    names = [item.name for item in fields(RunSettings)]
    for key in map(str, run):
        if key not in names:
            raise ConfigError(unknown("key", f"run.{key}", [f"run.{name}" for name in names]))
        if f"run.{key}" in TEXTS and is_no_text(run[key]):
            raise ConfigError(f"run.{key}: yaml reads {run[key]!r} here; put the text in quotes")
        if key in LISTS and not isinstance(run[key], ListConfig):
            raise ConfigError(not_a_list(f"run.{key}", run[key]))
    try:
        settings = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(RunSettings), run))
    except OmegaConfBaseException as error:
        raise ConfigError(f"run.{error.full_key or error.key}: {str(error).splitlines()[0]}") from error
    assert isinstance(settings, RunSettings)
    return settings
