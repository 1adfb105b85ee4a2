"""Several models by name: each is loaded at its first request, and unloaded if another one needs the memory.

All methods except `status`, `loaded` and `settings` run in the model thread (`admission.batch_queue`), one at a time.
"""

from __future__ import annotations

import gc
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lavis.common.errors import ConfigError, EmacError, unknown
from policy_server.metrics import Metrics
from policy_server.models.loading import load_model
from policy_server.models.vision_model import ChatAnswer, ChatJob, ModelJob, VisionModel
from policy_server.refusals import RequestRefused
from policy_server.settings import ModelSettings

logger = logging.getLogger(__name__)


class ModelBudgetError(ConfigError, MemoryError):
    """A model alone is larger than `memory.models_gib`."""


class ModelPool:
    """Models of together at most `budget_bytes` (0: no limit). The least recently used one is unloaded first."""

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
        self._sizes: dict[str, int] = {}  # of each that was loaded before; its files can be smaller, or unknown

    @property
    def default(self) -> str:
        """The name of the model for requests that name none."""
        return next(iter(self.table))

    def settings(self, name: str) -> ModelSettings:
        """The settings of model `name`; RequestRefused (404) for an unknown name."""
        if name not in self.table:
            raise RequestRefused(404, "unknown_model", unknown("model", name[:80], self.table))
        return self.table[name]

    def loaded(self, name: str) -> VisionModel | None:
        """The model if it is in memory, else None."""
        return self._loaded.get(name)

    def status(self) -> list[dict[str, Any]]:
        """For each model: name, path, loaded, device, bytes."""
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
        """Bytes of all loaded models."""
        return sum(model.bytes for model in self._loaded.values())

    def get(self, name: str) -> VisionModel:
        """The model, loaded first if necessary.

        Raises ModelBudgetError if it alone exceeds the budget, and the errors of `load_model`.
        """
        settings = self.settings(name)
        if name not in self._loaded:
            # Before it has been loaded once: the bytes of its weight files, 0 if it is no local folder.
            files = Path(os.path.expanduser(settings.path)).glob("*.safetensors")
            self._make_room(name, self._sizes.get(name) or sum(file.stat().st_size for file in files))
            logger.info("loading %s from %s", name, settings.path)
            self._loaded[name] = model = self._load(settings)
            self._sizes[name] = model.bytes
            _freeze_garbage()
            self._metrics.model(name, "loaded", self.bytes())
        self._loaded.move_to_end(name)
        self._make_room(name, 0)  # in memory it can be larger than its files
        return self._loaded[name]

    def answer(self, name: str, jobs: Sequence[ModelJob | ChatJob]) -> list[str | ChatAnswer | Exception]:
        """For each job a text (`ModelJob`), a `ChatAnswer` (`ChatJob`), or an exception.

        If a batch fails, each of its jobs is tried alone: one bad job, or too little memory for the whole batch, does
        not fail the others.
        """
        try:
            model = self.get(name)
        except EmacError as error:
            logger.error("model %s cannot be loaded: %s", name, error)
            return [RequestRefused(503, "model_unavailable", f"model {name} cannot be loaded: {error}")] * len(jobs)
        except Exception:  # a bug, or a fault of a library: the traceback belongs into the log
            logger.exception("model %s cannot be loaded", name)
            return [RequestRefused(503, "model_unavailable", f"model {name} cannot be loaded")] * len(jobs)
        try:
            # Actions and conversations go to different methods; the answers come back in the order of the jobs.
            acting = [job for job in jobs if isinstance(job, ModelJob)]
            chatting = [job for job in jobs if isinstance(job, ChatJob)]
            actions = iter(model.answer(acting) if acting else ())
            messages = iter(model.chat(chatting) if chatting else ())
            return [next(messages) if isinstance(job, ChatJob) else next(actions) for job in jobs]
        except Exception as error:
            if len(jobs) == 1 and isinstance(error, EmacError):  # the job does not fit the model
                reason = f"the model refused: {' '.join(str(error).split())}"
                return [RequestRefused(422, "not_answerable", reason)]
            if len(jobs) == 1:  # a bug
                logger.error("the model failed", exc_info=error)
                return [RequestRefused(500, "model_failed", f"the model failed: {type(error).__name__}")]
            logger.warning("a batch of %d jobs failed (%s): trying each job alone", len(jobs), error)
        return [answer for job in jobs for answer in self.answer(name, [job])]

    def _make_room(self, name: str, needed: int) -> None:
        """Unload other models, the least recently used first, until `needed` more bytes fit for model `name`.

        If it cannot fit even alone, the others stay, and it is unloaded if it was loaded; then ModelBudgetError.
        """
        if not self.budget_bytes:
            return
        total = needed + (self._loaded[name].bytes if name in self._loaded else 0)
        if total > self.budget_bytes:
            if name in self._loaded:
                self._unload(name)
            raise ModelBudgetError(
                f"model {name} needs {total / 2**30:.3f} GiB; memory.models_gib is {self.budget_bytes / 2**30:.3f}"
            )
        for other in [loaded for loaded in self._loaded if loaded != name]:  # a copy: `_unload` changes `_loaded`
            if self.bytes() + needed > self.budget_bytes:
                self._unload(other)

    def _unload(self, name: str) -> None:
        # In this order: what modules refer to in cycles is freed only by the collection, and only freed blocks can go
        # back from torch's cache to the GPU.
        del self._loaded[name]
        _freeze_garbage()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        logger.info("unloaded %s", name)
        self._metrics.model(name, "unloaded", self.bytes())


def _freeze_garbage() -> None:
    """Collect garbage once, then exclude all living objects from later collections.

    A full collection over the objects of torch and Transformers takes 0.2 s. During that time no other thread runs, so
    the event loop does not answer /health either. Under load Python starts one every few seconds, and finds nothing.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
