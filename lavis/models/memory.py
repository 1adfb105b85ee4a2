"""Predicts the peak memory of a step, so that a batch size can be chosen before a job is queued.

    python -m lavis.models.memory --model vicuna7b --batch 4 --phase dpo
    python -m lavis.models.memory --model vicuna13b --batch 64 --phase generate --prompt 400 --beams 5
    python -m lavis.models.memory --model configs/dagger/demo_dpo.yaml --batch 32 --phase dpo --device cpu
    python -m lavis.models.memory --model hf_vlm:FOLDER_OR_HUB_ID --options dtype=bfloat16 --batch 4 --phase dpo

Models of the hub: see `hf_vlm/memory.py`; the rest of this file is about Blip2Emac.

Weights are counted exactly, from the networks built without storage; activations are counted from what the model's own
code keeps. On an accelerator the prediction is what `torch.cuda.max_memory_allocated` reports (the CUDA context adds
0.5 GB). On a CPU it is the process's largest resident set: with Python and its libraries, and with the holes that
the C library's allocator leaves between live tensors. `benchmarks/memory.py` compares training steps with measurements.

Legend: H hidden size, I intermediate size, T tokens of a row, V vocabulary; all of the language model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lavis.common.program import read_first, run_program


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Predict the peak of memory of a training step or of acting.")
    parser.add_argument(
        "--model", required=True, help="tiny, vicuna7b, vicuna13b, hf_vlm:<folder or hub id>, or a yaml with model:"
    )
    parser.add_argument(
        "--options", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="keys of the model: section"
    )
    parser.add_argument("--batch", type=int, required=True, help="samples in a step")
    parser.add_argument("--phase", required=True, help="bc, dpo or generate")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt's text (default: 128)")
    parser.add_argument("--answer", type=int, default=12, help="tokens of an answer (default: 12)")
    parser.add_argument("--beams", type=int, default=5, help="beams of generate (default: 5)")
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    return parser.parse_args(argv)


if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes are answered at once.
    read_first(parse_arguments)

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from lavis.common.config import load_yaml, merged, plain, read_option
from lavis.common.devices import mixed_precision
from lavis.common.errors import ConfigError, EmacError, unknown
from lavis.models import fast_llm
from lavis.models.blip2_models import adapters
from lavis.models.blip2_models.blip2 import init_qformer, init_vision_encoder
from lavis.models.blip2_models.emac_config import (
    PARTS,
    checked_options,
    frozen_parts,
    lora_options,
    model_section,
    package_path,
)
from lavis.models.blip2_models.language import CHUNK_TOKENS
from lavis.models.hf_vlm import memory as hf_vlm_memory

BERT_WORDS = 30523  # of bert-base-uncased, and [DEC]
PHASES = ("bc", "dpo", "generate")
# Sizes of the language models that the types name by hub id (their config.json), with [PAD] added to the vocabulary.
_VICUNA = {"model_type": "llama", "vocab_size": 32001, "tie_word_embeddings": False}
KNOWN_LLMS = {
    "lmsys/vicuna-7b-v1.1": _VICUNA
    | {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32},
    "lmsys/vicuna-13b-v1.1": _VICUNA
    | {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40},
}
# Resident memory without a model: Python, torch (2.13, CPU build), Transformers, and the kernels of a first step.
CPU_RUNTIME = 400 << 20
# Holes that glibc's heap leaves between live activations, as a share of these. Measured: 0.7 to 1.1 where rows are
# freed one after another, 0.25 where all are kept until one backward pass, because the language model trains. With
# MALLOC_MMAP_THRESHOLD_=65536, which is slow, there are none.
CPU_HOLES, CPU_HOLES_WHOLE = 1.0, 0.25


@dataclass(frozen=True)
class Work:
    """What a step reads: samples, tokens of a prompt and of an answer (`</s>` included), beams of `generate`."""

    phase: str
    batch: int
    prompt: int = 128
    answer: int = 12
    beams: int = 5
    stored: bool = True  # query outputs come with the samples

    def __post_init__(self) -> None:
        """Refuse an unknown phase and numbers below 1."""
        if self.phase not in PHASES:
            raise ConfigError(unknown("phase", self.phase, PHASES))
        if min(self.batch, self.prompt, self.answer, self.beams) < 1:
            raise ConfigError(f"batch, prompt, answer and beams must be at least 1: {self}")


@dataclass(frozen=True)
class Sizes:
    """Bytes of weights and of their copies in another dtype, what trains, and what activations follow from."""

    weights: int
    copies: int
    trainable: int  # parameters
    reference: int
    llm: PretrainedConfig
    llm_trains: bool
    vision_trains: bool
    queries: int
    vision_tokens: int
    vision_width: int
    vision_layers: int
    vision_bytes: int  # of one activation
    llm_bytes: int
    recomputes: bool
    keeps_scores: bool  # attention by plain matrix products (`fast_llm/attention.py`)

    @classmethod
    def of(cls, model: Mapping[str, object], device: str) -> Sizes:
        """Read off a `model:` section of a Blip2Emac; nothing is loaded or downloaded."""
        options = checked_options(model)
        parts = skeleton(options, on_cpu=device == "cpu")
        encoder, qformer, llm = (parts[name] for name in ("visual_encoder", "Qformer", "llm_model"))
        amp = mixed_precision(torch.device(device), getattr(torch, options["amp"]) if options["amp"] else None)
        everything: list[nn.Parameter] = []
        for part in parts.values():  # modules, and the query tokens, which are a parameter
            everything += part.parameters() if isinstance(part, nn.Module) else [part]
        trains = [p for p in everything if p.requires_grad]
        recast = amp if amp != llm.dtype else None
        return cls(
            weights=_bytes(everything),
            copies=recast.itemsize * sum(p.numel() for p in llm.parameters()) if recast else 0,
            trainable=sum(p.numel() for p in trains),
            reference=_bytes(trains),
            llm=llm.config,
            llm_trains=any(p.requires_grad for p in llm.parameters()),
            vision_trains=any(p.requires_grad for part in (encoder, qformer) for p in part.parameters()),
            queries=options["num_query_token"],
            vision_tokens=(options["img_size"] // encoder.config.patch_size) ** 2 + 1,
            vision_width=encoder.config.hidden_size,
            vision_layers=encoder.config.num_hidden_layers,
            vision_bytes=(amp or encoder.dtype).itemsize,
            llm_bytes=(amp or llm.dtype).itemsize,
            recomputes=bool(options["low_memory"]),
            keeps_scores=device == "cpu" and (amp or llm.dtype) == torch.bfloat16,
        )


def skeleton(options: Mapping[str, Any], *, on_cpu: bool) -> dict[str, Any]:
    """The model's parts (`PARTS`) without storage; on a CPU in float32, as `load_model` makes them there.

    ConfigError if the language model's sizes are not known.
    """
    precision, llm_dtype = ("float32", "float32") if on_cpu else (options["vit_precision"], options["llm_dtype"])
    # Sizes of the language model: of the config, of a known hub id, or of a folder. The hub is not asked.
    name = package_path(options["llm_model"])
    if sizes := options["llm_config"] or KNOWN_LLMS.get(name):
        llm_config = AutoConfig.for_model(**sizes)
    elif (Path(name) / "config.json").is_file():
        llm_config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    else:
        raise ConfigError(
            f"model.llm_model: the sizes of {name!r} are not known, for there is no file {Path(name) / 'config.json'} "
            "here, and the hub is not asked: name the folder of a downloaded model, or give model.llm_config"
        )
    with torch.device("meta"):
        encoder, ln_vision = init_vision_encoder(
            options["vit_model"], options["img_size"], options["vit_config"], precision
        )
        qformer, queries = init_qformer(
            options["num_query_token"],
            encoder.config.hidden_size,
            ({"vocab_size": BERT_WORDS} if options["qformer_text_input"] else {}) | options["qformer_config"],
            options["qformer_text_input"],
        )
        llm = AutoModelForCausalLM.from_config(llm_config).to(getattr(torch, llm_dtype))
        proj = nn.Linear(qformer.config.hidden_size, llm.config.hidden_size)
        parts = dict(zip(PARTS, (encoder, ln_vision, qformer, queries, proj, llm), strict=True))
        if options["adaptor_tuning"]:
            adapters.tune_adaptors(qformer, queries)
        for part in frozen_parts(options):
            parts[part].requires_grad_(False)
        if options["lora_rank"]:
            adapters.add_lora(llm, **lora_options(options))
    return parts


def _bytes(parameters: Iterable[nn.Parameter]) -> int:
    return sum(p.numel() * p.element_size() for p in parameters)


def predict(model: Mapping[str, object], work: Work, device: str = "cuda", *, optimizer: bool = True) -> dict[str, int]:
    """Bytes at the peak of a step by purpose; their sum is the peak. ConfigError if the sizes are not known.

    `model` is a `model:` section. With the `optimizer` also AdamW's two states of what trains.
    """
    arch = model.get("arch", "blip2_emac")
    if arch not in ("blip2_emac", "hf_vlm"):
        raise ConfigError(f"the memory of model.arch={arch} cannot be predicted, only blip2_emac's and hf_vlm's")
    if arch == "hf_vlm":
        parts = hf_vlm_memory.predict(model, work, device, optimizer=optimizer)
        return parts | ({"Python and libraries": CPU_RUNTIME} if device == "cpu" else {})
    sizes = Sizes.of(model, device)
    parts = {"weights": sizes.weights}
    if sizes.copies:
        parts["weights in the dtype of products"] = sizes.copies
    if work.phase == "generate":
        parts |= _acting(sizes, work, device)
    else:
        parts |= _training(sizes, work, device, optimizer=optimizer)
    if device == "cpu":
        share = CPU_HOLES_WHOLE if sizes.llm_trains and work.phase != "generate" else CPU_HOLES
        parts |= {"holes in the heap": int(share * parts["activations"]), "Python and libraries": CPU_RUNTIME}
    return parts


def _training(sizes: Sizes, work: Work, device: str, *, optimizer: bool) -> dict[str, int]:
    """Bytes of a training step beside the weights."""
    parts = {"reference": sizes.reference} if work.phase == "dpo" else {}
    parts["gradients"] = 4 * sizes.trainable  # float32
    if optimizer:
        parts["optimizer"] = 8 * sizes.trainable  # AdamW: two moments in float32
    # Tokens of a row, and the places in it whose next token is predicted; an answer's `</s>` is predicted, never read.
    answers = work.answer - 1 if work.phase == "bc" else 2 * (work.answer - 1)
    tokens, places = sizes.queries + work.prompt + answers, answers + 1
    # If the language model is frozen, rows are computed a few at a time (`fast_llm.by_rows`), else all together.
    rows = work.batch if sizes.llm_trains else max(1, min(work.batch, CHUNK_TOKENS[device] // tokens))
    # Logits at the predicted places: as computed, in float32, and float32 gradients of two ways into them.
    logits = places * sizes.llm.vocab_size * (sizes.llm_bytes + 4 * 3)
    # What autograd keeps of one row until its backward pass, and the largest layer's working memory.
    layers, hidden, wide = sizes.llm.num_hidden_layers, sizes.llm.hidden_size, sizes.llm.intermediate_size
    size, layer = sizes.llm_bytes, _layer_of_a_token(sizes, tokens)
    working = size * (3 * wide + 2 * hidden)  # gradients of gate, up and their product, and of the residual
    if sizes.recomputes:  # each layer's input, and one whole layer
        kept = tokens * (layers * size * hidden + layer + working)
    elif sizes.llm_trains:
        kept = tokens * (layers * layer + working)
    else:  # of the last layer only input, keys and values everywhere, and the rest at the predicted places
        keys = size * hidden * (1 + 2 * _key_share(sizes))
        kept = int(tokens * ((layers - 1) * layer + keys + working) + places * (layer + working))
    training = rows * (kept + logits)
    vision = _vision(sizes, work)
    # Activations of the vision side stay until the backward pass if it trains; else they are gone before it begins.
    return parts | {"activations": training + vision if sizes.vision_trains else max(training, vision)}


def _layer_of_a_token(sizes: Sizes, tokens: int) -> int:
    """Bytes that autograd keeps of a layer for each of a row's `tokens`.

    With frozen weights the inputs of its two norms (2 H), what attention needs (queries, keys, values, result), and
    gate, up and silu(gate) (3 I). With weights that train, through Transformers: the norms' inputs in float32, their
    results before the weight, each matrix's input (under autocast the five after a norm are copies), the product (I).
    """
    hidden, wide, size = sizes.llm.hidden_size, sizes.llm.intermediate_size, sizes.llm_bytes
    kept = size * (hidden * (2 + 2 * _key_share(sizes)) + 3 * wide)
    if sizes.keeps_scores:  # by blocks of queries under a causal mask
        kept += size * sizes.llm.num_attention_heads * (tokens + fast_llm.ATTENTION_BLOCK) // 2
    if not sizes.llm_trains:
        return int(kept + size * 2 * hidden)
    residual, copies = (4, 5) if sizes.copies else (size, 2)
    return int(kept + 2 * hidden * (4 + residual) + size * (copies * hidden + wide))


def _key_share(sizes: Sizes) -> float:
    heads = sizes.llm.num_attention_heads
    return getattr(sizes.llm, "num_key_value_heads", heads) / heads


def _vision(sizes: Sizes, work: Work) -> int:
    """Activations of the vision encoder: of one layer without gradients, of all layers if it trains."""
    if work.stored and not sizes.vision_trains:
        return 0
    layer = 16 * sizes.vision_width * sizes.vision_tokens * sizes.vision_bytes * work.batch
    return layer * (sizes.vision_layers if sizes.vision_trains else 1)


def _acting(sizes: Sizes, work: Work, device: str) -> dict[str, int]:
    """Bytes of `generate` beside the weights."""
    config = sizes.llm
    length = sizes.queries + work.prompt
    # Keys and values of every layer: of the prompt once, of the answers for each beam.
    key_heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    tokens = work.batch * (length + (1 + work.beams) * work.answer)
    kept = 2 * config.num_hidden_layers * tokens * key_heads * width * sizes.llm_bytes
    # The larger of one layer over the prompts read at a time, and all beams' scores of the next token.
    rows = min(work.batch, max(1, fast_llm.PREFILL[device] // config.hidden_size // length))
    layer = rows * length * (6 * config.hidden_size + 3 * config.intermediate_size) * sizes.llm_bytes
    embeds = work.batch * length * config.hidden_size * sizes.llm_bytes
    scores = work.batch * work.beams * config.vocab_size * (sizes.llm_bytes + 4 * 3)
    return {"keys and values": kept, "activations": embeds + max(layer, scores, _vision(sizes, work))}


def _section(name: str, options: Sequence[str]) -> dict[str, Any]:
    """The `model:` section that a command line means."""
    arch, _, path = name.partition(":")
    own = (load_yaml(name).get("model") or {}) if Path(name).suffix in (".yaml", ".yml") else {}
    if arch == "hf_vlm":
        section: dict[str, Any] = {"arch": arch, "path": path}
    elif own.get("arch") == "hf_vlm":  # whose keys are not those of a Blip2Emac's types
        section = plain(own)
    else:
        section = model_section(name)
    return plain(merged(section, *(read_option(option) for option in options)))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the prediction; the exit code."""
    given = parse_arguments(argv)
    try:
        section = _section(given.model, given.options)
        work = Work(given.phase, given.batch, given.prompt, given.answer, given.beams, stored=False)
        parts = predict(section, work, given.device)
    except EmacError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, size in parts.items():
        print(f"{name:<34} {size / 2**30:8.2f} GiB")
    print(f"{'peak':<34} {sum(parts.values()) / 2**30:8.2f} GiB")
    return 0


if __name__ == "__main__":
    run_program(main)
