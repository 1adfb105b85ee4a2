"""Weight files of BLIP-2 models: reading them, and the three naming schemes for the same weights.

The model's own (native) names are `visual_encoder.* ln_vision.* Qformer.* query_tokens llm_proj.* llm_model.*`, with
Transformers' names inside the first and third. LAVIS has EVA-CLIP's and BERT's names there, and `q_bias`/`v_bias` where
Transformers has one `qkv.bias` with zeros in the middle. The hub's InstructBLIP differs from native names in the first
component (`vision_model.* qformer.* language_projection.* language_model.*`). EVA-CLIP-g's own file (eva_vit_g.pth) has
LAVIS's names of the vision encoder without `visual_encoder.`, and more blocks than BLIP-2 uses.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from pickle import UnpicklingError

import torch
import torch.nn.functional as F
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from lavis.common.errors import EmacError, MissingFileError, described, first_sentence, why_unreadable
from lavis.common.utils import is_url
from lavis.models import download
from lavis.models.tensor_files import load_tensors

# What `from_pretrained` raises for a folder that it cannot load; the last three are of files that are no weights. A
# TypeError is of a .json file that holds another thing than an object; the third line is of values in a config.json.
UNLOADABLE = (
    *(OSError, ValueError, TypeError, RuntimeError),
    *(StrictDataclassError, LookupError, ArithmeticError),
    *(EOFError, UnpicklingError, SafetensorError),
)
# (LAVIS, native) and (hub, native): beginnings of names, or whole names if no dot ends them. A `*` is the same on both
# sides.
_LAVIS = (
    ("visual_encoder.cls_token", "visual_encoder.embeddings.class_embedding"),
    ("visual_encoder.pos_embed", "visual_encoder.embeddings.position_embedding"),
    ("visual_encoder.patch_embed.proj.", "visual_encoder.embeddings.patch_embedding."),
    ("visual_encoder.blocks.*.norm*.", "visual_encoder.encoder.layers.*.layer_norm*."),
    ("visual_encoder.blocks.*.attn.proj.", "visual_encoder.encoder.layers.*.self_attn.projection."),
    ("visual_encoder.blocks.*.attn.", "visual_encoder.encoder.layers.*.self_attn."),
    ("visual_encoder.blocks.", "visual_encoder.encoder.layers."),
    ("Qformer.bert.embeddings.LayerNorm.", "Qformer.embeddings.layernorm."),
    ("Qformer.bert.*attention.self.", "Qformer.*attention.attention."),
    ("Qformer.bert.", "Qformer."),
)
_HUB = (
    ("vision_model.post_layernorm.", "ln_vision."),
    ("vision_model.", "visual_encoder."),
    ("qformer.", "Qformer."),
    ("language_projection.", "llm_proj."),
    ("language_model.", "llm_model."),
)
# Buffers of old library versions and BERT's word prediction head: in the files, never in the model.
_UNUSED = re.compile(r"\.position_ids$|rotary_emb\.inv_freq$|^Qformer\.cls\.")
_OF_LAVIS = re.compile(r"(ref_)?(visual_encoder\.(cls_token|pos_embed|patch_embed|blocks)|Qformer\.bert\.)")
REFERENCE_PREFIX = "ref_"
# What EVA-CLIP has behind its blocks and BLIP-2 does not use: the final norm, the head, what pretraining needed.
_EVA_UNUSED = re.compile(r"^visual_encoder\.(norm|fc_norm|head|lm_head|mask_token|rel_pos_bias)\b")
_VIT_LAYER = re.compile(r"^visual_encoder\.encoder\.layers\.(\d+)\.")
_VIT_POSITIONS = "visual_encoder.embeddings.position_embedding"
_SAFETENSORS_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class WeightsError(EmacError, ValueError):
    """Weights that are damaged or do not fit the model; the text names the file and the first keys that differ."""


def _pattern(beginning: str) -> str:
    """The expression of names that begin so."""
    return re.escape(beginning).replace(r"\*", "(.*)") + ("" if beginning.endswith(".") else "$")


def _renamed(name: str, pairs: Iterable[tuple[str, str]], *, back: bool = False) -> str:
    """`name` as the second side of `pairs` has it, or the first one if `back`."""
    # The first pair that fits, and no other: general ones stand behind the special ones that they would cover.
    for pair in pairs:
        old, new = pair[::-1] if back else pair
        if match := re.match(_pattern(old), name):
            for part in match.groups():
                new = new.replace("*", part, 1)
            return new + name[match.end() :]
    return name


def format_of(state: Mapping[str, Tensor]) -> str:
    """The naming scheme of the state dict: "LAVIS", "hub", "EVA-CLIP", or "native" (also if no name tells)."""
    # EVA-CLIP's own file holds the encoder alone, so its names have no prefix.
    if {"cls_token", "pos_embed"} <= state.keys():
        return "EVA-CLIP"
    if any(_OF_LAVIS.match(key) for key in state):
        return "LAVIS"
    return "hub" if any(key.startswith(tuple(hub for hub, _ in _HUB)) for key in state) else "native"


def to_native(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict under native names, from any of the schemes, with or without `ref_`; drops unused keys.

    WeightsError if one half of LAVIS's attention bias is missing.
    """
    native: dict[str, Tensor] = {}
    if format_of(state) == "EVA-CLIP":
        state = {f"visual_encoder.{name}": value for name, value in state.items()}
    for name, value in state.items():
        prefix = REFERENCE_PREFIX if name.startswith(REFERENCE_PREFIX) else ""
        bare = _renamed(name.removeprefix(prefix), _HUB)
        if _UNUSED.search(bare) or _EVA_UNUSED.search(bare):
            continue
        new = prefix + _renamed(bare, _LAVIS)
        # EVA-CLIP has a bias for queries and one for values, none for keys; Transformers has one for all three.
        if new.endswith(".q_bias"):
            other = name.removesuffix("q_bias") + "v_bias"
            if other not in state:
                raise WeightsError(f"{other} is missing, although {name} is there")
            value_bias = state[other]
            native[new.removesuffix("q_bias") + "qkv.bias"] = torch.cat([value, torch.zeros_like(value), value_bias])
        elif not new.endswith(".v_bias"):
            native[new] = value
    return native


def to_lavis(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict under LAVIS's names, for the original to read.

    The middle third of a `qkv.bias` is dropped: a bias on the keys adds the same number to all scores of a query, which
    softmax ignores, and LAVIS has none.
    """
    lavis: dict[str, Tensor] = {}
    for name, value in state.items():
        prefix = REFERENCE_PREFIX if name.startswith(REFERENCE_PREFIX) else ""
        new = prefix + _renamed(name.removeprefix(prefix), _LAVIS, back=True)
        if new.endswith(".attn.qkv.bias"):
            stem = new.removesuffix("qkv.bias")
            # (3 * width,): queries, keys, values.
            lavis[stem + "q_bias"], _, lavis[stem + "v_bias"] = value.chunk(3)
        else:
            lavis[new] = value
    return lavis


def to_hub(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The native state dict under the names of the hub's InstructBLIP, which knows no reference."""
    return {_renamed(k, _HUB, back=True): v for k, v in state.items() if not k.startswith(REFERENCE_PREFIX)}


def split_reference(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split a state dict into the policy's weights and the reference's (without `ref_`)."""
    policy = {k: v for k, v in state.items() if not k.startswith(REFERENCE_PREFIX)}
    reference = {k.removeprefix(REFERENCE_PREFIX): v for k, v in state.items() if k.startswith(REFERENCE_PREFIX)}
    return policy, reference


def vision_state(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of a native `state` the vision encoder, as a model with the weights `own` takes it.

    Blocks behind the model's last are dropped (EVA-CLIP-g has 40, BLIP-2 uses 39). A position embedding for images of
    another size is resized as in LAVIS: bicubic interpolation of the grid, the class token's row unchanged.
    """
    depth = 1 + max(int(found[1]) for name in own if (found := _VIT_LAYER.match(name)))
    kept = {
        name: value
        for name, value in state.items()
        if name.startswith("visual_encoder.") and not ((found := _VIT_LAYER.match(name)) and int(found[1]) >= depth)
    }
    table = kept.get(_VIT_POSITIONS)  # (1, 1 + side², width)
    if table is not None:
        side, new_side = (round((count - 1) ** 0.5) for count in (table.shape[-2], own[_VIT_POSITIONS].shape[-2]))
        # A table of another form is left as it is: `require_match` then says what does not fit.
        if side != new_side and table.dim() == 3 and side * side + 1 == table.shape[1]:
            grid = table[:, 1:].float().reshape(1, side, side, -1).permute(0, 3, 1, 2)  # (1, width, side, side)
            # In float32 and without aligned corners, as LAVIS's `interpolate_pos_embed`.
            grid = F.interpolate(grid, size=(new_side, new_side), mode="bicubic", align_corners=False)
            patches = grid.permute(0, 2, 3, 1).flatten(1, 2)  # (1, new side², width)
            kept[_VIT_POSITIONS] = torch.cat([table[:, :1].float(), patches], dim=1)
    return kept


def read_state(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors, .pth, .pt or .bin file, or of a folder or hub id with such files; on the CPU.

    The URL of a file is downloaded once (`download`). Of `{"model": …}` the inner dict. Shards (`*.index.json`) are
    joined. Never unpickles anything but tensors. Raises MissingFileError, or WeightsError naming the file.
    """
    state: dict[str, Tensor] = {}
    for file in weight_files(path):
        state |= _read_file(file)
    return state


def read_shapes(path: str | Path) -> dict[str, Tensor]:
    """As `read_state`, with tensors on the `meta` device: names, shapes and dtypes; no weights are read."""
    state: dict[str, Tensor] = {}
    for file in weight_files(path):
        state |= _read_file(file, shapes_only=True)
    return state


def why_unloadable(path: str | Path, error: BaseException) -> str:
    """Why Transformers did not load a folder or hub id: its damaged file, else the error's own words."""
    # Looked for after the fact: of a folder that Transformers loads not every file need be weights.
    if Path(path).is_dir():
        if isinstance(error, TypeError):
            for file in (Path(path) / "config.json", Path(path) / "generation_config.json"):
                try:
                    if not isinstance(json.loads(file.read_bytes()), dict):
                        return f"{file} holds no JSON object"
                except (OSError, ValueError, RecursionError):
                    pass  # Transformers has said so itself, or does without that file
        try:
            read_shapes(path)
        except WeightsError as damage:
            return str(damage)
        except MissingFileError:
            pass  # Transformers has said so itself, or has not come so far
    elif "/" in str(path) and not download.is_hub_id(str(path)):  # Transformers says of it how hub ids are spelt
        return "there is no such folder, and it is no hub id (owner/name)"
    # A KeyError's own words are a value of config.json alone.
    return described(error) if isinstance(error, LookupError) else first_sentence(error)


def weight_files(path: str | Path) -> list[Path]:
    """The file itself, a URL's in the cache, or the weight files of a folder, or of a hub id's folder in the cache.

    Downloads what is not there yet; MissingFileError if that fails or there is no such file.
    """
    if is_url(path):
        return [download.fetched(str(path))]
    given, path = str(path), Path(path)
    if path.is_file():
        return [path]
    if not path.is_dir():
        # A hub id such as Salesforce/instructblip-vicuna-7b: its folder in the cache, fetched if it is not there yet.
        if not download.is_hub_id(given):
            raise MissingFileError(f"no weight file {given}")
        from huggingface_hub import snapshot_download  # only here: most settings name files

        try:
            # Folders of the hub often hold the same weights as .bin, too, which would double the download.
            path = Path(snapshot_download(given, allow_patterns=["*.safetensors", "*.safetensors.index.json"]))
        except Exception as error:  # the hub's client, and the network below it, raise many kinds
            message = f"no weight file {given}, and no such folder on the hub that can be read"
            raise MissingFileError(message) from error
    # safetensors first: it is mapped and holds no pickles, and of several formats one is enough.
    for pattern in ("*.safetensors", "*.bin", "*.pth"):
        if index := sorted(path.glob(f"{pattern}.index.json")):
            names = _shards_of(index[0])
            there = os.listdir(path)  # not by asking for each: the system takes no name that is too long
            if lacking := [name for name in names if name not in there]:
                name = ascii(lacking[0])[1:-1][:100]  # it may hold anything
                raise MissingFileError(f"{path} lacks {name}, one of {len(names)} shards that {index[0].name} lists")
            return [path / name for name in names]
        if files := sorted(path.glob(pattern)):
            return files
    raise MissingFileError(f"no weight file in {path}: expected *.safetensors, *.bin or *.pth")


def _shards_of(index: Path) -> list[str]:
    """The names of the shards that an index lists; WeightsError if it is damaged, or names a file of another folder."""
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        if not names:
            raise ValueError("it lists none")
        # The index comes with the weights, from elsewhere: a path would have the program read any file of the user.
        if wrong := [name for name in names if name != os.path.basename(name)]:
            raise WeightsError(f"{index} names {wrong[0][:100]!r}: shards lie in the folder of their index")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, WeightsError):
            raise
        raise WeightsError(f"{index} is no list of shards ({type(error).__name__}): download it again") from error
    return names


def _read_file(path: Path, *, shapes_only: bool = False) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            if not shapes_only:
                return load_file(path)
            with safe_open(path, framework="pt") as file:
                slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
                kinds = {name: _SAFETENSORS_DTYPES.get(part.get_dtype(), torch.int64) for name, part in slices.items()}
                return {
                    name: torch.empty(part.get_shape(), dtype=kinds[name], device="meta")
                    for name, part in slices.items()
                }
        if shapes_only and zipfile.is_zipfile(path):  # torch's format since 1.6: mapped, no page of it is read
            content = load_tensors(path, map_location="meta", mmap=True)
        else:
            content = load_tensors(path, map_location="meta" if shapes_only else "cpu")
    except Exception as error:  # torch and safetensors raise many kinds for a truncated or foreign file
        raise WeightsError(f"{path} is not a readable weight file: {why_unreadable(path, error)}") from error
    if isinstance(content, Mapping) and isinstance(content.get("model"), Mapping):
        content = content["model"]
    if not isinstance(content, Mapping) or not all(isinstance(v, Tensor) for v in content.values()):
        raise WeightsError(f"{path} holds no state dict (expected names to tensors, or {{'model': …}})")
    return dict(content)


def require_finite(state: Mapping[str, Tensor], source: str) -> None:
    """WeightsError names the first weights that are NaN or infinite; tensors without storage pass."""
    floats = {name: value for name, value in state.items() if value.is_floating_point() and not value.is_meta}
    bad = [name for name, value in floats.items() if not value.isfinite().all()]
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        raise WeightsError(f"{source}: {bad[0]}{more} holds NaN or infinite numbers: take an earlier checkpoint")


def require_match(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], source: str) -> None:
    """WeightsError that lists what differs (`mismatch`)."""
    if complaint := mismatch(expected, found, source):
        raise WeightsError(complaint)


def mismatch(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], source: str) -> str | None:
    """What differs between two state dicts by name and shape, as one line; `None` if they agree.

    Lists the first three of each kind: missing, unexpected, other shape. Adapters of another rank are told as such.
    """
    missing = [k for k in expected if k not in found]
    unexpected = [k for k in found if k not in expected]
    other = [k for k in expected if k in found and found[k].shape != expected[k].shape]
    shapes = [f"{k} is {tuple(found[k].shape)} in the file, {tuple(expected[k].shape)} in the model" for k in other]
    # LoRA's first matrix is (rank, inputs), and all adapters of a model have one rank.
    ranks = {found[k].shape[0] for k in other if "lora_A" in k and found[k].shape[1:] == expected[k].shape[1:]}
    if len(ranks) == 1 and not missing and not unexpected:
        rank = ranks.pop()
        return f"{source} has adapters of rank {rank}, this model's have another one: set model.lora_rank={rank}"
    parts = [
        f"{len(names)} {what}: {', '.join(names[:3])}{', …' if len(names) > 3 else ''}"
        for what, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes))
        if names
    ]
    return f"{source} does not fit the model: {'; '.join(parts)} (is it of another model_type?)" if parts else None


def digest(first: str, state: Mapping[str, Tensor], whole: Container[str], dtype: torch.dtype | None = None) -> str:
    """SHA-256 of `first`, of all names and shapes in `state`, and of the numbers of the weights named in `whole`.

    The numbers count in the format `dtype`, or as they are.
    """
    made = hashlib.sha256(first.encode())  # no security: two bases are told apart
    for name, value in state.items():
        made.update(f"{name} {tuple(value.shape)}\n".encode())
        if name in whole:
            value = value.detach().to(dtype if dtype and value.is_floating_point() else value.dtype)
            # The bytes as they lie, for numpy has no bfloat16; flat, because torch views no single number as bytes.
            made.update(value.cpu().reshape(-1).view(torch.uint8).numpy().data)
    return made.hexdigest()
