"""The prediction of memory for models of the hub: the bytes of a real step, without its weights."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from lavis.common.errors import ConfigError
from lavis.models import HfVlm
from lavis.models.hf_vlm import memory, tiny
from lavis.models.hf_vlm.shadows import Bytes
from lavis.models.memory import Work, predict

pytest.importorskip("peft")
Build = Callable[..., HfVlm]
PROGRAM = Path(__file__).resolve().parents[4] / "benchmarks" / "hf_vlm_memory.py"
FAST = ("qwen2_5_vl", "idefics3", "qwen3_vl_moe")
FAMILIES = [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in tiny.FAMILIES]
ONE_LAYER = "one layer out of its quantisation"


def section(folder: Callable[[str], Path], family: str, **more: object) -> dict[str, object]:
    return {"arch": "hf_vlm", "path": str(folder(family)), "lora_rank": 4, **more}


def counted(model: HfVlm, work: Work) -> int:
    """Bytes that the step of a real model makes, at the peak; its gradients are there before."""
    questions = memory.questions_of_work(model, work)
    with Bytes() as found:
        if work.phase == "dpo":
            model.set_reference()
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight) if weight.requires_grad else None
        before = found.forget_peak()
        if work.phase == "generate":
            model.eval().write(questions * work.beams, num_beams=1, max_length=work.answer + 1)
        else:
            memory.step(model, questions, work)
    return found.peak - before


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("phase", ["bc", "dpo"])
def test_a_step_is_counted_as_the_real_one(
    family: str, phase: str, build: Build, folder: Callable[[str], Path]
) -> None:
    work = Work(phase, 2, prompt=30, answer=5)
    parts = predict(section(folder, family), work, "cpu")
    model = build(family)
    assert parts["activations"] == pytest.approx(counted(model, work), rel=0.01)
    own = [*model.parameters(), *model.buffers()]
    assert parts["weights"] == sum(value.nbytes for value in own)
    trains = sum(value.nbytes for value in model.trainable_state_dict().values())
    assert parts["gradients"] == trains and parts["optimizer"] == 2 * trains
    assert parts.get("reference", 0) == 0  # the base is the reference


@pytest.mark.parametrize(
    "options",
    [
        {"low_memory": True},
        {"freeze": []},
        {"lora_rank": 0, "freeze": ["language"]},
        {"amp": "bfloat16"},
        {"images": 2},
    ],
    ids=str,
)
def test_settings_are_counted_as_the_real_ones(
    options: dict, build: Build, folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lavis.common.devices.cpu_multiplies_bfloat16", lambda: True)  # autocast, on any machine
    work = Work("dpo", 2, prompt=30, answer=5)
    model = build("llava", **options)
    parts = predict(section(folder, "llava", **options), work, "cpu")
    assert parts["activations"] == pytest.approx(counted(model, work), rel=0.01)
    trains = sum(value.nbytes for value in model.trainable_state_dict().values())
    assert parts["gradients"] == trains
    assert parts["reference"] == (0 if options.get("lora_rank", 4) else trains)


def test_acting_is_counted_as_the_real_one(build: Build, folder: Callable[[str], Path]) -> None:
    work = Work("generate", 2, prompt=30, answer=5, beams=2)
    parts = predict(section(folder, "llava"), work, "cpu")
    model = build("llava")
    model.chat.end_id = 10**6  # no answer ends before its longest
    assert parts["activations"] == pytest.approx(counted(model, work), rel=0.02)
    assert not parts.keys() & {"gradients", "optimizer", "reference"}


def test_a_phase_1_checkpoint_is_kept_as_reference(folder: Callable[[str], Path], tmp_path: Path) -> None:
    """Its file need not be there."""
    given = section(folder, "llava", ref_pretrained=str(tmp_path / "emma_checkpoint_0.pth"))
    parts = predict(given, Work("dpo", 1, prompt=5), "cpu")
    assert parts["reference"] == parts["gradients"] > 0


def test_formats_of_the_frozen_weights(folder: Callable[[str], Path]) -> None:
    work = Work("bc", 1, prompt=5)
    whole = predict(section(folder, "llava"), work, "cuda")
    half = predict(section(folder, "llava", dtype="bfloat16"), work, "cuda")
    adapters = whole["gradients"]  # float32 in both
    assert half["weights"] - adapters == pytest.approx((whole["weights"] - adapters) / 2, rel=0.01)
    assert half["gradients"] == adapters and half["activations"] < whole["activations"]
    assert predict(section(folder, "llava", dtype="bfloat16"), work, "cpu")["weights"] == whole["weights"]


@pytest.mark.parametrize("quantization", ["4bit", "8bit"])
def test_quantised_weights(quantization: str, build: Build, folder: Callable[[str], Path], tmp_path: Path) -> None:
    """Against bitsandbytes' own tensors; a vision side and a language model 64 wide."""
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("accelerate")
    config, processor = tiny.parts("qwen2_5_vl")
    text, vision = config.text_config, config.vision_config
    text.hidden_size, text.num_attention_heads, text.num_key_value_heads = 64, 8, 4
    vision.hidden_size, vision.out_hidden_size = 64, 64
    transformers.AutoModelForImageTextToText.from_config(config).save_pretrained(tmp_path / "vlm")
    tiny.save_processor(processor, tmp_path / "vlm")
    options = {"path": str(tmp_path / "vlm"), "quantization": quantization}
    model = build(**options)
    real = sum(value.nbytes for value in (*model.parameters(), *model.buffers()))
    for module in model.base.modules():
        state = getattr(getattr(module, "weight", None), "quant_state", None)
        scales = getattr(module.weight, "SCB", None) if hasattr(module, "weight") else None
        real += 0 if scales is None else scales.nbytes
        if state is not None:
            real += state.absmax.nbytes + (state.state2.absmax.nbytes if state.nested else 0)
    parts = predict({"arch": "hf_vlm", "lora_rank": 4, **options}, Work("bc", 1, prompt=5), "cpu")
    assert parts["weights"] == pytest.approx(real, rel=0.02)
    assert parts[ONE_LAYER] == 4 * 64 * 64 * 4


def test_nothing_is_read_but_config_and_processor(folder: Callable[[str], Path], tmp_path: Path) -> None:
    path = tmp_path / "copy"
    shutil.copytree(folder("qwen2_5_vl"), path, ignore=shutil.ignore_patterns("*.safetensors"))
    with_weights = predict(section(folder, "qwen2_5_vl"), Work("bc", 1, prompt=5), "cpu")
    assert (
        predict({"path": str(path), "arch": "hf_vlm", "lora_rank": 4}, Work("bc", 1, prompt=5), "cpu") == with_weights
    )


def test_a_model_that_is_not_here_is_not_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("the network was asked"))
    with pytest.raises(ConfigError, match="of nobody/nothing are not on this machine.*hf download nobody/nothing"):
        predict({"arch": "hf_vlm", "path": "nobody/nothing"}, Work("bc", 1), "cpu")


def test_code_that_needs_numbers_is_refused_in_one_line(
    folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def computes_outside_of_torch(self: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.detach().numpy())

    monkeypatch.setattr(transformers.models.llama.modeling_llama.LlamaMLP, "forward", computes_outside_of_torch)
    with pytest.raises(ConfigError, match=r"memory of a llava cannot be predicted.*run.batch_size=1") as error:
        predict(section(folder, "llava"), Work("bc", 1, prompt=5), "cpu")
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads and resets the peak through /proc")
@pytest.mark.skipif(torch.version.cuda is not None, reason="libraries are counted as the CPU build has them")
@pytest.mark.parametrize("family", ["qwen2_5_vl", "llava"])
@pytest.mark.parametrize("more", [[], ["--model", "low_memory=true"]], ids=["", "low_memory"])
def test_measured_steps_are_within_15_percent(family: str, more: list[str], tmp_path: Path) -> None:
    options = ["--families", family, "--batches", "4", "--json", str(tmp_path / "x.json"), *more]
    subprocess.run([sys.executable, PROGRAM, *options], check=True, capture_output=True, timeout=280)
    rows = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["rows"]
    assert [row["step"] for row in rows] == ["bc", "dpo"]
    for row in rows:
        assert row["of it the step's"] > 300
        assert row["predicted / measured"] == pytest.approx(1, abs=0.15)
