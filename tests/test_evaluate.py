"""`evaluate.py` as a program: what it writes, and what it refuses."""

import json
import signal
import sys
from pathlib import Path

import pytest

import evaluate
from xrl_alignment.common.program import run_program
from xrl_alignment.environments.games import find_games, games_hash

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def program(monkeypatch, capsys, tmp_path, household_data):
    """Runs `evaluate.main` in this process on generated games; returns (exit code, stdout, stderr lines)."""

    def run(*options: str, cfg: str = "episodes") -> tuple[int, str, list[str]]:
        given = [
            "environment.name=native", "environment.split=household_heldout", f"environment.data={household_data}",
            "run.num_threads=1", "run.num_envs=2", f"run.output={tmp_path / 'result.json'}", *options,
        ]  # fmt: skip
        path = ROOT / "configs" / "evaluate" / f"{cfg}.yaml"
        monkeypatch.setattr(sys, "argv", ["evaluate.py", "--cfg-path", str(path), "--options", *given])
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        with pytest.raises(SystemExit) as end:
            run_program(evaluate.main)
        out, err = capsys.readouterr()
        return end.value.code, out, err.splitlines()

    return run


def result(tmp_path) -> dict:
    return json.loads((tmp_path / "result.json").read_text())


def test_a_policys_figures_and_what_they_depend_on(program, tmp_path, household_data):
    code, out, _ = program("run.max_steps=3", "policy.num_beams=1", "policy.max_length=8")
    got = result(tmp_path)
    assert code == 0 and "task type" in out
    assert (got["first_trial"]["games"], got["engine"], got["actor"]) == (2, "native", "policy, free decoding")
    assert got["games_hash"] == games_hash(find_games("household_heldout", household_data, num=2, seed=0))
    assert [episode["actions"] for episode in got["episodes"][0]] == [3, 3] and got["versions"]["torch"]


def test_admissible_decoding_and_blank_frames_are_told(program, tmp_path):
    code, _, _ = program("run.max_steps=2", "policy.decode=admissible", "environment.blank_frames=true")
    got = result(tmp_path)
    assert code == 0 and got["actor"] == "policy, admissible decoding" and got["blank_frames"] is True
    assert got["first_trial"]["rejected"] == 0


def test_an_expert_alone_over_two_trials(program, tmp_path):
    code, out, _ = program("expert.name=explorer", "run.num_trials=2", cfg="expert")
    got = result(tmp_path)
    assert code == 0 and got["actor"] == "expert explorer" and got["first_trial"]["success"] == 1.0
    assert got["best_of"]["success"] == 1.0 and len(got["episodes"]) == 2 and "best of 2 trials" in out


def test_the_same_command_gives_the_same_figures(program, tmp_path):
    results = []
    for _ in range(2):
        assert program("run.max_steps=3", "policy.num_beams=1", "policy.max_length=8")[0] == 0
        results.append(result(tmp_path)["episodes"])
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["environment.split=nowhere"], "no games of split 'nowhere'"),
        (["run.num_envs=99"], "99 were asked for"),
        (["run.num_env=1"], "did you mean 'run.num_envs'?"),
        (["model.pretrained=nothing.pth"], "nothing.pth"),
        (["run.actor=expert", "expert.name=client"], "expert.name=client"),
        (["run.actor=expert", "expert.name=planner"], "environment.name=textworld"),
        (["run.output=/"], "run.output=/ cannot be written"),
        ([f"run.output={__file__}/result.json"], "result.json cannot be written"),
    ],
)
def test_mistakes_end_in_one_line_and_code_2(program, tmp_path, options, reason):
    code, _, err = program(*options)
    assert code == 2 and len(err) == 1 and err[0].startswith("error: ") and reason in err[0]
    assert not (tmp_path / "result.json").exists()
