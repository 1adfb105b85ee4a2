"""The server as users start it: a process of its own, its log, its signals, its exit codes."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import uvicorn

from lavis.common.errors import ConfigError
from lavis.common.paths import REPO_ROOT
from policy_server.games.minerl import no_op
from policy_server.qwen_policy_server import (
    CFG_VARIABLE,
    MODEL_VARIABLE,
    OPTIONS_VARIABLE,
    PolicyApp,
    api_keys,
    app,
    build,
    load_model,
    read_command_line,
    settings_from,
)
from policy_server.settings import ServerSettings
from policy_server.web.api_keys import KEYS_VARIABLE
from policy_server.web.server import DrainingServer, open_port
from tests import warm
from tests.policy_server.servers import CAVE, TINY, ServerProcess, action_body, encoded_image, noise, open_socket
from tests.ports import free_port

VLLM_PYTHON = REPO_ROOT / ".venv-vllm" / "bin" / "python"
STUDENT = "blip2_emac:student"
PROGRAM = str(REPO_ROOT / "policy_server" / "qwen_policy_server.py")


def request(**fields: object) -> dict:
    return action_body(**{"max_tokens": 8, **fields})


def test_sigterm_answers_what_is_in_hand_and_ends_with_zero():
    with (
        ServerProcess(
            "--model", TINY, "--options", "queue.max_batch=1", "queue.deadline_s=120", "server.drain_s=120"
        ) as server,
        open_socket(server.url) as socket,
        ThreadPoolExecutor(4) as pool,
    ):
        address = f"{server.url}/get_action"
        first = [pool.submit(httpx.post, address, json=request(step=step), timeout=120) for step in range(4)]
        socket.send(json.dumps(request(step=9)))
        while taken(httpx.get(f"{server.url}/metrics", timeout=120).text) < 5:
            continue
        code = server.end()
        assert json.loads(socket.recv())["step"] == 9
        answers = [answer.result() for answer in first]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert [answer.json()["step"] for answer in answers] == [0, 1, 2, 3]
    assert code == 0


TOLD_TO_END = """
import os, signal
from lavis.common.program import run_program
from policy_server import qwen_policy_server as program

def told_to_end(*_):
    os.kill(os.getpid(), signal.SIGTERM)
    raise SystemExit("the signal was lost")

program.build, program.create_app = lambda settings: None, told_to_end
run_program(program.main)
"""


def test_sigterm_between_loading_and_serving_is_not_lost():
    command = [sys.executable, "-c", TOLD_TO_END, "--port", "0"]
    done = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_a_second_ctrl_c_ends_the_server_at_once():
    async def never() -> None:
        await asyncio.Event().wait()

    async def shut_down(force_exit: bool) -> None:
        server = DrainingServer(uvicorn.Config(lambda *_: None), SimpleNamespace(drained=never))
        server.servers, server.force_exit = [], force_exit
        await asyncio.wait_for(server.shutdown(), 2)

    asyncio.run(shut_down(True))
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(shut_down(False))


def taken(metrics: str) -> float:
    """How many requests have come in: in hand, or answered."""
    values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line.startswith("policy_"))
    answered = sum(float(value) for name, value in values.items() if name.startswith("policy_requests_total"))
    return answered + float(values["policy_in_hand"])


def test_the_log_names_requests_and_holds_no_image(server_process: ServerProcess):
    data = request(task_name="Chess")
    assert httpx.post(f"{server_process.url}/get_action", json=data, timeout=120).status_code == 404
    line = server_process.wait_for("404 unknown_task")
    assert "http anonymous 127.0.0.1" in line
    assert data["image"]["data"][:40] not in "".join(server_process.lines)


def test_a_busy_port_is_named_and_ends_with_two(server_process: ServerProcess):
    port = server_process.url.rpartition(":")[2]
    done = warm.run([PROGRAM, "--model", TINY, "--port", port])
    assert done.returncode == 2
    assert f"error: port {port} is held by" in done.stderr.splitlines()[-1]
    assert "Loading" not in done.stderr  # it is known before the model is loaded


def test_another_host_needs_a_key():
    with pytest.raises(ConfigError, match="server.host=0.0.0.0 can be reached from other machines") as caught:
        api_keys(ServerSettings(host="0.0.0.0"), {})
    assert "docker run -e EMAC_POLICY_KEYS=<key>" in str(caught.value)
    assert len(api_keys(ServerSettings(host="0.0.0.0"), {KEYS_VARIABLE: "k" * 20})) == 1
    assert len(api_keys(ServerSettings(host="::1"), {})) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "/nowhere/model"], "model.path=/nowhere/model: no config.json in there"),
        (["--model", "blip2_emac:huge"], "huge"),
        (["--options", "queue.limt=3"], "unknown key 'queue.limt': did you mean 'queue.limit'?"),
        (["--options", "models.a={device: cpu}"], "models.a"),
        (["--model", TINY, "--options", "memory.models_gib=0.001"], "memory.models_gib is 0.001"),
    ],
)
def test_a_wrong_setting_is_one_line(arguments, message):
    with pytest.raises((ValueError, OSError)) as caught:
        build(read_command_line(arguments))
    assert message in str(caught.value)


def test_the_environment_says_what_the_flags_say(tmp_path):
    file = tmp_path / "server.yaml"
    file.write_text("queue: {limit: 7, max_batch: 3}\nmodel: {path: a/b}\n")
    environment = {CFG_VARIABLE: str(file), OPTIONS_VARIABLE: "queue.max_batch=4 memory.history='2'"}
    settings = settings_from(environment)
    assert (settings.queue.limit, settings.queue.max_batch, settings.memory.history) == (7, 4, 2)
    settings = settings_from({**environment, MODEL_VARIABLE: TINY}, options=["queue.max_batch=5"])
    assert (settings.model.path, settings.queue.max_batch) == (TINY, 5)
    with pytest.raises(ConfigError, match="EMAC_POLICY_OPTIONS: No closing quotation"):
        settings_from({OPTIONS_VARIABLE: "model.path='a"})


@pytest.mark.parametrize("text", ["./a #b", "hf_vlm:", "C:\\new", "{a", "007", "größe 😀", "a: b"])
def test_shortcuts_are_texts_whatever_yaml_would_make_of_them(text):
    assert read_command_line(["--model", text]).model.path == text
    assert settings_from({MODEL_VARIABLE: text}).model.path == text
    assert read_command_line(["--host", "::", "--port", "0"]).server == ServerSettings(host="::", port=0)
    with pytest.raises(ConfigError, match=r"""in quotes, in a shell 'server.host="…"'$"""):
        read_command_line(["--options", "server.host=::"])


@pytest.fixture
def environment(monkeypatch) -> pytest.MonkeyPatch:
    for name in (CFG_VARIABLE, OPTIONS_VARIABLE, KEYS_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(MODEL_VARIABLE, TINY)
    return monkeypatch


def serve_app(app: object) -> tuple[uvicorn.Server, threading.Thread, str]:
    """uvicorn with its own settings, as `uvicorn qwen_policy_server:app` makes them."""
    listener = open_port("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    return server, thread, f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_the_application_is_built_from_the_environment(environment):
    environment.setenv(OPTIONS_VARIABLE, "memory.history=0 model.max_tokens=9")
    server, thread, url = serve_app(PolicyApp())
    try:
        assert httpx.get(f"{url}/", timeout=120).json()["model_loaded"]
        assert httpx.post(f"{url}/get_action", json=request(step=4), timeout=120).json()["step"] == 4
        refused = httpx.post(f"{url}/get_action", json=request(max_tokens=10), timeout=120)
        assert "at most 9" in refused.json()["detail"]
        with open_socket(url) as socket:
            socket.send(json.dumps(request(step=5)))
            assert json.loads(socket.recv())["step"] == 5
    finally:
        server.should_exit = True
        thread.join(60)


def test_load_model_loads_before_the_server_starts(environment):
    with pytest.raises(ConfigError, match="model.dtype"):
        load_model(dtype="int3")
    load_model(device="cpu")
    server, thread, url = serve_app(app)
    try:
        healthy = {"status": "healthy", "model": TINY, "device": "cpu", "ready": True}
        assert httpx.get(f"{url}/health", timeout=120).json() == healthy
    finally:
        server.should_exit = True
        thread.join(60)


def test_an_application_that_cannot_start_says_why_in_a_line(environment, caplog):
    environment.setenv(MODEL_VARIABLE, "/nowhere/model")
    with pytest.raises(SystemExit):
        uvicorn.Server(uvicorn.Config(PolicyApp(), port=0, log_config=None)).run()
    errors = [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.ERROR]
    (said,) = {message for message in errors if "/nowhere" in message}
    assert said.startswith("error: model.path=/nowhere/model: no config.json")


LAUNCHERS = [
    "uvicorn qwen_policy_server:app --host 0.0.0.0 --port {port} --reload --log-level info",
    "gunicorn qwen_policy_server:app --workers 1 --worker-class uvicorn.workers.UvicornWorker --bind 0.0.0.0:{port} "
    "--timeout 120",
]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda line: line.split()[0])
def test_the_original_commands_start_the_server(environment, launcher):
    """As the original's guide prints them, in the folder of the file; without a key, for this machine only."""
    port = free_port()
    command = [sys.executable, "-m", *launcher.format(port=port).split()]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, cwd=REPO_ROOT / "policy_server", stderr=subprocess.PIPE, text=True) as process:
        try:
            while not answers(url):
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.2)
            assert httpx.post(f"{url}/get_action", json=request(step=4), timeout=120).json()["step"] == 4
            with open_socket(url) as socket_:
                socket_.send(json.dumps(request(step=5)))
                assert json.loads(socket_.recv())["step"] == 5
        finally:
            process.terminate()
            log = process.stderr.read()
    assert process.returncode == 0 and "Traceback" not in log, log
    assert "no API keys: programs of other machines are refused" in log


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=120).json()["ready"]
    except httpx.HTTPError:
        return False


def vllm_python() -> str:
    if not VLLM_PYTHON.exists():
        pytest.skip("no .venv-vllm: `make vllm-env` makes it; Qwen2-VL's processor needs its torchvision")
    return str(VLLM_PYTHON)


@pytest.fixture(scope="module")
def qwen_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-qwen2vl"
    maker = [vllm_python(), str(REPO_ROOT / "tests" / "tiny_checkpoints.py"), "--out", str(folder), "qwen2vl"]
    subprocess.run(maker, check=True, capture_output=True, timeout=240)
    return folder


@pytest.fixture(scope="module")
def qwen(qwen_folder: Path):
    options = ["--model", str(qwen_folder), "--options", "queue.window_ms=500"]
    with ServerProcess(*options, python=vllm_python()) as server:
        yield server
        assert server.end() == 0


@pytest.mark.vllm
def test_a_real_qwen2vl_answers_the_published_request(qwen: ServerProcess):
    assert httpx.get(f"{qwen.url}/health", timeout=120).json()["model"] == "tiny-qwen2vl"
    answer = httpx.post(f"{qwen.url}/get_action", json=request(max_tokens=64), timeout=240)
    assert answer.status_code == 200, answer.text
    assert set(answer.json()["action"]) == set(no_op())
    assert answer.json()["reasoning"]


@pytest.mark.vllm
def test_rows_of_a_batch_are_answered_as_if_alone(qwen: ServerProcess):
    """Different prompts, images and lengths in one call, decoded greedily: each row as by itself."""
    asks = []
    for step, (task, tokens) in enumerate(((CAVE, 4), ("MineRLBasaltMakeWaterfall-v0", 12), (CAVE, 9))):
        image = encoded_image(size=(64 + 60 * step, 90), shade=40 * step)
        fields = {"task_name": task, "step": step, "temperature": 0, "max_tokens": tokens}
        asks.append({"params": fields, "content": image, "headers": {"Content-Type": "image/png"}})

    def post(ask: dict) -> httpx.Response:
        return httpx.post(f"{qwen.url}/get_action/image", timeout=240, **ask)

    alone = [post(ask).json() for ask in asks]
    with ThreadPoolExecutor(3) as pool:
        together = [[answer.json() for answer in pool.map(post, asks)] for _ in range(2)]
    assert together == [alone, alone]
    sizes = httpx.get(f"{qwen.url}/metrics", timeout=120).text
    assert 'policy_batch_size_bucket{le="1.0"}' in sizes
    count, total = (float(sizes.split(f"policy_batch_size_{name} ")[1].split()[0]) for name in ("count", "sum"))
    assert total > count  # some of them really were together


@pytest.mark.vllm
def test_alfworld_by_a_chat_model_is_a_possible_command(qwen: ServerProcess):
    commands = ["go to cabinet 1", "look"]
    fields = request(task_name="ALFWorld", prompt="You see a cabinet 1.\n> ", admissible_commands=commands)
    answer = httpx.post(f"{qwen.url}/get_action", json=fields, timeout=240).json()
    assert answer["action"]["command"] in commands


@pytest.mark.vllm
def test_models_change_places_within_the_budget(qwen_folder: Path):
    """3 MB and 9 MB in 10 MB: only one of them at a time."""
    options = ["memory.models_gib=0.0095", f"models.small={{path: '{qwen_folder}'}}"]
    with ServerProcess("--model", TINY, "--options", *options, python=vllm_python()) as server:
        for model in ("small", "", "small"):
            answer = httpx.post(f"{server.url}/get_action", json=request(model=model), timeout=240)
            assert answer.status_code == 200, answer.text
            loaded = {entry["name"]: entry["loaded"] for entry in httpx.get(f"{server.url}/models", timeout=120).json()}
            assert loaded == {TINY: model == "", "small": model == "small"}
        assert server.end() == 0


@pytest.mark.vllm
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantised_weights_answer_in_less_memory(qwen_folder: Path, qwen: ServerProcess, quantization: str):
    options = ["--model", str(qwen_folder), "--options", f"model.quantization={quantization}"]
    with ServerProcess(*options, python=vllm_python()) as server:
        answer = httpx.post(f"{server.url}/get_action", json=request(), timeout=240)
        assert answer.status_code == 200, answer.text
        whole, small = (httpx.get(f"{url}/models", timeout=120).json()[0]["bytes"] for url in (qwen.url, server.url))
        assert server.end() == 0
    assert small < 0.6 * whole  # embeddings stay as they are
    assert "MatMul8bitLt" not in "".join(server.lines)  # else a line for each layer of each step


def test_a_view_of_minerls_size_is_answered(server_process: ServerProcess):
    from policy_server.qwen_policy_client import QwenPolicyClient

    with QwenPolicyClient(server_process.url) as client:
        action = client.get_action({"pov": noise()}, CAVE, max_tokens=4)
    assert set(action) == set(no_op()) and action["camera"].dtype == "float32"


@pytest.fixture(scope="module")
def student() -> Iterator[ServerProcess]:
    """The shipped student, which solves most games by their text."""
    with ServerProcess("--model", STUDENT) as server:
        yield server


@pytest.mark.slow
def test_an_evaluation_through_openais_interface_scores_a_checkpoint_as_in_process(student, household_data, tmp_path):
    """The program for any endpoint and that for checkpoints play the same games: the same commands, step for step."""
    where = ["environment.name=household", "environment.split=household_heldout", f"environment.data={household_data}"]
    where += ["environment.num_train=12", "environment.num_heldout=6"]  # what the fixture has made
    where += ["environment.show_ids=false", "run.num_envs=3"]
    here = ["environment.blank_frames=true", "policy.skip_rejected=false", "policy.skip_visited=false"]
    there = [f"expert.model={STUDENT}", f"expert.base_url={student.url}/v1"]
    episodes = []
    for name, options in (("student", here), ("endpoint", there)):
        out = tmp_path / f"{name}.json"
        command = ["evaluate.py", "--cfg-path", f"configs/evaluate/{name}.yaml", "--options"]
        done = warm.run([*command, *where, *options, f"run.output={out}"], more={"OPENAI_API_KEY": "none"})
        assert done.returncode == 0, done.stderr
        (trial,) = json.loads(out.read_text())["episodes"]
        episodes.append([(episode["game"], episode["won"], episode["actions"]) for episode in trial])
    assert episodes[0] == episodes[1] and any(won for _, won, _ in episodes[0])


@pytest.mark.slow
def test_inspect_scores_a_checkpoint(student, tmp_path):
    inspect_ai = pytest.importorskip("inspect_ai")
    pytest.importorskip("openai", minversion="3.4", reason="Inspect's provider for OpenAI's interface needs openai 3.4")
    from alfworld_native import choose_games
    from xrl_alignment.adapters.inspect import household_task

    games = choose_games("household", "household_heldout", num=2, num_train=0, num_heldout=2, data=str(tmp_path / "g"))
    model = inspect_ai.model.get_model(f"openai-api/emac/{STUDENT}", base_url=f"{student.url}/v1", api_key="none")
    (log,) = inspect_ai.eval(
        household_task(games), model=model, temperature=0, max_tokens=64, log_dir=str(tmp_path / "logs"), display="none"
    )
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["accuracy"].value > 0


@pytest.mark.slow
def test_verifiers_scores_a_checkpoint(student, tmp_path):
    pytest.importorskip("verifiers")
    # fmt: off
    command = [sys.executable, "examples/verifiers_household.py", "--model", STUDENT, "--no-push",
               "--no-rich", "-n", "2", "-c", "1", "-o", str(tmp_path / "out"), "--sampling.temperature", "0",
               "--client.base-url", f"{student.url}/v1", "--client.api-key-var", "STAND_IN_KEY"]
    # fmt: on
    environ = {**os.environ, "PYTHONPATH": str(REPO_ROOT), "HOME": str(tmp_path), "STAND_IN_KEY": "none"}
    done = subprocess.run(command, cwd=REPO_ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = (tmp_path / "out").rglob("traces.jsonl")
    traces = [trace for line in file.read_text().splitlines() for trace in json.loads(line)["traces"]]
    assert [trace["errors"] for trace in traces] == [[], []]
    assert [trace["rewards"]["won"]["score"] for trace in traces] == [1.0, 1.0]
