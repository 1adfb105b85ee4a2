from __future__ import annotations

import importlib.util

import pytest
import torch

from policy_server.models.loading import load_model
from policy_server.models.transformers_model import by_row
from policy_server.models.vision_model import ModelLoadError
from policy_server.settings import ModelSettings


def test_each_row_has_its_own_temperature():
    scores = torch.tensor([[1.0, 3.0, 2.0]] * 3)
    cold, hot, greedy = by_row(scores, torch.tensor([[0.5], [2.0], [0.0]]))
    assert cold.tolist() == [2.0, 6.0, 4.0] and hot.tolist() == [0.5, 1.5, 1.0]
    assert greedy.softmax(0).tolist() == [0.0, 1.0, 0.0]


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is not None, reason="bitsandbytes is installed")
def test_quantisation_names_its_extra():
    with pytest.raises(ImportError, match=r"int4 needs bitsandbytes: pip install 'emac-plus\[quantization\]'"):
        load_model(ModelSettings(path="some/model", quantization="int4"))


def test_a_mistyped_folder_is_no_hub_id():
    with pytest.raises(ValueError, match=r"model.path=/nowhere/model: no config.json in there"):
        load_model(ModelSettings(path="/nowhere/model"))


def test_a_folder_with_another_kind_of_model_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "nonsense"}')
    with pytest.raises(ModelLoadError, match=f"model.path={tmp_path} cannot be loaded: "):
        load_model(ModelSettings(path=str(tmp_path)))
