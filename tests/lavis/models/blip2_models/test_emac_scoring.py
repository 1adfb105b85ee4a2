"""Scores of candidate answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lavis.models import fast_llm, load_model_and_preprocess
from lavis.models.blip2_models import emac_scoring
from lavis.models.blip2_models.blip2_emac import Blip2Emac

Build = Callable[..., Blip2Emac]


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


class TestPrompts:
    def test_one_text_or_the_configs_is_for_all_images(self, frozen: Blip2Emac, samples: dict) -> None:
        assert frozen.prompts_of(samples) == samples["prompt"]
        assert frozen.prompts_of({**samples, "prompt": "look"}) == ["look"] * 3
        del samples["prompt"]
        frozen.prompt = "what now?"
        assert frozen.prompts_of(samples) == ["what now?"] * 3
        with pytest.raises(ValueError, match="has 2 prompts for 3 images"):
            frozen.prompts_of({**samples, "prompt": ["look"] * 2})


class TestRoom:
    @pytest.mark.parametrize("need", [39, 40, 41])
    def test_image_prompt_and_answer_fit_up_to_the_last_position(self, need: int) -> None:
        llm = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=8,
                hidden_size=8,
                intermediate_size=8,
                num_hidden_layers=1,
                num_attention_heads=1,
                max_position_embeddings=40,
            )
        )
        image_tokens = torch.zeros(2, 8, 8)
        if need <= 40:
            emac_scoring.require_room(llm, image_tokens, [3, need - 13], 5)
            return
        with pytest.raises(ValueError, match="prompt 1 has 28 tokens; with 8 image tokens and 5 of the answer"):
            emac_scoring.require_room(llm, image_tokens, [3, 28], 5)


class TestEncodedOnce:
    def test_only_where_policy_and_reference_see_alike(self, build: Build, frozen: Blip2Emac, samples: dict) -> None:
        with pytest.raises(ValueError, match="ref_pretrained"):
            frozen.encoded_once(samples)
        frozen.set_reference()
        encoded = frozen.encoded_once(samples)
        assert torch.equal(encoded["query_output"], frozen.encode_queries(samples["image"], samples["text_input"]))
        assert encoded.keys() == {*samples, "query_output"} and frozen.encoded_once(encoded) is encoded
        model = build(freeze_vit=True, freeze_llm=True)  # the Q-Former trains: the policy's moves away
        model.set_reference()
        assert model.encoded_once(samples) is samples

    def test_no_reference_no_scores(self, build: Build, samples: dict) -> None:
        with pytest.raises(ValueError, match="ref_pretrained"):
            build().reference_logps(samples)


class TestTrainingTheLanguageModel:
    def test_rows_by_length_give_transformers_loss_and_gradients(
        self, build: Build, samples: dict, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = build(freeze_vit=True, freeze_qformer=True)
        found = []
        for ours in (True, False):
            if not ours:
                monkeypatch.setattr(fast_llm, "supports", lambda llm: False)
            monkeypatch.setitem(emac_scoring.TRAINING_TOKENS, "cpu", 100)  # every row is a chunk of its own
            model.zero_grad()
            loss = model(samples)["loss"]
            loss.backward()
            found.append((loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
        (loss, gradients), (want_loss, want) = found
        assert torch.allclose(loss, want_loss, rtol=1e-5)
        assert gradients.keys() == want.keys() and any(name.startswith("llm_model") for name in want)
        for name, gradient in want.items():
            assert torch.allclose(gradients[name], gradient, rtol=1e-3, atol=1e-6), name


class TestCutPrompts:
    """Over `max_txt_len` training and acting show the language model the same tokens."""

    LONG = "You are in the middle of a room. You see a desk 1.\nYour task is to: put a mug in desk.\n" * 9 + "> "

    def seen(self, model: Blip2Emac, call: Callable[[], object]) -> torch.Tensor:
        """The first row of text embeddings that reaches the language model in `call`, without the image tokens."""
        rows = []

        def keep(module: torch.nn.Module, inputs: tuple, output: torch.Tensor) -> None:
            rows.append(inputs[0][0])

        hook = model.llm_model.get_input_embeddings().register_forward_hook(keep)
        try:
            call()
        finally:
            hook.remove()
        return rows[0][rows[0] != model.llm_tokenizer.pad_id]

    def test_training_and_acting_read_the_same_tokens(self, build: Callable[..., Blip2Emac], samples: dict) -> None:
        model = build(max_txt_len=40, freeze_vit=True, freeze_qformer=True, freeze_llm=True)
        texts = [self.LONG] * 3
        trained = self.seen(model, lambda: model({**samples, "text_input": texts}))
        given = {"image": samples["image"], "prompt": texts}
        calls = (
            lambda: model.generate(given, num_beams=1, max_length=3),
            lambda: model.generate(given, num_beams=3, max_length=3),
            lambda: model.prompt_embeds(given),
            lambda: model.score(given, [["look"]] * 3),
        )
        for call in calls:
            assert torch.equal(self.seen(model, call)[:40], trained[:40])
        assert model.encode_inputs(texts) == model.encode_inputs(texts, acting=True)
        assert {len(row) for row in model.encode_inputs(texts)} == {40}

    def test_score_and_training_give_the_same_probability(self, build: Callable[..., Blip2Emac], samples: dict) -> None:
        model = build(max_txt_len=40, avg_log_probs=False)
        texts = [self.LONG] * 3
        (want,) = model.sequence_logps({**samples, "text_input": texts}, "text_output")
        got = model.score({**samples, "prompt": texts}, [[text] for text in samples["text_output"]])
        assert torch.allclose(torch.tensor(got).flatten(), want, atol=1e-4)

    def test_the_original_never_cuts_when_it_acts(self, build: Callable[..., Blip2Emac], samples: dict) -> None:
        model = build(max_txt_len=40, cut_prompts=False)
        given = {**samples, "prompt": [self.LONG] * 3}
        assert len(self.seen(model, lambda: model.score(given, [["look"]] * 3))) > 100
        assert len(model.encode_inputs([self.LONG], acting=True)[0]) > 100
        assert len(model.encode_inputs([self.LONG])[0]) == 40
