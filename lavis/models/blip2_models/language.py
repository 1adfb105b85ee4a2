"""The language side of Blip2Emac: how probable given answers are, and new answers, after `[image tokens][prompt]`.

`LanguageBackend.answer_logps` is the one call behind both losses. Our kernels (`fast_llm`) compute a plain Llama,
Transformers every other causal language model. Both backends return the same numbers within rounding; the tests compare
them.

Shapes: N prompts, Q image tokens, L text tokens, A answers to a prompt, H hidden size of the language model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import LogitsProcessorList, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from lavis.common.errors import ConfigError
from lavis.models import fast_llm
from lavis.models.decoding import NewTokensPenalty
from lavis.models.student import Decoding, RowLoss

# Tokens of language model input whose activations are kept at a time, if only the parts before it train.
CHUNK_TOKENS = {"cpu": 1024, "cuda": 4096}
# Tokens computed at a time if the language model trains: rows of like length share a chunk, so that few are pads.
TRAINING_TOKENS = {"cpu": 4096, "cuda": 65536}

Prompts = Sequence[list[int]]  # token ids, BOS included
Answers = Sequence[Sequence[list[int]]]  # token ids of each prompt's answers, the end included


class LanguageBackend(Protocol):
    """A causal language model that weighs answers."""

    def answer_logps(
        self, image_tokens: Tensor, prompts: Prompts, answers: Answers, row_loss: RowLoss | None = None
    ) -> Tensor:
        """Summed log-probability of each answer after its image tokens and prompt: (N, A), float32, differentiable.

        `image_tokens` (N, Q, H). Every prompt has A answers. `row_loss` announces the loss, see `Student.answer_logps`.
        """
        ...


def language_backend(llm: PreTrainedModel) -> LanguageBackend:
    """The fastest backend for `llm` as it is now: adapters and shards, which come and go, are not our kernels' work."""
    return LlamaBackend(llm) if fast_llm.supports(llm) else TransformersBackend(llm)


@dataclass(frozen=True)
class LlamaBackend:
    """A plain Llama, by our kernels; all answers to a prompt in one row, as a prefix tree (`fast_llm.token_logps`)."""

    llm: PreTrainedModel

    def answer_logps(
        self, image_tokens: Tensor, prompts: Prompts, answers: Answers, row_loss: RowLoss | None = None
    ) -> Tensor:
        """See `LanguageBackend`."""
        require_room(self.llm, image_tokens, prompts, answers)

        def logps_of(tokens: Tensor, rows: list[int]) -> Tensor:
            return _tree_logps(self.llm, tokens, [prompts[n] for n in rows], [answers[n] for n in rows])

        # If only the parts before the language model train, its activations serve nothing but the gradient of the image
        # tokens. That is taken a few rows at a time, and memory does not grow with N. A row with several answers has
        # one gradient for each, so the loss must be known by then.
        only_input_trains = (
            torch.is_grad_enabled()
            and image_tokens.requires_grad
            and not any(parameter.requires_grad for parameter in self.llm.parameters())
        )
        if only_input_trains and (row_loss is not None or all(len(group) == 1 for group in answers)):
            return fast_llm.by_rows(
                logps_of, image_tokens, _chunks(CHUNK_TOKENS, image_tokens, prompts, answers), row_loss
            )
        return _in_chunks(logps_of, image_tokens, _chunks(TRAINING_TOKENS, image_tokens, prompts, answers))


@dataclass(frozen=True)
class TransformersBackend:
    """Any causal language model, by Transformers' forward pass: also one with adapters, or in shards."""

    llm: PreTrainedModel

    def answer_logps(
        self, image_tokens: Tensor, prompts: Prompts, answers: Answers, row_loss: RowLoss | None = None
    ) -> Tensor:
        """See `LanguageBackend`; activations are kept whatever `row_loss` says."""
        require_room(self.llm, image_tokens, prompts, answers)
        if all(len(group) == 1 for group in answers):
            logps, row = fast_llm.row_logps(self.llm, image_tokens, prompts, answers)
            return logps.new_zeros(len(prompts)).index_add(0, row, logps)[:, None]  # (N, 1)
        # Several answers to a prompt, in one row, so that what they share is computed once.
        chunks = _chunks(TRAINING_TOKENS, image_tokens, prompts, answers)
        if any(isinstance(parameter, DTensor) for parameter in self.llm.parameters()):
            chunks = [list(range(len(prompts)))]  # the processes of a sharded model must call it equally often
        return _in_chunks(
            lambda tokens, rows: _tree_logps(self.llm, tokens, [prompts[n] for n in rows], [answers[n] for n in rows]),
            image_tokens,
            chunks,
        )


def _tree_logps(llm: PreTrainedModel, image_tokens: Tensor, prompts: Prompts, answers: Answers) -> Tensor:
    """Summed log-probabilities (N, A), the answers of a prompt in one row."""
    logps, answer = fast_llm.token_logps(llm, image_tokens, prompts, answers)
    shape = len(prompts), len(answers[0])
    return logps.new_zeros(shape[0] * shape[1]).index_add(0, answer, logps).view(shape)


def _chunks(budget: dict[str, int], image_tokens: Tensor, prompts: Prompts, answers: Answers) -> list[list[int]]:
    """Chunks of rows (`fast_llm.chunked`) by the tokens of each: image, prompt and all answers."""
    pairs = zip(prompts, answers, strict=True)
    lengths = [image_tokens.shape[1] + len(prompt) + sum(map(len, group)) for prompt, group in pairs]
    return fast_llm.chunked(lengths, budget.get(image_tokens.device.type, budget["cuda"]))


def _in_chunks(logps_of: Any, image_tokens: Tensor, chunks: Sequence[list[int]]) -> Tensor:
    """`logps_of(image_tokens[rows], rows)` of all chunks, in the order of the rows."""
    logps = torch.cat([logps_of(image_tokens[rows], rows) for rows in chunks])
    # Chunks are sorted by length. The argsort of a permutation is its inverse, which puts the rows back.
    return logps[torch.tensor([row for rows in chunks for row in rows], device=logps.device).argsort()]


def score(llm: PreTrainedModel, image_tokens: Tensor, prompts: Prompts, candidates: Answers) -> list[list[float]]:
    """Summed log-probability of each candidate, any number to each prompt; no gradients.

    Each prompt is computed once, and so is what its candidates share.
    """
    if not any(candidates):  # an empty batch has no longest row
        return [[] for _ in candidates]
    require_room(llm, image_tokens, prompts, candidates)
    logps, answer = fast_llm.token_logps(llm, image_tokens, prompts, candidates, acting=True)
    counts = [len(group) for group in candidates]  # (E,) tokens -> (sum of counts,) answers
    sums = logps.new_zeros(sum(counts)).index_add(0, answer, logps)
    return [group.tolist() for group in sums.split(counts)]


@dataclass(frozen=True)
class Generated:
    """New answers: `ids` (N * num_captions, new tokens) int64, `scores` (beam search only) or None."""

    ids: Tensor
    scores: Tensor | None


def generate(
    llm: PreTrainedModel,
    embeds: Tensor,
    mask: Tensor,
    decoding: Decoding,
    eos_id: int,
    named: fast_llm.Named | None = None,
) -> Generated:
    """Token ids of new answers, with pads (id 0) after `</s>`, and the scores of a beam search.

    `embeds` (N, Q + L, H) and `mask` (N, Q + L) are `[image tokens][left pads][prompt]`. Greedy decoding and beam
    search go through `fast_llm`, which goes on from kept prompts if positions are `named`, sampling and the rest
    through Transformers.
    """
    if not fast_llm.supports(llm):
        # Transformers counts a window of attention (Gemma 3, Mistral) in columns, and a convolution or a recurrence
        # (LFM2, Qwen 3.5) reads one column after another: pads between image and text would count as tokens. So they go
        # to the front; the sort is stable. Our kernels leave pads out wherever they stand.
        order = mask.argsort(dim=1, stable=True)  # (N, Q + L)
        embeds, mask = embeds.take_along_dim(order[..., None], dim=1), mask.take_along_dim(order, dim=1)
    sampled = decoding.use_nucleus_sampling
    new: dict[str, Any] = {"max_new": decoding.max_new, "min_new": decoding.min_new}
    repetition, length = float(decoding.repetition_penalty), float(decoding.length_penalty)
    # `fast_llm.greedy` knows no penalty, and there is no second most probable answer without beams.
    if decoding.num_beams == decoding.num_captions == decoding.repetition_penalty == 1 and not sampled:
        return Generated(fast_llm.greedy(llm, embeds, mask, **new, eos_id=eos_id, pad_id=0, named=named), None)
    if decoding.num_beams > 1 and not sampled:
        settings = fast_llm.BeamSettings(
            beams=decoding.num_beams,
            returned=decoding.num_captions,
            eos_id=eos_id,
            pad_id=0,
            repetition_penalty=repetition,
            length_penalty=length,
            **new,
        )
        return Generated(*fast_llm.beam_search(llm, embeds, mask, settings, named))
    engine: Any = llm  # PreTrainedModel's type lacks `generate`
    # Given embeddings in place of ids, Transformers returns the new tokens alone.
    output = engine.generate(
        inputs_embeds=embeds,
        attention_mask=mask,
        do_sample=sampled,
        # `top_k=0`: else Transformers draws from the 50 most probable tokens alone, whatever `top_p` says.
        **({"top_k": 0, "top_p": decoding.top_p, "temperature": float(decoding.temperature)} if sampled else {}),
        num_beams=decoding.num_beams,
        num_return_sequences=decoding.num_captions,
        max_new_tokens=decoding.max_new,
        min_new_tokens=decoding.min_new,
        length_penalty=length,
        # Transformers' own penalty spares as many new tokens as a row has pads in front.
        logits_processor=LogitsProcessorList([NewTokensPenalty(repetition)] if repetition != 1 else []),
        eos_token_id=eos_id,
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
    )
    # Today's beam search fills finished rows with eos, the original with pads.
    ids = fast_llm.pads_after(output.sequences, eos_id, pad_id=0)
    return Generated(ids, getattr(output, "sequences_scores", None))


def recompute(llm: Any) -> None:
    """Turn gradient checkpointing on: activations are computed again in the backward pass (Chen et al. 2016)."""
    # Transformers 5 renamed it on the way; the old name goes away in 6, and the first of 5 lack the new one.
    old, new = "gradient_checkpointing_enable", "activation_checkpointing_enable"
    # The reentrant kind computes no gradient for a layer whose input needs none, as behind frozen embeddings.
    getattr(llm, new if hasattr(llm, new) else old)({"use_reentrant": False})


def train_recomputing(llm: PreTrainedModel, mode: bool) -> None:
    """Set the layers that recompute to training: a layer does so only then. Its submodules stay as they are."""
    for module in llm.modules():
        if isinstance(module, GradientCheckpointingLayer) and module.gradient_checkpointing:
            module.training = mode


def require_room(llm: PreTrainedModel, image_tokens: Tensor, prompts: Prompts, answers: Answers | int) -> None:
    """ConfigError if image tokens, a prompt and its answer need more positions than the language model has.

    `answers` are the ids of given answers, or the number of tokens of new ones.
    """
    # Not every config has it: BLOOM's positions (ALiBi) have no limit.
    limit = getattr(llm.config, "max_position_embeddings", None)
    longest = [
        answers if isinstance(answers, int) else max(map(len, answers[n]), default=0) for n in range(len(prompts))
    ]
    row = max(range(len(prompts)), key=lambda n: len(prompts[n]) + longest[n])
    need = image_tokens.shape[1] + len(prompts[row]) + longest[row]
    if limit is not None and need > limit:
        raise ConfigError(
            f"prompt {row} has {len(prompts[row])} tokens; with {image_tokens.shape[1]} image tokens and "
            f"{longest[row]} of the answer that is {need}, and the language model has {limit} positions: shorten the "
            "prompt or max_length"
        )
