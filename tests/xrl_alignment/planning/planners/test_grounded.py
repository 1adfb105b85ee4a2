"""Plans under the grammar: which texts are in it, and that a model writes no others."""

from __future__ import annotations

import pytest

from alfworld_native import make_environment
from alfworld_native.games import find_games
from lavis.common.errors import ConfigError
from xrl_alignment.agents.policies.uniform import RandomPolicy
from xrl_alignment.planning.planners.base import PlanQuestion
from xrl_alignment.planning.planners.explorer import ExplorerPlanner
from xrl_alignment.planning.planners.grounded import PlanGrammar
from xrl_alignment.planning.player import Answerer, PlanningPlayer, PlanSettings
from xrl_alignment.play.rollouts.sequential import SequentialExecutor
from xrl_alignment.settings.planning import PlannerConfig, PlanRules

ROOM = (
    "You are in the middle of a room. Looking quickly around you, you see a desk 2, a desk 1, and a shelf 1.\n"
    "Your task is to: put a pen in shelf."
)
BEEN = (
    ("go to desk 2", "You arrive at desk 2. On the desk 2, you see a pen 3, and a mug 1."),
    ("take mug", "You pick up the mug 1 from the desk 2."),
)
START, LATER = PlanQuestion(ROOM), PlanQuestion(ROOM, BEEN[-1][1], BEEN, searched=("desk 2",))
# Named by reports, and not looked into: a place that is closed, and one that the agent was sent to and did not reach.
TOLD = (
    ("go to cabinet 12", "You arrive at cabinet 12. The cabinet 12 is closed."),
    ("go to cabinet 2", "You are facing the cabinet 1, and cabinet 2. Next to it, you see nothing."),
)
KITCHEN = PlanQuestion(ROOM.replace("a desk 2, a desk 1", "a cabinet 12, a cabinet 2, a cabinet 1"), TOLD[-1][1], TOLD)


@pytest.mark.parametrize(
    ("question", "plan"),
    [
        (START, "go to desk 1"),
        (START, "go to desk 2, go to desk 1, take pen, put pen in/on shelf 1"),
        (START, "take pen, clean pen, heat pen, cool pen, put pen in/on desk, use desklamp"),
        (LATER, "take pen 3, put pen 3 in/on desk 2"),
        (LATER, ", ".join(["go to shelf 1", *["take pen"] * 11])),
        (KITCHEN, "go to cabinet 1, go to cabinet 12, go to cabinet 2, take pen"),
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
        (KITCHEN, "go to cabinet 1, go to cabinet 1, "),
        (KITCHEN, "go to cabinet 1, go to cabinet 1,"),
    ],
)
def test_no_plan_begins_like_that(question, text) -> None:
    assert not PlanGrammar(question).begins(text) and not PlanGrammar(question).ends(text)


def test_a_search_is_not_repeated_where_its_number_begins_another_one() -> None:
    grammar = PlanGrammar(KITCHEN)
    text = "go to cabinet 1, go to cabinet 1"
    assert grammar.begins(text) and not grammar.ends(text) and grammar.ends(f"{text}2")


@pytest.mark.parametrize(
    ("text", "cut", "whole"),
    [
        ("go to cabinet 2, take mug", False, "go to cabinet 2, take mug"),
        ("go to cabinet 2, take mu", True, "go to cabinet 2"),  # perhaps `mug`
        ("go to cabinet 2, take mug,", True, "go to cabinet 2, take mug"),
        ("go to cabinet 2, go", False, "go to cabinet 2"),
        ("take mug", True, "take mug"),
        ("take", False, ""),
    ],
)
def test_of_a_plan_that_was_cut_its_whole_actions_stay(text: str, cut: bool, whole: str) -> None:
    assert PlanGrammar(KITCHEN).whole(text, cut=cut) == whole


def test_words_that_no_reader_takes_for_a_thing_end_no_action() -> None:
    grammar = PlanGrammar(START)
    for word in ("the", "then", "an"):
        assert grammar.begins(f"take {word}") and not grammar.ends(f"take {word}")
        assert not grammar.begins(f"take {word}, go to desk 1") and not grammar.begins(f"put {word} in/on desk 1, ")
    assert grammar.ends("take thermos") and grammar.ends("put antenna in/on desk 1")


def test_all_places_may_be_searched_again_once_all_were_searched_in_vain() -> None:
    some, every_one = ("desk 1", "desk 2"), ("desk 1", "desk 2", "shelf 1")
    grammars = [PlanGrammar(PlanQuestion(ROOM, searched=searched)) for searched in (some, every_one)]
    assert [grammar.ends("go to desk 1, go to shelf 1") for grammar in grammars] == [False, True]


def test_a_text_without_a_room_has_plans_without_places() -> None:
    grammar = PlanGrammar(PlanQuestion("Your task is to: look."))
    assert grammar.ends("take pen, use desklamp") and not grammar.begins("go") and not grammar.begins("p")


def test_an_untrained_model_writes_plans_of_the_room_and_judgements_freely(local_planner) -> None:
    free, grounded = local_planner(), local_planner(grounded=True)
    grounded.max_answer_tokens = free.max_answer_tokens = 40  # cuts most of these plans
    questions = [START, LATER, PlanQuestion("Your task is to: look."), LATER._replace(plan="take pen 3")]
    answers = grounded.plan_all(questions)
    assert all(PlanGrammar(question).ends(answers[i].text) for i, question in enumerate(questions[:3]))
    assert answers[3] == free.plan_all(questions)[3]
    assert answers == [grounded.plan_all([question])[0] for question in questions]


def test_a_plan_that_has_failed_gives_way_to_another_one(local_planner) -> None:
    grounded = local_planner(grounded=True)
    grounded.max_answer_tokens = 24
    (answer,) = grounded.plan_all([START])
    again = START._replace(failed=(answer.text,))
    other, same = grounded.plan_all([again, START])
    assert same == answer and other.text != answer.text and PlanGrammar(START).ends(other.text)
    assert grounded.plan_all([again]) == [other]
    # Without a grammar no other one is looked for.
    free = local_planner()
    free.max_answer_tokens = 24
    (text,) = free.plan_all([START])
    assert free.plan_all([START._replace(failed=(text.text,))]) == [text]


class Watched(ExplorerPlanner):
    """Remembers what it was asked and said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[PlanQuestion, str]] = []

    def plan_all(self, questions):
        answers = super().plan_all(questions)
        self.said += [(question, answer.text) for question, answer in zip(questions, answers, strict=True)]
        return answers


@pytest.mark.parametrize("agent", [False, True])
def test_what_the_explorer_plans_is_in_the_grammar(household_data, agent) -> None:
    """Else no planner could learn its corrections."""
    planner, settings = Watched(), PlanSettings(PlanRules(replan_every=5))
    player = PlanningPlayer(lambda: make_environment("native"), settings, agent=agent)
    with SequentialExecutor(8) as executor:
        games = find_games("household_train", data=household_data)
        answer = Answerer(planner, RandomPolicy(0))
        won = [one.value.result.won for one in executor.run(player, games, answer=answer)]
    assert agent or all(won)
    said = [(question, text) for question, text in planner.said if text]  # it may know nothing to do
    outside = [text for question, text in said if not PlanGrammar(question).ends(text)]
    assert len(said) > len(games) and len(outside) <= 0.02 * len(said), outside


def test_only_a_planner_of_this_process_is_grounded() -> None:
    with pytest.raises(ConfigError, match=r"planner\.grounded"):
        PlannerConfig(name="endpoint", model="m", grounded=True).check_combinations()
