"""Fast paths of a causal language model; the one interface that the rest of the code imports.

Every call takes a Transformers model (`PreTrainedModel`) and returns what Transformers' own code returns for it. A
plain Llama goes through our kernels, every other model (also a Llama with adapters, biases or shards) through
Transformers' forward pass: `supports` says which. The tests named here compare each call with Transformers; they are
this interface's contract.

    call                                 equals, by Transformers' code                      contract (tests/…/fast_llm)
    greedy(llm, embeds, mask, …)         llm.generate(num_beams=1), ids exactly             test_decoding.py
    beam_search(llm, embeds, mask, …)    llm.generate(num_beams=B), ids exactly, scores     test_beam_search.py
    token_logps(llm, tokens, …)          one forward pass per answer, log-softmax           test_answer_tree.py
    row_logps(llm, tokens, …)            the same                                           test_answer_tree.py
    by_rows(…)                           the values and one backward pass of the whole batch test_row_gradients.py
    make_runner(llm) -> Runner           TransformersRunner(llm), logits step by step       test_llama_runner.py
    Named(KeptPrompts(mib), names)       the same calls without it, ids exactly             test_kept_prompts.py
    ATTENTION, autocast_rotary(llm)      attn_implementation="sdpa"                         test_attention.py

Float32 results agree within rounding; in bfloat16 within bfloat16's precision.

    attention.py            attention on a CPU in bfloat16 (also inside Transformers' models: `ATTENTION`)
    llama_layer.py          one Llama layer: norms, rotary embedding, projections, feed-forward
    llama_training.py       differentiable hidden states at chosen places
    llama_runner.py         prompts, then token by token, over one shared KV cache
    transformers_runner.py  the same calls for any model, through Transformers: the reference
    runner.py               the protocol of the two runners, and which one serves a model
    kept_prompts.py         keys and values of prompts, for prompts that go on from them
    decoding.py             greedy decoding
    beam_search.py          beam search
    answer_tree.py          log-probabilities of many answers to one prompt in one forward pass
    row_gradients.py        losses whose gradient reaches only their inputs, a few rows at a time
"""

from __future__ import annotations

from lavis.models.fast_llm.answer_tree import row_logps, token_logps
from lavis.models.fast_llm.attention import BLOCK as ATTENTION_BLOCK
from lavis.models.fast_llm.attention import NAME as ATTENTION
from lavis.models.fast_llm.attention import autocast_rotary
from lavis.models.fast_llm.beam_search import BeamSettings, beam_search
from lavis.models.fast_llm.decoding import Rule, greedy, pads_after
from lavis.models.fast_llm.kept_prompts import KeptPrompts, Named
from lavis.models.fast_llm.llama_layer import supports
from lavis.models.fast_llm.llama_runner import PREFILL
from lavis.models.fast_llm.row_gradients import by_rows, chunked
from lavis.models.fast_llm.runner import Runner, make_runner
from lavis.models.fast_llm.transformers_runner import cache_name

__all__ = [
    "ATTENTION",
    "ATTENTION_BLOCK",
    "PREFILL",
    "BeamSettings",
    "KeptPrompts",
    "Named",
    "Rule",
    "Runner",
    "autocast_rotary",
    "beam_search",
    "by_rows",
    "cache_name",
    "chunked",
    "greedy",
    "make_runner",
    "pads_after",
    "row_logps",
    "supports",
    "token_logps",
]
