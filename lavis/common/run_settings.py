"""The `run:` section of a training or evaluation yaml: all its keys with type, default, meaning and rule."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lavis.common.config import is_no_text, not_a_list
from lavis.common.errors import ConfigError, first_sentence, unknown
from lavis.common.settings import (
    ABOVE_ZERO,
    BELOW_ONE,
    DEVICE,
    FINITE,
    KINDS,
    SEED,
    Rule,
    Section,
    at_least,
    between,
    check_has_effect,
    one_of,
    setting,
)

OBJECTIVES = ("bc", "dpo")
DPO_BETA = 0.1  # the original's value
DIST_URL = Rule(
    "one of env://, tcp://<host>:<port>, file:///<path>",
    lambda value: bool(re.fullmatch(r"env://|tcp://[^/]+:\d{1,5}|file:///.+", value)),
)


@dataclass(frozen=True)
class RunSettings(Section, section="run"):
    """Offline training and its evaluation. The names down to `log_freq` are LAVIS's."""

    # What is trained, and by which rules: LAVIS's optimiser (AdamW) and schedules.
    task: str = setting("alfworld_action", "task: a registered name, or module:Class")
    runner: str = setting("runner_base", "`runner_base` counts epochs, `runner_iter` batches")
    lr_sched: str = setting("linear_warmup_cosine_lr", "schedule of learning rates: a registered name, or module:Class")
    init_lr: float = setting(1e-5, "learning rate after the warm-up", at_least(0))
    min_lr: float = setting(0.0, "learning rate at the end", at_least(0))
    warmup_lr: float = setting(
        -1.0, "learning rate at the first batch, also without warm-up; below 0: `init_lr`", FINITE
    )
    warmup_steps: int = setting(
        0, "batches of linear warm-up, all in the first (inner) epoch, as LAVIS has it", at_least(0)
    )
    lr_decay_rate: float = setting(1.0, "factor for each epoch, of `linear_warmup_step_lr`", ABOVE_ZERO)
    weight_decay: float = setting(0.05, "weight decay of AdamW", at_least(0))
    beta2: float = setting(0.999, "AdamW's second moment", BELOW_ONE)
    max_epoch: int = setting(10, "`runner_base`: epochs", at_least(0))
    max_iters: int = setting(0, "`runner_iter`: batches; the last inner epoch has the rest", at_least(0))
    iters_per_inner_epoch: int = setting(
        0, "`runner_iter`: batches, after which there is a validation and a checkpoint", at_least(0)
    )
    # Batches, and how answers are written in an evaluation.
    batch_size_train: int = setting(8, "samples in a batch of one process", at_least(1))
    batch_size_eval: int = setting(16, "the same in an evaluation", at_least(1))
    num_workers: int = setting(2, "processes that load data, for each training process", at_least(0))
    accum_grad_iters: int = setting(1, "batches of every process whose gradients make one update", at_least(1))
    max_len: int = setting(
        64, "tokens of a generated answer, at most; the beginning counts as one, as in LAVIS", at_least(2)
    )
    min_len: int = setting(1, "tokens of a generated answer, at least, counted in the same way", at_least(0))
    num_beams: int = setting(5, "beams of the search; 1: greedy", at_least(1))
    # Where the run lies, what it continues, what it evaluates.
    seed: int = setting(42, "seed of everything random", SEED)
    output_dir: str = setting("output/finetune", "folder of the run's folders")
    amp: bool = setting(True, "compute in the model's mixed precision (`model.amp`)")
    resume_ckpt_path: str | None = setting(
        None,
        "checkpoint to continue from; `latest`: the one with the most batches in the output folder if there is one, so "
        "that a job that a queue starts again continues (set `job_id`)",
    )
    evaluate: bool = setting(False, "evaluate only")
    train_splits: list[str] = setting(["train"], "splits to train on")
    valid_splits: list[str] = setting([], "splits to validate on; an evaluation takes them if `test_splits` is empty")
    test_splits: list[str] = setting([], "splits to evaluate on at the end")
    # Devices and processes.
    device: str = setting("auto", "where the model runs; `auto` takes a GPU if there is one", DEVICE)
    world_size: int = setting(0, "processes; 0: as many as were started", at_least(0))
    dist_url: str = setting("env://", "where the processes meet; `env://`: where their launcher says", DIST_URL)
    distributed: bool = setting(True, "train with all processes that were started; false: only one may be started")
    find_unused_parameters: bool = setting(False, "of torch's DistributedDataParallel")
    log_freq: int = setting(50, "batches between two lines of the log", at_least(1))
    # From here on ours.
    objective: str = setting(
        "bc",
        "`bc`: the expert's command alone; `dpo`: it over `text_output_neg`, needs `model.ref_pretrained`",
        one_of(*OBJECTIVES),
    )
    dpo_beta: float = setting(
        DPO_BETA, "temperature of DPO's implicit reward (Rafailov et al. 2023, eq. 7)", ABOVE_ZERO
    )
    repetition_penalty: float = setting(
        1.0, "of decoding; 1.5 is LAVIS's, 1 is what the online policy uses", ABOVE_ZERO
    )
    length_penalty: float = setting(1.0, "of the beam search", FINITE)
    clip_grad_norm: float = setting(0.0, "largest norm of a gradient; 0: off", at_least(0))
    fsdp: bool = setting(
        False, "shard weights, gradients and optimiser over the processes (for a language model that trains)"
    )
    skip_bad_samples: int = setting(
        0,
        "unreadable samples that may be left out: of the training data, and as many of each evaluated split",
        at_least(0),
    )
    job_id: str = setting("", "name of the run's folder; empty: the time")
    num_threads: int = setting(0, "threads of torch; 0 leaves the number to torch", between(0, 1024))
    wandb_project: str = setting("", "project of Weights & Biases; empty: none")
    environment: dict[str, Any] = setting({}, "games of the task `alfworld_episode`")
    policy: dict[str, Any] = setting({}, "the same task's policy, as the section `policy`")

    def check_combinations(self) -> None:
        """`runner_iter` needs its two counts, an evaluation its split and no checkpoint to continue."""
        if self.runner == "runner_iter" and not (self.max_iters and self.iters_per_inner_epoch):
            raise ConfigError("run.runner=runner_iter needs run.max_iters and run.iters_per_inner_epoch, both above 0")
        for key in ("max_iters", "iters_per_inner_epoch"):
            valid = self.runner != "runner_base" or not getattr(self, key)
            check_has_effect(f"run.{key}", getattr(self, key), valid, "run.runner=runner_iter")
        if self.min_len > self.max_len:
            raise ConfigError(
                f"run.min_len={self.min_len} is more than run.max_len={self.max_len}: no answer could end"
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
        """The splits that the run needs; an evaluation takes `valid_splits` if there are no `test_splits`."""
        if self.evaluate:
            return self.test_splits or self.valid_splits
        return [*self.train_splits, *self.valid_splits, *self.test_splits]

    def require_splits(self, known: Collection[str]) -> None:
        """ConfigError if the run needs a split that is not among the `known` ones."""
        for split in self.splits:
            if split not in known:
                raise ConfigError(
                    f"there is no split {split!r}; datasets have: {', '.join(known) or 'none'}. Set "
                    f"datasets.alfworld_cap.build_info.annotations.{split}.storage (or .url)"
                )


def foreign_keys(run: DictConfig) -> list[str]:
    """The keys of a `run:` section that are none of `RunSettings`."""
    names = {item.name for item in fields(RunSettings)}
    return [str(key) for key in run if str(key) not in names]


LISTS = frozenset(name for name, hint in get_type_hints(RunSettings).items() if hint == list[str])
SECTIONS = frozenset(name for name, hint in get_type_hints(RunSettings).items() if hint == dict[str, Any])
TEXTS = frozenset(f"run.{name}" for name, hint in get_type_hints(RunSettings).items() if hint in (str, str | None))


def read_settings(run: DictConfig, *, own_keys: bool = False) -> RunSettings:
    """The typed `run:` section; ConfigError names an unknown key and the nearest one, or a value of a wrong type.

    With `own_keys` the section may hold more (`foreign_keys`): a task of a third party reads them.
    """
    run = run.copy()

    def given(key: str) -> Any:
        try:
            return run.get(key, "")
        except OmegaConfBaseException as error:  # a reference that leads nowhere
            raise ConfigError(f"run.{key}: {first_sentence(error)}") from error

    # `run.job_id=` on the command line is no text in yaml, but none.
    for item in fields(RunSettings):
        if item.default == "" and given(item.name) is None:
            run[item.name] = ""
    foreign = foreign_keys(run)
    if own_keys:
        run = OmegaConf.masked_copy(run, [str(key) for key in run if str(key) not in foreign])
    elif foreign:
        raise ConfigError(unknown("key", f"run.{foreign[0]}", [f"run.{item.name}" for item in fields(RunSettings)]))
    for key in map(str, run):
        # Before OmegaConf converts it: the text of the number 7 would be "7" where the file says 007.
        if f"run.{key}" in TEXTS and is_no_text(given(key)):
            raise ConfigError(f"run.{key}: yaml reads {run[key]!r} here; put the text in quotes")
        if key in LISTS and not isinstance(given(key), ListConfig):
            raise ConfigError(not_a_list(f"run.{key}", run[key]))
        if key in SECTIONS and not isinstance(given(key), DictConfig):
            raise ConfigError(f"run.{key}: {run[key]!r} is not {KINDS[dict[str, Any]]}")
    # A structured config holds every key to the type of its field, and `to_object` calls the class, which checks rules.
    try:
        settings = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(RunSettings), run))
    except OmegaConfBaseException as error:
        raise ConfigError(f"run.{error.full_key or error.key}: {str(error).splitlines()[0]}") from error
    assert isinstance(settings, RunSettings)
    return settings
