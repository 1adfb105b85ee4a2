"""A planner behind an endpoint: its questions, its cost, faults, and an adapter that is handed over by name."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from benchmarks._endpoint import FakeEndpoint
from lavis.common.errors import ConfigError
from tests.hostile_endpoint import HostileEndpoint
from xrl_alignment.agents.experts.llm.answer_cache import AnswerCache
from xrl_alignment.agents.experts.llm.endpoint import Endpoint
from xrl_alignment.common.errors import EndpointFault
from xrl_alignment.planning.planners.base import SYSTEM, PlanQuestion
from xrl_alignment.planning.planners.endpoint import EndpointPlanner

QUESTIONS = [PlanQuestion(f"you see a desk {i}.\nYour task is to: put a pen in desk.") for i in range(3)]


@pytest.fixture
def connect():
    opened = []

    def connect(url: str, cache=None, **options) -> EndpointPlanner:
        endpoint = Endpoint(
            model="m", base_url=url, environ={"OPENAI_API_KEY": "k"}, sleep=lambda seconds: None, max_attempts=2,
            cache=AnswerCache(cache), section="planner",
        )  # fmt: skip
        opened.append(EndpointPlanner(endpoint, **options))
        return opened[-1]

    yield connect
    for planner in opened:
        planner.close()


def test_questions_are_asked_at_once_and_answered_in_order(connect) -> None:
    with FakeEndpoint(lambda prompt: f"go to {prompt.partition('see a ')[2].partition('.')[0]}") as server:
        planner = connect(server.url, examples="An example.")
        answers = planner.plan_all(QUESTIONS)
        assert [answer.text for answer in answers] == ["go to desk 0", "go to desk 1", "go to desk 2"]
        assert all(a.planner == "m" and a.prompt_tokens > a.answer_tokens > 0 for a in answers)
        system, user = server.requests[0]["messages"]
        assert system["content"] == SYSTEM and user["content"].startswith("An example.\n\nyou see")
        assert server.requests[0]["stop"] == ["\n>"]  # a small chat model would play the game on, turn by turn


def test_a_server_that_goes_away_keeps_the_answers_that_came(connect, tmp_path) -> None:
    cache = tmp_path / "answers.sqlite"
    with FakeEndpoint(lambda prompt: "take pen") as server:
        connect(server.url, cache).plan_all(QUESTIONS[:2])
        url = server.url
    with pytest.raises(EndpointFault, match="gave no answer"):
        connect(url, cache).plan_all(QUESTIONS)
    assert [answer.text for answer in connect(url, cache).plan_all(QUESTIONS[:2])] == ["take pen", "take pen"]


def test_half_a_surrogate_pair_in_a_plan_does_not_end_the_next_question(connect, tmp_path) -> None:
    with HostileEndpoint("surrogate", "go to desk 1") as server:
        planner = connect(server.url, tmp_path / "answers.sqlite")
        for number in range(2):
            (answer,) = planner.plan_all([PlanQuestion(QUESTIONS[0].goal, "", (("\ud800", "seen"),) * number)])
            answer.text.encode()
            assert planner.plan(QUESTIONS[0].goal, "", ((answer.text, "You see nothing."),))[0].place == "desk 1"


def test_a_planner_whose_reasoning_takes_all_tokens_is_told(connect, caplog) -> None:
    """It planned nothing, every game was lost, and nothing said why."""
    choice = {"finish_reason": "length", "message": {"content": "<think>First, the desk."}}
    body = json.dumps({"choices": [choice]}).encode()
    with FakeEndpoint(
        lambda prompt: "take pen", fault=lambda number: (200, {}, body) if number < 2 else None
    ) as server:
        planner = connect(server.url)
        for question in QUESTIONS:
            planner.plan_all([question])
    assert planner.endpoint.account.counts["cut"] == 2
    assert caplog.text.count("m used up its tokens (planner.max_answer_tokens=128, unless") == 1


class _Vllm(BaseHTTPRequestHandler):
    """vLLM's answer to `POST /v1/load_lora_adapter`: 200, or 400 for a name that is loaded; 404 where it is off.

    As vLLM with `--api-key` it refuses a request without the key.
    """

    loaded: list[dict] = []
    off = False

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        known = body in self.loaded
        key = self.headers["Authorization"] == "Bearer k"
        self.send_response(401 if not key else 404 if self.off else 400 if known else 200)
        self.end_headers()
        self.wfile.write(b"The lora adapter has already been loaded." if known else b"")
        if key and not known and not self.off and self.path == "/v1/load_lora_adapter":
            self.loaded.append(body)

    def log_message(self, *args: object) -> None:
        return


def test_an_adapter_is_handed_to_vllm_by_name(connect, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(_Vllm, "loaded", [])
    server = HTTPServer(("127.0.0.1", 0), _Vllm)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        planner = connect(f"http://127.0.0.1:{server.server_port}/v1")
        for _ in range(2):  # a loop that is resumed hands it over again
            planner.use_adapter("planner-000-abc", tmp_path, "vllm")
        assert _Vllm.loaded == [{"lora_name": "planner-000-abc", "lora_path": str(tmp_path)}]
        assert planner.identity == planner.endpoint.model == "planner-000-abc"
        monkeypatch.setattr(_Vllm, "off", True)
        with pytest.raises(EndpointFault, match="--enable-lora"):
            planner.use_adapter("planner-001-def", tmp_path, "vllm")
        planner.use_adapter("planner-001-def", tmp_path, "folder")
        assert planner.endpoint.model == str(tmp_path)
        assert planner.identity == "planner-001-def"  # the folder says neither which weights it holds nor which base
        planner.use_adapter("planner-001-def", tmp_path, "none")
        assert planner.endpoint.model == "planner-001-def"
    finally:
        server.shutdown()
        server.server_close()


def test_a_context_without_room_is_refused(connect) -> None:
    with pytest.raises(ConfigError, match="planner.context_tokens=300 leaves no room for a prompt"):
        connect("http://127.0.0.1:9/v1", context_tokens=300)
