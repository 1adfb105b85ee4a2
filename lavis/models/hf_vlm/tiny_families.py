"""Tiny models of the families that `tiny` does not build itself: InternVL, GLM-4V, Gemma 4, DeepSeek-VL and others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers

from lavis.models.hf_vlm.loading import without_videos
from lavis.models.hf_vlm.tiny_parts import (
    CHATML,
    GEMMA,
    IDEFICS,
    LLAVA,
    SIDE,
    VISION,
    WIDTH,
    Parts,
    clip_vision,
    siglip_vision,
    text_model,
    tokenizer,
)

_SQUARE = {"height": SIDE, "width": SIDE}
# The grids of tiles into which an image may be cut.
_GRIDS = [[SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE]]
_MARKED = "<|vision_start|><|image_pad|><|vision_end|>"  # what CHATML writes for an image
_GLM = (
    "[gMASK]<sop>{% for message in messages %}<|{{ message['role'] }}|>\n{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|begin_of_image|><|image|><|end_of_image|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def _turns(*marks: str, **named: str) -> Any:
    """A tokenizer for templates in the form of CHATML."""
    return tokenizer([*marks, "<|im_start|>", "<|im_end|>"], eos="<|im_end|>", bos=None, **named)


def _internvl() -> Parts:
    words = _turns(
        start_image_token="<img>",
        end_image_token="</img>",
        context_image_token="<IMG_CONTEXT>",
        video_token="<video>",
    )
    images = transformers.GotOcr2ImageProcessorPil(size=_SQUARE, crop_to_patches=True, min_patches=1, max_patches=4)
    # 16 patches of a tile, of which pixel shuffle joins four in one token.
    made = without_videos(transformers.InternVLProcessor)(
        image_processor=images,
        tokenizer=words,
        image_seq_length=4,
        chat_template=CHATML.replace(_MARKED, "<IMG_CONTEXT>\n"),
    )
    config = transformers.InternVLConfig(
        text_config=text_model(len(words), model_type="qwen2", pad_token_id=words.pad_token_id),
        vision_config={**VISION, "image_size": [SIDE, SIDE], "patch_size": [14, 14]},
        image_token_id=words.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
        tie_word_embeddings=False,
    )
    return Parts(config, made)


def _llava_onevision() -> Parts:
    words = _turns("<image>", "<video>")
    made = without_videos(transformers.LlavaOnevisionProcessor)(
        image_processor=transformers.LlavaOnevisionImageProcessorPil(size=_SQUARE, image_grid_pinpoints=_GRIDS),
        tokenizer=words,
        num_image_tokens=16,
        vision_feature_select_strategy="full",
        chat_template=CHATML.replace(_MARKED, "<image>\n"),
    )
    config = transformers.LlavaOnevisionConfig(
        text_config=text_model(len(words), model_type="qwen2", pad_token_id=words.pad_token_id),
        vision_config=siglip_vision(),
        image_token_index=words.convert_tokens_to_ids("<image>"),
        video_token_index=words.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=_GRIDS,
    )
    return Parts(config, made)


def _llava_next_video() -> Parts:
    words: Any = tokenizer(["<image>", "<video>"])
    # The class token is left out of the features ("default"), and counted here.
    made = without_videos(transformers.LlavaNextVideoProcessor)(
        image_processor=transformers.LlavaNextImageProcessorPil(
            size={"shortest_edge": SIDE}, crop_size=_SQUARE, image_grid_pinpoints=_GRIDS
        ),
        tokenizer=words,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=LLAVA,
    )
    config = transformers.LlavaNextVideoConfig(
        text_config=text_model(len(words), model_type="llama", pad_token_id=words.pad_token_id),
        vision_config=clip_vision(),
        vision_feature_select_strategy="default",
        image_token_index=words.convert_tokens_to_ids("<image>"),
        video_token_index=words.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=_GRIDS,
    )
    return Parts(config, made)


def _vipllava() -> Parts:
    words: Any = tokenizer(["<image>"])
    made = transformers.LlavaProcessor(
        transformers.CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=_SQUARE),
        words,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=LLAVA,
    )
    config = transformers.VipLlavaConfig(
        text_config=text_model(len(words), model_type="llama", pad_token_id=words.pad_token_id),
        vision_config=clip_vision(),
        image_token_index=words.convert_tokens_to_ids("<image>"),
        vision_feature_layer=[-1, -2],  # features of several layers stand beside one another
        image_seq_length=16,
    )
    return Parts(config, made)


def _ovis2() -> Parts:
    indicators = ["<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>"]
    words = _turns("<image>", "<IMG_ATOM>", *indicators)
    images = transformers.Ovis2ImageProcessorPil(size=_SQUARE, crop_to_patches=True, max_patches=4)
    made = transformers.Ovis2Processor(
        images, words, image_seq_length=4, chat_template=CHATML.replace(_MARKED, "<image>\n")
    )
    # An image's tokens are mixtures of the rows of a table, and the marks around them are rows of it, too.
    config = transformers.Ovis2Config(
        text_config=text_model(len(words), model_type="qwen2", pad_token_id=words.pad_token_id),
        vision_config={**VISION, "hidden_stride": 2, "vocab_size": 48, "num_visual_indicator_tokens": 5},
        # Not the token that the template writes, but the one that the processor puts in its place.
        image_token_id=words.convert_tokens_to_ids("<IMG_ATOM>"),
        visual_indicator_token_ids=words.convert_tokens_to_ids(indicators),
        vocab_size=len(words),
        hidden_size=WIDTH,
        tie_word_embeddings=False,
    )
    return Parts(config, made)


def _idefics2() -> Parts:
    marks = ["<|im_start|>", "<image>", "<fake_token_around_image>", "<end_of_utterance>"]
    words: Any = tokenizer(marks, eos="<end_of_utterance>", bos=None)
    images = transformers.Idefics2ImageProcessorPil(
        size={"shortest_edge": SIDE, "longest_edge": SIDE}, do_image_splitting=False
    )
    made = transformers.Idefics2Processor(images, words, image_seq_len=4, chat_template=IDEFICS)
    resampler = {"resampler_n_latents": 4, "resampler_depth": 1, "resampler_n_heads": 2, "resampler_head_dim": 16}
    config = transformers.Idefics2Config(
        text_config=text_model(len(words), model_type="mistral", sliding_window=64, pad_token_id=words.pad_token_id),
        vision_config=VISION,
        perceiver_config={**resampler, "hidden_size": WIDTH, "num_key_value_heads": 1},
        image_token_id=words.convert_tokens_to_ids("<image>"),
    )
    return Parts(config, made)


def _deepseek(kind: str) -> Parts:
    words: Any = tokenizer([], image_token="<image_placeholder>")
    template = LLAVA.replace("<image>", "<image_placeholder>")
    settings: dict[str, Any] = {
        "text_config": text_model(len(words), model_type="llama", pad_token_id=words.pad_token_id),
        "image_token_id": words.image_token_id,
        "tie_word_embeddings": False,
    }
    if kind == "deepseek_vl":
        images: Any = transformers.DeepseekVLImageProcessorPil(size=_SQUARE, min_size=14)
        made: Any = transformers.DeepseekVLProcessor(images, words, num_image_tokens=16, chat_template=template)
        return Parts(transformers.DeepseekVLConfig(**settings, vision_config=siglip_vision()), made)
    if kind == "deepseek_vl_hybrid":
        # A second encoder (SAM's) reads the image in a higher resolution.
        images = transformers.DeepseekVLHybridImageProcessorPil(
            size=_SQUARE, high_res_size={"height": 64, "width": 64}, min_size=14
        )
        made = transformers.DeepseekVLHybridProcessor(images, words, num_image_tokens=16, chat_template=template)
        fine: dict[str, Any] = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2}
        fine |= {
            "output_channels": 16,
            "image_size": 64,
            "patch_size": 4,
            "window_size": 4,
            "num_pos_feats": 8,
            "mlp_dim": 64,
        }
        config = transformers.DeepseekVLHybridConfig(
            **settings, vision_config=siglip_vision(), high_res_vision_config={**fine, "global_attn_indexes": [1]}
        )
        return Parts(config, made)
    words = tokenizer([], image_token="<image_placeholder>", boi_token="<begin_of_image>", eoi_token="<end_of_image>")
    settings["text_config"]["vocab_size"], settings["image_token_id"] = len(words), words.image_token_id
    images = transformers.JanusImageProcessorPil(size=_SQUARE, min_size=14)
    made = transformers.JanusProcessor(images, words, num_image_tokens=16, chat_template=template)
    # The encoder that makes images is part of the model, and of no use here.
    codes: dict[str, Any] = {"embed_dim": 4, "num_embeddings": 16, "latent_channels": 8, "base_channels": 32}
    codes |= {
        "num_res_blocks": 1,
        "channel_multiplier": [1, 1],
        "num_patches": 4,
        "projection_dim": WIDTH,
        "image_token_embed_dim": WIDTH,
    }
    seeing: dict[str, Any] = {key: value for key, value in VISION.items() if key != "intermediate_size"}
    seeing |= {"projection_dim": WIDTH, "num_image_tokens": 16, "mlp_ratio": 2.0}
    return Parts(transformers.JanusConfig(**settings, vision_config=seeing, vq_config=codes), made)


def _gemma4() -> Parts:
    marks: dict[str, Any] = {"image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>"}
    # Its processor wants a token for sounds, too.
    marks |= {"audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>"}
    words: Any = tokenizer(["<start_of_turn>", "<end_of_turn>"], **marks)
    made: Any = without_videos(transformers.Gemma4Processor)(
        # 70 image tokens at most, fewer is not among the choices that there are; 8 x 8 groups of 2 x 2 patches are 64.
        image_processor=transformers.Gemma4ImageProcessorPil(patch_size=14, max_soft_tokens=70, pooling_kernel_size=2),
        tokenizer=words,
        image_seq_length=70,
        chat_template=GEMMA.replace("<start_of_image>", "<|image|>"),
    )
    size = len(made.tokenizer)  # the processor has added a token for videos
    text = text_model(size, head_dim=8, global_head_dim=8, sliding_window=64, pad_token_id=words.pad_token_id)
    # As the small ones (E2B): the last layer reads the keys of the one before, and each layer has own embeddings.
    text |= {"num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "full_attention"]}
    text |= {"num_kv_shared_layers": 1, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": size}
    # As the large ones: an image's tokens read one another in both directions.
    text |= {"use_bidirectional_attention": "vision"}
    vision = {key: value for key, value in VISION.items() if key != "image_size"}
    vision |= {"num_key_value_heads": 2, "head_dim": 16, "pooling_kernel_size": 2, "position_embedding_size": 64}
    number = made.tokenizer.convert_tokens_to_ids
    config = transformers.Gemma4Config(
        text_config=text,
        vision_config=vision,
        audio_config=None,
        image_token_id=number("<|image|>"),
        boi_token_id=number("<|image>"),
        eoi_token_id=number("<image|>"),
        audio_token_id=number("<|audio|>"),
        boa_token_id=number("<|audio>"),
        eoa_token_index=number("<audio|>"),
        video_token_id=number("<|video|>"),
    )
    return Parts(config, made)


def _glm(kind: str) -> Parts:
    named = {"image": "<|image|>", "image_start": "<|begin_of_image|>", "image_end": "<|end_of_image|>"}
    named |= {"video": "<|video|>", "video_start": "<|begin_of_video|>", "video_end": "<|end_of_video|>"}
    marks = ["[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|endoftext|>", *named.values()]
    words = tokenizer(marks, eos="<|endoftext|>", bos=None)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
    text = text_model(len(words), pad_token_id=words.pad_token_id, eos_token_id=words.eos_token_id)
    text |= {"rope_parameters": {**rope, "partial_rotary_factor": 1.0}}
    vision = {"depth": 2, "hidden_size": WIDTH, "num_heads": 2, "image_size": SIDE, "patch_size": 14}
    vision |= {"out_hidden_size": WIDTH, "intermediate_size": 64}
    config: Any = {
        "glm4v": transformers.Glm4vConfig,
        "glm4v_moe": transformers.Glm4vMoeConfig,
        "glm46v": transformers.Glm46VConfig,
        "glm_ocr": transformers.GlmOcrConfig,
    }[kind]
    if kind == "glm4v_moe":
        # The first layer has one network, the second four experts, of which two answer to a token, and one for all.
        text |= {"moe_intermediate_size": 32, "num_experts_per_tok": 2, "n_routed_experts": 4, "head_dim": 8}
        text |= {"first_k_dense_replace": 1}
    first = kind.startswith("glm4v")
    images: Any = transformers.Glm4vImageProcessorPil if first else transformers.Glm46VImageProcessorPil
    # Transformers has no processor for GLM-OCR by its model's type: its folder names the class.
    processor: Any = transformers.Glm4vProcessor if first else transformers.Glm46VProcessor
    made = without_videos(processor)(
        image_processor=images(
            patch_size=14, merge_size=2, size={"shortest_edge": 2 * SIDE * SIDE, "longest_edge": 4 * SIDE * SIDE}
        ),
        tokenizer=words,
        chat_template=_GLM,
    )
    ids = {f"{name}_token_id": words.convert_tokens_to_ids(token) for name, token in named.items()}
    return Parts(config(text_config=text, vision_config=vision, **ids, tie_word_embeddings=False), made)


def _aria() -> Parts:
    words: Any = _turns(image_token="<image>")
    # Its images have one of two sizes, and a number of tokens for each.
    made = transformers.AriaProcessor(
        transformers.AriaImageProcessorPil(),
        words,
        size_conversion={490: 4, 980: 4},
        chat_template=CHATML.replace(_MARKED, "<image>\n"),
    )
    text = text_model(len(words), pad_token_id=words.pad_token_id, moe_num_experts=4, moe_topk=2)
    text |= {"moe_num_shared_experts": 1}
    config = transformers.AriaConfig(
        text_config=text,
        vision_config={**VISION, "model_type": "idefics3_vision", "image_size": 980, "patch_size": 140},
        image_token_index=words.image_token_id,
        projector_patch_to_query_dict={49: 4},
    )
    return Parts(config, made)


def _video_llama_3() -> Parts:
    marks = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    words = _turns(*marks)
    images = transformers.VideoLlama3ImageProcessorPil(
        patch_size=14, merge_size=2, size={"shortest_edge": SIDE * SIDE, "longest_edge": 2 * SIDE * SIDE}
    )
    made = without_videos(transformers.VideoLlama3Processor)(
        image_processor=images, tokenizer=words, chat_template=CHATML
    )
    config = transformers.VideoLlama3Config(
        text_config=text_model(len(words), model_type="qwen2", pad_token_id=words.pad_token_id),
        vision_config={key: value for key, value in VISION.items() if key != "image_size"},
        image_token_id=words.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=words.convert_tokens_to_ids("<|video_pad|>"),
    )
    return Parts(config, made)


MORE_PARTS: dict[str, Callable[[], Parts]] = {
    "internvl": _internvl,
    "llava_onevision": _llava_onevision,
    "llava_next_video": _llava_next_video,
    "vipllava": _vipllava,
    "ovis2": _ovis2,
    "idefics2": _idefics2,
    "deepseek_vl": lambda: _deepseek("deepseek_vl"),
    "deepseek_vl_hybrid": lambda: _deepseek("deepseek_vl_hybrid"),
    "janus": lambda: _deepseek("janus"),
    "gemma4": _gemma4,
    "glm4v": lambda: _glm("glm4v"),
    "glm4v_moe": lambda: _glm("glm4v_moe"),
    "glm46v": lambda: _glm("glm46v"),
    "glm_ocr": lambda: _glm("glm_ocr"),
    "aria": _aria,
    "video_llama_3": _video_llama_3,
}
