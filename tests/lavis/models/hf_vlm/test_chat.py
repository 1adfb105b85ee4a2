"""Prompt and answer together are what the model's own chat template writes for the whole exchange."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image

from lavis.common.errors import ConfigError
from lavis.datasets.records import Record
from lavis.models import HfVlm
from lavis.models.hf_vlm.chat import Chat, as_frame, joined
from lavis.models.student import Question
from lavis.tasks.student_task import LabelCheck
from tests.lavis.models.hf_vlm.conftest import PROMPTS, frame

pytest.importorskip("peft")


@pytest.mark.parametrize("family", ["qwen2_5_vl", "smolvlm", "llava", "gemma3"])
def test_an_exchange_is_the_templates(family: str, build: Callable[..., HfVlm]) -> None:
    chat = build(family).chat
    inputs = chat.read(Question(PROMPTS[0], (frame(0),)))
    ids = inputs["input_ids"][0].tolist() + chat.answer_ids("go to desk 1", 64)
    content = [{"type": "image"}, {"type": "text", "text": PROMPTS[0].strip()}]
    messages = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": [{"type": "text", "text": "go to desk 1"}]},
    ]
    whole = chat.processor.apply_chat_template(messages, tokenize=False)
    starts = chat.tokenizer.bos_token and whole.startswith(chat.tokenizer.bos_token)
    wanted = chat.processor(text=[whole], images=[[frame(0)]], return_tensors="pt", add_special_tokens=not starts)
    wanted = wanted["input_ids"][0].tolist()
    assert wanted[: len(ids)] == ids  # behind an answer's end a template may write a line's end


def test_an_answer_is_cut_before_its_end(build: Callable[..., HfVlm]) -> None:
    model = build(max_output_txt_len=4)
    ids = model.chat.answer_ids("go to desk 1 and then to another one", 4)
    assert len(ids) == 4 and ids[-1] == model.chat.end_id
    assert model.answer_tokens("go to desk 1 and then to another one") == 4 == model.max_answer_tokens
    assert model.chat.decode([*model.chat.answer_ids("look", 64), 5, 6]) == "look"


# As the "Thinking" models' templates: the prompt begins the thoughts, and an answer without thoughts ends them first.
THINKING = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' %}<think>\n\n</think>\n\n{% endif %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
SWITCHED = THINKING.removesuffix("{% endif %}") + (
    "{% if enable_thinking is defined and not enable_thinking %}{{ '\n</think>\n\n' }}{% endif %}{% endif %}"
)


@pytest.mark.parametrize(("template", "joint"), [(THINKING, "</think>"), (SWITCHED, "")])
def test_the_end_of_thoughts_is_no_part_of_an_answer(template: str, joint: str, build: Callable[..., HfVlm]) -> None:
    processor, config = build().chat.processor, build().base.config
    processor.chat_template = template
    chat = Chat(processor, config, images=1, longest=512)
    ids = chat.answer_ids("go to desk 1", 64)
    written = chat.tokenizer.decode(chat.read(Question("x", (frame(0),)))["input_ids"][0].tolist() + ids)
    assert written.endswith("<think>\n\n</think>\n\ngo to desk 1<|im_end|>")
    assert chat.tokenizer.decode(ids[:-1]).strip() == f"{joint}\n\ngo to desk 1".strip()
    assert chat.decode(ids) == "go to desk 1" == chat.decode(chat.encode("go to desk 1"))
    assert chat.switches == ({} if joint else {"enable_thinking": False})


# As LLaVA's own: all images of a turn, then its texts.
IMAGES_FIRST = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] if part['type'] == 'image' %}<|image_pad|>{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_template_that_writes_images_first_has_none_behind_the_text(build: Callable[..., HfVlm]) -> None:
    processor, config = build().chat.processor, build().base.config
    processor.chat_template = IMAGES_FIRST
    assert Chat(processor, config, images=1, longest=512)
    with pytest.raises(ConfigError, match="image_last: the model's chat template writes a turn's images before its"):
        Chat(processor, config, images=1, longest=512, image_last=True)


def test_special_tokens_in_a_text_are_cut_as_words(build: Callable[..., HfVlm]) -> None:
    chat = build().chat
    question = Question(f"{chat.image_token * 30} look", (frame(0),))
    words = chat.image_tokens(chat.read(question))
    chat.longest = chat.overhead(question) + 40
    inputs = chat.read(question)
    assert inputs["input_ids"].shape[1] == chat.longest and chat.image_tokens(inputs) == words
    assert chat.turn(question)[1].endswith("look")


def test_labels_are_counted_as_they_are_learned(build: Callable[..., HfVlm]) -> None:
    model = build()
    model.chat.processor.chat_template = THINKING
    model.chat = Chat(model.chat.processor, model.base.config, images=1, longest=512)
    needed = model.answer_tokens("go to desk 1")  # with the end of thoughts, and its own end
    assert needed > len(model.encode("go to desk 1")) + 1
    record = Record(frame(0), "", "go to desk 1")
    for limit in (needed, needed - 1):
        model.max_output_txt_len = limit
        check = pickle.loads(pickle.dumps(LabelCheck(model.encode_answer, model.max_answer_tokens, False)))  # noqa: S301
        assert check(record) == "" if limit == needed else f"has {needed} tokens with its end, over" in check(record)


def test_pads_stand_left_of_prompts_and_right_of_answers(build: Callable[..., HfVlm]) -> None:
    chat = build().chat
    parts = [chat.read(Question(text, (frame(0),))) for text in (PROMPTS[0], "x")]
    acting = joined(parts, chat.pad_id)
    learning = joined(parts, chat.pad_id, [[7, 8], [9]])
    short = parts[1]["input_ids"].shape[1]
    assert acting["attention_mask"][1].tolist() == [0] * (acting["input_ids"].shape[1] - short) + [1] * short
    assert learning["attention_mask"][1].tolist() == [1] * (short + 1) + [0] * (
        learning["input_ids"].shape[1] - short - 1
    )
    assert learning["input_ids"][0, -2:].tolist() == [7, 8]
    assert acting["pixel_values"].shape[0] == sum(part["pixel_values"].shape[0] for part in parts)


def test_an_image_that_the_processor_refuses_is_named(build: Callable[..., HfVlm]) -> None:
    with pytest.raises(ConfigError, match="refuses a question with an image of 3000 x 1 pixels: .*aspect ratio"):
        build("qwen2_5_vl").chat.read(Question(PROMPTS[0], (Image.new("RGB", (3000, 1)),)))


def test_only_frames_are_read() -> None:
    assert isinstance(as_frame(frame(0)), Image.Image) and isinstance(as_frame(torch.tensor(frame(0))), Image.Image)
    with pytest.raises(ValueError, match="expected a PIL image or a uint8 array"):
        as_frame(torch.zeros(3, 8, 8))
    with pytest.raises(ConfigError, match=r"leave out datasets.alfworld_cap.vis_processor"):
        as_frame(np.zeros((3, 8, 8), np.float32))
