"""The policy over an inference engine, held against the policy in this process on the same weights.

The first half speaks with `small_engine` over real sockets; the tests marked vllm with vLLM's own processes.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lavis.common.errors import ConfigError
from lavis.models.convert import export_llm
from tests.xrl_alignment.policies.vllm.small_engine import SmallEngine
from tests.xrl_alignment.policies.vllm.vllm_server import VllmServer
from xrl_alignment.builders.student import load_student, make_policy
from xrl_alignment.common.errors import EngineFault
from xrl_alignment.config.loading import load_config
from xrl_alignment.config.schema import DaggerConfig, PolicyConfig
from xrl_alignment.policies import base
from xrl_alignment.policies.base import PolicyInput
from xrl_alignment.policies.in_process import InProcessPolicy
from xrl_alignment.policies.vllm import policy
from xrl_alignment.policies.vllm.policy import TOLERANCE, Fingerprint, VllmClient, VllmPolicy, best_answer
from xrl_alignment.policies.vllm.process import VllmProcess, find_python

CPU = torch.device("cpu")
BACKBONE = {"llm_weights": "tiny/backbone.safetensors", "freeze_llm": True, "freeze_vit": True, "freeze_qformer": True}
COMMANDS = ("look", "inventory", "go to desk 1", "go to desk 2", "open fridge 1", "go to fridge 1")


@pytest.fixture(scope="module")
def student():
    return load_student(BACKBONE, CPU)


@pytest.fixture
def exact(monkeypatch):
    """Both sides compute in float32: what differs is no rounding."""
    for module in (policy, base):
        monkeypatch.setattr(module, "autocast", lambda device: torch.autocast(device.type, enabled=False))


@pytest.fixture(scope="module")
def engine(student):
    small = SmallEngine(student[0].llm_model)
    yield small
    small.close()


@pytest.fixture
def make(student):
    with ExitStack() as cleanup:

        def build(*urls, **options):
            options = {"max_length": 10, "patience_s": 0.0, **options}
            policy = VllmPolicy(model=student[0], vis_processor=student[1], base_urls=urls, timeout_s=60.0, **options)
            cleanup.callback(policy.close)
            return policy

        yield build


def in_process(student, **options) -> InProcessPolicy:
    options = {"max_length": 10, "min_length": 1, **options}
    return InProcessPolicy(model=student[0], vis_processor=student[1], num_beams=1, **options)


def inputs(count: int) -> list[PolicyInput]:
    """Rooms of unlike length, pictures of noise."""
    rng = np.random.default_rng(0)
    rooms = [", ".join(f"a drawer {n}" for n in range(1, i % 5 + 2)) for i in range(count)]
    return [
        PolicyInput(
            f"You are in the middle of a room. Looking quickly around you, you see {room}, and a fridge 1.\n"
            f"Your task is to: put a mug in drawer.\n> ",
            rng.integers(0, 255, (224, 224, 3), dtype=np.uint8),
            COMMANDS,
            f"episode {i}",
        )
        for i, room in enumerate(rooms)
    ]


@pytest.mark.parametrize("options", [{}, {"min_length": 6}, {"decode": "admissible"}])
def test_it_answers_as_the_policy_in_this_process(student, engine, make, exact, options):
    batch = inputs(5)
    assert make(engine.url, **options).act(batch) == in_process(student, **options).act(batch)


def test_what_training_changes_counts_at_once(student, engine, make, exact):
    model = student[0]
    batch = [item._replace(prompt="> ") for item in inputs(4)]  # few words, so that the picture tells
    policy, own = make(engine.url), in_process(student)
    before = own.act(batch)
    assert policy.act(batch) == before
    saved = model.llm_proj.weight.detach().clone()
    try:
        for seed in range(10):  # until it makes a difference
            with torch.no_grad():
                model.llm_proj.weight.normal_(generator=torch.Generator().manual_seed(seed))
            if (after := own.act(batch)) != before:
                break
        assert policy.act(batch) == after != before
    finally:
        with torch.no_grad():
            model.llm_proj.weight.copy_(saved)


def test_two_servers_share_the_work_and_one_may_die(student, make, exact):
    batch = inputs(6)
    wanted = in_process(student).act(batch)
    pair = [SmallEngine(student[0].llm_model) for _ in range(2)]
    try:
        policy = make(*(small.url for small in pair), retry_s=0.0, patience_s=120.0)
        probes = [small.served for small in pair]
        assert policy.act(batch) == wanted
        assert [small.served - asked for small, asked in zip(pair, probes, strict=True)] == [3, 3]
        pair[0].broken = True  # answers, but with errors
        assert policy.act(batch) == wanted
        pair[0].broken = False
        pair[1].close()
        assert policy.act(batch) == wanted  # the first one is back
        assert [bool(server.reason) for server in policy.pool.servers] == [False, True]
        pair[0].broken = True
        threading.Timer(0.5, setattr, (pair[0], "broken", False)).start()
        assert policy.act(batch) == wanted  # for a moment there was none
    finally:
        for small in (pair[0], *([] if pair[1].server.socket.fileno() < 0 else [pair[1]])):
            small.close()


def test_another_model_behind_the_url_is_refused(student, make):
    other, _ = load_student({**BACKBONE, "llm_weights": "", "init_seed": 5}, CPU)
    small = SmallEngine(other.llm_model)
    try:
        with pytest.raises(EngineFault, match="serves small, which is another model than the one that is loaded here.*"
                           "differ by [0-9.]+.*convert … --to llm"):  # fmt: skip
            make(small.url)
    finally:
        small.close()


def test_slightly_other_weights_are_found_and_rounding_is_not(student, engine):
    client, fingerprint = VllmClient(60.0), Fingerprint(student[0])
    assert fingerprint.difference(client, engine.url) < 1e-3
    with torch.no_grad():
        rounded, changed = (load_student(BACKBONE, CPU)[0].llm_model for _ in range(2))
        rounded.bfloat16().float()
        changed.get_decoder().layers[1].mlp.down_proj.weight.mul_(-1)
    differences = []
    for llm in (rounded, changed):
        small = SmallEngine(llm)
        differences.append(fingerprint.difference(client, small.url))
        small.close()
    client.close()
    assert differences[0] < TOLERANCE / 2 and differences[1] > 2 * TOLERANCE


def test_a_server_without_prompt_embeddings_says_what_to_do(student, make):
    small = SmallEngine(student[0].llm_model, prompt_embeds=False)
    try:
        with pytest.raises(EngineFault, match=f"{small.url} takes no prompt embeddings: .*--enable-prompt-embeds"):
            make(small.url)
    finally:
        small.close()


def test_keys(student, make, monkeypatch):
    small = SmallEngine(student[0].llm_model, key="secret")
    try:
        monkeypatch.delenv("VLLM_API_KEY", raising=False)
        with pytest.raises(EngineFault, match="refuses the key: .*VLLM_API_KEY"):
            make(small.url)
        monkeypatch.setenv("VLLM_API_KEY", "secret")
        assert len(make(small.url).act(inputs(1))) == 1
    finally:
        small.close()


def test_a_url_where_nobody_listens_is_named(engine, make):
    with pytest.raises(EngineFault, match=r"policy.base_urls: http://127.0.0.1:9/v1 cannot be used: no connection"):
        make(engine.url, "http://127.0.0.1:9/v1")
    with pytest.raises(EngineFault, match=r"is no vLLM server \(HTTP 404\); base URLs end in /v1"):
        make(engine.url.removesuffix("/v1"))


def test_admissible_without_commands_is_a_clear_error(engine, make):
    with pytest.raises(ValueError, match="policy.decode=admissible: an observation came without admissible_commands"):
        make(engine.url, decode="admissible").act([inputs(1)[0]._replace(admissible_commands=())])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=8), st.randoms())
def test_the_search_finds_the_best_answer(answers, random):
    weights = {}  # a log-probability for each (prefix, token)

    def logprob(prefix, token):
        return weights.setdefault((tuple(prefix), token), -random.random() * 3)

    search = best_answer(answers)
    prefix, tokens = next(search)
    with pytest.raises(StopIteration) as found:
        while True:
            prefix, tokens = search.send([logprob(prefix, token) for token in tokens])
    sums = [sum(logprob(answer[:i], token) for i, token in enumerate(answer)) for answer in answers]
    assert sums[found.value.value] == pytest.approx(max(sums))


def test_settings_that_do_not_fit_are_named():
    for options, reason in (
        (["policy.name=vllm"], "policy.num_beams: 5 is not 1, and policy.name=vllm decodes greedily"),
        (["policy.vllm_args=[--dtype,float32]"], "policy.vllm_args: .* has no effect unless policy.name=vllm"),
        (["policy.name=vllm", "policy.num_beams=1", "policy.base_urls=[a:80]"], r"\['a:80'\] is not a list of http"),
    ):
        with pytest.raises(ConfigError, match=reason):
            load_config(DaggerConfig, None, options)


def test_without_vllm_the_error_says_where_to_get_it(student, tmp_path, monkeypatch):
    monkeypatch.setattr("xrl_alignment.policies.vllm.process.DEFAULT_PYTHON", tmp_path / "python")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EngineFault, match="vLLM is not installed here: run `make vllm-env`"):
        make_policy(PolicyConfig(name="vllm", num_beams=1), *student, max_batch=4)
    with pytest.raises(EngineFault, match=f"policy.vllm_python={tmp_path} is not an interpreter"):
        find_python(f"{tmp_path}")


def test_adapters_are_to_be_merged_first():
    adapted = load_student({"freeze_llm": True, "lora_rank": 2}, CPU)
    with pytest.raises(EngineFault, match="LoRA adapters: write it with .*--to llm"):
        VllmProcess(adapted[0], python=sys.executable)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where temporary files go."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_process_that_cannot_start_shows_its_last_words(student, temporary):
    process = VllmProcess(student[0], python=sys.executable)  # an interpreter without vLLM
    reason = "vLLM ended with exit code 1 before it was ready: ModuleNotFoundError: No module named 'vllm' .all of it:"
    with pytest.raises(EngineFault, match=reason):
        process.wait()
    assert [path.suffix for path in temporary.iterdir()] == [".log"]  # the weights are gone


def test_a_process_that_is_never_ready_is_ended(student, temporary):
    python = temporary / "python"
    python.write_text("#!/bin/sh\necho loading\nsleep 600\n")
    python.chmod(0o755)
    process = VllmProcess(student[0], python=str(python))
    with pytest.raises(EngineFault, match="vLLM is not ready after 2 s: loading .all of it:"):
        process.wait(2.0)
    assert process.process.poll() is not None


# --- vLLM itself ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llm_folder(student, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "llm"
    export_llm(student[0], folder)
    return folder


def vllm(folder, log, *arguments: str) -> VllmServer:
    python = find_python(os.environ.get("EMAC_VLLM_PYTHON", ""))
    arguments = ("--max-model-len", "1024", "--max-num-seqs", "16", *arguments)
    return VllmServer(folder, python=python, key="secret", arguments=arguments, log=log)


@pytest.fixture(scope="module")
def vllm_settings():
    """One key for all servers; the system chooses their cores (vLLM would take the same ones for each)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_API_KEY", "secret")
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        yield


@pytest.fixture(scope="module")
def two_servers(vllm_settings, llm_folder, tmp_path_factory):
    """Two vLLM processes, which start side by side."""
    logs = tmp_path_factory.mktemp("logs")
    with vllm(llm_folder, logs / "0") as first, vllm(llm_folder, logs / "1") as second:
        first.wait()
        second.wait()
        yield first, second


@pytest.mark.vllm
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("options", [{}, {"min_length": 6}, {"decode": "admissible"}])
def test_vllm_answers_as_the_policy_in_this_process(student, two_servers, make, exact, options):
    batch = inputs(20)
    assert make(two_servers[0].url, **options).act(batch) == in_process(student, **options).act(batch)


@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_vllm_sees_a_changed_projection_at_once(student, two_servers, make, exact):
    test_what_training_changes_counts_at_once(student, two_servers[0], make, None)


@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_vllm_with_another_model_is_refused(student, two_servers):
    other, vis_processor = load_student({**BACKBONE, "llm_weights": "", "init_seed": 5}, CPU)
    with pytest.raises(EngineFault, match="another model than the one that is loaded here"):
        VllmPolicy(model=other, vis_processor=vis_processor, base_urls=[two_servers[0].url])


@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_one_of_two_vllm_servers_is_killed_in_the_middle(student, two_servers, make, exact):
    batch = inputs(12)
    wanted = in_process(student).act(batch)
    policy = make(*(server.url for server in two_servers))
    assert policy.act(batch) == wanted
    assert all(server.answered for server in policy.pool.servers)
    killer = threading.Timer(0.05, os.killpg, (two_servers[1].process.pid, signal.SIGKILL))
    killer.start()
    assert [policy.act(batch) for _ in range(6)] == [wanted] * 6
    killer.join()
    two_servers[1].process.wait(60)
    assert policy.act(batch) == wanted and policy.pool.servers[1].reason


@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_vllm_without_prompt_embeddings(vllm_settings, llm_folder, make, tmp_path):
    with vllm(llm_folder, tmp_path / "log", "--no-enable-prompt-embeds") as server:
        server.wait()
        with pytest.raises(EngineFault, match="takes no prompt embeddings: .*--enable-prompt-embeds"):
            make(server.url)


@pytest.fixture(scope="module")
def own_process(student):
    """vLLM in a process of this program's, in float32."""
    python = os.environ.get("EMAC_VLLM_PYTHON", "")
    process = VllmProcess(student[0], python=python, arguments=["--dtype", "float32", "--max-num-seqs", "16"])
    process.wait()
    yield process
    process.close()


@pytest.mark.vllm
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("options", [{}, {"min_length": 6}, {"decode": "admissible"}])
def test_vllm_in_a_process_of_ours_answers_as_the_policy_in_this_one(student, own_process, exact, options):
    batch = inputs(20)  # more than it writes at a time, in two messages
    made = {"model": student[0], "vis_processor": student[1], "base_urls": [own_process.url], "client": own_process}
    policy = VllmPolicy(max_length=10, **made, **options)  # not closed: that would close the process
    assert policy.act(batch) == in_process(student, **options).act(batch)


@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_what_vllm_refuses_is_told_and_the_next_question_answered(student, own_process):
    embed = student[0].llm_model.get_input_embeddings()
    short, long = (embed(torch.randint(4, 900, (length,))).detach() for length in (5, 3000))
    with pytest.raises(EngineFault, match="vLLM refuses a request: .*2048"):
        own_process.complete(own_process.url, [short, long], max_tokens=3)
    (words,) = own_process.complete(own_process.url, [short], max_tokens=3, min_tokens=3, logprobs=2)
    assert len(words) == 3 and all(len(word.logprobs) >= 2 and word.token in word.logprobs for word in words)


@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_a_policy_starts_its_own_vllm_and_ends_it(student):
    settings = PolicyConfig(name="vllm", num_beams=1, max_length=10, vllm_args=["--max-num-seqs", "16"])
    settings.vllm_python = os.environ.get("EMAC_VLLM_PYTHON", "")
    policy = make_policy(settings, *student, max_batch=8)
    process, folder = policy._client.process, policy._client._folder.name
    try:
        # Both in bfloat16, which rounds differently in the two: most answers are equal, not all need be.
        ours, theirs = in_process(student).act(inputs(20)), policy.act(inputs(20))
        assert sum(a == b for a, b in zip(ours, theirs, strict=True)) >= 16
        threading.Timer(0.05, os.killpg, (process.pid, signal.SIGKILL)).start()
        with pytest.raises(EngineFault, match="vLLM ended with exit code -9: "):
            while True:
                policy.act(inputs(20))
    finally:
        policy.close()
    assert process.poll() is not None and not os.path.exists(folder)


@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_vllm_ends_when_its_program_is_killed(tmp_path):
    program = """
import torch
from xrl_alignment.builders.student import load_student
from xrl_alignment.policies.vllm.process import VllmProcess
process = VllmProcess(load_student({}, torch.device("cpu"))[0], python=%r)
process.wait()
print(process.process.pid, process._folder.name, flush=True)
input()
"""
    python = find_python(os.environ.get("EMAC_VLLM_PYTHON", ""))
    command = [sys.executable, "-c", program % python]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        pid, folder = program.stdout.readline().split()
        program.kill()
    for _ in range(600):
        if not os.path.exists(f"/proc/{pid}"):
            break
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{pid}")
    shutil.rmtree(folder)  # nobody was left to do it
    os.unlink(f"{folder}.log")
