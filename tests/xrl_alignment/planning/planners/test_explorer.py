"""The explorer's plans solve games; they are what a language model learns from."""

from __future__ import annotations

import pytest

from alfworld_native import make_environment
from alfworld_native.games import find_games
from xrl_alignment.planning.figures import figures
from xrl_alignment.planning.planners.base import PlanQuestion
from xrl_alignment.planning.planners.explorer import ExplorerPlanner, PlanningExplorer, judge
from xrl_alignment.planning.plans import read_plan, write_plan
from xrl_alignment.planning.player import Answerer, PlanningPlayer, PlanSettings
from xrl_alignment.play.rollouts.sequential import SequentialExecutor
from xrl_alignment.settings.planning import PlanRules


def play(games, settings: PlanSettings | None = None) -> dict:
    player = PlanningPlayer(lambda: make_environment("native"), settings or PlanSettings(), agent=False)
    with SequentialExecutor(8) as executor:
        return figures([one.value for one in executor.run(player, games, answer=Answerer(ExplorerPlanner()))])


@pytest.fixture
def many(household_data):
    """Two of each task type."""
    return find_games("household_train", data=household_data)


def test_it_solves_every_game_with_fewer_calls_than_steps(many) -> None:
    got = play(many)
    assert got["success"] == 1.0 and got["valid_plans"] == 1.0
    assert got["planner_calls"] < got["actions"] / 2


def test_without_replanning_it_solves_less_and_without_reports_it_is_blind(many) -> None:
    off = PlanRules(replan_rejected=False, replan_not_found=False, replan_seen=False, replan_exhausted=False)
    assert play(many, PlanSettings(off))["success"] < 1.0
    assert play(many, PlanSettings(PlanRules(report="none")))["success"] < 1.0


def test_a_task_that_cannot_be_read_has_no_plan() -> None:
    explorer = PlanningExplorer()
    explorer.begin("You are in the middle of a room. you see a desk 1.\nYour task is to: win.")
    assert explorer.plan() == []


def test_of_several_tasks_it_plans_the_one_that_is_left() -> None:
    explorer = PlanningExplorer()
    task = "put a mug in desk, and put a clean plate in shelf"
    explorer.begin(
        f"You are in the middle of a room. you see a bed 1, a desk 1, a shelf 1, and a sinkbasin 1.\n"
        f"Your task is to: {task}."
    )
    explorer.observe("go to bed 1", "You arrive at bed 1. On the bed 1, you see a mug 1, and a plate 1.")
    assert write_plan(explorer.plan()) == "take mug 1, put mug 1 in/on desk 1"
    explorer.observe("take mug 1 from bed 1", "You pick up the mug 1 from the bed 1.")
    explorer.observe("go to desk 1", "You arrive at desk 1. On the desk 1, you see nothing.")
    explorer.observe("put mug 1 in/on desk 1", "You move the mug 1 to the desk 1.")
    assert write_plan(explorer.plan()) == "take plate 1, clean plate 1, put plate 1 in/on shelf 1"
    explorer.observe("go to bed 1", "You arrive at bed 1. On the bed 1, you see a plate 1.")
    explorer.observe("take plate 1 from bed 1", "You pick up the plate 1 from the bed 1.")
    assert write_plan(explorer.plan()) == "clean plate 1, put plate 1 in/on shelf 1"


def test_it_judges_its_own_plans_as_the_triggers_do(many) -> None:
    got = play(many, PlanSettings(PlanRules(feedback="questions")))
    assert got["success"] == 1.0 and got["unclear_judgements"] == 0 and got["right_judgements"] == 1.0
    assert got["judgements"] > 0 and {"not_executed", "not_solving"} & set(got["replans"])
    assert not {"rejected", "not_found", "seen"} & set(got["replans"])  # the planner says so, not the triggers


@pytest.mark.parametrize(
    ("plan", "right", "solves"),
    [
        ("take mug, put mug in/on desk 1", "take mug 1, put mug in/on desk 2", True),  # wherever it is put
        ("go to desk 1, take mug, put mug in/on desk", "go to shelf 1, take mug, put mug in/on desk 1", True),
        ("go to desk 1, take mug, put mug in/on desk", "take mug 1, put mug in/on desk 1", False),  # it is known
        ("take mug, put mug in/on desk 1", "take mug, clean mug, put mug in/on desk 1", False),
        ("take cup, put cup in/on desk 1", "take mug, put mug in/on desk 1", False),
        ("sing", "take mug", False),
    ],
)
def test_a_plan_solves_the_task_if_it_does_the_same(plan: str, right: str, solves: bool) -> None:
    question = PlanQuestion("goal", "On the desk 1, you see nothing.", (("go to desk 1", ""),), plan=plan)
    assert judge(question, read_plan(right).actions) == (True, solves, "")
    refused = judge(question._replace(report="I have seen no mug."), read_plan(right).actions)
    assert refused.executed is False
