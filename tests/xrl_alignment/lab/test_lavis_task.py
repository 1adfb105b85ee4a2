"""The task alfworld_episode."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from alfworld_native.language.commands import normalise
from lavis.common.logger import RunLog
from lavis.common.paths import REPO_ROOT
from lavis.common.registry import registry
from xrl_alignment.agents.policies.base import PolicyInput
from xrl_alignment.lab import lavis_task

CONFIG = REPO_ROOT / "lavis/projects/instructblip/finetuning/alfworld_eval.yaml"


def options(out: Path, data: Path, **more: object) -> list[str]:
    games = {"name": "native", "split": "household_heldout", "data": data, "num_envs": 3, "max_steps": 3}
    settings = {"run.task": "alfworld_episode", "run.output_dir": out, "run.job_id": "a", "run.device": "cpu"}
    settings |= {f"run.environment.{key}": value for key, value in games.items()}
    return [f"{key}={value}" for key, value in {**settings, **more}.items()]


def test_plays_episodes(household_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = Namespace(cfg_path=str(CONFIG), options=options(tmp_path, household_data))
    figures = lavis_task.evaluate(arguments)["test"]
    assert (figures["games"], figures["samples"]) == (3, 3)
    assert figures["agg_metrics"] == figures["success"]
    assert len(figures["interval"]) == 2
    assert figures["engine"] == "native"
    rows = json.loads((tmp_path / "a/result/test_epochfinal.json").read_text())
    assert {row["actions"] for row in rows} <= {1, 2, 3}
    told = capsys.readouterr().out
    assert "95 % interval" in told and "model.pretrained names no weights" in told
    # Without the config nobody could tell what the figures are of.
    config, found = map(json.loads, (tmp_path / "a/log.txt").read_text().splitlines())
    assert config["config"]["run"]["environment"]["num_envs"] == 3
    assert found["test_agg_metrics"] == figures["success"]


def test_an_error_closes_the_log(household_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    monkeypatch.setattr(RunLog, "close", lambda log: closed.append(log))
    monkeypatch.setattr(lavis_task, "play_games", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        lavis_task.evaluate(Namespace(cfg_path=str(CONFIG), options=options(tmp_path, household_data)))
    assert len(closed) == 1


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"pretrained": ""}, True),
        ({"pretrained": "a.pth"}, False),
        ({"pretrained": "a.pth", "load_pretrained": False}, True),
        ({"finetuned": "a.pth"}, False),
    ],
)
def test_figures_of_weights_that_nobody_trained(model: dict, said: bool) -> None:
    assert bool(lavis_task.untrained(SimpleNamespace(model_cfg=model))) == said


class Undeclared:
    """A policy of one's own that does not say what it reads, and would take the first command that it is given."""

    given: ClassVar[list[PolicyInput]] = []

    def act(self, batch: list[PolicyInput]) -> list[str]:
        self.given += batch
        return [next(iter(one.admissible_commands), "look") for one in batch]

    def close(self) -> None:
        """Nothing to close."""


def test_a_policy_that_declares_nothing_is_given_the_text_alone(household_data: Path, tmp_path: Path) -> None:
    own = {"run.policy.name": f"{__name__}:Undeclared"}
    figures = lavis_task.evaluate(Namespace(cfg_path=str(CONFIG), options=options(tmp_path, household_data, **own)))
    assert figures["test"]["reads"] == ["text"] and figures["test"]["decode"] == "free"
    assert len(Undeclared.given) == 9 and all(one.prompt for one in Undeclared.given)
    assert not any(list(one.admissible_commands) or one.image.any() for one in Undeclared.given)


def test_options_in_lavis_other_style(household_data: Path, tmp_path: Path) -> None:
    pairs = [word for option in options(tmp_path, household_data) for word in option.split("=", 1)]
    with pytest.raises(ValueError, match="run.environment.num_envs: Value 'few'"):
        lavis_task.evaluate(Namespace(cfg_path=str(CONFIG), options=[*pairs, "run.environment.num_envs", "few"]))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"run.environment.splitt": "x"}, "unknown key 'run.environment.splitt': did you mean 'run.environment.split'"),
        ({"run.environment.num_envs": "few"}, "run.environment.num_envs: Value 'few'"),
        ({"run.environment.max_steps": 0}, "^run.environment.max_steps: 0 is not a number of at least 1"),
        (
            {
                "run.environment.name": "household",
                "run.environment.split": "household_train",
                "run.environment.levels": {"many": 1},
            },
            "run.environment.max_steps: .* is less than .* set run.environment.max_steps=100",
        ),
        ({"run.policy.num_beams": "x"}, "run.policy.num_beams: Value 'x'"),
        ({"run.policy.num_beams": 0}, "^run.policy.num_beams: 0 is not a number from 1 to"),
        ({"run.device": "gpu"}, "run.device: 'gpu' is not one of auto, cpu, cuda"),
        ({"run.policy.decode": "best"}, "^run.policy.decode: 'best' is not one of"),
        ({"run.test_splits": "[]"}, "run.test_splits is empty: an evaluation needs a split"),
        ({"run.fsdp": True}, "alfworld_episode cannot be combined with run.fsdp"),
    ],
)
def test_settings_that_do_not_exist(household_data: Path, tmp_path: Path, more: dict, message: str) -> None:
    arguments = Namespace(cfg_path=str(CONFIG), options=options(tmp_path, household_data, **more))
    with pytest.raises(ValueError, match=message):
        lavis_task.evaluate(arguments)


def test_actions_are_normalised_as_online() -> None:
    assert registry.get("action_normaliser") is normalise
