"""The settings as tables in Markdown: docs/settings.md is this text."""

from __future__ import annotations

from typing import Any

from lavis.common.run_settings import RunSettings
from lavis.common.settings import Section, settings_of, settings_table
from lavis.models.blip2_models.options import Blip2EmacKeys
from lavis.models.hf_vlm.options import HfVlmKeys
from xrl_alignment.settings.fields import sections_of
from xrl_alignment.settings.planning import LoopRunConfig, PlannedEnvironmentConfig, PlannerConfig
from xrl_alignment.settings.schema import DaggerConfig, EnvironmentConfig, EvaluateConfig

_INTRODUCTION = """\
# Settings

<!-- Written from xrl_alignment/settings/: python -m xrl_alignment.config > docs/settings.md -->

`dagger_server.py`, `python -m xrl_alignment.pipeline` and `evaluate.py` read a yaml file (`--cfg-path`) with the
sections below, then `--options section.key=value …`, which override the file. An unknown key, a wrong type or an
impossible value stops the program before anything starts; the error names the key, its value and the nearest valid
name. A file with a section `planner` is one of EMAC+'s loop ([emac_plus.md](emac_plus.md)). Where the original (the
research code of EMMA, on which EMAC+ builds) has a setting, the key has its name.

`alfworld_client.py` has flags. With `--cfg-path` and `--options` it also reads the server's file and plays what that
asks for; a flag wins over the file.

`--resume` continues a run with the settings that it was started with. Settings marked "may change" decide where and
how fast a run runs; they may be given anew. The others decide what comes out; the program refuses to resume a run with
another value of these.

The section `model` has the keys of the architecture that `arch` names; the last two tables have those of this
project's two architectures ([model.md](model.md), [models.md](models.md)). A model type is a yaml file in
`lavis/configs/models/` with some of the keys. The table before those two is for offline training
([offline.md](offline.md)); the policy server has settings of its own ([policy_server.md](policy_server.md)).
"""


def settings_page() -> str:
    """The whole page."""
    run, *shared = sections_of(DaggerConfig)
    evaluate_run, *_ = sections_of(EvaluateConfig)
    known = settings_of(EnvironmentConfig)  # those of EMAC+'s loop are in the table of `environment` already
    parts = [_section_text("`run` of `dagger_server.py` and the pipeline", run, resumed=True)]
    parts.append(_section_text("`run` of `evaluate.py`", evaluate_run))
    parts += [_section_text(f"`{schema.section}`", schema, resumed=True) for schema in shared]
    parts.append(_section_text("`run` of EMAC+'s loop (`configs/emac_plus/`)", LoopRunConfig, resumed=True))
    parts.append(_section_text("`planner` of EMAC+'s loop", PlannerConfig, resumed=True))
    title = "`environment` of EMAC+'s loop, beside the above"
    parts.append(_section_text(title, PlannedEnvironmentConfig, without=known, resumed=True))
    parts.append(_section_text("`run` of `train.py` and of LAVIS's evaluation", RunSettings))
    parts.append(_section_text("`model` with `arch: blip2_emac`", Blip2EmacKeys))
    parts.append(_section_text("`model` with `arch: hf_vlm`", HfVlmKeys))
    return "\n".join([_INTRODUCTION, *parts])


def _section_text(title: str, schema: type[Section], **options: Any) -> str:
    """A heading, the first line of the schema's docstring, and its table; `options` are those of `settings_table`."""
    return "\n".join([f"## {title}", "", (schema.__doc__ or "").splitlines()[0], "", settings_table(schema, **options)])
