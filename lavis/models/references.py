"""What the reference policy says of a transition never changes: DPO asks it once for each and remembers.

Without this a third of a DPO step's operations goes into the reference, for answers that were known before; a run
draws each transition several times. It holds where a transition's inputs are constant: pictures processed as for
evaluation. Where they are drawn anew (random crops), nothing may be remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Place = tuple[str, int]  # a file's name and a step or entry in it
_READ = ("image", "query_output", "text_input", "text_output_pos", "text_output_neg")  # by the reference


class ReferenceLogps:
    """Log-probabilities of `model.reference` by transition; they hold as long as `model.reference_hash()` is the same.

    `state` and `restore` let a resumed run go on with the very numbers, to the last bit: computed anew in another batch
    they would differ by rounding.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._key = ""
        self._known: dict[Place, tuple[float, float]] = {}

    def __len__(self) -> int:
        """Number of transitions that are known."""
        return len(self._known)

    def add_to(self, samples: dict[str, Any], places: Sequence[Place]) -> None:
        """Put `ref_logps_pos` and `ref_logps_neg` (N,) float32 beside the pairs of `samples`, which lie at `places`.

        Asks the reference about those that are new, each once. ValueError where the model has no reference.
        """
        if self._key != (key := self._model.reference_hash()):
            self._key, self._known = key, {}
        rows = {place: row for row, place in enumerate(places) if place not in self._known}
        if rows:
            samples |= self._model.encoded_once(samples)
            few = {key: _rows(samples[key], list(rows.values())) for key in _READ if key in samples}
            logps = torch.stack(self._model.reference_logps(few), dim=1).tolist()
            self._known |= dict(zip(rows, map(tuple, logps), strict=True))
        both = torch.tensor([self._known[place] for place in places])
        samples["ref_logps_pos"], samples["ref_logps_neg"] = both.unbind(1)

    def state(self) -> dict[str, Any]:
        """What is known, in containers that a checkpoint may hold."""
        shards = {name: number for number, name in enumerate(dict.fromkeys(name for name, _ in self._known))}
        return {
            "key": self._key,
            "shards": list(shards),
            "places": torch.tensor([(shards[name], step) for name, step in self._known]).reshape(-1, 2),
            "logps": torch.tensor(list(self._known.values())).reshape(-1, 2),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Know what `state` knows too; what was known of another reference is forgotten."""
        names = state["shards"]
        places = [(names[shard], step) for shard, step in state["places"].tolist()]
        if self._key != state["key"]:
            self._key, self._known = state["key"], {}
        self._known |= zip(places, map(tuple, state["logps"].tolist()), strict=True)


def _rows(values: Any, rows: list[int]) -> Any:
    return values[rows] if isinstance(values, torch.Tensor) else [values[row] for row in rows]
