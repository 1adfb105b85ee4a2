"""The HTTP client of vLLM servers; `test_policy.py` asks a small engine and vLLM's own servers through it."""

from __future__ import annotations

import socket

import pytest

from xrl_alignment.policies.vllm import http_client
from xrl_alignment.policies.vllm.base import ServerUnavailable


def test_a_server_that_does_not_answer_is_told_with_the_time_that_was_waited(monkeypatch):
    monkeypatch.setattr(http_client, "CHECK_TIMEOUT_S", 0.2)
    client = http_client.VllmHttpClient(300.0)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ServerUnavailable) as caught:
        client.model_at(f"http://127.0.0.1:{silent.getsockname()[1]}/v1")
    client.close()
    assert str(caught.value) == "no answer within 0.2 s"  # not policy.timeout_s
