"""Steps over a WebSocket."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from policy_server.refusals import RequestRefused
from policy_server.web import websocket
from tests.policy_server.servers import CAVE, encoded_image, open_socket, wait_until_queued


def test_the_socket_goes_on_after_a_mistake(serve):
    server = serve()
    with open_socket(server.url) as socket:
        for message, status in (("{", 400), ("[]", 422), (b"abc", 422), (json.dumps({"task_name": 1}), 422)):
            socket.send(message)
            assert json.loads(socket.recv())["status"] == status
        socket.send(json.dumps({"task_name": CAVE, "temperature": 0}))
        socket.send(b"no image")
        assert json.loads(socket.recv())["error"] == "not_an_image"
        socket.send(encoded_image())
        assert json.loads(socket.recv())["step"] == 0


@pytest.mark.parametrize("where", ["admit", "act"])
def test_a_refused_image_is_no_step(monkeypatch, where):
    """The client sends it again after `Retry-After`: the answer to that is the step."""
    refusals = [None, RequestRefused(503, "queue_full", "wait"), None]

    def refuse_maybe():
        if refusal := refusals.pop(0):
            raise refusal

    async def act(caller, query, way):
        if where == "act":
            refuse_maybe()

    admission = SimpleNamespace(admit=lambda caller: refuse_maybe() if where == "admit" else None, act=act)
    monkeypatch.setattr(
        websocket, "response_from", lambda query, _: SimpleNamespace(model_dump=lambda: {"step": query.step})
    )
    steps = websocket.WebSocketSteps(None, admission, "someone")

    async def ask(**message):
        return await steps._answer(message)

    assert asyncio.run(ask(text=json.dumps({"task_name": CAVE, "step": 7}))) is None
    assert asyncio.run(ask(bytes=b"image")) == {"step": 7}
    with pytest.raises(RequestRefused):
        asyncio.run(ask(bytes=b"image"))
    assert asyncio.run(ask(bytes=b"image")) == {"step": 8}


def test_a_client_that_leaves_gives_up_its_place_in_the_queue(serve, held_model, caplog):
    caplog.set_level("INFO", "policy_server.requests")
    server = serve("queue.max_batch=1", model=held_model)
    with open_socket(server.url) as first, open_socket(server.url) as second:
        for socket in (first, second):
            socket.send(json.dumps({"task_name": CAVE, "max_tokens": 4}))
        first.send(encoded_image())
        held_model.wait_until_called()
        second.send(encoded_image())
        wait_until_queued(server)
        second.close()
        wait_until_queued(server, none=True)
        first.send(encoded_image())  # sent before the answer to the first one: it is answered in its turn
        held_model.release.set()
        assert [json.loads(first.recv())["step"] for _ in range(2)] == [0, 1]
    assert held_model.batches == [1, 1] and "499 client_gone" in caplog.text


HOSTILE = (None, True, "3", "x", 2.5, -1, 2**31, 10**30, 1e300, [], {}, "\ud800", "a" * 300)


def test_no_field_of_any_type_drops_the_socket(serve):
    """`{"step": "3"}` is a number to pydantic, and was none to the counter of steps."""
    with open_socket(serve().url) as socket:
        for name in ("step", "temperature", "max_tokens", "session", "model", "prompt", "admissible_commands"):
            for value in HOSTILE:
                for message in (json.dumps({"task_name": CAVE, name: value}), b"no image", "{"):
                    socket.send(message)
                while (status := json.loads(socket.recv())["status"]) != 400:  # the answer to "{"
                    assert status in (404, 422), (name, value)
        socket.send(json.dumps({"task_name": CAVE, "step": "3", "max_tokens": 4}))
        for step in (3, 4):
            socket.send(encoded_image())
            assert json.loads(socket.recv())["step"] == step


def test_a_silent_socket_is_closed(serve):
    with open_socket(serve("server.websocket_idle_s=0.2").url) as socket, pytest.raises(ConnectionClosed) as caught:
        socket.recv(timeout=60)
    assert caught.value.rcvd.code == 1001 and "no message for 0.2 s" in caught.value.rcvd.reason


def test_sockets_are_counted(serve):
    server = serve("server.websockets=2")
    with open_socket(server.url), open_socket(server.url):
        with pytest.raises(InvalidStatus) as caught:
            open_socket(server.url)
        assert (caught.value.response.status_code, caught.value.response.headers["Retry-After"]) == (503, "10")
        assert server.http.get("/health").status_code == 200
        assert "policy_websockets 2.0" in server.http.get("/metrics").text
    while "policy_websockets 0.0" not in server.http.get("/metrics").text:
        continue
    with open_socket(server.url) as socket:
        socket.send("{")
        assert json.loads(socket.recv())["status"] == 400


@pytest.mark.parametrize(
    "path", ["/get_action", "/get_action/image", "/metrics", "/sessions/x", "/", "/ui", "/nowhere"]
)
def test_a_socket_to_another_address_is_refused(serve, caplog, path):
    """To /get_action it was a KeyError in the gate, and a 500."""
    server = serve()
    with pytest.raises(InvalidStatus) as caught:
        open_socket(server.url, path)
    answer = caught.value.response
    assert answer.status_code == 404 and json.loads(answer.body)["error"] == "no_websocket"
    assert [entry for entry in caplog.records if entry.exc_info] == []
    with open_socket(server.url) as socket:
        socket.send("{")
        assert json.loads(socket.recv())["status"] == 400
