"""Whole episodes without learning, on the native engine and generated games."""

import pytest

from alfworld_native import make_environment
from xrl_alignment.agents.experts import Label, make_expert
from xrl_alignment.play.evaluation.actors import ExpertActor, PolicyActor
from xrl_alignment.play.evaluation.metrics import EpisodeResult
from xrl_alignment.play.evaluation.trials import play_games


def native():
    return make_environment("native")


def explorer():
    return ExpertActor(lambda environment: make_expert("explorer", environment=environment))


def test_an_expert_plays_every_game_once_in_the_order_of_the_list(games):
    results = play_games(explorer(), games, native, concurrency=3)
    assert [r.game for r in results] == [game.id for game in games]
    assert all(r.won and 0 < r.actions <= 50 and r.task_type == r.game.split("-")[0] for r in results)


def test_concurrency_changes_nothing(games):
    assert play_games(explorer(), games, native, concurrency=1) == play_games(explorer(), games, native)


def test_the_policy_sees_prompt_frame_and_commands(games, scripted):
    policy = scripted("look")
    results = play_games(PolicyActor(policy=policy), games[:1], native, max_steps=2, memories={games[0].id: ["Try."]})
    first, second = policy.inputs
    assert first.prompt.startswith("Memory: Try.\nYou are in the middle of a room.") and first.image.any()
    assert "\n> look\n" in second.prompt and "look" in first.admissible_commands
    assert results == [EpisodeResult(games[0].id, games[0].task_type, False, 2, 0)]


def test_training_and_evaluation_show_the_policy_the_same(make_run, games, scripted):
    online, offline = scripted("look", "inventory"), scripted("look", "inventory")
    make_run(policy=online, games=games[:1], num_rounds=1, max_steps=3).play()
    play_games(PolicyActor(policy=offline), games[:1], native, max_steps=3)
    for one, other in zip(online.inputs, offline.inputs, strict=True):
        assert one.prompt == other.prompt and (one.image == other.image).all()
        assert list(one.admissible_commands) == list(other.admissible_commands)


def test_a_policy_that_reads_several_frames_gets_those_before_in_training_and_evaluation(make_run, games, scripted):
    moves = ("go to desk 1", "look", "inventory", "go to bed 1")
    online, offline = scripted(*moves), scripted(*moves)
    online.frames = offline.frames = 3
    make_run(policy=online, games=games[:1], num_rounds=1, max_steps=4).play()
    play_games(PolicyActor(policy=offline), games[:1], native, max_steps=4)
    for policy in (online, offline):
        seen = [given.image for given in policy.inputs]
        assert [len(given.earlier) for given in policy.inputs] == [0, 1, 2, 2]
        for now, given in enumerate(policy.inputs):
            before = seen[max(0, now - 2) : now]
            assert all((one == other).all() for one, other in zip(given.earlier, before, strict=True))
    assert len(online.inputs) == len(offline.inputs) == 4


def test_blank_frames_are_black(games, scripted):
    policy = scripted("look")
    play_games(PolicyActor(policy=policy, blank_frames=True), games[:1], native, max_steps=1)
    assert policy.inputs[0].image.shape == (224, 224, 3) and not policy.inputs[0].image.any()


def test_thoughts_cost_no_step_where_they_are_enabled(games, scripted):
    plain, thinking = (
        play_games(
            PolicyActor(policy=scripted("think: where?", "look")), games[:1], native, max_steps=2, enable_tc=enable
        )[0]
        for enable in (False, True)
    )
    assert (plain.actions, plain.rejected) == (2, 1) and (thinking.actions, thinking.rejected) == (2, 0)


def test_endless_thinking_ends(games, scripted):
    traces = []
    play_games(
        PolicyActor(policy=scripted("think: hm")),
        games[:1],
        native,
        max_steps=1,
        enable_tc=True,
        on_result=lambda result, trace: traces.append(trace),
    )
    assert [feedback for _, feedback in traces[0].steps] == ["OK.", "OK.", "OK.", "Nothing happens."]


def test_stuck_games_end_early(games, scripted):
    result = play_games(PolicyActor(policy=scripted("dance")), games[:1], native, repeat_limit=3)[0]
    assert (result.actions, result.rejected, result.won) == (3, 3, False)


def test_an_expert_without_an_answer_looks(games):
    class Silent:
        name = "silent"

        def begin(self, intro, **context):
            pass

        def observe(self, action, feedback):
            assert action == "look"

        def act(self, information=None):
            return Label(None)

    results = play_games(ExpertActor(lambda environment: Silent()), games[:1], native, max_steps=2)
    assert results[0].actions == 2


def test_environments_are_closed_also_after_an_error(games):
    closed = []

    class Closing:
        def __init__(self):
            self.inner = native()

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def close(self):
            closed.append(self)

    class Broken(PolicyActor):
        def answer(self, questions):
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        play_games(Broken(policy=None), games, Closing, concurrency=2)
    assert len(closed) == 2
