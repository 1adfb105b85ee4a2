"""Log-probabilities of given answers under Blip2Emac's policy and its reference; the computation behind both losses.

Shapes: N samples, Q image tokens, L text tokens, H hidden size of the language model, E tokens of all answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from lavis.common.errors import ConfigError
from lavis.models import fast_llm
from lavis.models.blip2_models.emac_config import VISION
from lavis.models.blip2_models.emac_parts import Samples, sample_count, sample_texts
from lavis.models.blip2_models.emac_weights import EmacWeights
from lavis.models.blip2_models.text import IGNORE, Rows, encode_output, encode_prompts, training_rows

# Tokens of language model input whose activations are kept at a time, where only the parts before it train.
CHUNK_TOKENS = {"cpu": 1024, "cuda": 4096}
# Tokens computed at a time where the language model trains: rows of like length share a chunk, so that few are pads.
TRAINING_TOKENS = {"cpu": 4096, "cuda": 65536}


class EmacScoring(EmacWeights):
    """What of Blip2Emac turns samples and answers into log-probabilities."""

    prompt: str  # of samples that bring none
    cut_prompts: bool  # whether acting cuts long prompts as training does

    def encode_inputs(self, prompts: Sequence[str], *, acting: bool = False) -> list[list[int]]:
        """Token ids of each prompt as the language model reads it: BOS, then at most the last `max_txt_len - 1` ids.

        Training and acting both come here. Without `cut_prompts` acting never cuts: the original's `generate`.
        """
        limit = self.max_txt_len if self.cut_prompts or not acting else None
        return encode_prompts(self.llm_tokenizer, prompts, limit)

    def training_rows(self, prompts: Sequence[str], outputs: Sequence[str]) -> Rows:
        """What the language model reads behind the image tokens in training, cut and padded, with labels."""
        inputs = self.encode_inputs(prompts)
        targets = [encode_output(self.llm_tokenizer, text, self.max_output_txt_len) for text in outputs]
        return training_rows(inputs, targets, self.llm_tokenizer.pad_id)

    def encode_answers(self, groups: Iterable[Sequence[str]]) -> list[list[list[int]]]:
        """Token ids of every answer of every group, `</s>` included."""
        return [
            [encode_output(self.llm_tokenizer, text, self.max_output_txt_len) for text in group] for group in groups
        ]

    def prompts_of(self, samples: Samples) -> list[str]:
        """The prompts of `generate` and `score`: one for each image, or one text (else the config's) for all."""
        prompts = samples.get("prompt", self.prompt)
        count = sample_count(samples)
        if isinstance(prompts, str):
            return [prompts] * count
        if len(prompts) != count:
            raise ValueError(f"samples['prompt'] has {len(prompts)} prompts for {count} images")
        return list(prompts)

    # ---- public scores ----------------------------------------------------------------------------------------------

    def sequence_logps(self, samples: Samples, *keys: str, reference: bool = False) -> tuple[Tensor, ...]:
        """Log-probability of each answer in `samples[key]`, one tensor (N,) for every key.

        Mean over the answer's tokens where `avg_log_probs`, else their sum; `</s>` counts. `reference` asks the
        reference policy (call that under `no_grad`).
        """
        prompts, *outputs = sample_texts(samples, "text_input", *keys)
        with self.maybe_autocast():
            image_tokens = self.image_tokens(samples, prompts, reference=reference)
            return self.answer_logps(image_tokens, prompts, outputs, reference=reference).unbind(1)

    @torch.no_grad()
    def reference_logps(self, samples: Samples) -> tuple[Tensor, Tensor]:
        """The reference policy's (chosen, rejected) log-probabilities, (N,) each: constants of a transition."""
        self.require_reference()
        chosen, rejected = self.sequence_logps(samples, "text_output_pos", "text_output_neg", reference=True)
        return chosen, rejected

    @torch.no_grad()
    def encoded_once(self, samples: Samples) -> Samples:
        """The samples of `dpo_forward` with `query_output`, where policy and reference encode images alike."""
        alike = all(part in self.frozen and not hasattr(self.require_reference(), part) for part in VISION)
        if not alike or "image" not in samples or "query_output" in samples:
            return samples
        with self.maybe_autocast():
            return {**samples, "query_output": self.encode_queries(samples["image"], samples["text_input"])}

    @torch.no_grad()
    def score(self, samples: Samples, candidates: Sequence[Sequence[str]]) -> list[list[float]]:
        """Sum of log-probabilities of each candidate answer and its `</s>`.

        `samples` {"image", "prompt"} of N; `candidates[n]` are the answers to weigh for sample n, any number of them.
        Each prompt is computed once, and so is what its candidates share. ValueError for another number of lists.
        """
        prompts = self.prompts_of(samples)
        if len(candidates) != len(prompts):
            raise ValueError(f"score: {len(candidates)} lists of candidates for {len(prompts)} samples")
        if not any(candidates):
            return [[] for _ in candidates]
        ids, answers = self.encode_inputs(prompts, acting=True), self.encode_answers(candidates)
        with self.maybe_autocast():
            image_tokens = self.image_tokens(samples, prompts)
            require_room(self.llm_model, image_tokens, [len(i) for i in ids], _longest(answers))
            logps, answer = fast_llm.token_logps(self.llm_model, image_tokens, ids, answers, acting=True)
        counts = [len(group) for group in candidates]
        sums = logps.new_zeros(sum(counts)).index_add(0, answer, logps)
        return [group.tolist() for group in sums.split(counts)]

    # ---- from image tokens to log-probabilities ---------------------------------------------------------------------

    def token_logps(self, image_tokens: Tensor, rows: Rows, *, reference: bool = False) -> tuple[Tensor, Tensor]:
        """Log-probability of every labelled token: (E,) float32, and the row each belongs to: (E,).

        The logits of all other positions are never computed. Pads stand on the right, where a causal model's real
        tokens do not see them, so no mask is needed.
        """
        require_room(self.llm_model, image_tokens, rows.mask.sum(1).tolist(), 0)
        llm = self.part("llm_model", reference=reference)
        ids, labels = rows.ids.to(self.device), rows.labels.to(self.device)
        embeds = llm.get_input_embeddings()(ids)
        embeds = torch.cat([image_tokens.to(embeds.dtype), embeds], dim=1)
        hidden = llm.get_decoder()(inputs_embeds=embeds, use_cache=False).last_hidden_state
        row, column = torch.nonzero(labels != IGNORE, as_tuple=True)
        before = hidden[row, image_tokens.shape[1] + column - 1]  # a token is predicted one position earlier
        logits = llm.get_output_embeddings()(before).float()
        return -F.cross_entropy(logits, labels[row, column], reduction="none"), row

    def answer_logps(
        self, image_tokens: Tensor, prompts: Sequence[str], outputs: Sequence[Sequence[str]], *, reference: bool = False
    ) -> Tensor:
        """As `sequence_logps`, from image tokens (N, Q, H): (N, len(outputs))."""
        sums, counts = self.answer_sums(image_tokens, prompts, outputs, reference=reference)
        return sums / counts if self.avg_log_probs else sums

    def answer_sums(
        self, image_tokens: Tensor, prompts: Sequence[str], outputs: Sequence[Sequence[str]], *, reference: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Summed log-probability and number of tokens of each answer, (N, len(outputs)) each."""
        llm, count = self.part("llm_model", reference=reference), len(prompts)
        if len(outputs) == 1 and not fast_llm.supports(llm):  # plain rows, whose causal mask attention kernels know
            plain = self.training_rows(prompts, outputs[0])
            logps, row = self.token_logps(image_tokens, plain, reference=reference)
            return _by_answer(logps, row, (count, 1))
        ids, answers = self.encode_inputs(prompts), self.encode_answers(zip(*outputs, strict=True))
        require_room(llm, image_tokens, [len(i) for i in ids], _longest(answers))
        chunks = fast_llm.chunked(_lengths(image_tokens, ids, answers), _budget(self.device, TRAINING_TOKENS))
        if _is_sharded(llm):  # its processes must call it equally often
            chunks = [list(range(count))]
        parts = []
        for rows in chunks:
            logps, answer = fast_llm.token_logps(
                llm, image_tokens[rows], [ids[i] for i in rows], [answers[i] for i in rows]
            )
            parts.append(_by_answer(logps, answer, (len(rows), len(outputs))))
        order = torch.tensor([row for rows in chunks for row in rows], device=self.device).argsort()
        sums, counts = (torch.cat(part)[order] for part in zip(*parts, strict=True))
        return sums, counts

    def logps_by_rows(
        self,
        image_tokens: Tensor,
        prompts: Sequence[str],
        answers: Sequence[Sequence[list[int]]],
        loss_of: Callable[[Tensor, list[int]], Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Summed log-probability of each answer, (N, answers), and the surrogate loss (`fast_llm.values_by_rows`)."""
        prompt_ids = self.encode_inputs(prompts)
        width = len(answers[0])
        require_room(self.llm_model, image_tokens, [len(i) for i in prompt_ids], _longest(answers))

        def sums_of(tokens: Tensor, rows: list[int]) -> Tensor:
            logps, answer = fast_llm.token_logps(
                self.llm_model, tokens, [prompt_ids[i] for i in rows], [answers[i] for i in rows]
            )
            return logps.new_zeros(len(rows) * width).index_add(0, answer, logps).view(len(rows), width)

        chunks = fast_llm.chunked(_lengths(image_tokens, prompt_ids, answers), _budget(self.device, CHUNK_TOKENS))
        return fast_llm.values_by_rows(sums_of, loss_of, image_tokens, chunks)


def require_room(llm: PreTrainedModel, image_tokens: Tensor, prompts: Sequence[int], answer: int) -> None:
    """ConfigError where image tokens, a prompt (`prompts`: tokens of each) and `answer` tokens need more positions
    than the language model has.
    """
    limit = getattr(llm.config, "max_position_embeddings", None)
    longest = max(range(len(prompts)), key=prompts.__getitem__)
    need = image_tokens.shape[1] + prompts[longest] + answer
    if limit is not None and need > limit:
        raise ConfigError(
            f"prompt {longest} has {prompts[longest]} tokens; with {image_tokens.shape[1]} image tokens and "
            f"{answer} of the answer that is {need}, and the language model has {limit} positions: shorten the "
            "prompt or max_length"
        )


def _is_sharded(llm: PreTrainedModel) -> bool:
    return any(isinstance(parameter, DTensor) for parameter in llm.parameters())


def _longest(answers: Sequence[Sequence[Sequence[int]]]) -> int:
    return max(len(answer) for group in answers for answer in group)


def _lengths(image_tokens: Tensor, prompts: Sequence[list[int]], answers: Sequence[Sequence[list[int]]]) -> list[int]:
    """Tokens of each row: image, prompt and all answers."""
    pairs = zip(prompts, answers, strict=True)
    return [image_tokens.shape[1] + len(prompt) + sum(map(len, group)) for prompt, group in pairs]


def _budget(device: torch.device, tokens: Mapping[str, int]) -> int:
    return tokens.get(device.type, tokens["cuda"])


def _by_answer(logps: Tensor, answer: Tensor, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Sum and number of the log-probabilities (E,) of each answer, both `shape`."""
    answers = shape[0] * shape[1]
    sums = logps.new_zeros(answers).index_add(0, answer, logps)
    return sums.view(shape), torch.bincount(answer, minlength=answers).view(shape)
