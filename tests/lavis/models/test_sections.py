"""Sections of settings, checked without the model: the same sentences as the model's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from lavis.common.config import is_lavis_config
from lavis.common.errors import ConfigError
from lavis.models.sections import check_config, check_section
from lavis.models.zoo import load_model, model_zoo

WRONG = [
    ({"model_type": "tny"}, "unknown model type 'tny': did you mean 'tiny'"),
    ({"model_type": "tiny", "max_txt": 3}, "unknown key 'model.max_txt': did you mean 'model.max_txt_len'"),
    ({"model_type": "tiny", "max_txt_len": 0}, "model.max_txt_len: 0 is not a number of at least 1"),
    ({"model_type": "tiny", "pretrained": "absent.pth", "load_pretrained": True}, "no weight file absent.pth"),
    ({"model_type": "tiny", "ref_pretrained": "absent.pth", "load_pretrained": False}, "no weight file absent.pth"),
    ({"model_type": "tiny", "llm_config": {}, "llm_model": "vicuna"}, "there is no folder vicuna, and it is no hub id"),
    ({"arch": "hf_vlm", "dtype": "float8"}, "model.dtype"),
    ({"model_type": "tiny", "lora_dropout": 1.0}, "model.lora_dropout: 1.0 is not a number of at least 0 and below 1"),
    (
        {"model_type": "tiny", "lora_rank": 2, "freeze_llm": True, "lora_targets": []},
        "model.lora_targets is empty: name the layers",
    ),
    (
        {"model_type": "tiny", "lora_rank": 2, "freeze_llm": True, "lora_targets": None},
        "model.lora_targets is empty: name the layers",
    ),
    ({"model_type": "tiny", "vit_model": "eva"}, "model.vit_model: 'eva' is not one of eva_clip_g, custom, conv"),
    ({"model_type": "tiny", "vit_precision": "fp16"}, "model.vit_precision: 'fp16' is not one of float32, bfloat16"),
    ({"model_type": "tiny", "llm_dtype": "float8"}, "model.llm_dtype: 'float8' is not one of float32, bfloat16"),
    ({"model_type": "tiny", "amp": "fp16"}, "model.amp: 'fp16' is not one of float32, bfloat16, float16"),
    ({"arch": "hf_vlm", "lora_dropout": 1.0}, "model.lora_dropout: 1.0 is not a number of at least 0 and below 1"),
]


@pytest.mark.parametrize(("section", "says"), WRONG)
def test_says_what_building_the_model_would_say(section: dict, says: str) -> None:
    with pytest.raises(FileNotFoundError if says.startswith(("no weight", "there is no")) else ValueError) as early:
        check_section(section)
    assert says in str(early.value)
    rest = {key: value for key, value in section.items() if key not in ("arch", "model_type")}
    with pytest.raises((ValueError, FileNotFoundError)) as late:
        load_model(section.get("arch", "blip2_emac"), section.get("model_type", "default"), options=rest)
    assert str(late.value) == str(early.value)


def test_every_type_of_the_project_passes() -> None:
    for arch, types in model_zoo:
        for name in types:
            check_section({"arch": arch, "model_type": name} | ({"path": "folder"} if arch == "hf_vlm" else {}))


@pytest.mark.parametrize("section", [{"model_type": "tiny"}, {"arch": "hf_vlm", "path": "folder"}])
@pytest.mark.parametrize("none", ["", None])
def test_no_mixed_precision_passes(section: dict, none: str | None) -> None:
    """`model.amp=` is null in the settings of train.py: `hf_vlm` refused it."""
    check_section({**section, "amp": none})


def test_a_name_without_owner_may_be_in_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "models--gpt2"
    (old / "refs").mkdir(parents=True)
    (old / "refs" / "main").write_text("7")
    (old / "snapshots" / "7").mkdir(parents=True)
    section = {"model_type": "tiny", "llm_model": "gpt2"}
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="there is no folder gpt2"):
        check_section(section)
    (old / "snapshots" / "7" / "config.json").write_text("{}")
    check_section(section)
    check_section({"model_type": "tiny", "llm_model": "owner/name"})  # loading asks the hub


def test_an_architecture_of_ones_own_passes() -> None:
    check_section({"arch": "mine", "size": 3})


def test_checks_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("model: {arch: blip2_emac, model_type: tiny}\nrun: {seed: 1}\ndatasets: {}\n")
    check_config(str(path), ["run.seed=2"])
    with pytest.raises(ValueError, match=r"unknown key 'run.sed': did you mean 'run.seed'"):
        check_config(str(path), ["run.sed=2"])
    with pytest.raises(ValueError, match=r"unknown key 'model.max_txt'"):
        check_config(str(path), ["model.max_txt=2"])
    for option, says in (
        ("model=tiny", "model: 'tiny' is no section"),
        ("run=5", "run: 5 is no section"),
        ("datasets=5", "datasets: 5 is no section"),
        ("dataset.a=5", "unknown section 'dataset': did you mean 'datasets'"),
        ("preprocess.text_processor.train.name=blip_question", "text_processor changes no text"),
        ("model.arch=[a]", "model.arch: .*a.* is no name"),
        ("model.model_type=5", "model.model_type: 5 is no name"),
    ):
        with pytest.raises(ConfigError, match=says):
            check_config(str(path), [option])
    path.with_name("other.yaml").write_text("run: 5\n")
    with pytest.raises(ConfigError, match="run: 5 is no section"):
        is_lavis_config(str(path.with_name("other.yaml")))
    check_config(str(path), ["model.arch=hf_vlm", "model.path=folder"])  # another architecture: the file's keys go
