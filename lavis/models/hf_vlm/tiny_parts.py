"""What the tiny models of all families share: sizes, tokenizer, chat templates, language models and vision encoders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PretrainedConfig, PreTrainedTokenizerFast

SIDE = 56  # of an image, pixels: 4 x 4 patches of 14, of which the families join up to four in one token
WIDTH = 32  # of all hidden states; the language model's have four heads of 8
# Sizes of a vision encoder, in the names that most configs share.
VISION = {
    "hidden_size": WIDTH,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": 14,
}
_OWN_TOKENIZER = Path(__file__).parents[1] / "tiny" / "tokenizer.json"
# Chat templates in the form of the families' own: turns, a mark for each image, and the place of the answer.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
IDEFICS = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}:{% else %}: {% endif %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
LLAVA = (
    "{% for message in messages %}{{ 'USER: ' if message['role'] == 'user' else 'ASSISTANT: ' }}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>\n{% else %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{{ ' ' if message['role'] == 'user' else '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<|image|>{% else %}{{ part['text'] | trim }}"
    "{% endif %}{% endfor %}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>"
    "{{ 'model' if message['role'] == 'assistant' else 'user' }}\n{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<start_of_image>{% else %}{{ part['text'] | trim }}{% endif %}{% endfor %}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


class Parts(NamedTuple):
    """A family's model and the parts of its processor."""

    config: PretrainedConfig
    processor: Any


def tokenizer(
    special: Sequence[str], *, eos: str = "</s>", bos: str | None = "<s>", **named: str
) -> PreTrainedTokenizerFast:
    """The tiny model's tokenizer with more special tokens, those of `named` as its attributes."""
    made = PreTrainedTokenizerFast(
        tokenizer_file=str(_OWN_TOKENIZER),
        unk_token="<unk>",
        bos_token=bos,
        eos_token=eos,
        pad_token="[PAD]",
        model_specific_special_tokens=named,
    )
    made.add_special_tokens({"additional_special_tokens": list(special)})
    return made


def text_model(vocabulary: int, **more: Any) -> dict[str, Any]:
    """Sizes of a language model, in the names that nearly all configs share."""
    return {
        "hidden_size": WIDTH,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,  # fewer than query heads: grouped-query attention
        "vocab_size": vocabulary,
        "max_position_embeddings": 4096,
        **more,
    }


def clip_vision() -> dict[str, Any]:
    """Sizes of CLIP's vision encoder."""
    return {"model_type": "clip_vision_model", **VISION, "projection_dim": WIDTH}


def siglip_vision() -> dict[str, Any]:
    """As CLIP's, without projection and without the head that joins its patches to one vector."""
    return {"model_type": "siglip_vision_model", **VISION, "vision_use_head": False}
