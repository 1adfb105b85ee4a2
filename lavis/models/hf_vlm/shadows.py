"""Tensors without numbers, on which a network's own code runs, and the bytes that it would hold.

    with Bytes() as bytes_:
        without_numbers(network)          # its weights, made on torch's meta device, become shadows
        network(**inputs).sum().backward()
    bytes_.peak                           # what the tensors of forward and backward pass took together, at most

A shadow has a shape and a dtype, and says that it is on the CPU. Numbers with a point that are computed of shadows are
shadows. Whole numbers and truth values, such as the index of the largest, are zeros then; and what is computed of other
tensors alone (token ids, positions, masks, an image's grid) is computed in earnest, because networks branch on it. So
autograd, autocast, gradient checkpointing and peft's adapters do here what they do in a real step. Every tensor counts
from when an operator makes it to when nothing refers to it any more, once with all its views.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

FUSED = 1  # torch's number of the attention that keeps no scores (`SDPBackend.FLASH_ATTENTION`)
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_unsafe_index", "aten::_index_put_impl_"}


class Shadow(Tensor):
    """A tensor without numbers: `meta`, its twin on torch's meta device, has its shape and dtype."""

    meta: Tensor

    @staticmethod
    def __new__(cls, meta: Tensor) -> Shadow:
        """The shadow of `meta`; without gradient."""
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            meta.size(),
            strides=meta.stride(),
            storage_offset=meta.storage_offset(),
            dtype=meta.dtype,
            device=torch.device("cpu"),
        )
        made.meta = meta
        return made

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        """Its shape."""
        return f"Shadow{tuple(self.shape)}"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """RuntimeError: only within `Bytes` is anything computed of shadows."""
        raise RuntimeError(f"{func} of tensors without numbers, outside of Bytes")


class Bytes(TorchDispatchMode):
    """Within this context operators take shadows, and the bytes of what they make are counted.

    `now` is what is alive, `peak` the most since `forget_peak`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._alive: dict[int, weakref.ref] = {}

    def forget_peak(self) -> int:
        """The peak is what is alive from now on, which is returned: bytes."""
        self.peak = self.now
        return self.now

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """`func` in earnest if it takes no shadow, else on meta tensors."""
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        taken = {id(leaf.meta): leaf for leaf in given if isinstance(leaf, Shadow)}
        # A result in an argument's storage (a view, or the argument changed in place) is nothing new.
        old = {(leaf.meta if isinstance(leaf, Shadow) else leaf).untyped_storage()._cdata for leaf in given}
        if not taken:
            made = func(*args, **kwargs)
            for leaf in tree_leaves(made):
                self._count(leaf, old)
            return made
        name = func._schema.name
        # The two operators that answer with a number: which attention is taken, and what a tensor of one number holds.
        if name == "aten::_fused_sdp_choice":
            dropout = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
            return 0 if dropout else FUSED  # 0 is `SDPBackend.MATH`, which keeps the scores
        if name == "aten::_local_scalar_dense":
            return torch.zeros((), dtype=args[0].dtype).item()
        if name in _INDEXING:
            # How many rows a mask takes stands in the mask, which is no shadow and has no numbers on the meta device:
            # the places that it takes go there instead.
            indices: list[Any] = []
            for index in args[1]:
                is_mask = isinstance(index, Tensor) and not isinstance(index, Shadow) and index.dtype == torch.bool
                indices += index.nonzero().unbind(1) if is_mask else [index]
            args = (args[0], indices, *args[2:])
        args, kwargs = tree_map(_on_meta, (args, kwargs))
        if name == "aten::_grouped_mm":  # of a layer of experts: on the meta device torch takes bfloat16 alone
            made = func(args[0].bfloat16(), args[1].bfloat16(), *args[2:], **kwargs).to(args[0].dtype)
        else:
            made = func(*args, **kwargs)

        def shadow(result: Any) -> Any:
            if not isinstance(result, Tensor):
                return result
            if id(result) in taken:
                return taken[id(result)]  # changed in place, it stays the shadow that it was
            if not (result.is_floating_point() or result.is_complex()):
                result = torch.zeros(result.shape, dtype=result.dtype)
                self._count(result, old)
                return result
            self._count(result, old)
            return Shadow(result)

        return tree_map(shadow, made)

    def _count(self, made: Any, old: Collection[int]) -> None:
        """Add the bytes of a tensor's storage until it is freed, if it is none of the `old` ones."""
        if not isinstance(made, Tensor):
            return
        storage = made.untyped_storage()
        # `_cdata` is the address of torch's own storage, one for all views: several Python objects may stand for it.
        key, size = storage._cdata, storage.nbytes()
        if key in old or key in self._alive:
            return

        def freed(_: weakref.ref) -> None:
            self._alive.pop(key, None)
            self.now -= size

        self._alive[key] = weakref.ref(storage, freed)
        self.now += size
        self.peak = max(self.peak, self.now)


def without_numbers(network: nn.Module) -> None:
    """Put shadows in the place of all parameters and buffers on the meta device; shared ones stay shared."""
    known: dict[int, Tensor] = {}
    for module in network.modules():
        for owned in (module._parameters, module._buffers):
            for name, value in list(owned.items()):
                if value is None or value.device.type != "meta":
                    continue
                if id(value) not in known:
                    shadow = Shadow(value.detach())
                    is_weight = isinstance(value, nn.Parameter)
                    known[id(value)] = nn.Parameter(shadow, value.requires_grad) if is_weight else shadow
                owned[name] = known[id(value)]  # type: ignore[assignment]


def _on_meta(given: Any) -> Any:
    """An operator's argument for the meta device."""
    if isinstance(given, Shadow):
        return given.meta
    if isinstance(given, Tensor):
        return given.to("meta")
    return torch.device("meta") if isinstance(given, torch.device) else given
