"""Training few weights of a frozen network: LoRA on the language model, and LAVIS's adaptor tuning of the Q-Former.

LoRA (Hu et al. 2021, arXiv:2106.09685, eq. 3) adds to a frozen matrix the product of two thin ones. peft inserts them
in place, so the language model keeps its class. Inside an adapted layer peft names the frozen matrix `base_layer`, a
name that no weight file has: `plain_name` removes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from lavis.common.errors import ConfigError, MissingExtraError

_INNER = ".base_layer."


def add_lora(llm: nn.Module, *, rank: int, alpha: int, dropout: float, targets: Sequence[str]) -> None:
    """Put adapters of `rank`, scaled by `alpha / rank`, beside every linear layer of `llm` with a name in `targets`.

    They train in float32 and change nothing at the start. Raises MissingExtraError without peft, and ConfigError where
    no layer has such a name.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise MissingExtraError("model.lora_rank needs peft: pip install -e '.[lora]'") from error
    linear = {name.rsplit(".", 1)[-1] for name, module in llm.named_modules() if isinstance(module, nn.Linear)}
    if strange := [name for name in targets if name not in linear]:
        raise ConfigError(
            f"model.lora_targets: the language model has no layer {strange[0]!r}; it has {', '.join(sorted(linear))}"
        )
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=list(targets))
    inject_adapter_in_model(config, llm)
    for name, parameter in llm.named_parameters():
        if is_adapter(name):
            parameter.data = parameter.data.float()


def is_adapter(name: str) -> bool:
    """Whether the weight `name` belongs to an adapter."""
    return ".lora_A." in name or ".lora_B." in name


def plain_name(name: str) -> str:
    """The name that the weight `name` has in a model without adapters."""
    return name.replace(_INNER, ".")


def train_dropout(llm: nn.Module, mode: bool) -> None:
    """Set the adapters' dropout, and nothing else in `llm`, to training or evaluation."""
    for name, module in llm.named_modules():
        if name.endswith(".lora_dropout"):
            module.train(mode)


def merge(llm: nn.Module) -> None:
    """Add the adapters to the matrices they adapt and remove them: a plain language model again."""
    for name, module in list(llm.named_modules()):
        if hasattr(module, "base_layer") and hasattr(module, "merge"):
            module.merge()
            parent, _, own = name.rpartition(".")
            setattr(llm.get_submodule(parent), own, module.base_layer)


def tune_adaptors(qformer: nn.Module, query_tokens: nn.Parameter) -> None:
    """LAVIS's `adaptor_tuning`: the Q-Former's dense layers and layer norms train, its attention and queries do not."""
    query_tokens.requires_grad_(False)
    for name, parameter in qformer.named_parameters():
        components = name.split(".")
        parameter.requires_grad_("dense" in components or "LayerNorm" in components or "layernorm" in components)
