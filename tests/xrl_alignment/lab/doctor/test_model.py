"""The lines about a model's parts, against real files."""

from __future__ import annotations

import pytest
import torch

from lavis.models import download, load_model
from lavis.models.blip2_models import weights
from xrl_alignment.lab.doctor.__main__ import main
from xrl_alignment.lab.doctor.model import check_hub_model, check_model

PARTS = ["visual_encoder", "ln_vision", "Qformer", "query_tokens", "llm_proj", "llm_model"]


@pytest.fixture
def trimmed(tmp_path):
    """A LAVIS file of the tiny model without the vision encoder and the language model."""
    state = load_model("blip2_emac", "tiny").policy_state_dict()
    own = {k: v.clone() for k, v in state.items() if not k.startswith(("visual_encoder.", "llm_model."))}
    torch.save({"model": weights.to_lavis(own)}, tmp_path / "trimmed.pth")
    return tmp_path / "trimmed.pth"


@pytest.mark.parametrize("name", ["tiny", "demo"])
def test_the_small_types_have_all_they_need(name):
    *parts, total = check_model(name)
    assert [part.what for part in parts] == [f"model.{part}" for part in PARTS]
    assert {finding.level for finding in (*parts, total)} == {"ok"}
    assert "weights, float32, 7.51 MiB" in parts[-1].detail


def test_a_real_size_names_what_it_would_download(tmp_path, monkeypatch):
    monkeypatch.setattr(download, "cache_folder", lambda: tmp_path)
    vision, *_ = check_model("vicuna7b")
    assert vision.level == "warn" and "985,949,440 weights, float16, 1.84 GiB, frozen" in vision.detail
    assert f"eva_vit_g.pth (model.vit_weights), to be downloaded to {tmp_path}" in vision.detail


def test_a_base_without_the_vision_encoder_fails(trimmed, capsys):
    options = ["model.load_basemodel=true", f"model.base_model={trimmed}", "model.freeze_vit=true"]
    assert main(["--port", "0", "--model", "tiny", "--options", *options]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if " model." in line]
    assert lines[0].startswith("fail  model.visual_encoder: ")
    assert "no file brings its weights: set model.vit_weights" in lines[0]
    assert "trimmed.pth (LAVIS names), shapes fit" in lines[2] and lines[2].startswith("ok")


@pytest.mark.parametrize("damage", ["truncated", "another size", "missing"])
def test_a_file_that_cannot_be_used_fails(trimmed, damage):
    options = ["model.load_basemodel=true", f"model.base_model={trimmed}"]
    if damage == "truncated":
        trimmed.write_bytes(trimmed.read_bytes()[:5000])
    elif damage == "another size":
        options.append("model.llm_config.hidden_size=96")
    else:
        trimmed.unlink()
    findings = {finding.what: finding for finding in check_model("tiny", options)}
    reason = {"truncated": "not a readable", "another size": "does not fit", "missing": "does not exist"}[damage]
    for part in ("Qformer", "llm_proj"):
        assert findings[f"model.{part}"].level == "fail" and reason in findings[f"model.{part}"].detail


def test_a_model_of_the_hub_says_how_large_it_is_in_its_dtype(students):
    details = []
    for settings in ({}, {"dtype": "bfloat16"}, {"quantization": "4bit"}):
        (finding,) = check_hub_model({**students("hub"), **settings})
        assert finding.level == "ok" and "a qwen2_5_vl, with processor and chat template" in finding.detail
        details.append(finding.detail.partition(";")[0])
    assert details == [
        f"162,528 weights, {size}" for size in ("float32, 0.62 MiB", "bfloat16, 0.31 MiB", "4bit, 0.08 MiB")
    ]


def test_wrong_settings_are_one_line(tmp_path):
    (finding,) = check_model("tiny", ["model.freeze_vitt=true"])
    assert finding.level == "fail" and "did you mean 'model.freeze_vit'" in finding.detail
    (finding,) = check_model("tiny", ["modle.llm_model=/none"])
    assert finding.level == "fail" and "unknown section 'modle': did you mean 'model'" in finding.detail
    (finding,) = check_model(str(tmp_path / "none.yaml"))
    assert finding.level == "fail" and "not found" in finding.detail
