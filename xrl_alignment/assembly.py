"""Builds the parts that the root programs share from their settings: model, policy, games, environments."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from lavis.models import load_model_and_preprocess
from xrl_alignment.checkpoint import check_base
from xrl_alignment.config import EnvironmentConfig, PolicyConfig
from xrl_alignment.environments import choose_games, make_environment
from xrl_alignment.environments.base import Environment, Game
from xrl_alignment.history import build_prompt, token_counter
from xrl_alignment.policies import InProcessPolicy, Policy


def set_threads(number: int) -> None:
    """Number of torch's threads; 0 leaves torch's choice."""
    if number:
        torch.set_num_threads(number)


def set_seed(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators, and choose cuDNN's deterministic algorithms."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


def load_student(settings: dict[str, Any], device: torch.device) -> tuple[torch.nn.Module, Callable]:
    """The model of a `model:` section and its image processor for evaluation (uint8 H × W × 3 -> float 3 × S × S).

    `arch` and `model_type` choose the LAVIS default yaml, everything else overrides keys of it. `pretrained` and
    `ref_pretrained` may name checkpoints of an earlier run; CheckpointError where that run had another frozen base.
    """
    settings = dict(settings)
    arch, model_type = settings.pop("arch", "blip2_emac"), settings.pop("model_type", "tiny")
    model, vis_processors, _ = load_model_and_preprocess(
        arch, model_type, is_eval=True, device=device, options=settings
    )
    for key in ("pretrained", "ref_pretrained"):
        if settings.get(key) and settings.get("load_pretrained", True):
            check_base(model, settings[key])
    return model, vis_processors["eval"]


def make_policy(settings: PolicyConfig, model: torch.nn.Module, vis_processor: Callable, max_batch: int) -> Policy:
    """The policy of a `policy:` section around a loaded model; close it, for it may have started an engine.

    EngineFault where `policy.name=vllm` finds no server that it can use.
    """
    if settings.name == "vllm":
        return _vllm_policy(settings, model, vis_processor, max_batch)
    if settings.name == "http":
        from xrl_alignment.http_policy import HttpPolicy  # here: most programs have no httpx

        return HttpPolicy(settings.base_urls[0], decode=settings.decode, timeout_s=settings.timeout_s)
    return InProcessPolicy(
        model=model,
        vis_processor=vis_processor,
        decode=settings.decode,
        num_beams=settings.num_beams,
        max_length=settings.max_length,
        min_length=settings.min_length,
        max_batch=max_batch,
    )


def _vllm_policy(settings: PolicyConfig, model: torch.nn.Module, vis_processor: Callable, max_batch: int) -> Policy:
    from xrl_alignment.engines import PART, VllmPolicy  # here: most programs need neither
    from xrl_alignment.vllm_process import VllmProcess

    own = None
    if not settings.base_urls:
        own = VllmProcess(
            model, python=settings.vllm_python, arguments=settings.vllm_args, timeout_s=settings.timeout_s
        )
        own.wait()
    return VllmPolicy(
        model=model,
        vis_processor=vis_processor,
        base_urls=settings.base_urls or [own.url],
        client=own,
        decode=settings.decode,
        max_length=settings.max_length,
        min_length=settings.min_length,
        max_batch=max_batch,
        part=max_batch if own and model.device.type == "cpu" else PART,
        timeout_s=settings.timeout_s,
    )


def games_of(settings: EnvironmentConfig, number: int) -> list[Game]:
    """`number` games of an `environment:` section; household games are generated on first use."""
    return choose_games(
        settings.name,
        settings.split,
        num=number,
        data=settings.data or None,
        seed=settings.seed,
        num_train=settings.num_train,
        num_heldout=settings.num_heldout,
    )


def environment_factory(
    settings: EnvironmentConfig, max_steps: int, expert: str | None = None
) -> Callable[[], Environment]:
    """Makes environments of an `environment:` section; `expert` is one that is computed beside the game, or None."""
    return partial(make_environment, settings.name, max_steps=max_steps, show_ids=settings.show_ids, expert=expert)


def prompt_writer(model: torch.nn.Module, *, tell_objects: bool = True) -> Callable[..., str]:
    """`history.build_prompt` for this model: counts with its tokens, so that it never has to cut."""
    # One token less than max_txt_len, for the BOS token that the model puts in front.
    limits = {"budget": model.max_txt_len - 1, "count": token_counter(model.llm_tokenizer.encode)}
    return partial(build_prompt, tell_objects=tell_objects, **limits)
