"""Prompts that go on from kept ones: the same answers, and only what is new is read."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from lavis.models.fast_llm import BeamSettings, KeptPrompts, Named, beam_search, greedy
from lavis.models.fast_llm.decoding import position_ids
from lavis.models.fast_llm.llama_runner import LlamaRunner

Build = Callable[..., LlamaForCausalLM]
WIDTH = 24  # hidden size of the small models
TABLE = torch.randn(500, WIDTH, generator=torch.Generator().manual_seed(5))  # what a name is read as


def some(number: int, generator: torch.Generator) -> Tensor:
    """Names of `number` positions."""
    return torch.randint(0, len(TABLE), (number,), generator=generator)


def batch(rows: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Names of rows padded on the left with any, their embeddings and mask."""
    longest = max(map(len, rows))
    names, mask = torch.full((len(rows), longest), 7), torch.zeros(len(rows), longest, dtype=torch.long)
    for i, row in enumerate(rows):
        names[i, longest - len(row) :], mask[i, longest - len(row) :] = row, 1
    return names, TABLE[names], mask


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("sizes", [{}, {"num_key_value_heads": 4}])
@torch.no_grad()
def test_growing_prompts_give_the_same_logits(sizes: dict, beams: int, small: Build) -> None:
    """Rows of unlike length grow by unlike numbers of positions; then one is new, and one has changed in its middle."""
    llm = small(**sizes)
    kept, generator = KeptPrompts(64), torch.Generator().manual_seed(3)
    rows = [some(number, generator) for number in (90, 50, 61, 40)]
    for turn in range(3):
        names, embeds, mask = batch(rows)
        positions = position_ids(mask)
        plain, going_on = LlamaRunner(llm, torch.float32), LlamaRunner(llm, torch.float32, Named(kept, names))
        want, got = (runner.prefill(embeds, mask, positions, 4, beams) for runner in (plain, going_on))
        assert torch.allclose(got, want, atol=1e-5)
        for step in range(3):  # new tokens stand behind what was kept
            token = want.argmax(-1).repeat_interleave(beams if step == 0 else 1)
            positions = positions[:, -1:].repeat_interleave(beams if step == 0 else 1, dim=0) + 1
            want, got = plain.step(token, positions), going_on.step(token, positions)
            assert torch.allclose(got, want, atol=1e-5)
        rows = [torch.cat([row, some(3 + 9 * i + turn, generator)]) for i, row in enumerate(rows)][::-1]
    rows[1] = torch.cat([rows[1][:20], rows[1][20:21] + 1, rows[1][21:]]) % len(TABLE)
    rows[2] = some(30, generator)
    names, embeds, mask = batch(rows)
    options = {"max_new": 5, "min_new": 1, "eos_id": 2, "pad_id": 0}
    assert torch.equal(
        greedy(llm, embeds, mask, **options, named=Named(kept, names)), greedy(llm, embeds, mask, **options)
    )
    settings = BeamSettings(beams=2, returned=1, repetition_penalty=1.0, length_penalty=1.0, **options)
    going_on = beam_search(llm, embeds, mask, settings, Named(kept, names))
    assert torch.equal(going_on[0], beam_search(llm, embeds, mask, settings)[0])


@torch.no_grad()
def test_only_the_new_part_is_read(small: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    llm, kept = small(), KeptPrompts(64)
    read = []
    forward = LlamaRunner._forward

    def counted(self: LlamaRunner, x: Tensor, *rest: Tensor) -> Tensor:
        read.append(x.shape[1])
        return forward(self, x, *rest)

    monkeypatch.setattr(LlamaRunner, "_forward", counted)
    prompt = some(70, torch.Generator().manual_seed(0))
    for length in (64, 70, 70):
        names, embeds, mask = batch([prompt[:length]])
        LlamaRunner(llm, torch.float32, Named(kept, names)).prefill(embeds, mask, position_ids(mask), 1)
    assert read == [64, 6, 1]  # the last position is read again: its hidden state says what follows


def test_memory_is_bounded_and_a_prompt_takes_the_place_of_its_beginning() -> None:
    kept, generator = KeptPrompts(1), torch.Generator().manual_seed(0)
    states = torch.zeros(2, 2, 1, 1024, 16)  # 256 KiB

    def known(prompt: Tensor) -> int:
        return begun.length if (begun := kept.find(prompt)) else 0

    prompts = [some(90, generator) for _ in range(6)]
    for prompt in prompts:
        kept.keep(prompt, states.clone(), kept.find(prompt))
    assert [known(prompt) for prompt in prompts] == [0, 0, *[89] * 4]  # 4 of them fit
    shortened = torch.cat([prompts[5][:30], prompts[5][60:], some(7, generator)])  # as old steps lose their feedback
    kept.keep(shortened, states.clone(), kept.find(shortened))
    assert known(shortened) == 66
    assert known(prompts[2]) == 89  # nothing else had to go
    assert known(prompts[5]) == 30
    other = torch.cat([prompts[2][:20], some(70, generator)])  # an episode of its own with the same opening
    kept.keep(other, states.clone(), kept.find(other))
    assert [known(other), known(prompts[2])] == [89, 89]
    assert copy.deepcopy(kept).find(other) is None
    kept.made_by("a model")
    assert kept.find(other) is None
