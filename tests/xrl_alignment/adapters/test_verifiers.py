"""The taskset for verifiers, played by verifiers itself against a local endpoint that answers as the explorer."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys

import pytest

from alfworld_native.errors import EnvironmentFault
from benchmarks._endpoint import FakeEndpoint
from lavis.common.paths import REPO_ROOT
from xrl_alignment.agents.experts import make_expert

pytest.importorskip("verifiers", reason="verifiers is not installed: pip install -e '.[verifiers]'")
pytestmark = pytest.mark.slow


def explorer():
    """Answers to the messages of one conversation after the other: what the explorer does."""
    expert, last = None, ""

    def answer(prompt: str) -> str:
        nonlocal expert, last
        text = prompt.partition("\nYou can: ")[0]
        if "Your task is to: " in text:
            expert = make_expert("explorer")
            expert.begin(text)
        else:
            expert.observe(last, text)
        last = expert.act().action
        return f"Action: {last}"

    return answer


EXAMPLE = ("examples/verifiers_household.py",)


def evaluate(folder, answer, *options: str, program=EXAMPLE, installed: str = "") -> list[dict]:
    """Run the example as a reader does; the traces that verifiers has written."""
    # fmt: off
    command = [sys.executable, *program, "--model", "stand-in", "--no-push", "--no-rich",
               "-c", "1", "-o", str(folder / "out"), *options]
    # fmt: on
    path = os.pathsep.join([str(REPO_ROOT), *([installed] if installed else [])])
    environment = {**os.environ, "PYTHONPATH": path, "HOME": str(folder), "STAND_IN_KEY": "none"}
    with FakeEndpoint(answer) as endpoint:
        client = ["--client.base-url", endpoint.url, "--client.api-key-var", "STAND_IN_KEY"]
        done = subprocess.run([*command, *client], cwd=REPO_ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = (folder / "out").rglob("traces.jsonl")
    return [trace for line in file.read_text().splitlines() for trace in json.loads(line)["traces"]]


def test_a_model_that_knows_the_way_wins_generated_games(tmp_path):
    traces = evaluate(tmp_path, explorer(), "-n", "2", "--env.taskset.admissible")
    assert len(traces) == 2
    for trace in traces:
        assert trace["errors"] == [] and trace["rewards"]["won"]["score"] == 1.0 and trace["metrics"]["steps"] > 0
    assert len({trace["task"]["data"]["name"] for trace in traces}) == 2
    (log,) = (tmp_path / "out").rglob("eval.log")
    assert log.read_text().count(" reward=1.000 ") == 2  # it told 0.000 of every game


def test_a_model_that_writes_no_command_wins_nothing(tmp_path):
    (trace,) = evaluate(tmp_path, lambda prompt: "I would rather not.", "-n", "1", "--env.taskset.max-steps", "3")
    assert trace["rewards"]["won"]["score"] == 0.0 and trace["metrics"]["steps"] == 3


def test_a_game_that_cannot_be_read_is_an_error_in_the_results(household_data, tmp_path):
    data = tmp_path / "games"
    shutil.copytree(household_data, data)
    for file in (data / "json_2.1.1" / "household_heldout").rglob("game.tw-pddl"):
        file.write_text('{"solvable": true')
    options = ("-n", "1", "--env.taskset.data", str(data))
    (trace,) = evaluate(tmp_path, lambda prompt: "look", *options)
    assert "game.tw-pddl" in str(trace["errors"]) and trace["rewards"] == {}


def test_a_negative_number_of_steps_is_refused():
    from xrl_alignment.adapters.verifiers import HouseholdTasksetConfig

    with pytest.raises(ValueError, match="max_steps"):
        HouseholdTasksetConfig(max_steps=-1)


def test_a_folders_games_have_an_end_and_generated_ones_have_none(household_data):
    from alfworld_native.engine.environment import NativeEnvironment
    from xrl_alignment.adapters.verifiers import HouseholdTaskset, HouseholdTasksetConfig

    endless = HouseholdTaskset(HouseholdTasksetConfig())
    assert not endless.bounded and endless.take(3).bounded
    tasks = list(itertools.islice(endless, 7))
    assert len({task.key for task in tasks}) == 7
    texts = [endless.begin(task.data, NativeEnvironment()).text for task in (tasks[0], tasks[6], tasks[0])]
    assert texts[0] == texts[2] != texts[1]
    folder = HouseholdTaskset(HouseholdTasksetConfig(data=household_data))
    assert folder.bounded and len(list(folder)) == 6
    assert folder.begin(next(iter(folder)).data, NativeEnvironment()).admissible_commands
    with pytest.raises(EnvironmentFault, match="no games of split 'household_held'"):
        HouseholdTaskset(HouseholdTasksetConfig(split="household_held", data=household_data))


def test_the_package_is_installed_from_its_path_and_found_by_its_name(tmp_path):
    folder = REPO_ROOT / "examples" / "verifiers" / "emac_household"
    before = sorted(folder.rglob("*"))
    site = tmp_path / "site"
    command = [sys.executable, "-m", "uv", "pip", "install", "--no-deps", "--target", str(site), str(folder)]
    subprocess.run(command, check=True)
    assert sorted(folder.rglob("*")) == before and (site / "emac_household.py").is_file()
    program = ("-c", "from verifiers.v1.cli.eval.main import main; main()", "emac-household")
    (trace,) = evaluate(tmp_path, explorer(), "-n", "1", program=program, installed=str(site))
    assert trace["errors"] == [] and trace["rewards"]["won"]["score"] == 1.0
