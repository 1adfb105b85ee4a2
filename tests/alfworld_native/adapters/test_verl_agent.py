"""The adapter for verl-agent: groups, order of games, what reset and step return, clear errors."""

from __future__ import annotations

import pytest
import yaml

from alfworld_native.adapters.alfworld import AlfredTWEnv
from alfworld_native.adapters.verl_agent import build_alfworld_envs
from alfworld_native.errors import EnvironmentFault
from lavis.common.errors import ConfigError, MissingFileError


@pytest.fixture
def path(config, tmp_path):
    file = tmp_path / "config_tw.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


def test_groups_share_a_seed_and_play_the_games_of_alfworlds_order(config, path):
    environments = build_alfworld_envs(str(path), 7, 3, 2, {"num_cpus": 0.1}, is_train=True, env_kwargs={})
    alone = []
    for seed in (7, 8, 9):
        alone.append(AlfredTWEnv(config, "train").init_env(1, expert_plan=False))
        alone[-1].seed(seed)
    for _ in range(3):
        texts, images, infos = environments.reset()
        expected = [environment.reset() for environment in alone]
        assert texts == [text for (text,), _ in expected for _ in range(2)] and images is None
        assert infos == [
            {key: value[0] for key, value in info.items()} | {"observation_text": text}
            for (text,), info in expected
            for _ in range(2)
        ]


def test_an_episode_is_rewarded_with_ten(path):
    environments = build_alfworld_envs(path, 0, 1, 2, {}, True, {"expert_plan": True, "task_types": [2]})
    _, _, infos = environments.reset()
    assert "look_at_obj_in_light" in infos[0]["extra.gamefile"]
    assert environments.get_admissible_commands == [info["admissible_commands"] for info in infos]
    total = [0.0, 0.0]
    for _ in range(50):
        actions = [infos[0]["extra.expert_plan"][0], "look"]
        texts, images, rewards, dones, infos = environments.step(actions)
        assert images is None and environments.get_admissible_commands[1] == infos[1]["admissible_commands"]
        assert [info["observation_text"] for info in infos] == texts
        total = [before + reward for before, reward in zip(total, rewards, strict=True)]
        if any(dones):
            break
    assert total == [10.0, 0.0] and dones == [True, False] and [info["won"] for info in infos] == [True, False]
    environments.close()


def test_evaluation_plays_the_dataset_that_is_named(config, path):
    config["dataset"]["eval_ood_data_path"] = "/nowhere"
    path.write_text(yaml.safe_dump(config))
    with pytest.raises(MissingFileError, match="dataset.eval_ood_data_path: folder /nowhere does not exist"):
        build_alfworld_envs(path, 0, 1, 1, None, False, {"eval_dataset": "eval_out_of_distribution"})
    environments = build_alfworld_envs(path, 0, 1, 1, None, False, {"dialect": "put"})
    assert "extra.expert_plan" not in environments.reset()[2][0]


def test_there_may_be_more_groups_than_games(path):
    environments = build_alfworld_envs(path, 0, 6, 1, {}, False, {})
    played = [set() for _ in range(6)]
    for _ in range(4):
        for games, info in zip(played, environments.reset()[2], strict=True):
            games.add(info["extra.gamefile"])
    assert all(len(games) == 4 for games in played)
    assert len(environments.step(["look"] * 6)[0]) == 6


@pytest.mark.slow
def test_verl_agents_own_ray_workers_hold_our_environments(config, path):
    """verl-agent's own builder makes the games once and sends them to an actor for each environment."""
    ray = pytest.importorskip("ray")

    class Worker:
        def __init__(self, seed, base_env):
            self.env = base_env.init_env(batch_size=1)
            self.env.seed(seed)

        def reset(self):
            return self.env.reset()

        def step(self, action):
            return self.env.step([action])

    ours = build_alfworld_envs(path, 3, 2, 1, {}, False, {})
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        make = ray.remote(num_cpus=0.1)(Worker)
        base_env = AlfredTWEnv(config, "eval_in_distribution")
        workers = [make.remote(3 + number, base_env) for number in range(2)]
        for calls, answers in (
            ([worker.reset.remote() for worker in workers], ours.reset()),
            ([worker.step.remote("inventory") for worker in workers], ours.step(["inventory"] * 2)),
        ):
            given = ray.get(calls)
            assert [answer[0][0] for answer in given] == answers[0]
            assert [answer[-1]["admissible_commands"][0] for answer in given] == ours.get_admissible_commands
    finally:
        ray.shutdown()


def test_what_cannot_be_played_is_told_in_one_line(path, tmp_path):
    with pytest.raises(EnvironmentFault, match="env_num is 0"):
        build_alfworld_envs(path, 0, 0, 1, {})
    with pytest.raises(EnvironmentFault, match="seed is -1; give a whole number from 0"):
        build_alfworld_envs(path, -1, 1, 1, {})
    for seed in (None, "a"):
        with pytest.raises(ConfigError, match=f"seed is {seed!r}; give a whole number"):
            build_alfworld_envs(path, seed, 1, 1, {})
    with pytest.raises(ConfigError, match="expert_plan is 'false'; give True or False"):
        build_alfworld_envs(path, 0, 1, 1, {}, False, {"expert_plan": "false"})
    with pytest.raises(ConfigError, match="env_kwargs: unknown option 'eval_data': did you mean 'eval_dataset'"):
        build_alfworld_envs(path, 0, 1, 1, {}, False, {"eval_data": "eval_in_distribution"})
    with pytest.raises(MissingFileError, match="absent.yaml does not exist"):
        build_alfworld_envs(tmp_path / "absent.yaml", 0, 1, 1, {})
    path.write_text(path.read_text().replace("AlfredTWEnv", "AlfredThorEnv"))
    with pytest.raises(ConfigError, match="env.type is 'AlfredThorEnv'"):
        build_alfworld_envs(path, 0, 1, 1, {})
    path.write_text("env: [")
    with pytest.raises(ConfigError, match="cannot be read as yaml"):
        build_alfworld_envs(path, 0, 1, 1, {})
    path.write_text("general: 1")
    with pytest.raises(ConfigError, match="lacks the section env"):
        build_alfworld_envs(path, 0, 1, 1, {})


def test_the_number_of_actions_is_checked(path):
    environments = build_alfworld_envs(path, 0, 1, 2, {})
    with pytest.raises(EnvironmentFault, match="a list of 2 commands, one for each game; got 1"):
        environments.step(["look"])
    with pytest.raises(EnvironmentFault, match="call reset"):
        environments.step(["look", "look"])
