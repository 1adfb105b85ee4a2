"""The parts of Blip2Emac, and the way from an image to the image tokens that the language model reads.

Shapes: N samples, Q query (image) tokens, L text tokens, H hidden size of the language model, S image side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import (
    BatchEncoding,
    BertTokenizer,
    InstructBlipQFormerModel,
    InstructBlipVisionModel,
    PreTrainedModel,
)
from transformers.modeling_layers import GradientCheckpointingLayer

from lavis.common.errors import ConfigError
from lavis.models.blip2_models import adapters
from lavis.models.blip2_models.blip2 import Blip2Base
from lavis.models.blip2_models.emac_config import KEYS_OF_PARTS, VISION
from lavis.models.blip2_models.text import LlmTokenizer

if TYPE_CHECKING:
    from typing_extensions import Self

# What the model's calls take: tensors `image` or `query_output`, and N texts under each of the names that a call reads.
Samples = Mapping[str, Any]


class EmacParts(Blip2Base):
    """The parts (`emac_config.PARTS`) and `encode_*`; `Blip2Emac` puts them in."""

    visual_encoder: InstructBlipVisionModel
    ln_vision: nn.Module
    Qformer: InstructBlipQFormerModel
    query_tokens: nn.Parameter  # (1, Q, width of the Q-Former)
    llm_proj: nn.Linear
    llm_model: PreTrainedModel
    reference: nn.Module | None  # copies of those parts that differ from the policy's; see `EmacWeights.set_reference`
    llm_tokenizer: LlmTokenizer
    qformer_tokenizer: BertTokenizer | None
    frozen: tuple[str, ...]
    max_txt_len: int
    max_output_txt_len: int
    avg_log_probs: bool
    sources: dict[str, str]  # part: the file, folder or hub id that brought all its weights
    required_parts: tuple[str, ...]  # parts that must be in `sources` before the model trains or acts

    def train(self, mode: bool = True) -> Self:
        """Training mode for what trains; frozen parts and the reference stay in eval mode."""
        super().train(mode)
        for part in self.frozen:
            if isinstance(module := getattr(self, part), nn.Module):
                module.eval()
        adapters.train_dropout(self.llm_model, mode)
        # A layer recomputes only while its own `training` is True; its submodules stay in eval mode.
        for module in self.llm_model.modules():
            if isinstance(module, GradientCheckpointingLayer) and module.gradient_checkpointing:
                module.training = mode
        if self.reference is not None:
            self.reference.eval()
        return self

    def require_sources(self) -> None:
        """ConfigError where a part has random weights that must come from a file (`emac_config.required_parts`)."""
        if lacking := [part for part in self.required_parts if part not in self.sources]:
            told = "; ".join(f"{part} (set {KEYS_OF_PARTS[part]})" for part in lacking)
            raise ConfigError(
                f"no file brought the weights of {told}: the model does not train or act with random weights there, "
                f"unless model.allow_random=[{','.join(lacking)}]"
            )

    def part(self, name: str, *, reference: bool = False) -> Any:
        """The policy's part `name`, or the reference policy's where that has its own."""
        if reference and hasattr(self.reference, name):
            return getattr(self.reference, name)
        return getattr(self, name)

    def encode_image(self, image: Tensor, *, reference: bool = False) -> Tensor:
        """Features of `image` (N, 3, S, S) after `ln_vision`: (N, patches + 1, vision width)."""
        encoder = self.part("visual_encoder", reference=reference)
        ln_vision = self.part("ln_vision", reference=reference)
        size = encoder.config.image_size
        if image.dim() != 4 or image.shape[1:] != (3, size, size) or not image.is_floating_point():
            raise ConfigError(
                f"image: expected float (N, 3, {size}, {size}), got {image.dtype} {tuple(image.shape)}; "
                "use vis_processors['eval']"
            )
        return ln_vision(encoder(image.to(self.device, encoder.dtype)).last_hidden_state)

    def encode_queries(self, image: Tensor, texts: Sequence[str], *, reference: bool = False) -> Tensor:
        """The Q-Former's output for images (N, 3, S, S) or videos (N, frames, 3, S, S): (N, Q, Q-Former width).

        `texts` is what the Q-Former reads beside the image, where it reads text. A video's frames follow one another
        along Q, as in the original's `generate`.
        """
        frames = 1
        if image.dim() == 5:
            frames = image.shape[1]
            image = image.flatten(0, 1)
            texts = [text for text in texts for _ in range(frames)]
        features = self.encode_image(image, reference=reference)
        qformer = self.part("Qformer", reference=reference)
        queries = self.part("query_tokens", reference=reference).expand(len(features), -1, -1)
        text: dict[str, Tensor | None] = {"input_ids": None}
        if self.qformer_tokenizer is not None:
            tokens = self.qformer_text_tokens(texts).to(features.device)
            seen = torch.ones(queries.shape[:2], dtype=torch.long, device=features.device)
            text = {"input_ids": tokens.input_ids, "attention_mask": torch.cat([seen, tokens.attention_mask], dim=1)}
        output = qformer(query_embeds=queries, encoder_hidden_states=features.to(queries.dtype), **text)
        hidden = output.last_hidden_state[:, : queries.shape[1]]
        return hidden.reshape(len(hidden) // frames, frames * hidden.shape[1], hidden.shape[2])

    def qformer_text_tokens(self, texts: Sequence[str]) -> BatchEncoding:
        """BERT `input_ids` and `attention_mask` (N, L) of what the Q-Former reads, cut on the left to `max_txt_len`.

        Only where the Q-Former reads text (`qformer_text_input`).
        """
        assert self.qformer_tokenizer is not None
        return self.qformer_tokenizer(
            list(texts), padding="longest", truncation=True, max_length=self.max_txt_len, return_tensors="pt"
        )

    def image_tokens(self, samples: Samples, texts: Sequence[str], *, reference: bool = False) -> Tensor:
        """The images as the language model reads them: (N, Q, H)."""
        self.require_sources()
        own_vision = reference and any(hasattr(self.reference, part) for part in VISION)
        if "query_output" in samples and not own_vision:
            queries = self._cached_queries(samples["query_output"])
        elif "image" in samples:
            queries = self.encode_queries(samples["image"], texts, reference=reference)
        else:
            raise ValueError("the reference policy has its own vision encoder or Q-Former: give samples['image'] too")
        return self.part("llm_proj", reference=reference)(queries)

    def _cached_queries(self, queries: Tensor) -> Tensor:
        """`encode_queries`' result as it was stored with a sample, checked."""
        if trains := [part for part in VISION if part not in self.frozen]:
            raise ValueError(f"samples['query_output'] is stale where {trains[0]} trains: give samples['image']")
        width = self.llm_proj.in_features
        if queries.dim() != 3 or queries.shape[2] != width:
            raise ValueError(f"query_output: expected (N, queries, {width}), got {tuple(queries.shape)}")
        return queries.to(self.device)


def sample_count(samples: Samples) -> int:
    """How many images the samples hold; ValueError where there is none."""
    key = "query_output" if "query_output" in samples else "image"
    if key not in samples:
        raise ValueError(f"samples lack 'image'; they have {', '.join(samples) or 'nothing'}")
    if len(samples[key]) == 0:
        raise ValueError(f"samples hold no sample: {key} is empty")
    return len(samples[key])


def sample_texts(samples: Samples, *keys: str) -> tuple[Sequence[str], ...]:
    """The texts under `keys`; ValueError where one is missing or does not have one string for each image."""
    count = sample_count(samples)
    for key in keys:
        if key not in samples:
            raise ValueError(f"samples lack {key!r}; they have {', '.join(samples)}")
        if isinstance(samples[key], str) or len(samples[key]) != count:
            raise ValueError(f"samples[{key!r}]: expected a list of {count} strings, one for each image")
    return tuple(samples[key] for key in keys)
