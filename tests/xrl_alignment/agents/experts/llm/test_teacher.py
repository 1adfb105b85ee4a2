"""The teacher by itself; how it answers an expert is in test_expert.py."""

import json

import pytest

from benchmarks._endpoint import FakeEndpoint
from lavis.common.errors import ConfigError
from xrl_alignment.agents.experts.llm.endpoint import Completion, Endpoint
from xrl_alignment.agents.experts.llm.teacher import Teacher, is_filtered
from xrl_alignment.agents.language.answers import ParsedAnswer


def test_a_context_without_room_for_a_prompt_is_refused():
    with FakeEndpoint() as server:
        endpoint = Endpoint(model="m", base_url=server.url, environ={})
        with pytest.raises(ConfigError, match="expert.context_tokens=300 leaves no room"):
            Teacher(endpoint=endpoint, examples={}, context_tokens=300)
        endpoint.close()
        assert not server.requests


def test_no_try_is_hotter_than_endpoints_take():
    """The twelfth was asked at 2.2, which ends a run: an endpoint takes at most 2."""
    with FakeEndpoint(answer=lambda prompt: "") as server:
        endpoint = Endpoint(model="m", base_url=server.url, environ={})
        Teacher(endpoint=endpoint, examples={}, tries=12).answer("p")
        endpoint.close()
        assert max(request["temperature"] for request in server.requests) == 2.0


def test_a_model_whose_reasoning_takes_all_tokens_is_told(caplog):
    """Its score was 0, and nothing said why."""
    choice = {"finish_reason": "length", "message": {"content": None, "reasoning_content": "First, the desk."}}
    thinking = {"finish_reason": "length", "message": {"content": "<think>First, the desk."}}
    bodies = [json.dumps({"choices": [each]}).encode() for each in (choice, thinking)]
    with FakeEndpoint(fault=lambda number: (200, {}, bodies[number]) if number < 2 else None) as server:
        endpoint = Endpoint(model="m", base_url=server.url, environ={})
        teacher = Teacher(endpoint=endpoint, examples={}, tries=2)
        assert teacher.answer("p") == ParsedAnswer() and teacher.answer("q") == ParsedAnswer("look")
        endpoint.close()
    assert endpoint.account.counts[
        "cut"
    ] == 2 and "answers that max_answer_tokens ended too early 2" in endpoint.account.line(0)
    assert caplog.text.count("m used up its tokens (expert.max_answer_tokens=256, unless") == 1


@pytest.mark.parametrize(
    ("completion", "filtered"),
    [
        (Completion("", filtered="content filter"), True),
        (Completion(" 9: filtered"), True),
        (Completion("go to desk 9"), False),
    ],
)
def test_what_counts_as_filtered(completion, filtered):
    assert is_filtered(completion) is filtered
