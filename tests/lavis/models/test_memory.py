"""The prediction of memory: weights counted exactly, the rest by what it depends on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lavis.models import load_model, memory
from lavis.models.blip2_models.emac_config import model_section as section
from lavis.models.hf_vlm import tiny
from lavis.models.memory import Work, predict

PROGRAM = Path(__file__).resolve().parents[3] / "benchmarks" / "memory.py"


def test_weights_are_those_of_the_model() -> None:
    model = load_model("blip2_emac", "tiny")
    own = sum(v.nbytes for v in model.policy_state_dict().values())
    parts = predict(section("tiny"), Work("dpo", 2), "cpu")
    assert parts["weights"] == own == parts["reference"]
    assert parts["optimizer"] == 2 * parts["gradients"] == 2 * own


def test_what_trains_in_part_counts_in_part() -> None:
    options = {"freeze_vit": True, "freeze_qformer": False, "adaptor_tuning": True, "freeze_llm": True, "lora_rank": 4}
    model = load_model("blip2_emac", "tiny", options=options)
    model.set_reference()
    trains = sum(v.numel() for v in model.trainable_state_dict().values())
    parts = predict(section("tiny") | options, Work("dpo", 2), "cpu")
    assert parts["gradients"] == 4 * trains
    shared = {id(p) for p in model.parameters()} - {id(p) for p in model.reference.parameters()}
    assert parts["reference"] == sum(p.nbytes for p in model.parameters() if id(p) in shared and p.requires_grad)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads and resets the peak through /proc")
@pytest.mark.skipif(torch.version.cuda is not None, reason="libraries are counted as the CPU build has them")
@pytest.mark.parametrize(("shape", "batch"), [("tiny", 8), pytest.param("cpu", 4, marks=pytest.mark.slow)])
def test_measured_steps_are_within_15_percent(tmp_path: Path, shape: str, batch: int) -> None:
    options = ["--shapes", shape, "--phases", "dpo", "--batches", str(batch), "--json", str(tmp_path / "x.json")]
    subprocess.run([sys.executable, PROGRAM, *options], check=True, capture_output=True, timeout=300)
    (row,) = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["rows"]
    assert row["of it the step's"] > 80
    assert row["predicted / measured"] == pytest.approx(1, abs=0.15)


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
    for given, message in ((["--model", "x"], "unknown model type 'x'"), (["--phase", "x"], "unknown phase 'x'")):
        options = dict(zip(*[iter(["--model", "tiny", "--batch", "2", "--phase", "bc", *given])] * 2, strict=True))
        assert memory.main([word for pair in options.items() for word in pair]) == 2
        assert message in capsys.readouterr().err


def test_another_architecture_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Before, the figures of a Blip2Emac of default sizes were printed."""
    assert memory.main(["--model", "tiny", "--options", "arch=other", "--batch", "1", "--phase", "bc"]) == 2
    assert "model.arch=other cannot be predicted" in capsys.readouterr().err


def test_options_are_keys_of_the_section(capsys: pytest.CaptureFixture) -> None:
    peaks = []
    for prompts in ("lora_rank=0", "llm_dtype=float64"):
        command = ["--model", "vicuna7b", "--batch", "1", "--phase", "bc", "--options", prompts]
        code = memory.main(command)
        peaks.append((code, capsys.readouterr()))
    assert peaks[0][0] == 0 and peaks[0][1].out.splitlines()[-1].startswith("peak")
    assert peaks[1][0] == 2 and "llm_dtype" in peaks[1][1].err
    assert memory.main(["--model", "tiny", "--batch", "1", "--phase", "bc", "--options", "freeze_lm=true"]) == 2
    assert "'model.freeze_lm': did you mean 'model.freeze_llm'" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_named(capsys: pytest.CaptureFixture) -> None:
    """It has the form of a hub id. The message asked for `model.llm_config` alone."""
    command = ["--model", "vicuna7b", "--batch", "1", "--phase", "bc", "--options", "llm_model=weights/vicuna"]
    assert memory.main(command) == 2
    said = capsys.readouterr().err
    assert "there is no file weights/vicuna/config.json here" in said
    assert "name the folder of a downloaded model" in said


def test_a_model_of_the_hub(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """By the program, from a folder or a yaml file; before, it was refused."""
    pytest.importorskip("peft")
    folder = tiny.make("llava", tmp_path / "vlm")
    config = tmp_path / "hub.yaml"
    config.write_text(f"model: {{arch: hf_vlm, path: {folder}, lora_rank: 4}}\n")
    said = []
    for given in (["--model", str(config)], ["--model", f"hf_vlm:{folder}", "--options", "lora_rank=4"]):
        assert memory.main([*given, "--batch", "2", "--phase", "bc", "--prompt", "20", "--device", "cpu"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    names = [re.split(r"\s{2,}", line)[0] for line in said[0].splitlines()]
    assert names == [
        "weights",
        "gradients",
        "optimizer",
        "activations",
        "holes in the heap",
        "Python and libraries",
        "peak",
    ]
