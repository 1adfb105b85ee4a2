"""Devices, threads and seeds."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from lavis.common import devices
from lavis.common.devices import autocast, half_type, mixed_precision, pick_device, set_seed, set_threads
from lavis.common.errors import ConfigError
from lavis.common.run_settings import RunSettings


@pytest.fixture
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def _restored() -> Iterator[None]:
    """The generators and the number of threads afterwards as before."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state(), torch.get_num_threads()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    torch.set_num_threads(states[3])


@pytest.mark.usefixtures("_no_gpu")
def test_without_a_gpu() -> None:
    assert pick_device("auto") == pick_device("cpu") == torch.device("cpu")
    for name in ("cuda", "cuda:0"):
        with pytest.raises(ConfigError, match=f"policy.device is {name}, .* no GPU: use policy.device=cpu"):
            pick_device(name, "policy.device")


def test_each_process_takes_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert pick_device("auto") == pick_device("cuda") == torch.device("cuda", 3)
    assert pick_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ConfigError, match="^run.device: there is no cuda:4, this machine has 4 GPU"):
        pick_device("cuda:4")


@pytest.mark.parametrize("name", ["gpu", "mps", "meta", "cpu:7", "cuda:"])
def test_a_name_of_no_device(name: str) -> None:
    """Torch knows some of them; a model on `meta` has no weights, and `cpu:7` passed for a processor."""
    text = f"run.device: '{name}' is not one of auto, cpu, cuda, cuda:<index>"
    with pytest.raises(ConfigError, match=text):
        pick_device(name)
    with pytest.raises(ConfigError, match=text):
        RunSettings(device=name)


@pytest.mark.usefixtures("_restored")
def test_threads() -> None:
    set_threads(1)
    assert torch.get_num_threads() == 1
    set_threads(0)
    assert torch.get_num_threads() == 1


@pytest.mark.usefixtures("_restored")
def test_the_same_seed_gives_the_same_numbers() -> None:
    def numbers(seed: int) -> tuple[float, float, float]:
        set_seed(seed)
        return random.random(), np.random.random(), torch.rand(()).item()

    assert numbers(5) == numbers(5)
    assert all(one != two for one, two in zip(numbers(5), numbers(6), strict=True))


@pytest.mark.usefixtures("_restored")
def test_a_seed_that_numpy_cannot_have_is_named() -> None:
    set_seed(2**32 - 1)
    for seed in (-1, 2**32):
        with pytest.raises(ConfigError, match=f"^run.seed: {seed} is not a number from 0 to 4294967295$"):
            set_seed(seed)


CPU = torch.device("cpu")


@pytest.mark.parametrize(("capability", "expected"), [((7, 5), torch.float16), ((8, 0), torch.bfloat16)])
def test_a_gpu_that_computes_in_bfloat16_does_so(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], expected: torch.dtype
) -> None:
    """float16 was taken on every GPU: weights in bfloat16 overflow in it."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert half_type(torch.device("cuda")) == expected


@pytest.mark.parametrize("wanted", [None, torch.bfloat16])
@pytest.mark.parametrize(("instructions", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_a_cpu_computes_in_bfloat16_if_it_has_instructions_for_it(
    monkeypatch: pytest.MonkeyPatch, instructions: bool, expected: torch.dtype, wanted: torch.dtype | None
) -> None:
    """bfloat16 was taken on every CPU: with AVX2 alone products of matrices took eight times as long."""
    monkeypatch.setattr(devices, "cpu_multiplies_bfloat16", lambda: instructions)
    with autocast(CPU, wanted):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == expected
    assert half_type(CPU) == expected
    assert mixed_precision(CPU, torch.bfloat16) == (torch.bfloat16 if instructions else None)


def test_mixed_precision_in_float32_is_none() -> None:
    assert mixed_precision(CPU, torch.float32) is None
    assert mixed_precision(CPU, torch.float16) == torch.float16
    assert mixed_precision(torch.device("cuda"), torch.bfloat16) == torch.bfloat16
