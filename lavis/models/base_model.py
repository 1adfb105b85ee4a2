"""LAVIS's base class of models: device, loading, parameter groups and counts, what a checkpoint of the model holds.

A model that learns to act has more: `lavis.models.student_model.StudentModel`.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from lavis.common.devices import autocast
from lavis.common.errors import ConfigError, unknown, why_unreadable
from lavis.common.utils import get_abs_path, get_cache_path, is_url
from lavis.models import download
from lavis.models.tensor_files import TensorFileError, load_tensors

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)
LIBRARY_ROOT = Path(__file__).resolve().parents[1]
# Parts of parameters' names without weight decay, beside all parameters of one dimension: LAVIS's rule.
UNDECAYED = ("bias", "ln", "bn")


class BaseModel(nn.Module):
    """A model with named types, each with a yaml of its own (`PRETRAINED_MODEL_CONFIG_DICT`; none are needed).

    A subclass brings `from_config`, and a `forward(samples)` that returns a dictionary with "loss". `BaseModel` may be
    the second base class, after one of another library.
    """

    PRETRAINED_MODEL_CONFIG_DICT: Mapping[str, str] = {}
    amp: torch.dtype | None = None  # of autocast; None: no mixed precision
    _frozen_hash: str = ""  # of `base_hash`, computed once

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    def maybe_autocast(self) -> AbstractContextManager:
        """Autocast to the config's `amp` type where `devices.autocast` has it; nothing if `amp` is unset."""
        return nullcontext() if self.amp is None else autocast(self.device, self.amp)

    # ---- loading ----------------------------------------------------------------------------------------------------

    @classmethod
    def default_config_path(cls, model_type: str) -> str:
        """Path of the yaml of `model_type`; ConfigError for an unknown type."""
        if model_type not in cls.PRETRAINED_MODEL_CONFIG_DICT:
            raise ConfigError(unknown("model type", model_type, cls.PRETRAINED_MODEL_CONFIG_DICT))
        return get_abs_path(cls.PRETRAINED_MODEL_CONFIG_DICT[model_type])

    @classmethod
    def from_config(cls, cfg: Mapping[str, Any]) -> Self:
        """Build the model that the `model:` section of a config describes."""
        raise NotImplementedError(f"{cls.__name__} does not say how it is built from a config")

    @classmethod
    def from_pretrained(cls, model_type: str) -> Self:
        """Build `model_type` from its own yaml."""
        return cls.from_config(OmegaConf.load(cls.default_config_path(model_type)).model)

    def load_checkpoint(self, url_or_filename: str) -> Any:
        """Load weights from a file, or from one on the web that is downloaded once; names that differ are logged.

        Returns torch's lists of missing and unexpected keys. MissingFileError, or ConfigError for another kind of file.
        """
        path = Path(url_or_filename)
        if is_url(url_or_filename):
            path = download.fetched(url_or_filename, download.cached_path(url_or_filename, Path(get_cache_path(""))))
        try:
            content = load_tensors(path)
            state = content["model"] if isinstance(content.get("model"), Mapping) else content
            found = self.load_state_dict(state, strict=False)
        except (OSError, TensorFileError, AttributeError, TypeError) as error:
            raise ConfigError(f"{path} cannot be loaded: {why_unreadable(path, error)}") from error
        except RuntimeError as error:  # torch's: weights of another shape
            reason = " ".join(str(error).split())
            raise ConfigError(f"{path} does not fit {type(self).__name__}: {reason}") from error
        if found.missing_keys or found.unexpected_keys:
            counts = f"{len(found.missing_keys)} missing, {len(found.unexpected_keys)} unexpected"
            named = ", ".join([*found.missing_keys, *found.unexpected_keys][:3])
            logger.warning("%s and %s differ in names of weights (%s): %s", path, type(self).__name__, counts, named)
        return found

    def load_from_pretrained(self, url_or_filename: str, **kwargs: Any) -> Any:
        """Load the weights that fine-tuning begins with; LAVIS's models override it."""
        return self.load_checkpoint(url_or_filename)

    def load_checkpoint_from_config(self, cfg: Mapping[str, Any], **kwargs: Any) -> None:
        """Load `cfg.finetuned`, or with `load_finetuned: False` the `cfg.pretrained` unless `load_pretrained: False`.

        ConfigError if the path that is to be loaded is not set.
        """
        finetuned = cfg.get("load_finetuned", True)
        if not finetuned and not cfg.get("load_pretrained", True):
            return
        key = "finetuned" if finetuned else "pretrained"
        path = cfg.get(key)
        if not path:
            raise ConfigError(f"model.load_{key} is True, but model.{key} names no file: set one of the two")
        if finetuned:
            self.load_checkpoint(url_or_filename=path)
        else:
            self.load_from_pretrained(url_or_filename=path, **kwargs)

    def require_sources(self) -> None:
        """ConfigError if weights that must come from a file are random; nothing by default."""

    # ---- training and evaluation -----------------------------------------------------------------------------------

    def before_training(self, **kwargs: object) -> None:
        """Called once before training, with the training set and the task's class; nothing by default."""

    def before_evaluation(self, **kwargs: object) -> None:
        """Called before each evaluation, with the split's dataset and the task's class; nothing by default."""

    def get_optimizer_params(self, weight_decay: float, lr_scale: float = 1) -> list[dict[str, Any]]:
        """Groups of an optimiser over what trains: the first with weight decay, the second without.

        Without: parameters of one dimension, and those with a name of `UNDECAYED`. `lr_scale` is LAVIS's factor of
        layers' learning rates; groups carry it for schedules that read it.
        """
        # Decay pulls weights to 0, which is right for matrices; a norm's scale belongs near 1, and a bias shifts only.
        decayed: list[nn.Parameter] = []
        undecayed: list[nn.Parameter] = []
        for name, parameter in self.named_parameters():
            if parameter.requires_grad:
                without = parameter.ndim < 2 or any(part in name for part in UNDECAYED)
                (undecayed if without else decayed).append(parameter)
        return [
            {"params": decayed, "weight_decay": weight_decay, "lr_scale": lr_scale},
            {"params": undecayed, "weight_decay": 0.0, "lr_scale": lr_scale},
        ]

    def show_n_params(self, return_str: bool = True) -> str | int:
        """Number of parameters, as "2.4M" / "12.3K" or as an int."""
        total = sum(p.numel() for p in self.parameters())
        if not return_str:
            return total
        return f"{total / 1e6:.1f}M" if total >= 1e6 else f"{total / 1e3:.1f}K"

    # ---- checkpoints ------------------------------------------------------------------------------------------------

    def trainable_state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint stores, as in LAVIS: all weights and buffers but the frozen parameters."""
        frozen = {name for name, parameter in self.named_parameters() if not parameter.requires_grad}
        return {name: value for name, value in self.state_dict().items() if name not in frozen}

    def load_trainable(self, state: Mapping[str, Tensor]) -> None:
        """Load what `trainable_state_dict` gave; ConfigError names weights that only one side has."""
        if differing := sorted(state.keys() ^ self.trainable_state_dict().keys()):
            raise ConfigError(f"{len(differing)} weights are on one side only, the first: {', '.join(differing[:3])}")
        self.load_state_dict(dict(state), strict=False)

    def base_hash(self) -> str:
        """`frozen_hash`, computed once: a checkpoint is refused by a model whose frozen part is another."""
        if not self._frozen_hash:
            self._frozen_hash = self.frozen_hash()
        return self._frozen_hash

    def frozen_hash(self, dtype: torch.dtype | None = None, trained: Collection[str] | None = None) -> str:
        """SHA-256 of the frozen parameters; with `dtype`, of them in that number format.

        With `trained`, names of `trainable_state_dict`, of those that would be frozen if these trained.
        """
        digest = hashlib.sha256()
        # Names and bytes, so that two layers which have changed places give another hash.
        for name, parameter in self.named_parameters():
            if not parameter.requires_grad if trained is None else name not in trained:
                digest.update(name.encode())
                value = parameter.detach().to(dtype if dtype and parameter.is_floating_point() else parameter.dtype)
                digest.update(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def is_base(self, found: str, trained: Collection[str] = ()) -> bool:
        """Whether `found` is the hash of this model's frozen part, or of what `trained` weights leave frozen.

        A checkpoint of one part goes on in a run that trains another one: what the checkpoint's training left frozen is
        the same, though more or less of it trains now.
        """
        if found == self.base_hash() or (trained and found == self.frozen_hash(trained=trained)):
            return True
        # Older versions hashed the weights as a CPU has them, in float32. Shards of a distributed model, and quantised
        # weights, are of other types, and cannot be hashed so.
        plain = all(type(parameter) is nn.Parameter for parameter in self.parameters())
        return plain and found == self.frozen_hash(torch.float32)

    def float(self) -> Self:  # the last one: in the class below it the name no longer means the type
        """Weights in float32, which LAVIS has on a CPU. `base_hash` stays that of the weights as they were loaded."""
        if any(parameter.dtype != torch.float32 for parameter in self.parameters()):
            self.base_hash()  # computed now, and kept: a GPU, where the weights stay as they are, finds the same one
        return super().float()
