"""Household games for verifiers (extra `verifiers`): a taskset without end, its environment, and a harness.

    from xrl_alignment.adapters.verifiers import HouseholdEnv, HouseholdHarness, HouseholdTaskset
    __all__ = ["HouseholdEnv", "HouseholdHarness", "HouseholdTaskset"]     # whole: examples/verifiers_household.py

verifiers finds a taskset by the name of a module that lists these three. A task is a game: number 0, 1, 2 … of the
generator, made when it is played, or a game of a folder (`data`, `split`). The model plays it in one conversation, a
command for each message; the reward `won` is 1 for a won game, the metric `steps` is the number of its commands.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from alfworld_native.base import TimeStep
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.games import HOUSEHOLD_SPLITS, find_games
from alfworld_native.household.generator import make_game
from alfworld_native.household.levels import longest_horizon
from lavis.common.errors import missing_extra
from xrl_alignment.adapters.conversation import INSTRUCTION, message
from xrl_alignment.agents.language.answers import read_answer

try:
    import verifiers.v1 as vf
    from openai import APIError, AsyncOpenAI
    from pydantic import Field
    from verifiers.v1.dialects.chat import message_to_wire
except ModuleNotFoundError as error:
    raise missing_extra("verifiers", error) from None


class HouseholdTasksetConfig(vf.TasksetConfig):
    """Which games, and how they are told; flags `--env.taskset.*`."""

    split: str = "household_heldout"
    seed: int = 0  # of the generator
    data: Path | None = None  # folder with json_2.1.1; without it household splits are generated, and have no end
    admissible: bool = False  # whether messages list the admissible commands
    max_steps: int = Field(0, ge=0)  # of an episode; 0: as many as the game may take


class HouseholdTaskData(vf.TaskData):
    """A game: its number for the generator, or its id in a folder."""

    split: str
    seed: int
    game: int | str


class HouseholdTask(vf.Task[HouseholdTaskData, vf.State, vf.TaskConfig]):
    """A game to be played; the environment rewards it."""


class HouseholdTaskset(vf.Taskset[HouseholdTask, HouseholdTasksetConfig]):
    """The generator's games without end, or those of a folder."""

    def __init__(self, config: HouseholdTasksetConfig) -> None:
        """Raises EnvironmentFault for a split without games."""
        super().__init__(config)
        # verifiers' own flag for a taskset without end.
        self.INFINITE = config.data is None and config.split in HOUSEHOLD_SPLITS
        self._games = {} if self.INFINITE else {game.id: game for game in find_games(config.split, config.data)}
        self.max_steps = config.max_steps or longest_horizon(self._games.values())

    def load(self) -> Iterator[HouseholdTask]:
        """One task after the other."""
        split, seed = self.config.split, self.config.seed
        names: Iterator[int | str] = itertools.count() if self.INFINITE else iter(self._games)
        for game in names:
            name = f"{split}/{seed}/{game}" if self.INFINITE else f"{split}/{game}"
            data = HouseholdTaskData(name=name, system_prompt=INSTRUCTION, split=split, seed=seed, game=game)
            yield HouseholdTask(data, self.config.task)

    def begin(self, task: HouseholdTaskData, environment: NativeEnvironment) -> TimeStep:
        """Begin the game of `task` in `environment`."""
        if not self.INFINITE:
            return environment.reset(self._games[str(task.game)])
        # A generated game: the engine reads its file when it is reset, and needs it no longer.
        with tempfile.TemporaryDirectory() as folder:
            split = Path(folder) / task.split
            split.mkdir()
            return environment.reset(make_game(split, int(task.game), task.seed))


class HouseholdEnvConfig(vf.EnvConfig):
    """The one agent; nothing runs but its model, so it needs no sandbox."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class HouseholdEnv(vf.Env[HouseholdEnvConfig]):
    """Plays the game of a task on the native engine, as the user of the conversation."""

    async def run(self, task: HouseholdTask, agents: Any) -> None:
        """One episode."""
        config, steps = self.taskset.config, 0
        async with agents.agent.interaction(task) as interaction:
            # verifiers says nothing of what fails before an interaction: the game would be missing from the results.
            environment = NativeEnvironment(self.taskset.max_steps)
            now = self.taskset.begin(task.data, environment)
            while not now.done:
                answer = await interaction.turn(message(now, config.admissible))
                if answer.terminated:
                    break
                now = environment.step(read_answer(answer.last_reply).action)
                steps += 1
            # Within the interaction: as it ends, verifiers logs the rollout with its reward.
            interaction.trace.record_reward("won", float(now.won))
            interaction.trace.record_metric("steps", steps)


class HouseholdHarness(vf.Harness[vf.HarnessConfig]):
    """Asks the model for one answer a turn, in this process; the built-in `null` starts a program for each."""

    APPENDS_SYSTEM_PROMPT = SUPPORTS_RESUME = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        """One answer to the conversation so far; verifiers reads it at its own `endpoint`."""
        # verifiers' own endpoint records what is sent and answered, and knows the model.
        system, said = self.resolve_prompt(data)
        messages: list[Any] = [{"role": "system", "content": system}] if system else []
        messages += [message_to_wire(part) for part in said]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            try:
                await client.chat.completions.create(model=ctx.model, messages=messages)
            except APIError as fault:  # a limit of verifiers, or the model's server: verifiers knows which
                return vf.ProgramResult(exit_code=1, stdout="", stderr=str(fault))
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
