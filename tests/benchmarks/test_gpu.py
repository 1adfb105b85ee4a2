"""The one call for an accelerator, on a CPU at tiny shapes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import warm

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.py"


def measured(tmp_path: Path, *options: str) -> dict:
    tiny = ["--device", "cpu", "--shape", "nano", "--largest", "2", "--environments", "3"]
    warm.run([PROGRAM, *tiny, *options, "--json", tmp_path / "x.json"]).check_returncode()
    return json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_measures_everything_at_tiny_shapes(tmp_path: Path) -> None:
    found = measured(tmp_path)
    steps = {"dpo", "dpo, first time", "plain dpo", "bc"}
    acts = {"act, all environments", "act, 32 at once", "act, one at a time"}
    assert {row["what"] for row in found["rows"]} == steps | acts
    names = {"speedup", "dpo_batch_4_gb", "largest_dpo_batch", "utilisation", "batch_speedup", "prediction_error"}
    assert found["ratios"].keys() == names | {"actions_per_second"}


def test_a_part_that_takes_too_long_is_named(tmp_path: Path) -> None:
    found = measured(tmp_path, "--parts", "act", "first", "--limit", "0.01")
    assert found["rows"] == [{"what": part, "problem": "not done after 0.01 s"} for part in ("act", "first")]
    assert found["ratios"] == {}
