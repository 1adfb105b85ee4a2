"""Checkpoint and memory, by the original's names."""

import gc
import weakref

import torch

from xrl_alignment.builders.student import load_student
from xrl_alignment.runs.checkpoint import load_checkpoint, restore_model
from xrl_alignment.utils import release_memory, save_checkpoint


def test_a_checkpoint_holds_what_a_run_needs_of_it(tmp_path):
    model, _ = load_student({}, torch.device("cpu"))
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
    path = save_checkpoint(model, optimizer, None, 3, tmp_path / "out")
    assert path == tmp_path / "out" / "emma_checkpoint_3.pth"
    content = load_checkpoint(path)
    assert content["round"] == 3 and content["optimizer"]["param_groups"] and content["scaler"] is None
    restore_model(model, content, path)


def test_release_memory_frees_what_nobody_holds():
    gc.disable()
    try:
        model = torch.nn.Linear(2, 2)
        model.itself = [model]
        there = weakref.ref(model)
        del model
        assert there() is not None  # a cycle: only the collector can free it
        release_memory()
        assert there() is None
    finally:
        gc.enable()
