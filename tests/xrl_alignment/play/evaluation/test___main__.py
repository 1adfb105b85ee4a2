"""`python -m xrl_alignment.evaluation`."""

from __future__ import annotations

import pytest

from lavis.common.errors import ConfigError
from lavis.common.program import run_program
from tests.xrl_alignment.play.evaluation.test_scores import result
from xrl_alignment.play.evaluation.__main__ import main
from xrl_alignment.play.evaluation.scores import append, row_of


def test_the_page_is_printed_or_written(tmp_path, capsys):
    table, out = tmp_path / "scores.jsonl", tmp_path / "scores.md"
    append(table, row_of(result()))
    assert main([str(table)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# Scores") and "| explorer | text | 2 | 1 | 0.500 |" in printed
    assert main([str(table), "--out", str(out)]) == 0
    assert out.read_text() == printed
    with pytest.raises(SystemExit) as end:
        run_program(lambda: main([str(tmp_path / "none")]))
    assert end.value.code == 2 and "cannot be read" in capsys.readouterr().err


def test_the_page_does_not_replace_a_table(tmp_path, monkeypatch):
    """Results that were appended to a table are nowhere else."""
    monkeypatch.chdir(tmp_path)
    table = tmp_path / "scores.jsonl"
    append(table, row_of(result()))
    before = table.read_text()
    with pytest.raises(ConfigError, match="--out scores.jsonl is a table of scores"):
        main([str(table), "--out", "scores.jsonl"])
    assert table.read_text() == before
