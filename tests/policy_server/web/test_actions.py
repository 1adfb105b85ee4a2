"""The action routes over real sockets, with the real tiny model behind them."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.policy_server.servers import (
    CAVE,
    ROOM,
    TEXT,
    TINY,
    HeldModel,
    action_body,
    encoded_image,
    open_socket,
    raw_request,
    wait_until_queued,
)

KEY, OTHER = "k" * 20, "o" * 20


def test_all_ways_give_the_same_answer(serve):
    """JSON, body, WebSocket with JSON, WebSocket with an image: the model hears the same."""
    server = serve()
    fields = {"task_name": CAVE, "step": 3, "temperature": 0}
    answers = [server.http.post("/get_action", json=action_body(**fields)).json()]
    for kind in ("jpeg", "png"):
        address = {"params": fields, "content": encoded_image("PNG"), "headers": {"Content-Type": f"image/{kind}"}}
        answers.append(server.http.post("/get_action/image", **address).json())
    with open_socket(server.url) as socket:
        socket.send(json.dumps(action_body(**fields)))
        answers.append(json.loads(socket.recv()))
        socket.send(json.dumps(fields))
        socket.send(encoded_image("PNG"))
        answers.append(json.loads(socket.recv()))
        socket.send(encoded_image("PNG"))
        following = json.loads(socket.recv())
    assert all(answer == answers[0] for answer in answers)
    assert following == {**answers[0], "step": 4}


def test_a_batch_answers_each_as_if_it_were_alone(serve, held_model: HeldModel):
    server = serve(model=held_model)
    prompts = [ROOM.replace("mug", name) for name in ("apple", "plate", "book", "egg", "pen")]
    requests = [action_body(**{**TEXT, "prompt": prompt}) for prompt in prompts]
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(server.http.post, "/get_action", json=requests[0])
        held_model.wait_until_called()
        rest = [pool.submit(server.http.post, "/get_action", json=request) for request in requests[1:]]
        wait_until_queued(server, 4)
        held_model.release.set()
        together = [answer.result().json() for answer in (first, *rest)]
    assert held_model.batches == [1, 4]
    assert together == [server.http.post("/get_action", json=request).json() for request in requests]


BAD = [
    ({"task_name": "Chess"}, 404, "unknown_task", "MineRLBasaltFindCave-v0"),
    ({"model": "gpt"}, 404, "unknown_model", TINY),
    ({"temperature": 2.5}, 422, "invalid_request", "body.temperature"),
    ({"temperature": -0.1}, 422, "invalid_request", "body.temperature"),
    ({"max_tokens": 0}, 422, "invalid_request", "body.max_tokens"),
    ({"max_tokens": 5000}, 422, "invalid_request", "at most 1024"),
    ({"step": -1}, 422, "invalid_request", "body.step"),
    ({"step": "one"}, 422, "invalid_request", "body.step"),
    ({"colour": 1}, 422, "invalid_request", "body.colour"),
    ({"session": "a b"}, 422, "invalid_request", "body.session"),
    ({"image": None}, 422, "invalid_request", "body.image"),
    ({"image": {}}, 422, "invalid_request", "body.image.data: Field required"),
    ({"image": {"data": "%%%"}}, 422, "bad_base64", "base64"),
    ({"image": {"data": "aGVsbG8="}}, 422, "not_an_image", "neither JPEG nor PNG"),
    ({"task_name": "ALFWorld"}, 422, "invalid_request", "`prompt`"),
]


def test_bad_requests_get_a_reason_and_the_server_goes_on(serve):
    server = serve()
    for fields, status, code, text in BAD:
        answer = server.http.post("/get_action", json=action_body(**fields))
        assert (answer.status_code, answer.json()["error"]) == (status, code), fields
        assert text in answer.json()["detail"]
    missing = {key: value for key, value in action_body().items() if key != "task_name"}
    assert "body.task_name: Field required" in server.http.post("/get_action", json=missing).json()["detail"]
    broken = server.http.post("/get_action", content=b'{"task', headers=JSON)
    assert broken.status_code == 422 and "the body is not JSON" in broken.json()["detail"]
    form = server.http.post("/get_action", content=b"{}", headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert form.status_code == 415 and "Content-Type must be application/json" in form.json()["detail"]
    assert server.http.post("/get_action", content=b"[" * 100_000, headers=JSON).status_code in (400, 422)
    assert server.http.get("/get_action").status_code == 405
    assert server.http.get("/nothing").json() == {"error": "http", "detail": "Not Found"}
    assert server.http.post("/get_action", json=action_body()).status_code == 200


JSON = {"Content-Type": "application/json"}


def test_an_image_of_a_hundred_megapixels_is_refused(serve):
    buffer = io.BytesIO()
    Image.new("1", (10_000, 10_000)).save(buffer, format="PNG")
    server = serve()
    data = base64.b64encode(buffer.getvalue()).decode()
    answer = server.http.post("/get_action", json=action_body(image={"data": data}))
    assert answer.status_code == 413 and "10000 × 10000" in answer.json()["detail"]


def test_a_prompt_that_the_model_cannot_hold_harms_nobody_else(serve, held_model: HeldModel):
    server = serve(model=held_model)
    long = action_body(**{**TEXT, "prompt": "a mug " * 5000})
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(server.http.post, "/get_action", json=action_body(**TEXT))
        held_model.wait_until_called()
        both = [pool.submit(server.http.post, "/get_action", json=request) for request in (long, action_body(**TEXT))]
        wait_until_queued(server, 2)
        held_model.release.set()
        refused, fine = (answer.result() for answer in both)
    assert fine.json() == first.result().json()
    assert (refused.status_code, refused.json()["error"]) == (422, "not_answerable")
    assert "positions" in refused.json()["detail"]


def test_the_binary_route_takes_only_images(serve):
    server = serve()
    send = {"params": {"task_name": CAVE}, "content": encoded_image()}
    answer = server.http.post("/get_action/image", **send, headers={"Content-Type": "text/plain"})
    assert answer.status_code == 415
    answer = server.http.post("/get_action/image", params={"task_name": CAVE}, headers={"Content-Type": "image/png"})
    assert (answer.status_code, answer.json()["error"]) == (422, "not_an_image")


def test_a_full_queue_says_when_to_come_back_and_health_answers(serve, held_model: HeldModel):
    server = serve("queue.limit=1", model=held_model)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(server.http.post, "/get_action", json=action_body())
        held_model.wait_until_called()
        second = pool.submit(server.http.post, "/get_action", json=action_body())
        wait_until_queued(server, 1)
        refused = server.http.post("/get_action", json=action_body())
        healthy = server.http.get("/health")
        held_model.release.set()
        answers = [first.result().status_code, second.result().status_code]
    assert (refused.status_code, refused.json()["error"]) == (503, "queue_full")
    assert int(refused.headers["Retry-After"]) >= 1
    assert healthy.json()["ready"] and answers == [200, 200]


def test_a_deadline_is_kept(serve, held_model: HeldModel):
    server = serve("queue.deadline_s=0.1", model=held_model)
    refused = server.http.post("/get_action", json=action_body())
    assert (refused.status_code, refused.json()["error"]) == (503, "too_late")
    assert int(refused.headers["Retry-After"]) >= 1


def test_a_client_that_leaves_frees_its_place(serve, held_model: HeldModel):
    server = serve(model=held_model)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(server.http.post, "/get_action", json=action_body())
        held_model.wait_until_called()
        with connect_raw(server.url) as leaving:
            leaving.sendall(raw_request(action_body()))
            wait_until_queued(server, 1)
        wait_until_queued(server, none=True)
        held_model.release.set()
        assert first.result().status_code == 200
    assert held_model.batches == [1]


def connect_raw(url: str):
    import socket

    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)))


def test_a_key_may_ask_only_so_often(serve):
    server = serve("server.rate_per_s=0.001", "server.burst=2", keys={"lab": KEY, "home": OTHER})
    statuses = [server.http.post("/get_action", json=action_body()).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    refused = server.http.post("/get_action", json=action_body())
    assert int(refused.headers["Retry-After"]) > 100 and refused.json()["error"] == "too_many_requests"
    other = server.http.post("/get_action", json=action_body(), headers={"X-API-Key": OTHER})
    assert other.status_code == 200 and server.http.get("/health").status_code == 200


def test_the_answer_says_where_the_time_went(serve):
    server = serve()
    answer = server.http.post("/get_action", json=action_body())
    stages = dict(part.split(";dur=") for part in answer.headers["Server-Timing"].split(", "))
    assert list(stages) == ["decode", "queue", "model", "total"]
    assert float(stages["total"]) >= float(stages["model"]) > 0
    assert (answer.headers["X-Policy-Model"], answer.headers["X-Policy-Cache"]) == (TINY, "miss")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture
def one_server(serve):
    return serve()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.dictionaries(
        st.sampled_from([*action_body(), *TEXT, "session", "model", "admissible_commands"]), json_values
    )
)
def test_any_field_of_any_value_is_answered_or_refused_with_a_reason(one_server, changes):
    answer = one_server.http.post("/get_action", content=json.dumps(action_body(**changes)), headers=JSON)
    assert answer.status_code in (200, 404, 422)
    assert set(answer.json()) in ({"error", "detail"}, {"action", "reasoning", "step"})


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200), kind=st.sampled_from(["application/json", "image/png", "text/plain", "x"]))
def test_any_bytes_are_refused_with_a_reason(one_server, data, kind):
    for path in ("/get_action", "/get_action/image?task_name=ALFWorld"):
        answer = one_server.http.post(path, content=data, headers={"Content-Type": kind})
        assert 400 <= answer.status_code < 500
        assert set(answer.json()) == {"error", "detail"}


def test_every_request_of_64_clients_is_answered(serve):
    server = serve("queue.limit=24", "queue.deadline_s=60")
    steps = 3

    async def client(http: httpx.AsyncClient, number: int) -> list[tuple[int, bool]]:
        seen = []
        for step in range(steps):
            fields = {"task_name": CAVE, "step": 1000 * number + step, "session": f"c{number}"}
            sent = {"params": fields, "content": encoded_image(), "headers": {"Content-Type": "image/png"}}
            answer = await http.post("/get_action/image", **sent)
            own = answer.status_code != 200 or answer.json()["step"] == fields["step"]
            seen.append((answer.status_code, own and (answer.status_code != 503 or "retry-after" in answer.headers)))
        return seen

    async def everybody() -> list[list[tuple[int, bool]]]:
        async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=httpx.Limits(max_connections=64)) as http:
            return await asyncio.gather(*(client(http, number) for number in range(64)))

    answers = [answer for client in asyncio.run(everybody()) for answer in client]
    assert len(answers) == 64 * steps
    assert {status for status, _ in answers} <= {200, 503} and all(fine for _, fine in answers)
    assert sum(status == 200 for status, _ in answers) >= 24
    metrics = server.http.get("/metrics").text
    assert "policy_in_hand 0.0" in metrics and "policy_queue_length 0.0" in metrics
