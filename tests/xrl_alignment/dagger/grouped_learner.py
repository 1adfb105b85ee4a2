"""Learns from stored shards in float32, alone or in the group that torch.distributed.run started; not a test itself.

Usage: grouped_learner.py BUFFER RESULT: the first process writes losses and weights of all methods to RESULT, and
whether a resume is exact. If the language model trains, a group shards it.
       grouped_learner.py BUFFER: the last process fails in its first forward pass of a sharded model.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from lavis.common.devices import set_seed
from lavis.common.dist_utils import (
    end_distributed_mode,
    gathered,
    get_rank,
    get_world_size,
    init_distributed_mode,
    is_main_process,
)
from lavis.common.errors import ConfigError
from lavis.common.optims import LinearWarmupCosineLRScheduler
from lavis.models.blip2_models import language
from lavis.models.blip2_models.emac_config import PARTS
from lavis.runners.parallel import Replicas
from xrl_alignment.builders.student import load_student
from xrl_alignment.dagger import learner as module
from xrl_alignment.runs.replay import DPOReplayBuffer, ReplayBuffer

FROZEN = {"amp": "", "freeze_llm": True, "freeze_vit": True, "freeze_qformer": True, "allow_random": list(PARTS)}
TRAINS = {**FROZEN, "freeze_llm": False}


def make(buffer: Path, *, preferences: bool, trains: bool) -> module.Learner:
    """For three updates of two batches of five; the fifth sample makes the shares of two processes unequal."""
    set_seed(0)
    model, vis_processor = load_student(TRAINS if trains else FROZEN, torch.device("cpu"))
    if preferences:
        model.set_reference()
    replicas = Replicas(model, fsdp=trains and get_world_size() > 1, ddp=False)
    replay = (DPOReplayBuffer if preferences else ReplayBuffer)(buffer, seed=0)
    for path in sorted(buffer.glob("*.h5")):
        replay.add_shard(path.name)
    optimizer = torch.optim.AdamW(replicas.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = {"max_epoch": 2, "min_lr": 0.0, "init_lr": 1e-3, "warmup_steps": 2, "warmup_start_lr": 1e-4}
    return module.Learner(
        replicas=replicas,
        vis_processor=vis_processor,
        buffer=replay,
        optimizer=optimizer,
        lr_scheduler=LinearWarmupCosineLRScheduler(optimizer=optimizer, **schedule),
        batch_size=5,
        accum_grad_steps=2,
        updates=3,
        preferences=preferences,
    )


def learn(made: module.Learner) -> dict:
    """All that one process must have in common with two."""
    figures: list[dict[str, float]] = []
    made.learn(0, lambda metrics: figures.append(dict(metrics.scalars())))
    references = made.references.shared_state()
    weights, moments = made.replicas.trainable_state(), made.replicas.optimizer_state(made.optimizer)["state"]
    return {"figures": figures, "weights": weights, "moments": moments, "references": len(references["places"])}


def all_methods(buffer: Path, result: Path) -> None:
    """Both losses, of a model whose projection trains and of one whose language model trains, too."""
    language.TRAINING_TOKENS["cpu"] = 64  # processes would split their shares into unequal numbers of chunks
    results = {
        name: learn(make(buffer, preferences="dpo" in name, trains="llm" in name))
        for name in ("bc", "dpo", "bc llm", "dpo llm")
    }
    results["resumed"] = all(gathered(continues(buffer)))
    if is_main_process():
        torch.save(results, result)


def continues(buffer: Path) -> bool:
    """Whether a resumed learner makes the updates of one that was never stopped, with dropout, to the last bit."""
    FROZEN.update(lora_rank=2, lora_dropout=0.3)
    whole, resumed = (make(buffer, preferences=False, trains=False) for _ in range(2))
    whole.learn(0)
    resumed.replicas.load_trainable(whole.replicas.trainable_state())
    moments = copy.deepcopy(whole.replicas.optimizer_state(whole.optimizer))
    # As the file has it, which the first process writes.
    random = gathered(whole.random_state())[0]
    whole.learn(1)
    resumed.restore({"optimizer": moments, "scaler": None, "training_step": 6, "random": random})
    resumed.learn(1)
    ends = resumed.replicas.trainable_state()
    return all(torch.equal(ends[name], value) for name, value in whole.replicas.trainable_state().items())


def fail_alone(buffer: Path) -> None:
    """The others wait for the last process in the forward pass."""
    made = make(buffer, preferences=False, trains=True)
    if get_rank() == get_world_size() - 1:
        made.model.losses = _failing
    made.learn(0)


def _failing(samples: dict, objective: str) -> None:
    raise ConfigError("the last process fails alone")


def main(task: Callable[..., None], *paths: Path) -> None:
    """`task` in this process of the group."""
    torch.set_num_threads(1)
    module.autocast = lambda device: contextlib.nullcontext()
    init_distributed_mode(device="cpu")
    try:
        task(*paths)
    finally:
        end_distributed_mode()


if __name__ == "__main__":
    main(all_methods if len(sys.argv) > 2 else fail_alone, *map(Path, sys.argv[1:]))
