"""Learns from stored shards in float32, alone or in the group that torch.distributed.run started; not a test itself.

Usage: grouped_learner.py BUFFER RESULT: the first process writes losses and weights of both methods to RESULT.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import torch

from lavis.common.devices import set_seed
from lavis.common.dist_utils import end_distributed_mode, init_distributed_mode, is_main_process
from lavis.common.optims import LinearWarmupCosineLRScheduler
from lavis.models.blip2_models.emac_config import PARTS
from xrl_alignment.builders.student import load_student
from xrl_alignment.dagger import learner as module
from xrl_alignment.runs.replay import DPOReplayBuffer, ReplayBuffer

FROZEN = {"amp": "", "freeze_llm": True, "freeze_vit": True, "freeze_qformer": True, "allow_random": list(PARTS)}


def learn(buffer: Path, *, preferences: bool) -> dict:
    """Three updates of two batches of five; the fifth sample makes the shares of two processes unequal."""
    set_seed(0)
    model, vis_processor = load_student(FROZEN, torch.device("cpu"))
    if preferences:
        model.set_reference()
    replay = (DPOReplayBuffer if preferences else ReplayBuffer)(buffer, seed=0)
    for path in sorted(buffer.glob("*.h5")):
        replay.add_shard(path.name)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3, weight_decay=0.05)
    schedule = {"max_epoch": 2, "min_lr": 0.0, "init_lr": 1e-3, "warmup_steps": 2, "warmup_start_lr": 1e-4}
    made = module.Learner(
        model=model,
        vis_processor=vis_processor,
        buffer=replay,
        optimizer=optimizer,
        lr_scheduler=LinearWarmupCosineLRScheduler(optimizer=optimizer, **schedule),
        batch_size=5,
        accum_grad_steps=2,
        updates=3,
        preferences=preferences,
    )
    figures: list[dict[str, float]] = []
    made.learn(0, lambda metrics: figures.append(dict(metrics.scalars())))
    references = made.references.shared_state()
    return {"figures": figures, "weights": model.trainable_state_dict(), "references": len(references["places"])}


def main(buffer: Path, result: Path) -> None:
    """Both methods."""
    torch.set_num_threads(1)
    module.autocast = lambda device: contextlib.nullcontext()
    init_distributed_mode(device="cpu")
    results = {name: learn(buffer, preferences=name == "dpo") for name in ("bc", "dpo")}
    if is_main_process():
        torch.save(results, result)
    end_distributed_mode()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
