"""The vision side of Blip2Emac: from an image to the image tokens that the language model reads.

    image (N, 3, S, S) -> visual_encoder -> ln_vision -> Qformer(query_tokens[, text]) -> llm_proj -> (N, Q, H)

Shapes: N samples, S image side, Q query (image) tokens, D width of the Q-Former, H hidden size of the language model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import BatchEncoding, BertTokenizer, InstructBlipQFormerModel, InstructBlipVisionModel

from lavis.common.errors import ConfigError
from lavis.models.blip2_models.conv_encoder import ConvEncoder


@dataclass(frozen=True)
class VisionSide:
    """The vision parts of one policy, put together for one call; they belong to the model.

    With a `tokenizer` the Q-Former reads the prompt too (`qformer_text_input`), cut to `max_txt_len`.
    """

    visual_encoder: InstructBlipVisionModel | ConvEncoder
    ln_vision: nn.Module
    qformer: InstructBlipQFormerModel
    query_tokens: nn.Parameter  # (1, Q, D)
    llm_proj: nn.Linear  # D -> H
    tokenizer: BertTokenizer | None
    max_txt_len: int

    def tokens_of(self, images: Sequence[Tensor], texts: Sequence[str]) -> Tensor:
        """Image tokens (N, Q, H) of N images, (3, S, S) or (frames, 3, S, S) each, and what the Q-Former reads beside.

        Questions that share an image (the same object, such as a black frame) have it encoded once.
        """
        keys = [(id(image), text if self.tokenizer else "") for image, text in zip(images, texts, strict=True)]
        distinct = dict(zip(keys, images, strict=True))
        queries = self.encode_queries(torch.stack(list(distinct.values())), [text for _, text in distinct])
        tokens: Tensor = self.llm_proj(queries)
        places = {key: place for place, key in enumerate(distinct)}
        return tokens if len(distinct) == len(keys) else tokens[[places[key] for key in keys]]

    def encode_image(self, image: Tensor) -> Tensor:
        """Features of `image` (N, 3, S, S) after `ln_vision`: (N, patches + 1, vision width)."""
        encoder = self.visual_encoder
        size = encoder.config.image_size
        if image.dim() != 4 or image.shape[1:] != (3, size, size) or not image.is_floating_point():
            raise ConfigError(
                f"image: expected float (N, 3, {size}, {size}), got {image.dtype} {tuple(image.shape)}; "
                "use vis_processors['eval']"
            )
        return self.ln_vision(encoder(image.to(self.query_tokens.device, encoder.dtype)).last_hidden_state)

    def encode_queries(self, image: Tensor, texts: Sequence[str]) -> Tensor:
        """The Q-Former's output for images (N, 3, S, S) or videos (N, frames, 3, S, S): (N, Q, D).

        `texts` is what the Q-Former reads beside the image, if it reads text. A video's frames follow one another along
        Q, as in the original's `generate`: (N, frames * Q, D).
        """
        frames = 1
        if image.dim() == 5:
            frames = image.shape[1]
            image = image.flatten(0, 1)  # every frame is encoded as an image of its own, with the same text
            texts = [text for text in texts for _ in range(frames)]
        features = self.encode_image(image)
        queries = self.query_tokens.expand(len(features), -1, -1)
        text: dict[str, Tensor | None] = {"input_ids": None}
        if self.tokenizer is not None:
            tokens = self.text_tokens(texts).to(features.device)
            # Queries and text attend to one another; the mask, (N, Q + L), hides the text's pads alone.
            seen = torch.ones(queries.shape[:2], dtype=torch.long, device=features.device)
            text = {"input_ids": tokens.input_ids, "attention_mask": torch.cat([seen, tokens.attention_mask], dim=1)}
        # The encoder may be in half precision (`vit_precision`); the Q-Former is in float32.
        output = self.qformer(query_embeds=queries, encoder_hidden_states=features.to(queries.dtype), **text)
        hidden = output.last_hidden_state[:, : queries.shape[1]]  # without the text's positions
        # (N * frames, Q, D) -> (N, frames * Q, D): the frames of a sample lie one behind another.
        return hidden.reshape(len(hidden) // frames, frames * hidden.shape[1], hidden.shape[2])

    def text_tokens(self, texts: Sequence[str]) -> BatchEncoding:
        """BERT `input_ids` and `attention_mask` (N, L) of what the Q-Former reads, cut on the left to `max_txt_len`.

        Only if the Q-Former reads text (`qformer_text_input`).
        """
        assert self.tokenizer is not None
        return self.tokenizer(
            list(texts), padding="longest", truncation=True, max_length=self.max_txt_len, return_tensors="pt"
        )
