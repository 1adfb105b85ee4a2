"""Caches the reference policy's log-probabilities per transition, for DPO.

The reference policy never changes, and a run draws each transition several times: without the cache a third of a DPO
step's operations repeats known results. The cache is valid only where a transition's inputs are constant (images
processed as for evaluation); with random crops nothing may be cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lavis.common.dist_utils import gathered

Place = tuple[str, int]  # a file's name, and the number of a step or entry in it
_INPUTS = ("image", "query_output", "text_input", "text_output_pos", "text_output_neg")  # of the reference policy


class ReferenceLogps:
    """Log-probabilities of `model.reference` by transition; valid while `model.reference_hash()` stays the same.

    `state` and `restore` give a resumed run the same numbers to the last bit: computed again in another batch they
    would differ by rounding.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._key = ""
        self._known: dict[Place, tuple[float, float]] = {}

    def __len__(self) -> int:
        """Number of cached transitions."""
        return len(self._known)

    def add_to(self, samples: dict[str, Any], places: Sequence[Place]) -> None:
        """Put `ref_logps_pos` and `ref_logps_neg` (N,) float32 beside the pairs of `samples`, which lie at `places`.

        Computes those that are new, each once. ConfigError where the model has no reference policy.
        """
        if self._key != (key := self._model.reference_hash()):
            self._key, self._known = key, {}
        rows = {place: row for row, place in enumerate(places) if place not in self._known}
        if rows:
            samples |= self._model.encoded_once(samples)
            few = {key: _rows(samples[key], list(rows.values())) for key in _INPUTS if key in samples}
            logps = torch.stack(self._model.reference_logps(few), dim=1).tolist()
            self._known |= dict(zip(rows, map(tuple, logps), strict=True))
        both = torch.tensor([self._known[place] for place in places])
        samples["ref_logps_pos"], samples["ref_logps_neg"] = both.unbind(1)

    def state(self) -> dict[str, Any]:
        """The cache, in containers that a checkpoint may hold."""
        shards = {name: number for number, name in enumerate(dict.fromkeys(name for name, _ in self._known))}
        return {
            "key": self._key,
            "shards": list(shards),
            "places": torch.tensor([(shards[name], step) for name, step in self._known]).reshape(-1, 2),
            "logps": torch.tensor(list(self._known.values())).reshape(-1, 2),
        }

    def shared_state(self) -> dict[str, Any]:
        """`state` of the caches of all processes, which all then have; every process must call it."""
        for state in gathered(self.state()):
            self.restore(state)
        return self.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Add what `state` holds; entries of another reference policy are dropped."""
        names = state["shards"]
        places = [(names[shard], step) for shard, step in state["places"].tolist()]
        if self._key != state["key"]:
            self._key, self._known = state["key"], {}
        self._known |= zip(places, map(tuple, state["logps"].tolist()), strict=True)


def _rows(values: Any, rows: list[int]) -> Any:
    return values[rows] if isinstance(values, torch.Tensor) else [values[row] for row in rows]
