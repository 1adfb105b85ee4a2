"""Tiny random checkpoints in the real format, for tests that start real engines: a Llama and a Qwen2-VL.

    python tests/tiny_checkpoints.py --out DIR llama
    python tests/tiny_checkpoints.py --out DIR qwen2vl
    python tests/tiny_checkpoints.py --out DIR llava        (for `transformers serve`: needs no torchvision)

They say nothing sensible, but everything around them is real: config, safetensors, tokenizer, chat template and image
processor settings, as Transformers and vLLM read them. About 1 MB each; the same seed gives the same files. Runs in
the project's environment and in vLLM's.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)

# head_dim is 32, the least that vLLM's CPU kernels take; large weights, so that greedy decoding has clear winners.
WIDTH, HEADS, LAYERS, VOCABULARY = 128, 4, 2, 640
SPREAD = 0.15

CORPUS = (
    "You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a countertop 1, and a fridge 1.",
    "Your task is to: put a clean mug in coffeemachine. examine the book with the desklamp. heat some potato.",
    "go to countertop 1. take mug 1 from desk 2. put mug 1 in/on shelf 3. open drawer 4. close fridge 1.",
    "clean plate 1 with sinkbasin 1. heat apple 2 with microwave 1. cool tomato 1 with fridge 1. use desklamp 1.",
    "On the desk 1, you see a pen 1, a laptop 1, and a cellphone 2. The drawer 3 is closed. Nothing happens. look",
)

LLAMA_CHAT = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
QWEN2VL_CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] in ('image', 'image_url') or 'image' in part %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN2VL_SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)


def write_llama(folder: Path, *, seed: int = 0, **config: object) -> Path:
    """Write a tiny random Llama into `folder` (made if needed); `config` overrides fields of `LlamaConfig`."""
    special = ("<unk>", "<s>", "</s>", "[PAD]")
    names = dict(zip(("unk_token", "bos_token", "eos_token", "pad_token"), special, strict=True))
    tokenizer = _tokenizer(special, LLAMA_CHAT, **names)
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "max_position_embeddings": 2048,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "initializer_range": SPREAD,
        **config,
    }
    torch.manual_seed(seed)
    return _save(LlamaForCausalLM(LlamaConfig(**settings)), tokenizer, folder)


def write_qwen2vl(folder: Path, *, seed: int = 0) -> Path:
    """Write a tiny random Qwen2-VL with tokenizer, chat template and processor settings into `folder`."""
    tokenizer = _tokenizer(QWEN2VL_SPECIAL, QWEN2VL_CHAT, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    ids = {name.strip("<|>"): tokenizer.convert_tokens_to_ids(name) for name in QWEN2VL_SPECIAL}
    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS // 2,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]},
        "bos_token_id": ids["endoftext"],
        "eos_token_id": ids["im_end"],
        "initializer_range": SPREAD,
    }
    vision = {"depth": 2, "embed_dim": 64, "num_heads": 2, "mlp_ratio": 2, "hidden_size": WIDTH, "patch_size": 14}
    config = Qwen2VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=ids["vision_start"],
        vision_end_token_id=ids["vision_end"],
    )
    torch.manual_seed(seed)
    _save(Qwen2VLForConditionalGeneration(config), tokenizer, folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(_image_settings(), indent=2))
    return folder


def write_llava(folder: Path, *, seed: int = 0) -> Path:
    """Write a tiny random LLaVA with its processor into `folder`."""
    from transformers import CLIPImageProcessorPil  # only here: other versions of Transformers have another name

    chat = LLAMA_CHAT.replace(
        "{{ message['content'] }}",
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
        "{{ part['text'] if part['type'] == 'text' else '<image>' }}{% endfor %}{% endif %}",
    )
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "[PAD]"}
    tokenizer = _tokenizer((*names.values(), "<image>"), chat, **names)
    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "max_position_embeddings": 8192,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 1}
    config = LlavaConfig(
        text_config=LlamaConfig(**text),
        vision_config=CLIPVisionConfig(**vision, image_size=28, patch_size=14),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )
    torch.manual_seed(seed)
    _save(LlavaForConditionalGeneration(config), tokenizer, folder)
    LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}),
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=chat,
    ).save_pretrained(folder)
    return folder


def _image_settings() -> dict[str, object]:
    """Qwen2-VL's own, with room for far fewer pixels."""
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2VLProcessor",
        "min_pixels": 56 * 56,
        "max_pixels": 28 * 28 * 64,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }


def _tokenizer(special: tuple[str, ...], chat_template: str, **names: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE that has learnt `CORPUS`; any text survives it."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    others = [token for token in special if token not in names.values()]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    tokenizer.add_special_tokens({"additional_special_tokens": others})
    tokenizer.chat_template = chat_template
    tokenizer.model_max_length = 2048
    return tokenizer


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Path:
    if len(tokenizer) > VOCABULARY:
        raise ValueError(f"the tokenizer has {len(tokenizer)} tokens, the model {VOCABULARY}")
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def main() -> None:
    """Write one checkpoint and print where."""
    makers = {"llama": write_llama, "qwen2vl": write_qwen2vl, "llava": write_llava}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=makers)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(makers[arguments.model](arguments.out, seed=arguments.seed))


if __name__ == "__main__":
    main()
