"""The original's recorded numbers (EMAC_GOLDEN names a case directory), through the public loading path."""

from __future__ import annotations

from pathlib import Path

import pytest

from lavis.models import verify


def test_every_recorded_quantity_matches(golden_case: Path) -> None:
    done = list(verify.checks(golden_case))
    assert len(done) > 50
    assert [f"{check.name}: {check.error:.1e}" for check in done if not check.ok] == []


@pytest.mark.parametrize(
    ("got", "want", "ok"),
    [
        ([1.0, 100.0], [1.0, 100.005], True),
        ([1.0, 100.0], [1.0, 100.02], False),
        ([1e-6], [5e-5], True),  # near 0 the tolerance is absolute
        ([float("nan")], [1.0], False),
        ([1.0], [1.0, 1.0], False),
    ],
)
def test_close(got: list[float], want: list[float], ok: bool) -> None:
    assert verify.close("x", got, want).ok is ok


def test_one_mismatch_fails_the_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    done = [verify.exact("ids", [1], [1]), verify.exact("text", ["a"], ["b"])]
    monkeypatch.setattr(verify, "checks", lambda folder: iter(done))
    assert verify.main(["case"]) == 1
    out = capsys.readouterr().out
    assert "FAIL       inf  text" in out and "1 of 2 quantities match" in out


def test_no_case_directory_is_one_line(tmp_path: Path, capsys) -> None:
    assert verify.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")
