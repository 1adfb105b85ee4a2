"""The table of scores: appended to, never rewritten; what cannot be read is told."""

from __future__ import annotations

import contextlib
import json

import pytest

from lavis.common.errors import FileError
from xrl_alignment.play.evaluation.page import card, page
from xrl_alignment.play.evaluation.scores import append, read_table, row_of

FIGURES = {"games": 2, "solved": 1, "success": 0.5, "interval": [0.09, 0.91], "mean_steps": 7.0, "rejected": 0.1}


def result(**changed):
    """What `evaluate.py` writes, with changes."""
    return {
        "date": "2026-11-22T17:00:00+00:00", "who": "explorer", "kind": "expert", "decode": "free", "sees": "text",
        "engine": "native", "split": "valid_seen", "games_hash": "0123456789ab", "max_steps": 50, "seed": 42,
        "trials": 1, "reflexion": "", "swap_memories": False, "versions": {"python": "3.11"},
        "protocol": "single-trial", "protocol_games": True,
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


def test_thoughts_and_repeats_that_end_an_episode_are_told():
    rows = [row_of(result(thoughts=True)), row_of(result()), row_of(result(repeat_limit=2, protocol="own settings"))]
    shown = page(rows)
    assert shown.count("| explorer, with thoughts | text |") == 1 and shown.count("| explorer | text |") == 2
    assert shown.count("50 steps, over after 2 equal actions") == 1 and shown.count("\n## ") == 2
    assert "| equal actions in a row that end an episode | 2 |" in card(rows[2])
    assert "| who played | explorer, with thoughts (expert) |" in card(rows[0])


def test_rows_are_appended_and_read_from_several_tables(tmp_path):
    a, b = tmp_path / "new" / "a.jsonl", tmp_path / "b.jsonl"
    for path, who in ((a, "one"), (a, "two"), (b, "three")):
        append(path, row_of(result(who=who)))
    assert [row["who"] for row in read_table([a, b])] == ["one", "two", "three"]


HUGE = int("9" * 400)
WRONG = [
    {"decode": "greedy"},
    {"thoughts": "yes"},
    {"repeat_limit": "2"},
    {"first_trial": []},
    {"first_trial": {**FIGURES, "interval": 3}},
    {"first_trial": {**FIGURES, "interval": [0.1]}},
    {"first_trial": {**FIGURES, "success": "high"}},
    {"first_trial": {**FIGURES, "success": HUGE}},
    {"first_trial": {**FIGURES, "mean_steps": {}}},
    {"first_trial": {**FIGURES, "rejected": None}},
    {"best_of": 3},
    {"best_of": {"games": 1}},
    {"cost": {"first_trial": {}}},
    {"cost": {"first_trial": {"cost_usd": "1"}, "total": {"cost_usd": 1}}},
    {"cost": []},
    {"split": ["valid_seen"]},
    {"max_steps": {}},
    {"who": None},
    {"who": "x" * 10_000},
    {"sees": "text |\n# Scores"},
    {"date": 20261122},
    {"trained_on": "none"},
    {"engine": {"a": 1}},
    {"protocol": "x" * 10_000},
    {"protocol": None},
    {"protocol_games": "yes"},
    {"by_slot": {"games": 1}},
]


@pytest.mark.parametrize("changed", WRONG)
def test_a_row_with_a_value_of_another_type_is_named(tmp_path, changed):
    path = tmp_path / "scores.jsonl"
    path.write_text(json.dumps(row_of(result())) + "\n" + json.dumps(row_of(result()) | changed) + "\n")
    with pytest.raises(FileError, match=r"scores.jsonl, line 2, is no result of evaluate.py: remove the line"):
        page(read_table([path]))


def test_every_row_that_is_read_can_be_shown(tmp_path):
    """A value at each place of a row exchanged for others: it is refused, or the page shows it."""
    cost = {"calls": 3, "prompt_tokens": 10, "cached_tokens": 0, "completion_tokens": 2, "cost_usd": 0.5}
    good, path = row_of(result(trials=3, expert={"first_trial": cost, "total": cost})), tmp_path / "scores.jsonl"
    places = [(key,) for key in good] + [
        (part, key) for part in ("first_trial", "best_of", "cost") for key in good[part]
    ]
    for place in places:
        for value in (None, [], {}, "", "x", 0, -1, 1e308, float("nan"), HUGE, [[]], {"cost_usd": None}, True):
            row = json.loads(json.dumps(good))
            inner = row[place[0]] if len(place) > 1 else row
            inner[place[-1]] = value
            path.write_text(json.dumps(row) + "\n")
            with contextlib.suppress(FileError):
                page(read_table([path]))


@pytest.mark.parametrize("line", ["[" * 100_000, "{", "3", "{}", '{"date": 1}'])
def test_a_line_that_is_no_result_is_named(tmp_path, line):
    path = tmp_path / "scores.jsonl"
    append(path, row_of(result()))
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(FileError, match=r"scores.jsonl, line 2, is no result of evaluate.py: remove the line"):
        read_table([path])
    with pytest.raises(FileError, match="cannot be read"):
        read_table([tmp_path / "none.jsonl"])
