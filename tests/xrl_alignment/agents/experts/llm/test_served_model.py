"""A real endpoint: `transformers serve` as a process, with a tiny Llama as teacher; single calls and whole runs."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from alfworld_native import make_environment
from evaluate import main
from lavis.common.paths import REPO_ROOT
from lavis.datasets.shards import ShardFolder
from tests.split_inference.servers import ServedModel, children
from tests.xrl_alignment.agents.experts.llm.tiny_llm import PLAN, save_teacher
from xrl_alignment.agents.experts import Label
from xrl_alignment.agents.experts.llm.accounting import Usage
from xrl_alignment.agents.experts.llm.answer_cache import AnswerCache
from xrl_alignment.agents.experts.llm.endpoint import Endpoint
from xrl_alignment.agents.experts.llm.expert import LLMExpert
from xrl_alignment.agents.experts.llm.teacher import Teacher
from xrl_alignment.agents.experts.llm.tokens import counter_for
from xrl_alignment.agents.language.react import load_prompts
from xrl_alignment.common.errors import EndpointFault
from xrl_alignment.play.evaluation.actors import ExpertActor
from xrl_alignment.play.evaluation.trials import play_games
from xrl_alignment.runs.checkpoint import load_checkpoint
from xrl_alignment.show.report.page import write_report
from xrl_alignment.show.report.run_data import read_costs


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Address and model name of a running server."""
    pytest.importorskip("uvicorn", reason="transformers serve needs the dev extra")
    model = save_teacher(tmp_path_factory.mktemp("model"))
    with ServedModel(model, tmp_path_factory.mktemp("log") / "serve.log") as address:
        yield address, str(model)


@pytest.fixture
def teach(served):
    """Teachers over the served model, whose own tokenizer counts the prompt's tokens."""
    url, model = served
    examples = load_prompts(REPO_ROOT / "prompts" / "alfworld_3prompts.json")
    endpoints = []

    def teach(api):
        endpoints.append(Endpoint(model=model, base_url=url, api=api, environ={}, count=counter_for(model)))
        return Teacher(endpoint=endpoints[-1], examples=examples, max_answer_tokens=8)

    yield teach
    for endpoint in endpoints:
        endpoint.close()


@pytest.mark.parametrize("api", ["chat", "completion"])
def test_both_interfaces_give_labels(teach, api):
    teacher = teach(api)
    expert = LLMExpert(teacher)
    expert.begin("You are in the middle of a room. you see a desk 1. \n\nYour task is to: put a mug in desk.")
    assert expert.act() == Label("go to desk 1")
    used = teacher.endpoint.account.total
    counted = teacher.endpoint.count(expert.prompt()) + teacher.endpoint.count(teacher.system)
    assert used.calls == 1 and used.completion in (4, 5)
    assert abs(used.prompt - counted) <= 2  # the chat template's


def test_it_plays_games_at_once(teach, games):
    teacher = teach("chat")
    results = play_games(
        ExpertActor(lambda environment: LLMExpert(teacher)), games, lambda: make_environment("native"), max_steps=2
    )
    assert [result.actions for result in results] == [2] * len(games)
    assert teacher.endpoint.account.total.calls == 2 * len(games)


def test_the_acceptance_command(served, household_data, tmp_path, monkeypatch, capsys):
    url, model = served
    options = f"expert.name=openai expert.base_url={url} expert.model={model} expert.max_answer_tokens=8 expert.cache= "
    options += f"environment.split=household_heldout environment.data={household_data} run.num_envs=3 run.max_steps=2 "
    options += f"run.num_trials=2 reflexion.reflector=rule run.output={tmp_path / 'result.json'}"
    config = str(REPO_ROOT / "configs" / "evaluate" / "expert.yaml")
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "--cfg-path", config, "--options", *options.split()])
    main()
    output = capsys.readouterr().out
    blocks = (tmp_path / "result.world.log").read_text().split("\n-----\nROUND: ")
    assert len(blocks) == 3 and "TOTAL: 3\nACCURACY: 0.00\nTIME: " in blocks[1] and "EXPERT: calls 6," in blocks[1]
    assert "best of 2 trials, with a memory of each failure" in output and "expert openai" in output


def test_an_unknown_model_is_named(served):
    url, _ = served
    endpoint = Endpoint(model="nobody/has-this", base_url=url, environ={}, max_attempts=2, sleep=lambda seconds: None)
    with pytest.raises(EndpointFault):
        endpoint.complete("x")
    endpoint.close()


# --- a whole run of two phases ----------------------------------------------------------------------------------------


def pipeline(url: str, model: str, data: Path, out: Path, *more: str) -> list[str]:
    """The small replication with a language model as teacher and the tiny student, few steps and updates."""
    options = f"""
        model.model_type=tiny environment.split=household_train environment.data={data} run.output_dir={out / "runs"}
        run.max_steps=4 run.batch_size=2 run.accum_grad_steps=1 run.train_iters_per_epoch=1 run.num_threads=1
        run.device=cpu policy.num_beams=1 policy.max_length=8 server.port=0 expert.name=openai expert.base_url={url}
        expert.model={model} expert.max_answer_tokens=8 expert.cache={out.parent / "answers.sqlite"}
        expert.price_prompt=1 expert.price_completion=2 expert.max_attempts=2""".split()
    phases = [f"configs/dagger/small_{phase}.yaml" for phase in ("bc", "dpo")]
    return [sys.executable, "-m", "xrl_alignment.pipeline", "--cfg-path", *phases, "--options", *options, *more]


def finish(command: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True, timeout=600)


def phase(out: Path, preferences: bool) -> Path:
    (run,) = (out / "runs").glob(f"with_bc_dpo-{preferences}-*")
    return run


def kill_in_second_phase(command: list[str], out: Path, episodes: int) -> None:
    """SIGKILL for the pipeline, its server and its client, once the second phase has so many episodes."""
    process = subprocess.Popen(command, cwd=REPO_ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def journal() -> list[str]:
        return [line for path in out.glob("runs/with_bc_dpo-True-*/state/episodes.jsonl") for line in path.open()]

    while len(journal()) < episodes:
        assert process.poll() is None
        time.sleep(0.05)
    for pid in (process.pid, *children(process.pid)):
        os.kill(pid, signal.SIGKILL)
    process.wait()


def labels(run: Path) -> list[str]:
    folder = ShardFolder(run / "state" / "buffer")
    return [folder.read(index).text_output for index in range(len(folder))]


def without_seconds(run: Path) -> list[dict]:
    lines = (run / "state" / "episodes.jsonl").read_text().splitlines()
    return [{**json.loads(line), "seconds": 0} for line in lines]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_of_two_phases_with_pause_kill_and_repeat(tmp_path, household_data):
    """The run is paused by its budget, killed, resumed; then repeated from the cache, with nobody at the address."""
    model, log, out = str(save_teacher(tmp_path / "teacher")), tmp_path / "serve.log", tmp_path / "first"
    with ServedModel(Path(model), log) as url:
        paused = finish(pipeline(url, model, household_data, out, "expert.max_calls=5"))
        bc = phase(out, False)
        assert (
            paused.returncode == 2
            and f"the run is kept: repeat the command with --resume {bc}" in paused.stderr.splitlines()[-1]
        )
        assert log.read_text().count("[Request received]") == 5
        kill_in_second_phase([*pipeline(url, model, household_data, out), "--resume", str(bc)], out, episodes=2)
        dpo = phase(out, True)
        assert (bc / "DONE").exists() and not (dpo / "DONE").exists()
        resumed = finish([*pipeline(url, model, household_data, out), "--resume", str(dpo)])
        assert resumed.returncode == 0, resumed.stderr
    asked = log.read_text().count("[Request received]")
    costs = [read_costs(run) for run in (bc, dpo)]
    booked = sum((cost.usage for run in costs for cost in run), Usage())
    assert asked <= booked.calls <= asked + 1  # one may have been on its way when the run was killed
    known = len(AnswerCache(tmp_path / "answers.sqlite"))
    assert known <= asked <= known + 1  # no answer was paid for twice
    for run, cost in zip((bc, dpo), costs, strict=True):
        assert len(set(labels(run))) > 1 and all(label.startswith("go to ") for label in labels(run))
        memories = json.loads((run / "logging_results" / "env_results_trial_1.json").read_text())
        assert {memory for game in memories.values() for memory in game["memory"]} == {PLAN}
        assert (run / "logging_results" / "world.log").read_text().count("\nEXPERT: calls ") == 2
        page = write_report(run, {}).read_text()
        total = sum(part.usd for part in cost)
        assert total > 0 and "Cost of the teacher" in page and f">{total:.4f}<" in page

    again = finish(pipeline(url, model, household_data, tmp_path / "second"))
    assert again.returncode == 0, again.stderr
    for run, preferences in ((bc, False), (dpo, True)):
        repeated = phase(tmp_path / "second", preferences)
        assert without_seconds(repeated) == without_seconds(run) and labels(repeated) == labels(run)
        first, second = (load_checkpoint(path / "emma_checkpoint_1.pth")["model"] for path in (run, repeated))
        assert all(torch.equal(first[name], second[name]) for name in first)
        (free,) = {cost.usage for cost in read_costs(repeated)}
        assert free == Usage() and sum(cost.known for cost in read_costs(repeated)) > 0
