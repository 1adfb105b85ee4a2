"""State routes, keys and metrics over real sockets."""

from __future__ import annotations

import pytest
from websockets.exceptions import InvalidStatus

from policy_server.games.minerl import no_op
from tests.policy_server.servers import TEXT, TINY, action_body, open_socket

KEY, OTHER = "k" * 20, "o" * 20


def test_the_published_routes_have_the_published_fields(serve):
    server = serve()
    assert server.http.get("/").json() == {
        "status": "online",
        "service": "QWEN VLM Policy Server",
        "model_loaded": True,
        "device": "cpu",
    }
    health = server.http.get("/health").json()
    assert health == {"status": "healthy", "model": TINY, "device": "cpu", "ready": True}
    answer = server.http.post("/get_action", json=action_body()).json()
    assert set(answer) == {"action", "reasoning", "step"}
    assert set(answer["action"]) == set(no_op()) and answer["step"] == 1
    assert "doing nothing" in answer["reasoning"]  # this model was never taught MineRL


def test_keys_are_needed_where_there_are_any(serve):
    server = serve(keys={"lab": KEY, "home": OTHER})
    assert server.http.post("/get_action", json=action_body()).status_code == 200
    del server.http.headers["X-API-Key"]
    for path in ("/models", "/metrics", "/ui/recent"):
        assert server.http.get(path).status_code == 401
    refused = server.http.post("/get_action", json=action_body())
    assert (refused.status_code, refused.json()["error"]) == (401, "key_needed")
    assert refused.headers["WWW-Authenticate"] == "Bearer"
    bearer = {"Authorization": f"Bearer {OTHER}"}
    assert server.http.post("/get_action", json=action_body(), headers=bearer).status_code == 200
    for path in ("/", "/health", "/ui", "/openapi.json"):
        assert server.http.get(path).status_code == 200
    with pytest.raises(InvalidStatus) as caught, open_socket(server.url):
        pass
    assert caught.value.response.status_code == 401


def test_what_one_key_sees_another_does_not(serve):
    server = serve(keys={"lab": KEY, "home": OTHER})
    server.http.post("/get_action", json=action_body(session="a"))
    assert len(server.http.get("/ui/recent").json()) == 1
    other = {"X-API-Key": OTHER}
    assert server.http.get("/ui/recent", headers=other).json() == []
    assert server.http.delete("/sessions/a", headers=other).json() == {"forgotten": False}
    assert server.http.delete("/sessions/a").json() == {"forgotten": True}


def test_the_metrics_count(serve):
    server = serve("memory.cache=10")
    for _ in range(2):
        assert server.http.post("/get_action", json=action_body(**TEXT)).status_code == 200
    server.http.post("/get_action", json=action_body(task_name="Chess"))
    lines = dict(line.rsplit(" ", 1) for line in server.http.get("/metrics").text.splitlines() if line[0] != "#")
    assert lines['policy_requests_total{status="200",transport="http"}'] == "2.0"
    assert lines['policy_refused_total{code="unknown_task"}'] == "1.0"
    assert lines['policy_cache_total{result="hit"}'] == lines['policy_cache_total{result="miss"}'] == "1.0"
    for stage in ("decode", "queue", "model", "total"):
        assert float(lines[f'policy_stage_seconds_sum{{stage="{stage}"}}']) >= 0
    assert lines["policy_batch_size_count"] == "1.0"
    assert float(lines["process_resident_memory_bytes"]) > 1e6


def test_a_bug_of_ours_has_a_json_body_too(serve, monkeypatch):
    def fail(result):
        raise ZeroDivisionError

    monkeypatch.setattr("policy_server.web.actions.headers_from", fail)
    monkeypatch.setattr("policy_server.web.chat.completion", lambda head, result: fail(result))
    server = serve()
    answer = server.http.post("/get_action", json=action_body())
    assert (answer.status_code, answer.json()["error"]) == (500, "internal_error")
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
    body = {"model": TINY, "messages": [{"role": "user", "content": TEXT["prompt"]}], "max_tokens": 4}
    answer = server.http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert 'status="500",transport="chat"' in server.http.get("/metrics").text
