"""From a question to a model's inputs, and from an answer to its tokens, as the model's own chat template has them.

    <user> [image …] room, task, memories, steps <assistant> ANSWER <end of turn>
    `----------------- the prompt -------------------------'`------ the answer --'

With `image_last` the images stand behind the steps.
What joins prompt and answer, and what ends an answer, is found out by writing a whole exchange through the template.
Models without a template (InstructBLIP, PaliGemma) read image and text as their processor joins them.

Shapes: L tokens of one prompt, image tokens counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import PretrainedConfig, ProcessorMixin

from lavis.common.errors import ConfigError, first_sentence
from lavis.models.hf_vlm.loading import image_token, image_token_id
from lavis.models.student import Question
from lavis.processors.blip_processors import as_image

Inputs = dict[str, Tensor]
Part = dict[str, Any]  # of a message: {"type": "image"}, or {"type": "text", "text": …}
FRAME = (300, 300)  # width and height of ALFWorld's frames, which a budget counts before any frame was read
ALIGNED = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")  # (1, L) each, as far as there are any
# Which tiles of which image a token reads, (1, L, images, tiles): of Llama 3.2 Vision, whose image is one token.
CROSS_MASK = "cross_attention_mask"
_PROBE = "go to desk 1"  # stands for any answer while the template's own words are found out
_TAIL = 12  # characters before an answer that its first token may depend on
_KEPT = 64  # sizes of frames whose number of tokens is remembered
_TRIES = 8  # to shorten a text: its number of tokens changes a little with where it is cut


class Chat:
    """A model's processor and its chat template. `images`: how many frames a prompt has at most."""

    def __init__(
        self,
        processor: ProcessorMixin,
        config: PretrainedConfig,
        *,
        images: int,
        longest: int,
        cuts: bool = True,
        image_last: bool = False,
    ) -> None:
        """`longest`: most tokens of a prompt; `cuts`: a longer one is cut, else refused.

        ConfigError if the template has no place for an image, or with `image_last` none behind the text.
        """
        self.cuts, self.image_last = cuts, image_last
        self.processor: Any = processor
        self.tokenizer: Any = processor.tokenizer
        self.images, self.longest = images, longest
        self._largest = FRAME  # of the frames so far
        self._overheads: dict[tuple[tuple[int, int], ...], int] = {}  # tokens around the text by the frames' sizes
        self.image_token, self.image_id = image_token(processor), image_token_id(config)
        template = getattr(processor, "chat_template", None) or self.tokenizer.chat_template
        self.has_template = bool(template)
        # A template with this switch ends the thoughts in the prompt already: an answer is a command, and no tokens of
        # it go into them.
        self.switches = {"enable_thinking": False} if "enable_thinking" in str(template) else {}
        # Longest first: `<|im_start|>` may contain another special token, which must not be broken up before it. Single
        # characters are left alone, because the text may need them.
        special = {str(token) for token in (*self.tokenizer.all_special_tokens, self.image_token)}
        special |= {str(t) for t in self.tokenizer.added_tokens_decoder.values() if getattr(t, "special", False)}
        self._special = sorted((token for token in special if len(token) > 1), key=len, reverse=True)
        joint, self.end_id, tail = self._ends()
        self.encode_answer = EncodeAnswer(self.tokenizer, joint, tail)
        self._joint = self.tokenizer.decode(self.encode(joint), skip_special_tokens=True).strip()
        self.pad_id = self.end_id if self.tokenizer.pad_token_id is None else self.tokenizer.pad_token_id

    # ---- prompts ----------------------------------------------------------------------------------------------------

    def read(self, question: Question) -> Inputs:
        """The model's inputs for one question: `ALIGNED` of shape (1, L), and what the image became.

        A prompt that is longer than `longest` loses the beginning of its text, never an image token; ConfigError if
        prompts are not cut, for a question without images, or with more than the model was set up for.
        """
        return self._fitted(question)[2]

    def turn(self, question: Question) -> tuple[list[Image.Image], str]:
        """The question as one user turn: its images and its text, as `read` would put them into the template.

        ConfigError if the model has no chat template.
        """
        if not self.has_template:
            raise ConfigError("model.path: the model has no chat template, so a server cannot be asked in turns")
        frames, text, _ = self._fitted(question)
        return frames, self._plain(text)

    def _fitted(self, question: Question) -> tuple[list[Image.Image], str, Inputs]:
        """Images, text and inputs of a question that is no longer than `longest`."""
        if not question.images:
            raise ValueError("hf_vlm reads images, and a question came without: give samples['image']")
        if len(question.images) > self.images:
            raise ConfigError(
                f"a question has {len(question.images)} images, and the model was set up for {self.images}: set "
                f"model.images={len(question.images)}"
            )
        frames = [as_frame(image) for image in question.images]
        self._largest = max(self._largest, *(frame.size for frame in frames), key=math.prod)
        text = self._plain(question.prompt)  # a special token is one token, and several once it is broken up
        inputs = self._inputs(text, frames)
        for _ in range(_TRIES):
            if (excess := inputs["input_ids"].shape[1] - self.longest) <= 0:
                break
            if not self.cuts:
                raise ConfigError(
                    f"the prompt has {self.longest + excess} tokens, the model reads {self.longest} (model.max_txt_len)"
                )
            ids = self.encode(text)[excess:]
            if not ids:
                raise ConfigError(
                    f"model.max_txt_len={self.longest}: {inputs['input_ids'].shape[1]} tokens are needed for the "
                    "images and the chat's own words alone"
                )
            text = self.tokenizer.decode(ids)
            inputs = self._inputs(text, frames)
        return frames, text, inputs

    def overhead(self, question: Question) -> int:
        """Tokens of a prompt that are no text of its own; without images, of `images` frames as large as any so far."""
        sizes = tuple(as_frame(image).size for image in question.images) or (self._largest,) * self.images
        count = self._overheads.get(sizes)
        if count is None:
            blanks = [Image.new("RGB", size) for size in sizes]
            count = self._inputs("", blanks)["input_ids"].shape[1]
            if len(self._overheads) >= _KEPT:
                self._overheads.clear()
            self._overheads[sizes] = count
        return count

    def image_tokens(self, inputs: Inputs) -> int:
        """How many of the prompt's tokens are the image's."""
        return int((inputs["input_ids"] == self.image_id).sum())

    def _inputs(self, text: str, frames: Sequence[Image.Image]) -> Inputs:
        written = self._write(self._plain(text), len(frames))
        # A template writes the first token of a text itself; the tokenizer must not write it once more.
        starts = self.tokenizer.bos_token is not None and written.startswith(self.tokenizer.bos_token)
        try:
            made = self.processor(
                text=[written], images=[list(frames)], return_tensors="pt", add_special_tokens=not starts
            )
        except ValueError as error:  # Qwen's takes no image that is 200 times as wide as high
            sizes = ", ".join(f"{frame.width} x {frame.height}" for frame in frames)
            raise ConfigError(
                f"the model's processor refuses a question with an image of {sizes} pixels: {first_sentence(error)}"
            ) from error
        return {key: value for key, value in made.items() if isinstance(value, Tensor) and key != "labels"}

    def _plain(self, text: str) -> str:
        """The text with a blank inside each special token: a game's words must not end a turn or count as an image."""
        for token in self._special:
            text = text.replace(token, f"{token[0]} {token[1:]}")
        return text.strip()

    def arranged(self, images: Sequence[Part], text: Part) -> list[Part]:
        """A user turn's parts in the order that the model reads."""
        return [text, *images] if self.image_last else [*images, text]

    def _write(self, text: str, images: int, answer: str | None = None) -> str:
        """The exchange as one text: the images, the user's text, and the answer or the place where it begins."""
        if not self.has_template:
            # Who says what an image's mark becomes wants the mark in the text (PaliGemma). Who has that method from the
            # base class, where it raises, joins image and text without a mark (BLIP-2, InstructBLIP).
            kinds = (type(self.processor), ProcessorMixin)
            own, inherited = (getattr(kind, "replace_image_token", None) for kind in kinds)
            before = "" if own is inherited else self.image_token * images
            return before + text + ("" if answer is None else " " + answer)
        content = self.arranged([{"type": "image"}] * images, {"type": "text", "text": text})
        messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
        if answer is not None:
            messages.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
        owner = self.processor if getattr(self.processor, "chat_template", None) else self.tokenizer
        try:
            return owner.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=answer is None, **self.switches
            )
        except Exception as error:  # jinja's kinds, for a template that takes no lists
            raise ConfigError(f"model.path: its chat template cannot write an image and a text ({error})") from error

    # ---- answers ----------------------------------------------------------------------------------------------------

    def answer_ids(self, answer: str, longest: int) -> list[int]:
        """The tokens of an answer as they follow a prompt, and its end; at most `longest`."""
        return self.encode_answer(answer)[: longest - 1] + [self.end_id]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of new tokens up to the answer's end, without what joins it to the prompt."""
        kept = list(ids)
        kept = kept[: kept.index(self.end_id)] if self.end_id in kept else kept
        text = self.tokenizer.decode(kept, skip_special_tokens=True).strip()
        # A template that begins an answer with "<think>" has "</think>" in the joint, which is learned with the answer.
        return text.removeprefix(self._joint).strip()

    def encode(self, text: str) -> list[int]:
        """Token ids without special ones."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _ends(self) -> tuple[str, int, str]:
        """What joins prompt and answer, the token that ends an answer, and the prompt's last characters."""
        asked = self._write("x", self.images)
        if not self.has_template:
            if self.image_last:
                raise ConfigError("model.image_last: a model without chat template reads its images before the text")
            return "", self._eos(), ""
        begin_of_image = getattr(self.processor, "boi_token", None)  # what Gemma's template writes for an image
        if self.image_token not in asked and not (begin_of_image and begin_of_image in asked):
            raise ConfigError(
                "model.path: the chat template has no place for an image: take the model's own chat_template.jinja"
            )
        # Some templates write all images of a turn first.
        if self.image_last and (probed := self._write(_PROBE, self.images)).find(_PROBE) > max(
            probed.find(mark) for mark in (self.image_token, begin_of_image) if mark
        ):
            raise ConfigError("model.image_last: the model's chat template writes a turn's images before its text")
        # The same exchange with an answer: what stands between the prompt and it, and what follows it, is the
        # template's.
        whole = self._write("x", self.images, _PROBE)
        begin = whole.rindex(_PROBE) if _PROBE in whole else len(whole)
        joint = whole[len(asked) : begin] if whole.startswith(asked) else ""
        after = self.encode(whole[begin + len(_PROBE) :])
        special = set(self.tokenizer.all_special_ids) | {
            number for number, token in self.tokenizer.added_tokens_decoder.items() if getattr(token, "special", False)
        }
        return joint, next((i for i in after if i in special), self._eos()), asked[-_TAIL:]

    def _eos(self) -> int:
        if self.tokenizer.eos_token_id is None:
            raise ConfigError("model.path: its tokenizer has no token that ends a text (eos_token)")
        return self.tokenizer.eos_token_id


class Encode:
    """From a text to its token ids, without special tokens; pickled with the tokenizer alone."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        """The ids."""
        return self._tokenizer.encode(text, add_special_tokens=False)


class EncodeAnswer:
    """From an answer to its token ids as they follow a prompt, without its end; pickled with the tokenizer alone.

    `joint` joins prompt and answer, `tail` are the prompt's last characters.
    """

    def __init__(self, tokenizer: Any, joint: str, tail: str) -> None:
        self._encode, self._joint, self._tail = Encode(tokenizer), joint, tail

    def __call__(self, answer: str) -> list[int]:
        """The ids."""
        joined = self._joint + answer.strip()
        # A tokenizer may join the answer's first letters with what stands before them, and sentencepiece marks the
        # beginning of a text: so the answer is encoded behind the prompt's last characters.
        before, whole = self._encode(self._tail), self._encode(self._tail + joined)
        return whole[len(before) :] if whole[: len(before)] == before else self._encode(joined)


def as_frame(image: Any) -> Image.Image:
    """A PIL image of a uint8 frame (H, W, 3); ConfigError for anything else, such as another model's pixels."""
    try:
        return as_image(image.cpu().numpy() if isinstance(image, Tensor) else image)
    except ValueError as error:
        own = "hf_vlm has a processor of its own: leave out datasets.alfworld_cap.vis_processor"
        raise ConfigError(f"{error} ({own})") from error


def joined(
    parts: Sequence[Inputs], pad_id: int, tails: Sequence[Sequence[int]] | None = None, *, tail_type: int = 0
) -> Inputs:
    """The inputs of N questions as one batch: pads on the left, or with `tails` (answers) behind the prompts, right.

    `tail_type` is what an answer's tokens are called in `token_type_ids`: 0, but 1 for PaliGemma, whose prompts read
    themselves in both directions and whose answers do not.
    """
    ends = [list(tail) for tail in tails] if tails is not None else [[] for _ in parts]
    length = max(part["input_ids"].shape[1] + len(end) for part, end in zip(parts, ends, strict=True))
    kinds = {"attention_mask": 1, "token_type_ids": tail_type}
    batch: Inputs = {}
    for key in [key for key in ALIGNED if key in parts[0]]:
        rows = []
        for part, end in zip(parts, ends, strict=True):
            filling = pad_id if key == "input_ids" else 0
            tail = end if key == "input_ids" else [kinds.get(key, 0)] * len(end)
            row = torch.cat([part[key][0], torch.tensor(tail, dtype=part[key].dtype)])
            pads = row.new_full((length - len(row),), filling)
            rows.append(torch.cat([row, pads] if tails is not None else [pads, row]))
        batch[key] = torch.stack(rows)
    if CROSS_MASK in parts[0]:
        images = max(part[CROSS_MASK].shape[2] for part in parts)
        tiles = parts[0][CROSS_MASK].shape[3]
        batch[CROSS_MASK] = parts[0][CROSS_MASK].new_zeros((len(parts), length, images, tiles))
        for number, (part, end) in enumerate(zip(parts, ends, strict=True)):
            mask = part[CROSS_MASK][0]
            # An answer reads what the prompt's last token reads, as in Transformers' own `generate`.
            mask = torch.cat([mask, mask[-1:].expand(len(end), -1, -1)])
            first = 0 if tails is not None else length - len(mask)
            batch[CROSS_MASK][number, first : first + len(mask), : mask.shape[1]] = mask
    # What the images became has no row for each token: the questions' tensors come behind one another in dimension 0.
    # The other dimensions (as many tiles as an image has) are filled up with zeros, which models take for padding.
    for key in [key for key in parts[0] if key not in (*ALIGNED, CROSS_MASK)]:
        values = [part[key] for part in parts]
        sizes = [max(value.shape[d] for value in values) for d in range(1, values[0].dim())]
        filled = []
        for value in values:
            whole = value.new_zeros((value.shape[0], *sizes))
            whole[tuple(slice(size) for size in value.shape)] = value
            filled.append(whole)
        batch[key] = torch.cat(filled)
    return batch


def on(inputs: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype) -> Inputs:
    """The inputs on `device`, numbers with a point in the model's dtype."""
    return {k: v.to(device, dtype if v.is_floating_point() else None) for k, v in inputs.items()}
