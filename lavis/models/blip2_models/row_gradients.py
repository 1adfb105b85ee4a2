"""Losses whose gradient reaches only their inputs, a few rows at a time.

Where only what stands before the language model trains, the language model's activations serve one purpose: the
gradient with respect to its input. It can be taken row by row in the forward pass already, and each row's activations
are then forgotten. The peak of memory no longer grows with the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# float16 cannot hold small gradients, and the caller's loss scale is not known yet; a power of two changes no digit.
FLOAT16_SCALE = 4096.0


def chunked(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Numbers of rows parted so that rows x longest length stays within `budget` tokens, one row at least.

    Rows of like length come together.
    """
    chunks: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if chunks and (len(chunks[-1]) + 1) * lengths[row] <= budget:
            chunks[-1].append(row)
        else:
            chunks.append([row])
    return chunks


def values_by_rows(
    values_of: Callable[[Tensor, list[int]], Tensor],
    loss_of: Callable[[Tensor, list[int]], Tensor],
    inputs: Tensor,
    chunks: Sequence[list[int]],
) -> tuple[Tensor, Tensor]:
    """Values of all rows, and an anchor: a scalar 0 whose gradient is that of the whole loss.

    `values_of(inputs[rows], rows)` gives (len(rows), K) values; `loss_of(values, rows)` the rows' share of the loss,
    the shares adding up to it. A loss computed from the returned (N, K) values, which carry no gradient, plus the
    anchor has the loss's value and its gradient with respect to `inputs` (N, …).
    """
    scale = FLOAT16_SCALE if torch.float16 in (inputs.dtype, _autocast_dtype(inputs)) else 1.0
    values, order, gradient = [], [], torch.zeros_like(inputs, dtype=torch.float32)
    for rows in chunks:
        leaf = inputs[rows].detach().requires_grad_()
        with torch.enable_grad():
            part = values_of(leaf, rows)
            (share,) = torch.autograd.grad(loss_of(part, rows) * scale, leaf)
        gradient[rows] = share.float() / scale
        values.append(part.detach())
        order += rows
    anchor = (inputs.float() * gradient).sum()
    return torch.cat(values)[torch.tensor(order).argsort()], anchor - anchor.detach()


def _autocast_dtype(inputs: Tensor) -> torch.dtype | None:
    device = inputs.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
