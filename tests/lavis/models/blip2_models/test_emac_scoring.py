"""Scores of candidate answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lavis.models import load_model_and_preprocess
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
