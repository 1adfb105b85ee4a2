"""What every policy shares: the type of mixed precision."""

from __future__ import annotations

import pytest
import torch

from lavis.common.devices import autocast, half_type


@pytest.mark.parametrize(("capability", "expected"), [((7, 5), torch.float16), ((8, 0), torch.bfloat16)])
def test_a_gpu_that_computes_in_bfloat16_does_so(monkeypatch, capability, expected) -> None:
    """float16 was taken on every GPU: weights in bfloat16 overflow in it."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert half_type(torch.device("cuda")) == expected


def test_a_cpu_computes_in_bfloat16() -> None:
    with autocast(torch.device("cpu")):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
