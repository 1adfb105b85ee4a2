"""OpenAI's interface as its official client, litellm and this project's teacher use it."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import openai
import pytest

from policy_server.models.loading import load_model
from policy_server.settings import ModelSettings
from tests.policy_server.servers import ROOM, TINY, action_body, encoded_image, wait_until_queued
from xrl_alignment.agents.experts.llm.endpoint import Endpoint
from xrl_alignment.agents.experts.llm.expert import LLMExpert
from xrl_alignment.agents.experts.llm.teacher import Teacher

MODEL = TINY  # the last part of the path names a model
ASKED = {"model": MODEL, "messages": [{"role": "user", "content": ROOM}], "temperature": 0}


def data_url(**image: object) -> dict:
    data = base64.b64encode(encoded_image(**image)).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}", "detail": "auto"}}


@pytest.fixture
def client(serve):
    """The official client of a server with a key."""
    server = serve(keys={"lab": "a-key-of-the-lab-1"})
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="a-key-of-the-lab-1", max_retries=0) as client:
        yield client


def test_the_served_models_are_listed(client):
    (model,) = client.models.list().data
    assert (model.id, model.object) == (MODEL, "model") and client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4o")
    assert caught.value.code == "model_not_found"


def test_a_conversation_is_answered_with_text_and_usage(client):
    image = {"role": "user", "content": [{"type": "text", "text": ROOM}, data_url()]}
    answer = client.chat.completions.create(**{**ASKED, "messages": [image]}, max_tokens=16)
    (choice,) = answer.choices
    assert answer.object == "chat.completion" and answer.model == MODEL and choice.message.role == "assistant"
    assert choice.message.content and choice.finish_reason in ("stop", "length")
    assert answer.usage.prompt_tokens > 10 and 0 < answer.usage.completion_tokens <= 16
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    text_alone = client.chat.completions.create(**ASKED, max_tokens=16)
    assert text_alone.usage.prompt_tokens == answer.usage.prompt_tokens


def test_a_text_alone_is_answered_as_the_student_answers_with_a_black_frame(client, tiny_model):
    black = tiny_model.vis_processor(np.zeros((300, 300, 3), np.uint8))
    samples = {"image": black[None], "prompt": ROOM}
    (expected,) = tiny_model.model.generate(samples, num_beams=1, max_length=17, repetition_penalty=1.0)
    answer = client.chat.completions.create(**ASKED, max_tokens=16)
    assert answer.choices[0].message.content == expected


def test_a_developer_s_message_is_a_system_message(client):
    def answer(role: str) -> str:
        messages = [{"role": role, "content": "Answer in one word."}, {"role": "user", "content": ROOM}]
        return client.chat.completions.create(**{**ASKED, "messages": messages}, max_tokens=8)

    developer, system, user = map(answer, ("developer", "system", "user"))
    assert developer.choices[0].message == system.choices[0].message and developer.usage == system.usage
    assert user.usage.prompt_tokens != system.usage.prompt_tokens


def test_an_answer_may_be_as_long_as_the_models_setting_says(serve):
    server = serve("model.max_tokens=10000")
    assert server.http.post("/v1/chat/completions", json={**ASKED, "max_tokens": 9000}).status_code == 200
    refused = server.http.post("/v1/chat/completions", json={**ASKED, "max_completion_tokens": 10001})
    assert refused.status_code == 400 and "gives at most 10000" in refused.json()["error"]["message"]
    assert server.http.post("/get_action", json=action_body(max_tokens=9000)).status_code == 200


def test_max_tokens_cuts_and_stop_ends_an_answer(client):
    answer = client.chat.completions.create(**ASKED, max_tokens=16)
    whole = answer.choices[0].message.content
    cut = client.chat.completions.create(**ASKED, max_completion_tokens=2)
    assert cut.choices[0].finish_reason == "length" and cut.usage.completion_tokens == 2
    assert whole.startswith(cut.choices[0].message.content) and cut.choices[0].message.content != whole
    middle = whole[2:4]
    for stop in (middle, ["nowhere to be seen", middle]):
        short = client.chat.completions.create(**ASKED, max_tokens=16, stop=stop)
        assert short.usage.completion_tokens < answer.usage.completion_tokens  # what was cut off does not count
        ended = short.choices[0]
        assert (ended.message.content, ended.finish_reason) == (whole[: whole.index(middle)], "stop")


def test_several_answers_are_drawn_and_counted(client):
    drawn = client.chat.completions.create(**{**ASKED, "temperature": 2}, n=6, max_tokens=16)
    assert [choice.index for choice in drawn.choices] == list(range(6))
    assert len({choice.message.content for choice in drawn.choices}) > 1
    greedy = client.chat.completions.create(**ASKED, n=2, max_tokens=16)
    assert greedy.choices[0].message == greedy.choices[1].message
    one = client.chat.completions.create(**ASKED, max_tokens=16)
    assert greedy.usage.completion_tokens == 2 * one.usage.completion_tokens
    assert greedy.usage.prompt_tokens == one.usage.prompt_tokens


def test_a_stream_gives_the_same_words(client):
    whole = client.chat.completions.create(**ASKED, n=2, max_tokens=16)
    usage, texts, ends = None, ["", ""], [None, None]
    for chunk in client.chat.completions.create(
        **ASKED, n=2, max_tokens=16, stream=True, stream_options={"include_usage": True}
    ):
        assert chunk.object == "chat.completion.chunk" and chunk.model == MODEL
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends[choice.index] = choice.finish_reason or ends[choice.index]
    assert texts == [choice.message.content for choice in whole.choices]
    assert ends == [choice.finish_reason for choice in whole.choices] and usage == whole.usage


def test_a_conversation_of_many_turns_is_what_training_showed(client, tiny_model, monkeypatch):
    """The game's opening, then actions and feedback in turn, becomes the prompt that `build_prompt` writes."""
    asked = []
    write = tiny_model.model.write

    def overheard(questions, **decoding):
        asked.extend(questions)
        return write(questions, **decoding)

    monkeypatch.setattr(tiny_model.model, "write", overheard)
    turns = [
        {"role": "system", "content": "You are in a household."},
        {
            "role": "user",
            "content": "-= Welcome to TextWorld, ALFRED! =-\n\nYou see a cabinet 1.\n\nYour task is to: look.",
        },
        {"role": "assistant", "content": "Action: go to the cabinet 1."},
        {"role": "user", "content": "The cabinet 1 is closed."},
    ]
    client.chat.completions.create(**{**ASKED, "messages": turns})
    assert [question.prompt for question in asked] == [
        "You see a cabinet 1.\nYour task is to: look.\n> go to cabinet 1\nThe cabinet 1 is closed.\n> "
    ]


BAD = {
    "image": [{"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}],
    "file": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}],
    "base64": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}}],
    "no image": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
    "sound": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}],
}


def test_what_is_no_image_of_the_request_is_refused_and_nothing_is_fetched(client, monkeypatch):
    look_up, codes = socket.getaddrinfo, {}

    def only_here(host, *rest, **more):
        assert host == "127.0.0.1", f"{host} was looked up"
        return look_up(host, *rest, **more)

    monkeypatch.setattr("socket.getaddrinfo", only_here)
    for kind, content in BAD.items():
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**{**ASKED, "messages": [{"role": "user", "content": content}]})
        told = caught.value.body
        assert told["type"] == "invalid_request_error" and told["message"]
        codes[kind] = told["code"]
    assert codes == {
        "image": "remote_image_url",
        "file": "remote_image_url",
        "base64": "bad_base64",
        "no image": "not_an_image",
        "sound": "invalid_request",
    }


def test_what_cannot_be_done_is_refused_by_name(client):
    refused = {
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "logprobs": True,
        "frequency_penalty": 0.5,
        "response_format": {"type": "json_object"},
    }
    for name, value in refused.items():
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**ASKED, **{name: value})
        assert (caught.value.code, caught.value.param) == ("unsupported_parameter", name)
    harmless = {"user": "me", "seed": 7, "frequency_penalty": 0, "logprobs": False, "response_format": {"type": "text"}}
    assert client.chat.completions.create(**ASKED, **harmless).choices
    for wrong in (
        {"messages": []},
        {"messages": [{"role": "assistant", "content": "look"}]},
        {"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]},
        {"max_tokens": 5000},
        {"temperature": 9},
        {"n": 99},
        {"stop": ["", "x"]},
    ):
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(**{**ASKED, **wrong})
    # The model divided its logits by it: 500.
    least = client.chat.completions.create(**{**ASKED, "temperature": 1e-310}, max_tokens=8)
    assert least.choices[0].message == client.chat.completions.create(**ASKED, max_tokens=8).choices[0].message
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(**{**ASKED, "model": "gpt-4o"})
    assert missing.value.code == "model_not_found" and MODEL in str(missing.value)


def test_half_a_surrogate_pair_and_bodies_that_are_no_json_get_openais_errors(serve):
    """The tokenizer failed, 500; and what never reached the route had a form that OpenAI's client does not read."""
    server, post = serve(), {"headers": {"Content-Type": "application/json"}}
    half = json.dumps({**ASKED, "messages": [{"role": "user", "content": "a \ud800 b"}]})
    for answer, status, said in (
        (server.http.post("/v1/chat/completions", content=half, **post), 400, "half a surrogate pair"),
        (server.http.post("/v1/chat/completions", content="{", **post), 400, ""),
        (server.http.get("/v1/chat/completions"), 405, "Method Not Allowed"),
    ):
        assert answer.status_code == status and said in answer.json()["error"]["message"]


def test_a_conversation_has_limits(client):
    long = {"role": "user", "content": "x" * 250_000}
    with pytest.raises(openai.BadRequestError, match="at most 400000 characters") as caught:
        client.chat.completions.create(**{**ASKED, "messages": [long, long]})
    assert caught.value.code == "context_length_exceeded"
    images = [data_url(size=(1800, 1800)), data_url(size=(1800, 1800))]  # each below the limit for pixels
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(**{**ASKED, "messages": [{"role": "user", "content": images}]})
    assert (caught.value.status_code, caught.value.code) == (413, "image_too_large")
    with pytest.raises(openai.BadRequestError, match="at most 16 images"):
        client.chat.completions.create(**{**ASKED, "messages": [{"role": "user", "content": [data_url()] * 17}]})


def test_a_caller_that_asks_too_often_is_told_so_by_openais_name(serve):
    server = serve("server.rate_per_s=0.001", "server.burst=1")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    client.models.list()
    with pytest.raises(openai.RateLimitError) as caught:
        for _ in range(2):
            client.chat.completions.create(**ASKED, max_tokens=1)
    assert caught.value.code == "rate_limit_exceeded" and caught.value.type == "rate_limit_error"


def test_keys_rates_and_the_queue_are_those_of_the_server(serve, held_model):
    server = serve("queue.limit=1", "queue.max_batch=1", keys={"lab": "a-key-of-the-lab-1"}, model=held_model)
    strange = openai.OpenAI(base_url=f"{server.url}/v1", api_key="another-key-of-none", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as caught:
        strange.chat.completions.create(**ASKED)
    assert caught.value.code == "invalid_api_key"
    own = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="a-key-of-the-lab-1", max_retries=0)

    async def crowd() -> None:
        first = asyncio.create_task(own.chat.completions.create(**ASKED))
        await asyncio.to_thread(held_model.wait_until_called)
        second = asyncio.create_task(own.chat.completions.create(**ASKED))
        await asyncio.to_thread(wait_until_queued, server)
        with pytest.raises(openai.InternalServerError) as full:
            await own.chat.completions.create(**ASKED)
        assert full.value.code == "queue_full" and int(full.value.response.headers["Retry-After"]) >= 1
        held_model.release.set()
        assert (await first).choices == (await second).choices
        await own.close()

    asyncio.run(crowd())
    with pytest.raises(openai.BadRequestError):
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="a-key-of-the-lab-1").chat.completions.create(
            **ASKED, max_tokens=0
        )
    metrics = server.http.get("/metrics").text
    assert 'policy_requests_total{status="200",transport="chat"} 2.0' in metrics
    assert 'policy_requests_total{status="400",transport="chat"} 1.0' in metrics  # what its caller got


def test_conversations_and_actions_share_batches(serve, held_model):
    """Nine requests come while the model works on one: its next call has them all, of both kinds."""
    server = serve(model=held_model)
    action = {"task_name": "ALFWorld", "prompt": ROOM, "temperature": 0, "max_tokens": 16,
              "image": {"data": base64.b64encode(encoded_image()).decode()}}  # fmt: skip

    def post(path: str, body: dict) -> httpx.Response:
        return httpx.post(server.url + path, json=body, timeout=120)

    with ThreadPoolExecutor(10) as threads:
        first = threads.submit(post, "/v1/chat/completions", ASKED)
        held_model.wait_until_called()
        rest = [threads.submit(post, "/v1/chat/completions", ASKED) for _ in range(5)]
        rest += [threads.submit(post, "/get_action", action) for _ in range(4)]
        wait_until_queued(server, 9)
        held_model.release.set()
        answers = [each.result() for each in (first, *rest)]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["choices"][0]["message"]["content"] for answer in answers[:6]}) == 1
    assert len({answer.json()["action"]["command"] for answer in answers[6:]}) == 1
    assert held_model.batches == [1, 5, 4] or held_model.batches == [1, 4, 5]  # one batch, a call for each kind


def test_a_model_of_the_hub_with_a_run_s_adapters_is_served(serve, tmp_path):
    pytest.importorskip("peft")
    from lavis.models.hf_vlm import tiny

    folder = tiny.make("qwen2_5_vl", tmp_path / "vlm")
    settings = ModelSettings(path=f"hf_vlm:{folder}", device="cpu", options={"lora_rank": 4})
    server = serve(f"model.path=hf_vlm:{folder}", model=load_model(settings))
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    (model,) = client.models.list().data
    image = [{"type": "text", "text": ROOM}, data_url(shade=9)]
    for messages in ([{"role": "user", "content": ROOM}], [{"role": "user", "content": image}]):
        answer = client.chat.completions.create(model=model.id, messages=messages, temperature=0, max_tokens=8)
        assert answer.choices[0].message.content is not None and 0 < answer.usage.completion_tokens <= 8
    # An image that is 3000 times as wide as high is no fault of the server's.
    wide = [{"type": "text", "text": ROOM}, data_url(size=(3000, 1))]
    with pytest.raises(openai.BadRequestError, match="refuses a question with an image of 3000 x 1 pixels"):
        client.chat.completions.create(model=model.id, messages=[{"role": "user", "content": wide}], max_tokens=8)


def test_this_project_s_teacher_asks_a_student(serve, tiny_model, monkeypatch):
    """The worked examples of its prompt are no part of what the student reads; the game's text and memories are."""
    asked = []
    write = tiny_model.model.write

    def overheard(questions, **decoding):
        asked.extend(questions)
        return write(questions, **decoding)

    monkeypatch.setattr(tiny_model.model, "write", overheard)
    server = serve()
    endpoint = Endpoint(model=MODEL, base_url=f"{server.url}/v1", environ={})
    examples = {"pick_and_place_simple": ["You are in a kitchen.\n> look\nA kitchen."] * 3}
    expert = LLMExpert(Teacher(endpoint, examples, tries=1))
    expert.begin(ROOM.removesuffix("> "), memories=["Open the fridge first."])
    expert.act()
    expert.observe("go to cabinet 1", "The cabinet 1 is closed.")
    expert.act()
    room, endpoint_usage = ROOM.removesuffix("> "), endpoint.account.total
    endpoint.close()
    prompts = {question.prompt for question in asked}
    assert prompts == {
        f"Memory: Open the fridge first.\n{room}> ",
        f"Memory: Open the fridge first.\n{room}> go to cabinet 1\nThe cabinet 1 is closed.\n> ",
    }
    assert endpoint_usage.calls == len(asked) and endpoint_usage.prompt > 0 and endpoint_usage.completion > 0


def test_litellm_asks_a_student(serve, monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network for prices
    litellm = pytest.importorskip("litellm")
    server = serve(keys={"lab": "a-key-of-the-lab-1"})
    asked = {**ASKED, "model": f"openai/{MODEL}", "api_base": f"{server.url}/v1", "api_key": "a-key-of-the-lab-1"}
    whole = litellm.completion(**asked, max_tokens=16, n=2, user="me")
    text = whole.choices[0].message.content
    assert text and whole.choices[1].message.content == text and whole.usage.completion_tokens > 0
    pieces = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**asked, max_tokens=16, stream=True)]
    assert "".join(pieces) == text
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**{**asked, "model": "openai/gpt-4o"})
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**{**asked, "api_key": "another-key-of-none"})
