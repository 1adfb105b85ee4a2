"""Training few weights of a frozen network: LoRA on the language model, and LAVIS's adaptor tuning of the Q-Former.

LoRA (Hu et al. 2021, arXiv:2106.09685, eq. 3) adds to a frozen matrix the product of two thin ones. peft inserts them
in place, so the language model keeps its class. Inside an adapted layer peft names the frozen matrix `base_layer`, a
name that no weight file has: `plain_name` removes it.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from torch import nn
from transformers import PreTrainedModel

from lavis.common.errors import ConfigError, FileError, MissingExtraError
from lavis.common.files import make_folder, write_atomically
from lavis.models import fast_llm
from lavis.models.blip2_models.text import prompt_rows
from lavis.models.student import Question

if TYPE_CHECKING:
    from peft import LoraConfig, PeftMixedModel, PeftModel

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
    # A list of names: peft would take one string for a regular expression.
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=list(targets))
    inject_adapter_in_model(config, llm)
    _order_sets(config)
    _use_own_pass(llm)
    for name, parameter in llm.named_parameters():
        if is_adapter(name):
            # bfloat16 has 8 bits: most updates change a weight by less than it can tell, and would be lost.
            parameter.data = parameter.data.float()


def peft_model(model: PreTrainedModel, config: LoraConfig) -> PeftModel | PeftMixedModel:
    """`model` as peft's `PeftModel`, with the adapters of `config`."""
    from peft import get_peft_model

    _order_sets(config)
    with warnings.catch_warnings():
        # peft 0.21 asks each model for a property that Transformers 5.23 has renamed; nothing here depends on it.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        adapted = get_peft_model(model, config)
    _order_sets(adapted.peft_config["default"])
    _use_own_pass(adapted)
    return adapted


def _use_own_pass(adapted: nn.Module) -> None:
    """Give the adapted linear layers our forward and backward pass in place of peft's."""
    from peft.tuners.lora import Linear

    from lavis.models.blip2_models.adapted_linear import AdaptedLinear

    for layer in adapted.modules():
        if type(layer) is Linear:
            layer.__class__ = AdaptedLinear  # the same layer with another forward pass


def _order_sets(config: object) -> None:
    """Give the names in peft's `config` an order: it writes sets as Python iterates them, in each process otherwise."""
    for name, value in vars(config).items():
        if isinstance(value, set):
            setattr(config, name, sorted(value))


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
    modules: list[Any] = list(llm.modules())
    for module in modules:
        if _is_adapted(module):
            module.merge()
    _remove(llm)


def without(llm: nn.Module) -> nn.Module:
    """`llm` as it is without its adapters; both share all weights."""
    shared = {id(weight): weight for weight in (*llm.parameters(), *llm.buffers())}
    # What is in deepcopy's memo counts as copied: the modules are new, their weights are not.
    plain = copy.deepcopy(llm, shared)
    _remove(plain)
    return plain


class ActingModel:
    """The language model to act with: `llm`, or if it has adapters beside plain matrices, a copy with both merged.

    Merged, a Llama is plain again, which our kernels compute (`fast_llm`); unmerged, each adapted matrix costs two more
    products. The copy shares every weight that is not adapted. It is made when it is first asked for, and anew when a
    weight that it was made of has changed, as far as torch counts changes: a fused optimiser's steps
    (`AdamW(fused=True)`) are not counted, so after them call `drop`, which frees the copy's memory. `llm` itself is
    never changed: adding the product to a bfloat16 matrix and subtracting it again would not give the same matrix back.

    Keys and values of the prompts that it read last are kept, in at most `kept_mib` MiB.
    """

    def __init__(self, kept_mib: int = 0) -> None:
        self._kept = fast_llm.KeptPrompts(kept_mib)
        self._merged: Any = None
        self._made_of: tuple[tuple[int, int], ...] = ()

    @torch.no_grad()
    def of(self, llm: Any) -> Any:
        """See the class."""
        layers: list[Any] = [module for module in llm.modules() if _is_adapted(module)]
        weights = [weight for layer in layers for weight in layer.parameters()]
        # Shards of a distributed model, GPT-2's transposed matrices and routers of experts stay as they are.
        plain = all(type(layer.base_layer) is nn.Linear for layer in layers)
        if not plain or not weights or any(type(weight) is not nn.Parameter for weight in weights):
            return llm
        # The storage and the number of changes in place: an optimiser's step (but no fused one) and loading change it.
        made_of = tuple((weight.data_ptr(), weight._version) for weight in weights)
        if self._merged is None or made_of != self._made_of:
            self._merged, self._made_of = None, made_of  # the old copy's memory first
            # W + s B A in the place of each adapted matrix W. What is in deepcopy's memo counts as copied: all other
            # weights are shared with `llm`, and a merged matrix stands for its layer's copy.
            memo: dict[int, Any] = {id(weight): weight for weight in (*llm.parameters(), *llm.buffers())}
            for layer in layers:
                base, weight = layer.base_layer, layer.base_layer.weight
                delta = sum(layer.get_delta_weight(name) for name in layer.active_adapters)  # s B A
                # On the meta device: no memory for a matrix that is replaced at once.
                merged = nn.Linear(base.in_features, base.out_features, bias=False, device="meta")
                # Added in float32, so that the sum is rounded to the matrix's type once.
                merged.weight = nn.Parameter((weight.float() + delta.float()).to(weight.dtype), requires_grad=False)
                merged.bias = base.bias
                memo[id(layer)] = merged
            self._merged = copy.deepcopy(llm, memo).eval()
            if hasattr(self._merged, "peft_config"):
                del self._merged.peft_config
        return self._merged

    def named(self, model: Any, questions: Sequence[Question]) -> fast_llm.Named | None:
        """The kept prompts, and names for the positions of `model.prompt_embeds(questions)`; None if none are kept."""
        if not self._kept.limit:
            return None
        # Any weight of the model, and the type of its products, change what it computes for the same names.
        weights = ((weight.data_ptr(), weight._version) for weight in model.parameters())
        self._kept.made_by((torch.is_autocast_enabled(model.device.type), *weights))
        rows = prompt_rows(model.prompt_ids([question.prompt for question in questions], acting=True), 0).ids
        shown = []
        for question in questions:
            read = question.images if question.encoded is None else [question.encoded]
            parts = [image.numpy(force=True).tobytes() for image in read]
            # The Q-Former may read the prompt, too; then its tokens are those of this prompt alone.
            shown.append(hash((*parts, question.prompt if model.qformer_tokenizer else "")))
        # A video (frames, 3, S, S) has Q tokens for each of its frames.
        first = questions[0]
        if first.encoded is not None and first.encoded.dim() == 2:  # (tokens, width of the Q-Former)
            count = len(first.encoded)
        else:
            is_video = bool(first.images) and first.images[-1].dim() == 4
            count = model.query_tokens.shape[1] * (len(first.images[-1]) if is_video else 1)
        # (N, 1) -> (N, tokens): all tokens of an image have its name.
        images = torch.tensor(shown)[:, None].expand(-1, count)
        return fast_llm.Named(self._kept, torch.cat([images, rows], dim=1).to(model.device))

    def drop(self, *, if_training: bool) -> None:
        """Free the copy if training begins: it would be stale after the first step."""
        if if_training:
            self._merged, self._made_of = None, ()
            self._kept.forget()

    def __deepcopy__(self, memo: dict[int, Any]) -> ActingModel:
        return ActingModel(self._kept.limit >> 20)  # a copy of the model makes its own


def save(llm: nn.Module, folder: Path) -> None:
    """Write the adapters of `llm` to `folder` as peft does, which vLLM and `PeftModel.from_pretrained` read.

    Raises FileError if that fails.
    """
    from peft import get_peft_model_state_dict

    make_folder(folder)
    weights = get_peft_model_state_dict(llm)
    # Names as `PeftModel` has them, which keeps the network as `base_model.model`. safetensors refuses tensors that are
    # not contiguous.
    content = {f"base_model.model.{name}": value.detach().cpu().contiguous() for name, value in weights.items()}
    data = safetensors.torch.save(content)
    write_atomically(folder / "adapter_model.safetensors", lambda file: file.write(data))
    record: Any = llm.peft_config
    try:
        record["default"].save_pretrained(folder)
    except OSError as error:
        raise FileError(f"{folder} could not be written: {error}") from error


def _is_adapted(module: nn.Module) -> bool:
    return hasattr(module, "base_layer") and hasattr(module, "merge")


def _remove(llm: nn.Module) -> None:
    """Put the matrices that adapters adapt in the place of both."""
    for name, module in list(llm.named_modules()):
        if _is_adapted(module):
            parent, _, own = name.rpartition(".")
            setattr(llm.get_submodule(parent), own, module.base_layer)
    if hasattr(llm, "peft_config"):  # peft's record of what it put in
        del llm.peft_config


def tune_adaptors(qformer: nn.Module, query_tokens: nn.Parameter) -> None:
    """LAVIS's `adaptor_tuning`: the Q-Former's dense layers and layer norms train, its attention and queries do not."""
    query_tokens.requires_grad_(False)
    for name, parameter in qformer.named_parameters():
        # Transformers calls the norm of the Q-Former's embeddings `layernorm`, those of its layers `LayerNorm`.
        components = name.split(".")
        parameter.requires_grad_("dense" in components or "LayerNorm" in components or "layernorm" in components)
