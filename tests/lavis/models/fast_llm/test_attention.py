"""The CPU attention against PyTorch's, values and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lavis.models.fast_llm import attention


class Causal(torch.nn.Module):
    """Stands for an attention layer of a decoder."""

    is_causal = True

    def __init__(self, groups: int = 1) -> None:
        super().__init__()
        self.num_key_value_groups = groups


def random(heads: int, length: int) -> torch.Tensor:
    """bfloat16 (3, heads, length, 8) that wants gradients."""
    return torch.randn(3, heads, length, 8).bfloat16().requires_grad_()


@pytest.mark.parametrize("amx", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("new", "seen", "key_heads"), [(7, 7, 4), (230, 230, 4), (230, 230, 2), (1, 50, 4), (230, 240, 2)]
)
def test_equals_pytorch(
    monkeypatch: pytest.MonkeyPatch, amx: bool, masked: bool, new: int, seen: int, key_heads: int
) -> None:
    monkeypatch.setattr(attention, "AMX", amx)
    monkeypatch.setattr(
        attention, "CACHE_BYTES", 4 * min(new, attention.BLOCK) * seen * 2 * 2
    )  # two of the three rows at a time
    torch.manual_seed(0)
    query, key, value = random(4, new), random(key_heads, seen), random(key_heads, seen)
    mask = torch.ones(3, 1, new, seen, dtype=torch.bool).tril(seen - new)
    if masked:
        mask[1, :, :, 2:5] = False
        mask |= torch.eye(new, seen, dtype=torch.bool)
    unmasked = not masked and new in (1, seen)  # between these Transformers always gives a mask
    got, _ = attention.cpu_attention(Causal(4 // key_heads), query, key, value, None if unmasked else mask)
    wide = [x.repeat_interleave(4 // key_heads, dim=1).float() for x in (key, value)]
    want = F.scaled_dot_product_attention(query.float(), *wide, attn_mask=mask).transpose(1, 2)
    assert torch.allclose(got.float(), want, atol=0.03)
    direction = torch.randn_like(want)
    mine = torch.autograd.grad((got.float() * direction).sum(), (query, key, value))
    theirs = torch.autograd.grad((want * direction).sum(), (query, key, value))
    for a, b in zip(mine, theirs, strict=True):
        assert (a.float() - b.float()).norm() < 0.02 * b.float().norm()


@pytest.mark.parametrize("width", [8, 16])
def test_masks_of_heads_and_values_of_another_width_go_to_pytorch(width: int) -> None:
    query, value = torch.randn(2, 4, 6, 8).bfloat16(), torch.randn(2, 4, 6, width).bfloat16()
    mask = torch.ones(1, 4, 6, 6, dtype=torch.bool).tril() if width == 8 else None
    got, _ = attention.cpu_attention(Causal(), query, query, value, mask)
    want = F.scaled_dot_product_attention(query, query, value, mask, is_causal=mask is None).transpose(1, 2)
    assert torch.equal(got, want)


def test_float32_goes_to_pytorch() -> None:
    query = torch.randn(2, 4, 6, 8)
    got, _ = attention.cpu_attention(Causal(), query, query, query, None)
    want = F.scaled_dot_product_attention(query, query, query, is_causal=True).transpose(1, 2)
    assert torch.equal(got, want)
