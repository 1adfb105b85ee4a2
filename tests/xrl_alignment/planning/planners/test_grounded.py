"""Plans under the grammar: which texts are in it, and that a model writes no others."""

from __future__ import annotations

import pytest

from alfworld_native import make_environment
from alfworld_native.games import find_games
from lavis.common.errors import ConfigError
from xrl_alignment.planning.planners.base import PlanQuestion
from xrl_alignment.planning.planners.explorer import ExplorerPlanner
from xrl_alignment.planning.planners.grounded import PlanGrammar
from xrl_alignment.planning.player import Answerer, PlanningPlayer, PlanSettings
from xrl_alignment.play.rollouts.sequential import SequentialExecutor
from xrl_alignment.settings.planning import PlannerConfig

ROOM = (
    "You are in the middle of a room. Looking quickly around you, you see a desk 2, a desk 1, and a shelf 1.\n"
    "Your task is to: put a pen in shelf."
)
BEEN = (
    ("go to desk 2", "You arrive at desk 2. On the desk 2, you see a pen 3, and a mug 1."),
    ("take mug", "You pick up the mug 1 from the desk 2."),
)
START, LATER = PlanQuestion(ROOM), PlanQuestion(ROOM, BEEN[-1][1], BEEN)


@pytest.mark.parametrize(
    ("question", "plan"),
    [
        (START, "go to desk 1"),
        (START, "go to desk 2, go to desk 1, take pen, put pen in/on shelf 1"),
        (START, "take pen, clean pen, heat pen, cool pen, put pen in/on desk, use desklamp"),
        (LATER, "take pen 3, put pen 3 in/on desk 2"),
        (LATER, ", ".join(["go to shelf 1", *["take pen"] * 11])),
    ],
)
def test_every_beginning_of_a_plan_begins_one_and_the_plan_is_whole(question, plan) -> None:
    grammar = PlanGrammar(question)
    assert all(grammar.begins(plan[:length]) for length in range(len(plan) + 1)) and grammar.ends(plan)
    assert not any(grammar.ends(plan[:length]) for length in range(1, len(plan)) if plan[length - 1] in ", ")


@pytest.mark.parametrize(
    ("question", "text"),
    [
        (START, "go to drawer"),  # not in this room
        (START, "go to desk 3"),
        (START, "go to desk 12"),
        (START, "go to desk 1, go to desk 1"),
        (START, "take pen 3"),  # no report has named it
        (START, "put pen in/on bed"),
        (START, "open desk"),
        (START, " go"),
        (LATER, "go to desk 2"),  # it was searched
        (LATER, "take pen 2"),
        (LATER, "take desk 1"),
        (LATER, "use " + 30 * "a"),
        (LATER, ", ".join(["take pen"] * 13)),
    ],
)
def test_no_plan_begins_like_that(question, text) -> None:
    assert not PlanGrammar(question).begins(text) and not PlanGrammar(question).ends(text)


def test_a_text_without_a_room_has_plans_without_places() -> None:
    grammar = PlanGrammar(PlanQuestion("Your task is to: look."))
    assert grammar.ends("take pen, use desklamp") and not grammar.begins("go") and not grammar.begins("p")


def test_without_reports_a_place_in_the_record_was_searched() -> None:
    grammar = PlanGrammar(PlanQuestion(ROOM, "", (("go to desk 2", ""),)))
    assert not grammar.begins("go to desk 2") and grammar.ends("go to desk 1")


def test_an_untrained_model_writes_plans_of_the_room_and_judgements_freely(local_planner) -> None:
    free, grounded = local_planner(), local_planner(grounded=True)
    questions = [START, LATER, PlanQuestion("Your task is to: look."), LATER._replace(plan="take pen 3")]
    answers = grounded.plan_all(questions)
    for question, answer in zip(questions[:3], answers[:3], strict=True):
        assert answer.text and PlanGrammar(question).begins(answer.text)  # the answer's length may cut it
    assert answers[3] == free.plan_all(questions)[3]
    assert answers == [grounded.plan_all([question])[0] for question in questions]


def test_a_plan_ends_with_a_plan_if_there_is_room_for_it(local_planner) -> None:
    planner = local_planner(grounded=True)
    planner.max_answer_tokens = 400
    (answer,) = planner.plan_all([START])
    assert PlanGrammar(START).ends(answer.text)


def test_what_the_explorer_plans_is_in_the_grammar(household_data) -> None:
    """Else no planner could learn its corrections."""

    class Watched(ExplorerPlanner):
        said: list[tuple[PlanQuestion, str]] = []  # noqa: RUF012

        def plan_all(self, questions):
            answers = super().plan_all(questions)
            self.said += [(question, answer.text) for question, answer in zip(questions, answers, strict=True)]
            return answers

    planner = Watched()
    player = PlanningPlayer(lambda: make_environment("native"), PlanSettings(), agent=False)
    with SequentialExecutor(8) as executor:
        games = find_games("household_train", data=household_data)
        assert all(one.value.result.won for one in executor.run(player, games, answer=Answerer(planner)))
    assert [text for question, text in planner.said if not PlanGrammar(question).ends(text)] == []


def test_only_a_planner_of_this_process_is_grounded() -> None:
    with pytest.raises(ConfigError, match=r"planner\.grounded"):
        PlannerConfig(name="endpoint", model="m", grounded=True).check_combinations()
