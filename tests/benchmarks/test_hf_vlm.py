"""The benchmark of a hub model's DPO step: its sides compute the same loss, away from the reference."""

from __future__ import annotations

import importlib
import math
from pathlib import Path

import pytest

from lavis.common.paths import REPO_ROOT

pytest.importorskip("peft")


def test_our_sides_compute_the_loss_of_plain_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, it stopped at once: the families of tiny models had become a list of names."""
    monkeypatch.syspath_prepend(str(REPO_ROOT / "benchmarks"))  # its programs import each other by name
    program = importlib.import_module("hf_vlm")
    program.make_folder(str(tmp_path / "vlm"))
    batch = program.pairs(1)
    found = {
        side: program.step_of(side, program.student(str(tmp_path / "vlm")), batch)().item()
        for side in ("cached", "computed", "plain")
    }
    assert found["cached"] == pytest.approx(found["plain"], abs=1e-5) == found["computed"]
    assert abs(found["plain"] - math.log(2)) > 1e-3  # log 2 is the loss of a policy that is its reference
