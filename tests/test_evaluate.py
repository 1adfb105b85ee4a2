"""`evaluate.py` as a program: what it writes, and what it refuses."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import evaluate
from xrl_alignment.builders.student import load_student
from xrl_alignment.common.program import run_program
from xrl_alignment.environments.games import find_games, games_hash
from xrl_alignment.runs.checkpoint import save_checkpoint

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


# --- classes of one's own, and games that the weights know ------------------------------------------------------------


def test_the_examples_play_by_name(program, tmp_path):
    of_one_type = ["run.num_envs=6"]
    code, _, err = program("expert.name=examples.custom_expert:OrderlyExpert", *of_one_type, cfg="expert")
    got = result(tmp_path)
    assert code == 0 and got["actor"] == "expert examples.custom_expert:OrderlyExpert", err
    assert got["first_trial"]["per_task_type"]["pick_and_place_simple"]["success"] == 1.0
    policy = ["policy.name=examples.custom_policy:WordMatchPolicy", "run.max_steps=30"]
    code, _, err = program(*policy, *of_one_type)
    got = result(tmp_path)
    assert code == 0 and sum(episode["actions"] for episode in got["episodes"][0]) > 6, err


def test_an_environment_of_ones_own_plays_by_name(program, tmp_path, household_data):
    kinds = [game.task_type for game in find_games("household_heldout", household_data, seed=0)]
    one_room = ["environment.name=examples.custom_environment:OneRoomEnvironment", "expert.name=explorer"]
    number = kinds.index("pick_and_place_simple") + 1  # the others are none that this room has
    code, _, err = program(*one_room, f"run.num_envs={number}", "run.max_steps=20", cfg="expert")
    got = result(tmp_path)
    assert code == 0 and got["engine"] == "examples.custom_environment:OneRoomEnvironment", err
    assert got["first_trial"]["per_task_type"]["pick_and_place_simple"]["success"] == 1.0


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("expert.name=nowhere_at_all:X", "expert nowhere_at_all:X: there is no module nowhere_at_all"),
        ("expert.name=json:X", "module json has no class X"),
        ("environment.name=json:JSONDecoder", "the class lacks reset, step, render, close"),
        ("expert.name=expolrer", "module:Class"),
    ],
)
def test_a_class_that_cannot_be_used_is_one_line(program, option, reason):
    code, _, err = program(option, cfg="expert")
    assert code == 2 and len(err) == 1 and reason in err[0]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Writes a checkpoint of the tiny model that has trained on `games` (None: as an older version wrote it)."""
    model, _ = load_student({}, torch.device("cpu"))

    def write(games: list[str] | None) -> Path:
        played = None if games is None else {"games": games, "environments": ["native household_heldout"]}
        return save_checkpoint(tmp_path_factory.mktemp("weights") / "emma_checkpoint_0.pth", model=model, played=played)

    return write


def test_games_that_the_checkpoint_has_trained_on_are_told(program, tmp_path, household_data, weights):
    ids = [game.id for game in find_games("household_heldout", household_data, num=2, seed=0)]
    short = ["run.max_steps=2", "policy.num_beams=1", "policy.max_length=8"]
    for known, number, line in (
        (ids[:1], 1, "NOT HELD OUT: the checkpoint has trained on 1 of these 2 games (native household_heldout)"),
        (["other/1"], 0, ""),
        (["pick_and_place-env0"], None, "whether the weights have trained on these games is unknown"),  # by a v1 client
        (None, None, "whether the weights have trained on these games is unknown"),
    ):
        code, out, err = program(
            f"model.pretrained={weights(known)}", "model.load_pretrained=true", "model.model_type=tiny", *short
        )
        assert code == 0, err
        assert result(tmp_path)["trained_on"]["games"] == number and line in out
        assert number or "HELD OUT" not in out


def test_an_expert_plays_in_processes_of_their_own(household_data, tmp_path):
    """As a terminal starts it: workers do not import the program, so nothing of it may travel to them."""
    options = ["environment.name=native", "environment.split=household_heldout", f"environment.data={household_data}"]
    options += ["run.num_envs=2", "run.executor=local", "run.num_workers=2", "expert.name=explorer"]
    command = [
        sys.executable,
        str(ROOT / "evaluate.py"),
        "--cfg-path",
        str(ROOT / "configs" / "evaluate" / "expert.yaml"),
    ]
    command += ["--options", *options, f"run.output={tmp_path / 'result.json'}"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    assert result(tmp_path)["first_trial"]["success"] == 1.0


def test_the_shipped_student_solves_games_in_rooms_that_it_never_saw(program, tmp_path):
    code, _, _ = program("run.num_envs=6", cfg="student")
    got = result(tmp_path)["first_trial"]
    assert code == 0 and got["games"] == 6
    assert got["solved"] >= 5
    assert result(tmp_path)["trained_on"]["games"] is None  # its file does not name them; it does not say "none"
    assert result(tmp_path)["pretrained"] == "tiny/student.safetensors"
