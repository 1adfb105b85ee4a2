"""Weights of Blip2Emac in and out, hashes, files that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from lavis.common.config import load_yaml, merged
from lavis.common.errors import ConfigError
from lavis.models import download, load_model
from lavis.models.blip2_models import blip2, emac_weights, weights
from lavis.models.blip2_models.blip2_emac import Blip2Emac
from lavis.models.student import questions_of

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

    def test_a_checkpoint_of_one_part_fits_a_run_that_trains_more(self, build: Build) -> None:
        """It was refused, as trained on another base, though all weights were equal."""
        frozen = {"freeze_vit": True, "freeze_qformer": True, "freeze_llm": True}
        first = build(**frozen)
        trained = first.trainable_state_dict()
        assert {name.split(".")[0] for name in trained} == {"llm_proj"}
        for more in ({"freeze_qformer": False}, {"freeze_llm": False}, {"lora_rank": 2}):
            options = {**frozen, **more}
            assert build(**options).is_base(first.base_hash(), trained)
            assert not build(**options, init_seed=8).is_base(first.base_hash(), trained)
        whole = build(freeze_vit=False, freeze_qformer=False, freeze_llm=False)
        assert first.is_base(whole.base_hash(), whole.trainable_state_dict()), "it holds everything: it needs no base"

    def test_a_base_has_the_same_hash_on_a_cpu(self) -> None:
        options = {"llm_dtype": "bfloat16", "freeze_llm": True}
        here = load_model("blip2_emac", "tiny", options=options)
        section = merged(load_yaml(Blip2Emac.default_config_path("tiny")).model, options)
        there = Blip2Emac.from_config(section)  # as it stays on a GPU
        assert here.llm_model.dtype == torch.float32 != there.llm_model.dtype
        assert here.base_hash() == there.base_hash() != here.frozen_hash()
        assert here.is_base(here.frozen_hash()) and there.is_base(here.frozen_hash())
        assert not here.is_base(load_model("blip2_emac", "tiny", options={**options, "init_seed": 3}).base_hash())

    def test_hashes_follow_a_language_model_that_is_loaded_later(self, frozen: Blip2Emac, tmp_path: Path) -> None:
        frozen.set_reference()
        before = frozen.base_hash(), frozen.reference_hash()
        save_file({k: 2 * v for k, v in frozen.llm_model.state_dict().items()}, tmp_path / "llm.safetensors")
        emac_weights.load_llm(frozen, tmp_path / "llm.safetensors")
        assert frozen.base_hash() != before[0] and frozen.reference_hash() != before[1]

    def test_llm_weights_from_safetensors(self, tmp_path: Path) -> None:
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


FROZEN = {"freeze_vit": True, "freeze_qformer": True, "freeze_llm": True}
SIDE = 7  # patches of a side: 112 / 16


@pytest.fixture
def files(build: Build, tmp_path: Path) -> dict[str, str]:
    """The original's files in small: LAVIS's base without a vision encoder, EVA-CLIP's own, the language model.

    `seed 4` in all of them. EVA-CLIP's has no prefix, half precision, one block more than the model, a final norm and a
    head, and a position embedding for larger images.
    """
    model = build(init_seed=4)
    native = model.policy_state_dict()
    lavis = weights.to_lavis({k: v.clone() for k, v in native.items() if not k.startswith("llm_model.")})
    base = {k: v for k, v in lavis.items() if not k.startswith("visual_encoder.")}
    eva = {k.removeprefix("visual_encoder."): v.half() for k, v in lavis.items() if k.startswith("visual_encoder.")}
    eva |= {k.replace("blocks.1.", "blocks.2."): v.clone() for k, v in eva.items() if k.startswith("blocks.1.")}
    eva |= {"norm.weight": torch.ones(64), "norm.bias": torch.zeros(64), "head.weight": torch.zeros(3, 64)}
    eva["pos_embed"] = torch.randn(1, 1 + 9 * 9, 64, generator=torch.Generator().manual_seed(0)).half()
    llm = {k.removeprefix("llm_model."): v.clone() for k, v in native.items() if k.startswith("llm_model.")}
    paths = {"base": "instruct_blip_tiny_trimmed.pth", "eva": "eva_vit_g.pth", "llm": "llm.pth"}
    for name, state in (("base", {"model": base}), ("eva", eva), ("llm", llm)):
        torch.save(state, tmp_path / paths[name])
    return {name: str(tmp_path / file) for name, file in paths.items()}


class TestSources:
    """A frozen part that no file brought is random: such a model must not train or act."""

    def test_three_files_make_the_model(self, files: dict, build: Build, samples: dict) -> None:
        options = {"load_basemodel": True, "base_model": files["base"], "vit_weights": files["eva"]}
        model = build(**FROZEN, **options, llm_weights=files["llm"], allow_random=[], init_seed=9)
        want = {k: v.clone() for k, v in build(init_seed=4).policy_state_dict().items()}
        positions = "visual_encoder.embeddings.position_embedding"
        for name, value in model.policy_state_dict().items():
            if name == positions or name.startswith("llm_model."):
                continue
            assert torch.allclose(value, want[name], atol=1e-3), name
        assert model.sources["visual_encoder"] == f"{files['eva']} (EVA-CLIP names)"
        assert model.sources["Qformer"] == f"{files['base']} (LAVIS names)"
        assert model.sources["llm_model"] == files["llm"]
        table = torch.load(files["eva"], weights_only=True)["pos_embed"].float()
        got = model.visual_encoder.embeddings.position_embedding
        assert got.shape == (1, 1 + SIDE * SIDE, 64) and torch.equal(got[:, 0], table[:, 0])
        grid = torch.nn.functional.interpolate(
            table[0, 1:].T.reshape(1, 64, 9, 9), size=(SIDE, SIDE), mode="bicubic", align_corners=False
        )
        assert torch.allclose(got[0, 1:], grid[0].reshape(64, -1).T, atol=1e-6)
        assert model(samples)["loss"].isfinite() and len(model.generate(samples, max_length=4)) == 3

    def test_without_the_vision_encoder_it_neither_trains_nor_acts(
        self, files: dict, build: Build, samples: dict
    ) -> None:
        options = {"load_basemodel": True, "base_model": files["base"], "llm_weights": files["llm"]}
        model = build(**FROZEN, **options, allow_random=[])
        model.set_reference()
        message = r"no file brought the weights of visual_encoder \(set model.vit_weights: .*eva_vit_g.pth\).*unless "
        for call in (model, model.dpo_forward, model.generate, model.prompt_embeds):
            with pytest.raises(ConfigError, match=message):
                call(samples)
        with pytest.raises(ConfigError, match=message):
            model.score(questions_of(samples, "look"), [["look"]] * 3)
        allowed = build(**FROZEN, **options, allow_random=["visual_encoder"])
        assert allowed(samples)["loss"].isfinite()

    def test_a_base_without_the_vision_encoder_is_refused_where_that_trains(self, files: dict, build: Build) -> None:
        model = build(load_basemodel=True, base_model=files["base"], allow_random=[])
        assert not model.frozen
        with pytest.raises(ConfigError, match="visual_encoder"):
            model.require_sources()

    def test_every_frozen_part_counts(self, build: Build) -> None:
        with pytest.raises(ConfigError, match=r"Qformer \(set model.base_model\).*llm_model \(set model.llm_model"):
            build(**FROZEN, allow_random=[]).require_sources()

    @pytest.mark.parametrize("model_type", ["tiny", "demo", "student"])
    def test_the_small_types_bring_theirs(self, model_type: str) -> None:
        load_model("blip2_emac", model_type).require_sources()

    def test_a_file_of_the_package_may_be_the_reference(self) -> None:
        model = load_model("blip2_emac", "student", options={"ref_pretrained": "tiny/student.safetensors"})
        assert model.reference is not None

    def test_a_whole_base_file_wins_over_the_vision_file(self, files: dict, build: Build, tmp_path: Path) -> None:
        native = build(init_seed=4).policy_state_dict()
        lavis = weights.to_lavis({k: v.clone() for k, v in native.items() if not k.startswith("llm_model.")})
        torch.save({"model": lavis}, tmp_path / "whole.pth")
        options = {"load_basemodel": True, "base_model": str(tmp_path / "whole.pth")}
        model = build(**FROZEN, **options, vit_weights="https://127.0.0.1:9/eva_vit_g.pth", init_seed=9)
        assert "whole.pth" in model.sources["visual_encoder"]

    def test_a_url_without_a_network_stops_before_anything_is_built(
        self, files: dict, build: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(download, "cache_folder", lambda: tmp_path / "cache")
        monkeypatch.setattr(blip2, "parts", lambda options: pytest.fail("built"))
        for key, others in (("base_model", {}), ("vit_weights", {"base_model": files["base"]})):
            url = "http://127.0.0.1:9/a/weights.pth"
            with pytest.raises(FileNotFoundError, match=rf"model.{key}: {url} could .*put the file at {tmp_path}"):
                build(**FROZEN, **others, load_basemodel=True, **{key: url} | ({} if others else {"vit_weights": ""}))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda eva: eva.pop("blocks.1.mlp.fc1.weight"), "1 missing: visual_encoder.encoder.layers.1.mlp.fc1.wei"),
            (lambda eva: eva.update(strange=torch.zeros(1)), "1 unexpected: visual_encoder.strange"),
            (lambda eva: eva.update(cls_token=torch.zeros(1, 1, 5)), "1 of another shape: .*class_embedding"),
            (lambda eva: eva.clear(), "has no vision encoder"),
        ],
    )
    def test_another_vision_file_is_refused(
        self, files: dict, build: Build, tmp_path: Path, change: Callable, message: str
    ) -> None:
        eva = torch.load(files["eva"], weights_only=True)
        change(eva)
        torch.save(eva, tmp_path / "other.pth")
        with pytest.raises(ValueError, match=message):
            build(vit_weights=str(tmp_path / "other.pth"))

    def test_shapes_are_read_without_the_weights(self, files: dict, tmp_path: Path) -> None:
        save_file(weights.read_state(files["eva"]), tmp_path / "eva.safetensors")
        whole = weights.read_state(files["eva"])
        for file in (files["eva"], tmp_path / "eva.safetensors"):
            shapes = weights.read_shapes(file)
            assert all(value.is_meta for value in shapes.values())
            assert {k: (v.shape, v.dtype) for k, v in shapes.items()} == {
                k: (v.shape, v.dtype) for k, v in whole.items()
            }
