"""A deeper model answers as the one that it was made of, and all of it trains."""

from __future__ import annotations

import pytest
import torch

from lavis.common.errors import ConfigError
from lavis.models.played import games_of_weights
from xrl_alignment.builders.student import load_student, model_section
from xrl_alignment.lab.pretraining.deeper import make_deeper


def test_a_deeper_model_is_the_same_function_and_trains(tmp_path):
    options = {"model_type": "student_official", "amp": ""}
    shallow = load_student(options, torch.device("cpu"))[0].llm_model
    grown = make_deeper(options, {1, 3}, tmp_path / "deeper.safetensors")
    assert grown["llm_config"] == {"num_hidden_layers": 6} and options == {"model_type": "student_official", "amp": ""}
    assert games_of_weights(model_section(grown)) == games_of_weights(model_section(options))
    deep = load_student(grown, torch.device("cpu"))[0].llm_model
    ids = torch.randint(3, 1000, (2, 40), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(deep(ids).logits, shallow(ids).logits)
    for of_deep, of_shallow in enumerate((0, 1, 1, 2, 3, 3)):
        theirs = dict(shallow.model.layers[of_shallow].named_parameters())
        for name, weight in deep.model.layers[of_deep].named_parameters():
            silent = of_deep in (2, 5) and name.endswith(("o_proj.weight", "down_proj.weight"))
            assert torch.equal(weight, torch.zeros_like(weight) if silent else theirs[name])
    # What makes a copy silent gets a gradient, so the copy does not stay silent.
    deep(ids, labels=ids).loss.backward()
    for layer in (2, 5):
        assert deep.model.layers[layer].mlp.down_proj.weight.grad.any()
        assert deep.model.layers[layer].self_attn.o_proj.weight.grad.any()


@pytest.mark.parametrize(("frozen", "said"), [(False, "its layers are 0 to 3"), (True, "does not train")])
def test_a_layer_that_does_not_train_is_refused(tmp_path, frozen, said):
    with pytest.raises(ConfigError, match=f"--deeper .: .*{said}"):
        make_deeper({"model_type": "student_official", "freeze_llm": frozen}, {1, 7}, tmp_path / "deeper.safetensors")
