"""One GRPO update of a tiny model: the rollout in alfworld's own environments and in ours, one import line apart.

    python benchmarks/adapters.py --json adapters.json [--games 4 --group 4 --steps 50]

Each side runs in a process of its own and plays `games` official games, each `group` times, side by side; alfworld
starts a child process for each. The policy is a random Qwen3 of one layer; it reads the texts and draws the numbers of
admissible commands. Texts and draws are the same on both sides (`same_rollout` is 1).

`rollout_speedup` compares the wall clock from the first `reset` to the last step, the model's part in both;
`environment_speedup` that of `reset` and `step` alone. `memory_saving` compares the peaks of the whole sides, model and
child processes included; `environment_memory_saving` what the environments add at the end of the rollout. Memory is the
proportional set size: pages that processes share count once. It needs Linux, the official games and the extra
`textworld`.

`verl_speedup` and `verl_memory_saving` compare verl-agent's two builders on as many environments, 30 steps of its
manager: its own form, a Ray worker with alfworld's environment for each, and `build_alfworld_envs` of this project. The
commands are drawn by one seed; neither side holds a model. `verl_same_rollout` is 1 if all texts, commands and rewards
are the same. It needs Ray.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from _bench import Result, run
from _verl import VERL_SIDES, VERL_STEPS, Cost, config, memory
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from alfworld_native.games import find_games
from lavis.common.program import run_program

READ = 256  # bytes of a text that the model reads, its end
SIDES = ("alfworld", "ours")


class Turn(NamedTuple):
    """One step of all episodes: what the model read, how many commands it had, the numbers of those it drew."""

    texts: list[str]
    sizes: list[int]
    numbers: list[int]


class Policy:
    """A random Qwen3 over bytes: the number of the next command has the distribution of the next byte."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=256,
                hidden_size=32,
                intermediate_size=32,
                num_hidden_layers=1,
                num_attention_heads=2,
                num_key_value_heads=1,
                head_dim=16,
            )
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.draws = torch.Generator().manual_seed(0)

    def log_probabilities(self, texts: list[str], sizes: list[int]) -> Tensor:
        """Of each number of a command, float32 (texts, 256); those from `sizes` on are -inf."""
        tokens = torch.tensor([list(text.encode()[-READ:].rjust(READ)) for text in texts])
        logits = self.model(tokens, logits_to_keep=1).logits[:, -1].float()
        absent = torch.arange(256) >= torch.tensor(sizes)[:, None]
        return logits.masked_fill(absent, -torch.inf).log_softmax(-1)

    @torch.no_grad()
    def act(self, texts: list[str], sizes: list[int]) -> list[int]:
        """Draw a number for each text."""
        return torch.multinomial(self.log_probabilities(texts, sizes).exp(), 1, generator=self.draws)[:, 0].tolist()

    def update(self, turns: list[Turn], advantages: Tensor) -> None:
        """One step of GRPO's policy gradient (arXiv 2402.03300, eq. 3, first update)."""
        for texts, sizes, numbers in turns:
            chosen = self.log_probabilities(texts, sizes)[range(len(numbers)), numbers]
            (-(advantages * chosen).mean() / len(turns)).backward()
        self.optimizer.step()


class Stopwatch:
    """Seconds that were spent in calls."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call, and count the time."""
        start = time.perf_counter()
        answer = call(*arguments)
        self.seconds += time.perf_counter() - start
        return answer


def play(side: str, games: int, group: int, steps: int) -> Cost:
    """The rollout and the update of one side, in this process."""
    torch.set_num_threads(1)
    policy = Policy()
    policy.act([""], [1])  # loads what torch loads at first use
    if side == "alfworld":
        from alfworld.agents.environment import get_environment
    else:
        from alfworld_native.adapters.alfworld import get_environment

    before, start = memory(), time.perf_counter()
    source = get_environment("AlfredTWEnv")(config(steps), "eval_in_distribution")
    source.game_files = sorted(source.game_files)[:: source.num_games // games][:games] * group
    environment = source.init_env(games * group)
    environment.seed(0)
    watch, began = Stopwatch(), time.perf_counter()
    texts, infos = watch(environment.reset)
    files: list[str] = infos["extra.gamefile"]
    taken: list[Turn] = []
    seen = [{text} for text in texts]
    while len(taken) < steps:
        commands = infos["admissible_commands"]
        sizes = [len(list_) for list_ in commands]
        numbers = policy.act(texts, sizes)
        taken.append(Turn(list(texts), sizes, numbers))
        actions = [list_[number] for list_, number in zip(commands, numbers, strict=True)]
        texts, _, _, infos = watch(environment.step, actions)
        for known, text in zip(seen, texts, strict=True):
            known.add(text)
    ended = time.perf_counter()
    used = memory() - before
    # A random model wins nothing: reward what is new.
    rewards = [won + len(known) / steps for won, known in zip(infos["won"], seen, strict=True)]
    policy.update(taken, advantages(rewards, files, group))
    updated = time.perf_counter()
    environment.close()
    digest = hashlib.sha256(json.dumps([files, taken, texts, rewards]).encode()).hexdigest()[:12]
    return Cost(began - start, ended - began, watch.seconds, updated - ended, used, digest)


def advantages(rewards: list[float], files: list[str], group: int) -> Tensor:
    """GRPO's, float32 (episodes,): each reward against those of the same game, in standard deviations."""
    order = sorted(range(len(files)), key=files.__getitem__)
    groups = torch.tensor(rewards)[order].view(-1, group)
    groups = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
    return torch.empty(len(files)).index_copy_(0, torch.tensor(order), groups.flatten())


def options(parser: argparse.ArgumentParser) -> None:
    """How much is played."""
    parser.add_argument("--games", type=int, default=4, help="different games (default: 4)")
    parser.add_argument("--group", type=int, default=4, help="episodes of each game (default: 4)")
    parser.add_argument("--steps", type=int, default=50, help="of each episode (default: 50)")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)  # what `in_process` starts


def in_process(side: str, games: int, group: int, steps: int) -> Cost:
    """A side in a process of its own, the memory of which is sampled twice a second."""
    if side in VERL_SIDES:
        script = [str(Path(__file__).with_name("_verl.py")), side, str(games), str(group)]
    else:
        script = [__file__, "--side", side, "--games", str(games), "--group", str(group), "--steps", str(steps)]
    command, peak = [sys.executable, *script], 0
    with (
        tempfile.TemporaryFile("w+") as said,  # TextWorld's processes end with tracebacks, also when all is well
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True) as process,
    ):
        while process.poll() is None:
            with contextlib.suppress(psutil.Error):  # a process has ended since it was listed
                peak = max(peak, memory(process.pid))
            time.sleep(0.5)
        if process.returncode or process.stdout is None:
            said.seek(0)
            raise RuntimeError(f"the rollout in {side} ended with status {process.returncode}:\n{said.read()}")
        return replace(Cost(**json.loads(process.stdout.readlines()[-1])), peak=peak)


def measure(games: int, group: int, steps: int, side: str | None) -> Result:
    """A row for each quantity, a column for each side."""
    find_games("valid_seen")  # says how to get them where they are absent
    theirs, ours = (in_process(name, games, group, steps) for name in SIDES)
    ray, verl = (in_process(name, games, group, steps) for name in VERL_SIDES)
    rollout = f"rollout, {games * group} episodes of {steps} steps, s"
    rows = [
        {"what": "environments made, s", "alfworld": theirs.made, "ours": ours.made},
        {"what": rollout, "alfworld": theirs.rollout, "ours": ours.rollout},
        {"what": "of it `reset` and `step`, s", "alfworld": theirs.environment, "ours": ours.environment},
        {"what": "update, s", "alfworld": theirs.update, "ours": ours.update},
        {"what": "peak memory, model and all, MB", "alfworld": theirs.peak / 1e6, "ours": ours.peak / 1e6},
        {"what": "of it the environments, MB", "alfworld": theirs.memory / 1e6, "ours": ours.memory / 1e6},
        {"what": f"verl-agent's manager, {VERL_STEPS} steps, s", "alfworld": ray.rollout, "ours": verl.rollout},
        {"what": "peak memory, all processes, MB", "alfworld": ray.peak / 1e6, "ours": verl.peak / 1e6},
    ]
    ratios = {
        "rollout_speedup": theirs.rollout / ours.rollout,
        "environment_speedup": theirs.environment / ours.environment,
        "memory_saving": theirs.peak / ours.peak,
        "environment_memory_saving": theirs.memory / max(ours.memory, 1),
        "same_rollout": float(theirs.digest == ours.digest),
        "verl_speedup": ray.rollout / verl.rollout,
        "verl_memory_saving": ray.peak / verl.peak,
        "verl_same_rollout": float(ray.digest == verl.digest),
    }
    targets = {"rollout_speedup": 10, "memory_saving": 2, "same_rollout": 1}
    return Result(rows, ratios, {**targets, "verl_speedup": 100, "verl_memory_saving": 15, "verl_same_rollout": 1})


def play_one_side() -> None:
    """Play the side that `--side` names, and print what it cost."""
    parser = argparse.ArgumentParser()
    options(parser)
    given = parser.parse_args()
    print(json.dumps(asdict(play(given.side, given.games, given.group, given.steps))))


if __name__ == "__main__":
    if "--side" in sys.argv:  # not in `run_program`: TextWorld's processes would inherit how it ends
        play_one_side()
    else:
        run_program(lambda: run("GRPO rollout in alfworld's environments and in ours", measure, options))
