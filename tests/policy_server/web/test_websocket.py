"""Steps over a WebSocket."""

from __future__ import annotations

import json

from websockets.sync.client import connect

from tests.policy_server.servers import CAVE, encoded_image


def test_the_socket_goes_on_after_a_mistake(serve):
    server = serve()
    with connect(server.url.replace("http", "ws") + "/ws") as socket:
        for message, status in (("{", 400), ("[]", 422), (b"abc", 422), (json.dumps({"task_name": 1}), 422)):
            socket.send(message)
            assert json.loads(socket.recv())["status"] == status
        socket.send(json.dumps({"task_name": CAVE, "temperature": 0}))
        socket.send(b"no image")
        assert json.loads(socket.recv())["error"] == "not_an_image"
        socket.send(encoded_image())
        assert json.loads(socket.recv())["step"] == 1
