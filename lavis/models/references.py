"""Caches the reference policy's log-probabilities per transition, for DPO.

The reference policy never changes, and a run draws each transition several times: without the cache a third of a DPO
step's operations repeats known results. The cache is valid only if a transition's inputs are constant (images processed
as for evaluation); with random crops nothing may be cached.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from typing import Any

import torch

from lavis.common.dist_utils import gathered
from lavis.models.student import Student, questions_of

Place = tuple[str, int]  # a file's name, and the number of a step or entry in it


class ReferenceLogps:
    """The reference policy's log-probabilities by transition; valid while `model.reference_hash()` stays the same.

    `data` are the settings by which images and texts are read (plain containers): a resumed run with others computes
    the log-probabilities anew.

    `state` and `restore` give a resumed run the same numbers to the last bit: computed again in another batch they
    would differ by rounding.
    """

    def __init__(self, model: Student, data: Any = None) -> None:
        self._model = model
        written = json.dumps(data, sort_keys=True, default=str)
        self._data = f" {hashlib.sha256(written.encode()).hexdigest()}" if data is not None else ""
        self._key = ""
        self._known: dict[Place, tuple[float, float]] = {}

    def __len__(self) -> int:
        """Number of cached transitions."""
        return len(self._known)

    def add_to(self, samples: dict[str, Any], places: Sequence[Place]) -> None:
        """Put `ref_logps_pos` and `ref_logps_neg` (N,) float32 beside the pairs of `samples`, which lie at `places`.

        Computes those that are new, each once. ConfigError if the model has no reference policy.
        """
        # log pi_ref(y | x) depends on the reference's weights and on x: another reference or reader, another cache.
        if self._key != (key := self._model.reference_hash() + self._data):
            self._key, self._known = key, {}
        # A transition drawn twice in one batch is computed once. {place: one of its rows}
        rows = {place: row for row, place in enumerate(places) if place not in self._known}
        if rows:
            # All images are encoded, also those of known transitions: the policy reads them next.
            questions = self._model.encoded(questions_of(samples, samples["text_input"]))
            samples["encoded"] = [question.encoded for question in questions]
            pairs = [(samples["text_output_pos"][row], samples["text_output_neg"][row]) for row in rows.values()]
            with torch.no_grad(), self._model.as_reference():
                logps = self._model.answer_logps([questions[row] for row in rows.values()], pairs)
            self._known |= dict(zip(rows, map(tuple, logps.tolist()), strict=True))
        # From the cache also what was just computed: a resumed run gets the same float32 numbers.
        both = torch.tensor([self._known[place] for place in places])
        samples["ref_logps_pos"], samples["ref_logps_neg"] = both.unbind(1)

    def state(self) -> dict[str, Any]:
        """The cache, in containers that a checkpoint may hold."""
        # File names are long and repeated: each is written once, and places are pairs of whole numbers (K, 2).
        shards = {name: number for number, name in enumerate(dict.fromkeys(name for name, _ in self._known))}
        # The key goes with the values: a resume may have another reference, whose numbers these are not.
        return {
            "key": self._key,
            "shards": list(shards),
            "places": torch.tensor([(shards[name], step) for name, step in self._known]).reshape(-1, 2),
            "logps": torch.tensor(list(self._known.values())).reshape(-1, 2),
        }

    def forget(self, shards: Collection[str]) -> None:
        """The transitions of `shards` are drawn no more, or are others now, under the same name."""
        self._known = {place: logps for place, logps in self._known.items() if place[0] not in shards}

    def shared_state(self) -> dict[str, Any]:
        """`state` of the caches of all processes, which all then have; every process must call it."""
        # Each process has computed its own rows of every batch, so their caches hold different transitions.
        for state in gathered(self.state()):
            self.restore(state)
        return self.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Add what `state` holds; entries of another reference policy are dropped."""
        # Back from the numbers of `state`: shards are counted in their order there.
        names = state["shards"]
        places = [(names[shard], step) for shard, step in state["places"].tolist()]
        if self._key != state["key"]:
            self._key, self._known = state["key"], {}
        self._known |= zip(places, map(tuple, state["logps"].tolist()), strict=True)
