"""What verl-agent's manager asks of its environments, in its own form (Ray) and in ours. Imports no torch.

    python benchmarks/_verl.py verl-ray 4 4      # prints the cost as JSON; `adapters.py` starts it

Environments need no model, so neither side's memory holds one: alfworld's side imports what alfworld itself imports.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from alfworld_native.adapters.verl_agent import build_alfworld_envs
from alfworld_native.games import RELEASE, data_root

VERL_SIDES = ("verl-ray", "verl-ours")
VERL_STEPS = 30  # of verl-agent's manager


@dataclass(frozen=True)
class Cost:
    """What one side took: seconds of the wall clock, bytes; `digest` names all that happened.

    `memory` is what the environments add at the end of the rollout, `peak` the largest sum of the side's processes.
    """

    made: float
    rollout: float
    environment: float
    update: float
    memory: int
    digest: str
    peak: int = 0


def play_verl(side: str, games: int, group: int) -> Cost:
    """What verl-agent's manager asks of its environments in a rollout: `reset`, then `step` VERL_STEPS times."""
    before, start = memory(), time.perf_counter()
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(config(VERL_STEPS), file)  # JSON is yaml, too
        file.flush()
        environments = (RayEnvironments if side == "verl-ray" else build_alfworld_envs)(file.name, 0, games, group)
        began = time.perf_counter()
        texts, _, infos = environments.reset()
        draws, happened = random.Random(0), [[info["extra.gamefile"] for info in infos]]
        for _ in range(VERL_STEPS):
            actions = [draws.choice(commands) for commands in environments.get_admissible_commands]
            happened.append([texts, actions])
            texts, _, rewards, dones, infos = environments.step(actions)
        ended, used = time.perf_counter(), memory() - before
        environments.close()
    digest = hashlib.sha256(json.dumps([happened, texts, rewards, dones]).encode()).hexdigest()[:12]
    return Cost(began - start, ended - began, ended - began, 0.0, used, digest)


class RayEnvironments:
    """As verl-agent's own: one Ray worker for each environment, each with a batch of one of alfworld's."""

    def __init__(self, path: str, seed: int, env_num: int, group_n: int) -> None:
        import ray
        import yaml
        from alfworld.agents.environment import get_environment

        class Worker:
            def __init__(self, seed: int, source: Any) -> None:
                self.environment = source.init_env(batch_size=1)
                self.environment.seed(seed)

            def reset(self) -> Any:
                return self.environment.reset()

            def step(self, action: str) -> Any:
                return self.environment.step([action])

        ray.init(num_cpus=env_num * group_n, include_dashboard=False, log_to_driver=False)
        with open(path, encoding="utf-8") as file:
            source = get_environment("AlfredTWEnv")(yaml.safe_load(file), "train")
        self._ray, make = ray, ray.remote(num_cpus=0.1)(Worker)
        self._workers = [make.remote(seed + i // group_n, source) for i in range(env_num * group_n)]
        self.get_admissible_commands: list[list[str]] = []

    def reset(self) -> tuple[list[str], None, list[dict[str, Any]]]:
        """As verl-agent's."""
        answers = self._ray.get([worker.reset.remote() for worker in self._workers])
        return [texts[0] for texts, _ in answers], None, self._infos([infos for _, infos in answers])

    def step(self, actions: list[str]) -> tuple[list[str], None, list[float], list[bool], list[dict[str, Any]]]:
        """As verl-agent's."""
        calls = [worker.step.remote(action) for worker, action in zip(self._workers, actions, strict=True)]
        answers = self._ray.get(calls)
        infos = self._infos([infos for *_, infos in answers])
        rewards = [10.0 * info["won"] for info in infos]
        return [answer[0][0] for answer in answers], None, rewards, [answer[2][0] for answer in answers], infos

    def close(self) -> None:
        """End the workers."""
        self._ray.shutdown()

    def _infos(self, batches: list[dict[str, list[Any]]]) -> list[dict[str, Any]]:
        infos = [{key: value[0] for key, value in batch.items()} for batch in batches]
        self.get_admissible_commands = [info["admissible_commands"] for info in infos]
        return infos


def memory(pid: int | None = None) -> int:
    """Bytes of a process (this one) and its children; pages that several of them share count once."""
    me = psutil.Process(pid)
    return sum(process.memory_full_info().pss for process in (me, *me.children(recursive=True)))


def config(steps: int) -> dict[str, Any]:
    """alfworld's config, as far as its text environment reads it."""
    folder = str(data_root() / RELEASE / "valid_seen")  # verl-agent's side plays it as its training games
    return {
        "env": {
            "type": "AlfredTWEnv",
            "goal_desc_human_anns_prob": 0.0,
            "domain_randomization": False,
            "task_types": [1, 2, 3, 4, 5, 6],
            "expert_type": "handcoded",
        },
        "dataset": {
            "data_path": folder,
            "eval_id_data_path": folder,
            "eval_ood_data_path": folder,
            "num_train_games": -1,
            "num_eval_games": -1,
        },
        "general": {"training_method": "dqn"},
        "rl": {"training": {"max_nb_steps_per_episode": steps}},
    }


if __name__ == "__main__":  # not in `run_program`: TextWorld's processes would inherit how it ends
    print(json.dumps(asdict(play_verl(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))
