"""The base class of models: device, loading from a type's config, parameter counts (LAVIS's names)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from lavis.common.errors import ConfigError, unknown
from lavis.common.run_settings import DPO_BETA

if TYPE_CHECKING:
    from typing_extensions import Self

    from lavis.models.blip2_models.text import LlmTokenizer

LIBRARY_ROOT = Path(__file__).resolve().parents[1]


class BaseModel(nn.Module):
    """A model with named types, each with a yaml of its own (`PRETRAINED_MODEL_CONFIG_DICT`)."""

    PRETRAINED_MODEL_CONFIG_DICT: Mapping[str, str] = {}
    amp: torch.dtype | None = None  # of autocast; None: no mixed precision
    dpo_beta: float = DPO_BETA  # temperature of DPO's implicit reward; a run sets it (`run.dpo_beta`)
    reference: nn.Module | None  # DPO's reference policy, where the model has one
    llm_tokenizer: LlmTokenizer  # of a model that writes text
    max_output_txt_len: int  # tokens of an answer

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    @classmethod
    def default_config_path(cls, model_type: str) -> str:
        """Path of the yaml of `model_type`; ConfigError for an unknown type."""
        if model_type not in cls.PRETRAINED_MODEL_CONFIG_DICT:
            raise ConfigError(unknown("model type", model_type, cls.PRETRAINED_MODEL_CONFIG_DICT))
        return str(LIBRARY_ROOT / cls.PRETRAINED_MODEL_CONFIG_DICT[model_type])

    @classmethod
    def from_config(cls, cfg: Mapping[str, Any]) -> Self:
        """Build the model that the `model:` section of a config describes."""
        raise NotImplementedError(f"{cls.__name__} does not say how it is built from a config")

    @classmethod
    def from_pretrained(cls, model_type: str) -> Self:
        """Build `model_type` from its own yaml."""
        return cls.from_config(OmegaConf.load(cls.default_config_path(model_type)).model)

    def load_checkpoint(self, url_or_filename: str) -> None:
        """Load weights from a file."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it loads {url_or_filename}")

    def trainable_state_dict(self) -> dict[str, Tensor]:
        """The weights that train: what a checkpoint stores."""
        raise NotImplementedError(f"{type(self).__name__} does not say what trains")

    def load_trainable(self, state: Mapping[str, Tensor]) -> None:
        """Load what `trainable_state_dict` gave."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it loads what trains")

    def require_sources(self) -> None:
        """ConfigError where weights that must come from a file are random; nothing by default."""

    def base_hash(self) -> str:
        """Hash of the frozen weights, which a checkpoint belongs to."""
        raise NotImplementedError(f"{type(self).__name__} has no hash of its frozen weights")

    def before_evaluation(self, **kwargs: object) -> None:
        """LAVIS's tasks call it before they evaluate, ours do not; nothing by default."""

    def show_n_params(self, return_str: bool = True) -> str | int:
        """Number of parameters, as "2.4M" / "12.3K" or as an int."""
        total = sum(p.numel() for p in self.parameters())
        if not return_str:
            return total
        return f"{total / 1e6:.1f}M" if total >= 1e6 else f"{total / 1e3:.1f}K"
