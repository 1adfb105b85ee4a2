"""What settings need, against a machine that has it or lacks it."""

from __future__ import annotations

import sys

import pytest
import torch

from lavis.models.blip2_models.emac_config import PARTS
from lavis.models.hf_vlm import tiny
from tests.alfworld_native import recorded_thor
from xrl_alignment.lab.doctor.settings import check_settings
from xrl_alignment.settings.loading import load_config
from xrl_alignment.settings.schema import DaggerConfig


def levels(options: list[str], environ: dict[str, str] | None = None) -> dict[str, str]:
    found = check_settings(load_config(DaggerConfig, None, options), environ or {})
    return {finding.what: finding.level for finding in found}


@pytest.fixture
def games(household_data) -> list[str]:
    return [f"environment.data={household_data}", "environment.split=household_train"]


def test_a_default_run_needs_games_and_its_model(games, tmp_path):
    names = ["games", *(f"model.{part}" for part in PARTS), "model tiny", "device"]
    assert levels(games) == dict.fromkeys(names, "ok")
    assert levels([*games, "run.num_envs=99"])["games"] == "fail"
    assert levels(["environment.name=household", "environment.split=household_train"])["games"] == "ok"
    given = [*games, f"model.ref_pretrained={tmp_path / 'none.pth'}"]
    assert levels(given)["model.ref_pretrained"] == "fail"
    shipped = [*games, "model.model_type=student_official", "model.pretrained=tiny/student_official.safetensors"]
    assert levels(shipped)["model.pretrained"] == "ok"
    assert "model.ref_pretrained" not in levels([*games, "model.ref_pretrained=https://example.org/a.pth"])


def test_a_folder_that_cannot_be_written_is_told(games):
    """Before, only the phase itself said so, after a dry run that said that nothing was missing."""
    assert levels([*games, "run.output_dir=/proc/x"])["settings"] == "fail"


def test_weights_that_are_not_there_and_a_missing_gpu(games, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = levels([*games, "model.model_type=vicuna7b", "model.llm_model=/none/vicuna"])
    assert "fail" in found.values() and found["device"] == "warn"


def test_a_model_of_ones_own_is_looked_for(games):
    name = "tests.colour_student:ColourStudent"
    assert levels([*games, f"model.arch={name}", "model.seed=1"]) == {
        "games": "ok",
        f"model {name}": "ok",
        "device": "ok",
    }
    for missing in ("tests.colour_student:None_", "json:JSONDecoder", "lavis.models:BaseModel"):
        assert levels([*games, f"model.arch={missing}"])[f"model {missing}"] == "fail"


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("expert", "examples.custom_expert:OrderlyExpert"),
        ("policy", "examples.custom_policy:WordMatchPolicy"),
        ("environment", "examples.custom_environment:OneRoomEnvironment"),
    ],
)
def test_other_classes_of_ones_own_are_looked_for(games, kind, own):
    """Before, a dry run said that nothing was missing, and the phase that named the class ended hours later."""
    assert "settings" not in levels([*games, f"{kind}.name={own}"])
    for missing in ("nowhere_at_all:X", "json:JSONDecoder"):
        assert levels([*games, f"{kind}.name={missing}"])["settings"] == "fail"


def test_vllm_needs_an_interpreter_that_has_it_or_servers(games, tmp_path):
    """Before, a dry run said that nothing was missing, and the run ended after its model was loaded."""
    served = [*games, "policy.name=vllm", "policy.num_beams=1"]
    assert levels([*served, f"policy.vllm_python={tmp_path}/python"])["vllm"] == "fail"
    assert levels([*served, f"policy.vllm_python={sys.executable}"])["vllm"] == "ok"
    assert "vllm" not in levels([*served, "policy.base_urls=[http://127.0.0.1:9/v1]"])
    tiny.make("llava", tmp_path / "hub")
    hub = [*served, "model.arch=hf_vlm", f"model.path={tmp_path}/hub", f"policy.vllm_python={sys.executable}"]
    assert levels(hub)["vllm"] == "fail"


@pytest.mark.parametrize("asks", ["expert.name=openai", "reflexion.reflector=llm"])
def test_a_teacher_needs_a_model_and_a_key_or_an_address(games, asks):
    assert levels([*games, asks])["teacher"] == "fail"
    given = [*games, asks, "expert.model=m"]
    assert levels(given)["teacher"] == "fail"
    assert levels(given, {"OPENAI_API_KEY": "k"})["teacher"] == "ok"
    assert levels([*given, "expert.base_url=http://127.0.0.1:9/v1"])["teacher"] == "ok"
    assert levels([*given, "expert.base_url=somewhere"], {"OPENAI_API_KEY": "k"})["teacher"] == "fail"


def test_thor_needs_packages_build_display_and_poses(games, alfworld_data, tmp_path, monkeypatch):
    found = levels(["environment.name=thor", *games])
    assert found["display"] in ("ok", "fail") and found["object poses"] == "fail"
    recorded_thor.write_packages(tmp_path / "packages")
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    monkeypatch.setenv("HOME", str(tmp_path))
    given = ["environment.name=thor", f"environment.data={alfworld_data}"]
    assert levels(given)["thor build"] == "fail"  # its address does not answer either
    (tmp_path / ".ai2thor/releases/thor-recorded").mkdir(parents=True)
    found = levels(given, {"DISPLAY": "elsewhere:0"})
    assert {found[what] for what in ("ai2thor", "thor build", "display", "object poses")} == {"ok"}
