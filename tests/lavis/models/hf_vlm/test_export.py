"""A run's checkpoint becomes a folder of peft."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lavis.models import HfVlm
from lavis.models.hf_vlm.export import main
from lavis.models.played import PlayedGames, played_by_file
from tests.lavis.models.hf_vlm.conftest import wake

pytest.importorskip("peft")


def test_a_checkpoint_as_a_folder_of_peft(
    build: Callable[..., HfVlm],
    folder: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trained = wake(build())
    content: dict[str, Any] = {"model": trained.trainable_state_dict()}
    torch.save(content | {"played": {"games": ["a/b"]}}, tmp_path / "run.pth")
    options = [f"path={folder('qwen2_5_vl')}", "lora_rank=4", "load_pretrained=false"]  # as a run's config may have it
    assert main([str(tmp_path / "out"), "--checkpoint", str(tmp_path / "run.pth"), "--options", *options]) == 0
    assert (tmp_path / "out" / "adapter_config.json").is_file()
    assert len({file.stat().st_mode for file in (tmp_path / "out").iterdir()}) == 1  # whoever reads one can read all
    assert played_by_file(tmp_path / "out") == PlayedGames(("a/b",))
    again = build(pretrained=str(tmp_path / "out"))
    for name, value in trained.trainable_state_dict().items():
        assert torch.equal(again.trainable_state_dict()[name], value)
    torch.save(content, tmp_path / "older.pth")
    options = [f"model.{option}" for option in options]  # as every other program has them
    assert main([str(tmp_path / "out2"), "--checkpoint", str(tmp_path / "older.pth"), "--options", *options]) == 0
    assert played_by_file(tmp_path / "out2") == PlayedGames(unknown=("older.pth",))
    # A run of an older version on a CPU named the base in float32.
    for base, code in ((trained.base_hash(), 0), (trained.frozen_hash(torch.float32), 0), ("0" * 64, 2)):
        torch.save(content | {"base_hash": base}, tmp_path / "run.pth")
        assert main([str(tmp_path / "out4"), "--checkpoint", str(tmp_path / "run.pth"), "--options", *options]) == code
    assert "was trained on the frozen base 000000000000, this" in capsys.readouterr().err
    assert main([str(tmp_path / "out3"), "--checkpoint", str(tmp_path / "none.pth"), "--options", *options]) == 2
    assert "error: --checkpoint: no file " in capsys.readouterr().err
