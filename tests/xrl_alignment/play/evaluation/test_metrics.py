"""What is counted, and how it is printed."""

import numpy as np
import pytest

from xrl_alignment.play.evaluation.metrics import EpisodeResult, summarise, table


def test_a_summary_counts_by_task_type():
    results = [
        EpisodeResult("a-1", "a", True, 10, 1),
        EpisodeResult("a-2", "a", False, 50, 24),
        EpisodeResult("b-1", "b", True, 20, 0),
    ]
    summary = summarise(results)
    assert (summary["games"], summary["solved"], summary["mean_steps"]) == (3, 2, 15.0)
    assert summary["success"] == pytest.approx(2 / 3) and summary["rejected"] == pytest.approx(25 / 80)
    assert summary["per_task_type"]["a"]["success"] == 0.5 and summary["per_task_type"]["b"]["mean_steps"] == 20
    text = table(summary)
    assert "per_level" not in summary and "level" not in text
    assert text.splitlines()[-1].startswith("all ") and "0.667" in text
    assert np.isfinite(summarise([])["success"]) and " - " in table(summarise([]))


def test_games_of_a_mixture_are_counted_by_level_too():
    ids = [
        f"a-Mug-None-Desk-1/trial_H0_{level}_00000{n}" for n, level in enumerate(("many100", "standard50", "many100"))
    ]
    summary = summarise([EpisodeResult(id, "a", won, 10, 0) for id, won in zip(ids, (True, True, False), strict=True)])
    assert list(summary["per_level"]) == ["standard", "many"]
    assert [row["success"] for row in summary["per_level"].values()] == [1.0, 0.5]
    assert [line.split()[:3] for line in table(summary).splitlines()[2:4]] == [
        ["level", "standard", "1"],
        ["level", "many", "2"],
    ]
