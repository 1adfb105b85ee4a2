"""`env.py` as LeRobot's EnvHub loads it: a file with `make_env`, and what LeRobot reads of the environments.

Where LeRobot is installed its own functions do it, else the same steps by its documentation.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from alfworld_native.errors import EnvironmentFault
from alfworld_native.experts.explorer import Explorer
from alfworld_native.language.sentences import TASK_TYPES
from lavis.common.paths import REPO_ROOT

FILE = REPO_ROOT / "examples" / "lerobot" / "env.py"
N = 2


@pytest.fixture(scope="module")
def env_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The file in a folder of its own, as it is after a download."""
    folder = tmp_path_factory.mktemp("hub")
    (folder / "env.py").write_bytes(FILE.read_bytes())
    spec = importlib.util.spec_from_file_location("hub_env_you_household", folder / "env.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))  # generated games go there
        yield module


@pytest.fixture(scope="module")
def suites(env_module: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict:
    before = set(FILE.parent.rglob("*"))
    made = env_module.make_env(n_envs=N, use_async_envs=False)
    assert set(FILE.parent.rglob("*")) == before
    return made


def test_a_suite_has_a_vector_environment_for_each_type_of_task(suites: dict) -> None:
    (tasks,) = suites.values()
    assert sorted(tasks) == list(range(6))
    assert all(isinstance(env, gymnasium.vector.VectorEnv) and env.num_envs == N for env in tasks.values())


def test_no_environments_are_refused(env_module: ModuleType) -> None:
    with pytest.raises(EnvironmentFault, match="n_envs is 0; give a whole number of at least 1"):
        env_module.make_env(n_envs=0)


def test_an_episode_has_what_lerobot_reads(suites: dict) -> None:
    env = suites["alfworld"][1]
    observation, info = env.reset(seed=[3, 4])
    assert observation["pixels"].shape == (N, 224, 224, 3) and observation["pixels"].dtype == np.uint8
    told = env.call("task_description")
    assert len(told) == N and all(isinstance(text, str) and text for text in told)
    assert env.call("_max_episode_steps") == (50, 50) and not info["is_success"].any()
    assert all(each.task.startswith(TASK_TYPES[1]) for each in env.envs)
    texts = observation["text"]
    for _ in range(50):
        observation, reward, terminated, truncated, info = env.step(
            [commands[0] for commands in info["admissible_commands"]]
        )
        if truncated.all():
            break
    assert truncated.all() and not terminated.any() and observation["text"] != texts and reward.tolist() == [0.0, 0.0]


def test_lerobots_evaluation_finds_who_has_won(suites: dict) -> None:
    """It reads `final_info`, which gymnasium has only if a game that is over gives way to the next in the same step."""
    env = suites["alfworld"][0]
    observation, info = env.reset(seed=[3, 4])
    experts, won = [Explorer() for _ in range(N)], np.zeros(N, bool)
    for expert, text, game in zip(experts, observation["text"], info["game"], strict=True):
        expert.begin(text, task_type=game)
    for _ in range(50):
        actions = ["look" if over else expert.act().action for expert, over in zip(experts, won, strict=True)]
        observation, _, terminated, _, info = env.step(actions)
        for expert, action, text in zip(experts, actions, observation["text"], strict=True):
            expert.observe(action, text)
        assert ("final_info" in info) == terminated.any()
        won |= np.asarray(info.get("final_info", {}).get("is_success", won))
        if won.all():
            break
    assert won.all()


def test_lerobots_evaluation_begins_a_rollout_with_an_option_of_its_own(suites: dict) -> None:
    """`lerobot_eval.rollout` of LeRobot 0.6.1 and newer; any other option is still checked."""
    env = suites["alfworld"][2]
    _, info = env.reset(seed=[3, 4], options={"lerobot_new_rollout": True})
    assert env.reset(seed=[3, 4])[1]["game"].tolist() == info["game"].tolist()
    with pytest.raises(EnvironmentFault, match="reset knows the option 'game', not 'gaem'"):
        env.reset(options={"gaem": "x"})


@pytest.mark.filterwarnings("ignore::UserWarning")  # that it is a wrapper, and has no `spec`
def test_gymnasiums_checker_takes_a_task(suites: dict) -> None:
    check_env(suites["alfworld"][0].envs[0])


def test_lerobots_own_functions_take_it(env_module: ModuleType, suites: dict) -> None:
    utils = pytest.importorskip("lerobot.envs.utils", exc_type=ImportError)
    loaded = utils._import_hub_module(str(Path(env_module.__file__)), "you/household")
    normalised = utils._normalize_hub_result(utils._call_make_env(loaded, n_envs=1, use_async_envs=False, cfg=None))
    env = normalised["alfworld"][0]
    utils.check_env_attributes_and_types(env)
    observation, _ = env.reset(seed=0)
    batch = utils.add_envs_task(env, utils.preprocess_observation(observation))
    assert batch["observation.image"].shape == (1, 3, 224, 224) and batch["task"][0]


@pytest.mark.slow
def test_environments_in_processes_of_their_own_play_the_same(env_module: ModuleType) -> None:
    apart = env_module.make_env(n_envs=N, use_async_envs=True)["alfworld"]
    try:
        observation, _ = apart[0].reset(seed=[3, 4])
        here = env_module.make_env(n_envs=N)["alfworld"][0].reset(seed=[3, 4])[0]
        assert tuple(observation["text"]) == tuple(here["text"])
    finally:
        for env in apart.values():
            env.close()
