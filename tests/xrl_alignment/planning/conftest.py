"""Planners whose answers are known, and a language model as planner that is made in a moment."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lavis.models.blip2_models.emac_config import package_path
from lavis.models.blip2_models.text import load_llm_tokenizer
from xrl_alignment.planning.planners.base import PlanAnswer, Planner, PlanQuestion
from xrl_alignment.planning.planners.local import LocalPlanner


class WrittenPlans(Planner):
    """Gives the same texts in each episode, the last one for ever; remembers what it was asked."""

    identity = "written"

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self.asked: list[PlanQuestion] = []
        self._calls: dict[str, int] = {}

    def plan_all(self, questions: Sequence[PlanQuestion]) -> list[PlanAnswer]:
        answers = []
        for question in questions:
            self.asked.append(question)
            number = self._calls.get(question.goal, 0)
            self._calls[question.goal] = number + 1
            answers.append(PlanAnswer(self.texts[min(number, len(self.texts) - 1)], self.identity, 10, 5))
        return answers


@pytest.fixture
def written():
    return WrittenPlans


def make_planner(*, seed: int = 0, width: int = 32, rank: int = 4, **options) -> LocalPlanner:
    """A random Llama with the tiny model's tokenizer."""
    torch.manual_seed(seed)
    tokenizer = load_llm_tokenizer(package_path("tiny"))
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=1024, hidden_size=width, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
            max_position_embeddings=1024, bos_token_id=1, eos_token_id=2, pad_token_id=3, tie_word_embeddings=True,
        )
    )  # fmt: skip
    return LocalPlanner(model, tokenizer, rank=rank, max_answer_tokens=12, **options)


@pytest.fixture
def local_planner():
    return make_planner
