"""`alfworld_client.py` as a terminal starts it."""

import contextlib
import itertools
import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

import alfworld_client
import generate_reflections
from alfworld_client import parse_arguments
from alfworld_native.games import find_games
from lavis.common.errors import ConfigError
from xrl_alignment.wire.http_server import DaggerHTTPServer
from xrl_alignment.wire.messages import Bye, Hello, Observation

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 120  # far more than anything here takes, also on a busy machine


def start(*arguments: str, **options) -> subprocess.Popen:
    command = [sys.executable, str(ROOT / "alfworld_client.py"), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, **options)


def run(*arguments: str, **options) -> tuple[int, str, str]:
    process = start(*arguments, **options)
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


@pytest.fixture
def server():
    server = DaggerHTTPServer("127.0.0.1", 0)
    server.start()
    yield server
    server.stop()


def take(server: DaggerHTTPServer):
    pending = server.take(1, timeout_s=PATIENCE_S)
    assert pending, "nothing came"
    return pending[0]


SETTINGS = """
run: {num_envs: 7, num_workers: 2, max_steps: 9}
environment: {name: textworld, split: train, seed: 4, show_ids: false, blank_frames: true, name_by: type, camera: close}
expert: {name: planner}
server: {host: 0.0.0.0, port: 7999, token: a-token-of-sixteen}
"""


@pytest.fixture
def settings(tmp_path) -> str:
    path = tmp_path / "settings.yaml"
    path.write_text(SETTINGS)
    return str(path)


def test_the_servers_settings_file_says_what_is_played(settings):
    arguments = parse_arguments(["--cfg-path", settings, "--options", "run.num_envs=8"])
    assert (arguments.env, arguments.split, arguments.num_envs, arguments.num_workers) == ("textworld", "train", 8, 2)
    assert (arguments.seed, arguments.max_steps, arguments.expert) == (4, 9, "planner")
    assert arguments.blank_frames and not arguments.show_ids and not arguments.other_frames
    assert (arguments.name_by, arguments.camera) == ("type", "close")
    assert (arguments.host, arguments.port, arguments.token) == ("127.0.0.1", 7999, "a-token-of-sixteen")


def test_a_flag_wins_over_the_settings_file_before_or_after_it(settings):
    own = ["--env", "native", "--num-envs", "5", "--port", "1", "--token", "mine"]
    before, after = parse_arguments([*own, "--cfg-path", settings]), parse_arguments(["--cfg-path", settings, *own])
    assert before == after and (after.env, after.num_envs, after.port, after.token) == ("native", 5, 1, "mine")
    assert after.split == "train" and after.max_steps == 9


def test_where_any_port_may_be_the_servers_the_client_is_told_which(settings):
    asked = ["--cfg-path", settings, "--options", "server.port=0"]
    with pytest.raises(ConfigError, match="server.port=0 takes any free port: give --port, the server prints it"):
        parse_arguments(asked)
    assert parse_arguments(["--port=81", *asked]).port == parse_arguments([*asked, "--port", "81"]).port == 81


def test_where_nothing_is_trained_no_expert_is_computed(settings):
    asked = ["--cfg-path", settings, "--options"]
    assert parse_arguments([*asked, "run.num_envs=8"]).expert == "planner"
    assert parse_arguments([*asked, "run.run_training=false"]).expert is None


def test_without_a_settings_file_the_flags_have_their_own_defaults():
    arguments = parse_arguments([])
    assert (arguments.env, arguments.num_envs, arguments.port, arguments.expert) == ("native", 3, 7860, None)
    with pytest.raises(ConfigError, match="--options has no effect without --cfg-path"):
        parse_arguments(["--options", "run.num_envs=8"])


def test_a_mistake_in_the_settings_file_is_one_line(tmp_path):
    (tmp_path / "settings.yaml").write_text("run: {num_env: 7}")
    code, _, error = run("--cfg-path", str(tmp_path / "settings.yaml"))
    assert code == 2 and error.count("\n") == 1 and "did you mean 'run.num_envs'" in error


def test_a_client_plays_by_the_settings_of_a_run(server, household_data, tmp_path):
    (tmp_path / "config.yaml").write_text(
        f"run: {{num_envs: 1, max_steps: 2}}\nserver: {{port: {server.port}}}\n"
        f"environment: {{split: household_heldout, data: {household_data}}}"
    )
    process = start("--cfg-path", str(tmp_path / "config.yaml"))
    hello = take(server)
    assert hello.message.games == (find_games("household_heldout", household_data, num=1, seed=0)[0].id,)
    hello.reply({"kind": "welcome", "num_rounds": 1, "expert": ""})
    take(server).reply({"kind": "finished"})
    take(server).reply({"kind": "bye"})
    assert process.wait(timeout=PATIENCE_S) == 0


def test_plays_household_games_to_the_end(server, household_data):
    arguments = ["--port", str(server.port), "--env", "native", "--split", "household_heldout", "--num-envs", "1"]
    process = start(*arguments, "--data", str(household_data), "--max-steps", "2")
    hello = take(server)
    (game,) = hello.message.games
    assert game == find_games("household_heldout", household_data, num=1, seed=0)[0].id
    hello.reply({"kind": "welcome", "num_rounds": 1, "expert": ""})
    take(server).reply({"kind": "work", "env": 0, "game": game, "round": 0})
    for answer in (["look"], ["inventory"], []):
        pending = take(server)
        last = pending.message
        pending.reply(answer)
    assert isinstance(last, Observation) and last.done  # --max-steps 2
    take(server).reply({"kind": "finished"})
    take(server).reply({"kind": "bye"})
    out, err = process.communicate(timeout=PATIENCE_S)
    summary = json.loads(out)
    assert process.returncode == 0 and (summary["episodes"], summary["steps"]) == (1, 2) and "1 of 1 episodes" in err


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_says_bye(server, household_data, how):
    arguments = ["--port", str(server.port), "--env", "native", "--split", "household_heldout", "--num-envs", "1"]
    # Started as from a terminal: what a shell runs in the background inherits that SIGINT is ignored.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = start(*arguments, "--data", str(household_data), preexec_fn=heard)
    hello = take(server)
    assert isinstance(hello.message, Hello)  # not answered: the client waits
    time.sleep(0.1)
    process.send_signal(how)
    bye = take(server)
    assert isinstance(bye.message, Bye) and bye.message.session == hello.message.session
    bye.reply({"kind": "bye"})
    assert process.wait(timeout=PATIENCE_S) == 130
    assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--env", "minecraft"], "unknown environment 'minecraft': choose one of household, native"),
        (["--env", "native", "--split", "no_such_split"], "no games of split 'no_such_split'"),
        (["--env", "native", "--patience", "0.1", "--port", "1"], "no server at http://127.0.0.1:1 for 0.1 s"),
        (["--env", "native", "--wire", "v1", "--num-workers", "2"], "wire v1 knows one client"),
        (["--env", "native", "--wire", "v1", "--executor", "ray"], "wire v1 knows one client, not one on every node"),
        (["--env", "native", "--ray-address", "auto"], "--ray-address auto has no effect unless --executor is ray"),
        (["--env", "native", "--num-envs", "99"], "99 were asked for"),
        (["--env", "native", "--port", "99999"], "--port 99999: give the port on which dagger_server.py listens"),
        (["--env", "native", "--port", "0"], "--port 0: give the port"),
        (["--env", "native", "--step-timeout", "9"], "--step-timeout 9.0 has no effect in this process"),
        (
            ["--host", "http://localhost:7860"],
            "--host http://localhost:7860: give a name or an address without http://",
        ),
        (["--env", "thor"], "environment thor needs ai2thor, opencv-python, torchvision: install the extra"),
    ],
)
def test_mistakes_end_in_one_line_and_code_2(household_data, arguments, reason):
    code, out, err = run("--data", str(household_data), "--split", "household_heldout", *arguments)
    lines = [line for line in err.splitlines() if not line.startswith("waiting for")]
    assert (code, out, len(lines)) == (2, "", 1) and lines[0].startswith("error: ") and reason in lines[0]


@pytest.mark.parametrize("flag", ["--patience", "--step-timeout", "--text-noise"])
@pytest.mark.parametrize("value", ["nan", "inf", "-1", "soon"])
def test_a_number_that_cannot_be_meant_is_refused(flag, value, capsys):
    """Of the noise the error named the setting `environment.text_noise`, which nobody had given."""
    with pytest.raises(SystemExit, match="2"):
        alfworld_client.parse_arguments([flag, value])
    assert f"argument {flag}: " in capsys.readouterr().err


def test_without_max_steps_a_game_has_the_horizon_of_its_level(monkeypatch, tmp_path):
    """Games of harder levels were cut at 50 actions, and counted as lost."""
    lasted = []

    def play(environment_factory, games, **job) -> dict:
        with contextlib.closing(environment_factory()) as environment:
            environment.reset(games[0])
            lasted.append(next(n for n in itertools.count(1) if environment.step("look").done))
        return {}

    monkeypatch.setattr(alfworld_client, "play", play)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    flags = ["--env", "household", "--num-train", "1", "--num-heldout", "1", "--num-envs", "1", "--levels", "many=1"]
    monkeypatch.setattr(sys, "argv", ["alfworld_client.py", *flags])
    alfworld_client.main()
    assert lasted == [100]
    for steps in (50, 0):
        monkeypatch.setattr(sys, "argv", ["alfworld_client.py", *flags, "--max-steps", str(steps)])
        with pytest.raises(ConfigError, match=f"--max-steps {steps} is less than the longest horizon of --levels: 100"):
            alfworld_client.main()


def test_help_lists_the_environments():
    code, out, _ = run("--help")
    assert code == 0 and "native, textworld, household" in out


def test_an_expert_of_ones_own_sends_the_labels_also_from_a_process_of_its_own(server, household_data):
    arguments = ["--port", str(server.port), "--split", "household_heldout", "--num-envs", "1", "--executor", "local"]
    arguments += ["--data", str(household_data), "--expert", "examples.custom_expert:OrderlyExpert"]
    process = start(*arguments)
    hello = take(server)
    (game,) = hello.message.games
    hello.reply({"kind": "welcome", "num_rounds": 1, "expert": "client"})
    take(server).reply({"kind": "work", "env": 0, "game": game, "round": 0})
    pending = take(server)
    assert "expert_action" in pending.message.information and "admissible_commands" in pending.message.information
    pending.reply([])
    take(server).reply({"kind": "finished"})
    take(server).reply({"kind": "bye"})
    assert process.wait(timeout=PATIENCE_S) == 0, process.stderr.read()


@pytest.mark.parametrize(
    ("name", "reason"),
    [("expolrer", "did you mean 'explorer'?, or give module:Class"), ("nowhere_at_all:X", "there is no module")],
)
def test_an_expert_that_does_not_exist(household_data, name, reason):
    code, _, err = run("--data", str(household_data), "--split", "household_heldout", "--expert", name)
    assert code == 2 and reason in err.splitlines()[-1]


def test_repeated_options_add_up(tmp_path, monkeypatch):
    settings = ["--cfg-path", str(ROOT / "configs/dagger/demo_bc.yaml")]
    given = parse_arguments([*settings, "--options", "run.num_envs=7", "--options", "server.port=7999"])
    assert (given.num_envs, given.port) == (7, 7999)
    monkeypatch.setattr(generate_reflections, "saved_settings", lambda folder, options: options)
    _, options = generate_reflections.read_command_line([str(tmp_path), "--options", "a=1", "--options", "b=2"])
    assert options == ["a=1", "b=2"]
