"""The same games again and again, with memories of the failures between trials."""

import pytest

from alfworld_native import make_environment
from alfworld_native.errors import EnvironmentFault
from lavis.common.errors import ConfigError
from xrl_alignment.agents.experts import Label, make_expert
from xrl_alignment.agents.reflexion.rule import RuleReflector
from xrl_alignment.play.evaluation.actors import ExpertActor, PolicyActor
from xrl_alignment.play.evaluation.metrics import EpisodeResult
from xrl_alignment.play.evaluation.reads import RestrictedExpert
from xrl_alignment.play.evaluation.trials import Trials, play_games, swapped


def native():
    return make_environment("native")


def explorer():
    return ExpertActor(lambda environment: make_expert("explorer", environment=environment))


def test_trials_leave_solved_games_and_give_memories_to_the_others(games, scripted):
    policy = scripted("look")
    trials = Trials(
        actor=PolicyActor(policy=policy),
        games=games[:1],
        make_environment=native,
        reflector=RuleReflector(),
        max_steps=1,
    )
    for _ in range(2):
        trials.play(lambda result, trace: None)
    assert policy.inputs[1].prompt.startswith("Memory: (by rule)") and len(trials.results) == 2
    won = Trials(actor=explorer(), games=games, make_environment=native)
    for _ in range(2):
        won.play(lambda result, trace: None)
    assert won.results[1] == [] and won.best == won.first and len(won.best) == len(games)


def test_swapped_memories_are_those_of_another_game(games, scripted):
    policy = scripted("look")
    trials = Trials(
        actor=PolicyActor(policy=policy),
        games=games[:2],
        make_environment=native,
        reflector=RuleReflector(),
        swap_memories=True,
        max_steps=1,
    )
    trials.play(lambda result, trace: None)
    trials.play(lambda result, trace: None)
    own = [policy.inputs[i].prompt for i in (0, 1)]
    again = [policy.inputs[i].prompt.partition("\n") for i in (2, 3)]
    assert [rest for _, _, rest in again] == own
    lines = [trials._memories[slot][0] for slot in ("0", "1")]
    assert lines[0] != lines[1]
    assert [head for head, _, _ in again] == [f"Memory: {lines[1]}", f"Memory: {lines[0]}"]


def test_one_failed_game_gets_no_memories_of_another():
    assert swapped({"a": ["mine"]}, ["a", "b"]) == {}
    assert swapped({"a": ["a's"], "c": ["c's"]}, ["a", "b", "c"]) == {"a": ["c's"], "c": ["a's"]}


class Solving(PolicyActor):
    """Solves the games whose ids it gets, and looks around in the others."""

    def __init__(self, solved):
        super().__init__(policy=None)
        self.make_expert = lambda environment: self
        self.solved, self.played, self.name = set(solved), [], "solving"

    def begin(self, intro, *, task_type="", memories=()):
        self.played.append((task_type, list(memories)))
        self._expert = make_expert("explorer")
        self._expert.begin(intro)
        self._solves = task_type in self.solved

    def observe(self, action, feedback):
        self._expert.observe(action, feedback)

    def act(self, information=None):
        return self._expert.act() if self._solves else Label("look")


def test_moving_slots_count_a_game_as_often_as_slots_meet_it(games):
    """EMMA's way: slot i gets the game of slot i - 1, and one game that can be solved solves a slot in each trial."""
    actor = Solving([games[0].id])
    options = {"make_environment": native, "reflector": RuleReflector(), "max_steps": 30}
    trials = Trials(actor=actor, games=games, moving_slots=True, **options)
    for _ in range(3):
        trials.play(lambda result, trace: None)
    a, b, c, d = (game.id for game in games)
    assert [[result.game for result in trial] for trial in trials.results] == [[a, b, c, d], [a, b, c], [a, b]]
    assert trials.solved == {0, 1, 2} and sum(result.won for result in trials.best) == 1
    assert [result.game for result in trials.best] == [a, b, c, d] and trials.best[0].won
    # The memory of slot 1 is of the game that it had before.
    second = actor.played[len(games)]
    assert second[0] == a and len(second[1]) == 1

    still = Trials(actor=Solving([games[0].id]), games=games, **options)
    for _ in range(3):
        still.play(lambda result, trace: None)
    assert still.solved == {0} and sum(result.won for result in still.best) == 1


def test_a_game_that_was_won_once_counts_as_won_whatever_comes_after(games):
    trials = Trials(actor=Solving([]), games=games[:1], make_environment=native, reflector=RuleReflector(), max_steps=3)
    won, lost = (EpisodeResult(games[0].id, games[0].task_type, won, 3, 0) for won in (True, False))
    for results in ([[won], [lost]], [[lost], [won]]):
        trials.results = results
        assert trials.best == [won]


@pytest.mark.parametrize("said", [None, "look", [], [None], ("look",)])
def test_a_policy_that_answers_with_no_list_of_texts_is_named(said, games):
    """None ended each game at once, as lost; a text was played letter by letter."""

    class Wrong:
        def act(self, inputs):
            return said

    with pytest.raises(ConfigError, match="policy Wrong: act must return a list with a text for each of the 1 inputs"):
        play_games(PolicyActor(policy=Wrong()), games[:1], native)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("look", "act must return a Label, not 'look'"),
        (Label(7), "a Label's action is a text or None, its thought a text"),
    ],
)
def test_an_expert_that_answers_with_no_label_is_named(games, said, reason):
    class Wrong:
        reads = ("text",)

        def begin(self, *_, **__):
            """Nothing."""

        def act(self, information=None):
            return said

    for kept in (Wrong, lambda: RestrictedExpert(Wrong())):  # of the latter the error named the class
        with pytest.raises(EnvironmentFault, match=f"expert Wrong: {reason}"):
            play_games(ExpertActor(lambda environment, make=kept: make()), games[:1], native)


def test_trials_refuse_a_game_that_is_listed_twice(games):
    with pytest.raises(ConfigError, match="a game is listed twice"):
        Trials(actor=explorer(), games=[games[0], games[0]], make_environment=native)
