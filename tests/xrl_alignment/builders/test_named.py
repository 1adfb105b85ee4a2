"""What settings name is refused before anything is loaded."""

from __future__ import annotations

import pytest

from lavis.common.errors import ConfigError, EmacError
from xrl_alignment.builders import named
from xrl_alignment.builders.named import check_named
from xrl_alignment.settings.loading import load_config
from xrl_alignment.settings.schema import DaggerConfig

MORE = ["run.num_envs=5", "environment.num_train=9"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["model.model_type=tny"], "unknown model type 'tny'"),
        (["environment.split=valid_sen"], "did you mean 'valid_seen'"),
        (["model.llm_model=/absent/model"], "model.llm_model: no folder /absent/model"),
        (["model.llm_model=vicuna"], "model.llm_model: there is no folder vicuna, and it is no hub id (owner/name)"),
        (["expert.name=absent:Expert"], "there is no module absent"),
        (["policy.name=absent:Policy"], "policy absent:Policy: there is no module absent"),
        (["policy.name=http", "policy.base_urls=[http://localhost:9]"], "set run.run_training=false"),
        (["expert.name=handcoded", "environment.name=mine:Env"], "set environment.name=native"),
        (
            ["environment.name=household", "environment.split=household_heldout", "environment.num_heldout=4", *MORE],
            "run.num_envs=5: split household_heldout has 4 games",
        ),
        (
            ["environment.name=household", "environment.split=household_compound", "run.num_envs=61"],
            "run.num_envs=61: split household_compound has 60 games: ask for fewer",
        ),
    ],
)
def test_is_refused(options: list[str], says: str) -> None:
    check_named(load_config(DaggerConfig, None))
    with pytest.raises(EmacError) as caught:
        check_named(load_config(DaggerConfig, None, options))
    assert says in str(caught.value)


def test_other_games_are_not_looked_at() -> None:
    check_named(load_config(DaggerConfig, None, ["environment.split=x", "environment.allow_other_games=true"]))


def test_a_gpu_that_is_not_there_is_refused_without_torch(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(named, "GPU_FILES", (str(tmp_path / "driver"),))
    cuda = load_config(DaggerConfig, None, ["run.device=cuda:0"])
    with pytest.raises(ConfigError, match="run.device is cuda:0, but this machine has no GPU: use run.device=cpu"):
        check_named(cuda)
    learner = load_config(DaggerConfig, None, ["run.learner=decoupled", "run.learner_device=cuda"])
    with pytest.raises(ConfigError, match=r"run.learner_device is cuda, .* no GPU: use run.learner_device=cpu"):
        check_named(learner)
    for device in ("auto", "cpu"):
        check_named(load_config(DaggerConfig, None, [f"run.device={device}"]))
    (tmp_path / "driver").touch()
    check_named(cuda)
