"""Loading models and processors by name, as LAVIS users do."""

from __future__ import annotations

from argparse import Namespace

import numpy as np
import pytest
import torch

from lavis.common.config import Config
from lavis.common.registry import registry
from lavis.datasets import builders  # noqa: F401  (registers them)
from lavis.models import load_model, load_model_and_preprocess, load_preprocess, model_zoo
from lavis.processors import BaseProcessor


def test_load_act() -> None:
    model, vis, txt = load_model_and_preprocess("blip2_emac", "tiny", is_eval=True, device="cpu")
    assert not model.training
    image = vis["eval"](np.zeros((300, 300, 3), np.uint8))[None]
    assert image.shape == (1, 3, 112, 112)
    assert isinstance(model.generate({"image": image, "prompt": ["> "]}, num_beams=2, max_length=6)[0], str)
    assert txt["eval"]("Go!") == "go"
    assert model.show_n_params() == "2.3M"


def test_options_override_the_type(tmp_path) -> None:
    model = load_model("blip2_emac", "tiny", options={"max_txt_len": 33, "llm_config": {"num_hidden_layers": 1}})
    assert model.max_txt_len == 33
    assert len(model.llm_model.model.layers) == 1
    assert model.llm_model.config.hidden_size == 192
    torch.save(model.trainable_state_dict(), tmp_path / "x.pth")
    with pytest.raises(ValueError, match="x.pth .native names. does not fit the model"):
        load_model("blip2_emac", "tiny", checkpoint=str(tmp_path / "x.pth"))


def test_a_preprocess_section_is_a_section_or_none_which_passes_items_on() -> None:
    with pytest.raises(ValueError, match="^preprocess.vis_processor: 'foo' is no section"):
        load_preprocess({"vis_processor": "foo"})
    vis, txt = load_preprocess({})
    assert type(vis["train"]) is BaseProcessor and txt["eval"]("X") == "X"


def test_model_zoo() -> None:
    assert dict(model_zoo) == {
        "blip2_emac": [
            "tiny",
            "demo",
            "student",
            "student_official",
            "student_looks",
            "smollm2_135m",
            "vicuna7b",
            "vicuna13b",
        ],
        "hf_vlm": ["default"],
    }
    assert len(model_zoo) == 9
    assert "blip2_emac" in str(model_zoo)


def test_unknown_model_lists_what_exists() -> None:
    with pytest.raises(ValueError, match="unknown model 'blip2_vicuna': (choose one of|did you mean).*blip2_em"):
        load_model("blip2_vicuna", "tiny")


def test_emmas_name_of_the_model(tmp_path) -> None:
    assert registry.get_model_class("blip2_emma") is registry.get_model_class("blip2_emac")
    path = tmp_path / "alfworld_ft.yaml"  # EMMA's file has these two keys
    sections = ["model: {arch: blip2_emma, model_type: vicuna7b}", "datasets: {alfworld_cap: {}}", "run: {task: x}"]
    path.write_text("\n".join(sections))
    config = Config(Namespace(cfg_path=str(path), options=[]))
    assert config.model_cfg.arch == "blip2_emma" and "vicuna" in config.model_cfg.llm_model
