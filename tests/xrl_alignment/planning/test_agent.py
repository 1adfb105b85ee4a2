"""The acting model in the loop: its descriptions, and that BC and DPO train it from stored games."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from alfworld_native import make_environment
from lavis.common.errors import DivergedError
from lavis.models.played import PlayedGames, played_by_file
from xrl_alignment.builders.student import load_student, make_policy, prompt_writer
from xrl_alignment.planning import agent as agent_module
from xrl_alignment.planning.agent import LearningAgent
from xrl_alignment.planning.reports import Sight, described
from xrl_alignment.runs.replay import DPOReplayBuffer, ReplayBuffer
from xrl_alignment.runs.transitions import Transition, shard_name, write_shard
from xrl_alignment.settings.planning import AgentTraining
from xrl_alignment.settings.policy import PolicyConfig


def make_agent(model_type: str) -> LearningAgent:
    model, vis_processor = load_student({"model_type": model_type}, torch.device("cpu"))
    policy = make_policy(PolicyConfig(num_beams=1, max_length=8), model, vis_processor, 4)
    write_prompt = prompt_writer(model, tell_objects=False)
    earlier = PlayedGames(("a/earlier",))
    return LearningAgent(model, policy, vis_processor=vis_processor, write_prompt=write_prompt, earlier_games=earlier)


@pytest.mark.parametrize(("dpo", "learn_from"), [(False, "all"), (True, "all"), (True, "disagreements")])
def test_it_learns_from_shards(tmp_path, dpo: bool, learn_from: str) -> None:
    agent = make_agent("tiny")
    frame = np.zeros((32, 32, 3), np.uint8)
    rows = [
        Transition(frame, "> ", "go to desk 1", "look", "look", ""),
        Transition(frame, "> ", "look", "", "look", ""),
    ]
    write_shard(tmp_path / shard_name(0, 0, 2), rows, {"game": "g"})
    before = {name: value.clone() for name, value in agent.model.trainable_state_dict().items()}
    seen = []
    passes = 4 if learn_from == "disagreements" else 2  # the agent was asked in one of the two transitions
    settings = AgentTraining(
        num_rounds=2, bc_rounds=0 if dpo else 2, learn_from=learn_from, epochs=passes, batch_size=2
    )
    agent.save(tmp_path / "start.pth", 0, PlayedGames())
    agent.learn(settings, 0, tmp_path, tmp_path / "start.pth", lambda metrics, batches: seen.append((metrics, batches)))
    assert [(metrics.chosen_reward is not None, batches) for metrics, batches in seen] == [(dpo, 2), (dpo, 2)]
    assert any(not torch.equal(value, before[name]) for name, value in agent.model.trainable_state_dict().items())
    agent.save(tmp_path / "agent.pth", 0, PlayedGames(("b/own",), ("native train",)))
    played = played_by_file(tmp_path / "agent.pth")
    assert played is not None and played.games == ("a/earlier", "b/own") and played.all_named
    other = make_agent("tiny")
    other.restore(tmp_path / "agent.pth")
    saved = agent.model.trainable_state_dict()
    assert all(torch.equal(value, saved[name]) for name, value in other.model.trainable_state_dict().items())


def test_it_learns_from_all_stored_games_however_many(tmp_path, monkeypatch) -> None:
    """The buffer's own limit of 100,000 transitions left the oldest games out."""
    agent = make_agent("tiny")
    for number in range(2):
        (tmp_path / f"round000_env{number:04d}_steps60000.h5").touch()  # only names are read
    made: dict[str, Any] = {}
    monkeypatch.setattr(agent_module, "Learner", lambda **given: made.update(given) or Mock())
    agent.learn(AgentTraining(epochs=1, batch_size=1000), 0, tmp_path, tmp_path / "none.pth")
    assert len(made["buffer"]) == 120_000 and made["updates"] == 120


def test_each_phase_has_its_rate_and_a_schedule_over_its_rounds(tmp_path, monkeypatch) -> None:
    agent = make_agent("tiny")
    agent.save(tmp_path / "start.pth", 0, PlayedGames())
    made: list[dict[str, Any]] = []
    learner = Mock()
    monkeypatch.setattr(agent_module, "Learner", lambda **given: made.append(given) or learner)
    settings = AgentTraining(
        num_rounds=5, bc_rounds=2, updates=7, batch_size=3, init_lr=0.1, dpo_lr=0.01, warmup_steps=4, weight_decay=0.5,
        seed=9,
    )  # fmt: skip
    for round in (1, 3):
        agent.learn(settings, round, tmp_path, tmp_path / "start.pth")
        assert torch.initial_seed() == 9 + round
    assert [call.args[0] for call in learner.learn.call_args_list] == [1, 1]  # the second round of its phase
    for given, dpo, rate, rounds, seed in zip(made, (False, True), (0.1, 0.01), (2, 3), (10, 12), strict=True):
        (group,) = given["optimizer"].param_groups
        schedule, buffer = given["lr_scheduler"], given["buffer"]
        assert (given["preferences"], type(buffer)) == (dpo, DPOReplayBuffer if dpo else ReplayBuffer)
        assert (group["lr"], group["weight_decay"], given["updates"], given["batch_size"]) == (rate, 0.5, 7, 3)
        assert (schedule.max_epoch, schedule.init_lr, schedule.warmup_steps) == (rounds, rate, 4)
        assert buffer.random.integers(1 << 30) == np.random.default_rng(seed).integers(1 << 30)


@pytest.mark.parametrize(("bc_rounds", "key"), [(2, "run.init_lr"), (0, "run.dpo_lr")])
def test_a_training_that_diverges_names_the_rate_that_it_had(tmp_path, bc_rounds: int, key: str) -> None:
    agent = make_agent("tiny")
    rows = [Transition(np.zeros((32, 32, 3), np.uint8), "> ", "go to desk 1", "look", "look", "")]
    write_shard(tmp_path / shard_name(0, 0, 1), rows, {"game": "g"})
    agent.save(tmp_path / "start.pth", 0, PlayedGames())
    settings = AgentTraining(num_rounds=2, bc_rounds=bc_rounds, updates=3, batch_size=1, init_lr=1e30, dpo_lr=1e30)
    with pytest.raises(DivergedError, match=f"lower {key}, or look"):
        agent.learn(settings, 0, tmp_path, tmp_path / "start.pth")


def test_the_demos_agent_names_objects_that_its_image_shows(games) -> None:
    agent, environment = make_agent("demo"), make_environment("native")
    prompts, images, told = [], [], []
    for game in games:
        now = environment.reset(game)
        opening = now.text
        for command in [command for command in now.admissible_commands if command.startswith("go to ")]:
            now = environment.step(command)
            if len(described(now.text)) > 1:
                prompts.append(agent.write_prompt(opening, (), []) + command)
                images.append(environment.render())
                told.append(now.text)
    sight, blind = Sight(), Sight()
    for sees, pictures in ((sight, images), (blind, [np.zeros_like(image) for image in images])):
        for text, truth in zip(agent.describe(prompts, pictures), told, strict=True):
            sees.add(described(text), described(truth))
    assert sight.precision and sight.precision >= 0.5  # of few: it has not learned to name all
    assert sight.right > blind.right == 0
