"""The server with two queues, over a real socket."""

import http.client
import os
import queue
import threading
from contextlib import closing

import numpy as np
import pytest

from lavis.common.errors import ConfigError
from xrl_alignment.utils import FeedbackData, ServerThread, process_feedback, release_port
from xrl_alignment.wire import v2
from xrl_alignment.wire.http_server import ServerError
from xrl_alignment.wire.messages import Hello, ProtocolError, md5_hex

IMAGE = np.arange(27, dtype=np.uint8).reshape(3, 3, 3)
PATIENCE_S = 60


def body(done=False, task_type="pick_and_place"):
    return (
        f"[#OBSERVATION]You see a desk 1.[#HISTORY]> look[#INFORMATION]{{'won': [{done}]}}[#TYPE]{task_type}"
        f"[#DONE]{done}[#IMAGE]{IMAGE.tolist()}"
    )


@pytest.fixture
def server():
    thread = ServerThread("127.0.0.1", 0, queue.Queue(), queue.Queue())
    thread.start()
    yield thread
    thread.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def post(port, data, content_type="text/plain"):
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as connection:
        connection.request("POST", "/", data, {"MD5": md5_hex(data), "Content-Type": content_type})
        response = connection.getresponse()
        return response.status, response.read().decode()


def test_feedback_is_read():
    feedback = process_feedback(body(done=True))
    image, feedback.image = feedback.image, None
    assert feedback == FeedbackData("> look", "You see a desk 1.", "pick_and_place", {"won": [True]}, True)
    assert np.array_equal(np.asarray(image), IMAGE)
    with pytest.raises(ProtocolError, match="DONE"):
        process_feedback(body().replace("[#DONE]False", "[#DONE]perhaps"))


def test_the_originals_loop_answers_the_originals_client(server):
    said = []

    def play():
        said.append(post(server.port, body().encode()))
        said.append(post(server.port, body(True, "").encode()))

    client = threading.Thread(target=play)
    client.start()
    seen = []
    for action in (["go to desk 1"], []):
        seen.append(process_feedback(server.feedback_queue.get(timeout=PATIENCE_S)))
        server.action_queue.put(action)
    client.join(PATIENCE_S)
    assert said == [(200, "['go to desk 1']"), (200, "[]")]
    assert [(feedback.task_type, feedback.done) for feedback in seen] == [("pick_and_place", False), ("", True)]
    assert np.array_equal(np.asarray(seen[0].image), IMAGE)


def test_other_formats_are_refused_and_reach_no_queue(server):
    hello = v2.encode(Hello("s", 0, ("g",)))
    status, reason = post(server.port, hello, v2.CONTENT_TYPE)
    assert (status, v2.decode_reply(reason.encode())["kind"]) == (200, "error") and server.feedback_queue.empty()


def test_a_stop_frees_the_client_that_waits(server):
    said = []
    client = threading.Thread(target=lambda: said.append(post(server.port, body().encode())))
    client.start()
    server.feedback_queue.get(timeout=PATIENCE_S)
    server.stop()
    client.join(PATIENCE_S)
    assert said[0][0] == 503


def test_a_busy_port_names_its_process_and_kills_nobody(server):
    for call in (lambda: release_port(server.port), lambda: ServerThread("127.0.0.1", server.port, None, None)):
        with pytest.raises(ServerError, match=f"process {os.getpid()}"):
            call()
    assert server.is_alive()
    server.stop()
    assert release_port(server.port) is None


def test_other_machines_need_a_token(monkeypatch):
    monkeypatch.delenv("EMAC_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="EMAC_TOKEN"):
        ServerThread("0.0.0.0", 0, queue.Queue(), queue.Queue())
