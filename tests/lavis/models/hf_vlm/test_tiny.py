"""The folders of tiny models; that every family's model works is tested with `hf_vlm`."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors import SafetensorError

from lavis.models.hf_vlm import tiny
from tests.lavis.test_checkpoints import disk_for


def test_a_full_disk_leaves_no_half_folder(tmp_path: Path) -> None:
    with disk_for(100_000), pytest.raises(SafetensorError, match="File too large"):
        tiny.make("qwen2_5_vl", tmp_path / "vlm")
    assert not (tmp_path / "vlm").exists()
    assert (tiny.make("qwen2_5_vl", tmp_path / "vlm") / "processor_config.json").is_file()
