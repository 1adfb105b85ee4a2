"""Keys and values of prompts that were read, for prompts that go on from them.

An agent's prompt grows by a line for each step. In a causal model the keys and values of a position depend on what
stands before it alone, so those of the part that both prompts share are the same, and only what is new is read (a
prefix cache: Zheng et al. 2024, arXiv:2312.07104, sec. 3). Image tokens stand in front of Blip2Emac's prompts, so this
pays if the image stays, too, for instance black frames.

Whether two positions are the same is told by names, numbers that the caller gives them: a token's id, or a hash of the
image. Embeddings do not tell it: those of one image differ in their last bits if the batch differs.

Shapes: N prompts, T positions; a prompt's keys and values are (layers, 2, key heads, T, width).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

# Of a prompt. Shortening old steps leaves more of its beginning (of `hardest` about 0.4), and episodes of different
# games share less. Those of one game share more at first, but each finds its own prompt, which agrees longest.
ONE_EPISODE = 0.25


@dataclass
class _Kept:
    names: np.ndarray  # (T,), of the prompt's positions
    states: Tensor  # keys and values


class Beginning(NamedTuple):
    """What a prompt shares with a kept one: so many positions, their keys and values, and the kept one's key."""

    length: int
    states: Tensor
    key: int


class KeptPrompts:
    """The prompts that were read last, as many as fit into `mib` MiB; 0 keeps none.

    A prompt takes the place of the one that it goes on from, also if old steps were shortened since. All are forgotten
    if the model that read them is another one or has changed.
    """

    def __init__(self, mib: int = 0) -> None:
        self.limit = mib << 20  # bytes
        self._kept: OrderedDict[int, _Kept] = OrderedDict()  # the one used longest ago first
        self._made_by: Hashable = None
        self._next = 0

    def __deepcopy__(self, memo: object) -> KeptPrompts:
        return KeptPrompts(self.limit >> 20)  # a copy of the model reads its own prompts

    def made_by(self, model: Hashable) -> None:
        """Forget everything that another model than `model` has computed."""
        if model != self._made_by:
            self.forget()
            self._made_by = model

    def forget(self) -> None:
        """Free the memory."""
        self._kept.clear()

    def find(self, names: Tensor) -> Beginning | None:
        """The longest beginning of the prompt `names` (T,) that was read before, if there is any.

        At least one position stays to be read, because its hidden state says what follows.
        """
        wanted = names[:-1].numpy(force=True)
        agreed = {key: _agreement(wanted, kept.names) for key, kept in self._kept.items()}
        best = max(agreed, key=agreed.__getitem__, default=None)
        if best is None or not agreed[best]:
            return None
        self._kept.move_to_end(best)
        return Beginning(agreed[best], self._kept[best].states[..., : agreed[best], :], best)

    def keep(self, names: Tensor, states: Tensor, begun: Beginning | None = None) -> None:
        """Keep the prompt `names` (T,), its keys and values, not copied; `begun` is what `find` gave for this prompt.

        The kept prompt with that beginning goes if more than `ONE_EPISODE` of it came again. If it is less, an opening
        for instance, it may be another episode's, which goes on, too.
        """
        if begun and (old := self._kept.get(begun.key)) and begun.length > ONE_EPISODE * len(old.names):
            del self._kept[begun.key]
        self._kept[self._next] = _Kept(names.numpy(force=True), states)
        self._next += 1
        while self._kept and sum(kept.states.nbytes for kept in self._kept.values()) > self.limit:
            self._kept.popitem(last=False)


@dataclass(frozen=True)
class Named:
    """The kept prompts, and the names (N, T) of a batch's positions; those of pads mean nothing."""

    kept: KeptPrompts
    names: Tensor


def _agreement(one: np.ndarray, other: np.ndarray) -> int:
    """How many numbers from the first on are equal; both have one dimension."""
    both = min(len(one), len(other))
    differ = one[:both] != other[:both]
    return int(differ.argmax()) if differ.any() else both
