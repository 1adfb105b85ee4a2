"""Weights in each format that people have: read, converted, held against Transformers' own InstructBLIP."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    InstructBlipConfig,
    InstructBlipForConditionalGeneration,
)

from lavis.common.errors import ConfigError
from lavis.models import convert
from lavis.models.blip2_models import weights
from lavis.models.blip2_models.blip2_emac import Blip2Emac
from lavis.models.blip2_models.emac_config import model_section
from lavis.models.blip2_models.text import encode_prompts

VISION = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "patch_size": 14,
}
QFORMER = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "cross_attention_frequency": 2,
}
LLM = {
    "model_type": "llama",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 1024,
    "tie_word_embeddings": False,
}
OPTIONS = {
    "vit_config": VISION,
    "img_size": 28,
    "qformer_config": QFORMER,
    "num_query_token": 4,
    "llm_config": LLM,
    "freeze_vit": True,
    "freeze_qformer": True,
    "freeze_llm": True,
}


@pytest.fixture
def hub() -> InstructBlipForConditionalGeneration:
    """The hub's model class with small random weights; ln_vision's eps as the original's."""
    torch.manual_seed(0)
    config = InstructBlipConfig(
        vision_config={**VISION, "image_size": 28},
        qformer_config={**QFORMER, "vocab_size": 40, "encoder_hidden_size": 16},
        text_config=LLM,
        num_query_tokens=4,
        image_token_index=1000,
    )
    model = InstructBlipForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter.data, std=0.3)
    for layer in model.vision_model.encoder.layers:
        layer.self_attn.qkv.bias.data[16:32] = 0  # InstructBLIP has no bias on keys
    model.vision_model.post_layernorm.eps = 1e-5
    return model


def logits(model: Blip2Emac, image: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Of the prompt's positions."""
    tokens = model.llm_proj(model.vision.encode_queries(image, []))
    embeds = torch.cat([tokens, model.llm_model.get_input_embeddings()(ids)], dim=1)
    return model.llm_model(inputs_embeds=embeds).logits[:, tokens.shape[1] :]


@torch.no_grad()
def test_the_hubs_shards_give_the_hubs_numbers(
    hub: InstructBlipForConditionalGeneration, build: Callable[..., Blip2Emac], tmp_path: Path
) -> None:
    hub.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    model = build(**OPTIONS).eval()
    model.load_checkpoint(str(tmp_path))
    image, ids = torch.randn(2, 3, 28, 28), torch.randint(0, 1000, (2, 5))
    assert torch.allclose(logits(model, image, ids), hub_logits(hub, image, ids, reads=False), atol=1e-4)
    assert not torch.allclose(logits(model, image, ids), hub_logits(hub, image, ids), atol=1e-2)


def hub_logits(
    hub: InstructBlipForConditionalGeneration, image: torch.Tensor, ids: torch.Tensor, *, reads: bool = True
) -> torch.Tensor:
    """What the hub's class answers where the Q-Former is given two words of text, and `reads` them or not."""
    marks = torch.full((len(ids), 4), hub.config.image_token_index)
    text = torch.tensor([[5, 6]]).expand(len(ids), 2)
    inputs = {"qformer_input_ids": text, "qformer_attention_mask": torch.full_like(text, int(reads))}
    return hub(pixel_values=image, input_ids=torch.cat([marks, ids], dim=1), **inputs).logits[:, 4:]


@torch.no_grad()
def test_round_trip_through_all_names(
    hub: InstructBlipForConditionalGeneration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(convert, "SHARD_SIZE", "30KB")
    hub.save_pretrained(tmp_path / "hub")
    steps = [("hub", "a.pth", "lavis"), ("a.pth", "b.pth", "native"), ("b.pth", "c", "hub"), ("hub", "d", "hub")]
    section = {"model_type": "vicuna7b", "num_query_token": 4, "qformer_config": {**QFORMER, "vocab_size": 40}}
    section |= {"vit_config": VISION, "img_size": 28, "llm_config": LLM}
    OmegaConf.save({"model": section}, tmp_path / "sizes.yaml")
    for source, target, names in steps:
        command = [str(tmp_path / source), str(tmp_path / target), "--to", names, "--with-llm"]
        sizes = ["--model", str(tmp_path / "sizes.yaml")] if "hub" in command else []
        assert convert.main([*command, *sizes]) == 0
        assert "image tokens (2, 4, 16) are equal" in capsys.readouterr().out
    lavis = torch.load(tmp_path / "a.pth", weights_only=True)["model"]
    assert {"visual_encoder.blocks.1.attn.q_bias", "Qformer.bert.embeddings.LayerNorm.weight"} <= lavis.keys()
    assert weights.format_of(lavis) == "LAVIS"
    image, ids = torch.randn(2, 3, 28, 28), torch.randint(0, 900, (2, 5))
    want = hub_logits(hub, image, ids)
    for folder, words in (("c", 1025), ("d", 1024)):  # LAVIS's names lose the hub's word for image tokens
        shards = list((tmp_path / folder).glob("*.safetensors"))
        assert len(shards) > 1
        assert {file.stat().st_mode for file in shards} == {(tmp_path / folder / "config.json").stat().st_mode}
        again, report = InstructBlipForConditionalGeneration.from_pretrained(
            tmp_path / folder, output_loading_info=True
        )
        assert not any(report.values())
        again.vision_model.post_layernorm.eps = 1e-5
        got = hub_logits(again.eval(), image, ids)
        assert got.shape == (2, 5, words)
        assert torch.allclose(got[..., :1024], want, atol=1e-4)
        assert (got.argmax(-1) < 1024).all()


def test_lavis_files_leave_the_language_model_out_and_it_can_be_added(
    hub: InstructBlipForConditionalGeneration, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    hub.save_pretrained(tmp_path / "hub")
    hub.language_model.save_pretrained(tmp_path / "vicuna")
    convert.convert(str(tmp_path / "hub"), tmp_path / "trimmed.pth", "lavis")
    assert not any(key.startswith("llm_model") for key in weights.read_state(tmp_path / "trimmed.pth"))
    torch.save({"model": {"llm_proj.bias": torch.ones(16)}}, tmp_path / "emma_checkpoint_0.pth")
    OmegaConf.save({"model": {**OPTIONS, "llm_config": {}, "model_type": "vicuna7b"}}, tmp_path / "sizes.yaml")
    command = [str(tmp_path / "emma_checkpoint_0.pth"), str(tmp_path / "again"), "--to", "hub"]
    command += ["--base", str(tmp_path / "trimmed.pth"), "--model", str(tmp_path / "sizes.yaml")]
    assert convert.main(command) == 2
    assert "has no language model" in capsys.readouterr().err
    command += ["--llm", str(tmp_path / "vicuna")]
    assert convert.main(command) == 2
    assert "word_embeddings.weight is (40, 16) in the file, (30523, 16)" in capsys.readouterr().err
    OmegaConf.update(sizes := OmegaConf.load(tmp_path / "sizes.yaml"), "model.qformer_config.vocab_size", 40)
    OmegaConf.save(sizes, tmp_path / "sizes.yaml")
    assert convert.main(command) == 0
    again = InstructBlipForConditionalGeneration.from_pretrained(tmp_path / "again")
    assert torch.equal(again.language_projection.bias, torch.ones(16))
    assert torch.equal(again.language_projection.weight, hub.language_projection.weight)


def test_emma_checkpoints(build: Callable[..., Blip2Emac], tmp_path: Path) -> None:
    source, target = build(**OPTIONS), build(**OPTIONS, init_seed=1)
    whole = {k: v for k, v in weights.to_lavis(source.policy_state_dict()).items() if "llm_model" not in k}
    whole |= {f"ref_{k}": v + 1 for k, v in whole.items() if k.startswith(("llm_proj", "query_tokens"))}
    both = {f"{prefix}llm_model.lm_head.weight": torch.ones(2, 2) for prefix in ("", "ref_")}
    torch.save({"model": whole | both}, tmp_path / "with_llm.pth")
    convert.convert(str(tmp_path / "with_llm.pth"), tmp_path / "without.pth", "lavis")
    assert not [key for key in weights.read_state(tmp_path / "without.pth") if "llm_model" in key]
    torch.save({"model": whole}, tmp_path / "emma_checkpoint_0.pth")
    target.load_checkpoint(str(tmp_path / "emma_checkpoint_0.pth"))
    assert torch.equal(target.llm_proj.weight, source.llm_proj.weight)
    assert torch.equal(target.reference.llm_proj.weight, source.llm_proj.weight + 1)

    torch.save({"model": source.trainable_state_dict()}, tmp_path / "emma_checkpoint_1.pth")
    other = build(**OPTIONS, init_seed=2)
    other.load_checkpoint(str(tmp_path / "emma_checkpoint_1.pth"))
    assert torch.equal(other.llm_proj.weight, source.llm_proj.weight)
    lines = convert.convert(str(tmp_path / "emma_checkpoint_1.pth"), tmp_path / "own.pth", "lavis")
    assert lines[-1] == "read back: 2 tensors are equal"


def test_a_small_file_of_what_trained_with_the_language_model(build: Callable[..., Blip2Emac], tmp_path: Path) -> None:
    options = {**OPTIONS, "freeze_llm": False}
    trained = build(**options)
    torch.save({"model": trained.trainable_state_dict()}, tmp_path / "student.pth")
    target = tmp_path / "student.safetensors"
    command = [str(tmp_path / "student.pth"), str(target), "--to", "native", "--with-llm", "--dtype", "bfloat16"]
    assert convert.main(command) == 0
    written = load_file(target)
    assert written.keys() == trained.trainable_state_dict().keys()
    assert all(value.dtype == torch.bfloat16 for value in written.values())
    again = build(**options, init_seed=3)
    again.load_checkpoint(str(target))
    for name, value in again.trainable_state_dict().items():
        assert torch.equal(value, trained.trainable_state_dict()[name].to(torch.bfloat16).to(value.dtype))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("vision_model.post_layernorm.weight"), r"\(hub names\).*1 missing: ln_vision.weight"),
        (lambda s: s.update({"qformer.strange": torch.ones(1)}), "1 unexpected: Qformer.strange"),
        (lambda s: s.update({"query_tokens": torch.ones(1, 9, 16)}), r"query_tokens is \(1, 9, 16\) in the file"),
        (lambda s: s["language_projection.weight"].fill_(float("nan")), "llm_proj.weight holds NaN"),
    ],
)
def test_a_file_that_does_not_fit_says_why(
    hub: InstructBlipForConditionalGeneration, build: Callable, tmp_path: Path, change: Callable, message: str
) -> None:
    state = {k: v.clone() for k, v in hub.state_dict().items()}
    change(state)
    torch.save(state, tmp_path / "x.pth")
    with pytest.raises(ValueError, match=message):
        build(**OPTIONS).load_checkpoint(str(tmp_path / "x.pth"))


def test_what_cannot_be_converted_is_one_line(tmp_path: Path, capsys) -> None:
    torch.save({"encoder.weight": torch.ones(1)}, tmp_path / "other.pth")
    assert convert.main([str(tmp_path / "other.pth"), str(tmp_path / "o"), "--to", "hub"]) == 2
    assert "is no BLIP-2 model: it has encoder" in capsys.readouterr().err
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    assert convert.main([str(tmp_path / "shards"), str(tmp_path / "o"), "--to", "hub"]) == 2
    assert "lacks gone.safetensors, one of 1 shards" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("to", "options", "unused"),
    [
        ("llm", "--model tiny --dtype bfloat16 --base a.pth --llm b --with-llm", "--base, --llm, --with-llm, --dtype"),
        ("lavis", "--without-adapters --dtype bfloat16", "--without-adapters"),
        ("native", "--model tiny", "--model"),
    ],
)
def test_an_option_that_a_target_does_not_use_is_refused(to: str, options: str, unused: str, capsys) -> None:
    """They were ignored: `--to llm --dtype bfloat16` wrote float32."""
    assert convert.main(["none", "nowhere", "--to", to, *options.split()]) == 2
    assert f"error: --to {to} does not use {unused}: leave it out\n" == capsys.readouterr().err


def test_an_export_beside_another_frozen_base_is_refused(tmp_path: Path, capsys) -> None:
    model = Blip2Emac.from_config(model_section("tiny"))
    content = {"model": model.trainable_state_dict(), "base_hash": "0" * 64}
    torch.save(content, tmp_path / "run.pth")
    command = [str(tmp_path / "run.pth"), str(tmp_path / "llm"), "--to", "llm", "--model", "tiny"]
    assert convert.main(command) == 2
    assert "was trained on the frozen base 000000000000, this model's frozen base is" in capsys.readouterr().err
    torch.save(content | {"base_hash": model.base_hash()}, tmp_path / "run.pth")
    assert convert.main(command) == 0


@torch.no_grad()
def test_the_language_model_alone_as_engines_read_it(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    section = {"model_type": "tiny", "llm_weights": "tiny/backbone.safetensors", "freeze_llm": False, "amp": ""}
    OmegaConf.save({"model": section}, tmp_path / "config.yaml")
    trained = Blip2Emac.from_config(model_section(str(tmp_path / "config.yaml"))).eval()
    trained.llm_model.model.norm.weight.mul_(2)
    torch.save({"model": trained.trainable_state_dict()}, tmp_path / "emma_checkpoint_0.pth")
    command = [str(tmp_path / "emma_checkpoint_0.pth"), str(tmp_path / "llm"), "--to", "llm"]
    assert convert.main([*command, "--model", str(tmp_path / "config.yaml")]) == 0
    assert "are equal" in capsys.readouterr().out
    llm, tokenizer = (c.from_pretrained(tmp_path / "llm") for c in (AutoModelForCausalLM, AutoTokenizer))
    ids = tokenizer("On the desk 2, you see a mug 1.\n>", return_tensors="pt").input_ids
    assert ids.tolist() == encode_prompts(trained.llm_tokenizer, ["On the desk 2, you see a mug 1.\n>"])
    assert torch.allclose(llm(ids).logits, trained.llm_model(ids).logits, atol=1e-5)
    assert convert.main(command) == 2
    assert "--to llm needs --model" in capsys.readouterr().err
    assert convert.main([*command, "--model", "huge"]) == 2
    assert "unknown model type 'huge'" in capsys.readouterr().err


@torch.no_grad()
def test_the_hubs_spare_words_are_left_out(
    hub: InstructBlipForConditionalGeneration, build: Callable[..., Blip2Emac], tmp_path: Path
) -> None:
    hub.resize_token_embeddings(1088)  # as the hub's InstructBLIP has them since <image> is a word
    hub.save_pretrained(tmp_path)
    model = build(**OPTIONS).eval()
    model.load_checkpoint(str(tmp_path))
    assert model.llm_model.lm_head.weight.equal(hub.language_model.lm_head.weight[:1024])
    hub.resize_token_embeddings(2000)
    hub.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"llm_model.\S+ is \(2000, 16\) in the file, \(1024, 16\) in the model"):
        model.load_checkpoint(str(tmp_path))


def test_an_encoder_that_transformers_does_not_have_is_not_written_for_it(tmp_path):
    (tmp_path / "weights.safetensors").touch()
    with pytest.raises(ConfigError, match="vit_model=conv"):
        convert.hub_config(source=str(tmp_path / "weights.safetensors"), model="student_looks")
