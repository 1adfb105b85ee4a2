"""The HTTP client of vLLM servers; `test_policy.py` asks a small engine and vLLM's own servers through it."""

from __future__ import annotations

import socket
import time

import pytest
import torch

from tests.hostile_endpoint import ANSWERED, MODES, SLOW, HostileEndpoint, Peak, wrong_documents
from xrl_alignment.agents.policies.vllm import http_client
from xrl_alignment.agents.policies.vllm.base import ServerUnavailable
from xrl_alignment.common.errors import InferenceEngineFault


def test_a_server_that_does_not_answer_is_told_with_the_time_that_was_waited(monkeypatch):
    monkeypatch.setattr(http_client, "CHECK_TIMEOUT_S", 0.2)
    client = http_client.VllmHttpClient(300.0)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ServerUnavailable) as caught:
        client.model_at(f"http://127.0.0.1:{silent.getsockname()[1]}/v1")
    client.close()
    assert str(caught.value) == "no answer within 0.2 s"  # not policy.timeout_s


SEVERAL = {"wrong_types": len(wrong_documents()), "wrong_error": 12, "server_error": 5, "wrong_length": 5, "no_http": 3}


@pytest.mark.parametrize("mode", MODES)
def test_whatever_a_server_sends_is_an_answer_or_one_error(mode):
    prompt, answers = torch.zeros(2, 4), 0
    with HostileEndpoint(mode) as server:
        client, peak, began = http_client.VllmHttpClient(0.3 if mode in SLOW else 60.0), Peak(), time.monotonic()
        client._models[server.url] = "m"
        for _ in range(SEVERAL.get(mode, 1)):
            try:
                (written,) = client.complete(server.url, [prompt], max_tokens=2)
                assert all(0 <= item.token < 1 << 31 for item in written)
                answers += 1
            except (ServerUnavailable, InferenceEngineFault) as error:
                assert "\n" not in str(error) and str(error).isprintable()
        client.close()
        assert time.monotonic() - began < 60 and peak() < 512 << 20
        assert server.received(SEVERAL.get(mode, 1)) == SEVERAL.get(mode, 1)
        assert server.elsewhere is None or not server.elsewhere.requests
    assert answers if mode in ANSWERED else not answers or mode == "wrong_types"


@pytest.mark.parametrize("mode", ["honest", "surrogate", "html", "wrong_types", "redirect_elsewhere", "nested"])
def test_the_name_of_a_servers_model(mode):
    with HostileEndpoint(mode) as server:
        client = http_client.VllmHttpClient(60.0)
        for _ in range(SEVERAL.get(mode, 1)):
            try:
                client.model_at(server.url).encode()
            except InferenceEngineFault as error:
                assert server.url in str(error)
        client.close()
