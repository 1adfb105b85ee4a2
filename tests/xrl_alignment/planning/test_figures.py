"""The figures of an evaluation with a planner, and their table."""

from __future__ import annotations

from dataclasses import replace

from xrl_alignment.planning.figures import figures, table
from xrl_alignment.planning.player import PlannedGame
from xrl_alignment.planning.reports import Sight
from xrl_alignment.play.evaluation.metrics import EpisodeResult


def played(won: bool, calls: int, ended: str) -> PlannedGame:
    call = {"valid": won, "tokens": 10}
    triggers = {"start": 1, "seen": calls - 1}
    result = EpisodeResult("pick_and_place_simple-a/1", "pick_and_place_simple", won, 6, 1)
    return PlannedGame(result, ended, [call] * calls, triggers, Sight(4, 2, 1), "goal", step_tokens=50)


def test_what_planning_costs_and_is_worth() -> None:
    got = figures([played(True, 2, "won"), played(False, 1, "steps")])
    assert (got["success"], got["games"], got["planner_calls"], got["planner_tokens"]) == (0.5, 2, 3, 30)
    assert got["interval"][0] < 0.5 < got["interval"][1] and (got["actions"], got["step_tokens"]) == (12, 100)
    assert (got["calls_per_solved"], got["tokens_per_solved"]) == (3, 30) and got["valid_plans"] == 2 / 3
    assert got["valid_first_plans"] == 0.5  # a game counts once
    assert got["replans"] == {"seen": 1} and got["ended"] == {"steps": 1, "won": 1}
    assert (got["sight_precision"], got["sight_recall"]) == (0.25, 0.5)


def test_judgements_are_counted_by_themselves_and_their_tokens_with_the_planners() -> None:
    said = [(True, False), (True, True), (None, False)]
    true = {"true_executed": True, "true_solves": False, "tokens": 7}
    judged = [{"executed": executed, "solves": solves, **true} for executed, solves in said]
    got = figures([replace(played(True, 2, "won"), feedbacks=judged)])
    assert (got["planner_calls"], got["planner_tokens"], got["tokens_per_solved"]) == (2, 2 * 10 + 3 * 7, 41)
    assert (got["judgements"], got["unclear_judgements"], got["right_judgements"]) == (3, 1, 0.5)


def test_games_of_a_mixture_of_levels_have_figures_by_level() -> None:
    games = [played(True, 1, "won"), played(False, 1, "steps"), played(True, 1, "won")]
    assert figures(games)["per_level"] == {}
    names = [f"pick_and_place_simple-a/trial_H0_{level}_000001" for level in ("many100", "many100", "standard50")]
    games = [replace(one, result=replace(one.result, game=name)) for one, name in zip(games, names, strict=True)]
    assert figures(games)["per_level"] == {"standard": 1.0, "many": 0.5}


def test_nothing_solved_and_nothing_played_have_figures() -> None:
    assert figures([played(False, 1, "steps")])["calls_per_solved"] is None
    assert figures([])["valid_plans"] is figures([])["valid_first_plans"] is None


def test_the_table_has_a_line_for_each_evaluation() -> None:
    lines = table({"agent_after": figures([played(True, 2, "won")]), "none": figures([]), "seed": 1}).splitlines()
    assert lines[1].split()[:3] == ["agent_after", "1", "1.000"] and lines[2].split()[0] == "none" and len(lines) == 3
