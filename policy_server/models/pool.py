"""The models by name: loaded when they are first asked, unloaded when memory is needed for another.

Everything but `status` and `device` runs in the model thread (`batching.BatchQueue`), one call at a time.
"""

from __future__ import annotations

import gc
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from policy_server.metrics import Metrics
from policy_server.models.transformers_model import Job, VisionModel, expected_bytes, load_model
from policy_server.refusals import Refusal
from policy_server.settings import ModelSettings

logger = logging.getLogger(__name__)


class ModelPool:
    """Up to `budget_bytes` of models (0: no limit); the one not asked for the longest makes room."""

    def __init__(
        self,
        table: Mapping[str, ModelSettings],
        budget_bytes: int,
        metrics: Metrics,
        load: Callable[[ModelSettings], VisionModel] = load_model,
    ) -> None:
        self.table = dict(table)
        self.budget_bytes = budget_bytes
        self._metrics = metrics
        self._load = load
        self._loaded: OrderedDict[str, VisionModel] = OrderedDict()  # least recently used first

    @property
    def default(self) -> str:
        """The name of the model that a request without one gets."""
        return next(iter(self.table))

    def settings(self, name: str) -> ModelSettings:
        """The settings of a model; Refusal (404) for an unknown name."""
        if name not in self.table:
            raise Refusal(404, "unknown_model", f"unknown model {name[:80]!r}; there are {', '.join(self.table)}")
        return self.table[name]

    def loaded(self, name: str) -> VisionModel | None:
        """The model if it is in memory."""
        return self._loaded.get(name)

    def status(self) -> list[dict[str, Any]]:
        """Every model: name, path, loaded, device, bytes."""
        entries = []
        for name, settings in self.table.items():
            model = self._loaded.get(name)
            entries.append(
                {
                    "name": name,
                    "path": settings.path,
                    "loaded": model is not None,
                    "device": model.device if model else "",
                    "bytes": model.bytes if model else 0,
                }
            )
        return entries

    def bytes(self) -> int:
        """Of all models in memory."""
        return sum(model.bytes for model in self._loaded.values())

    def get(self, name: str) -> VisionModel:
        """The model, loaded if need be.

        Raises MemoryError where it alone is over the budget, and whatever loading it raises (`vision_models`).
        """
        settings = self.settings(name)
        if name not in self._loaded:
            self._make_room(expected_bytes(settings))
            logger.info("loading %s from %s", name, settings.path)
            self._loaded[name] = self._load(settings)
            _tidy_memory()
            self._metrics.model(name, "loaded", self.bytes())
        self._loaded.move_to_end(name)
        self._make_room(0, keep=name)  # it may have become larger than its files promised
        return self._loaded[name]

    def answer(self, name: str, jobs: Sequence[Job]) -> list[str | Exception]:
        """A text, or what went wrong, for each job.

        A batch that fails is asked again one by one: a single bad request, or memory that does not reach for all of
        them together, does not fail the others.
        """
        try:
            model = self.get(name)
        except (OSError, ValueError, ImportError, MemoryError) as error:
            logger.error("model %s cannot be loaded: %s", name, error)
            return [Refusal(503, "model_unavailable", f"model {name} cannot be loaded: {error}")] * len(jobs)
        try:
            return list(model.answer(jobs))
        except Exception as error:
            if len(jobs) == 1:
                return [_refusal(error)]
            logger.warning("a batch of %d failed (%s): asking one by one", len(jobs), error)
        return [answer for job in jobs for answer in self.answer(name, [job])]

    def _make_room(self, needed: int, keep: str = "") -> None:
        """Unload the oldest until `needed` more bytes fit; MemoryError where they do not even alone."""
        if not self.budget_bytes:
            return
        for oldest in [name for name in self._loaded if name != keep]:
            if self.bytes() + needed > self.budget_bytes:
                self._unload(oldest)
        over = self.bytes() + needed
        if over > self.budget_bytes:
            if keep:
                self._unload(keep)
            raise MemoryError(f"it needs {over / 2**30:.3f} GiB; memory.models_gib is {self.budget_bytes / 2**30:.3f}")

    def _unload(self, name: str) -> None:
        del self._loaded[name]
        _tidy_memory()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        logger.info("unloaded %s", name)
        self._metrics.model(name, "unloaded", self.bytes())


def _tidy_memory() -> None:
    """Collect garbage, then take all that is left out of later collections.

    A collection of everything that torch and Transformers have made holds the interpreter for 0.2 s, and with it every
    other thread: the event loop, so /health too. It is due every few seconds under load, for nothing.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _refusal(error: Exception) -> Refusal:
    """What the client is told: a ValueError is about the request, everything else our own trouble."""
    if isinstance(error, ValueError):
        return Refusal(422, "not_answerable", f"the model refused: {' '.join(str(error).split())}")
    logger.error("the model failed", exc_info=error)
    return Refusal(500, "model_failed", f"the model failed: {type(error).__name__}")
