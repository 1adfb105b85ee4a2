"""Blip2Emac: which parameters move, DPO against its formula, generation, scores, weights in and out."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lavis.models import load_model, load_model_and_preprocess
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


class TestTraining:
    def test_only_the_projection_moves(self, frozen: Blip2Emac, samples: dict) -> None:
        frozen.set_reference()
        moved, _ = one_step(frozen.train(), frozen(samples)["loss"])
        assert moved == {"llm_proj.weight", "llm_proj.bias"}

    def test_dpo_moves_the_projection_and_not_the_reference(self, frozen: Blip2Emac, samples: dict) -> None:
        frozen.set_reference()
        assert [k for k in frozen.state_dict() if k.startswith("reference.")] == [
            "reference.llm_proj.weight",
            "reference.llm_proj.bias",
        ]
        moved, _ = one_step(frozen.train(), frozen.dpo_forward(samples)["loss"])
        assert moved == {"llm_proj.weight", "llm_proj.bias"}

    def test_the_tiny_type_trains_whole(self, samples: dict) -> None:
        model = load_model("blip2_emac", "tiny")
        model.set_reference()
        moved, still = one_step(model, model.dpo_forward(samples)["loss"])
        assert {k for k in still if not k.startswith("reference.")} == set()
        assert not any(k.startswith("reference.") for k in moved)

    def test_frozen_parts_stay_in_eval_mode(self, frozen: Blip2Emac) -> None:
        frozen.set_reference()
        frozen.train()
        training = {name for name, module in frozen.named_modules() if module.training}
        assert training == {"", "llm_proj"}
        assert not frozen.eval().training

    def test_ln_vision_trains_only_where_the_config_says_so(self, build: Build) -> None:
        model = build(freeze_vit=True, freeze_qformer=True, freeze_llm=True, freeze_ln_vision=False)
        assert model.trainable_state_dict().keys() == {
            "ln_vision.weight",
            "ln_vision.bias",
            "llm_proj.weight",
            "llm_proj.bias",
        }

    def test_loss_is_the_mean_over_all_output_tokens(self, frozen: Blip2Emac, samples: dict) -> None:
        frozen.avg_log_probs = False
        (sums,) = frozen.sequence_logps(samples, "text_output")
        tokens = (frozen.training_rows(samples["text_input"], samples["text_output"]).labels != -100).sum()
        assert torch.allclose(frozen(samples)["loss"], -sums.sum() / tokens)

    def test_padding_does_not_change_a_row(self, frozen: Blip2Emac, samples: dict) -> None:
        (together,) = frozen.sequence_logps(samples, "text_output")
        for i in range(3):
            alone = {k: v[i : i + 1] for k, v in samples.items()}
            assert torch.allclose(frozen.sequence_logps(alone, "text_output")[0], together[i], atol=1e-5)

    def test_low_memory_gives_the_same_gradient(self, build: Build, samples: dict) -> None:
        gradients = []
        for low_memory in (False, True):
            model = build(freeze_vit=True, freeze_qformer=True, freeze_llm=True, low_memory=low_memory).train()
            model(samples)["loss"].backward()
            gradients.append(model.llm_proj.weight.grad)
        assert torch.allclose(*gradients, atol=1e-7)


class TestDpo:
    @pytest.mark.parametrize("average", [True, False])
    @pytest.mark.parametrize("mix", [0.5, 0.05])
    def test_equals_the_plain_formula(self, frozen: Blip2Emac, samples: dict, average: bool, mix: float) -> None:
        other = copy.deepcopy(frozen)
        torch.nn.init.normal_(other.llm_proj.weight)
        frozen.set_reference(other.trainable_state_dict())
        frozen.avg_log_probs, frozen.mix_ratio = average, mix
        other.avg_log_probs = average
        with torch.no_grad():
            logps = [m.sequence_logps(samples, "text_output_pos", "text_output_neg") for m in (frozen, other)]
        total, chosen_rewards, rejected_rewards, entropies = 0.0, [], [], []
        for w, x, rw, rx in zip(*logps[0], *logps[1], strict=True):  # chosen, rejected; policy, reference
            w, x, rw, rx = w.item(), x.item(), rw.item(), rx.item()
            total += math.log1p(math.exp(-0.1 * ((w - x) - (rw - rx)))) - mix * w
            chosen_rewards.append(0.1 * (w - rw))
            rejected_rewards.append(0.1 * (x - rx))
            entropies.append(-w)
        got = frozen.dpo_forward(samples)
        assert got["loss"].item() == pytest.approx(total / 3, rel=1e-5)
        assert got["chosen_reward"].item() == pytest.approx(sum(chosen_rewards) / 3, rel=1e-5)
        assert got["rejected_reward"].item() == pytest.approx(sum(rejected_rewards) / 3, rel=1e-5)
        assert got["chosen_entropy"].item() == pytest.approx(sum(entropies) / 3, rel=1e-5)

    def test_known_reference_logps_replace_the_reference(self, frozen: Blip2Emac, samples: dict) -> None:
        frozen.set_reference()
        chosen, rejected = frozen.reference_logps(samples)
        assert not chosen.requires_grad
        want = frozen.dpo_forward(samples)["loss"]
        frozen.reference = None
        got = frozen.dpo_forward({**samples, "ref_logps_pos": chosen, "ref_logps_neg": rejected})["loss"]
        assert torch.equal(got, want)

    def test_without_reference_it_says_what_to_set(self, frozen: Blip2Emac, samples: dict) -> None:
        with pytest.raises(ValueError, match="ref_pretrained"):
            frozen.dpo_forward(samples)

    def test_the_reference_stays_when_the_policy_moves(self, frozen: Blip2Emac, samples: dict) -> None:
        frozen.set_reference()
        before = frozen.reference_logps(samples)
        with torch.no_grad():
            frozen.llm_proj.weight.add_(1.0)
        assert torch.equal(before[0], frozen.reference_logps(samples)[0])
        assert not torch.equal(before[0], frozen.sequence_logps(samples, "text_output_pos")[0])

    def test_chosen_equal_to_rejected_leaves_only_the_cloning_term(self, frozen: Blip2Emac, samples: dict) -> None:
        frozen.set_reference()
        samples["text_output_neg"] = samples["text_output_pos"]
        got = frozen.dpo_forward(samples)
        assert got["loss"].item() == pytest.approx(math.log(2) + 0.5 * got["chosen_entropy"].item(), rel=1e-5)

    @pytest.mark.parametrize("average", [True, False])
    def test_answers_beside_one_another_equal_plain_rows(self, frozen: Blip2Emac, samples: dict, average: bool) -> None:
        frozen.avg_log_probs = average
        together = frozen.sequence_logps(samples, "text_output_pos", "text_output_neg")
        apart = [frozen.sequence_logps(samples, key)[0] for key in ("text_output_pos", "text_output_neg")]
        gradients = []
        for logps in (together, apart):
            assert all(torch.allclose(a, b, rtol=1e-5) for a, b in zip(logps, apart, strict=True))
            frozen.zero_grad()
            (logps[0] - 2 * logps[1]).sum().backward()
            gradients.append(frozen.llm_proj.weight.grad.clone())
        assert torch.allclose(*gradients, atol=1e-5 * gradients[1].abs().max().item())


class TestGenerate:
    @pytest.mark.parametrize("min_length", [1, 6])
    def test_greedy_loop_equals_transformers(self, frozen: Blip2Emac, samples: dict, min_length: int) -> None:
        got = frozen.generate(samples, num_beams=1, max_length=12, min_length=min_length, repetition_penalty=1.0)
        embeds, mask = frozen.prompt_embeds(samples)
        ids = frozen.llm_model.generate(
            inputs_embeds=embeds,
            attention_mask=mask,
            max_new_tokens=11,
            min_new_tokens=min_length - 1,
            do_sample=False,
            eos_token_id=2,
            pad_token_id=0,
        )
        want = [frozen.llm_tokenizer.decode([i or 2 for i in row]).strip() for row in ids.tolist()]
        assert got == want
        assert len(set(got)) > 1

    def test_a_batch_gives_what_each_prompt_gives_alone(self, frozen: Blip2Emac, samples: dict) -> None:
        options = {"num_beams": 2, "max_length": 8, "repetition_penalty": 1.0}
        alone = [
            frozen.generate({"image": samples["image"][i : i + 1], "prompt": [p]}, **options)[0]
            for i, p in enumerate(samples["prompt"])
        ]
        assert frozen.generate(samples, **options) == alone

    def test_captions_and_sampling(self, frozen: Blip2Emac, samples: dict) -> None:
        torch.manual_seed(0)
        assert len(frozen.generate(samples, num_beams=3, num_captions=2, max_length=5)) == 6
        assert len(frozen.generate(samples, use_nucleus_sampling=True, num_beams=1, max_length=5)) == 3

    def test_video_frames_follow_one_another(self, frozen: Blip2Emac, samples: dict) -> None:
        video = torch.stack([samples["image"], samples["image"].flip(0)], dim=1)
        queries = frozen.encode_queries(video, samples["prompt"])
        assert queries.shape == (3, 16, 64)
        assert torch.allclose(queries[:, :8], frozen.encode_queries(samples["image"], samples["prompt"]), atol=1e-6)
        assert len(frozen.generate({"image": video, "prompt": "look"}, num_beams=1, max_length=4)) == 3

    def test_one_prompt_serves_all_images(self, frozen: Blip2Emac, samples: dict) -> None:
        options = {"num_beams": 1, "max_length": 5, "repetition_penalty": 1.0}
        image = samples["image"]
        assert frozen.generate({"image": image, "prompt": "x"}, **options) == frozen.generate(
            {"image": image, "prompt": ["x"] * 3}, **options
        )


class TestScore:
    def test_equals_the_log_probability_of_each_answer(self, frozen: Blip2Emac, samples: dict) -> None:
        candidates = [
            ["go to desk 1", "go to desk 2", "look", "go to desk 1"],
            ["inventory"],
            ["take mug 1 from desk 2", "take mug 1 from desk 1", "take mug 1", ""],
        ]
        got = frozen.score(samples, candidates)
        frozen.avg_log_probs = False
        for i, group in enumerate(candidates):
            count = len(group)
            alone = {
                "image": samples["image"][i : i + 1].repeat(count, 1, 1, 1),
                "text_input": [samples["prompt"][i]] * count,
                "text_output": group,
            }
            want = frozen.sequence_logps(alone, "text_output")[0].tolist()
            assert got[i] == pytest.approx(want, abs=1e-3)

    def test_bfloat16_agrees_roughly(self, samples: dict) -> None:
        candidates = [["go to desk 1", "look"]] * 3
        scores = []
        for amp in ("", "bfloat16"):
            model, _, _ = load_model_and_preprocess("blip2_emac", "tiny", options={"amp": amp})
            scores.append(model.score(samples, candidates))
        assert torch.allclose(*map(torch.tensor, scores), rtol=0.02)

    def test_no_candidates(self, frozen: Blip2Emac, samples: dict) -> None:
        assert frozen.score(samples, [[], ["look"], []])[0] == []
        assert frozen.score(samples, [[], [], []]) == [[], [], []]

    def test_wrong_number_of_lists(self, frozen: Blip2Emac, samples: dict) -> None:
        with pytest.raises(ValueError, match="1 lists of candidates for 3 samples"):
            frozen.score(samples, [["look"]])


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


class TestBadInput:
    @pytest.mark.parametrize(
        ("key", "value", "wanted"),
        [
            ("max_txt_len", "abc", "a whole number of at least 1"),
            ("max_txt_len", -5, "a whole number of at least 1"),
            ("lora_dropout", "x", "a number of at least 0"),
            ("freeze_vit", "perhaps", "true or false"),
            ("freeze_ln_vision", 3, "true or false"),
            ("vit_config", "large", "a section"),
            ("lora_targets", "q_proj", "a list"),
            ("pretrained", 7, "a text"),
        ],
    )
    def test_a_value_of_another_type_is_refused(self, key: str, value: object, wanted: str) -> None:
        with pytest.raises(ValueError, match=f"model.{key}: {value!r} is not {wanted}"):
            load_model("blip2_emac", "tiny", options={key: value})

    def test_unknown_key_names_the_nearest(self) -> None:
        with pytest.raises(ValueError, match="unknown key 'model.frezze_vit': did you mean 'model.freeze_vit'"):
            load_model("blip2_emac", "tiny", options={"frezze_vit": True})

    def test_unknown_type_lists_what_exists(self) -> None:
        with pytest.raises(ValueError, match="unknown model type 'tiny2': did you mean 'tiny'"):
            load_model("blip2_emac", "tiny2")
        with pytest.raises(
            ValueError, match="unknown model type 'huge': choose one of demo, tiny, vicuna13b, vicuna7b"
        ):
            load_model("blip2_emac", "huge")

    def test_missing_base_weights(self) -> None:
        with pytest.raises(ValueError, match="model.base_model is empty"):
            load_model("blip2_emac", "vicuna7b")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                {"image": torch.zeros(3, 3, 64, 64)},
                r"expected float \(N, 3, 112, 112\), got torch.float32 \(3, 3, 64, 64\)",
            ),
            ({"image": torch.zeros(3, 3, 112, 112, dtype=torch.uint8)}, "got torch.uint8"),
            ({"image": torch.zeros(0, 3, 112, 112)}, "image is empty"),
            ({"text_output": ["look"]}, "expected a list of 3 strings"),
            ({"text_output": "look"}, "expected a list of 3 strings"),
        ],
    )
    def test_samples_that_do_not_fit(self, frozen: Blip2Emac, samples: dict, change: Mapping, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            frozen({**samples, **change})

    def test_missing_texts(self, frozen: Blip2Emac, samples: dict) -> None:
        del samples["text_output"]
        with pytest.raises(ValueError, match="samples lack 'text_output'"):
            frozen(samples)
