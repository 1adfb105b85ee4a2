"""`python -m xrl_alignment.report`: what it prints, and what it says of files that it cannot use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lavis.common.errors import EmacError
from tests.xrl_alignment.show.report.runs import make_run
from xrl_alignment.show.report.__main__ import main


def test_the_page_holds_the_summary_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run = make_run(tmp_path / "run")
    (run / "summary.json").write_text(json.dumps({"bc": {"success": 0.375}}))
    main([str(run)])
    assert capsys.readouterr().out == f"{run / 'report.html'}\n"
    assert "0.38" in (run / "report.html").read_text(encoding="utf-8")


def test_a_second_folder_s_evaluations_stand_beside_the_first_one_s(tmp_path: Path) -> None:
    for name, rate in (("a/demo", 0.31), ("b/demo", 0.92)):
        run = make_run(tmp_path / name)
        (run / "summary.json").write_text(json.dumps({"bc_valid_seen": {"success": rate}, "seed": 42}))
    main([str(tmp_path / "a/demo"), str(tmp_path / "b/demo")])
    page = (tmp_path / "a/demo/report.html").read_text(encoding="utf-8")
    assert f"bc_valid_seen 0.31; {tmp_path}/b/demo: bc_valid_seen 0.92." in page


@pytest.mark.parametrize(
    ("content", "reason"), [("", "is not JSON"), ("[1]", "is no summary: it holds a list"), ("{", "is not JSON")]
)
def test_a_summary_that_is_none_is_named(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "figures.json").write_text(content)
    with pytest.raises(EmacError, match=f"figures.json {reason}"):
        main([str(tmp_path), "--summary", str(tmp_path / "figures.json")])


def test_a_folder_without_runs_and_a_damaged_journal_are_named(tmp_path: Path) -> None:
    with pytest.raises(EmacError, match="no run in "):
        main([str(tmp_path)])
    (tmp_path / "state").mkdir()
    (tmp_path / "state/metrics.jsonl").write_bytes(b"\xff\n")
    with pytest.raises(EmacError, match="metrics.jsonl is damaged"):
        main([str(tmp_path)])
