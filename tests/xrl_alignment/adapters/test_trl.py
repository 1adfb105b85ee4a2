"""The environment for TRL: its tools play a game to the end, TRL understands them, and a GRPO step runs."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import find_games
from lavis.common.paths import REPO_ROOT
from xrl_alignment.adapters.trl import Household, rows
from xrl_alignment.agents.experts import make_expert

TOOLS = {  # pattern of a command -> tool; the groups are its arguments
    r"go to (.+)": "go_to",
    r"open (.+)": "open_receptacle",
    r"close (.+)": "close_receptacle",
    r"take (.+) from (.+)": "take",
    r"put (.+) in/on (.+)": "put",
    r"(?:heat|cool|clean) (.+) with (.+)": "",
    r"use (.+)": "use",
    r"examine (.+)": "examine",
    r"look|inventory": "",
}


@pytest.fixture(scope="module")
def games(household_data):
    return find_games("household_train", data=household_data)


def call(environment: Household, command: str) -> str:
    """The tool call that stands for a command, made."""
    for pattern, tool in TOOLS.items():
        if found := re.fullmatch(pattern, command):
            return getattr(environment, tool or command.split()[0])(*found.groups())
    raise AssertionError(command)


def test_the_tools_solve_a_game_of_every_task_type(games):
    environment = Household(games)
    for row in rows(games):
        expert = make_expert("explorer")
        text = environment.reset(**row)
        expert.begin(text, task_type=row["game"])
        while environment.get_reward() == 0.0:
            action = expert.act().action
            text = call(environment, action)
            expert.observe(action, text.removesuffix(" The episode is over."))
        assert text.endswith("The episode is over.") and environment.look() == "The episode is over."


def test_an_episode_ends_without_reward_after_its_steps(games):
    environment = Household(games, max_steps=2)
    assert environment.look() == "No game has begun: call reset first."
    environment.reset(games[0].id)
    assert environment.slice("apple 1", "knife 1") == "Nothing happens."
    assert environment.inventory() == "You are not carrying anything. The episode is over."
    assert environment.get_reward() == 0.0


def test_games_that_are_not_there(games):
    with pytest.raises(EnvironmentFault, match="the list of games is empty"):
        Household([])
    with pytest.raises(EnvironmentFault, match="max_steps is 0"):
        Household(games, max_steps=0)
    with pytest.raises(EnvironmentFault, match="unknown game 'pick_nothing'"):
        Household(games).reset("pick_nothing")


def test_each_tool_has_a_schema_for_chat_templates():
    from transformers.utils import get_json_schema

    names = [name for name, _ in inspect.getmembers(Household, inspect.isfunction) if not name.startswith("_")]
    for name in set(names) - {"reset", "get_reward"}:
        function = get_json_schema(getattr(Household, name))["function"]
        arguments = [key for key in inspect.signature(getattr(Household, name)).parameters if key != "self"]
        assert function["description"] and list(function["parameters"]["properties"]) == arguments
        assert all(entry["type"] == "string" for entry in function["parameters"]["properties"].values())


def tiny_model():
    """A random Qwen3 of 40 thousand weights, and a tokenizer of bytes with Qwen3's own chat template."""
    import trl
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*special, *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    template = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )
    fast.chat_template = template.read_text(encoding="utf-8")
    config = Qwen3Config(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=32768,
        eos_token_id=2,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config), fast


@pytest.mark.slow
def test_a_grpo_step_runs_in_the_household(games, tmp_path):
    trl = pytest.importorskip("trl", reason="TRL is not installed: pip install -e '.[trl]'")
    from datasets import Dataset

    model, tokenizer = tiny_model()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    rewards = iter([1.0, 0.0] * 10)  # the model is random and wins nothing: without a difference nothing is learned
    arguments = trl.GRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=8,
        max_steps=1,
        learning_rate=0.01,
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    made = []

    def factory() -> Household:
        made.append(Household(games))
        return made[-1]

    trainer = trl.GRPOTrainer(
        model,
        reward_funcs=lambda completions, **_: [next(rewards) for _ in completions],
        args=arguments,
        train_dataset=Dataset.from_list(rows(games)),
        processing_class=tokenizer,
        environment_factory=factory,
    )
    trainer.train()
    assert any(not weight.equal(before[name]) for name, weight in model.named_parameters())
    (log,) = [entry for entry in trainer.state.log_history if "rewards/Household/mean" in entry]
    assert log["rewards/Household/mean"] == 0.0
    assert len(made) == 2 and made[0].playing == made[1].playing != ""  # both rollouts of the row play one game


@pytest.mark.parametrize("option", ["--games", "--steps"])
def test_the_example_refuses_a_number_below_one(option):
    """TRL trained three epochs for 0 steps."""
    command = [sys.executable, "examples/grpo_trl.py", "model", option, "0"]
    done = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and f"argument {option}: 0 is less than 1" in done.stderr


@pytest.mark.slow
def test_the_example_trains(tmp_path):
    pytest.importorskip("trl", reason="TRL is not installed: pip install -e '.[trl]'")
    for part in tiny_model():
        part.save_pretrained(tmp_path / "model")
    # fmt: off
    command = [sys.executable, "examples/grpo_trl.py", str(tmp_path / "model"), "--out", str(tmp_path),
               "--games", "8", "--steps", "1", "--tokens", "8"]
    # fmt: on
    paths = os.pathsep.join([str(REPO_ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=REPO_ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "rewards/Household/mean" in done.stdout or (tmp_path / "checkpoint-1").is_dir()
