"""Generation of answers by Blip2Emac: the language model's input, and the choice of a decoding method.

Shapes: N samples, Q image tokens, L text tokens, H hidden size of the language model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lavis.common.errors import ConfigError
from lavis.models import fast_llm
from lavis.models.blip2_models.emac_parts import Samples
from lavis.models.blip2_models.emac_scoring import EmacScoring, require_room
from lavis.models.blip2_models.text import prompt_rows


@dataclass(frozen=True)
class Generated:
    """What `generate_ids` returns: `ids` (N * num_captions, new tokens) int64, `scores` (beam search only) or None."""

    ids: Tensor
    scores: Tensor | None


class EmacGeneration(EmacScoring):
    """What of Blip2Emac generates token ids."""

    def prompt_embeds(self, samples: Samples, room: int = 0) -> tuple[Tensor, Tensor]:
        """Input of generation, `[image tokens][left pads][prompt]`: embeddings (N, Q + L, H) and mask (N, Q + L).

        ConfigError where `room` more tokens would exceed the language model's positions.
        """
        prompts = self.prompts_of(samples)
        image_tokens = self.image_tokens(samples, prompts)
        ids = self.encode_inputs(prompts, acting=True)
        require_room(self.llm_model, image_tokens, [len(i) for i in ids], room)
        rows = prompt_rows(ids, self.llm_tokenizer.pad_id)
        text = self.llm_model.get_input_embeddings()(rows.ids.to(self.device))
        mask = torch.cat([torch.ones(image_tokens.shape[:2], dtype=torch.long), rows.mask], dim=1)
        return torch.cat([image_tokens.to(text.dtype), text], dim=1), mask.to(self.device)

    @torch.no_grad()
    def generate_ids(
        self,
        samples: Samples,
        *,
        use_nucleus_sampling: bool,
        num_beams: int,
        max_length: int,
        min_length: int,
        top_p: float,
        repetition_penalty: float,
        length_penalty: float,
        num_captions: int,
        temperature: float,
    ) -> Generated:
        """As `generate`, before decoding: new token ids with pads (id 0) after `</s>`, and beam scores.

        Greedy decoding and beam search go through `fast_llm`, sampling and the rest through Transformers.
        """
        if max_length < 2:
            raise ConfigError(f"max_length={max_length}: at least 2 (the original counts a BOS), for one new token")
        max_new, min_new = max_length - 1, max(min_length - 1, 0)
        with self.maybe_autocast():
            embeds, mask = self.prompt_embeds(samples, room=max_new)
            eos_id = self.llm_tokenizer.eos_id
            if num_beams == num_captions == repetition_penalty == 1 and not use_nucleus_sampling:
                ids = fast_llm.greedy(
                    self.llm_model, embeds, mask, max_new=max_new, min_new=min_new, eos_id=eos_id, pad_id=0
                )
                return Generated(ids, None)
            if num_beams > 1 and not use_nucleus_sampling:
                settings = fast_llm.BeamSettings(
                    beams=num_beams,
                    max_new=max_new,
                    min_new=min_new,
                    repetition_penalty=float(repetition_penalty),
                    length_penalty=float(length_penalty),
                    returned=num_captions,
                    eos_id=eos_id,
                    pad_id=0,
                )
                return Generated(*fast_llm.beam_search(self.llm_model, embeds, mask, settings))
            sampling = {"top_p": top_p, "temperature": float(temperature)} if use_nucleus_sampling else {}
            return self._generate_by_transformers(
                embeds,
                mask,
                do_sample=use_nucleus_sampling,
                num_beams=num_beams,
                max_new_tokens=max_new,
                min_new_tokens=min_new,
                repetition_penalty=float(repetition_penalty),
                length_penalty=float(length_penalty),
                num_return_sequences=num_captions,
                **sampling,
            )

    def _generate_by_transformers(self, embeds: Tensor, mask: Tensor, **options: Any) -> Generated:
        """As `generate_ids`, with Transformers' arguments; `embeds` (N, Q + L, H) and `mask` (N, Q + L)."""
        eos_id = self.llm_tokenizer.eos_id
        llm: Any = self.llm_model  # PreTrainedModel's type lacks `generate`
        output = llm.generate(
            inputs_embeds=embeds,
            attention_mask=mask,
            eos_token_id=eos_id,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
            **options,
        )
        # Today's beam search fills finished rows with eos, the original with pads.
        ids = fast_llm.pads_after(output.sequences, eos_id, pad_id=0)
        return Generated(ids, getattr(output, "sequences_scores", None))
