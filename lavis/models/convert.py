"""Converts weights between LAVIS's names, the hub's names and this project's own.

    python -m lavis.models.convert instruct_blip_vicuna7b_trimmed.pth out/ --to hub --llm path/to/vicuna-7b
    python -m lavis.models.convert Salesforce/instructblip-vicuna-7b instruct_blip.pth --to lavis
    python -m lavis.models.convert emma_checkpoint_3.pth emma.pth --to lavis
    python -m lavis.models.convert emma_checkpoint_3.pth llm/ --to llm --model configs/dagger/demo_bc.yaml

SOURCE is a .pth, .pt, .bin or .safetensors file, a folder with shards of one, or a hub id; its names are recognised.
`--to lavis` and `--to native` write one file, without the language model unless `--with-llm`: a .pth, `{"model": …}`,
or a .safetensors, as TARGET says, and keep which games a run has trained on. `--dtype bfloat16` halves it. `--to hub`
writes a folder for `InstructBlipForConditionalGeneration.from_pretrained`::

    TARGET/config.json, generation_config.json   sizes, special words
    TARGET/model-00001-of-0000N.safetensors …    shards of at most 5 GB (one: model.safetensors)
    TARGET/model.safetensors.index.json          which shard holds what
    TARGET/emac_base.json                        which games the weights have trained on, if any (also of `--to llm`)

In that class the Q-Former always reads a text; it equals a model without `qformer_text_input` where
`qformer_attention_mask` is 0.

`--to llm` builds the model that `--model` describes (a type, or a yaml with a `model:` section), loads SOURCE into it
("none": nothing more than the section names) and writes its language model with its tokenizer, as `vllm serve TARGET`
and `AutoModelForCausalLM.from_pretrained(TARGET)` read it. LoRA adapters are merged; `--without-adapters` leaves them
out, for a server that is given them by name (docs/vllm.md).

The result is read back and compared with the source: every tensor, and the image tokens of random images.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

from lavis.common.program import read_first, run_program
from lavis.common.settings import DTYPES


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Convert BLIP-2 weights between LAVIS's, the hub's and our names.")
    parser.add_argument("source", help="weight file, folder of shards, or hub id")
    parser.add_argument("target", type=Path, help="file (lavis, native) or new folder (hub, llm)")
    parser.add_argument("--to", required=True, choices=("lavis", "hub", "native", "llm"), help="what to write")
    parser.add_argument("--model", default="", help="type or yaml that describes the model (hub, llm)")
    parser.add_argument("--base", default="", help="file with the weights that SOURCE lacks (it was trained on them)")
    parser.add_argument("--llm", default="", help="folder or file of the language model, to be added (Vicuna)")
    parser.add_argument("--with-llm", action="store_true", help="keep the language model in a single file")
    parser.add_argument(
        "--without-adapters", action="store_true", help="llm: leave LoRA adapters out, do not merge them"
    )
    parser.add_argument(
        "--dtype", default="", choices=DTYPES, help="dtype of all weights (default: each keeps its own)"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes are answered at once.
    read_first(parse_arguments)

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError
from safetensors.torch import save as serialise
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    InstructBlipConfig,
    InstructBlipForConditionalGeneration,
)

from lavis.common.errors import ConfigError, EmacError, FileError, MissingFileError, first_sentence
from lavis.common.files import make_folder, open_to_others, write_atomically, write_json
from lavis.models.blip2_models import adapters, weights
from lavis.models.blip2_models.blip2 import CONV, VIT_MODELS, init_qformer, init_vision_encoder
from lavis.models.blip2_models.blip2_emac import Blip2Emac
from lavis.models.blip2_models.emac_config import CONFIG_DEFAULTS, PARTS, model_section
from lavis.models.blip2_models.text import encode_prompts
from lavis.models.folder_note import write_note
from lavis.models.frozen_base import check_base
from lavis.models.memory import BERT_WORDS, KNOWN_LLMS
from lavis.models.played import PlayedGames, games_of_weights, played_by_base

SHARD_SIZE = "5GB"  # huggingface_hub's default, too
_EMBEDDING = "llm_model.model.embed_tokens.weight"


def convert(
    source: str,
    target: Path,
    to: str,
    *,
    base: str = "",
    llm: str = "",
    model: str = "",
    with_llm: bool = False,
    dtype: str = "",
) -> list[str]:
    """Write `source`'s weights to `target` under the names of `to` (lavis, hub, native); lines that say what was done.

    `dtype` is one of DTYPES, or empty: each tensor keeps its own.

    What `source` lacks is taken from the file `base`, and the language model from its own folder or file `llm`. `model`
    describes the sizes (`hub_config`). Raises WeightsError if the source is no such model or the result differs from
    it, ConfigError for arguments that do not fit, MissingFileError and FileError for files.
    """
    found = weights.read_state(source)
    played = _played_by(source, base, llm)
    # What the source has itself counts; `base` only fills in the rest.
    native = (weights.to_native(weights.read_state(base)) if base else {}) | weights.to_native(found)
    parts = sorted({key.removeprefix(weights.REFERENCE_PREFIX).split(".", 1)[0] for key in native})
    if strange := [part for part in parts if part not in PARTS]:
        raise weights.WeightsError(
            f"{source} ({weights.format_of(found)} names) is no BLIP-2 model: it has {', '.join(strange[:3])}; "
            f"expected {', '.join(PARTS)}"
        )
    if llm:
        native |= {f"llm_model.{key}": value for key, value in weights.read_state(llm).items()}
        native = weights.to_native(native)
    # LAVIS's checkpoints hold no language model, because its config names a folder for it. Adapters stay: they are what
    # a run has trained.
    if to != "hub" and not with_llm:
        own = (f"{weights.REFERENCE_PREFIX}llm_model.", "llm_model.")
        native = {key: v for key, v in native.items() if not key.startswith(own) or adapters.is_adapter(key)}
    weights.require_finite(native, source)
    if dtype:
        kind = getattr(torch, dtype)
        native = {key: value.to(kind) if value.is_floating_point() else value for key, value in native.items()}
    if to == "hub":
        native, written = _write_hub(native, target, source=source, llm=llm, model=model)
        if played:
            write_note(target, played=played)
    else:
        written = weights.to_lavis(native) if to == "lavis" else native
        # A view would be written with the whole tensor under it, or refused (safetensors).
        content = {key: value.contiguous().clone() for key, value in written.items()}
        with _writing(target):
            if target.suffix == ".safetensors":
                metadata = {"format": "pt", **({"played": json.dumps(played)} if played else {})}
                write_atomically(target, lambda file: file.write(serialise(content, metadata=metadata)))
            else:
                whole = {"model": content, **({"played": played} if played else {})}
                write_atomically(target, lambda file: torch.save(whole, file))
    return [
        f"{source}: {weights.format_of(found)} names, {len(found)} tensors, parts {', '.join(parts)}",
        f"{target}: {to} names, {len(written)} tensors, {sum(v.nbytes for v in written.values()) / 1e6:,.1f} MB",
        *verify(native, written, target),
    ]


def _played_by(*names: str) -> dict[str, Any] | None:
    """Which games weights that are put together have trained on; None if all of them are plain bases."""
    known = [played for name in names if name and (played := played_by_base(name)) is not None]
    return reduce(PlayedGames.merged, known).as_dict() if known else None


def _write_hub(
    native: Mapping[str, Tensor], target: Path, *, source: str, llm: str, model: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Write the folder that `InstructBlipForConditionalGeneration.from_pretrained` reads.

    Returns what is in it under native names (the source's without a reference, and with a word for image tokens), and
    under the hub's.
    """
    native = {key: value for key, value in native.items() if not key.startswith(weights.REFERENCE_PREFIX)}
    if not any(key.startswith("llm_model.") for key in native):
        raise ConfigError(f"{source} has no language model, which the hub's folders contain: name it with --llm")
    if any(map(adapters.is_adapter, native)):
        raise ConfigError(f"{source} has LoRA adapters, which the hub's class does not: `--to llm` merges them")
    config = hub_config(source=source, llm=llm, model=model)
    words = len(native.get(_EMBEDDING, ()))
    if config.image_token_index is None and words:
        # The hub's class marks the places of image tokens by a word. Its score is the mean of all: never the highest.
        for key in (_EMBEDDING, "llm_model.lm_head.weight"):
            if key in native:
                mean = native[key].float().mean(0, keepdim=True).to(native[key].dtype)
                native[key] = torch.cat([native[key], mean])
        config.image_token_index, words = words, words + 1
    text: Any = config.text_config
    text.vocab_size = words or text.vocab_size
    # Transformers loads a folder in the dtype that its config names.
    config.dtype = text.dtype = next(v.dtype for k, v in native.items() if k.startswith("llm_model."))
    written = weights.to_hub(native)
    # The hub's class, made from this configuration, must have just the weights that are written.
    with torch.device("meta"):
        expected = InstructBlipForConditionalGeneration(config).state_dict()
    if text.tie_word_embeddings:  # the head is the embedding
        expected = {key: value for key, value in expected.items() if key in written or "lm_head" not in key}
    if complaint := weights.mismatch(expected, written, source):
        raise weights.WeightsError(
            f"{complaint}; --model names other sizes, --base a file with what is missing (only InstructBLIP's own "
            "files have the Q-Former's text branch)"
        )
    # Shards in a new folder, then their index.
    _new_folder(target)
    state = {key: value.contiguous() for key, value in written.items()}
    split = split_torch_state_dict_into_shards(state, max_shard_size=SHARD_SIZE)
    with _writing(target):
        for file, keys in split.filename_to_tensors.items():
            save_file({key: state[key].clone() for key in keys}, target / file, metadata={"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        write_json(target / "model.safetensors.index.json", index)
    # A model would write its class into its config; a config alone does not know it. vLLM finds the class by it.
    config.architectures = ["InstructBlipForConditionalGeneration"]
    config.save_pretrained(target)
    # `generate` takes the ids that begin, end and pad a text from here.
    GenerationConfig(
        bos_token_id=text.bos_token_id, eos_token_id=text.eos_token_id, pad_token_id=text.pad_token_id
    ).save_pretrained(target)
    open_to_others(target)
    return native, written


def hub_config(*, source: str, llm: str = "", model: str = "") -> InstructBlipConfig:
    """The configuration of the hub's class.

    It is `source`'s own if that is a folder or hub id with one; else the vision encoder's and Q-Former's sizes come
    from `model` (a type or a yaml; without it EVA-CLIP-g and BERT base), and the language model's from its folder
    `llm`, if one is given. ConfigError if the language model's sizes are not known.
    """
    text = _read_config(AutoConfig, llm) if llm and Path(llm).is_dir() else None
    # A hub id, or a folder with a config of its own; a file of weights says nothing of sizes like the number of heads.
    if not Path(source).is_file() and (not Path(source).is_dir() or (Path(source) / "config.json").is_file()):
        config = _read_config(InstructBlipConfig, source)
        config.text_config = text or config.text_config
        return config
    section = CONFIG_DEFAULTS | (model_section(model) if model else {})
    sizes: dict[str, Any] | None = section["llm_config"] or KNOWN_LLMS.get(str(section["llm_model"]))
    if text is None and sizes is None:
        raise ConfigError(f"the sizes of {source}'s language model are not known: name its folder with --llm")
    if section["vit_model"] == CONV:
        raise ConfigError(
            "model.vit_model=conv is an encoder of this project: Transformers' InstructBLIP has none like it"
        )
    vision = {**VIT_MODELS[section["vit_model"]], **section["vit_config"], "image_size": section["img_size"]}
    return InstructBlipConfig(
        vision_config=vision,
        qformer_config={"vocab_size": BERT_WORDS, **section["qformer_config"]},
        text_config=text or AutoConfig.for_model(**(sizes or {})),
        num_query_tokens=section["num_query_token"],
    )


def _read_config(kind: Any, name: str) -> Any:
    """The configuration in a folder or hub id; MissingFileError if none can be read."""
    try:
        return kind.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise MissingFileError(f"no configuration of a model in {name}: {first_sentence(error)}") from error


def export_llm(model: Blip2Emac, target: Path) -> list[str]:
    """Write `model`'s language model and tokenizer to the new folder `target`; lines that say what was done.

    Adapters are left out, unless they are merged before. The folder is what engines and Transformers load. It is read
    back and its logits compared with the model's: WeightsError if they differ. FileError if the disk is full or
    the folder cannot be written.
    """
    _new_folder(target)
    llm: Any = adapters.without(model.llm_model)
    with _writing(target):
        llm.save_pretrained(target, max_shard_size=SHARD_SIZE)
        model.llm_tokenizer.save(target)
    open_to_others(target)
    # The logits of any text depend on every layer, and on the tokenizer's BOS.
    (ids,) = encode_prompts(model.llm_tokenizer, ["You are in the middle of a room."])
    back: Any = AutoModelForCausalLM.from_pretrained(target, dtype=llm.dtype, trust_remote_code=False)
    back.to(llm.device)
    with torch.no_grad():
        ours, theirs = (part(torch.tensor([ids], device=llm.device)).logits.float() for part in (llm.eval(), back))
    if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3 * ours.abs().max().item()):
        raise weights.WeightsError(f"{target}: the folder's logits differ from the model's")
    size = sum(file.stat().st_size for file in target.iterdir())
    return [
        f"{target}: {type(llm).__name__}, {llm.config.vocab_size} words, {size / 1e6:,.1f} MB with its tokenizer",
        f"read back: logits {tuple(ours.shape)} are equal",
    ]


def verify(native: Mapping[str, Tensor], written: Mapping[str, Tensor], target: Path) -> list[str]:
    """Compare `target` with the `native` source and what was `written`; WeightsError if they differ.

    Returns lines that say what was equal. LAVIS has no bias on ViT keys, which softmax ignores: native biases lose it
    there, so image tokens are compared within rounding.
    """
    back = weights.to_native(weights.read_state(target))
    weights.require_match(native, back, str(target))
    for key, value in weights.to_native(written).items():
        if not torch.equal(value, back[key]):
            raise weights.WeightsError(f"{target}: {key} differs from what was written")
    lines = [f"read back: {len(native)} tensors are equal"]
    transformer = "visual_encoder.embeddings.patch_embedding.weight" in native  # not `vit_model: conv`
    if transformer and all(any(key.startswith(part) for key in native) for part in ("Qformer.", "llm_proj.")):
        ours, theirs = (image_tokens(state) for state in (native, back))
        if not torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4 * ours.abs().max().item()):
            raise weights.WeightsError(f"{target}: image tokens of random images differ from the source's")
        lines.append(f"random images: image tokens {tuple(ours.shape)} are equal, {ours.std():.3g} their deviation")
    return lines


@torch.no_grad()
def image_tokens(native: Mapping[str, Tensor]) -> Tensor:
    """What `native` weights make of two random images: (2, queries, hidden size of the language model), float32.

    Sizes are read off the weights. Heads are not in them: one everywhere, which serves to compare two files.
    """
    state = {key: value.float() for key, value in native.items()}
    # (width, 3, patch, patch), and (1, 1 + side², width): one position for the class token, one for each patch.
    patches = state["visual_encoder.embeddings.patch_embedding.weight"]
    side = round((state["visual_encoder.embeddings.position_embedding"].shape[-2] - 1) ** 0.5)
    size = patches.shape[-1] * side
    vision = {
        "hidden_size": patches.shape[0],
        "patch_size": patches.shape[-1],
        "intermediate_size": state["visual_encoder.encoder.layers.0.mlp.fc1.weight"].shape[0],
        "num_hidden_layers": _layers(state, r"visual_encoder\.encoder\.layers\.(\d+)\."),
        "num_attention_heads": 1,
    }
    encoder, ln_vision = init_vision_encoder("custom", size, vision, "float32")
    # Layers without cross attention to the image lack its weights, which tells how often it comes.
    queries = state["query_tokens"]
    crossing = [int(m[1]) for key in state if (m := re.match(r"Qformer\.encoder\.layer\.(\d+)\.crossattention\.", key))]
    sizes = {
        "hidden_size": queries.shape[2],
        "intermediate_size": state["Qformer.encoder.layer.0.intermediate_query.dense.weight"].shape[0],
        "num_hidden_layers": _layers(state, r"Qformer\.encoder\.layer\.(\d+)\."),
        "num_attention_heads": 1,
        "cross_attention_frequency": min((layer for layer in crossing if layer), default=2),
    }
    qformer, _ = init_qformer(queries.shape[1], vision["hidden_size"], sizes, reads_text=False)
    width_out, width_in = state["llm_proj.weight"].shape
    proj = nn.Linear(width_in, width_out)
    for name, module in (
        ("visual_encoder", encoder),
        ("ln_vision", ln_vision),
        ("Qformer", qformer),
        ("llm_proj", proj),
    ):
        # The text branch, which image tokens do not need, is left out.
        own = {key.removeprefix(name + "."): value for key, value in state.items() if key.startswith(name + ".")}
        kept = {key: value for key, value in own.items() if key in module.state_dict()}
        weights.require_match(module.state_dict(), kept, name)
        module.load_state_dict(kept)
        module.eval()
    # The seed makes both calls see the same images.
    image = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    features = ln_vision(encoder(image).last_hidden_state)
    hidden = qformer(input_ids=None, query_embeds=queries.expand(2, -1, -1), encoder_hidden_states=features)
    return proj(hidden.last_hidden_state)


def _layers(state: Mapping[str, Tensor], pattern: str) -> int:
    return 1 + max((int(m[1]) for key in state if (m := re.match(pattern, key))), default=-1)


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """FileError if a library cannot write: each reports a full disk in its own way."""
    try:
        yield
    except FileError:
        raise
    except (OSError, SafetensorError, RuntimeError) as error:  # the last from torch's zip writer
        raise FileError(f"{target} could not be written: {first_sentence(error)}") from error


def _new_folder(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.glob("*.safetensors*"))):
        raise ConfigError(f"{target} is a file or holds weights already: name a new folder")
    make_folder(target)


def main(argv: Sequence[str] | None = None) -> int:
    """Convert as the command line asks; the exit code."""
    given = parse_arguments(argv)
    try:
        # What the user would believe to have an effect on the target, and has none.
        others = {"llm": ("base", "llm", "with_llm", "dtype"), "hub": ("without_adapters",)}
        unused_here = others.get(given.to, ("without_adapters", "model"))
        if unused := [name for name in unused_here if getattr(given, name)]:
            named = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
            raise ConfigError(f"--to {given.to} does not use {named}: leave it out")
        if given.to == "llm":
            if not given.model:
                raise ConfigError(
                    "--to llm needs --model: a type (tiny, vicuna7b, vicuna13b) or a yaml with a model: section"
                )
            section = model_section(given.model)
            built = Blip2Emac.from_config(section)
            played = games_of_weights(section)
            if given.source != "none":
                built.load_checkpoint(given.source)
                check_base(built, given.source)
                played = played.merged(played_by_base(given.source) or PlayedGames())
            # Adapters become a part of the weights, unless a server is given them while it runs (docs/vllm.md).
            if not given.without_adapters:
                adapters.merge(built.llm_model)
            built = built.eval()
            lines = export_llm(built, given.target)
            # Of the whole model, also if its language model was frozen: no figure is then called held out by mistake.
            if played != PlayedGames():
                write_note(given.target, played=played.as_dict())
        else:
            with_llm = given.with_llm or bool(given.llm)
            lines = convert(
                given.source,
                given.target,
                given.to,
                base=given.base,
                llm=given.llm,
                model=given.model,
                with_llm=with_llm,
                dtype=given.dtype,
            )
    except EmacError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    run_program(main)
