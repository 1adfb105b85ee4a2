from __future__ import annotations

import dataclasses
import re

import pytest

from lavis.common.errors import ConfigError
from lavis.common.paths import REPO_ROOT
from lavis.common.settings import settings_of
from policy_server.settings import MODEL_NAME, PolicyServerSettings, tables
from xrl_alignment.settings.loading import load_config


def test_the_guide_has_the_tables_of_all_settings():
    guide = (REPO_ROOT / "docs" / "policy_server.md").read_text(encoding="utf-8")
    assert tables() in guide, "put in what `python -m policy_server.settings` prints"
    names = [field.name for field in dataclasses.fields(PolicyServerSettings) if field.name != "models"]
    for section in (getattr(PolicyServerSettings(), name) for name in names):
        assert list(settings_of(section)) == [field.name for field in dataclasses.fields(section)]
        assert f"**`{section.section}`.**" in tables()


@pytest.mark.parametrize(
    ("option", "key"),
    [
        ("server.port=70000", "server.port"),
        ("server.burst=0", "server.burst"),
        ("server.drain_s=0", "server.drain_s"),
        ("queue.limit=0", "queue.limit"),
        ("queue.window_ms=-1", "queue.window_ms"),
        ("queue.deadline_s=.nan", "queue.deadline_s"),
        ("server.connections=0", "server.connections"),
        ("server.websocket_idle_s=0", "server.websocket_idle_s"),
        ("memory.sessions=0", "memory.sessions"),
        ("memory.cache_distance=65", "memory.cache_distance"),
        ("memory.cache_distance=3", "memory.cache_distance"),
        ("memory.models_gib=.inf", "memory.models_gib"),
        ("model.device=tpu", "model.device"),
        ("model.dtype=int3", "model.dtype"),
        ("model.quantization=int2", "model.quantization"),
        ("model.top_p=0", "model.top_p"),
        ("model.path=", "model.path"),
        ("model.options={pretrained: x}", "model.options"),
    ],
)
def test_impossible_values_are_named(option, key):
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        load_config(PolicyServerSettings, None, [option])


def test_further_models_have_names_of_their_own():
    options = ["model.path=a/b", "models.c={path: d, device: cpu}"]
    options += ["models.d={path: e, options: null}"]
    table = load_config(PolicyServerSettings, None, options).model_table()
    assert table.pop("d").options == {}
    assert list(table) == ["b", "c"] and table["c"].device == "cpu"


@pytest.mark.parametrize(("folder", "name"), [("my tiny/", "my-tiny"), ("größe+2", "gr-e-2"), ("模型", "-")])
def test_every_default_model_can_be_named_in_requests_and_headers(folder, name):
    table = load_config(PolicyServerSettings, None, [f"model.path='models/{folder}'"]).model_table()
    assert list(table) == [name] and MODEL_NAME.fullmatch(name)


@pytest.mark.parametrize(
    "entry",
    [
        "models.b={path: x}",
        "models.c={device: cpu}",
        "models.c=3",
        "models.c={path: x, colour: red}",
        "models.c={path: 7}",
        "models.c={path: x, max_tokens: 512.5}",
        "models.c={path: x, options: {pretrained: y}}",
        "models.c+d={path: x}",
        "models.größe={path: x}",
    ],
)
def test_bad_entries_of_models_are_named(entry):
    with pytest.raises(ConfigError, match=re.escape(entry.partition("=")[0])):
        load_config(PolicyServerSettings, None, ["model.path=a/b", entry]).model_table()
