"""Each example as a reader starts it: a process, whose table says that it played."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lavis.common.errors import ConfigError
from lavis.common.paths import REPO_ROOT
from tests import warm
from xrl_alignment.builders.student import load_student
from xrl_alignment.lab.pipeline import run_pipeline
from xrl_alignment.runs.checkpoint import load_checkpoint
from xrl_alignment.settings.resume import saved_settings

EXAMPLES = REPO_ROOT / "examples"
TESTED_ELSEWHERE = {  # against the real libraries
    "grpo_trl": "tests/xrl_alignment/adapters/test_trl.py",
    "inspect_household": "tests/xrl_alignment/adapters/test_inspect.py",
    "verifiers_household": "tests/xrl_alignment/adapters/test_verifiers.py",
}


def solved(name: str, folder: Path) -> dict[str, tuple[int, int]]:
    """Run an example outside the repository; games and solved games of each row in the table that it prints."""
    ended = warm.run([EXAMPLES / name], cwd=folder)
    assert ended.returncode == 0, ended.stderr
    head, *rows = ended.stdout.splitlines()
    assert head.split()[:4] == ["task", "type", "games", "solved"]
    assert not list(folder.iterdir())  # the generated games are deleted at the end
    return {row.split()[0]: (int(row.split()[1]), int(row.split()[2])) for row in rows}


def test_custom_environment(tmp_path: Path) -> None:
    rows = solved("custom_environment.py", tmp_path)
    assert rows == {"pick_and_place_simple": (3, 3), "all": (3, 3)}


def test_custom_expert(tmp_path: Path) -> None:
    rows = solved("custom_expert.py", tmp_path)
    assert rows["pick_and_place_simple"] == (3, 3) and rows["all"] == (18, 3)  # the only type that it knows


def test_custom_policy(tmp_path: Path) -> None:
    games, number = solved("custom_policy.py", tmp_path)["all"]
    assert games == 18 and 0 < number < games


def test_hub_vlm(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    from lavis.models.hf_vlm import tiny

    path = tiny.make("qwen2_5_vl", tmp_path / "vlm")
    ended = warm.run([EXAMPLES / "hub_vlm.py", path], cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    losses = [float(line.rpartition(" ")[2]) for line in ended.stdout.splitlines()]
    assert len(losses) == 5 and losses[-1] < losses[0]  # three games of six states, in batches of four


def test_custom_student(tmp_path: Path) -> None:
    ended = warm.run([EXAMPLES / "custom_student.py"], cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    *losses, answers = ended.stdout.splitlines()
    losses = [float(line.rpartition(" ")[2]) for line in losses]
    assert answers == "['take mug 1', 'go to shelf 2']" and losses == sorted(losses, reverse=True)


def test_a_student_of_ones_own_is_known_to_every_process(tmp_path: Path) -> None:
    """Server, learner and client are processes of their own, which know the class by its name alone."""
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    own = PreTrainedTokenizerFast(tokenizer_file=str(REPO_ROOT / "lavis/models/tiny/tokenizer.json"), eos_token="</s>")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(own), **sizes)).save_pretrained(tmp_path / "lm")
    own.save_pretrained(tmp_path / "lm")
    model = ["model.arch=examples.custom_student:TextStudent", f"model.path={tmp_path / 'lm'}"]
    games = ["environment.name=household", "environment.num_train=2", "environment.num_heldout=2"]
    games += [f"environment.data={tmp_path / 'games'}", "run.num_envs=2", "run.max_steps=3"]
    phases = [str(REPO_ROOT / f"configs/dagger/demo_{name}.yaml") for name in ("bc", "dpo")]
    common = [
        *model,
        *games,
        "run.num_rounds=1",
        "run.batch_size=2",
        "run.train_every=1",
        "run.num_workers=1",
        "server.port=0",
    ]

    bc, dpo = run_pipeline(phases, [*common, "run.learner=decoupled", f"run.output_dir={tmp_path / 'runs'}"])

    with pytest.raises(ConfigError, match="unknown key 'model.pretraned': did you mean 'model.pretrained'"):
        load_student(saved_settings(bc).model | {"pretraned": str(dpo)}, "cpu")
    first, second = (load_checkpoint(run / "emma_checkpoint_0.pth")["model"] for run in (bc, dpo))
    start = load_student(saved_settings(bc).model, "cpu")[0].trainable_state_dict()
    assert first.keys() == second.keys() == start.keys()
    name = "lm.lm_head.weight"
    assert not torch.equal(first[name], start[name]) and not torch.equal(second[name], first[name])
    options = [*model, *games, f"model.pretrained={dpo / 'emma_checkpoint_0.pth'}"]
    options += ["environment.split=household_heldout", f"run.output={tmp_path / 'result.json'}"]
    ended = warm.run(
        ["evaluate.py", "--cfg-path", "configs/evaluate/episodes.yaml", "--options", *options], cwd=REPO_ROOT
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads((tmp_path / "result.json").read_text())["first_trial"]["games"] == 2


@pytest.mark.parametrize(
    ("extra", "package", "example"),
    [
        ("inspect", "inspect_ai", "inspect_household.py"),
        ("verifiers", "verifiers", "verifiers_household.py"),
        ("openenv", "openenv", "openenv/server/app.py"),
    ],
)
def test_an_extra_that_is_not_installed_is_one_line(extra: str, package: str, example: str, tmp_path: Path) -> None:
    (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError('', name={package!r})")  # also if it is
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPO_ROOT)])}
    command = [sys.executable, str(EXAMPLES / example)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    told = f"error: package {package} is not installed: run `pip install -e '.[{extra}]'`\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", told)


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_has_its_test(example: Path) -> None:
    elsewhere = (REPO_ROOT / TESTED_ELSEWHERE.get(example.stem, "none")).is_file()
    assert f"test_{example.stem}" in globals() or elsewhere
