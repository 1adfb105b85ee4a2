"""The policy whose whole model, one of the hub (`model.arch=hf_vlm`), runs in vLLM, and is asked as in a chat.

    images, text -> one user turn, as HfVlm would write it -> vLLM (chat template, processor, model) -> token ids

The model in this process reads no image; it learns, and its adapters are handed over whenever they have changed
(`handover`). `docs/vllm.md` says how to start the servers.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from torch import Tensor

from alfworld_native.language.commands import normalise
from lavis.common.errors import ConfigError
from lavis.models.blip2_models.adapters import is_adapter
from lavis.models.hf_vlm.chat import FRAME
from lavis.models.hf_vlm.loading import part_of
from lavis.models.student import Question
from xrl_alignment.agents.policies.base import PolicyInput, model_reads
from xrl_alignment.agents.policies.vllm.base import WrittenToken
from xrl_alignment.agents.policies.vllm.http_client import Content, VllmHttpClient
from xrl_alignment.agents.policies.vllm.model_check import ASKED, PROBES, ModelCheck
from xrl_alignment.agents.policies.vllm.served import ServedPolicy

if TYPE_CHECKING:
    from lavis.models.hf_vlm.hf_vlm import HfVlm


class ChatPolicy(ServedPolicy):
    """`HfVlm` in vLLM: greedy, written freely. The options are those of `ServedPolicy`.

    Frames are sent as they are (PNG), and the server's processor reads them. ConfigError for adapters on the vision
    side, which vLLM leaves out without a word.
    """

    def __init__(
        self,
        *,
        model: HfVlm,
        vis_processor: Callable[[np.ndarray], Any],
        max_length: int = 128,
        min_length: int = 1,
        timeout_s: float = 300.0,
        **options: Any,
    ) -> None:
        if any(is_adapter(name) and part_of(model.base, name) == "vision" for name, _ in model.base.named_parameters()):
            raise ConfigError("policy.name=vllm: vLLM ignores adapters on the vision side: set model.freeze=[vision]")
        self.model = model
        self.frames = model.frames
        self.reads = model_reads("free")  # see `Policy`
        self.vis_processor = vis_processor
        # Lengths count a BOS. The server's files may name another end than the template writes.
        self._writing: dict[str, Any] = {"max_tokens": max_length - 1, "min_tokens": max(min_length - 1, 0)}
        self._writing |= {"ignore_eos": True, "stop_token_ids": [model.chat.end_id], **_switches(model)}
        self._http = VllmHttpClient(timeout_s)
        super().__init__(
            client=self._http,
            model_check=_ChatCheck(model, self._http),
            weights=model.vlm,
            save_adapters=model.save_adapter,
            **options,
        )

    def _answer(self, batch: Sequence[PolicyInput]) -> list[str]:
        turns = []
        for item in batch:
            images = [self.vis_processor(frame) for frame in (*item.earlier, item.image)]
            turns.append(content_of(self.model, Question(item.prompt, images)))
        written = self.pool.ask(turns, [item.session for item in batch])
        return [normalise(self.model.chat.decode([item.token for item in tokens])) for tokens in written]

    def _call(self, url: str, requests: Sequence[Content]) -> list[list[WrittenToken]]:
        return self._http.chat(url, requests, **self._writing)


class _ChatCheck(ModelCheck):
    """As `ModelCheck`, by answers to a black frame and a text."""

    advice = "serve the model that model.path names"

    def __init__(self, model: HfVlm, http: VllmHttpClient) -> None:
        self._hub, self._http = model, http
        self._questions = [Question(text, [Image.new("RGB", FRAME)]) for text in PROBES]

    def probed(self, client: object, url: str) -> Iterator[tuple[Sequence[WrittenToken], Tensor]]:
        """See `ModelCheck.probed`."""
        turns = [content_of(self._hub, question) for question in self._questions]
        last_token = self._hub.base.config.get_text_config().vocab_size - 1
        replies = self._http.chat(url, turns, **ASKED, **_switches(self._hub))
        for question, written in zip(self._questions, replies, strict=True):
            ids = [min(item.token, last_token) for item in written]
            yield written, self._hub.next_logps(question, ids)


def content_of(model: HfVlm, question: Question) -> Content:
    """The question as the content of a user turn in OpenAI's form."""
    images, text = model.chat.turn(question)
    pictures: list[dict[str, Any]] = []
    for image in images:
        file = io.BytesIO()
        image.save(file, "png", compress_level=1)  # without loss, and fast
        data = base64.b64encode(file.getvalue()).decode("ascii")
        pictures.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}})
    return model.chat.arranged(pictures, {"type": "text", "text": text})


def _switches(model: HfVlm) -> dict[str, Any]:
    """What makes the server write the prompt as `model.chat` does; nothing for a template without switches."""
    return {"chat_template_kwargs": model.chat.switches} if model.chat.switches else {}
