"""Builds the model, its policy and its prompt writer from their settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from lavis.common.config import load_yaml, merged, plain
from lavis.common.devices import pick_device
from lavis.common.errors import ConfigError
from lavis.common.named_class import is_class_name, make_named
from lavis.common.registry import registry
from lavis.models import StudentModel, load_model_and_preprocess
from lavis.models.blip2_models.adapters import is_adapter
from lavis.models.frozen_base import check_bases
from lavis.models.student import Question, Student
from xrl_alignment.agents.language.prompt import build_prompt, token_counter
from xrl_alignment.agents.policies.base import Policy
from xrl_alignment.agents.policies.in_process import InProcessPolicy
from xrl_alignment.agents.policies.replicas import ReplicatedPolicy
from xrl_alignment.settings.policy import PolicyConfig

# From a frame, uint8 (H, W, 3), to what the student reads: float32 (3, S, S), or the frame itself (`student.Question`).
ImageProcessor = Callable[[np.ndarray], Any]


def load_student(settings: dict[str, Any], device: torch.device | str) -> tuple[StudentModel, ImageProcessor]:
    """The model of a `model:` section and its image processor for evaluation.

    `arch` and `model_type` choose the LAVIS default yaml, everything else overrides keys of it. `pretrained` and
    `ref_pretrained` may name checkpoints of an earlier run. Raises CheckpointError if that run had another frozen base,
    and ConfigError if no file brought the weights of a frozen part.
    """
    settings = dict(settings)
    arch = settings.pop("arch", "") or "blip2_emac"
    first = default_type(arch)
    model_type = settings.pop("model_type", "") or first
    model, vis_processors, _ = load_model_and_preprocess(
        arch, model_type, is_eval=True, device=device, options=settings
    )
    assert isinstance(model, StudentModel)
    # Random weights in a frozen part would never train, and nothing would say so.
    model.require_sources()
    # A run's checkpoint holds what trained and nothing else: beside another frozen base it would be another model.
    check_bases(model, settings)
    return model, vis_processors["eval"]


def default_type(arch: str) -> str:
    """The model type of settings that name none: the first one (`tiny`) of Blip2Emac, empty for a model without types.

    ConfigError for a model that does not act.
    """
    kind = registry.get_model_class(arch)
    if not issubclass(kind, StudentModel):
        raise ConfigError(f"model.arch={arch} does not act: {kind.__name__} is no lavis.models.StudentModel")
    return next(iter(kind.PRETRAINED_MODEL_CONFIG_DICT), "")


def model_section(settings: dict[str, Any]) -> dict[str, Any]:
    """All keys of a `model:` section, those of its type's yaml included."""
    arch = settings.get("arch") or "blip2_emac"
    if not (model_type := settings.get("model_type") or default_type(arch)):
        return dict(settings)
    own = load_yaml(registry.get_model_class(arch).default_config_path(model_type)).model
    return plain(merged(own, {**settings, "arch": arch}))


def make_policy(settings: PolicyConfig, model: Student, vis_processor: ImageProcessor, max_batch: int) -> Policy:
    """The policy of a `policy:` section around a loaded model; close it, for it may have started an engine.

    Raises InferenceEngineFault if `policy.name=vllm` finds no server that it can use.
    """
    if is_class_name(settings.name):
        return make_named(settings.name, "policy", ("act", "close"), Policy)
    if settings.name == "vllm":
        return _vllm_policy(settings, model, vis_processor, max_batch)
    if settings.name == "http":
        from xrl_alignment.agents.policies.http import HttpPolicy  # here: most programs have no httpx

        return HttpPolicy(settings.base_urls[0], decode=settings.decode, timeout_s=settings.timeout_s)
    policy = InProcessPolicy(
        model=model,
        vis_processor=vis_processor,
        decode=settings.decode,
        num_beams=settings.num_beams,
        max_length=settings.max_length,
        min_length=settings.min_length,
        max_batch=max_batch,
        skip_rejected=settings.skip_rejected,
        skip_visited=settings.skip_visited,
    )
    devices = [pick_device(name, "policy.replica_devices") for name in settings.replica_devices]
    return ReplicatedPolicy(policy, devices) if devices else policy


def check_served(student: Student, adapters: str) -> None:
    """ConfigError if more of the served model trains than vLLM can be given: its adapters (`policy.adapters`)."""
    training = [name for name, weight in _served_part(student).named_parameters() if weight.requires_grad]
    if not all(map(is_adapter, training)):
        raise ConfigError(
            "policy.name=vllm: the language model that is served must not train; set model.freeze_llm=true (and "
            "model.lora_rank, so that adapters train)"
        )
    if training and adapters == "merged":
        raise ConfigError(
            "policy.adapters=merged: the servers would keep the old adapters; set policy.adapters=by_name"
        )


def _served_part(student: Any) -> Any:
    """What vLLM runs of `student`; ConfigError if it is a model that vLLM cannot run.

    The language model, to which prompts are sent as embeddings, or the whole of a model that has a chat template.
    """
    if hasattr(student, "prompt_embeds"):
        return student.llm_model
    if hasattr(student, "chat"):
        return student.vlm
    raise ConfigError(
        f"policy.name=vllm: {type(student).__name__} makes neither prompt embeddings nor chats: set "
        "policy.name=in_process"
    )


def _vllm_policy(settings: PolicyConfig, student: Student, vis_processor: ImageProcessor, max_batch: int) -> Policy:
    model: Any = student
    _served_part(model)
    options = {
        "model": model,
        "vis_processor": vis_processor,
        "base_urls": settings.base_urls,
        "max_length": settings.max_length,
        "min_length": settings.min_length,
        "max_batch": max_batch,
        "timeout_s": settings.timeout_s,
        "adapters": settings.adapters,
        "adapter_folder": settings.adapter_folder,
    }
    if not hasattr(model, "prompt_embeds"):
        if settings.decode != "free":
            raise ConfigError("policy.name=vllm: a hub model there writes freely: set policy.decode=free")
        if not settings.base_urls:
            raise ConfigError(
                f"policy.base_urls is empty: start a server (`vllm serve {model.sources.get('language', 'MODEL')} "
                "--enable-lora`, docs/vllm.md), and name its address, which ends in /v1"
            )
        from xrl_alignment.agents.policies.vllm.chat_policy import ChatPolicy  # here: most programs do not need it

        return ChatPolicy(**options)
    from xrl_alignment.agents.policies.vllm.policy import PROMPTS_PER_CALL, VllmPolicy
    from xrl_alignment.agents.policies.vllm.process import VllmProcess

    # Without an address of servers the policy starts one of its own, and ends it with `close`.
    own: VllmProcess | None = None
    if not settings.base_urls:
        own = VllmProcess(
            model, python=settings.vllm_python, arguments=settings.vllm_args, timeout_s=settings.timeout_s
        )
        # Until it answers: the address is of use only then.
        own.wait()
        options["base_urls"] = [own.url]
    return VllmPolicy(
        client=own,
        decode=settings.decode,
        prompts_per_call=max_batch if own and model.device.type == "cpu" else PROMPTS_PER_CALL,
        **options,
    )


def acting_policy(
    model: dict[str, Any], settings: PolicyConfig, device: torch.device | str, *, max_batch: int, tell_objects: bool
) -> tuple[Policy, Callable[..., str]]:
    """Who acts by these two sections, and what writes its prompts; a class of one's own has no model."""
    if is_class_name(settings.name):
        # Its prompts are whole: no model's budget is its own.
        policy: Policy = make_named(settings.name, "policy", ("act", "close"), Policy)
        return policy, partial(build_prompt, tell_objects=tell_objects)
    student, vis_processor = load_student(model, device)
    return make_policy(settings, student, vis_processor, max_batch), prompt_writer(student, tell_objects=tell_objects)


def prompt_writer(model: Student, *, tell_objects: bool = True) -> Callable[..., str]:
    """`language.prompt.build_prompt` for this model: counts with its tokens, so that it never has to cut."""
    count, empty = token_counter(model.encode), Question("", ())

    def write_prompt(task: str, memories: Sequence[str], steps: Sequence[tuple[str, str]]) -> str:
        # The budget of an empty question: what the model itself puts around a prompt is taken off already. Asked anew
        # each time, because the model learns from its first frame how many tokens a frame takes.
        budget = model.budget(empty)
        return build_prompt(task, memories, steps, tell_objects=tell_objects, budget=budget, count=count)

    return write_prompt
