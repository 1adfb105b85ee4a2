"""What `lavis.models` exports: every model registered by name, and the functions that load one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lavis.common.errors import ConfigError, missing_extra, unknown

try:
    import torch
    from omegaconf import DictConfig
except ModuleNotFoundError as error:
    raise missing_extra("train", error) from None

from lavis.common.config import load_yaml, merged, require_section
from lavis.common.registry import registry
from lavis.models.base_model import BaseModel
from lavis.models.blip2_models.blip2_emac import Blip2Emac
from lavis.models.hf_vlm.hf_vlm import HfVlm
from lavis.models.student_model import StudentModel
from lavis.processors import BaseProcessor, processor_of

__all__ = [
    "BaseModel",
    "Blip2Emac",
    "HfVlm",
    "StudentModel",
    "load_model",
    "load_model_and_preprocess",
    "load_preprocess",
    "model_zoo",
]

Processors = dict[str, BaseProcessor]
registry.register_model("blip2_emma")(Blip2Emac)  # EMMA's own name of it, in its programs and yaml files


def load_model(
    name: str,
    model_type: str,
    is_eval: bool = False,
    device: str | torch.device = "cpu",
    checkpoint: str | None = None,
    options: Mapping[str, object] | None = None,
) -> BaseModel:
    """The model `name` of `model_type` on `device`, with the weights of `checkpoint` if one is given.

    `options` override keys of the type's `model:` section. On the CPU all weights are float32, as in LAVIS. Unknown
    names and types are errors that list what exists.
    """
    return _load(name, _type_config(name, model_type, options), is_eval, device, checkpoint)


def load_model_and_preprocess(
    name: str,
    model_type: str,
    is_eval: bool = False,
    device: str | torch.device = "cpu",
    options: Mapping[str, object] | None = None,
) -> tuple[BaseModel, Processors, Processors]:
    """As `load_model`, with the type's image and text processors: model, vis_processors, txt_processors.

    Both dicts have the keys "train" and "eval".
    """
    cfg = _type_config(name, model_type, options)
    # `preprocess:` stands beside `model:` in the type's yaml: images have the size that its weights expect.
    return _load(name, cfg, is_eval, device), *load_preprocess(cfg.get("preprocess") or {})


def load_preprocess(config: Mapping[str, Mapping]) -> tuple[Processors, Processors]:
    """Image and text processors of a `preprocess:` section; if it names none, items pass unchanged."""

    for kind in config:
        if kind not in ("vis_processor", "text_processor"):
            raise ConfigError(unknown("key of preprocess", str(kind), ("vis_processor", "text_processor")))

    def built(kind: str) -> Processors:
        require_section(f"preprocess.{kind}", config.get(kind), "train.name=blip_image_eval")
        section = config.get(kind) or {}
        for phase in section:
            if phase not in ("train", "eval"):
                raise ConfigError(unknown(f"phase of preprocess.{kind}", str(phase), ("train", "eval")))
        return {
            phase: processor_of(section[phase], f"preprocess.{kind}.{phase}") if section.get(phase) else BaseProcessor()
            for phase in ("train", "eval")
        }

    return built("vis_processor"), built("text_processor")


def _type_config(name: str, model_type: str, options: Mapping[str, object] | None) -> DictConfig:
    kind = registry.get_model_class(name)
    # Without types the options are all.
    cfg = load_yaml(kind.default_config_path(model_type)) if kind.PRETRAINED_MODEL_CONFIG_DICT else {"model": {}}
    return merged(cfg, {"model": dict(options or {})})


def _load(
    name: str, cfg: DictConfig, is_eval: bool, device: str | torch.device, checkpoint: str | None = None
) -> BaseModel:
    model = registry.get_model_class(name).from_config(cfg.model)
    if checkpoint is not None:
        model.load_checkpoint(checkpoint)
    if torch.device(device).type == "cpu":
        # LAVIS's rule, whatever dtype the type's yaml names.
        model = model.float()
    return model.to(device).train(not is_eval)


class ModelZoo:
    """Which models and types there are; `print(model_zoo)` shows a table. A model with two names is listed once."""

    def __iter__(self) -> Iterator[tuple[str, list[str]]]:
        # Blip2Emac is registered under EMMA's name, too.
        listed = set()
        for name in registry.list_models():
            kind = registry.get_model_class(name)
            if kind not in listed:
                listed.add(kind)
                yield name, list(kind.PRETRAINED_MODEL_CONFIG_DICT)

    def __len__(self) -> int:
        """Number of types over all models."""
        return sum(len(types) for _, types in self)

    def __str__(self) -> str:
        rule = "=" * 50
        rows = [f"{name:<30} {', '.join(types)}" for name, types in self]
        return "\n".join([rule, f"{'Architectures':<30} {'Types'}", rule, *rows])


model_zoo = ModelZoo()
