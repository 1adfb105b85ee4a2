"""A cache of actions for observations that were answered before."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from policy_server.games.prompts import ParsedAction


class ActionCache:
    """The actions for the last `size` different observations (0: no cache); the least recently used is dropped first.

    An observation is a `key` (everything but the image) and an image's fingerprint. With `distance` 0 the fingerprint
    must be the same. Otherwise it is a perceptual hash, and the nearest one that differs in at most `distance` bits
    answers.
    """

    def __init__(self, size: int, distance: int = 0) -> None:
        self.size = size
        self.distance = distance
        self._actions: OrderedDict[tuple[Hashable, int], ParsedAction] = OrderedDict()

    def get(self, key: Hashable, fingerprint: int) -> ParsedAction | None:
        """The action stored for this observation, or for the nearest one; None if there is none."""
        if (key, fingerprint) not in self._actions:
            if not self.distance:
                return None
            # Hamming distance: the number of bits that differ. All entries are compared, each in under 1 µs: an index
            # for neighbours pays only from far more entries than a cache has.
            near = [((fingerprint ^ other).bit_count(), other) for known, other in self._actions if known == key]
            distance, fingerprint = min(near, default=(self.distance + 1, 0))
            if distance > self.distance:
                return None
        self._actions.move_to_end((key, fingerprint))
        return self._actions[key, fingerprint]

    def put(self, key: Hashable, fingerprint: int, action: ParsedAction) -> None:
        """Store an action; drops the least recently used one if the cache is full."""
        if not self.size:
            return
        self._actions[key, fingerprint] = action
        self._actions.move_to_end((key, fingerprint))
        if len(self._actions) > self.size:
            self._actions.popitem(last=False)
