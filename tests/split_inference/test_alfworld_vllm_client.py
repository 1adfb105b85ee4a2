"""The client as a program, against real servers: of games, and of models."""

import json
import os
import signal
import subprocess
import sys

import pytest

from lavis.common.errors import ConfigError
from lavis.common.files import LockedError, locked
from lavis.common.paths import REPO_ROOT
from split_inference import alfworld_vllm_client
from split_inference.alfworld_vllm_client import draw_games, main
from split_inference.socket_connection import ServerUnreachable
from tests.split_inference.servers import PATIENCE_S, ServedModel
from tests.tiny_checkpoints import write_qwen2vl

CLIENT = REPO_ROOT / "split_inference" / "alfworld_vllm_client.py"
VLLM_PYTHON = REPO_ROOT / ".venv-vllm" / "bin" / "python"


@pytest.fixture
def run_main(monkeypatch):
    """`run_main(*options)`: the program in this process, which keeps its own answer to SIGTERM."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return lambda *options: main([*map(str, options)])


def test_a_larger_draw_continues_a_smaller():
    games = [{"traj_file": str(i), "game": f"g{i:03}"} for i in range(50)]
    assert draw_games(games[::-1], 10, seed=3) == draw_games(games, 20, seed=3)[:10] != draw_games(games, 10, seed=4)
    assert sorted(game["game"] for game in draw_games(games, 0, seed=0)) == [game["game"] for game in games]
    with pytest.raises(ConfigError, match="there are 50 games"):
        draw_games(games, 51, seed=0)


def test_the_program_with_a_served_model_and_its_resume(server, served, tmp_path, capsys, run_main):
    address, model = served
    where = ["--port", server.port, "--base-url", address, "--model-name", model, "--output-dir", tmp_path / "out"]
    how = [*where, "--num-envs", 2, "--max-turns", 2, "--max-new-tokens", 6, "--num-samples"]
    assert run_main(*how, 2) == 0
    first = capsys.readouterr().out
    assert "2 of 2 games" in first and first.rstrip().splitlines()[-1].split()[:2] == ["all", "2"]
    written = {file: file.read_bytes() for file in tmp_path.glob("out/*/*/trajectory.json")}
    assert len(written) == 2
    assert all(turn["output"] for text in written.values() for turn in json.loads(text)["turns"])
    assert run_main(*how, 3) == 0
    second = capsys.readouterr().out
    assert "1 of 1 games" in second and second.rstrip().splitlines()[-1].split()[:2] == ["all", "3"]
    assert all(file.read_bytes() == before for file, before in written.items())
    assert run_main(*how, 3) == 0  # nothing left: the table again
    assert "games, about" not in capsys.readouterr().out


def test_blip2_emac_plays(server, tmp_path, run_main):
    config = REPO_ROOT / "configs" / "evaluate" / "episodes.yaml"
    options = ["--port", server.port, "--output-dir", tmp_path, "--num-samples", 2, "--max-turns", 2, "--num-envs", 2]
    options += ["--cfg-path", config, "--options", "policy.decode=admissible", "run.num_threads=1"]
    assert run_main(*options) == 0
    records = [json.loads(file.read_text()) for file in tmp_path.glob("*/*/trajectory.json")]
    assert len(records) == 2
    for turn in (turn for record in records for turn in record["turns"]):
        assert turn["action_success"] is True  # chosen among the engine's commands
        assert turn["output"] == turn["action"]


def test_mistakes_end_in_a_line(server, served, tmp_path, run_main):
    address, model = served
    output = ["--output-dir", str(tmp_path / "out")]
    port = ["--port", str(server.port)]
    cases = [
        ([*output, "--base-url", "http://localhost:9/v1", "--port", "9"], "start alfworld_server.py first"),
        ([*output, *port, "--base-url", address, "--num-samples", "999"], "there are 18 games"),
        ([*output, *port, "--base-url", address, "--data-dir", "/nowhere"], "outside the server's folders"),
    ]
    for options, reason in cases:
        command = [sys.executable, str(CLIENT), *options]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        assert ended.returncode == 2 and ended.stderr.startswith("error: ") and reason in ended.stderr
        assert ended.stderr.count("\n") == 1
    with pytest.raises(ServerUnreachable, match="the model's server .*NotFound"):
        run_main(*output, *port, "--base-url", f"{address}/none", "--model-name", model, "--max-retries", 0)


def test_options_that_make_no_sense(capsys):
    for options in (
        [],
        ["--base-url", "u", "--model-path", "m"],
        ["--base-url", "u", "--options", "policy.num_beams=1"],
        ["--cfg-path", "f", "--temperature", "1"],
        ["--cfg-path", "f", "--dtype", "float16"],
        ["--base-url", "u", "--timeout", "-1"],
        ["--base-url", "u", "--max-retries", "-1"],
        ["--base-url", "u", "--temperature", "nan"],
        ["--base-url", "u", "--num-samples", "-1"],
    ):
        with pytest.raises(SystemExit) as ended:
            alfworld_vllm_client.parse_arguments(["--output-dir", "x", *options])
        assert ended.value.code == 2


def test_a_settings_file_that_was_edited_is_another_run(tmp_path):
    (tmp_path / "player.yaml").write_text("policy: {num_beams: 1}\n")
    given = ["--output-dir", str(tmp_path / "out"), "--cfg-path", str(tmp_path / "player.yaml")]
    before = alfworld_vllm_client.run_settings(alfworld_vllm_client.parse_arguments(given), "")
    (tmp_path / "player.yaml").write_text("policy: {num_beams: 2}\n")
    after = alfworld_vllm_client.run_settings(alfworld_vllm_client.parse_arguments(given), "")
    assert {key for key in before if before[key] != after[key]} == {"policy"}


def test_a_run_of_a_settings_file_goes_on_with_another_speed_and_another_spelling_of_its_path(tmp_path, monkeypatch):
    (tmp_path / "player.yaml").write_text("policy: {num_beams: 2}\n")
    monkeypatch.chdir(tmp_path)
    first, second, other = (
        alfworld_vllm_client.run_settings(
            alfworld_vllm_client.parse_arguments(["--output-dir", "out", "--cfg-path", path, *options]), ""
        )
        for path, *options in (
            ("player.yaml",),
            (str(tmp_path / "player.yaml"), "--options", "run.max_batch=2", "policy.num_beams=2"),
            ("player.yaml", "--options", "environment.blank_frames=true"),
        )
    )
    assert first == second and {key for key in first if first[key] != other[key]} == {"shown"}


@pytest.mark.parametrize(("named", "same"), [(["--model-name", "m"], True), ([], False)])
def test_a_named_model_may_be_served_elsewhere_when_a_run_continues(tmp_path, named, same):
    """Before, a model server that had moved to another node made it another run."""
    given = ["--output-dir", str(tmp_path), *named, "--base-url"]
    first, second = (
        alfworld_vllm_client.run_settings(alfworld_vllm_client.parse_arguments([*given, f"http://{node}:8000/v1"]), "")
        for node in ("a", "b")
    )
    assert (first == second) == same


def test_a_server_with_other_rules_is_another_run(start, tmp_path):
    server = start("--max-steps", "2")
    given = alfworld_vllm_client.parse_arguments(["--output-dir", str(tmp_path), "--base-url", "u"])
    given.port = server.port
    connection = alfworld_vllm_client.connect(given)
    _, told = alfworld_vllm_client.list_games(connection, given)
    connection.close()
    assert told["server_max_steps"] == 2 and told.keys() >= {"server_env", "server_image_size", "server_image_format"}


def test_settings_of_games_that_the_server_shows_otherwise_are_refused(tmp_path):
    given = ["--output-dir", str(tmp_path / "out"), "--cfg-path", str(REPO_ROOT / "configs/evaluate/looks.yaml")]
    with pytest.raises(ConfigError, match="environment.show_ids=false: the server renders games with labels"):
        alfworld_vllm_client.run_settings(alfworld_vllm_client.parse_arguments(given), "")
    given += ["--options", "environment.show_ids=true"]
    with pytest.raises(ConfigError, match="environment.name_by=type: the server shows games as they are"):
        alfworld_vllm_client.run_settings(alfworld_vllm_client.parse_arguments(given), "")


@pytest.mark.parametrize("option", ["run.actor=expert", "environment.split=household_house", "reflexion.enabled=true"])
def test_settings_that_the_client_does_not_read_are_refused(tmp_path, option):
    given = ["--output-dir", str(tmp_path / "out"), "--cfg-path", str(REPO_ROOT / "configs/evaluate/episodes.yaml")]
    given += ["--options", "model.max_txt_len=200", "run.max_batch=2", "environment.tell_objects=true"]
    recorded = alfworld_vllm_client.run_settings(alfworld_vllm_client.parse_arguments(given), "")
    assert recorded["shown"] == {"tell_objects": True, "blank_frames": False}
    with pytest.raises(ConfigError, match=f"--options {option} has no effect here"):
        alfworld_vllm_client.run_settings(alfworld_vllm_client.parse_arguments([*given, option]), "")


def test_two_runs_of_one_folder_are_refused(tmp_path):
    given = ["--output-dir", str(tmp_path), "--base-url", "http://localhost:1", "--port", "1"]
    with locked(tmp_path / ".lock", tmp_path), pytest.raises(LockedError):
        alfworld_vllm_client.main(given)


# ---- real vLLM -----------------------------------------------------------------------------------------------------


@pytest.mark.vllm
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("how", ["in this process", "behind vllm serve"])
def test_twenty_official_games_with_vllm(start, alfworld_data, tmp_path, how):
    """Server and client under two interpreters; a tiny random Qwen2-VL."""
    if not VLLM_PYTHON.exists():
        pytest.skip("no vLLM environment: run `make vllm-env`")
    model = write_qwen2vl(tmp_path / "model")
    games = start("--data-dir", str(alfworld_data / "json_2.1.1" / "valid_seen"), engine="textworld")
    options = ["--port", str(games.port), "--output-dir", str(tmp_path / "out"), "--num-samples", "20"]
    options += ["--num-envs", "8", "--max-turns", "2", "--max-new-tokens", "8"]
    engine = ["--max-model-len", "2048", "--gpu-memory-utilization", "0.1", "--enforce-eager"]
    environ = os.environ | {"OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1"}
    client = [str(VLLM_PYTHON), str(CLIENT), *options]
    if how == "in this process":
        subprocess.run([*client, "--model-path", str(model), *engine], check=True, env=environ)
    else:
        # What `vllm serve MODEL` starts; the CPU build's own `vllm` does not find its version.
        serve = (str(VLLM_PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model")
        with ServedModel(model, tmp_path / "serve.log", serve, tuple(engine)) as address:
            subprocess.run([*client, "--base-url", address], check=True, env=environ)
    records = [json.loads(file.read_text()) for file in tmp_path.glob("out/*/*/trajectory.json")]
    assert len(records) == 20 and all(len(record["turns"]) == 2 for record in records)
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["games"] == 20
