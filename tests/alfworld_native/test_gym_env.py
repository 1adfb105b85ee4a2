"""The gymnasium interface: gymnasium's own checker, games by order and by draw, auto-reset."""

from __future__ import annotations

import dataclasses

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from alfworld_native.engine.gamefile import read_json
from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import find_games
from alfworld_native.gym_env import ALFWorldEnv, ALFWorldVectorEnv
from alfworld_native.registration import ENV_ID, IDS, register_environments
from lavis.common.errors import ConfigError


@pytest.fixture(scope="module")
def games(household_data):
    return find_games("household_heldout", data=household_data)


@pytest.mark.parametrize("image", [False, True])
def test_gymnasium_accepts_it(games, image):
    env = gymnasium.make(ENV_ID, games=games, image=image, image_size=64, render_mode="rgb_array")
    check_env(env.unwrapped)
    observation, info = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert "look" in info["admissible_commands"] and not info["won"]
    env.close()


def test_registering_twice_is_fine():
    register_environments()
    register_environments()
    assert all(gymnasium.spec(name).vector_entry_point.endswith("ALFWorldVectorEnv") for name in IDS)


def test_the_published_id_of_before_still_works(games):
    env = gymnasium.make("xrl_alignment.environments.gym_env:EMAC/ALFWorld-v0", games=games)
    assert isinstance(env.unwrapped, ALFWorldEnv)


def test_an_episode_ends_with_a_reward_when_the_goal_is_reached(games):
    env = ALFWorldEnv(games=games, render_mode="ansi")
    text = env.reset(options={"game": games[0].id})[0]["text"]
    assert "Your task is to" in text and env.render() == text
    *path, last = read_json(games[0].path)["walkthrough"]
    for command in path:
        assert env.step(command)[1:4] == (0.0, False, False)
    assert env.step(last)[1:4] == (1.0, True, False)
    with pytest.raises(EnvironmentFault, match="over"):
        env.step("look")


def test_an_episode_is_truncated_at_the_step_limit(games):
    env = ALFWorldEnv(games=games, max_steps=2)
    env.reset(seed=0)
    assert env.step("look")[2:4] == (False, False)
    assert env.step("look")[2:4] == (False, True)
    steps = [ALFWorldEnv(games=games, split=split)._engine.max_steps for split in (None, "household_house")]
    assert steps == [50, 150], "a level's games have a horizon of their own"
    mixed = [dataclasses.replace(game, id=f"{game.id.split('/')[0]}/trial_H-1_compound100_000000") for game in games]
    alone, several = ALFWorldEnv(games=[games[0], *mixed]), ALFWorldVectorEnv(1, games=[games[0], *mixed])
    assert (alone._engine.max_steps, several._engines[0].max_steps) == (100, 100), "the id of a mixture's game tells it"


def test_games_come_in_order_or_by_seed(games):
    in_order = ALFWorldEnv(games=games, shuffle=False)
    assert [in_order.reset()[1]["game"] for _ in games] == [game.id for game in games]
    assert [in_order.reset(seed=seed)[1]["game"] for seed in (0, None, 1)] == [games[i].id for i in (0, 1, 0)]
    drawn = ALFWorldEnv(games=games)
    first = [drawn.reset(seed=3)[1]["game"], *(drawn.reset()[1]["game"] for _ in range(5))]
    again = [drawn.reset(seed=3)[1]["game"], *(drawn.reset()[1]["game"] for _ in range(5))]
    assert first == again and len(set(first)) > 1


def test_the_vector_plays_like_single_environments(games):
    commands = ["look", "go to fridge 1", "inventory", "go to cabinet 1", "open cabinet 1"]
    envs = gymnasium.make_vec(ENV_ID, num_envs=3, games=games, shuffle=False, image=True, image_size=32)
    observations, infos = envs.reset(seed=0)
    singles = [ALFWorldEnv(games=[game], image=True, image_size=32) for game in games[:3]]
    alone = [env.reset() for env in singles]
    for command in [None, *commands]:
        if command:
            observations, _, _, _, infos = envs.step([command] * 3)
            stepped = [env.step(command) for env in singles]
            alone = [(observation, info) for observation, _, _, _, info in stepped]
        assert observations["text"] == tuple(observation["text"] for observation, _ in alone)
        assert all((observations["image"][i] == alone[i][0]["image"]).all() for i in range(3))
        assert list(infos["admissible_commands"]) == [info["admissible_commands"] for _, info in alone]
        assert envs.observation_space.contains(observations)
    envs.close()


def test_a_finished_game_is_replaced_in_the_same_step(games):
    envs = ALFWorldVectorEnv(2, games=games, shuffle=False, max_steps=30)
    _, infos = envs.reset()
    assert list(infos["game"]) == [games[0].id, games[1].id]
    *path, last = read_json(games[0].path)["walkthrough"]
    for command in path:
        envs.step([command, "look"])
    observations, rewards, terminated, truncated, infos = envs.step([last, "look"])
    assert list(rewards) == [1.0, 0.0] and list(terminated) == [True, False] and not truncated.any()
    assert list(infos["game"]) == [games[2].id, games[1].id] and "Your task is to" in observations["text"][0]
    assert list(infos["_final_obs"]) == [True, False] and infos["final_info"]["game"][0] == games[0].id
    assert infos["final_info"]["won"].sum() == 1 and infos["final_info"]["won"][0] and infos["final_obs"][1] is None
    assert infos["final_obs"][0]["text"] != observations["text"][0]


def test_bad_input(games):
    with pytest.raises(EnvironmentFault, match="empty"):
        ALFWorldEnv(games=[])
    with pytest.raises(EnvironmentFault, match="none of the 6 games"):
        ALFWorldEnv(games=games).reset(options={"game": "no such game"})
    with pytest.raises(EnvironmentFault, match="render_mode"):
        ALFWorldEnv(games=games, render_mode="human")
    with pytest.raises(EnvironmentFault, match="at least 1"):
        ALFWorldVectorEnv(0, games=games)
    for steps in (0, 1.5):
        with pytest.raises(EnvironmentFault, match=f"max_steps is {steps}; give a whole number"):
            ALFWorldEnv(games=games, max_steps=steps)
    with pytest.raises(EnvironmentFault, match=r"num_envs is 1\.5; give a whole number"):
        ALFWorldVectorEnv(1.5, games=games)
    with pytest.raises(ConfigError, match="frame size is 100000; frames are 32 to 4096 pixels"):
        ALFWorldEnv(games=games, image=True, image_size=100_000)
    with pytest.raises(ConfigError, match="frame size is 0"):
        ALFWorldEnv(games=games, image=True, image_size=0).reset()
    with pytest.raises(EnvironmentFault, match="render_mode 'ansi' is unknown"):
        ALFWorldVectorEnv(2, games=games, render_mode="ansi")
    arrayed = ALFWorldVectorEnv(2, games=games)
    _, infos = arrayed.reset(options={"games": np.array([games[1].id, games[0].id])})
    assert list(infos["game"]) == [games[1].id, games[0].id]
    envs = ALFWorldVectorEnv(2, games=games)
    with pytest.raises(EnvironmentFault, match="reset"):
        envs.step(["look", "look"])
    envs.reset(seed=np.int64(1).item())
    with pytest.raises(EnvironmentFault, match="2 commands, one for each game; got 1"):
        envs.step(["look"])
    with pytest.raises(EnvironmentFault, match="not int"):
        envs.step(["look", 3])


def test_by_looks_only_the_image_tells_what_lies_where(games):
    options = {"tell_objects": False, "show_ids": False, "name_by": "type", "camera": "close", "image": True}
    env = ALFWorldEnv(games=games, image_size=64, **options)
    vector = ALFWorldVectorEnv(num_envs=2, games=games, shuffle=False, image_size=64, **options)
    plain = ALFWorldEnv(games=games, image=True, image_size=64, show_ids=False)
    for one in (env, plain):
        one.reset(options={"game": games[0]})
    vector.reset(seed=0)
    taken = 0
    for command in [each for each in env.step("look")[4]["admissible_commands"] if each.startswith("go to ")]:
        seen, _, _, _, info = env.step(command)
        assert "you see" not in seen["text"] and seen["image"].shape == (64, 64, 3)
        assert (seen["image"] != plain.step(command)[0]["image"]).any()
        both, *_ = vector.step([command, "look"])
        assert both["text"][0] == seen["text"] and (both["image"][0] == seen["image"]).all()
        takes = [each for each in info["admissible_commands"] if each.startswith("take ")]
        assert not any(each.split(" from ")[0][-1].isdigit() for each in takes)
        taken += len(takes)
    assert taken
    with pytest.raises(EnvironmentFault, match="unknown camera 'around'"):
        ALFWorldEnv(games=games, camera="around")


def test_who_asks_for_official_games_hears_how_to_get_them():
    with pytest.raises(EnvironmentFault, match=r"games='official': .*split='valid_seen'; get the official games"):
        ALFWorldEnv(games="official")


def test_an_option_or_a_game_that_is_none_is_refused(games):
    """A misspelt option played another game without a word."""
    single = gymnasium.make("alfworld_native:ALFWorldNative-v0", games=games[:2])
    with pytest.raises(EnvironmentFault, match="reset knows the option 'game', not 'games'"):
        single.reset(options={"games": [games[0].id]})
    with pytest.raises(EnvironmentFault, match=r"games holds .*, no Game"):
        gymnasium.make("alfworld_native:ALFWorldNative-v0", games=[games[0].id])
    with pytest.raises(EnvironmentFault, match="games=3: give a list of games, or 'generated'"):
        ALFWorldEnv(games=3)
    with pytest.raises(EnvironmentFault, match=r"game \['x'\] is none of the 2 games"):
        single.reset(options={"game": ["x"]})
    with pytest.raises(EnvironmentFault, match=r"reset\(options=\['game'\]\): give a dictionary"):
        ALFWorldEnv(games=games).reset(options=["game"])
    for wanted in (3, games[0], games[0].id):
        with pytest.raises(EnvironmentFault, match=r"options\['games'\] is .*: give a list, a game for each"):
            ALFWorldVectorEnv(2, games=games).reset(options={"games": wanted})


@pytest.mark.parametrize("camera", ["front", "close"])
def test_who_writes_on_an_image_does_not_change_the_next(games, camera):
    env = ALFWorldEnv(games=games, image=True, camera=camera)
    image = env.reset()[0]["image"]
    kept = image.copy()
    image[:] = 0
    assert (env.step("look")[0]["image"] == kept).all()
