"""Household games in the form of LeRobot's EnvHub: a repository whose `env.py` has `make_env`.

Put this file at the root of a repository of your own on the hub, then, where emac-plus is installed:

    from lerobot.envs.factory import make_env
    envs = make_env("you/household", n_envs=4, trust_remote_code=True)  # {"alfworld": {0: 4 games side by side, …}}
    observation, info = envs["alfworld"][0].reset(seed=0)

A task id is one of ALFWorld's six types of tasks. `pixels` is the frame, `text` what the engine says, and
`task_description` the sentence that names the goal; an action is a command as text ("go to desk 1"). So what LeRobot
reads of an environment fits, but a policy that moves joints has nothing to say here: the policy must write.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from alfworld_native import choose_games
from alfworld_native.base import MAX_STEPS, Game, check_count
from alfworld_native.gym_env import GENERATED, ALFWorldEnv
from alfworld_native.language.sentences import TASK_TYPES


class HouseholdTask(gymnasium.Wrapper):
    """Games of one type of task; the image is called `pixels`, as LeRobot calls it."""

    _max_episode_steps = MAX_STEPS

    def __init__(self, games: Sequence[Game]) -> None:
        super().__init__(ALFWorldEnv(games=games, image=True, render_mode="rgb_array"))
        parts = dict(self.env.observation_space)
        self.observation_space = gymnasium.spaces.Dict({"pixels": parts["image"], "text": parts["text"]})
        self.task = ""  # the game's id, which begins with the type
        self.task_description = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Begin a game: its first observation, and `info` with `is_success`."""
        # LeRobot's evaluation marks a new rollout with an option of its own, which ALFWorldEnv would refuse as unknown.
        options = {key: value for key, value in (options or {}).items() if not key.startswith("lerobot_")}
        observation, info = self.env.reset(seed=seed, options=options)
        self.task = info["game"]
        self.task_description = observation["text"].rpartition("Your task is to: ")[2].strip()
        return self._named(observation), {**info, "is_success": False}

    def step(self, action: str) -> tuple[dict, float, bool, bool, dict]:
        """Carry out a command."""
        observation, reward, terminated, truncated, info = self.env.step(str(action))
        return self._named(observation), reward, terminated, truncated, {**info, "is_success": info["won"]}

    @staticmethod
    def _named(observation: dict) -> dict:
        return {"pixels": observation["image"], "text": observation["text"]}


def make_env(n_envs: int = 1, use_async_envs: bool = False, cfg: Any = None) -> dict[str, dict[int, VectorEnv]]:
    """For each type of task `n_envs` environments side by side, in processes of their own with `use_async_envs`.

    The games are generated at first use, into the project's cache folder. `cfg` (LeRobot's EnvConfig) has no effect.
    """
    check_count("n_envs", n_envs)
    games = choose_games("household", "household_heldout", num_train=GENERATED, num_heldout=GENERATED)
    tasks = {}
    for number, kind in enumerate(TASK_TYPES):
        makers = [partial(HouseholdTask, [game for game in games if game.id.startswith(kind)])] * n_envs
        # LeRobot reads who has won from `final_info`, which only this mode has.
        mode = AutoresetMode.SAME_STEP
        tasks[number] = (
            AsyncVectorEnv(makers, shared_memory=False, autoreset_mode=mode)
            if use_async_envs
            else SyncVectorEnv(makers, autoreset_mode=mode)
        )
    return {"alfworld": tasks}
