"""Weight files of BLIP-2 models: reading them, and names in LAVIS's form against names in Transformers' form.

The model's own (native) names are `visual_encoder.* ln_vision.* Qformer.* query_tokens llm_proj.* llm_model.*`, with
Transformers' names inside the first and third. LAVIS has EVA-CLIP's and BERT's names there, and `q_bias`/`v_bias` where
Transformers has one `qkv.bias` with zeros in the middle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

# (LAVIS, native), as regular expressions' replacements in both directions; order matters.
_VIT = r"visual_encoder\."
_TO_NATIVE = (
    (rf"^{_VIT}cls_token$", "visual_encoder.embeddings.class_embedding"),
    (rf"^{_VIT}pos_embed$", "visual_encoder.embeddings.position_embedding"),
    (rf"^{_VIT}patch_embed\.proj\.", "visual_encoder.embeddings.patch_embedding."),
    (rf"^({_VIT})blocks\.(\d+)\.norm([12])\.", r"\1encoder.layers.\2.layer_norm\3."),
    (rf"^({_VIT})blocks\.(\d+)\.attn\.proj\.", r"\1encoder.layers.\2.self_attn.projection."),
    (rf"^({_VIT})blocks\.(\d+)\.attn\.", r"\1encoder.layers.\2.self_attn."),
    (rf"^({_VIT})blocks\.(\d+)\.", r"\1encoder.layers.\2."),
    (r"^Qformer\.bert\.embeddings\.LayerNorm\.", "Qformer.embeddings.layernorm."),
    (r"^Qformer\.bert\.(.*attention)\.self\.", r"Qformer.\1.attention."),
    (r"^Qformer\.bert\.", "Qformer."),
)
_TO_LAVIS = (
    (rf"^{_VIT}embeddings\.class_embedding$", "visual_encoder.cls_token"),
    (rf"^{_VIT}embeddings\.position_embedding$", "visual_encoder.pos_embed"),
    (rf"^{_VIT}embeddings\.patch_embedding\.", "visual_encoder.patch_embed.proj."),
    (rf"^({_VIT})encoder\.layers\.(\d+)\.layer_norm([12])\.", r"\1blocks.\2.norm\3."),
    (rf"^({_VIT})encoder\.layers\.(\d+)\.self_attn\.projection\.", r"\1blocks.\2.attn.proj."),
    (rf"^({_VIT})encoder\.layers\.(\d+)\.self_attn\.", r"\1blocks.\2.attn."),
    (rf"^({_VIT})encoder\.layers\.(\d+)\.", r"\1blocks.\2."),
    (r"^Qformer\.embeddings\.layernorm\.", "Qformer.bert.embeddings.LayerNorm."),
    (r"^Qformer\.(.*attention)\.attention\.", r"Qformer.bert.\1.self."),
    (r"^Qformer\.", "Qformer.bert."),
)
# Buffers of old library versions and BERT's word predictor: in the files, never in the model.
_DEAD = re.compile(r"\.position_ids$|rotary_emb\.inv_freq$|^Qformer\.cls\.")
REFERENCE_PREFIX = "ref_"


def _renamed(name: str, rules: Iterable[tuple[str, str]]) -> str:
    for pattern, replacement in rules:
        new, count = re.subn(pattern, replacement, name)
        if count:
            return new
    return name


def is_lavis(state: Mapping[str, Tensor]) -> bool:
    """Whether the state dict has LAVIS's names (EVA-CLIP's or BERT's) in it."""
    return any(
        re.match(r"(ref_)?(visual_encoder\.(cls_token|pos_embed|patch_embed|blocks)|Qformer\.bert\.)", k) for k in state
    )


def to_native(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict under native names; reads LAVIS's and native names, with or without `ref_`, drops dead keys."""
    native: dict[str, Tensor] = {}
    for name, value in state.items():
        prefix = REFERENCE_PREFIX if name.startswith(REFERENCE_PREFIX) else ""
        bare = name.removeprefix(prefix)
        if _DEAD.search(bare):
            continue
        new = prefix + _renamed(bare, _TO_NATIVE)
        if new.endswith(".q_bias"):
            other = name.removesuffix("q_bias") + "v_bias"
            if other not in state:
                raise ValueError(f"{other} is missing, although {name} is there")
            value_bias = state[other]
            native[new.removesuffix("q_bias") + "qkv.bias"] = torch.cat([value, torch.zeros_like(value), value_bias])
        elif not new.endswith(".v_bias"):
            native[new] = value
    return native


def to_lavis(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict under LAVIS's names, for the original to read.

    The middle third of a `qkv.bias` is dropped: a bias on the keys moves all scores of a query alike, so softmax does
    not see it, and LAVIS has none.
    """
    lavis: dict[str, Tensor] = {}
    for name, value in state.items():
        prefix = REFERENCE_PREFIX if name.startswith(REFERENCE_PREFIX) else ""
        new = prefix + _renamed(name.removeprefix(prefix), _TO_LAVIS)
        if new.endswith(".attn.qkv.bias"):
            stem = new.removesuffix("qkv.bias")
            lavis[stem + "q_bias"], _, lavis[stem + "v_bias"] = value.chunk(3)
        else:
            lavis[new] = value
    return lavis


def split_reference(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Part a state dict into the policy's weights and the reference's (`ref_` taken off)."""
    policy = {k: v for k, v in state.items() if not k.startswith(REFERENCE_PREFIX)}
    reference = {k.removeprefix(REFERENCE_PREFIX): v for k, v in state.items() if k.startswith(REFERENCE_PREFIX)}
    return policy, reference


def read_state(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors, .pth or .pt file, on the CPU; of `{"model": …}` the inner dict.

    Never unpickles anything but tensors. Raises `FileNotFoundError`, or `ValueError` naming the file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no weight file {path}")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a truncated or foreign file
        raise ValueError(f"{path} is not a readable weight file: {type(error).__name__}: {error}") from error
    if isinstance(content, Mapping) and isinstance(content.get("model"), Mapping):
        content = content["model"]
    if not isinstance(content, Mapping) or not all(isinstance(v, Tensor) for v in content.values()):
        raise ValueError(f"{path} holds no state dict (expected names to tensors, or {{'model': …}})")
    return dict(content)


def mismatch(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], source: str) -> str | None:
    """What differs between two state dicts by name and shape, as one line; `None` where they agree.

    Lists the first three of each kind: missing, unexpected, other shape.
    """
    missing = [k for k in expected if k not in found]
    unexpected = [k for k in found if k not in expected]
    shapes = [
        f"{k} is {tuple(found[k].shape)} in the file, {tuple(expected[k].shape)} in the model"
        for k in expected
        if k in found and found[k].shape != expected[k].shape
    ]
    parts = [
        f"{len(names)} {what}: {', '.join(names[:3])}{', …' if len(names) > 3 else ''}"
        for what, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes))
        if names
    ]
    return f"{source} does not fit the model: {'; '.join(parts)}" if parts else None
