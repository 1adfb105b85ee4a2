"""Counting the tokens of prompts for a model that runs elsewhere."""

import logging

import pytest
import tiktoken

from xrl_alignment.agents.experts.llm import tokens


def test_the_estimate():
    assert [tokens.estimate(text) for text in ("", "abc", "abcd", "ü")] == [0, 1, 2, 1]


def test_unknown_models_are_estimated_and_the_log_says_so(caplog):
    with caplog.at_level(logging.WARNING):
        count = tokens.counter_for("nobody/knows-this-model")
    assert count("go to desk 1") == 4 and "prompt tokens are estimated" in caplog.text


def test_tiktoken_where_its_table_is_at_hand(monkeypatch):
    tiny = tiktoken.Encoding(
        "tiny", pat_str=r"\S+|\s+", mergeable_ranks={bytes([i]): i for i in range(256)}, special_tokens={}
    )
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: tiny)
    assert tokens.counter_for("gpt-4o")("desk 1") == 6


def test_tiktoken_without_a_network_falls_back_in_time(monkeypatch, caplog):
    def fail(name):
        raise ConnectionError("no network")

    monkeypatch.setattr(tiktoken, "get_encoding", fail)
    with caplog.at_level(logging.INFO):
        assert tokens.counter_for("gpt-4o")("desk 1") == 2
    assert "cannot be loaded: no network" in caplog.text and "estimated" in caplog.text


@pytest.mark.parametrize("damaged", [(), ("config.json",), ("tokenizer.json", "tokenizer_config.json")])
def test_a_tokenizer_that_was_asked_for_must_be_there(tmp_path, damaged):
    """Files that hold another thing than an object ended in a traceback, also those of a folder named as the model."""
    for name in damaged:
        (tmp_path / name).write_text("[]")
    with pytest.raises(ValueError, match="expert.tokenizer .* cannot be loaded"):
        tokens.counter_for("m", str(tmp_path))
    assert tokens.counter_for(str(tmp_path)) is tokens.estimate
