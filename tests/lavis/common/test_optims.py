"""Learning-rate schedules against numbers recorded from salesforce-lavis 1.0.2."""

from __future__ import annotations

import pytest
import torch

from lavis.common import optims  # noqa: F401  (registers the schedules)
from lavis.common.registry import registry

POINTS = [(0, 0), (0, 1), (0, 150), (0, 300), (0, 1000), (1, 0), (1, 299), (4, 5), (9, 0), (10, 0)]  # (epoch, step)
WARMUP = [1e-08, 3.433e-07, 5.0005e-05, 1e-4, 1e-4]
RECORDED = [
    (
        "linear_warmup_cosine_lr",
        {"max_epoch": 10, "min_lr": 1e-6, "init_lr": 1e-4, "warmup_steps": 300, "warmup_start_lr": 1e-8},
        [*WARMUP, 9.757729755661011e-05, 9.757729755661011e-05, 6.57963412215599e-05, 3.4227024433899e-06, 1e-06],
    ),
    (
        "linear_warmup_step_lr",
        {
            "max_epoch": 10,
            "min_lr": 2e-5,
            "init_lr": 1e-4,
            "decay_rate": 0.5,
            "warmup_steps": 300,
            "warmup_start_lr": 1e-8,
        },
        [*WARMUP, 5e-05, 5e-05, 2e-05, 2e-05, 2e-05],
    ),
    (
        "linear_warmup_cosine_lr",
        {"max_epoch": 10, "min_lr": 0, "init_lr": 1e-4},
        [*[1e-4] * 5, 9.755282581475769e-05, 9.755282581475769e-05, 6.545084971874738e-05, 2.4471741852423e-06, 0.0],
    ),
    ("linear_warmup_step_lr", {"max_epoch": 3, "min_lr": 0, "init_lr": 1e-4}, [1e-4] * 10),
    (
        "constant_lr",
        {"init_lr": 1e-4, "warmup_steps": 300, "warmup_start_lr": 1e-8, "max_epoch": 3, "min_lr": 0},
        [*WARMUP, *[1e-4] * 5],
    ),
    ("constant_lr", {"init_lr": 1e-4, "warmup_steps": 0, "warmup_start_lr": 1e-8}, [1e-8, *[1e-4] * 9]),
]


@pytest.mark.parametrize(("name", "settings", "want"), RECORDED)
def test_schedule(name: str, settings: dict, want: list[float]) -> None:
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.AdamW([{"params": [weight]} for weight in weights], lr=0.0)
    scheduler = registry.get_lr_scheduler_class(name)(optimizer=optimizer, **settings, unknown_to_it=1)
    got = []
    for epoch, step in POINTS:
        scheduler.step(cur_epoch=epoch, cur_step=step)
        assert optimizer.param_groups[0]["lr"] == optimizer.param_groups[1]["lr"]
        got.append(optimizer.param_groups[0]["lr"])
    assert got == pytest.approx(want, rel=1e-9, abs=1e-18)


def test_unknown_schedule_lists_what_exists() -> None:
    with pytest.raises(ValueError, match="constant_lr, linear_warmup_cosine_lr, linear_warmup_step_lr"):
        registry.get_lr_scheduler_class("polynomial")
    with pytest.raises(ValueError, match="unknown learning rate scheduler 'linear_warmup': did you mean 'linear"):
        registry.get_lr_scheduler_class("linear_warmup")
