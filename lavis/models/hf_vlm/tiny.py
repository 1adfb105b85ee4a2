"""Tiny random models of the hub's vision-language families, as folders: to try `hf_vlm` without a download.

    python -m lavis.models.hf_vlm.tiny DEST                        # a Qwen2.5-VL of 0.2 million weights
    python -m lavis.models.hf_vlm.tiny DEST --family smolvlm

The folders are what Transformers' own `save_pretrained` writes: config, weights, processor, tokenizer, chat template.
Every family is built with the classes of real models, only narrower; the tokenizer is that of this project's tiny model
with the family's own special tokens.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lavis.common.program import read_first, run_program

FAMILIES = (
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_5",
    "idefics3",
    "smolvlm",
    "llava",
    "llava_next",
    "gemma3",
    "paligemma",
    "instructblip",
    "blip2",
    "mllama",
    "aya_vision",
    "qwen3_vl_moe",
    "qwen3_5_moe",
    "internvl",
    "llava_onevision",
    "llava_next_video",
    "vipllava",
    "ovis2",
    "idefics2",
    "deepseek_vl",
    "deepseek_vl_hybrid",
    "janus",
    "gemma4",
    "glm4v",
    "glm4v_moe",
    "glm46v",
    "glm_ocr",
    "aria",
    "video_llama_3",
)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Write a tiny random vision-language model as a folder.")
    parser.add_argument("dest", help="the folder, which must not exist yet")
    parser.add_argument("--family", default="qwen2_5_vl", choices=FAMILIES)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes are answered at once.
    read_first(parse_arguments)

import torch
import transformers
from transformers import AutoModelForImageTextToText

from lavis.common.errors import EmacError, FileError
from lavis.common.files import make_folder, open_to_others
from lavis.models.hf_vlm.loading import without_videos
from lavis.models.hf_vlm.tiny_families import MORE_PARTS
from lavis.models.hf_vlm.tiny_parts import (
    CHATML,
    GEMMA,
    IDEFICS,
    LLAMA,
    LLAVA,
    SIDE,
    WIDTH,
    Parts,
    clip_vision,
    siglip_vision,
    text_model,
    tokenizer,
)


def make(family: str, dest: Path | str, *, seed: int = 0) -> Path:
    """Write a tiny random model of `family` (one of `FAMILIES`) to the folder `dest`."""
    folder = Path(dest)
    make_folder(folder)
    if any(folder.iterdir()):
        raise FileError(f"{folder} is not empty: name a new folder")
    config, processor = parts(family)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config)
        with torch.no_grad():  # as a trained model: texts differ in probability, and images count
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=0.1)
                elif parameter.numel() == 1:  # a gate, which begins at 0 and lets nothing of an image through
                    parameter.fill_(1.0)
    try:
        model.save_pretrained(folder)
        open_to_others(folder)
        save_processor(processor, folder)
    except BaseException:  # a full disk, Ctrl-C: a folder of half a model would be refused the next time
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def parts(family: str) -> Parts:
    """Config and processor of a tiny model of `family`, to be changed before a model is made of them."""
    return _PARTS[family]()


def save_processor(processor: Any, folder: Path) -> None:
    """As `save_pretrained`, for a processor whose class may be one of `without_videos`."""
    processor.save_pretrained(folder)
    path = folder / "processor_config.json"
    content = json.loads(path.read_text()) if path.is_file() else {}
    content["processor_class"] = type(processor).__name__  # by which the class is found
    path.write_text(json.dumps(content, indent=2) + "\n")


def _qwen(kind: str) -> Parts:
    words = tokenizer(
        ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"],
        eos="<|im_end|>",
        bos=None,
    )
    ids = {
        f"{name}_token_id": words.convert_tokens_to_ids(token)
        for name, token in (
            ("image", "<|image_pad|>"),
            ("video", "<|video_pad|>"),
            ("vision_start", "<|vision_start|>"),
            ("vision_end", "<|vision_end|>"),
        )
    }
    # M-RoPE turns a head's dimensions by a token's time, height and width (Qwen2-VL, arXiv:2409.12191, section 2.1).
    # The sections are numbers of pairs of dimensions: 2 + 1 + 1 pairs are a head of 8.
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
    text = text_model(len(words), rope_parameters=rope, pad_token_id=words.pad_token_id, bos_token_id=1, eos_token_id=2)
    vision: dict[str, Any] = {"depth": 2, "num_heads": 2, "patch_size": 14, "spatial_merge_size": 2}
    if kind == "qwen2_vl":
        vision |= {"embed_dim": WIDTH, "hidden_size": WIDTH, "mlp_ratio": 2}
        config: Any = transformers.Qwen2VLConfig
        processor: Any = transformers.Qwen2VLProcessor
    elif kind == "qwen2_5_vl":
        vision |= {"hidden_size": WIDTH, "out_hidden_size": WIDTH, "intermediate_size": 64, "window_size": 56}
        # One layer attends in windows, the other to the whole image: both kinds of the real model.
        vision |= {"fullatt_block_indexes": [1]}
        config, processor = transformers.Qwen2_5_VLConfig, transformers.Qwen2_5_VLProcessor
    else:
        vision |= {"hidden_size": WIDTH, "out_hidden_size": WIDTH, "intermediate_size": 64}
        vision |= {"num_position_embeddings": 64}
        processor = transformers.Qwen3VLProcessor
        if kind.endswith("_moe"):  # four experts in each layer, of which two answer to a token
            text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        if kind.startswith("qwen3_vl"):
            # The layer whose features go into an early layer of the language model, too (DeepStack).
            vision |= {"deepstack_visual_indexes": [0]}
            text |= {"head_dim": 8}
            config = transformers.Qwen3VLConfig if kind == "qwen3_vl" else transformers.Qwen3VLMoeConfig
        else:
            # One layer of each kind. The linear one keeps no key for each token, so prompts cannot be shared (`logps`).
            text |= {"head_dim": 16, "layer_types": ["linear_attention", "full_attention"]}
            text |= {"linear_num_key_heads": 2, "linear_num_value_heads": 2}
            text |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
            text |= {"shared_expert_intermediate_size": 32} if kind == "qwen3_5_moe" else {}
            config = transformers.Qwen3_5Config if kind == "qwen3_5" else transformers.Qwen3_5MoeConfig
    # Bounds of an image's area in pixels: the processor scales images to a size between them.
    images = transformers.Qwen2VLImageProcessorPil(
        patch_size=14, merge_size=2, size={"shortest_edge": SIDE * SIDE, "longest_edge": 2 * SIDE * SIDE}
    )
    made = without_videos(processor)(image_processor=images, tokenizer=words, chat_template=CHATML)
    return Parts(config(text_config=text, vision_config=vision, **ids, tie_word_embeddings=False), made)


def _idefics(kind: str) -> Parts:
    more = ["<|im_start|>", "<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>"]
    # The names of the tiles into which the real processor splits large images.
    more += [f"<row_{row}_col_{col}>" for row in (1, 2) for col in (1, 2)]
    words = tokenizer(more, eos="<end_of_utterance>", bos=None)
    image_id = words.convert_tokens_to_ids("<image>")
    vision = {"hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision |= {"image_size": SIDE, "patch_size": 14}
    text = text_model(len(words), model_type="llama", pad_token_id=words.pad_token_id)
    is_smol = kind == "smolvlm"
    config: Any = transformers.SmolVLMConfig if is_smol else transformers.Idefics3Config
    images: Any = transformers.SmolVLMImageProcessorPil if is_smol else transformers.Idefics3ImageProcessorPil
    processor: Any = transformers.SmolVLMProcessor if is_smol else transformers.Idefics3Processor
    made = without_videos(processor)(
        image_processor=images(
            size={"longest_edge": SIDE}, max_image_size={"longest_edge": SIDE}, do_image_splitting=False
        ),
        tokenizer=words,
        # 16 patches, of which pixel shuffle (`scale_factor` 2) joins four in one token.
        image_seq_len=4,
        chat_template=IDEFICS,
    )
    settings = {"image_token_id": image_id, "scale_factor": 2, "tie_word_embeddings": False}
    return Parts(config(text_config=text, vision_config=vision, pad_token_id=words.pad_token_id, **settings), made)


def _llava(kind: str) -> Parts:
    words = tokenizer(["<image>"])
    text = text_model(len(words), model_type="llama", pad_token_id=words.pad_token_id)
    settings: dict[str, Any] = {"image_token_index": words.convert_tokens_to_ids("<image>"), "text_config": text}
    # "default" leaves out the class token, which processor and model must agree on: the one additional token below.
    settings |= {"vision_config": clip_vision(), "vision_feature_select_strategy": "default"}
    square = {"height": SIDE, "width": SIDE}
    reading: dict[str, Any] = {
        "patch_size": 14,
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
    }
    if kind == "llava":
        images: Any = transformers.CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=square)
        made: Any = transformers.LlavaProcessor(images, words, chat_template=LLAVA, **reading)
        return Parts(transformers.LlavaConfig(**settings), made)
    # LLaVA-NeXT cuts an image into tiles of the encoder's side, in the one of these grids that fits it best.
    pinpoints = [[SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE]]
    images = transformers.LlavaNextImageProcessorPil(
        size={"shortest_edge": SIDE}, crop_size=square, image_grid_pinpoints=pinpoints
    )
    made = transformers.LlavaNextProcessor(images, words, chat_template=LLAVA, **reading)
    return Parts(transformers.LlavaNextConfig(**settings, image_grid_pinpoints=pinpoints), made)


def _gemma3() -> Parts:
    marks: dict[str, Any] = {
        "image_token": "<image_soft_token>",
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
    }
    words: Any = tokenizer(["<start_of_turn>", "<end_of_turn>"], **marks)
    images = transformers.Gemma3ImageProcessorPil(size={"height": SIDE, "width": SIDE})
    # Four image tokens: the model pools the encoder's 4 x 4 patches to 2 x 2.
    made = transformers.Gemma3Processor(images, words, chat_template=GEMMA, image_seq_length=4)
    text = text_model(len(words), head_dim=8, sliding_window=64, pad_token_id=words.pad_token_id)
    text |= {"layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 8}
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config=siglip_vision(),
        mm_tokens_per_image=4,
        boi_token_index=words.convert_tokens_to_ids("<start_of_image>"),
        eoi_token_index=words.convert_tokens_to_ids("<end_of_image>"),
        image_token_index=words.convert_tokens_to_ids("<image_soft_token>"),
    )
    return Parts(config, made)


def _paligemma() -> Parts:
    words = tokenizer(["<image>"])
    images: Any = transformers.SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE})
    # All patches are image tokens: PaliGemma pools none.
    images.image_seq_length = 16
    made = transformers.PaliGemmaProcessor(images, words)
    text = text_model(words.vocab_size, model_type="gemma", head_dim=8, pad_token_id=words.pad_token_id)
    # The processor has added tokens for places in an image (<loc0000> …) and for segments.
    text["vocab_size"] = len(made.tokenizer)
    vision = {**siglip_vision(), "projection_dim": WIDTH, "num_image_tokens": 16}
    config = transformers.PaliGemmaConfig(
        text_config=text,
        vision_config=vision,
        projection_dim=WIDTH,
        image_token_index=made.tokenizer.convert_tokens_to_ids("<image>"),
    )
    return Parts(config, made)


def _blip(kind: str) -> Parts:
    words = tokenizer(["<image>"])
    images = transformers.BlipImageProcessorPil(size={"height": SIDE, "width": SIDE})
    if kind == "instructblip":
        # The second tokenizer is the Q-Former's.
        made: Any = transformers.InstructBlipProcessor(images, words, tokenizer([]), num_query_tokens=4)
        of_config: Any = transformers.InstructBlipConfig
        text = text_model(len(made.tokenizer), model_type="llama", pad_token_id=words.pad_token_id)
    else:
        made, of_config = transformers.Blip2Processor(images, words, num_query_tokens=4), transformers.Blip2Config
        text = text_model(len(made.tokenizer), model_type="opt", ffn_dim=64, pad_token_id=words.pad_token_id)
        text |= {"word_embed_proj_dim": WIDTH}
    vision = {"hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = of_config(
        vision_config={**vision, "image_size": SIDE, "patch_size": 14},
        qformer_config={**vision, "encoder_hidden_size": WIDTH, "vocab_size": len(words)},
        text_config=text,
        num_query_tokens=4,
        image_token_index=made.tokenizer.convert_tokens_to_ids("<image>"),
    )
    return Parts(config, made)


def _aya_vision() -> Parts:
    marks = ["<image>", "<|IMG_PATCH|>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_LINE_BREAK|>"]
    marks += ["TILE_GLOBAL", *(f"TILE_{number}" for number in range(1, 5))]
    words: Any = tokenizer([*marks, "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"])
    images = transformers.GotOcr2ImageProcessorPil(
        size={"height": SIDE, "width": SIDE}, crop_to_patches=True, min_patches=1, max_patches=4
    )
    made = transformers.AyaVisionProcessor(
        images,
        words,
        patch_size=14,
        img_size=SIDE,
        downsample_factor=2,
        chat_template=LLAMA.replace("<|image|>", "<image>"),
    )
    text = text_model(len(words), model_type="cohere2", head_dim=8, sliding_window=64, pad_token_id=words.pad_token_id)
    config = transformers.AyaVisionConfig(
        text_config=text | {"layer_types": ["sliding_attention", "full_attention"]},
        vision_config=siglip_vision(),
        vision_feature_select_strategy="full",
        downsample_factor=2,
        alignment_intermediate_size=64,  # type: ignore[call-arg]
        # Not the token that the template writes, but the one that the processor puts in its place.
        image_token_index=words.convert_tokens_to_ids("<|IMG_PATCH|>"),
    )
    return Parts(config, made)


def _mllama() -> Parts:
    marks = ["<|image|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    words: Any = tokenizer(marks, image_token="<|image|>")
    images = transformers.MllamaImageProcessorPil(size={"height": SIDE, "width": SIDE}, max_image_tiles=4)
    made = transformers.MllamaProcessor(images, words, chat_template=LLAMA)
    vision: dict[str, Any] = {"hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 2}
    vision |= {"num_global_layers": 1}
    vision |= {"attention_heads": 2, "image_size": SIDE, "patch_size": 14, "max_num_tiles": 4}
    # The features of a layer in between are put beside those of the last one.
    vision |= {"intermediate_layers_indices": [0], "vision_output_dim": 2 * WIDTH}
    vision |= {"supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]]}
    # The language model's second layer reads the image, whose features are no tokens of the prompt.
    text = text_model(
        len(words), cross_attention_layers=[1], bos_token_id=1, eos_token_id=2, pad_token_id=words.pad_token_id
    )
    config = transformers.MllamaConfig(
        text_config=text, vision_config=vision, image_token_index=words.convert_tokens_to_ids("<|image|>")
    )
    return Parts(config, made)


_PARTS: dict[str, Callable[[], Parts]] = {
    "qwen2_vl": lambda: _qwen("qwen2_vl"),
    "qwen2_5_vl": lambda: _qwen("qwen2_5_vl"),
    "qwen3_vl": lambda: _qwen("qwen3_vl"),
    "qwen3_5": lambda: _qwen("qwen3_5"),
    "idefics3": lambda: _idefics("idefics3"),
    "smolvlm": lambda: _idefics("smolvlm"),
    "llava": lambda: _llava("llava"),
    "llava_next": lambda: _llava("llava_next"),
    "gemma3": _gemma3,
    "paligemma": _paligemma,
    "instructblip": lambda: _blip("instructblip"),
    "blip2": lambda: _blip("blip2"),
    "mllama": _mllama,
    "aya_vision": _aya_vision,
    "qwen3_vl_moe": lambda: _qwen("qwen3_vl_moe"),
    "qwen3_5_moe": lambda: _qwen("qwen3_5_moe"),
    **MORE_PARTS,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the folder; the exit code."""
    given = parse_arguments(argv)
    try:
        print(make(given.family, given.dest, seed=given.seed))
    except EmacError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    run_program(main)
