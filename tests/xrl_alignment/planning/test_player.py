"""Games with a planner: who acts, what the agent reads, what is stored, why a game ends."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from alfworld_native import make_environment
from alfworld_native.engine.environment import NativeEnvironment
from xrl_alignment.planning.planners.explorer import ExplorerPlanner
from xrl_alignment.planning.player import Answerer, PlanningPlayer, PlanSettings, instructed, step_tokens
from xrl_alignment.play.rollouts.episode import Episode
from xrl_alignment.play.rollouts.sequential import SequentialExecutor
from xrl_alignment.settings.planning import PlanRules


def play(games, answerer, settings: PlanSettings | None = None, text_noise: float = 0.0, name_by="number", **options):
    options = {"agent": False, **options}
    environment = partial(make_environment, "native", text_noise=text_noise, name_by=name_by)
    player = PlanningPlayer(environment, settings or PlanSettings(), **options)
    with SequentialExecutor(4) as executor:
        return [one.value for one in executor.run(player, games, answer=answerer)]


def test_the_agent_reads_the_newest_high_level_action_as_a_thought() -> None:
    assert instructed([("look", "A room.")], "take mug") == [("look", "A room."), ("think: take mug", "OK.")]
    assert instructed([("look", "A room.")], "") == [("look", "A room.")]


def test_the_agent_acts_and_every_state_has_the_plans_label(games, scripted) -> None:
    policy = scripted("look")
    (played,) = play(games[:1], Answerer(ExplorerPlanner(), policy), PlanSettings(max_steps=3), agent=True, store=True)
    plan = played.calls[0]["plan"].split(", ")
    assert policy.inputs[0].prompt.endswith(f"> think: {plan[0]}\nOK.\n> ")
    assert policy.inputs[1].prompt.count("think:") == 1
    assert [t.executed for t in played.transitions] == ["look"] * 3 and played.ended == "steps"
    assert {t.text_output for t in played.transitions} == {plan[0]}  # the agent never goes there
    assert played.transitions[0].text_output_neg == "look" and played.transitions[0].feedback.startswith("You are")
    assert played.transitions[0].image.any()


@pytest.mark.parametrize("told", [True, False])
def test_a_thought_names_places_if_the_agents_text_names_objects(games, told) -> None:
    settings = PlanSettings(tell_objects=told)
    (played,) = play(games[:1], Answerer(ExplorerPlanner()), settings, agent=True, store=True, beta=1.0)
    thoughts = [one.text_input.rpartition("think: ")[2].partition("\n")[0] for one in played.transitions]
    took = next(one.text_output for one in played.transitions if one.text_output.startswith("take "))
    assert (took in thoughts) == told and (told or took.partition(" from ")[0] in thoughts)


def test_with_beta_one_the_command_of_the_plan_is_executed_and_the_agent_is_not_asked(games) -> None:
    played = play(games, Answerer(ExplorerPlanner()), agent=True, store=True, beta=1.0)
    assert all(one.result.won and one.ended == "won" for one in played)
    assert all(t.executed == t.text_output and not t.text_output_neg for one in played for t in one.transitions)


@pytest.mark.parametrize("preferences", [False, True])
def test_for_dpo_the_agent_is_asked_also_where_the_plans_command_is_executed(games, scripted, preferences) -> None:
    answerer = Answerer(ExplorerPlanner(), scripted("look"))
    (played,) = play(games[:1], answerer, agent=True, store=True, beta=1.0, preferences=preferences)
    assert played.assisted and all(t.executed == t.text_output for t in played.transitions)
    assert {t.text_output_neg for t in played.transitions} == ({"look"} if preferences else {""})


def test_who_acts_is_drawn_by_seed_and_game_and_a_game_says_whether_it_had_help(games, scripted) -> None:
    def executed(seed: int, chosen: list) -> list[list[bool]]:
        settings = PlanSettings(max_steps=5, seed=seed)
        answerer = Answerer(ExplorerPlanner(), scripted("look"))
        played = play(chosen, answerer, settings, agent=True, store=True, beta=0.2)
        helped = [[one.executed != "look" for one in each.transitions] for each in played]
        assert [each.assisted for each in played] == list(map(any, helped))
        return helped

    drawn = [executed(seed, games[:2]) for seed in range(8)]
    assert drawn == [[*executed(seed, games[:1]), *executed(seed, games[1:2])] for seed in range(8)]
    flat = [helped for each in drawn for helped in each]
    assert len(set(map(tuple, flat))) > 4
    assert not all(map(any, flat)) and any(any(helped) and not helped[-1] for helped in flat)


def test_an_agent_that_says_nothing_costs_a_step(games, scripted) -> None:
    settings = PlanSettings(max_steps=2)
    (played,) = play(games[:1], Answerer(ExplorerPlanner(), scripted("")), settings, agent=True, store=True)
    assert [(t.executed, t.text_output_neg) for t in played.transitions] == [("look", "")] * 2


def test_noise_on_texts_is_on_what_the_planner_reads_and_not_on_how_plans_are_carried_out(games, written) -> None:
    for game in games:
        (played,) = play([game], Answerer(ExplorerPlanner()))
        plan = ", ".join(action for _, action in played.carried_out)
        rules = PlanSettings(PlanRules(replan_every=2))
        clear, noisy = (play([game], Answerer(written(plan)), rules, text_noise=rate)[0] for rate in (0.0, 0.9))
        assert clear.result.won and noisy.result.won and clear.result.actions == noisy.result.actions
        assert clear.calls[-1]["history"] != noisy.calls[-1]["history"], "it was told other words"


def test_a_teacher_that_is_asked_before_every_action_reads_the_game_again_each_time(games) -> None:
    episode = Episode(game="pick", text="room", steps=[("go", "here"), ("take mug", "yes")])
    assert step_tokens(episode, len) == (4 + 2) + (4 + 2 + 4 + 8)
    (played,) = play(games[:1], Answerer(ExplorerPlanner()), count=len)
    assert played.record()["step_tokens"] > 200 * played.result.actions


def test_a_game_without_a_plan_ends_and_says_why(games, written) -> None:
    (played,) = play(games[:1], Answerer(written("sing")), PlanSettings(PlanRules(max_replans=2)))
    assert not played.result.won and played.ended == "cap of 2 replans" and played.result.actions == 0
    assert len(played.calls) == 3 and played.triggers == {"start": 1, "rejected": 2}


def test_an_agent_without_a_plan_goes_on_alone(games, written, scripted) -> None:
    policy = scripted("look", "inventory")
    settings = PlanSettings(PlanRules(max_replans=0), max_steps=4)
    (played,) = play(games[:1], Answerer(written("sing"), policy), settings, agent=True, store=True)
    assert "think:" not in policy.inputs[0].prompt and played.result.actions == 4 and played.transitions == []


def test_with_beta_one_a_game_without_a_command_is_over_as_nothing_is_left_to_learn(games, written) -> None:
    answerer = Answerer(written("sing"))  # no policy: the agent may not be asked
    (played,) = play(games[:1], answerer, PlanSettings(PlanRules(max_replans=2)), agent=True, store=True, beta=1.0)
    assert played.ended == "cap of 2 replans" and played.result.actions == 0 and played.transitions == []


def test_descriptions_are_asked_of_the_frame_after_the_action(games) -> None:
    asked = []

    def describe(prompts, images):
        asked.extend(zip(prompts, images, strict=True))
        return ["You arrive there. On the desk 1, you see a unicorn 1.\n> look"] * len(prompts)

    settings = PlanSettings(PlanRules(report="image"), max_steps=6)
    (played,) = play(games[:1], Answerer(ExplorerPlanner(), describe=describe), settings)
    prompt, image = asked[0]
    assert (
        prompt.rpartition("\n> ")[2].startswith(("go to ", "open "))
        and isinstance(image, np.ndarray)
        and image.dtype == np.uint8
    )
    assert f"> {prompt.rpartition('> ')[2]}\n" not in prompt, "the engine's own words for this frame"
    assert played.sight.named == len(asked) and played.sight.right == 0
    assert any("I see unicorn 1." in report for call in played.calls for _, report in call["history"])


def test_objects_without_numbers_are_described_and_counted(games) -> None:
    """Of names without a number the planner was told "I see nothing.", and none counted."""

    def describe(prompts, images):
        return ["On the desk 1, you see a unicorn, and a unicorn."] * len(prompts)

    settings = PlanSettings(PlanRules(report="image"), max_steps=6, by_type=True)
    (played,) = play(games[:1], Answerer(ExplorerPlanner(), describe=describe), settings, name_by="type")
    assert any("I see unicorn, unicorn." in report for call in played.calls for _, report in call["history"])
    assert played.sight.named > 0 and played.sight.named % 2 == 0 and played.sight.there > 0


def test_an_agent_that_repeats_itself_ends_its_game_as_stuck(games, scripted) -> None:
    for limit, actions in ((0, 7), (2, 2)):
        settings = PlanSettings(max_steps=7, repeat_limit=limit)
        (played,) = play(games[:1], Answerer(ExplorerPlanner(), scripted("look")), settings, agent=True)
        assert played.result.actions == actions and played.ended == ("stuck" if limit else "steps")


def test_blank_frames_are_what_the_agent_acts_on_and_describes(games, scripted) -> None:
    policy, images = scripted("look"), []

    def describe(prompts, frames):
        images.extend(frames)
        return [""] * len(prompts)

    settings = PlanSettings(PlanRules(report="image"), max_steps=6, blank_frames=True)
    for agent in (True, False):
        play(games[:1], Answerer(ExplorerPlanner(), policy, describe), settings, agent=agent)
    assert images and policy.inputs
    assert not any(image.any() for image in [*images, *(asked.image for asked in policy.inputs)])


def test_a_record_is_plain_and_holds_what_the_planner_learns_from(games) -> None:
    record = play(games[:1], Answerer(ExplorerPlanner()))[0].record()
    assert record["result"]["won"] and record["goal"].startswith("You are in the middle")
    call = record["calls"][0]
    assert call["planner"] == "explorer" and call["corrected"] == call["plan"]


def test_a_missing_part_is_a_mistake_of_the_caller(games) -> None:
    with pytest.raises(ValueError, match="there is no policy"):
        play(games[:1], Answerer(ExplorerPlanner()), agent=True)
    with pytest.raises(ValueError, match="reports of images"):
        play(games[:1], Answerer(ExplorerPlanner()), PlanSettings(PlanRules(report="both")))


def test_a_game_that_is_over_when_it_is_loaded_asks_nobody(games) -> None:
    class Over(NativeEnvironment):
        def reset(self, game):
            return super().reset(game)._replace(won=True, done=True)

    player = PlanningPlayer(Over, PlanSettings(), agent=False)
    with SequentialExecutor() as executor:
        played = executor.run_one(player, games[0]).value  # nobody answers
    assert played.ended == "won" and played.calls == [] and played.goal.startswith("You are in the middle")
