"""Losses whose gradient reaches only their inputs, a few rows at a time.

Where only the parts before the language model train, the language model's activations serve one purpose: the gradient
with respect to its input. Each row's gradient is computed during the forward pass, and the row's activations are then
freed, so the peak of memory does not grow with the batch. A surrogate loss, the inner product of inputs and gradient,
carries the gradient on to the trained parts: the chain rule, cut at the input as in GradCache (Gao et al. 2021,
arXiv:2101.06983, sec. 3), which cuts at a network's output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# Loss scaling (Micikevicius et al. 2018, arXiv:1710.03740, sec. 3.2): float16 cannot represent small gradients, and the
# caller's scale is not known yet. A power of two changes no digit.
FLOAT16_SCALE = 4096.0


def chunked(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Chunks of row numbers, each of at most `budget` tokens (rows x longest length), and of at least one row.

    Rows of like length share a chunk.
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
    """Values of all rows, and the surrogate loss: a scalar 0 whose gradient is that of the whole loss.

    `values_of(inputs[rows], rows)` gives (len(rows), K) values; `loss_of(values, rows)` the rows' share of the loss,
    the shares adding up to it. The loss of the returned values (N, K), which carry no gradient, plus the surrogate loss
    has the loss's value and its gradient with respect to `inputs` (N, …).
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
    surrogate = (inputs.float() * gradient).sum()
    return torch.cat(values)[torch.tensor(order).argsort()], surrogate - surrogate.detach()


def _autocast_dtype(inputs: Tensor) -> torch.dtype | None:
    device = inputs.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
