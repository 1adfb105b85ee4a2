"""The one call for an accelerator, on a CPU at tiny shapes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.py"


def test_measures_everything_at_tiny_shapes(tmp_path: Path) -> None:
    options = ["--device", "cpu", "--shape", "nano", "--largest", "2", "--environments", "3"]
    subprocess.run(
        [sys.executable, PROGRAM, *options, "--json", tmp_path / "x.json"], check=True, timeout=120, capture_output=True
    )
    found = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    steps = {"dpo", "dpo, first time", "plain dpo", "bc"}
    acts = {"act, all environments", "act, 32 at once", "act, one at a time"}
    assert {row["what"] for row in found["rows"]} == steps | acts
    names = {"speedup", "dpo_batch_4_gb", "largest_dpo_batch", "utilisation", "batch_speedup", "prediction_error"}
    assert found["ratios"].keys() == names | {"actions_per_second"}
