"""Log-probabilities of answers, the prompt computed once for all answers to it.

A prompt (an image and hundreds of tokens) is long, its answers are short, and DPO has two of them, a choice among
admissible commands fifty. So the prompts' keys and values are computed once, one row for each question, and every
answer reads those of its question:

    prompts (N, L) ------> keys, values (N, …) --[rows]--> (R, …) <------ answers (R, T), without their last token
       `-> p(first token)                                     `-> p(second token), …, p(end)

Autograd goes through the repeated keys as through any index. Models whose layers keep no keys and values for each token
(Qwen 3.5's linear attention), encoder-decoders, BLIP-2 and InstructBLIP, whose forward pass takes no kept keys with
images, and Llama 3.2 Vision, whose answers read the images beside the prompt's keys, get whole rows instead.

Shapes: N questions, R answers, L tokens of the longest prompt, T of the longest answer, V vocabulary.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from lavis.common.errors import ConfigError
from lavis.models.hf_vlm.chat import ALIGNED, CROSS_MASK, FRAME, Chat, Inputs, joined, on
from lavis.models.student import Question

ROWS = 64  # answers of one pass without gradients: fifty commands' keys of one prompt at a time
_KEPT = ("full_attention", "sliding_attention", "chunked_attention")  # layers whose cache is one key for each token


def shares_prompts(model: PreTrainedModel) -> bool:
    """Whether the keys of a prompt can be kept for several answers."""
    config: Any = model.config
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ())
    taken = inspect.signature(model.forward).parameters
    return (
        kinds <= set(_KEPT)
        and not (config.is_encoder_decoder or text.is_encoder_decoder)
        and "past_key_values" in taken
        and "logits_to_keep" in taken
        and CROSS_MASK not in taken
    )


def summed_logps(
    model: PreTrainedModel,
    prompts: Sequence[Inputs],
    rows: Sequence[int],
    answers: Sequence[Sequence[int]],
    pad_id: int,
    *,
    share: bool = True,
) -> Tensor:
    """Sum of log-probabilities of each answer's tokens, as the answer to prompt `rows[r]`: (R,), float32.

    With `share` the prompts are computed once; without, each answer stands behind its prompt in a row of its own.
    """
    if not share:
        chunk = len(rows) if torch.is_grad_enabled() else ROWS
        parts = [
            _whole_rows(
                model, [prompts[n] for n in rows[start : start + chunk]], answers[start : start + chunk], pad_id
            )
            for start in range(0, len(rows), chunk)
        ]
        return torch.cat(parts)
    batch = on(joined(prompts, pad_id), model.device, model.dtype)  # (N, L), pads on the left: all prompts end together
    prompt_mask = batch["attention_mask"]
    # Positions count a prompt's own tokens. Qwen's images take fewer positions than tokens: its models find them by
    # themselves, and keep the difference of each prompt, (N, 1).
    inner: Any = getattr(model, "model", model)  # Llama 4's parts have no common owner within the model
    finds_positions = hasattr(inner, "rope_deltas")
    own = {} if finds_positions else {"position_ids": (prompt_mask.cumsum(1) - 1).clamp(min=0)}
    out = model(**batch, **own, use_cache=True, logits_to_keep=1)
    first = out.logits[:, -1].float().log_softmax(-1)  # (N, V): the first token follows from the prompt alone
    shift = inner.rope_deltas if finds_positions else None
    chunk = len(rows) if torch.is_grad_enabled() else ROWS
    sums = []
    for start in range(0, len(rows), chunk):
        index = torch.tensor(rows[start : start + chunk], device=model.device)
        read = answers[start : start + chunk]
        length = max(map(len, read))  # ids and mask (R, T), pads on the right
        ids = torch.tensor([[*answer, *[pad_id] * (length - len(answer))] for answer in read], device=model.device)
        mask = torch.tensor([[1] * len(one) + [0] * (length - len(one)) for one in read], device=model.device)
        logps = [first[index].gather(1, ids[:, :1])]  # (R, 1)
        if ids.shape[1] > 1:
            whole = torch.cat([prompt_mask[index], mask[:, :-1]], dim=1)  # (R, L + T - 1)
            places = (whole.cumsum(1) - 1)[:, prompt_mask.shape[1] :]  # (R, T - 1)
            if shift is not None:
                places = (places + shift[index]).expand(3, -1, -1)  # time, height, width: equal for a text
            # Each answer reads the keys of its prompt. The layers are copies, because the forward pass appends to them
            # and the next chunk needs the prompt's alone. Gradients reach the prompt's tensors through the index.
            keys: Any = copy.copy(out.past_key_values)
            keys.layers = [copy.copy(layer) for layer in keys.layers]
            for layer in keys.layers:
                if layer.keys is None:  # a layer that reads the keys of one before it (Gemma 4, `num_kv_shared_layers`)
                    continue
                layer.keys, layer.values = layer.keys[index], layer.values[index]
            logits = model(
                input_ids=ids[:, :-1],
                attention_mask=whole,
                position_ids=places,
                past_key_values=keys,
                use_cache=True,
            ).logits
            logps.append(_picked(logits, ids[:, 1:]))
        sums.append((torch.cat(logps, dim=1) * mask).sum(1))
    return torch.cat(sums)


def _whole_rows(
    model: PreTrainedModel, prompts: Sequence[Inputs], answers: Sequence[Sequence[int]], pad_id: int
) -> Tensor:
    """As `summed_logps`, prompt and answer in one row each, pads on the right."""
    sums = []
    for answer, logits in zip(answers, answer_logits(model, prompts, answers, pad_id), strict=True):
        sums.append(_picked(logits[None], torch.tensor([answer], device=model.device)).sum())
    return torch.stack(sums)


def answer_logits(
    model: PreTrainedModel, prompts: Sequence[Inputs], answers: Sequence[Sequence[int]], pad_id: int
) -> list[Tensor]:
    """What predicts each token of each answer: (T, V), in the model's dtype; prompt and answer are one row."""
    tail_type = int(model.config.model_type == "paligemma")
    batch = on(joined(prompts, pad_id, answers, tail_type=tail_type), model.device, model.dtype)
    logits = model(**batch, use_cache=False).logits  # (R, L + T, V)
    # The token before an answer's first one predicts it.
    starts = [prompt["input_ids"].shape[1] - 1 for prompt in prompts]
    ends = [start + len(answer) for start, answer in zip(starts, answers, strict=True)]
    return [row[start:end] for row, start, end in zip(logits, starts, ends, strict=True)]


def _picked(logits: Tensor, ids: Tensor) -> Tensor:
    """Log-probabilities of `ids` (R, T) under `logits` (R, T, V): (R, T), in float32."""
    return -torch.nn.functional.cross_entropy(logits.float().transpose(1, 2), ids, reduction="none")


@torch.no_grad()
def check_image_tokens(vlm: PreTrainedModel, chat: Chat, path: str) -> None:
    """ConfigError if the vision side makes another number of features than the prompt has tokens for the images.

    Looked at once, with black frames, before anything is played or trained: a processor of another model's folder, or
    more images than the model takes, would else end in a shape error within the first step, or in images that nothing
    reads. ConfigError, too, if the images cannot be read at all, if memory is not enough, or if `model.dtype` is none
    that this device computes in. What else a forward pass raises has nothing to do with images, and is raised as it is.
    """
    asked = f"model.path: {path} with model.images={chat.images}"
    try:
        inputs = chat.read(Question("x", [Image.new("RGB", FRAME)] * chat.images))
    except ConfigError:
        raise
    except (ValueError, RuntimeError, IndexError, KeyError) as error:
        raise ConfigError(f"{asked}: its processor cannot read the images ({_reason(error)})") from error
    except TypeError as error:  # it computes with a setting that is None, as LLaVA's `patch_size` in older folders
        raise ConfigError(
            f"{asked}: its processor lacks a setting to read the images ({_reason(error)}): take the newest "
            "processor_config.json of the model's page"
        ) from error
    tokens = chat.image_tokens(inputs)
    if not tokens:
        raise ConfigError(f"{asked}: the prompt has no image token (config.json says it is {chat.image_id})")
    batch = on(joined([inputs], chat.pad_id), vlm.device, vlm.dtype)
    extra = {"logits_to_keep": 1} if shares_prompts(vlm) else {}
    try:
        vlm.eval()(**batch, **extra)
    except (ValueError, RuntimeError, IndexError, KeyError) as error:
        text = str(error)
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in text:
            raise ConfigError(
                f"{asked}: memory is not enough for one prompt of {inputs['input_ids'].shape[1]} tokens "
                f"({_reason(error)}): set model.dtype=bfloat16 or model.quantization=4bit, or take a smaller model"
            ) from error
        if "not implemented for" in text:  # '"addmm" not implemented for \'Half\'': torch has no kernel for the dtype
            raise ConfigError(
                f"model.dtype={str(vlm.dtype).removeprefix('torch.')} cannot be computed in on {vlm.device.type} "
                f"({_reason(error)}): set model.dtype=float32"
            ) from error
        # Families word a mismatch differently, and some not at all (InstructBLIP: a shape error), so it is counted.
        # One feature of the vision side takes the place of each image token.
        try:
            images = {name: value for name, value in batch.items() if name not in (*ALIGNED, CROSS_MASK)}
            made: Any = vlm.get_image_features(**images)  # type: ignore[operator]
            made = getattr(made, "pooler_output", made)  # a tensor (…, H), or one for each image
            parts = made if isinstance(made, list | tuple) else [made]
            features = sum(part.numel() // part.shape[-1] for part in parts)
        except (ValueError, RuntimeError, IndexError, KeyError) as fault:
            raise ConfigError(
                f"{asked}: the model's vision side cannot read the images ({_reason(fault)}): its processor belongs to "
                "another model, or the model takes fewer images"
            ) from error
        if features == tokens:
            raise
        raise ConfigError(
            f"{asked}: images and image tokens do not match: {features} features of the vision side for {tokens} "
            "tokens of the prompt: take the processor that belongs to the model"
        ) from error
    # BLIP-2's processor writes the tokens of one image, whatever their number, and its model takes the oldest one.
    if chat.images > 1 and tokens == chat.image_tokens(chat.read(Question("x", [Image.new("RGB", FRAME)]))):
        raise ConfigError(
            f"{asked}: a prompt has as many image tokens as with one image, so that the newest would be left out: set "
            "model.images=1"
        )


def _reason(error: Exception) -> str:
    """An error's text as one line."""
    return " ".join(str(error).split())[:160]
