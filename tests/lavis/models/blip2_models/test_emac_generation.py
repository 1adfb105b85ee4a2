"""Generation: equal to Transformers', one prompt or many, videos, sampling."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lavis.models.blip2_models.blip2_emac import Blip2Emac

Build = Callable[..., Blip2Emac]


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
