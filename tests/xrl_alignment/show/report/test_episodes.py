"""A run's episodes: single trials with expert-driven rounds, causes, memories, the best and the worst."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.xrl_alignment.show.dashboard.runs import GAMES, TOLD, by_looks, make_run_directory
from xrl_alignment.show.report.episodes import (
    best_and_worst,
    causes_table,
    memories_table,
    read_episodes,
    rounds_table,
    single_trials,
    types_table,
)
from xrl_alignment.show.report.run_data import ReportError
from xrl_alignment.show.report.strips import FRAMES, film_strip


def test_rounds_say_what_the_policy_solved_alone(tmp_path: Path):
    episodes = read_episodes(make_run_directory(tmp_path))
    assert [row[:7] for row in rounds_table(episodes).rows] == [
        ["1", "3", "33 %", "2", "2", "1", "0.50"], ["2", "1", "0 %", "0", "1", "0", "0.00"],
    ]  # fmt: skip
    assert types_table(episodes).rows[0][:4] == ["pick_and_place_simple", "3", "1", "0.33"]
    assert [(trial.round, trial.helped, trial.driven) for trial in single_trials(episodes)] == [
        (0, pytest.approx(1 / 3), False), (1, 0.0, False),
    ]  # fmt: skip


def test_a_round_that_the_expert_drove_is_marked(tmp_path: Path):
    run = make_run_directory(tmp_path)
    journal = run / "state" / "episodes.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    journal.write_text("".join(json.dumps({**line, "assisted": line["round"] == 0}) + "\n" for line in lines))
    assert [row[-1] for row in rounds_table(read_episodes(run)).rows] == ["the expert drove", ""]
    assert [trial.driven for trial in single_trials(read_episodes(run))] == [True, False]


def test_failed_episodes_have_causes_by_round(tmp_path: Path):
    table = causes_table(read_episodes(make_run_directory(tmp_path)))
    counted = {row[0]: row[2:] for row in table.rows}
    assert table.head[-2:] == ["round 1", "round 2"] and sum(int(row[0]) for row in counted.values()) == 2
    assert causes_table([]).rows == []


def test_games_that_failed_before_are_compared_with_and_without_a_memory(tmp_path: Path):
    run = make_run_directory(tmp_path)
    assert memories_table(run, read_episodes(run)).rows == [], "a game that was won with help had not failed"
    journal = run / "state" / "episodes.jsonl"
    journal.write_text(journal.read_text().replace('"won": true, "assisted": true', '"won": false, "assisted": true'))
    (run / "logging_results").mkdir()
    results = {"env_1": {"game": GAMES[1], "memory": ["m"]}, "env_2": {"game": GAMES[2], "memory": []}}
    (run / "logging_results" / "env_results_trial_0.json").write_text(json.dumps(results))
    (row,) = memories_table(run, read_episodes(run)).rows
    assert row[:4] == ["2", "1", "0", "0.00"] and row[5:] == ["0", "0", "–", "–"]
    (run / "logging_results" / "env_results_trial_0.json").write_text("[" * 100_000)
    (row,) = memories_table(run, read_episodes(run)).rows
    assert row[:2] == ["2", "0"], "memories that nobody can read are none"


def test_the_best_and_the_worst_become_film_strips(tmp_path: Path):
    run = make_run_directory(tmp_path)
    chosen = best_and_worst(read_episodes(run), 2)
    assert [(why.split()[0], episode.env) for why, episode in chosen][0] == ("solved", 0)
    strip = film_strip(run, *chosen[0])
    assert [step.number for step in strip.steps] == [1, 2] and strip.steps[0].frame.startswith(
        "data:image/jpeg;base64,"
    )
    assert strip.task == "Your task is to: put a mug in desk." and GAMES[0] in strip.title
    without_task = replace(chosen[0][1], trace=replace(chosen[0][1].trace, opening="A room.\nPut a mug in desk."))
    assert film_strip(run, "", without_task).task == "Put a mug in desk."
    next((run / "state" / "buffer").glob("round000_env0000*")).unlink()
    assert film_strip(run, *chosen[0]).notice.startswith("The frames of this episode are missing")


def test_what_the_agent_was_not_told_stands_apart(tmp_path: Path):
    run = by_looks(make_run_directory(tmp_path))
    episode = read_episodes(run)[-1]
    (step,) = film_strip(run, "", episode).steps
    assert (step.feedback, step.untold) == ("You arrive at desk 1.", "On the desk 1, you see a mug 1.")
    (run / "config.yaml").write_text("environment: {tell_objects: 1, name_by: 3}")  # damage: nothing is known
    (step,) = film_strip(run, "", episode).steps
    assert (step.feedback, step.untold) == (TOLD, "")


def test_of_a_long_episode_its_ends_are_shown(tmp_path: Path):
    from tests.xrl_alignment.show.dashboard.runs import add_episode

    add_episode(tmp_path, 0, 0, [("look", "look")] * 40)
    (chosen,) = best_and_worst(read_episodes(tmp_path), 2)
    steps = film_strip(tmp_path, *chosen).steps
    assert len(steps) == FRAMES + 1 and steps[FRAMES // 2] is None and steps[-1].number == 40


def test_a_journal_of_another_kind_is_named(tmp_path: Path):
    (tmp_path / "state").mkdir()
    for line in ("[1]", '{"round": "x"}', '{"steps": [1]}'):
        (tmp_path / "state" / "episodes.jsonl").write_text(f"{line}\n")
        with pytest.raises(ReportError, match="episodes.jsonl is damaged"):
            read_episodes(tmp_path)
