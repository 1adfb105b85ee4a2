"""The real sizes without the real weights: names and shapes of the three files against models without storage.

The files here hold tensors on the `meta` device, so `torch.load` reads their names and shapes and there are no numbers.
Their names and shapes are written down below from three places: LAVIS's `eva_vit.py` (`create_eva_vit_g`: 39 blocks of
width 1408; the published EVA-CLIP-g has 40, a final norm and no head), LAVIS's `Qformer.py` (BERT base with
cross-attention in every second layer and a branch of its own for the queries; in InstructBLIP it also reads text), and
Transformers' `LlamaForCausalLM` at Vicuna's published `config.json`. None is made from this project's model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from lavis.models import download, sources
from lavis.models.blip2_models import emac_weights, weights
from lavis.models.blip2_models.emac_config import CONFIG_DEFAULTS, PARTS, model_section, package_path

WIDTH, DEPTH, MLP, POSITIONS = 1408, 40, 6144, 257
HIDDEN, WORDS = 768, 30523
VICUNA = {"7b": (4096, 11008, 32), "13b": (5120, 13824, 40)}


def shaped(shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    return {name: torch.empty(shape, dtype=dtype, device="meta") for name, shape in shapes.items()}


def linear(name: str, out: int, inside: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, inside), f"{name}.bias": (out,)}


def norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def eva(positions: int = POSITIONS) -> dict[str, Tensor]:
    """eva_vit_g.pth: no prefix, 40 blocks, half precision."""
    shapes: dict[str, tuple[int, ...]] = {"cls_token": (1, 1, WIDTH), "pos_embed": (1, positions, WIDTH)}
    shapes |= {"patch_embed.proj.weight": (WIDTH, 3, 14, 14), "patch_embed.proj.bias": (WIDTH,)}
    for n in range(DEPTH):
        block = f"blocks.{n}"
        shapes |= norm(f"{block}.norm1", WIDTH) | norm(f"{block}.norm2", WIDTH)
        shapes |= {f"{block}.attn.q_bias": (WIDTH,), f"{block}.attn.v_bias": (WIDTH,)}
        shapes |= {f"{block}.attn.qkv.weight": (3 * WIDTH, WIDTH)} | linear(f"{block}.attn.proj", WIDTH, WIDTH)
        shapes |= linear(f"{block}.mlp.fc1", MLP, WIDTH) | linear(f"{block}.mlp.fc2", WIDTH, MLP)
    return shaped(shapes | norm("norm", WIDTH))


def attention(name: str, keys: int) -> dict[str, tuple[int, ...]]:
    shapes = linear(f"{name}.self.query", HIDDEN, HIDDEN)
    shapes |= linear(f"{name}.self.key", HIDDEN, keys) | linear(f"{name}.self.value", HIDDEN, keys)
    return shapes | linear(f"{name}.output.dense", HIDDEN, HIDDEN) | norm(f"{name}.output.LayerNorm", HIDDEN)


def instruct_blip(size: str) -> dict[str, Tensor]:
    """instruct_blip_vicuna…_trimmed.pth: Q-Former with its text branch, queries, projection, vision norm."""
    bert = "Qformer.bert"
    shapes: dict[str, tuple[int, ...]] = {"query_tokens": (1, 32, HIDDEN)} | norm("ln_vision", WIDTH)
    shapes |= linear("llm_proj", VICUNA[size][0], HIDDEN) | norm(f"{bert}.embeddings.LayerNorm", HIDDEN)
    shapes |= {
        f"{bert}.embeddings.position_ids": (1, 512),
        f"{bert}.embeddings.word_embeddings.weight": (WORDS, HIDDEN),
    }
    shapes |= {f"{bert}.embeddings.position_embeddings.weight": (512, HIDDEN)}
    for n in range(12):
        layer = f"{bert}.encoder.layer.{n}"
        shapes |= attention(f"{layer}.attention", HIDDEN)
        if n % 2 == 0:
            shapes |= attention(f"{layer}.crossattention", WIDTH)
        for branch in ("", "_query"):
            shapes |= linear(f"{layer}.intermediate{branch}.dense", 4 * HIDDEN, HIDDEN)
            shapes |= linear(f"{layer}.output{branch}.dense", HIDDEN, 4 * HIDDEN)
            shapes |= norm(f"{layer}.output{branch}.LayerNorm", HIDDEN)
    return shaped(shapes, torch.float32)


@pytest.fixture(params=["7b", "13b"])
def real(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, str]]:
    """The size, and the `model:` keys of the three files in `tmp_path`."""
    size = request.param
    hidden, wide, layers = VICUNA[size]
    llm = tmp_path / "vicuna"
    llm.mkdir()
    sizes: dict[str, Any] = {
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": layers,
        "vocab_size": 32000,
    }
    config = LlamaConfig(**sizes, num_attention_heads=layers, rms_norm_eps=1e-6, tie_word_embeddings=False)
    (llm / "config.json").write_text(json.dumps({**config.to_dict(), "model_type": "llama"}))
    (llm / "tokenizer.model").touch()  # it is looked for, not read
    with torch.device("meta"):
        state = LlamaForCausalLM(config).half().state_dict()
    rotary = {f"model.layers.{n}.self_attn.rotary_emb.inv_freq": (64,) for n in range(layers)}  # of old libraries
    torch.save(dict(state) | shaped(rotary), llm / "pytorch_model.bin")
    torch.save({"model": instruct_blip(size)}, tmp_path / "instruct_blip_trimmed.pth")
    torch.save(eva(), tmp_path / "eva_vit_g.pth")
    files = {"base_model": "instruct_blip_trimmed.pth", "vit_weights": "eva_vit_g.pth", "llm_model": "vicuna"}
    return size, {key: str(tmp_path / name) for key, name in files.items()}


def test_the_real_files_fit_the_real_sizes(real: tuple[str, dict[str, str]]) -> None:
    size, files = real
    parts = {part.part: part for part in sources.part_sources(model_section(f"vicuna{size}") | files)}
    assert list(parts) == list(PARTS) and {part.state for part in parts.values()} == {"found"}, parts
    assert parts["visual_encoder"].origin == f"{files['vit_weights']} (EVA-CLIP names)"
    assert parts["visual_encoder"].parameters == 985_949_440 and parts["visual_encoder"].dtype == "float16"
    assert parts["llm_model"].origin == files["llm_model"]
    assert [part for part in parts if not parts[part].frozen] == ["llm_proj"]


def test_the_shipped_student_is_found() -> None:
    parts = sources.part_sources(model_section("student"))
    files = [Path(part.origin.removesuffix(" (native names)")).name for part in parts]
    assert files == ["vision.safetensors"] * 4 + ["student.safetensors"] * 2


def test_a_checkpoint_with_a_reference_is_found(tmp_path: Path) -> None:
    section = model_section("student")
    state = weights.read_state(package_path(section["pretrained"]))
    whole = {prefix + name: value for prefix in ("", weights.REFERENCE_PREFIX) for name, value in state.items()}
    save_file({name: value.clone() for name, value in whole.items()}, tmp_path / "emma.safetensors")
    parts = sources.part_sources(section | {"pretrained": str(tmp_path / "emma.safetensors")})
    assert {part.state for part in parts} == {"found"}


# What the real files have and the model does not take, with the reason.
LEFT_OVER = {
    r"^(blocks\.39\.)": "BLIP-2 uses 39 of EVA-CLIP-g's 40 blocks",
    r"^norm\.": "BLIP-2 has no norm behind the blocks; `ln_vision` of the other file stands there",
    r"\.position_ids$": "a buffer of old library versions: 0, 1, 2, …",
    r"^Qformer\.bert\.embeddings\.(word|position)_embeddings\.": "text branch: used with qformer_text_input only",
    r"^Qformer\.bert\.encoder\.layer\.\d+\.(intermediate|output)\.": "text branch: used with qformer_text_input only",
}
TEXT = "text branch: used with qformer_text_input only"


@pytest.mark.parametrize("text_input", [False, True])
def test_nothing_is_missing_and_what_is_left_over_is_listed(real: tuple[str, dict[str, str]], text_input: bool) -> None:
    size, files = real
    options = CONFIG_DEFAULTS | model_section(f"vicuna{size}") | files
    model = sources.meta_model({**options, "qformer_text_input": text_input, "llm_config": LLM[size]})
    model.load_checkpoint(files["base_model"])
    emac_weights.load_vision(model, files["vit_weights"])
    assert set(model.sources) == set(PARTS) - {"llm_model"}  # nothing missing: every tensor of these parts was brought
    own = {name: value for name, value in model.policy_state_dict().items() if not name.startswith("llm_model.")}
    taken = {f"visual_encoder.{name}" for name in eva()} | set(instruct_blip(size))
    left = {name.removeprefix("visual_encoder.") for name in taken - set(weights.to_lavis(own))}
    reasons = [reason for name in left for rule, reason in LEFT_OVER.items() if re.search(rule, name)]
    assert len(reasons) == len(left) and (TEXT not in reasons if text_input else TEXT in reasons)


LLM = {
    size: {"model_type": "llama", "hidden_size": hidden, "intermediate_size": wide, "num_hidden_layers": layers}
    | {"num_attention_heads": layers, "vocab_size": 32001, "tie_word_embeddings": False}
    for size, (hidden, wide, layers) in VICUNA.items()
}


def test_position_embeddings_of_other_images(real: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    size, files = real
    torch.save(eva(1 + 26 * 26), tmp_path / "eva_364.pth")
    files |= {"vit_weights": str(tmp_path / "eva_364.pth")}
    parts = sources.part_sources(model_section(f"vicuna{size}") | files)
    assert parts[0].state == "found"


def test_a_13b_base_beside_a_7b_model_and_a_missing_vision_file(real: tuple[str, dict[str, str]]) -> None:
    size, files = real
    other = {"7b": "13b", "13b": "7b"}[size]
    section = model_section(f"vicuna{other}") | {key: files[key] for key in ("base_model",)} | {"vit_weights": ""}
    parts = {part.part: part for part in sources.part_sources(section)}
    assert parts["visual_encoder"].state == "fault" and "set model.vit_weights" in parts["visual_encoder"].origin
    wrong = f"llm_proj.weight is ({VICUNA[size][0]}, 768) in the file, ({VICUNA[other][0]}, 768) in the model"
    assert parts["llm_proj"].state == parts["Qformer"].state == "fault" and wrong in parts["llm_proj"].origin


def test_what_is_to_be_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    parts = sources.part_sources(model_section("vicuna7b"))
    assert {part.state for part in parts} <= {"pending", "found"}
    vision = parts[0]
    assert vision.origin.startswith("https://") and f"to {tmp_path}" in vision.origin and vision.bytes > 1.9e9
