"""Checkpoint functions of Blip2Emac: weights in and out, the hash of what is frozen, and DPO's reference policy.

Every state dict here has native names (see `weights`); adapters keep the names they have in a plain language model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lavis.common.errors import ConfigError
from lavis.models.blip2_models import adapters, weights

if TYPE_CHECKING:
    from lavis.models.blip2_models.blip2_emac import Blip2Emac

# ---- state dicts ----------------------------------------------------------------------------------------------------


def policy_state(model: Blip2Emac) -> dict[str, Tensor]:
    """All weights of the policy under native names, without the reference; tied weights once."""
    # Transformers lists the output embeddings of a model that shares them with the input under their own name, too.
    tied = set(getattr(model.llm_model, "_tied_weights_keys", None) or ())
    skip = {f"llm_model.{name}" for name in tied} if model.llm_model.config.tie_word_embeddings else set()
    state = {adapters.plain_name(k): v for k, v in model.state_dict().items() if not k.startswith("reference.")}
    return {k: v for k, v in state.items() if k not in skip}


def trainable_state(model: Blip2Emac) -> dict[str, Tensor]:
    """The weights that train, under native names, and what training changes beside them: what a checkpoint stores."""
    names = {adapters.plain_name(name) for name, value in model.named_parameters() if value.requires_grad}
    # A batch norm whose weights train keeps means and deviations, too (`model.vit_config.batch_norm`).
    for owner, module in model.named_modules():
        if any(value.requires_grad for value in module.parameters(recurse=False)):
            names |= {f"{owner}.{name}" for name, _ in module.named_buffers(recurse=False)}
    return {k: v for k, v in policy_state(model).items() if k in names}


def take(model: nn.Module, state: Mapping[str, Tensor], expected: Mapping[str, Tensor], source: str) -> None:
    """Load weights under native names. WeightsError, which names `source`, if they are not `expected` or not finite."""
    weights.require_match(expected, state, source)
    weights.require_finite(state, source)
    inner = {adapters.plain_name(name): name for name in model.state_dict()}
    # `strict=False`: a part of the weights is enough. `require_match` has compared the names with what is expected.
    model.load_state_dict({inner.get(name, name): value for name, value in state.items()}, strict=False)


# ---- files ----------------------------------------------------------------------------------------------------------


def load_checkpoint(model: Blip2Emac, path: str | Path, *, without: Collection[str] = ()) -> None:
    """Load a weight file or folder: LAVIS's, the hub's or native names; parts that it lacks keep their weights.

    So do the parts `without`, whatever the file has of them. Keys that begin with `ref_` (EMMA's whole checkpoints)
    become the reference. Raises MissingFileError, or WeightsError for a file that is damaged or does not fit.
    """
    found = _read(model, path)
    source = f"{path} ({weights.format_of(found)} names)"
    state = {k: v for k, v in weights.to_native(found).items() if _part_of(k) not in without}
    policy, reference = weights.split_reference(state)
    own = policy_state(model)
    # What the file has more than the model needs: a text branch that is not used, rows for tokens that do not occur.
    present = {_part_of(key) for key in policy}
    if policy and present.isdisjoint(map(_part_of, own)):
        if bare := [key for key in policy if f"llm_model.{key}" in own]:
            raise ConfigError(
                f"{path} is a language model alone (it holds {bare[0]}): give it as model.llm_weights, or its folder "
                "as model.llm_model"
            )
        raise ConfigError(
            f"{path} is of a model of another kind (it holds {ascii(min(policy))[1:-1][:90]}): set model.arch as it "
            "was when the file was written"
        )
    policy = {k: v for k, v in policy.items() if k in own or not _is_text_branch(model, k)}
    # The hub's InstructBLIP has more rows of word embeddings, up to the next multiple of 64: one that marks image
    # tokens, and padding. This tokenizer uses none of them.
    words, tables = model.llm_model.config.vocab_size, ("embed_tokens.weight", "lm_head.weight")
    for key, value in policy.items():
        if key.startswith("llm_model.") and key.endswith(tables) and words < len(value) <= words + 64:
            policy[key] = value[:words]
    adapted = any(map(adapters.is_adapter, policy))
    if adapted and not any(map(adapters.is_adapter, own)):
        raise ConfigError(f"{source} has LoRA adapters: set model.lora_rank as it was when they were trained")
    # A file holds what trains, no more and no less, or else some parts, each of them whole.
    expected = trainable_state(model)
    if policy.keys() != expected.keys():
        own = {k: v for k, v in own.items() if adapted or not adapters.is_adapter(k)}
        expected = {k: v for k, v in own.items() if _part_of(k) in present}
    take(model, policy, expected, source)
    _note(model, policy, source)
    if reference:
        model.set_reference(state, source=source)


def base_loader(options: Mapping[str, Any]) -> Callable[[Blip2Emac, str | Path], None]:
    """How `base_model` is loaded: whole, or without its projection (`load_proj_layer`)."""
    return partial(load_checkpoint, without=() if options["load_proj_layer"] else ("llm_proj",))


def load_llm(model: Blip2Emac, path: str | Path) -> None:
    """Load the language model alone from a file with plain Transformers names; errors as `load_checkpoint`."""
    state = weights.to_native({f"llm_model.{k}": v for k, v in _read(model, path).items()})
    own = _own_part(model, "llm_model")
    # A file of a model with tied embeddings may hold their table under both names.
    if (tied := "llm_model.lm_head.weight") not in own:
        state.pop(tied, None)
    take(model, state, own, str(path))
    _note(model, state, str(path))


def load_vision(model: Blip2Emac, path: str | Path) -> None:
    """Load the vision encoder alone, as EVA-CLIP-g's own file has it (`weights.vision_state`), or any file with it.

    Errors as `load_checkpoint`.
    """
    found = _read(model, path)
    source = f"{path} ({weights.format_of(found)} names)"
    own = _own_part(model, "visual_encoder")
    state = weights.vision_state(weights.to_native(found), own)
    if not state:
        raise weights.WeightsError(f"{source} has no vision encoder, which model.vit_weights should bring")
    take(model, state, own, source)
    _note(model, state, source)


def _read(model: Blip2Emac, path: str | Path) -> dict[str, Tensor]:
    """The tensors of a weight file; without their numbers if the model is on the `meta` device."""
    return weights.read_shapes(path) if model.device.type == "meta" else weights.read_state(path)


def _own_part(model: Blip2Emac, part: str) -> dict[str, Tensor]:
    """The weights of `part` without its adapters."""
    return {k: v for k, v in policy_state(model).items() if _part_of(k) == part and not adapters.is_adapter(k)}


def _note(model: Blip2Emac, state: Collection[str], source: str) -> None:
    """Note `source` for the parts all of whose weights are in `state`; the hashes are computed anew."""
    model.forget_hashes()
    own: dict[str, set[str]] = {}  # part: the names of its weights
    for name in policy_state(model):
        if not adapters.is_adapter(name):
            own.setdefault(_part_of(name), set()).add(name)
    model.sources |= {part: source for part, names in own.items() if names <= set(state)}


def _is_text_branch(model: Blip2Emac, key: str) -> bool:
    """Whether `key` belongs to the Q-Former's text branch, which a model without Q-Former text does not have."""
    if model.qformer_tokenizer is not None or not key.startswith("Qformer."):
        return False
    return any(s in key for s in (".word_embeddings.", ".position_embeddings.", ".intermediate.")) or (
        ".output." in key and "attention.output." not in key
    )


def _part_of(name: str) -> str:
    return name.split(".", 1)[0]


# ---- hashes ---------------------------------------------------------------------------------------------------------


def base_hash(model: Blip2Emac, dtype: torch.dtype | None = None, trained: Collection[str] | None = None) -> str:
    """Hash (64 hex digits) of the frozen weights and of the names and shapes of those that train, or of the `trained`.

    A checkpoint belongs to the base that it was trained on. Adapters do not count: the base is the same with them. With
    `dtype`, it is the hash of the weights in that number format.
    """
    base = {name: value for name, value in sorted(policy_state(model).items()) if not adapters.is_adapter(name)}
    changed = trainable_state(model).keys() if trained is None else trained
    return weights.digest("", base, base.keys() - set(changed), dtype)


def reference_hash(model: Blip2Emac, reference: nn.Module) -> str:
    """Hash of the frozen base and of the reference's own weights: of those that it does not share with the policy."""
    named = model.named_parameters(remove_duplicate=False)
    policy = {id(value) for name, value in named if not name.startswith("reference.")}
    own = {name: value for name, value in reference.named_parameters() if id(value) not in policy}
    return weights.digest(model.base_hash(), own, own.keys())


# ---- DPO's reference policy -----------------------------------------------------------------------------------------


def reference_of(model: Blip2Emac, state: Mapping[str, Tensor] | None, source: str) -> nn.Module:
    """The reference policy's own parts, frozen; `state` and errors as in `Blip2Emac.set_reference`."""
    native = weights.to_native(trainable_state(model) if state is None else state)
    policy, reference = weights.split_reference(native)
    own = policy_state(model)
    # `new` is what the reference differs in, by name; a whole checkpoint may say so explicitly (`ref_`).
    new = {k: v for k, v in (reference or policy).items() if k in own or not _is_text_branch(model, k)}
    if not any(map(adapters.is_adapter, new)):  # LoRA's product is zero if one of its factors is
        new |= {k: torch.zeros_like(v) for k, v in own.items() if adapters.is_adapter(k)}
    lacking = [] if reference else [k for k in trainable_state(model) if k not in new]
    weights.require_match({k: own[k] for k in own if k in new or k in lacking}, new, source)
    weights.require_finite(new, source)
    # Weights without numbers (`lavis.models.sources`) may differ.
    different = {k: v for k, v in new.items() if v.is_meta or not torch.equal(v.to(own[k]), own[k])}
    # Copied are the parts that train or differ, and in them only the weights that do: the rest is shared.
    shared = {
        id(parameter): parameter
        for name, parameter in model.named_parameters()
        if not parameter.requires_grad and adapters.plain_name(name) not in different
    }
    holder = nn.Module()
    for part in sorted({_part_of(k) for k in (*different, *trainable_state(model))}):
        setattr(holder, part, copy.deepcopy(getattr(model, part), shared))
    holder.requires_grad_(False).eval()
    inner = {adapters.plain_name(name): name for name in holder.state_dict()}
    holder.load_state_dict({inner[k]: v for k, v in different.items()}, strict=False)
    return holder
