from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from lavis.common.errors import ConfigError
from lavis.models.played import PlayedGames, played_by_file
from xrl_alignment.lab.pretraining import mean
from xrl_alignment.lab.pretraining.files import write_weights


def test_the_mean_of_files_and_of_what_they_have_read(tmp_path, monkeypatch, capsys):
    for name, value, split in (("a", 1.0, "train"), ("b", 2.0, "household_train"), ("c", 6.0, "train")):
        weights = {"proj.weight": torch.full((2, 3), value), "proj.bias": torch.tensor([value, -value])}
        write_weights(weights, tmp_path / f"{name}.safetensors", PlayedGames(splits=(split,)))
    files = [str(tmp_path / f"{name}.safetensors") for name in "abc"]
    monkeypatch.setattr("sys.argv", ["mean", *files, "--out", str(tmp_path / "out.safetensors")])
    mean.main()
    assert "the mean of 3 files" in capsys.readouterr().out
    made = load_file(tmp_path / "out.safetensors")
    torch.testing.assert_close(made["proj.weight"], torch.full((2, 3), 3.0, dtype=torch.bfloat16))
    assert made["proj.bias"].tolist() == [3.0, -3.0]
    assert set(played_by_file(tmp_path / "out.safetensors").splits) == {"train", "household_train"}


def test_weights_of_two_models_have_no_mean(tmp_path):
    for name, size in (("a", 2), ("b", 3)):
        write_weights({"weight": torch.ones(size)}, tmp_path / f"{name}.safetensors", PlayedGames())
    with pytest.raises(ConfigError, match=r"b\.safetensors has weights of other names or shapes than"):
        mean.mean([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])
