"""A cache of actions for observations that were answered before."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from policy_server.games.prompts import ParsedAction


class ActionCache:
    """The actions for the last `size` different keys (0: no cache). The least recently used one is dropped first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._actions: OrderedDict[Hashable, ParsedAction] = OrderedDict()

    def get(self, key: Hashable) -> ParsedAction | None:
        """The action stored for `key`, or None."""
        if key in self._actions:
            self._actions.move_to_end(key)
        return self._actions.get(key)

    def put(self, key: Hashable, action: ParsedAction) -> None:
        """Store an action; drops the least recently used one if the cache is full."""
        if not self.size:
            return
        self._actions[key] = action
        self._actions.move_to_end(key)
        if len(self._actions) > self.size:
            self._actions.popitem(last=False)
