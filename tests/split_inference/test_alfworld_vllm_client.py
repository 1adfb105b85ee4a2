"""The client against real servers: of games, and of models."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing
from functools import partial

import pytest
from PIL import Image

from lavis.common.errors import ConfigError
from split_inference import alfworld_vllm_client
from split_inference.alfworld_vllm_client import (
    Connection,
    Player,
    ServerFault,
    Trajectories,
    Turn,
    choose,
    conversation,
    main,
    parse_action,
)
from tests.split_inference.servers import PATIENCE_S, ServedModel, alive, children, wait_until
from tests.tiny_checkpoints import write_qwen2vl
from xrl_alignment.common.paths import REPO_ROOT
from xrl_alignment.language.prompt import build_prompt, opening

CLIENT = REPO_ROOT / "split_inference" / "alfworld_vllm_client.py"
VLLM_PYTHON = REPO_ROOT / ".venv-vllm" / "bin" / "python"


class Planner:
    """A model that knows every game's walkthrough, and finds out from the prompt which game it plays and how far."""

    write_prompt = staticmethod(build_prompt)

    def __init__(self, data):
        self.plans = {}
        for file in data.glob("json_2.1.1/*/*/*/game.tw-pddl"):
            game = json.loads(file.read_text())
            self.plans[f"{file.parent.parent.name}/{file.parent.name}"] = game["walkthrough"]
        self.games, self.batches, self.prompts = {}, [], []

    def learn(self, connection, games):
        """Read each game's opening, by which the prompt is told from others."""
        for game in games:
            intro = connection.send_request({"command": "init", "traj_file": game["traj_file"]})["intro"]
            self.games[opening(intro)] = self.plans[game["game"]]
        connection.send_request({"command": "reset_task"})

    def answer(self, turns):
        self.batches.append(len(turns))
        self.prompts += [turn.prompt for turn in turns]
        return [self.next(turn.prompt) for turn in turns]

    def next(self, prompt):
        plan = next(plan for intro, plan in self.games.items() if intro in prompt)
        return f"Action: {plan[prompt.count(chr(10) + '> ') - 1]}\nbecause it helps"


@pytest.fixture
def connections(server):
    opened = [Connection("localhost", server.port, PATIENCE_S) for _ in range(3)]
    yield opened
    for connection in opened:
        connection.close()


@pytest.fixture
def games(connections):
    """Five games in the order of a draw."""
    return choose(connections[0].send_request({"command": "list_games"})["games"], 5, seed=1)


@pytest.fixture
def planner(household_data, connections, games):
    planner = Planner(household_data)
    planner.learn(connections[0], games)
    return planner


def player(connections, model, folder, **changes):
    options = {"max_turns": 50, "show_commands": False, **changes}
    return Player(connections=connections, model=model, trajectories=Trajectories(folder, {"a": 1}), **options)


@pytest.fixture
def run_main(monkeypatch):
    """`run_main(*options)`: the program in this process, which keeps its own answer to SIGTERM."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return lambda *options: main([*map(str, options)])


# ---- playing -------------------------------------------------------------------------------------------------------


def test_games_are_played_in_batches_and_written(connections, games, planner, tmp_path):
    playing = player(connections, planner, tmp_path)
    episodes = list(playing.play(games))
    assert not playing.failed and all(episode.won for episode in episodes)
    assert sorted(episode.game for episode in episodes) == sorted(game["game"] for game in games)
    assert max(planner.batches) == 3 and sum(planner.batches) == sum(len(episode.turns) for episode in episodes)
    for game in games:
        folder = tmp_path / game["game"]
        record = json.loads((folder / "trajectory.json").read_text())
        assert record["success"] is True and record["task_type"] == game["game"].split("-")[0]
        assert record["intro"].endswith(record["task_desc"])
        assert [turn["action"] for turn in record["turns"]] == canonical(planner.plans[game["game"]])
        for turn in record["turns"]:
            assert turn["output"].startswith("Action: ") and turn["prompt"].endswith("\n> ") and turn["action_success"]
        pictures = [turn["image"] for turn in record["turns"]] + [record["final_image"]]
        assert pictures == [f"images/{number:02}.jpg" for number in range(len(pictures))]
        assert {file.name for file in (folder / "images").iterdir()} == {name[7:] for name in pictures}
        assert Image.open(folder / pictures[-1]).size == (300, 300)
    assert planner.prompts.count(planner.prompts[0]) == 1  # every prompt shows a new state


def canonical(plan):
    from xrl_alignment.language.commands import canonical

    return [canonical(command) for command in plan]


def test_the_table_counts_by_task_type(connections, games, planner, tmp_path):
    playing = player(connections, planner, tmp_path)
    list(playing.play(games))
    names = [game["game"] for game in games]
    lines = Trajectories(tmp_path, {"a": 1}).summarise(names).splitlines()
    counts = Counter(name.split("-")[0] for name in names)
    assert {line.split()[0]: line.split()[1:3] for line in lines[1:]} == {
        **{kind: [str(number)] * 2 for kind, number in counts.items()},
        "all": ["5", "5"],
    }
    assert json.loads((tmp_path / "summary.json").read_text())["success"] == 1.0


def test_an_episode_ends_with_its_turns(connections, games, planner, tmp_path):
    episodes = list(player(connections, planner, tmp_path, max_turns=1).play(games[:2]))
    assert [len(episode.turns) for episode in episodes] == [1, 1] and not any(e.won for e in episodes)


class Says:
    """A model that always writes the same."""

    def __init__(self, text, budget=None):
        self.text, self.turns = text, []
        self.write_prompt = partial(build_prompt, budget=budget)

    def answer(self, turns):
        self.turns += turns
        return [self.text] * len(turns)


def test_a_thought_costs_a_turn_but_no_step(connections, games, tmp_path):
    model = Says("think: the mug is dirty")
    (episode,) = player(connections, model, tmp_path, max_turns=3).play(games[:1])
    assert [turn["feedback"] for turn in episode.turns] == ["OK."] * 3 and len(episode.images) == 1
    assert model.turns[-1].prompt.endswith("> think: the mug is dirty\nOK.\n> ")
    Trajectories(tmp_path, {"a": 1}).summarise([games[0]["game"]])
    assert json.loads((tmp_path / "summary.json").read_text())["rejected"] == 0.0


@pytest.mark.parametrize(
    "text", ["", "\x00\ud800\x1b[0m\u2028", "I am sorry. " * 400, "examine " + "x" * 5000, "go to\n\n\nnowhere"]
)
def test_whatever_a_model_writes_the_game_goes_on(connections, games, tmp_path, text):
    playing = player(connections, Says(text), tmp_path, max_turns=2)
    (episode,) = playing.play(games[:1])
    assert not playing.failed and [turn["action_success"] for turn in episode.turns] == [False, False]
    assert json.loads((tmp_path / games[0]["game"] / "trajectory.json").read_text())["turns"][0]["action"] is not None


def test_commands_are_shown_if_asked_for(connections, games, tmp_path):
    model = Says("look")
    list(player(connections, model, tmp_path, max_turns=1, show_commands=True).play(games[:1]))
    assert model.turns[0].prompt.startswith("Possible commands: ") and "; inventory; look\n" in model.turns[0].prompt


def test_a_long_episode_leaves_out_its_oldest_steps(connections, games, tmp_path):
    model = Says("inventory", budget=900)
    list(player(connections, model, tmp_path, max_turns=25).play(games[:1]))
    assert max(len(turn.prompt) for turn in model.turns) <= 900 and "\n...\n" in model.turns[-1].prompt


def test_a_game_that_cannot_be_played_stops_no_other(connections, games, planner, tmp_path):
    broken = {"traj_file": "/no/such/game", "game": "broken/trial"}
    playing = player(connections, planner, tmp_path)
    assert len(list(playing.play([broken, *games[:2], broken | {"game": "broken/other"}]))) == 2
    assert list(playing.failed) == ["broken/trial", "broken/other"] and "no game" in playing.failed["broken/trial"]


# ---- what is written -----------------------------------------------------------------------------------------------


def test_a_crash_while_writing_leaves_nothing_half_done(connections, games, planner, tmp_path, monkeypatch):
    class Crash(BaseException):
        pass

    def crash(*_):
        raise Crash

    playing = player(connections, planner, tmp_path)
    monkeypatch.setattr(alfworld_vllm_client.os, "replace", crash)
    with pytest.raises(Crash):
        list(playing.play(games[:1]))
    monkeypatch.undo()
    assert (tmp_path / ".partial").is_dir()
    again = Trajectories(tmp_path, {"a": 1})
    assert not again.finished(games[0]["game"]) and not (tmp_path / ".partial").exists()


def test_another_run_is_not_mixed_in(tmp_path):
    Trajectories(tmp_path, {"model": "a", "seed": 1})
    Trajectories(tmp_path, {"model": "a", "seed": 1})
    with pytest.raises(ConfigError, match="model 'a' is now 'b'.*another --output-dir"):
        Trajectories(tmp_path, {"model": "b", "seed": 1})


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../../b", ".partial", ""])
def test_a_game_is_never_written_outside(tmp_path, name):
    with pytest.raises(ConfigError, match="folder's name"):
        Trajectories(tmp_path, {}).finished(name)


# ---- parts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "action"),
    [
        ("go to cabinet 2", "go to cabinet 2"),
        ("<think>where?</think>\nAction: take mug 1 from desk 2.", "take mug 1 from desk 2"),
        ("put the mug 1 on desk 2", "put mug 1 in/on desk 2"),
        ("think: look around", "think: look around"),
        ("I cannot help.", "i cannot help"),
        ("", ""),
    ],
)
def test_actions_are_read_from_outputs(output, action):
    assert parse_action(output) == action


def test_a_turn_as_chat_messages():
    system, user = conversation(Turn("where?\n> ", b"\xff\xd8", "jpeg", ()), "You are a robot.")
    assert system == {"role": "system", "content": "You are a robot."} and user["role"] == "user"
    assert user["content"][0]["image_url"]["url"] == "data:image/jpeg;base64,/9g="
    assert user["content"][1] == {"type": "text", "text": "where?\n> "}


def test_a_larger_draw_continues_a_smaller():
    games = [{"traj_file": str(i), "game": f"g{i:03}"} for i in range(50)]
    assert choose(games[::-1], 10, seed=3) == choose(games, 20, seed=3)[:10] != choose(games, 10, seed=4)
    assert sorted(game["game"] for game in choose(games, 0, seed=0)) == [game["game"] for game in games]
    with pytest.raises(ConfigError, match="there are 50 games"):
        choose(games, 51, seed=0)


def test_a_server_that_goes_away_is_named(start, trials):
    server = start()
    with closing(Connection("localhost", server.port, PATIENCE_S)) as connection:
        with pytest.raises(ServerFault, match="unknown command"):
            connection.send_request({"command": "fly"})
        (environment,) = children(server.process.pid)
        server.process.kill()
        wait_until(lambda: not alive(environment))
        with pytest.raises(ConnectionError, match=f"lost the server on localhost:{server.port}.*goes on from here"):
            connection.send_request({"command": "get_state"})
    server.wait()
    with pytest.raises(ConnectionError, match="start alfworld_server.py first"):
        Connection("localhost", server.port, PATIENCE_S)


# ---- the program ---------------------------------------------------------------------------------------------------


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
        ([*output, *port, "--base-url", address, "--data-dir", "/nowhere"], "no games for --env household"),
    ]
    for options, reason in cases:
        command = [sys.executable, str(CLIENT), *options]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        assert ended.returncode == 2 and ended.stderr.startswith("error: ") and reason in ended.stderr
        assert ended.stderr.count("\n") == 1
    with pytest.raises(ConnectionError, match="the model's server .*NotFound"):
        run_main(*output, *port, "--base-url", f"{address}/none", "--model-name", model, "--max-retries", 0)


def test_options_that_make_no_sense(capsys):
    for options in (["--output-dir", "x"], ["--output-dir", "x", "--base-url", "u", "--model-path", "m"]):
        with pytest.raises(SystemExit) as ended:
            alfworld_vllm_client.parse_arguments(options)
        assert ended.value.code == 2


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
