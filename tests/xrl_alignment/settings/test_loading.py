"""Settings: layering, and what every kind of mistake says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from lavis.common.errors import ConfigError
from lavis.common.paths import REPO_ROOT
from xrl_alignment.settings.loading import load_config, shareable, to_yaml
from xrl_alignment.settings.schema import DaggerConfig, EvaluateConfig


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_then_file_then_options(tmp_path: Path) -> None:
    path = write(
        tmp_path, "run: {num_rounds: 5, init_lr: 1e-4, beta: [1, 0.5]}\nmodel: {model_type: tiny, img_size: 64}"
    )
    config = load_config(DaggerConfig, path, ["run.num_rounds=7", "model.ref_pretrained=a.pth", "server.port=0"])
    assert (config.run.num_rounds, config.run.init_lr, config.run.beta) == (7, 1e-4, [1.0, 0.5])
    assert config.model == {"arch": "blip2_emac", "model_type": "tiny", "img_size": 64, "ref_pretrained": "a.pth"}
    assert config.server.port == 0
    assert config.run.num_envs == 3


def test_an_empty_section_empties_a_setting_of_the_model(tmp_path: Path) -> None:
    path = write(tmp_path, "model: {llm_expects: {hidden_size: 64}, llm_config: {vocab_size: 9}}")
    config = load_config(DaggerConfig, path, ["model.llm_expects={}"])
    assert (config.model["llm_expects"], config.model["llm_config"]) == ({}, {"vocab_size": 9})
    assert load_config(DaggerConfig, path, ["model={}"]).model["llm_expects"] == {"hidden_size": 64}


def test_a_mixture_of_levels_replaces_the_files(tmp_path: Path) -> None:
    """The levels of file and option were merged, so that levels were played that nobody had asked for."""
    games = "name: household, split: household_train"
    path = write(tmp_path, f"environment: {{{games}, levels: {{many: 0.5, standard: 0.5}}}}\nrun: {{max_steps: 200}}")

    def levels(*options: str) -> dict:
        return load_config(DaggerConfig, path, options).environment.levels

    assert levels("environment.levels={compound: 1}") == {"compound": 1}
    assert levels("environment.levels={}") == {}
    assert levels("environment.levels.many=2") == {"many": 2, "standard": 0.5}  # one weight of the mixture
    assert levels("environment.levels={}", "environment.levels.many=2", "environment.levels.hardest=1") == {
        "many": 2,
        "hardest": 1,
    }


@pytest.mark.parametrize("name", ["on", "no", "007", "1e5", "2026_11_20", "12:30", "", "a=b"])
def test_a_text_on_the_command_line_stays_as_it_was_typed(name: str) -> None:
    config = load_config(DaggerConfig, None, [f"expert.model={name}", "run.enable_dpo=on", "run.init_lr=1e-4"])
    assert (config.expert.model, config.run.enable_dpo, config.run.init_lr) == (name, True, 1e-4)


def test_without_a_file_the_schema_speaks() -> None:
    assert load_config(EvaluateConfig, None) == EvaluateConfig()


def test_two_loads_share_nothing() -> None:
    load_config(DaggerConfig, None).model["arch"] = "other"
    assert load_config(DaggerConfig, None).model["arch"] == "blip2_emac"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("run: {num_round: 3}", [], "settings.yaml: unknown key 'run.num_round': did you mean 'run.num_rounds'?"),
        ("rum: {num_rounds: 3}", [], "settings.yaml: unknown key 'rum': did you mean 'run'?"),
        ("", ["run.max_stepz=3"], "--options: unknown key 'run.max_stepz': did you mean 'run.max_steps'?"),
        ("", ["environment.batch_size=3"], "unknown key 'environment.batch_size': did you mean 'run.batch_size'?"),
        ("run: {zzzzzz: 3}", [], "unknown key 'run.zzzzzz': choose one of "),
        ("run: {bate: 3}", [], "unknown key 'run.bate': choose one of batch_size, beta, "),
        ("run: {num_rounds: abc}", [], "settings.yaml: run.num_rounds: 'abc' has the wrong type"),
        ("run: {num_rounds: 1.5}", [], "run.num_rounds: 1.5 has the wrong type: it must be a whole number"),
        ("", ["run.init_lr=fast"], "--options: run.init_lr: 'fast' has the wrong type: it must be a number"),
        ("", ["expert.model=[a,b]"], "expert.model: ['a', 'b'] has the wrong type: it must be text"),
        ("", ["run.beta=0.5"], "--options: run.beta: 0.5 is not a list: put it in brackets, [0.5]"),
        ("run: {beta: 0.5}", [], "settings.yaml: run.beta: 0.5 is not a list: put it in brackets, [0.5]"),
        ("", ["run.beta=1,0.5"], "run.beta: '1,0.5' is not a list: put it in brackets, [1,0.5]"),
        ("", ["run.beta[0]=1"], "run.beta: {'0': 1} is not a list: put it in brackets, […]"),
        ('policy: {base_urls: {"${": []}}', [], "policy.base_urls: {'${': []} is not a list: put it in brackets, […]"),
        ("", ["policy.base_urls=http://a/v1"], "put it in brackets, [http://a/v1]"),
        ("run: {enable_dpo: perhaps}", [], "run.enable_dpo: 'perhaps' has the wrong type"),
        ("run: {beta: [1, x]}", [], "run.beta[1]: [1, 'x'] has the wrong type"),
        ("run: {seed: null}", [], "run.seed: None has the wrong type"),
        ("model: 3", [], "model: 3 has the wrong type"),
        (
            "environment: {levels: [standard]}",
            [],
            "settings.yaml: environment.levels: ['standard'] has the wrong type: it",
        ),
        ("", ["environment.levels=[]"], "--options: environment.levels: [] has the wrong type: it must be a section"),
        (
            "model: {vit_config: {a: 1}}",
            ["model.vit_config=[1]"],
            "--options: model.vit_config: [1] has the wrong type",
        ),
        ("model: {freeze: [a]}", ["model.freeze.a=1"], "model.freeze: {'a': 1} has the wrong type: it must be a list"),
        ("model: [a]", [], "model: ['a'] has the wrong type: it must be a section with keys of its own"),
        ("run: 3", [], "run: 3 is not a section"),
        ("- a", [], "a config file holds sections"),
        ("a: [", [], "not a yaml file"),
        ("run: {num_rounds: 0}", [], "run.num_rounds: 0 is not a number of at least 1 (in "),
        ("run: {beta: [2]}", [], "run.beta: [2.0] is not a list of probabilities"),
        ("run: {beta: []}", [], "run.beta: [] is not a list of probabilities"),
        ("run: {device: gpu}", [], "run.device: 'gpu' is not one of auto, cpu, cuda"),
        (
            "environment: {name: natve}",
            [],
            "environment.name: 'natve' is not one of native, textworld, household, thor",
        ),
        ("expert: {name: oracle}", [], "expert.name: 'oracle' is not one of explorer, handcoded,"),
        ("policy: {decode: beam}", [], "policy.decode: 'beam' is not one of free, admissible"),
        ("policy: {min_length: 200}", [], "policy.min_length: 200 is not at most policy.max_length (128)"),
        ("server: {port: 70000}", [], "server.port: 70000 is not a number from 0 to 65535"),
        ("server: {session_timeout_s: 0}", [], "server.session_timeout_s: 0.0 is not a number of seconds above 0"),
        ("", ["run.seed"], "--options run.seed: write it as section.key=value"),
        ("", ["[\n=1"], r"--options '[\n=1': write it as section.key=value"),
        ("server: {token: 007}", [], "settings.yaml: server.token: yaml reads 7 here; put the text in quotes"),
        ("run: {output_dir: on}", [], "run.output_dir: yaml reads True here"),
        ("", ["run.output_dir=${nowhere}"], "run.output_dir: Interpolation key 'nowhere' not found"),
        ("", ["run.num_envs=${run.beta}"], "run.num_envs: While dereferencing interpolation '${run.beta}'"),
        ("", ["run.output_dir=${nowhere"], "--options run.output_dir=${nowhere cannot be read"),
        ("", ["run.output_dir=\udc80"], r"--options 'run.output_dir=\udc80' cannot be read"),
        (
            "policy: {base_urls: [[a]]}",
            [],
            "policy.base_urls: [['a']] is not a list of http(s)://host:port (vLLM's with /v1)",
        ),
        ("", [f"run.seed={'- ' * 400}"], "its lists are nested too deep"),
        (f"run: {'[' * 300}{']' * 300}", [], "settings.yaml: its lists or sections are nested too deep"),
    ],
)
def test_mistakes_name_key_value_and_rule(tmp_path: Path, text: str, options: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(DaggerConfig, write(tmp_path, text), options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_file_of_another_program_is_told() -> None:
    folder = REPO_ROOT / "configs"
    for schema, path, message in (
        (EvaluateConfig, "dagger/demo_bc.yaml", r"\(run.num_rounds is a setting of dagger_server.py, not of evaluate"),
        (DaggerConfig, "evaluate/expert.yaml", r"\(run.actor is a setting of evaluate.py, not of dagger_server.py\)"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_config(schema, folder / path)


def test_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match="config file not found: nowhere/at_all.yaml"):
        load_config(DaggerConfig, "nowhere/at_all.yaml")


@pytest.mark.parametrize("text", ["", "# run:\n", "{}"])
def test_an_empty_file_is_refused(tmp_path: Path, text: str) -> None:
    """It was played with the defaults, for hours and without a word."""
    with pytest.raises(ConfigError, match=r"settings.yaml is empty, so it does not say what to run"):
        load_config(DaggerConfig, write(tmp_path, text), ["run.num_rounds=7"])


def test_yaml_of_a_config_reads_back_without_the_token(tmp_path: Path) -> None:
    config = load_config(DaggerConfig, None, ["run.init_lr=3e-4", "server.token=secret", "model.a=1"])
    text = to_yaml(config)
    assert "secret" not in text
    assert config.server.token == "secret"
    config.server = replace(config.server, token="")
    assert load_config(DaggerConfig, write(tmp_path, text)) == config


def test_what_refers_to_the_environment_is_written_as_it_was_referred_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVATE", "hush-hush")
    text = """
run: {output_dir: "${oc.env:PRIVATE}/out", num_rounds: 7}
policy: {name: http, base_urls: ["http://${oc.env:PRIVATE}:8000"]}
model: {pretrained: "${run.output_dir}/a.pth"}
"""
    config = load_config(DaggerConfig, write(tmp_path, text), ["expert.base_url=${oc.env:PRIVATE}"])
    assert config.model["pretrained"] == "hush-hush/out/a.pth" and config.expert.base_url == "hush-hush"
    shared = to_yaml(config)
    assert "hush-hush" not in shared + str(shareable(config)) and "${oc.env:PRIVATE}/out" in shared
    assert shareable(config)["run"]["num_rounds"] == 7
    again = load_config(DaggerConfig, write(tmp_path, shared))
    assert again == config and "hush-hush" not in to_yaml(again)


@pytest.mark.parametrize(
    "text",
    [
        "${ oc.env:PRIVATE}",
        "${oc.env :PRIVATE}",
        "${\toc.env : PRIVATE }",
        "${oc.env:PRIVATE,none}",
        "${oc.env:'PRIVATE'}",
        "${oc.decode:${oc.env:PRIVATE}}",
        "${${expert.api_version}:PRIVATE}",
        r"\\${oc.env:PRIVATE}",  # a backslash, then the variable
    ],
)
def test_no_spelling_of_a_variable_is_written_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("PRIVATE", "hush-hush")
    settings = {
        "expert": {"model": text, "api_version": "oc.env"},
        "model": {"llm_model": "${expert.model}", "lora_targets": ["a", text]},
    }
    config = load_config(DaggerConfig, write(tmp_path, yaml.safe_dump(settings)))
    assert "hush-hush" in config.expert.model and "hush-hush" in config.model["llm_model"]
    shared = to_yaml(config)
    assert "hush-hush" not in shared + str(shareable(config))
    assert load_config(DaggerConfig, write(tmp_path, shared)) == config


def test_an_escaped_interpolation_stays_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVATE", "hush-hush")
    config = load_config(DaggerConfig, write(tmp_path, r"expert: {model: '\${oc.env:PRIVATE}', base_url: '\${'}"))
    assert (config.expert.model, config.expert.base_url) == ("${oc.env:PRIVATE}", "${")
    assert load_config(DaggerConfig, write(tmp_path, to_yaml(config))) == config
