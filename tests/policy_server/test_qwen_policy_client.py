from __future__ import annotations

import ast
import asyncio
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from lavis.common.paths import REPO_ROOT
from policy_server.basalt_stand_in import BasaltStandIn
from policy_server.games.minerl import no_op
from policy_server.qwen_policy_client import (
    AsyncQwenPolicyClient,
    PolicyServerError,
    QwenPolicyClient,
    UsageError,
    encode,
    main,
    make_environment,
    play,
    step_environment,
)
from tests.file_server import FileServer
from tests.policy_server.servers import CAVE, TINY, HeldModel, noise, wait_until_queued
from tests.ports import free_port

OBS = {"pov": noise((64, 36)), "inventory": {}}


def test_an_action_is_ready_for_the_environment(serve):
    with QwenPolicyClient(serve().url) as client:
        assert client.check_health()["model"] == TINY
        action = client.get_action(OBS, task_name=CAVE, max_tokens=4)
        assert set(action) == set(no_op()) and client.last_reasoning
    assert BasaltStandIn().action_space.contains(action)


def test_a_model_of_short_answers_is_asked_for_no_more(serve):
    with QwenPolicyClient(serve("model.max_tokens=4").url) as client:
        assert client.get_action(OBS, task_name=CAVE)
        assert client.get_action(OBS, task_name="ALFWorld", prompt="> ", admissible_commands=["look"])


def test_the_asynchronous_client_says_the_same(serve):
    server = serve()

    async def both() -> tuple[dict, dict]:
        async with AsyncQwenPolicyClient(server.url) as client:
            await client.reset()
            return await client.check_health(), await client.get_action(OBS, CAVE, temperature=0, max_tokens=4)

    health, action = asyncio.run(both())
    with QwenPolicyClient(server.url) as client:
        assert client.check_health() == health
        assert str(client.get_action(OBS, CAVE, temperature=0, max_tokens=4)) == str(action)


def test_steps_and_history_begin_anew_with_an_episode(serve):
    server = serve()
    with QwenPolicyClient(server.url) as client:
        for _ in range(2):
            client.get_action(OBS, CAVE, max_tokens=4)
        (session,) = {step["session"] for step in server.http.get("/ui/recent").json()}
        assert client.step == 2 and len(server.admission.sessions.steps("anonymous 127.0.0.1", session)) == 2
        client.reset()
        client.get_action(OBS, CAVE, max_tokens=4)
        assert client.step == 1 and client.session != session
    assert server.admission.sessions.steps("anonymous 127.0.0.1", session) == []


def histories(server) -> dict[str, list[int]]:
    """The steps of each session that the server has shown to its model."""
    steps: dict[str, list[int]] = {}
    for seen in reversed(server.admission.recent["anonymous 127.0.0.1"]):
        steps.setdefault(seen.query.session, []).insert(0, seen.query.step)
    return steps


def run_environments(client: QwenPolicyClient) -> None:
    """The example of the original's guide: four environments in asyncio share one client."""

    async def run_environment(env_id: int) -> None:
        env = BasaltStandIn(max_steps=3)
        obs, _ = env.reset(seed=env_id)
        for _ in range(3):
            ask = partial(client.get_action, obs, CAVE, max_tokens=4, env_id=env_id)
            action = await asyncio.get_running_loop().run_in_executor(None, ask)
            obs, *_ = env.step(action)

    async def run_all() -> None:
        await asyncio.gather(*[run_environment(i) for i in range(4)])

    asyncio.run(run_all())


def test_environments_that_share_a_client_have_histories_of_their_own(serve):
    server = serve("server.recent=20")
    with QwenPolicyClient(server.url) as client:
        run_environments(client)
        seen = histories(server)
        assert "" not in seen and sorted(seen.values()) == [[1, 2, 3]] * 4
        for session in seen:
            assert len(server.admission.sessions.steps("anonymous 127.0.0.1", session)) == 3
        client.reset(env_id=2)
        client.get_action(OBS, CAVE, max_tokens=4, env_id=2)
        assert server.admission.recent["anonymous 127.0.0.1"][-1].query.step == 1
        assert (
            server.admission.recent["anonymous 127.0.0.1"][-1].query.session not in seen
            and len(server.admission.sessions) == 4
        )


def test_environments_without_a_name_do_not_become_one_history(serve, held_model: HeldModel):
    server = serve("server.recent=20", model=held_model)
    with QwenPolicyClient(server.url) as client, ThreadPoolExecutor(2) as threads:
        first = threads.submit(client.get_action, OBS, CAVE, max_tokens=4)
        held_model.wait_until_called()
        with pytest.warns(UserWarning, match="give each call the env_id"):
            second = threads.submit(client.get_action, OBS, CAVE, max_tokens=4)
            held_model.release.set()
            second.result()
        first.result()
        client.get_action(OBS, CAVE, max_tokens=4)
        assert [sum(map(len, histories(server).values())), len(histories(server)[""])] == [3, 2]
        client.reset()
        client.get_action(OBS, CAVE, max_tokens=4)
        assert server.admission.recent["anonymous 127.0.0.1"][-1].query.session == client.session


def test_a_busy_server_is_asked_again(serve, held_model: HeldModel, monkeypatch):
    """One request in the model's hands, one waits, there is room for no third; it comes again until there is."""
    server = serve("queue.limit=1", "queue.max_batch=1", model=held_model)
    said: list[str] = []

    def pause(client: QwenPolicyClient, attempt: int, retry_after: str = "") -> float:
        said.append(retry_after)
        held_model.release.set()
        return 0.05

    monkeypatch.setattr(QwenPolicyClient, "_pause", pause)
    with ThreadPoolExecutor(2) as others, QwenPolicyClient(server.url, retries=1000) as client:
        others.submit(ask_once, server.url)
        held_model.wait_until_called()
        others.submit(ask_once, server.url)
        wait_until_queued(server, 1)
        assert set(client.get_action(OBS, CAVE, max_tokens=4)) == set(no_op())
    assert int(said[0]) >= 1


def ask_once(url: str) -> None:
    with QwenPolicyClient(url, retries=0) as client:
        client.get_action(OBS, CAVE, max_tokens=4)


def test_refusals_are_told_and_not_repeated(serve):
    server = serve(keys={"lab": "k" * 20})
    with pytest.raises(PolicyServerError, match="answers 401: an API key is needed") as caught:
        QwenPolicyClient(server.url).get_action(OBS, CAVE)
    assert (caught.value.status, caught.value.code) == (401, "key_needed")
    with QwenPolicyClient(server.url, api_key="k" * 20) as client:
        with pytest.raises(PolicyServerError, match="unknown task 'Chess'"):
            client.get_action(OBS, "Chess")
        assert client.get_action(OBS, CAVE, max_tokens=4)


def test_a_server_of_this_machine_is_asked_without_a_proxy(serve, monkeypatch):
    for variable in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")  # where nothing listens
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)
    server = serve()

    async def ask() -> dict:
        async with AsyncQwenPolicyClient(server.url, retries=0) as client:
            return await client.check_health()

    with QwenPolicyClient(server.url.replace("127.0.0.1", "localhost"), retries=0) as client:
        assert client.check_health() == asyncio.run(ask())


@pytest.mark.parametrize("client", [QwenPolicyClient, AsyncQwenPolicyClient])
def test_a_proxy_that_cannot_be_used_is_named(client, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "socks://127.0.0.1:9")  # httpx knows socks5:// alone
    with pytest.raises(UsageError, match=r"the proxy of the environment \(ALL_PROXY"):
        client()


def test_a_server_that_is_away_is_named():
    port = free_port()
    client = QwenPolicyClient(f"http://127.0.0.1:{port}", retries=1)
    with pytest.raises(PolicyServerError, match=f"http://127.0.0.1:{port} cannot be reached") as caught:
        client.check_health()
    assert caught.value.status == 0
    client.reset()  # needs no server


@pytest.mark.parametrize("page", ["<html>another service</html>", "null"])
def test_an_address_of_something_else_is_named(page: str):
    with FileServer() as other, QwenPolicyClient(f"http://127.0.0.1:{other.server_port}") as client:
        other.content = page.encode()
        with pytest.raises(PolicyServerError, match=f":{other.server_port} is no policy server: it answers '{page}'"):
            client.check_health()


def test_a_client_waits_no_longer_than_its_timeout(serve, held_model: HeldModel):
    server = serve(model=held_model)
    with (
        QwenPolicyClient(server.url, retries=0) as client,
        pytest.raises(PolicyServerError, match="no answer within"),
    ):
        client.get_action(OBS, CAVE, timeout=0.2)


def test_observations_that_are_no_images_are_refused_at_once():
    with pytest.raises(ValueError, match=r"shape \(4, 4\)"):
        encode({"pov": np.zeros((4, 4))})
    with pytest.raises(ValueError, match="image_format='gif'"):
        QwenPolicyClient("http://localhost", image_format="gif")
    with pytest.raises(ValueError, match="type is float64; an image has whole numbers from 0 to 255"):
        encode(np.full((4, 4, 3), 0.9))  # it would be black
    assert encode(np.zeros((4, 4, 3), np.uint8), "png").startswith(b"\x89PNG")


class OldGym:
    """MineRL's interface: `reset` gives the observation alone, `step` four values; not every key is known."""

    def __init__(self) -> None:
        self._env = BasaltStandIn(max_steps=2)
        self.action_space = self._env.action_space
        del self.action_space.spaces["swapHands"]

    def reset(self):
        return self._env.reset(seed=0)[0]

    def step(self, action):
        assert set(action) == set(self.action_space.spaces)
        obs, reward, terminated, truncated, info = self._env.step(action)
        return obs, reward, terminated or truncated, info


@pytest.mark.parametrize("env", [BasaltStandIn(max_steps=2), OldGym()], ids=["gymnasium", "gym"])
def test_an_episode_is_played_in_both_interfaces(serve, env, capsys):
    with QwenPolicyClient(serve().url) as client:
        assert play(client, env, CAVE, steps=5) == 2
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_task_that_the_stand_in_does_not_know_is_named():
    with pytest.raises(UsageError, match="--task: unknown task 'MineRLBasaltFindCave': did you mean"):
        make_environment("stand-in", "MineRLBasaltFindCave")


def test_esc_ends_an_episode():
    env = make_environment("stand-in", CAVE)
    env.reset(seed=0)
    assert step_environment(env, {**no_op(), "ESC": 1})[1]
    assert not step_environment(env, no_op())[1]


def test_the_client_is_a_single_file(tmp_path):
    """Copied elsewhere it imports nothing else of this project, nor anything heavy."""
    shutil.copy(REPO_ROOT / "policy_server" / "qwen_policy_client.py", tmp_path)
    code = "import qwen_policy_client, sys; print({name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stderr
    assert not {"lavis", "policy_server", "xrl_alignment", "torch", "gymnasium"} & ast.literal_eval(done.stdout)


def test_ctrl_c_ends_in_a_line():
    program = str(REPO_ROOT / "policy_server" / "qwen_policy_client.py")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        command = [sys.executable, program, "--server", f"http://127.0.0.1:{silent.getsockname()[1]}"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as waiting:
            silent.accept()[0].recv(1)
            waiting.send_signal(signal.SIGINT)
            assert waiting.communicate(timeout=60)[1] == "interrupted\n" and waiting.returncode == 130


def test_the_example_runs_from_any_folder(server_process, tmp_path):
    program = str(REPO_ROOT / "policy_server" / "qwen_policy_client.py")
    command = [sys.executable, program, "--server", server_process.url, "--steps", "2"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "episode over after 2 steps" in done.stdout
    missing = subprocess.run([*command, "--env", "minerl"], capture_output=True, text=True, timeout=240)
    assert (missing.returncode, missing.stderr.startswith("error: --env minerl needs MineRL")) == (2, True)


@pytest.mark.parametrize("client", [QwenPolicyClient, AsyncQwenPolicyClient])
def test_a_key_loses_its_line_end_and_one_that_no_header_carries_is_not_shown(client, monkeypatch):
    assert client(api_key="secret-key-1\n")._headers == {"Authorization": "Bearer secret-key-1"}
    for key in ("secret-schlüssel", "secret\nkey"):
        monkeypatch.setenv("EMAC_POLICY_KEY", key)
        with pytest.raises(UsageError, match="EMAC_POLICY_KEY.* not printable ASCII") as caught:
            client()
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("steps", ["-3", "0"])
def test_an_episode_of_no_steps_is_refused(steps, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["qwen_policy_client.py", "--steps", steps])
    with pytest.raises(SystemExit):
        main()
    assert f"argument --steps: {steps} is less than 1" in capsys.readouterr().err
