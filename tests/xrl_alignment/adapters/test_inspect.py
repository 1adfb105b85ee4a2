"""The task for Inspect, played by Inspect itself: a model that answers as the explorer wins, another one does not."""

from __future__ import annotations

import runpy
from collections.abc import Callable

import pytest

from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import find_games
from lavis.common.paths import REPO_ROOT
from xrl_alignment.agents.experts import make_expert

inspect_ai = pytest.importorskip("inspect_ai", reason="Inspect is not installed: pip install -e '.[inspect]'")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def games(household_data):
    return find_games("household_train", data=household_data)[:3]


def stand_in(write: Callable[[list], str]):
    """Inspect's own stand-in for a model. With a usage it counts no tokens, for which it would download a table."""
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    def answer(messages, tools, tool_choice, config):
        output = ModelOutput.from_content("stand-in", write(messages))
        output.usage = ModelUsage()
        return output

    return get_model("mockllm/model", custom_outputs=answer)


def explorer_model():
    """A model that writes what the explorer does after the conversation so far."""

    def write(messages):
        texts = [message.text for message in messages if message.role == "user"][1:]
        texts = [text.partition("\nYou can: ")[0] for text in texts]
        done = [message.text.removeprefix("Action: ") for message in messages if message.role == "assistant"]
        expert = make_expert("explorer")
        expert.begin(texts[0])
        for command, text in zip(done, texts[1:], strict=True):
            expert.act()
            expert.observe(command, text)
        return f"Action: {expert.act().action}"

    return stand_in(write)


@pytest.mark.parametrize("admissible", [False, True])
def test_a_model_that_knows_the_way_wins_every_game(games, admissible, tmp_path):
    from xrl_alignment.adapters.inspect import household_task

    task = household_task(games, admissible=admissible)
    (log,) = inspect_ai.eval(task, model=explorer_model(), log_dir=str(tmp_path), display="none")
    assert log.status == "success" and log.results.scores[0].metrics["accuracy"].value == 1.0
    for sample in log.samples:
        (score,) = sample.scores.values()
        commands = [message for message in sample.messages if message.role == "assistant"]
        assert score.metadata["steps"] == len(commands) > 0
        assert ("You can: " in sample.messages[1].text) is admissible


def test_a_model_that_writes_no_command_wins_nothing(games, tmp_path):
    from xrl_alignment.adapters.inspect import household_task

    task = household_task(games[:1], max_steps=3)
    model = stand_in(lambda messages: "I would rather not.")
    (log,) = inspect_ai.eval(task, model=model, log_dir=str(tmp_path), display="none")
    assert log.status == "success" and log.results.scores[0].metrics["accuracy"].value == 0.0
    assert sum(message.role == "assistant" for message in log.samples[0].messages) == 3
    with pytest.raises(EnvironmentFault, match="the list of games is empty"):
        household_task([])
    with pytest.raises(EnvironmentFault, match="max_steps is 0"):
        household_task(games, max_steps=0)


def test_a_limit_of_inspect_ends_a_game_whose_steps_are_still_counted(games, tmp_path):
    from xrl_alignment.adapters.inspect import household_task

    model = stand_in(lambda messages: "Action: look")
    task = household_task(games[:1])
    (log,) = inspect_ai.eval(task, model=model, log_dir=str(tmp_path), display="none", message_limit=8)
    (score,) = log.samples[0].scores.values()
    commands = sum(message.role == "assistant" for message in log.samples[0].messages)
    assert log.samples[0].limit and score.value == "I" and score.metadata["steps"] == commands > 1


def test_the_example_is_a_task(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # the games are generated there
    task = runpy.run_path(str(REPO_ROOT / "examples" / "inspect_household.py"))["household"](games=2)
    (log,) = inspect_ai.eval(task, model=explorer_model(), log_dir=str(tmp_path), display="none")
    assert log.status == "success" and log.results.scores[0].metrics["accuracy"].value == 1.0
    assert len(log.samples) == 2 and log.eval.metadata["answers"] == "free text"
