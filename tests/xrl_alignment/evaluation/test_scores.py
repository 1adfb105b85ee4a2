"""The table of scores: appended to, never rewritten; what cannot be read is told."""

from __future__ import annotations

import pytest

from lavis.common.errors import FileError
from xrl_alignment.evaluation.scores import append, read_table, row_of

FIGURES = {"games": 2, "solved": 1, "success": 0.5, "interval": [0.09, 0.91], "mean_steps": 7.0, "rejected": 0.1}


def result(**changed):
    """What `evaluate.py` writes, with changes."""
    return {
        "date": "2026-11-22T17:00:00+00:00", "who": "explorer", "kind": "expert", "decode": "free", "sees": "text",
        "engine": "native", "split": "valid_seen", "games_hash": "0123456789ab", "max_steps": 50, "seed": 42,
        "trials": 1, "reflexion": "", "swap_memories": False, "versions": {"python": "3.11"},
        "first_trial": {**FIGURES, "per_task_type": {}}, "best_of": {**FIGURES, "success": 1.0, "solved": 2},
        "trained_on": {"games": 0, "environments": []}, "episodes": [[{"fault": ""}, {"fault": "lost"}]],
        "rollouts": {"seconds": [1.25, 2.0]},
    } | changed  # fmt: skip


def test_a_row_has_what_a_comparison_needs():
    row = row_of(result())
    assert row["first_trial"] == FIGURES and row["best_of"] is row["cost"] is row["calls"] is None
    assert (row["lost"], row["trained_on"], row["seconds"]) == (1, 0, 3.2)
    cost = {"calls": 3, "prompt_tokens": 10, "cached_tokens": 0, "completion_tokens": 2, "cost_usd": None}
    row = row_of(result(trials=3, expert={"first_trial": cost, "total": cost, "no_label": 2}))
    assert row["best_of"]["success"] == 1.0 and row["calls"] == {"no_label": 2, "cache_hits": 0, "retries": 0}


def test_rows_are_appended_and_read_from_several_tables(tmp_path):
    a, b = tmp_path / "new" / "a.jsonl", tmp_path / "b.jsonl"
    for path, who in ((a, "one"), (a, "two"), (b, "three")):
        append(path, row_of(result(who=who)))
    assert [row["who"] for row in read_table([a, b])] == ["one", "two", "three"]


@pytest.mark.parametrize("line", ["{", "3", "{}", '{"date": 1}'])
def test_a_line_that_is_no_result_is_named(tmp_path, line):
    path = tmp_path / "scores.jsonl"
    append(path, row_of(result()))
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(FileError, match=r"scores.jsonl, line 2, is no result of evaluate.py: remove the line"):
        read_table([path])
    with pytest.raises(FileError, match="cannot be read"):
        read_table([tmp_path / "none.jsonl"])
