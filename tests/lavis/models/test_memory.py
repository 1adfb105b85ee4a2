"""The prediction of memory: weights counted exactly, the rest by what it depends on."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from lavis.models import load_model, memory
from lavis.models.blip2_models.blip2_emac import Blip2Emac
from lavis.models.memory import Work, predict


def section(model_type: str) -> dict:
    return OmegaConf.to_container(OmegaConf.load(Blip2Emac.default_config_path(model_type)).model)


def test_weights_are_those_of_the_model() -> None:
    model = load_model("blip2_emac", "tiny")
    own = sum(v.nbytes for k, v in model.policy_state_dict().items() if k != "query_tokens")
    parts = predict(section("tiny"), Work("dpo", 2), "cpu")
    assert parts["weights"] == own == parts["reference"]
    assert parts["optimizer"] == 2 * parts["gradients"] == 2 * own


def test_batch_costs_nothing_where_only_the_projection_trains() -> None:
    few, many = (sum(predict(section("vicuna7b"), Work("dpo", n, prompt=400)).values()) for n in (32, 256))
    assert few == many < 60e9
    assert sum(predict(section("vicuna7b"), Work("dpo", 4, prompt=400)).values()) < 40e9


def test_longer_prompts_cost_in_proportion() -> None:
    short, long = (predict(section("vicuna7b"), Work("bc", 1, prompt=n, answer=10)) for n in (400, 841))
    assert long["activations"] / short["activations"] == pytest.approx(2, rel=0.03)  # 32 + n + 9 tokens


def test_program(capsys: pytest.CaptureFixture) -> None:
    assert memory.main(["--model", "vicuna7b", "--batch", "64", "--phase", "generate"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("weights") and lines[-1].startswith("peak")
    for given, message in ((["--model", "x"], "unknown model type 'x'"), (["--phase", "x"], "phase 'x' is not one of")):
        options = dict(zip(*[iter(["--model", "tiny", "--batch", "2", "--phase", "bc", *given])] * 2, strict=True))
        assert memory.main([word for pair in options.items() for word in pair]) == 2
        assert message in capsys.readouterr().err
