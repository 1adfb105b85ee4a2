"""The curves: rounds from 1, one point for each finished round, rewards in one chart, titles in the images."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.xrl_alignment.show.dashboard.runs import make_run_directory
from xrl_alignment.show.report.charts import BY_ROUND, SOLVED, charts, round_success, solved_so_far

BLOCK = "ROUND: {}\nSUCCESS: 1\nTOTAL: 3\n-----\n"


def test_rounds_are_counted_from_one_and_a_round_in_progress_has_no_point(tmp_path: Path) -> None:
    run = make_run_directory(tmp_path / "run")  # one episode of its second round is there
    (run / "logging_results").mkdir()
    (run / "logging_results" / "world.log").write_text(BLOCK.format(0))
    for figure in (round_success({"run": run}), solved_so_far({"run": run})):
        (line,) = figure.axes[0].containers
        assert list(line.lines[0].get_xdata()) == [1]
    assert list(round_success({"run": run}).axes[0].containers[0].lines[0].get_ydata()) == [0.5]


def test_chosen_and_rejected_rewards_share_a_chart(tmp_path: Path) -> None:
    run = make_run_directory(tmp_path / "run")
    (run / "logging_results").mkdir()
    (run / "logging_results" / "world.log").write_text(BLOCK.format(0))
    titles = [chart.title for chart in charts({"run": run})]
    assert titles[:4] == [SOLVED, BY_ROUND, "loss", "DPO's rewards: chosen and rejected"]
    assert len(titles) == len(set(titles)) and not [title for title in titles if title.startswith("train/")]


def test_every_name_stands_in_the_legend_as_it_is(tmp_path: Path) -> None:
    """`$…$` would be a formula, here a broken one, and a name with `_` in front would be left out."""
    runs = {name: make_run_directory(tmp_path / str(number)) for number, name in enumerate(("_base", "a$x_{$"))}
    for run in runs.values():
        (run / "logging_results").mkdir()
        (run / "logging_results" / "world.log").write_text(BLOCK.format(0))
    assert charts(runs)
    (_, labels) = solved_so_far(runs).axes[0].get_legend_handles_labels()
    assert [label.strip().replace("\\$", "$") for label in labels] == list(runs)


@pytest.mark.parametrize(("solved", "games"), [(12, 12), (0, 11)])
def test_a_round_in_which_all_or_none_were_solved(tmp_path: Path, solved: int, games: int) -> None:
    (tmp_path / "logging_results").mkdir()
    (tmp_path / "logging_results" / "world.log").write_text(f"ROUND: 0\nSUCCESS: {solved}\nTOTAL: {games}\n")
    (points,) = solved_so_far({"run": tmp_path}).axes[0].containers
    assert list(points.lines[0].get_ydata()) == [solved / games]
