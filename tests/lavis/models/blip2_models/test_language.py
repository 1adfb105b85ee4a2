"""Scores of given answers and new ones: equal to Transformers', one prompt or many, and the tokens that are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from lavis.models import load_model_and_preprocess
from lavis.models.blip2_models import language
from lavis.models.blip2_models.blip2_emac import Blip2Emac
from lavis.models.student import questions_of
from tests.lavis.models.conftest import SMALL_LLM
from tests.tiny_checkpoints import write_llama

Build = Callable[..., Blip2Emac]


class TestScore:
    def test_equals_the_log_probability_of_each_answer(self, frozen: Blip2Emac, samples: dict) -> None:
        candidates = [
            ["go to desk 1", "go to desk 2", "look", "go to desk 1"],
            ["inventory"],
            ["take mug 1 from desk 2", "take mug 1 from desk 1", "take mug 1", ""],
        ]
        got = frozen.score(questions_of(samples, samples["prompt"]), candidates)
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
            scores.append(model.score(questions_of(samples, samples["prompt"]), candidates))
        assert torch.allclose(*map(torch.tensor, scores), rtol=0.02)

    def test_no_candidates(self, frozen: Blip2Emac, samples: dict) -> None:
        assert frozen.score(questions_of(samples, samples["prompt"]), [[], ["look"], []])[0] == []
        assert frozen.score(questions_of(samples, samples["prompt"]), [[], [], []]) == [[], [], []]

    def test_wrong_number_of_lists(self, frozen: Blip2Emac, samples: dict) -> None:
        with pytest.raises(ValueError, match="1 lists of candidates for 3 samples"):
            frozen.score(questions_of(samples, samples["prompt"]), [["look"]])


class TestTokenBoundary:
    def test_scoring_training_and_writing_read_prompt_and_answer_as_one_text(
        self, build: Build, samples: dict, tmp_path: Path
    ) -> None:
        folder = write_llama(tmp_path)
        model = build(freeze_llm=True, llm_model=str(folder), llm_config={})
        encode, (prompt, answer) = model.llm_tokenizer.encode, (samples["prompt"][0], "take mug 1 from desk 2")
        whole = [model.llm_tokenizer.bos_id, *encode(prompt + answer), model.llm_tokenizer.eos_id]
        ids = model.prompt_ids([prompt], acting=True)[0]
        assert ids + model.answer_ids([[answer]])[0][0] == whole and model.prompt_ids([prompt]) == [ids]
        assert len(ids) + model.answer_tokens(answer) == len(whole)
        questions = questions_of({"image": samples["image"][:1]}, [prompt])
        tokens = model.image_tokens(questions)
        embeds = torch.cat([tokens, model.llm_model.get_input_embeddings()(torch.tensor([whole]))], dim=1)
        at = tokens.shape[1] + len(ids)
        logps = model.llm_model(inputs_embeds=embeds).logits[0, at - 1 : -1].log_softmax(-1)
        want = logps[range(len(whole) - len(ids)), whole[len(ids) :]].sum()
        assert model.score(questions, [[answer]])[0][0] == pytest.approx(want.item(), abs=1e-3)
        assert torch.allclose(model.answer_logps(questions, [[answer]], mean=False)[0, 0], want, atol=1e-3)
        assert model.prompt_embeds(questions)[0].shape[1] == at  # generation continues after `>`


class TestGenerate:
    def test_a_word_of_id_0_is_written(self, frozen: Blip2Emac, samples: dict) -> None:
        decode = frozen.llm_tokenizer.decode
        frozen.llm_tokenizer.decode = lambda ids: "".join("!" if i == 0 else decode([i]) for i in ids)
        torch.nn.init.zeros_(frozen.llm_model.lm_head.weight)  # all tokens alike: greedy decoding takes the first, id 0
        greedy = {"num_beams": 1, "max_length": 4, "repetition_penalty": 1.0}
        assert frozen.generate(samples, **greedy) == ["!!!"] * 3

    @pytest.mark.parametrize("min_length", [1, 6])
    def test_greedy_loop_equals_transformers(self, frozen: Blip2Emac, samples: dict, min_length: int) -> None:
        got = frozen.generate(samples, num_beams=1, max_length=12, min_length=min_length, repetition_penalty=1.0)
        embeds, mask = frozen.prompt_embeds(questions_of(samples, samples["prompt"]))
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

    @pytest.mark.parametrize("adapted", [{}, {"lora_rank": 4, "freeze_llm": True}])
    def test_prompts_that_grow_are_read_from_where_they_grew(self, build: Build, samples: dict, adapted: dict) -> None:
        model = build(kept_prompts_mib=8, **adapted)
        kept, plain = model._acting._kept, build(**adapted)
        found = []
        find = kept.find
        kept.find = lambda names: found.append(find(names)) or found[-1]
        for heard in (
            "",
            "\nYou are facing the desk 1.\n> ",
            "\nYou are facing the desk 1.\n> look\nNothing happens.\n> ",
        ):
            samples["prompt"] = [prompt + heard for prompt in samples["prompt"]]
            greedy = {"num_beams": 1, "max_length": 9, "repetition_penalty": 1.0}
            assert model.generate(samples, **greedy) == plain.generate(samples, **greedy)
        assert [begun is not None and begun.length > 8 for begun in found] == [False] * 3 + [
            True
        ] * 6  # more than the 8 image tokens
        samples["image"] = samples["image"] + 1
        assert model.generate(samples, **greedy) == plain.generate(samples, **greedy)
        assert not any(found[9:])
        assert kept._kept
        with torch.no_grad():
            model.llm_proj.bias += 1
        model.generate(samples, **greedy)
        assert not any(found[12:])
        model.train()
        assert not kept._kept

    def test_prompts_behind_several_frames_are_kept(self, build: Build, samples: dict) -> None:
        model, plain = build(kept_prompts_mib=8), build()
        samples["image"] = torch.stack([samples["image"], samples["image"].flip(0)], dim=1)  # (N, 2 frames, 3, S, S)
        greedy = {"num_beams": 1, "max_length": 9, "repetition_penalty": 1.0}
        for _ in range(2):
            assert model.generate(samples, **greedy) == plain.generate(samples, **greedy)
            samples["prompt"] = [prompt + "look\n> " for prompt in samples["prompt"]]
        kept = model._acting._kept
        found = []
        find = kept.find
        kept.find = lambda names: found.append(find(names)) or found[-1]
        assert model.generate(samples, **greedy) == plain.generate(samples, **greedy)
        assert all(begun and begun.length > 16 for begun in found) and len(found) == 3  # more than both frames' tokens

    def test_a_batch_gives_what_each_prompt_gives_alone(self, frozen: Blip2Emac, samples: dict) -> None:
        options = {"num_beams": 2, "max_length": 8, "repetition_penalty": 1.0}
        alone = [
            frozen.generate({"image": samples["image"][i : i + 1], "prompt": [p]}, **options)[0]
            for i, p in enumerate(samples["prompt"])
        ]
        assert frozen.generate(samples, **options) == alone

    @pytest.mark.parametrize("more", [{}, {"num_beams": 3}, {"repetition_penalty": 1.5}])
    @pytest.mark.parametrize(
        "sizes", [{"model_type": "mistral", "sliding_window": 12}, {"model_type": "gemma3_text", "sliding_window": 12}]
    )
    def test_pads_do_not_count_in_a_window_of_attention(
        self, sizes: dict, more: dict, build: Build, samples: dict
    ) -> None:
        options = {"num_beams": 1, "max_length": 8, "repetition_penalty": 1.0, **more}
        model = build(llm_config={**SMALL_LLM, "num_key_value_heads": 1, **sizes})
        alone = [
            model.generate({"image": samples["image"][i : i + 1], "prompt": [p]}, **options)[0]
            for i, p in enumerate(samples["prompt"])
        ]
        assert model.generate(samples, **options) == alone

    def test_a_language_model_may_embed_tokens_in_fewer_numbers_than_its_layers_have(
        self, build: Build, samples: dict
    ) -> None:
        """OPT-350M does: 512 and 1,024."""
        model = build(llm_config={**SMALL_LLM, "model_type": "opt", "ffn_dim": 64, "word_embed_proj_dim": 16})
        assert model.llm_proj.out_features == 16 and model(samples)["loss"].isfinite()
        assert len(model.generate(samples, num_beams=1, max_length=4)) == 3

    def test_captions_and_sampling(self, frozen: Blip2Emac, samples: dict) -> None:
        torch.manual_seed(0)
        assert len(frozen.generate(samples, num_beams=3, num_captions=2, max_length=5)) == 6
        assert len(frozen.generate(samples, use_nucleus_sampling=True, num_beams=1, max_length=5)) == 3

    def test_the_folders_way_of_decoding_does_not_count(self, tmp_path: Path, build: Build, samples: dict) -> None:
        """A chatbot's penalties and filters, which Transformers would take from generation_config.json."""
        folder = write_llama(tmp_path / "llm")
        plain = GenerationConfig.from_pretrained(folder)
        settings = {"do_sample": True, "min_p": 0.5, "repetition_penalty": 50.0, "suppress_tokens": [*range(300, 400)]}
        written = []
        for chatbot in ({}, settings):
            GenerationConfig(**{**plain.to_diff_dict(), **chatbot}).save_pretrained(folder)
            model = build(llm_config={}, llm_model=str(folder))
            torch.manual_seed(0)
            written.append(model.generate(samples, use_nucleus_sampling=True, num_beams=1, top_p=1.0, max_length=9))
        assert written[0] == written[1]

    def test_video_frames_follow_one_another(self, frozen: Blip2Emac, samples: dict) -> None:
        video = torch.stack([samples["image"], samples["image"].flip(0)], dim=1)
        queries = frozen.vision.encode_queries(video, samples["prompt"])
        assert queries.shape == (3, 16, 64)
        assert torch.allclose(
            queries[:, :8], frozen.vision.encode_queries(samples["image"], samples["prompt"]), atol=1e-6
        )
        assert len(frozen.generate({"image": video, "prompt": "look"}, num_beams=1, max_length=4)) == 3

    def test_one_prompt_or_the_configs_serves_all_images(self, frozen: Blip2Emac, samples: dict) -> None:
        options = {"num_beams": 1, "max_length": 5, "repetition_penalty": 1.0}
        image = samples["image"]
        frozen.prompt = "x"
        given = ({"image": image, "prompt": ["x"] * 3}, {"image": image, "prompt": "x"}, {"image": image})
        want, *others = (frozen.generate(one, **options) for one in given)
        assert others == [want] * 2
        with pytest.raises(ValueError, match="has 2 prompts for 3 images"):
            frozen.generate({**samples, "prompt": ["look"] * 2})


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
            language.require_room(llm, image_tokens, [[1] * 3, [1] * (need - 13)], 5)
            return
        with pytest.raises(ValueError, match="prompt 1 has 28 tokens; with 8 image tokens and 5 of the answer"):
            language.require_room(llm, image_tokens, [[1] * 3, [1] * 28], [[[1], [1] * 5]] * 2)
        # Each prompt has its own answers: the longest prompt's are short, and one that is asked nothing has none.
        language.require_room(llm, image_tokens, [[1] * 3, [1] * 28, [1] * 32], [[[1] * 29], [[1] * 4], []])


class TestTrainingTheLanguageModel:
    def test_rows_by_length_give_transformers_loss_and_gradients(
        self, build: Build, samples: dict, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = build(freeze_vit=True, freeze_qformer=True)
        found = []
        for ours in (True, False):
            if not ours:
                monkeypatch.setattr(language, "language_backend", language.TransformersBackend)
            monkeypatch.setitem(language.TRAINING_TOKENS, "cpu", 100)  # every row is a chunk of its own
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
            lambda: model.prompt_embeds(questions_of(samples, texts)),
            lambda: model.score(questions_of(samples, texts), [["look"]] * 3),
        )
        for call in calls:
            assert torch.equal(self.seen(model, call)[:40], trained[:40])
        assert model.prompt_ids(texts) == model.prompt_ids(texts, acting=True)
        assert {len(row) for row in model.prompt_ids(texts)} == {40}

    def test_score_and_training_give_the_same_probability(self, build: Callable[..., Blip2Emac], samples: dict) -> None:
        model = build(max_txt_len=40, avg_log_probs=False)
        texts = [self.LONG] * 3
        (want,) = model.sequence_logps({**samples, "text_input": texts}, "text_output")
        got = model.score(questions_of(samples, texts), [[text] for text in samples["text_output"]])
        assert torch.allclose(torch.tensor(got).flatten(), want, atol=1e-4)

    def test_the_original_never_cuts_when_it_acts(self, build: Callable[..., Blip2Emac], samples: dict) -> None:
        model = build(max_txt_len=40, cut_prompts=False)
        given = questions_of(samples, self.LONG)
        assert len(self.seen(model, lambda: model.score(given, [["look"]] * 3))) > 100
        assert len(model.prompt_ids([self.LONG], acting=True)[0]) > 100
        assert len(model.prompt_ids([self.LONG])[0]) == 40
