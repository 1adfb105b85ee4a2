"""The Llama runner against Transformers': logits of a padded batch, token by token."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import LlamaForCausalLM

from lavis.models.fast_llm import attention, llama_runner
from lavis.models.fast_llm.decoding import position_ids
from lavis.models.fast_llm.llama_runner import LlamaRunner
from lavis.models.fast_llm.llama_training import hidden_at
from lavis.models.fast_llm.transformers_runner import TransformersRunner

Build = Callable[..., LlamaForCausalLM]


@pytest.fixture
def short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are read 40 tokens at a time, in multiples of 4."""
    monkeypatch.setitem(llama_runner.PREFILL, "cpu", 40 * 24)
    monkeypatch.setitem(llama_runner.MULTIPLE, "cpu", 4)


@pytest.mark.usefixtures("short_reads")
@pytest.mark.parametrize("sizes", [{}, {"num_key_value_heads": 4}, {"head_dim": 10}, {"tie_word_embeddings": True}])
@torch.no_grad()
def test_equals_transformers(sizes: dict, small: Build) -> None:
    llm = small(**sizes)
    count, length = 11, 23
    embeds = torch.randn(count, length, 24)
    mask = torch.ones(count, length, dtype=torch.long)
    for row in range(count):
        mask[row, 2 : 2 + (7 * row) % 20] = 0  # left pads behind two image tokens
    positions = position_ids(mask)
    mine, theirs = LlamaRunner(llm, torch.float32), TransformersRunner(llm)
    got, want = (runner.prefill(embeds, mask, positions, room=4) for runner in (mine, theirs))
    for _ in range(4):
        assert torch.allclose(got, want, atol=1e-5)
        token, positions = want.argmax(-1), positions[:, -1:] + 1
        got, want = mine.step(token, positions), theirs.step(token, positions)


@pytest.mark.parametrize("amx", [False, True])
@torch.no_grad()
def test_bfloat16_is_near_float32(monkeypatch: pytest.MonkeyPatch, amx: bool, small: Build) -> None:
    """Prompts longer than what attention computes at a time, on CPUs with and without AMX."""
    monkeypatch.setattr(attention, "AMX", amx)
    llm = small()
    count, length = 3, 2 * attention.BLOCK + 40
    embeds, positions = torch.randn(count, length, 24), torch.arange(length).expand(count, -1)
    mask = torch.ones(count, length, dtype=torch.long)
    mask[1, 5:60] = 0
    seen = torch.ones(count, 1, length, length, dtype=torch.bool).tril()
    places = torch.tensor([[0, 100, length - 1]]).expand(count, -1)
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        runner = LlamaRunner(llm, dtype)
        found = [runner.read(embeds, seen, positions, places).float()]
        for beams in (1, 2):
            at = position_ids(mask)
            found.append(runner.prefill(embeds, mask, at, room=2, beams=beams))
            after = at[:, -1:].repeat_interleave(beams, dim=0)
            found += [runner.step(torch.arange(beams * count), after + 1 + step) for step in range(2)]
        results.append(found)
    for exact, rounded in zip(*results, strict=True):
        assert (exact - rounded).norm() < 0.03 * exact.norm()


@torch.no_grad()
def test_whole_rows_equal_transformers(small: Build) -> None:
    llm = small()
    embeds, positions = torch.randn(llama_runner.ROWS + 1, 7, 24), torch.arange(7).expand(llama_runner.ROWS + 1, 7)
    seen = torch.ones(7, 7, dtype=torch.bool).tril()
    seen[5, 2:4] = False
    seen = seen.expand(len(embeds), 1, 7, 7)
    want = llm.model(inputs_embeds=embeds, attention_mask=seen, position_ids=positions).last_hidden_state
    places = torch.arange(llama_runner.ROWS + 1)[:, None].expand(-1, 2) % torch.tensor([7, 5])
    got = LlamaRunner(llm, torch.float32).read(embeds, seen, positions, places)
    assert torch.allclose(got, want.take_along_dim(places[..., None], dim=1), atol=1e-5)


@torch.no_grad()
def test_takes_the_weights_of_the_moment(small: Build) -> None:
    llm = small()
    inputs = torch.randn(1, 3, 24), torch.ones(1, 3, dtype=torch.long), torch.arange(3)[None]
    before = LlamaRunner(llm, torch.float32).prefill(*inputs, room=1)
    llm.model.layers[0].self_attn.q_proj.weight.mul_(2)
    assert not torch.equal(before, LlamaRunner(llm, torch.float32).prefill(*inputs, room=1))


@pytest.mark.usefixtures("short_reads")
@pytest.mark.parametrize("ahead", [1, 5, 100])
@torch.no_grad()
def test_beams_read_their_prompt_and_their_own_tokens(
    ahead: int, monkeypatch: pytest.MonkeyPatch, small: Build
) -> None:
    monkeypatch.setattr(llama_runner, "AHEAD", ahead)  # room is made for one token at a time, for two, for all at once
    llm, beams = small(), 3
    embeds, mask = torch.randn(3, 24, 24), torch.ones(3, 24, dtype=torch.long)
    mask[1, 2:20] = 0
    mask[2, 2:5] = 0
    mine, theirs = LlamaRunner(llm, torch.float32), TransformersRunner(llm)
    positions = position_ids(mask)
    for runner in (mine, theirs):
        runner.prefill(embeds, mask, positions, room=4, beams=beams)
    positions = positions[:, -1:].repeat_interleave(beams, dim=0)
    order = torch.tensor([2, 0, 0, 4, 3, 5, 8, 8, 7])
    for step in range(4):
        positions, tokens = positions + 1, torch.randint(0, 61, (9,))
        if step:
            mine.reorder(order)
            theirs.reorder(order)
        assert torch.allclose(mine.step(tokens, positions), theirs.step(tokens, positions), atol=1e-5)


@torch.no_grad()
def test_every_tensor_is_made_where_the_model_is(small: Build) -> None:
    """No accelerator is needed to see that nothing is left on the CPU: the meta device does not mix with it either."""
    llm = small().to("meta")
    embeds, positions = torch.randn(2, 6, 24, device="meta"), torch.zeros(2, 6, dtype=torch.long, device="meta")
    allowed = torch.ones(2, 1, 6, 6, dtype=torch.bool, device="meta")
    places = torch.zeros(2, 3, dtype=torch.long, device="meta")
    assert hidden_at(llm, embeds, allowed[:, :, 4:], positions, places, causal=4).is_meta
    runner = LlamaRunner(llm, torch.float32)
    assert runner.read(embeds, allowed, positions, places).is_meta
    for beams in (1, 3):  # not `prefill`, which must know how long the prompts are
        runner._beams, runner._tokens = beams, 0
        runner._groups = [runner._new_group(0, [6, 5], 6, room=2)]
        runner._order = runner._place = torch.zeros(2, dtype=torch.long, device="meta")
        tokens, after = (torch.zeros(2 * beams, *shape, dtype=torch.long, device="meta") for shape in ((), (1,)))
        for _ in range(2):
            runner.reorder(tokens)
            assert runner.step(tokens, after).is_meta
