"""The schema: what cannot be used together, and that every field explains itself."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from lavis.common.errors import ConfigError
from lavis.common.paths import REPO_ROOT
from xrl_alignment.settings.fields import Section, sections_of, settings_of
from xrl_alignment.settings.loading import load_config
from xrl_alignment.settings.schema import DaggerConfig, EvaluateConfig

SECTIONS = list(dict.fromkeys([*sections_of(DaggerConfig), *sections_of(EvaluateConfig)]))


CONFIGS = REPO_ROOT / "configs"
RESULTS = {"results/round.yaml": DaggerConfig, "results/evaluation.yaml": EvaluateConfig}


@pytest.mark.parametrize(
    "path",
    [*sorted(CONFIGS.glob("dagger/*.yaml")), *sorted(CONFIGS.glob("evaluate/*.yaml")), *map(CONFIGS.joinpath, RESULTS)],
    ids=lambda path: path.stem,
)
def test_every_shipped_config_loads(path: Path) -> None:
    schemas = {"dagger": DaggerConfig, "evaluate": EvaluateConfig}
    schema = schemas.get(path.parent.name) or RESULTS[str(path.relative_to(CONFIGS))]
    config = load_config(schema, path)
    assert config.model["arch"] == "blip2_emac"


@pytest.mark.parametrize("schema", SECTIONS, ids=lambda schema: schema.__name__)
def test_every_field_has_help_in_one_style(schema: type[Section]) -> None:
    described = settings_of(schema)
    assert set(described) == {field.name for field in dataclasses.fields(schema)}
    assert all(
        setting.help and not setting.help.endswith(".") and "|" not in setting.help for setting in described.values()
    )


@pytest.mark.parametrize("schema", SECTIONS, ids=lambda schema: schema.__name__)
def test_a_section_stands_under_its_name(schema: type[Section]) -> None:
    owner = DaggerConfig if schema in sections_of(DaggerConfig) else EvaluateConfig
    assert isinstance(getattr(owner(), schema.section), schema)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("run.num_workers=8", "run.num_workers: 8 has no effect unless run.executor=local or ray"),
        ("expert.max_cost_usd=3", "expert.max_cost_usd: 3.0 has no effect unless expert.price_prompt or"),
        ("policy.vllm_python=python3", "policy.vllm_python: 'python3' has no effect unless policy.name=vllm"),
        ("policy.vllm_args=[--dtype,float32]", "policy.vllm_args: ['--dtype', 'float32'] has no effect unless"),
        ("policy.name=vllm", "policy.num_beams: 5 is not 1, and policy.name=vllm decodes greedily"),
        ("policy.name=http", "policy.base_urls: [] is not one address with policy.name=http"),
        ("policy.base_urls=[http://a/v1]", "policy.base_urls: ['http://a/v1'] is not one address with"),
        ("policy.max_length=1", "policy.max_length: 1 is not a number of at least 2"),
        ("policy.min_length=129", "policy.min_length: 129 is not at most policy.max_length (128)"),
    ],
)
def test_settings_that_cannot_be_used_together(option: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(EvaluateConfig, None, [option])
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["skip_rejected", "skip_visited"])
def test_useless_commands_are_skipped_where_the_model_writes_them_here(name: str) -> None:
    with pytest.raises(ConfigError, match=f"policy.{name}: True has no effect unless policy.decode=free and"):
        load_config(EvaluateConfig, None, [f"policy.{name}=true", "policy.decode=admissible"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["environment.levels={huose: 1}"], "environment.levels: unknown level 'huose'"),
        (["environment.levels={many: 0}"], "add up to nothing"),
        (["environment.levels={many: lots}"], "weight of level many is 'lots'"),
        (["environment.levels={many: 1}", "environment.name=native"], "has no effect unless environment.name="),
        (["environment.levels={many: 1}", "environment.split=household_many"], "has no effect unless"),
        (
            ["environment.blank_frames=true", "environment.image_severity=4"],
            "environment.image_severity: 4 has no effect",
        ),
        (["environment.levels={many: 1}", "run.max_steps=99"], "run.max_steps: 99 is less than .* run.max_steps=100"),
    ],
)
@pytest.mark.parametrize("schema", [DaggerConfig, EvaluateConfig])
def test_a_mixture_of_levels_that_cannot_be_played(schema, options, said):
    common = ["environment.name=household", "environment.split=household_train", "run.max_steps=200"]
    with pytest.raises(ConfigError, match=said):
        load_config(schema, None, [*common, *options])
    mixed = load_config(schema, None, [*common, "environment.levels={standard: 0.3, many: 0.7}"])
    assert mixed.environment.levels == {"standard": 0.3, "many": 0.7}
