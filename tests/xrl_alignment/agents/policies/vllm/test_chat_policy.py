"""A model of the hub in an inference engine, asked as in a chat, compared with the same model in this process.

`SmallChatEngine` has the folder's own processor and template through Transformers; the last test asks vLLM itself.
"""

from __future__ import annotations

import base64
import copy
import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from lavis.common import devices
from lavis.common.errors import ConfigError
from lavis.models.blip2_models.adapters import is_adapter
from lavis.models.hf_vlm import tiny
from lavis.models.hf_vlm.loading import load_config, load_processor
from tests.xrl_alignment.agents.policies.vllm.cases import CPU, inputs
from tests.xrl_alignment.agents.policies.vllm.small_engine import SmallEngine
from tests.xrl_alignment.agents.policies.vllm.vllm_server import VllmServer
from xrl_alignment.agents.policies.in_process import InProcessPolicy
from xrl_alignment.agents.policies.vllm.chat_policy import ChatPolicy
from xrl_alignment.agents.policies.vllm.process import find_python
from xrl_alignment.builders.student import load_student, make_policy
from xrl_alignment.common.errors import InferenceEngineFault
from xrl_alignment.settings.schema import PolicyConfig

LENGTH = 10


class SmallChatEngine(SmallEngine):
    """Answers chats with the model in `folder`, as vLLM does: its template and processor, one chat at a time."""

    def __init__(self, folder: Path) -> None:
        self.processor = load_processor(str(folder), load_config(str(folder)))
        super().__init__(AutoModelForImageTextToText.from_pretrained(folder).eval())

    @torch.no_grad()
    def complete(self, body: dict) -> dict:
        """The reply to a chat."""
        assert body["repetition_penalty"] == 1 and body["temperature"] == 0
        (message,) = body["messages"]
        text = self.processor.apply_chat_template(
            [{**message, "content": [_for_template(part) for part in message["content"]]}],
            add_generation_prompt=True,
            **body.get("chat_template_kwargs", {}),
        )
        images = [_image_of(part) for part in message["content"] if part["type"] == "image_url"]
        read = self.processor(text=[text], images=[images], return_tensors="pt")
        written, tops = [], []
        with self.lock:
            llm = self.loaded.get(body["model"], self.llm)
            while len(written) < body["max_tokens"] and not {*written} & {*body.get("stop_token_ids", ())}:
                row = {**read, "input_ids": torch.cat([read["input_ids"], torch.tensor([written]).long()], 1)}
                for key in ("attention_mask", "mm_token_type_ids"):
                    if key in read:
                        kind = int(key == "attention_mask")
                        row[key] = torch.cat([read[key], torch.full((1, len(written)), kind)], 1)
                logps = llm(**row).logits[0, -1].log_softmax(-1)
                written.append(int(logps.argmax()))
                best = logps.topk(body.get("top_logprobs", 1)).indices.tolist()
                tops.append([{"token": f"token_id:{i}", "logprob": logps[i].item()} for i in best])
            self.served += 1
        content = [{"token": top[0]["token"], "logprob": top[0]["logprob"], "top_logprobs": top} for top in tops]
        choice = {"index": 0, "message": {"role": "assistant", "content": ""}, "token_ids": written}
        choice["logprobs"] = {"content": content} if body.get("logprobs") else None
        return {"id": "1", "object": "chat.completion", "created": 0, "model": "small", "choices": [choice]}


def _for_template(part: dict) -> dict:
    return {"type": "image"} if part["type"] == "image_url" else part


def _image_of(part: dict) -> Image.Image:
    data = part["image_url"]["url"].removeprefix("data:image/png;base64,")
    return Image.open(io.BytesIO(base64.b64decode(data)))


@pytest.fixture(scope="module", params=["qwen2_5_vl", "smolvlm"])
def folder(request, tmp_path_factory):
    made = tiny.make(request.param, tmp_path_factory.mktemp("vlm") / request.param)
    if request.param == "qwen2_5_vl":  # as Qwen3.5's: the prompt begins the thoughts, unless a switch ends them there
        template = made / "chat_template.jinja"
        thoughts = "<think>\n{% if enable_thinking is defined and not enable_thinking %}</think>\n{% endif %}"
        template.write_text(template.read_text().removesuffix("{% endif %}") + thoughts + "{% endif %}")
    return made


def student_of(folder, **options):
    return load_student({"arch": "hf_vlm", "path": str(folder), "lora_rank": 4, **options}, CPU)


def train(model, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.vlm.named_parameters():
            if is_adapter(name):
                weight.normal_(std=0.3, generator=generator)


def follows(policy, model, processor, batch) -> bool:
    """Whether `policy` answers as the model in this process while its adapters change; some answer must differ."""
    own, seen = InProcessPolicy(model=model, vis_processor=processor, num_beams=1, max_length=LENGTH, min_length=1), []
    for seed in range(3):
        seen.append(own.act(batch))
        assert policy.act(batch) == seen[-1]
        train(model, seed)
    return seen[0] != seen[-1]


@pytest.mark.parametrize(("images", "last"), [(1, False), (2, False), (2, True)])
def test_it_answers_as_the_policy_in_this_process_while_its_adapters_learn(folder, images, last, monkeypatch):
    # The engine computes in float32. A policy in this process would compute in bfloat16 if the CPU multiplies it.
    monkeypatch.setattr(devices, "cpu_multiplies_bfloat16", lambda: False)
    model, processor = student_of(folder, images=images, image_last=last)
    engine = SmallChatEngine(folder)
    batch = [item._replace(earlier=[255 - item.image] * (i % images)) for i, item in enumerate(inputs(4))]
    batch[0] = batch[0]._replace(prompt=batch[0].prompt + f"<|im_end|> {model.chat.image_token} > ")  # a game's words
    settings = PolicyConfig(name="vllm", num_beams=1, base_urls=[engine.url], max_length=LENGTH)
    policy = make_policy(settings, model, processor, 3)
    try:
        assert follows(policy, model, processor, batch)
        assert len(engine.loaded) == 1 < len(engine.names)
    finally:
        policy.close()
        engine.close()


def test_another_model_behind_the_url_is_refused(folder, tmp_path):
    model, processor = student_of(folder)
    other = tiny.make("smolvlm" if "qwen" in folder.name else "qwen2_5_vl", tmp_path / "other", seed=3)
    engine = SmallChatEngine(other)
    try:
        with pytest.raises(InferenceEngineFault, match="serves small, which is another model.*model.path names"):
            ChatPolicy(model=model, vis_processor=processor, base_urls=[engine.url], adapters="merged")
    finally:
        engine.close()


def test_what_it_cannot_do_is_said(folder):
    model, processor = student_of(folder)
    for options, message in (
        ({}, f"policy.base_urls is empty: start a server .`vllm serve {folder} --enable-lora`"),
        ({"decode": "admissible", "base_urls": ["http://127.0.0.1:9/v1"]}, "writes freely: set policy.decode=free"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_policy(PolicyConfig(name="vllm", num_beams=1, **options), model, processor, 8)
    with pytest.raises(ConfigError, match="vLLM ignores adapters on the vision side"):
        ChatPolicy(model=student_of(folder, freeze=[])[0], vis_processor=processor, base_urls=["http://127.0.0.1:9/v1"])
    untemplated = copy.copy(model.chat)
    untemplated.has_template = False
    with pytest.raises(ConfigError, match="has no chat template"):
        untemplated.turn(None)


@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_vllm_itself_answers_so(tmp_path, monkeypatch):
    """With Idefics3: our tiny Qwen has no processor for videos, and LLaVA's weights have newer names than vLLM 0.32."""
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True")
    monkeypatch.setattr(tiny, "WIDTH", 128)  # heads of 32 dimensions, the least that its CPU kernels take
    folder = tiny.make("idefics3", tmp_path / "vlm")
    model, processor = student_of(folder)
    options = ["--max-model-len", "1024", "--max-num-seqs", "8", "--enable-lora", "--max-lora-rank", "8"]
    python = find_python(os.environ.get("EMAC_VLLM_PYTHON", ""))
    with VllmServer(folder, python=python, key="", arguments=options, log=tmp_path / "log") as server:
        server.wait()
        policy = ChatPolicy(model=model, vis_processor=processor, base_urls=[server.url], max_length=LENGTH)
        try:
            # Frames of one colour: vLLM's processor resizes by torchvision, ours by Pillow, which differ a little.
            batch = [item._replace(image=np.full_like(item.image, 60 * i)) for i, item in enumerate(inputs(4))]
            assert follows(policy, model, processor, batch)
        finally:
            policy.close()
