"""Weights of Blip2Emac in and out, hashes, files that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lavis.models import load_model
from lavis.models.blip2_models import weights
from lavis.models.blip2_models.blip2_emac import Blip2Emac

Build = Callable[..., Blip2Emac]


def one_step(model: Blip2Emac, loss: Tensor) -> tuple[set[str], set[str]]:
    """One optimiser step over ALL parameters: names that moved, names bit-equal to before."""
    before = {k: v.clone() for k, v in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    loss.backward()
    optimizer.step()
    moved = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    return moved, before.keys() - moved


class TestWeights:
    def test_same_config_same_weights(self, build: Build) -> None:
        torch.manual_seed(5)
        first, second = load_model("blip2_emac", "tiny"), load_model("blip2_emac", "tiny")
        assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
        other = load_model("blip2_emac", "tiny", options={"init_seed": 1})
        assert not torch.equal(first.query_tokens, other.query_tokens)

    def test_building_leaves_the_random_state_alone(self) -> None:
        state = torch.get_rng_state()
        load_model("blip2_emac", "tiny")
        assert torch.equal(state, torch.get_rng_state())

    def test_trainable_state_goes_out_and_in(self, frozen: Blip2Emac, build: Build) -> None:
        state = frozen.trainable_state_dict()
        assert state.keys() == {"llm_proj.weight", "llm_proj.bias"}
        other = build(freeze_vit=True, freeze_qformer=True, freeze_llm=True, init_seed=3)
        other.load_trainable(state)
        assert torch.equal(other.llm_proj.weight, frozen.llm_proj.weight)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda state: state.pop("llm_proj.bias"), "1 missing: llm_proj.bias"),
            (lambda state: state.update(foreign=torch.zeros(1)), "1 unexpected: foreign"),
            (
                lambda state: state.update({"llm_proj.bias": torch.zeros(5)}),
                r"llm_proj.bias is \(5,\) in the file, \(32,\) in the model",
            ),
        ],
    )
    def test_what_does_not_fit_is_named(self, frozen: Blip2Emac, change: Callable, message: str) -> None:
        state = dict(frozen.trainable_state_dict())
        change(state)
        with pytest.raises(ValueError, match=message):
            frozen.load_trainable(state)

    def test_lavis_names_go_out_and_in(self, build: Build, samples: dict, tmp_path: Path) -> None:
        model = build(freeze_vit=True, freeze_qformer=True, freeze_llm=True)
        native = model.policy_state_dict()
        # LAVIS has no bias on the keys; softmax does not see one.
        native = {k: v.clone() for k, v in native.items() if not k.startswith("llm_model.")}
        lavis = weights.to_lavis(native)
        assert "visual_encoder.blocks.1.attn.q_bias" in lavis
        assert "Qformer.bert.encoder.layer.0.crossattention.self.key.weight" in lavis
        torch.save({"model": lavis}, tmp_path / "lavis.pth")
        other = build(freeze_vit=True, freeze_qformer=True, freeze_llm=True, init_seed=9)
        other.load_checkpoint(str(tmp_path / "lavis.pth"))
        assert torch.allclose(model(samples)["loss"], other(samples)["loss"])

    def test_checkpoint_of_phase_one_becomes_the_reference(self, build: Build, samples: dict, tmp_path: Path) -> None:
        options = {"freeze_vit": True, "freeze_qformer": True, "freeze_llm": True}
        first = build(**options, init_seed=4)
        path = tmp_path / "emma_checkpoint_0.pth"
        torch.save({"model": first.trainable_state_dict()}, path)
        second = build(**options, pretrained=str(path), ref_pretrained=str(path))
        assert torch.equal(second.reference.llm_proj.weight, first.llm_proj.weight)
        assert second.dpo_forward(samples)["chosen_reward"].abs().item() < 1e-6

    def test_base_hash_follows_the_frozen_weights_only(self, build: Build, samples: dict) -> None:
        model = build(freeze_vit=True, freeze_qformer=True, freeze_llm=True)
        before = model.base_hash()
        one_step(model, model(samples)["loss"])
        assert model.base_hash() == before
        assert build(freeze_vit=True, freeze_qformer=True, freeze_llm=True, init_seed=8).base_hash() != before

    def test_llm_weights_from_safetensors(self, tmp_path: Path) -> None:
        from safetensors.torch import save_file

        model = load_model("blip2_emac", "tiny")
        state = {
            k.removeprefix("llm_model."): v.bfloat16()
            for k, v in model.policy_state_dict().items()
            if k.startswith("llm_model.")
        }
        assert "lm_head.weight" not in state  # tied
        save_file(state, tmp_path / "backbone.safetensors")
        options = {"llm_weights": str(tmp_path / "backbone.safetensors"), "init_seed": 1}
        other = load_model("blip2_emac", "tiny", options=options)
        want = model.llm_model.get_output_embeddings().weight.bfloat16().float()
        assert torch.equal(other.llm_model.get_output_embeddings().weight, want)

    @pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off"])
    def test_a_damaged_file_is_named(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "broken.pth").write_bytes(content)
        with pytest.raises(ValueError, match="broken.pth is not a readable weight file"):
            load_model("blip2_emac", "tiny", options={"pretrained": str(tmp_path / "broken.pth")})
