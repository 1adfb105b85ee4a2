"""What a training run needs by its settings, and whether this machine has it: games, weights, vLLM, teacher, AI2-THOR.

Nothing is loaded, generated or started, so it says before a model of 14 GB is read what the run would miss later.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lavis.common.errors import ConfigError, EmacError
from lavis.common.files import writable
from lavis.common.named_class import is_class_name
from xrl_alignment.builders.named import check_named
from xrl_alignment.lab.doctor.files import check_weights
from xrl_alignment.lab.doctor.finding import Finding
from xrl_alignment.lab.doctor.machine import check_device
from xrl_alignment.lab.doctor.model import check_hub_model, check_own_model, check_parts
from xrl_alignment.lab.doctor.simulator import check_build, check_display, check_poses, check_simulator

if TYPE_CHECKING:
    from xrl_alignment.settings.schema import DaggerConfig

SMALL_MODELS = ("tiny", "demo", "student", "student_official", "student_looks")  # model types that need no GPU


def check_settings(config: DaggerConfig, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Check what a run of `config` needs, `fail` if it could not end well."""
    from alfworld_native import choose_games
    from xrl_alignment.builders.teacher import asks_model

    # What the run would refuse at its start, which may come hours after the phases before it.
    try:
        check_named(config)
        writable("run.output_dir", Path(config.run.output_dir), folder=True)
    except EmacError as error:
        yield Finding("fail", "settings", str(error))
    settings, number = config.environment, config.run.num_envs
    if settings.name == "household":
        yield Finding("ok", "games", "generated at the start of the run, if they are not there")
    else:
        try:
            choose_games(settings.name, settings.split, num=number, data=settings.data or None, seed=settings.seed)
            yield Finding("ok", "games", f"{number} of {settings.split}")
        except EmacError as error:
            yield Finding("fail", "games", str(error))
    given = dict(config.model)
    name = str(given.get("arch", "blip2_emac"))
    if name == "hf_vlm":
        yield from check_hub_model(given)
    elif is_class_name(name):
        yield check_own_model(name)
    else:
        name = str(given.pop("model_type", "tiny"))
        yield from check_parts(name, given)
    for key in ("pretrained", "ref_pretrained"):
        path = str(given.get(key) or "")
        if path and not path.startswith(("https://", "http://")):  # an address is downloaded at the start
            yield check_weights(path, f"model.{key}")
    # Of a class of one's own nobody knows whether it is large.
    yield check_device(large=not is_class_name(name) and name not in SMALL_MODELS)
    # vLLM is started when the model is loaded, unless servers are named. A hub model's servers always are.
    if config.policy.name == "vllm" and not config.policy.base_urls:
        from xrl_alignment.agents.policies.vllm.process import find_python  # here: most settings do not need it

        try:
            if name == "hf_vlm":
                raise ConfigError("policy.base_urls is empty: a model of the hub is served by servers that run already")
            yield Finding("ok", "vllm", find_python(config.policy.vllm_python))
        except EmacError as error:
            yield Finding("fail", "vllm", str(error))
    # The language model that labels or writes memories: its name, key and address. It is not asked.
    if asks_model(config.expert, config.reflexion):
        from xrl_alignment.agents.experts.llm.endpoint import Endpoint  # here: the client library takes a second

        expert = config.expert
        try:
            endpoint = Endpoint(
                model=expert.model,
                base_url=expert.base_url,
                api=expert.api,
                api_version=expert.api_version,
                key_variable=expert.key_variable,
                environ=environ,
            )
            endpoint.close()
        except EmacError as error:
            yield Finding("fail", "teacher", str(error))
        else:
            yield Finding("ok", "teacher", f"{expert.model} at {endpoint.address}, not asked")
    if config.environment.name == "thor":
        # Packages, build, display, object poses. Without the packages nobody knows which build they want.
        packages = check_simulator()
        yield packages
        if packages.level == "ok":
            yield check_build(Path.home())
        yield check_display(environ, started=True)
        yield check_poses(settings.data or None, settings.split)
