"""Training few weights of a frozen network: LoRA on the language model, and LAVIS's adaptor tuning of the Q-Former.

LoRA (Hu et al. 2021, arXiv:2106.09685) adds to a frozen matrix the product of two thin ones. peft puts them in, in
place, so that the language model stays the class it is; the frozen matrix is then called `base_layer` inside its layer,
which no weight file knows: `plain_name` takes that out.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

_INNER = ".base_layer."


def add_lora(llm: nn.Module, *, rank: int, alpha: float, dropout: float, targets: Sequence[str]) -> None:
    """Put adapters of `rank`, scaled by `alpha / rank`, beside every linear layer of `llm` with a name in `targets`.

    They train in float32 and begin as no change at all. ValueError where peft is missing or no layer has such a name.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ValueError("model.lora_rank needs peft: pip install -e '.[lora]'") from error
    linear = {name.rsplit(".", 1)[-1] for name, module in llm.named_modules() if isinstance(module, nn.Linear)}
    if strange := [name for name in targets if name not in linear]:
        raise ValueError(
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
    """Add the adapters to the matrices they stand beside and take them out: a plain language model again."""
    for name, module in list(llm.named_modules()):
        if hasattr(module, "base_layer") and hasattr(module, "merge"):
            module.merge()
            parent, _, own = name.rpartition(".")
            setattr(llm.get_submodule(parent), own, module.base_layer)


def tune_adaptors(qformer: nn.Module, query_tokens: nn.Parameter) -> None:
    """LAVIS's `adaptor_tuning`: of the Q-Former dense layers and layer norms train, attention and queries do not."""
    query_tokens.requires_grad_(False)
    for name, parameter in qformer.named_parameters():
        words = name.split(".")
        parameter.requires_grad_("dense" in words or "LayerNorm" in words or "layernorm" in words)
