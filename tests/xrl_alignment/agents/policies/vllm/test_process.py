"""vLLM in a child process: what cannot start says why; the tests marked vllm start vLLM itself."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from tests.xrl_alignment.agents.policies.vllm import hostile_child
from tests.xrl_alignment.agents.policies.vllm.cases import in_process, inputs
from xrl_alignment.agents.policies.vllm import process as vllm_process
from xrl_alignment.agents.policies.vllm.policy import VllmPolicy
from xrl_alignment.agents.policies.vllm.process import VllmProcess, find_python
from xrl_alignment.builders.student import make_policy
from xrl_alignment.common.errors import InferenceEngineFault
from xrl_alignment.settings.policy import PolicyConfig

SOON_S = 60  # a busy machine may be slow; who waits for a child that attacks waits for longer than this


def test_without_vllm_the_error_says_where_to_get_it(student, tmp_path, monkeypatch):
    monkeypatch.setattr("xrl_alignment.agents.policies.vllm.process.DEFAULT_PYTHON", tmp_path / "python")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InferenceEngineFault, match="vLLM is not installed here: run `make vllm-env`"):
        make_policy(PolicyConfig(name="vllm", num_beams=1), *student, max_batch=4)
    with pytest.raises(InferenceEngineFault, match=f"policy.vllm_python={tmp_path} is not an interpreter"):
        find_python(f"{tmp_path}")


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where temporary files go."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_process_that_cannot_start_shows_its_last_error(student, temporary):
    process = VllmProcess(student[0], python=sys.executable)  # an interpreter without vLLM
    reason = "vLLM ended with exit code 1 before it was ready: ModuleNotFoundError: No module named 'vllm' .log:"
    with pytest.raises(InferenceEngineFault, match=reason):
        process.wait()
    (folder,) = temporary.iterdir()
    assert [path.suffix for path in folder.iterdir()] == [".log"]  # the weights are gone
    process.close()
    assert not folder.exists()


def test_a_link_that_another_user_plants_is_not_written_through(student, temporary, monkeypatch):
    """While the weights are written, another user sees the folder's name, and can make files beside it."""
    mine = temporary / "mine.txt"
    mine.write_text("important")
    export = vllm_process.export_llm

    def watched(model, folder):
        assert folder.parent.stat().st_mode & 0o777 == 0o700
        (temporary / f"{folder.parent.name}.log").symlink_to(mine)
        export(model, folder)

    monkeypatch.setattr(vllm_process, "export_llm", watched)
    process = VllmProcess(student[0], python=sys.executable)  # an interpreter without vLLM
    with pytest.raises(InferenceEngineFault, match="vLLM ended"):
        process.wait()
    process.close()
    assert mine.read_text() == "important"


def test_a_process_that_is_never_ready_is_ended(student, temporary):
    python = temporary / "python"
    python.write_text("#!/bin/sh\necho loading\nsleep 600\n")
    python.chmod(0o755)
    process = VllmProcess(student[0], python=str(python))
    with pytest.raises(InferenceEngineFault, match="vLLM is not ready after 2 s: loading .log:"):
        process.wait(2.0)
    assert process.process.poll() is not None


# --- a child that attacks, in vLLM's place -------------------------------------------------------------------------


@pytest.fixture
def hostile(student, temporary, monkeypatch):
    """Starts a child that attacks; afterwards everything of it is gone."""
    # Its weights take the most time, and it reads none.
    monkeypatch.setattr(vllm_process, "export_llm", lambda model, folder: folder.mkdir())
    monkeypatch.setattr(vllm_process, "STOP_S", 0.5)
    python = temporary / "python"
    python.write_text(f"#!{sys.executable}\n{Path(hostile_child.__file__).read_text(encoding='utf-8')}")
    python.chmod(0o755)
    started = []

    def start(attack, timeout_s=240.0):
        started.append(
            VllmProcess(student[0], python=str(python), arguments=[f"--attack={attack}"], timeout_s=timeout_s)
        )
        return started[-1]

    yield start
    began = time.monotonic()
    for process in started:
        process.close()
        assert process.process.poll() is not None and not process.log.exists()
        assert not process._listener.is_alive() and not process._writer.is_alive()
    # A process that had left the child's session stayed for 90 s.
    while subprocess.run(["pgrep", "--full", str(python)], stdout=subprocess.DEVNULL, check=False).returncode == 0:
        assert time.monotonic() - began < SOON_S
        time.sleep(0.05)
    assert time.monotonic() - began < SOON_S


def asked(process, length=2):
    """What is said to a prompt of so many tokens."""
    return process.complete(process.url, [torch.zeros(length, 8)], max_tokens=3)


@pytest.mark.parametrize("name", [*hostile_child.WRONG_MESSAGES, *hostile_child.WRONG_ANSWERS])
def test_an_answer_of_another_form_is_a_fault(hostile, name):
    """The thread that listens died of it, and the call waited until its time was over."""
    process, began = hostile(f"after:{name}"), time.monotonic()
    process.wait()
    with pytest.raises(
        InferenceEngineFault, match="vLLM's process does not answer as it should|vLLM refuses"
    ) as raised:
        asked(process)
    assert str(raised.value).isprintable() and time.monotonic() - began < SOON_S
    if name in hostile_child.WRONG_MESSAGES:  # nothing more that it says can be believed
        with pytest.raises(InferenceEngineFault, match="does not answer as it should"):
            asked(process)


@pytest.mark.parametrize("name", hostile_child.SILENT)
def test_a_child_that_does_not_read_or_answer_holds_a_call_for_its_time_alone(hostile, name):
    """A prompt larger than the pipe waited for ever for a child that did not read it."""
    process = hostile(f"after:{name}", timeout_s=1.0)
    process.wait()
    for _ in range(2 if name == "never reads" else 1):
        began = time.monotonic()
        with pytest.raises(InferenceEngineFault, match=r"gives no answer within 1 s \(policy.timeout_s\)"):
            asked(process, length=200_000)
        assert time.monotonic() - began < SOON_S


@pytest.mark.parametrize("name", hostile_child.ENDING)
def test_a_child_that_is_gone_is_told(hostile, name):
    process, began = hostile(f"after:{name}", timeout_s=2.0), time.monotonic()
    process.wait()
    told = "vLLM ended with exit code|has closed its pipe, and goes on|gives no answer within 2 s"
    with pytest.raises(InferenceEngineFault, match=told) as raised:
        asked(process)
    assert str(raised.value).isprintable() and time.monotonic() - began < SOON_S


@pytest.mark.parametrize("name", hostile_child.BEFORE)
def test_a_child_that_attacks_before_it_is_ready_prevents_the_start(hostile, name):
    process, began = hostile(f"before:{name}"), time.monotonic()
    with pytest.raises(InferenceEngineFault, match="does not answer as it should|vLLM ended|vLLM is not ready"):
        process.wait(2.0)
    assert process.process.poll() is not None and time.monotonic() - began < SOON_S


def test_answers_that_nobody_asked_for_are_dropped(hostile):
    process = hostile("after:misbehaves, and answers")
    process.wait()
    assert asked(process) == [[(5, {}), (6, {6: -0.5})]]


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
    with pytest.raises(InferenceEngineFault, match="vLLM refuses a request: .*2048"):
        own_process.complete(own_process.url, [short, long], max_tokens=3)
    (words,) = own_process.complete(own_process.url, [short], max_tokens=3, min_tokens=3, logprobs=2)
    assert len(words) == 3 and all(len(word.logprobs) >= 2 and word.token in word.logprobs for word in words)


@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_a_policy_starts_its_own_vllm_and_ends_it(student):
    settings = PolicyConfig(name="vllm", num_beams=1, max_length=10, vllm_args=["--max-num-seqs", "16"])
    settings = dataclasses.replace(settings, vllm_python=os.environ.get("EMAC_VLLM_PYTHON", ""))
    policy = make_policy(settings, *student, max_batch=8)
    process, folder = policy._client.process, policy._client._folder
    try:
        # Both in bfloat16, which rounds differently in the two: most answers are equal, not all need be.
        ours, theirs = in_process(student).act(inputs(20)), policy.act(inputs(20))
        assert sum(a == b for a, b in zip(ours, theirs, strict=True)) >= 16
        threading.Timer(0.05, os.killpg, (process.pid, signal.SIGKILL)).start()
        with pytest.raises(InferenceEngineFault, match="vLLM ended with exit code -9: "):
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
from xrl_alignment.agents.policies.vllm.process import VllmProcess
process = VllmProcess(load_student({}, torch.device("cpu"))[0], python=%r)
process.wait()
print(process.process.pid, process._folder, flush=True)
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
