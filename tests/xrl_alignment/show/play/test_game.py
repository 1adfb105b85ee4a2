"""A game in progress: moves of anyone, the same as in evaluation; suggestions for every state."""

from __future__ import annotations

import numpy as np
import pytest

from alfworld_native import make_environment
from alfworld_native.drawing.frames import AROUND, objects_in_view, objects_labelled
from lavis.common.errors import ConfigError
from xrl_alignment.agents.experts import make_expert
from xrl_alignment.common.errors import BudgetSpent, EndpointFault
from xrl_alignment.play.evaluation.actors import ExpertActor
from xrl_alignment.play.evaluation.trials import play_games
from xrl_alignment.show.play.game import look
from xrl_alignment.show.play.recording import recorded
from xrl_alignment.show.play.terminal import summary_line


def test_the_expert_solves_it_by_the_same_moves_as_in_an_evaluation(new_game):
    game = new_game()
    while not game.over:
        game.play("expert")
    traces = []
    play_games(
        ExpertActor(lambda environment: make_expert("explorer")), [game.game], lambda: make_environment("native"),
        on_result=lambda result, trace: traces.append(trace),
    )  # fmt: skip
    assert game.won and [(move.action, move.feedback) for move in game.moves] == list(traces[0].steps)


def test_every_state_has_its_suggestions_frame_and_commands(new_game):
    asked = []
    game = new_game(suggest=lambda question: asked.append(question) or "Go to Desk 1.")
    assert game.players == ("you", "expert", "policy")
    before = game.moment
    assert before.policy == "Go to Desk 1." and before.label in before.commands and before.expert.thought
    move = game.play("you", "look")
    assert move.moment is before and move.feedback == game.moment.heard and move.player == "you"
    assert len(asked) == 2 and asked[1].steps == (("look", move.feedback),)
    assert np.array_equal(asked[0].image, before.frame) and asked[0].admissible_commands == before.commands


def test_without_an_answer_of_expert_or_policy_the_game_goes_on_and_says_why(new_game):
    """One error of an endpoint had ended the game for good, with a traceback for each further move."""
    answers = iter(["look", BudgetSpent("the expert's budget is spent"), "inventory"])

    def suggest(question):
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    game = new_game(suggest=suggest)
    game.play("policy")
    assert game.moment.policy is None and game.moment.label in game.moment.commands
    assert game.moment.expert.thought == "the policy has no answer: the expert's budget is spent"

    def spent(information):
        raise EndpointFault("no answer from http://x")

    game._expert.act = spent
    game.play("you", "look")
    assert (game.moment.label, game.moment.policy) == (None, "inventory")
    assert game.moment.expert.thought == "no answer: no answer from http://x"
    assert not game.over and len(game.moves) == 2


def test_a_thought_moves_nothing(new_game):
    game = new_game()
    before = game.moment
    move = game.play("you", "think: where is the mug")
    assert (move.action, move.feedback) == ("think: where is the mug", "OK.") and not game.over
    assert game.moment.commands == before.commands and game.moment.label == before.label
    assert game.moment.heard == "OK."
    # It is no action, and no answer that differs from the expert's.
    game.play("you", "look")
    told = recorded(game, frames=False)
    assert (len(game.moves), game.actions, told["actions"]) == (2, 1, 1)
    assert told["steps"][0]["agent"] is None and told["steps"][1]["agent"] == "look"
    assert summary_line(game) == "left in 1 steps, 0 of 1 as the expert"


def test_names_are_those_in_the_frame_and_what_is_held_is_told(new_game):
    game = new_game()
    while not game.over and not game.moment.holding:
        game.play("expert")
    assert game.moves[-1].action.startswith(f"take {game.moment.holding} from")
    assert any(name in game.moves[-1].action for name in game.moment.names)


def test_around_all_four_frames_tell_their_objects_and_another_games_frames_tell_none(new_game):
    game = new_game().game
    environment = make_environment("native", camera="around")
    environment.reset(game)
    state = environment.room_state()
    seen, front = look(environment), objects_in_view(state)
    everywhere = {name for turn in range(AROUND) for name in objects_in_view(state, turn=turn)}
    assert set(seen.things) == everywhere > set(front)
    assert set(seen.names) == objects_labelled(state, around=True).keys()
    other = make_environment("native", other_frames=True)
    other.reset(game)
    assert look(other)[2:4] == ((), None)


def test_who_is_not_there_cannot_play(new_game):
    game = new_game(expert="")
    assert game.players == ("you",) and game.moment.expert is None and game.moment.label is None
    with pytest.raises(ConfigError, match="nobody plays as expert: give --expert or --checkpoint"):
        game.play("expert")
