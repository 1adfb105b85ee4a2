"""The engines' benchmark: what it says without vLLM, and (marked vllm) what it finds with it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests import warm

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "engines.py"


def run(*options: str) -> subprocess.CompletedProcess:
    return warm.run([PROGRAM, *options], patience_s=900)


def test_without_vllm_the_error_is_one_line() -> None:
    done = run("--python", "/no/such/python")
    assert done.returncode == 2
    assert done.stderr == "error: policy.vllm_python=/no/such/python is not an interpreter that can be started\n"


@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_all_sides_are_measured(tmp_path: Path) -> None:
    done = run("--prompts", "4", "--tokens", "3", "--repeats", "2", "--json", str(tmp_path / "x.json"))
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert [row["engine"] for row in found["rows"]] == ["in_process", "vllm", "transformers"]
    assert found["ratios"]["vllm_over_in_process"] > 0 and 0 <= found["ratios"]["equal_answers"] <= 1
