"""A checkpoint's stored configuration: only harmless values are taken from it, whatever it says."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lavis.common.paths import REPO_ROOT
from lavis.models.blip2_models import emac_config
from lavis.models.hf_vlm import options as hf_options
from tests.reliability.stored_surfaces import POISON
from xrl_alignment.builders.stored import TAKEN, stored_settings, told
from xrl_alignment.settings.checks import one_of
from xrl_alignment.settings.fields import sections_of
from xrl_alignment.settings.loading import load_config, shareable
from xrl_alignment.settings.schema import DaggerConfig, EvaluateConfig

MODEL_KEYS = {**emac_config.CONFIG_DEFAULTS, **hf_options.CONFIG_DEFAULTS}  # of both architectures

HARMFUL = {  # each did something in the version before, or would have
    "policy": {
        "name": "evilmod:Evil",
        "base_urls": ["http://host/${oc.env:OPENAI_API_KEY}"],
        "vllm_python": "/tmp/run-me",
        "vllm_args": ["--trust-remote-code"],
        "adapter_folder": "/home/me",
        "replica_devices": ["cuda:0"],
        "decode": "${oc.env:OPENAI_API_KEY}",
    },
    "model": {
        "llm_model": "stranger/model",
        "llm_weights": "/etc/passwd",
        "llm_tokenizer": "stranger/tokenizer",
        "bert_tokenizer": "stranger/bert",
        "base_model": "http://host/file.pth",
        "vit_weights": "http://host/vit.pth",
        "ref_pretrained": "http://host/ref.pth",
        "pretrained": "http://host/pre.pth",
        "prompt": "${oc.env:OPENAI_API_KEY}",
        "llm_config": {"model_type": "llama", "num_hidden_layers": 10**9, "auto_map": {"AutoConfig": "x.y"}},
        "model_type": "../../evil",
        "lora_targets": ["${oc.env:OPENAI_API_KEY}"],
    },
    "environment": {"name": "evilmod:Evil", "data": "/home", "camera": "${oc.env:OPENAI_API_KEY}"},
    "expert": {"name": "evilmod:Evil", "base_url": "http://host"},
    "server": {"host": "0.0.0.0", "token_file": "/home/me/.ssh/id_rsa"},
}


def test_nothing_that_names_runs_or_refers_is_taken() -> None:
    assert stored_settings(HARMFUL).taken == {"model": {}, "policy": {}, "environment": {}}


def test_what_changes_a_hub_models_prompts_is_taken() -> None:
    model = {"arch": "hf_vlm", "images": 2, "image_last": True, "max_txt_len": 700, "cut_prompts": False}
    assert stored_settings({"model": model}).taken["model"] == model


def test_the_list_has_settings_that_exist_and_no_text_but_fixed_words() -> None:
    schemas = {
        schema.section: {field.name for field in dataclasses.fields(schema)} for schema in sections_of(EvaluateConfig)
    }
    for section, rules in TAKEN.items():
        assert rules.keys() <= {"model": set(MODEL_KEYS), **schemas}[section]
        for kind, rule in rules.values():
            assert kind in (bool, int, float, str, list)
            if kind is str:
                assert rule.text.startswith(one_of("").text) and not rule.holds("${oc.env:HOME}")
            if kind is list:
                assert not rule.holds(["${oc.env:HOME}"])
            if kind is int:
                assert not rule.holds(1 << 64) and not rule.holds(-1)
            if kind is float:
                assert not any(map(rule.holds, (float("nan"), float("inf"), -1.0)))


def test_what_a_run_says_of_its_policy_is_taken() -> None:
    options = ["model.model_type=demo", "model.max_txt_len=200", "policy.num_beams=1", "policy.decode=admissible"]
    options += ["environment.camera=around", "environment.tell_objects=false", "model.lora_rank=4"]
    stored = stored_settings(shareable(load_config(DaggerConfig, None, options)))
    assert stored.taken["model"] == {
        "arch": "blip2_emac",
        "model_type": "demo",
        "max_txt_len": 200,
        "lora_rank": 4,
    }
    assert (stored.taken["policy"]["num_beams"], stored.taken["policy"]["decode"]) == (1, "admissible")
    assert (stored.taken["environment"]["camera"], stored.taken["environment"]["tell_objects"]) == ("around", False)
    taken = {f"policy.{key}" for key in stored.taken["policy"]}
    assert taken == {f"policy.{key}" for key in TAKEN["policy"]}


@pytest.mark.parametrize("section", ["model", "policy", "environment"])
def test_every_setting_with_every_kind_of_hostile_value(section: str) -> None:
    """Whatever stands under a key of these sections: taken is only what the list allows; all keys, not a sample."""
    keys = MODEL_KEYS if section == "model" else next(s for s in sections_of(DaggerConfig) if s.section == section)
    names = list(keys) if isinstance(keys, dict) else [field.name for field in dataclasses.fields(keys)]
    for key in names:
        for value in POISON:
            taken = stored_settings({section: {key: value}}).taken[section]
            if taken:
                kind, rule = TAKEN[section][key]
                assert type(value) is kind and rule.holds(value) and "${" not in str(value) and "/" not in str(value)


@pytest.mark.parametrize("file", sorted((REPO_ROOT / "configs" / "dagger").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_run_of_each_settings_file_plays_with_all_that_matters(file: Path) -> None:
    config = load_config(DaggerConfig, file)
    stored = stored_settings(shareable(config))
    assert told(stored) == "" and stored.taken["model"] == config.model
    assert all(getattr(config.policy, key) == value for key, value in stored.taken["policy"].items())
    assert stored.taken["environment"]["tell_objects"] == config.environment.tell_objects


class _Sly(str):
    """Equals every text."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("policy", "num_beams", True),
        ("policy", "num_beams", 10**9),
        ("policy", "num_beams", 1.0),
        ("policy", "num_beams", "1"),
        ("policy", "num_beams", torch.tensor(1)),
        ("policy", "max_length", float("nan")),
        ("policy", "skip_visited", 1),
        ("policy", "decode", _Sly("evil")),
        ("policy", "decode", ["free"]),
        ("model", "img_size", 100_000),
        ("model", "lora_targets", ["q_proj"] * 10_000),
        ("model", "allow_random", [["llm_proj"]]),
        ("environment", "seed", -1),
        ("environment", "image_severity", 5),
    ],
)
def test_values_of_another_type_or_out_of_bounds_are_left_out_and_told(section: str, key: str, value: Any) -> None:
    stored = stored_settings({section: {key: value}})
    assert stored.taken[section] == {} and f"{section}.{key}=" in told(stored)


def _endless() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


@pytest.mark.parametrize(
    "config",
    [None, [], "policy", 7, {"policy": None}, {"policy": []}, {"model": "x"}, {3: {}}, {"policy": {7: 8, (): ()}}],
)
def test_a_configuration_of_wrong_types_says_nothing(config: object) -> None:
    assert stored_settings(config) == ({"model": {}, "policy": {}, "environment": {}}, [])


def test_what_is_told_is_short_and_printable() -> None:
    config = {
        "policy": {f"x{number}\x1b[2J\n" * 1000: "\x1b]0;title\x07" * 1000 for number in range(100)},
        "model": {"llm_model": _endless(), "llm_config": {"a": _endless()}, "prompt": 10**10_000, "amp": b"\xff" * 9},
    }
    text = told(stored_settings(config))
    assert len(text) < 2000 and text.isprintable() and "and 96 more" in text
    assert told(stored_settings({"model": {"model_type": "tiny", "llm_model": "", "low_memory": False}})) == ""


def test_options_made_of_it_are_read_as_they_were() -> None:
    stored = stored_settings(
        shareable(load_config(DaggerConfig, None, ["model.lora_targets=[q_proj]", "model.amp=''"]))
    )
    options = [f"{s}.{key}={json.dumps(value)}" for s, values in stored.taken.items() for key, value in values.items()]
    read = load_config(EvaluateConfig, None, options)
    assert read.model["lora_targets"] == ["q_proj"] and read.model["amp"] == ""
