"""Students (`lavis.models.student.Student`): `Blip2Emac`, `hf_vlm` with a run's adapters, a class of one's own.

For actions they are asked through the policy object that training and evaluation use. In a conversation they read what
training showed them, the text of an episode (`games.alfworld.episode_text`), and write freely.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image

from lavis.common.devices import autocast, pick_device
from lavis.common.errors import ConfigError
from lavis.models.student import Question
from policy_server.games.alfworld import episode_text
from policy_server.models.vision_model import ChatAnswer, ChatJob, ModelJob, tensor_bytes, until_stop
from policy_server.settings import ModelSettings
from xrl_alignment.agents.language.prompt import build_prompt
from xrl_alignment.agents.policies.base import PolicyInput
from xrl_alignment.agents.policies.in_process import InProcessPolicy
from xrl_alignment.builders.student import load_student

BLANK = (300, 300)  # of the black frame that stands for the image of a conversation without one, pixels


class StudentModel:
    """A student on ALFWorld's text. Its actions are greedy: there a request's temperature and length have no effect."""

    MAX_LENGTH = 32  # tokens of a command; as in the original, this counts one BOS token

    def __init__(self, settings: ModelSettings) -> None:
        """Load the model; ConfigError for a setting that a student does not support."""
        for key, default in (("quantization", "none"), ("dtype", "auto")):
            if getattr(settings, key) != default:
                raise ConfigError(
                    f"model.{key}: a student runs in the precision of its training; remove model.{key} (keys of a "
                    "run's section `model` go into model.options)"
                )
        device = pick_device(settings.device, "model.device")
        kind, named = settings.student
        # A prompt too long for a model of this project is refused: a client should know, unlike a training run.
        options: dict[str, Any] = {"arch": kind}
        if named:
            options |= {"path" if kind == "hf_vlm" else "model_type": named, "cut_prompts": False}
        self.model, self.vis_processor = load_student({**options, **settings.options}, device)
        self.policy = InProcessPolicy(
            model=self.model, vis_processor=self.vis_processor, num_beams=1, max_length=self.MAX_LENGTH, min_length=1
        )
        self.images = self.model.frames  # how many a question has
        self.top_p = settings.top_p
        self.device = str(device)
        self.bytes = tensor_bytes(self.model)
        self.model.budget(Question("", ()))  # ConfigError now, not at the first request, if prompts have no room

    def answer(self, jobs: Sequence[ModelJob]) -> list[str]:
        """One command for each job; it is shown the job's image alone, whatever `model.options.images` is."""
        return self.policy.act([PolicyInput(job.prompt.text, np.asarray(job.image)) for job in jobs])

    def chat(self, jobs: Sequence[ChatJob]) -> list[ChatAnswer]:
        """What the student writes next in each conversation; at most as many tokens as its training's answers had."""
        questions = []
        for job in jobs:
            frames = [image for turn in job.turns for image in turn.images]
            frames = frames[-self.images :] or [Image.new("RGB", BLANK)]  # the newest: training showed the state now
            images = [self.vis_processor(np.asarray(frame)) for frame in frames]
            # Not `prompt_writer`, whose counts are cached: the cache would keep the texts of strangers.
            write = partial(
                build_prompt,
                budget=self.model.budget(Question("", images)),
                count=lambda text: len(self.model.encode(text)),
            )
            prompt = episode_text([(turn.role, turn.text) for turn in job.turns], write)
            questions.append(Question(prompt, images))
        answers: dict[int, ChatAnswer] = {}
        # `write` decodes a batch in one way: a call for each way that is asked for.
        ways = [(job.temperature, job.top_p, min(job.max_tokens, self.model.max_answer_tokens)) for job in jobs]
        for way in dict.fromkeys(ways):
            temperature, top_p, longest = way
            rows = [row for row, own in enumerate(ways) if own == way]
            sampled = {"temperature": temperature, "top_p": top_p or self.top_p} if temperature else {}
            with torch.no_grad(), autocast(self.model.device):
                texts = self.model.write(
                    [questions[row] for row in rows],
                    use_nucleus_sampling=temperature > 0,
                    num_beams=1,
                    max_length=longest + 1,  # `Decoding` counts a BOS
                    min_length=1,
                    repetition_penalty=1.0,
                    **sampled,
                )
            for row, text in zip(rows, texts, strict=True):
                text, stopped = until_stop(text.strip(), jobs[row].stop)
                written = len(self.model.encode(text))
                # The end token is one more than the text's own tokens; an answer that `max_tokens` or `stop` cut has
                # none.
                answers[row] = ChatAnswer(
                    text=text,
                    cut=written >= longest and not stopped,
                    prompt_tokens=len(self.model.encode(questions[row].prompt)),
                    completion_tokens=written if stopped else min(written + 1, longest),
                )
        return [answers[row] for row in range(len(jobs))]
