"""One call to an endpoint, with everything that can go wrong on the way, against a local server that does it."""

import json
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks._endpoint import FakeEndpoint
from tests.hostile_endpoint import ANSWERED, MODES, SLOW, HostileEndpoint, Peak, wrong_documents
from xrl_alignment.agents.experts.llm.accounting import Account, Prices, Usage
from xrl_alignment.agents.experts.llm.answer_cache import AnswerCache
from xrl_alignment.agents.experts.llm.endpoint import MAX_TEXT, PROMPT_OVERHEAD, Completion, Endpoint, retry_after
from xrl_alignment.common.errors import BudgetSpent, EndpointFault, PromptTooLong


class Waits(list):
    """A sleep that only notes how long it was meant to be."""

    def __call__(self, seconds):
        self.append(seconds)


def error(message, code=None, param=None):
    return json.dumps({"error": {"message": message, "code": code, "param": param}}).encode()


@pytest.fixture
def connect():
    """Endpoints for a server, closed at the end."""
    opened = []

    def connect(server, **options):
        options = {"sleep": Waits(), "timeout_s": 60.0, "environ": {}, **options}
        opened.append(Endpoint(model="m", base_url=getattr(server, "url", server), **options))
        return opened[-1]

    yield connect
    for endpoint in opened:
        endpoint.close()


@pytest.mark.parametrize("api", ["chat", "completion"])
def test_an_answer_and_its_cost(connect, api):
    with FakeEndpoint(lambda prompt: f"go to {prompt}") as server:
        endpoint = connect(server, api=api)
        assert endpoint.complete("desk 1", system="one action", stop=["\n"]) == Completion("go to desk 1")
        (body,) = server.requests
        assert body["stop"] == ["\n"] and body["max_tokens"] == 256 and body["temperature"] == 0
        if api == "chat":
            assert [message["role"] for message in body["messages"]] == ["system", "user"]
        assert endpoint.account.total.calls == 1 and endpoint.account.total.completion == 3


def test_numbers_of_tokens_may_be_written_as_decimals(connect):
    """As gateways do in whose language every number is one."""
    usage = {"prompt_tokens": 12.0, "completion_tokens": 3.0, "prompt_tokens_details": {"cached_tokens": 4.0}}
    body = json.dumps({"choices": [{"message": {"content": "look"}}], "usage": usage}).encode()
    with FakeEndpoint(fault=lambda number: (200, {}, body)) as server:
        endpoint = connect(server, max_attempts=1)
        assert endpoint.complete("x").text == "look"
        total = endpoint.account.total
        assert (total.prompt, total.cached, total.completion) == (12, 4, 3) and isinstance(total.prompt, int)


@pytest.mark.parametrize("fault", ["429", "500", "cut", "malformed", "latin1", "slow"])
def test_passing_faults_are_tried_again_and_each_attempt_is_booked(connect, fault):
    with FakeEndpoint(fault=lambda number: fault if number < 2 else None, slow_s=60.0) as server:
        endpoint = connect(server, timeout_s=2.0 if fault == "slow" else 60.0)
        assert endpoint.complete("x").text == "look"
        assert len(server.requests) == 3 and list(server.billed.values()) == [1]
        assert endpoint.account.total.calls == 3 and endpoint.account.counts["retries"] == 2
        sent = endpoint.count("x") + PROMPT_OVERHEAD  # the worst case of what may have been billed
        assert endpoint.account.total.prompt == (1 if fault == "429" else 3) * sent
        if fault == "429":
            assert endpoint._sleep == [1.0, 1.0]  # what the server asked for


@pytest.mark.parametrize("content", [5, {"text": "look"}, ["look"]])
def test_an_answer_that_is_no_text_is_asked_for_again(connect, content):
    body = json.dumps({"choices": [{"message": {"content": content}}]}).encode()
    with FakeEndpoint(fault=lambda number: (200, {}, body) if number == 0 else None) as server:
        assert connect(server).complete("x").text == "look" and len(server.requests) == 2


@pytest.mark.parametrize(
    "document",
    [{"error": {"message": "host down", "code": 502}, "choices": None}, {"error": "host down"},
     {"choices": [{"finish_reason": "error", "error": {"message": "host down"}, "message": {"content": ""}}]}],
)  # fmt: skip
def test_an_error_with_status_200_is_no_answer(connect, document):
    """A gateway's way to report a fault of the model's host: it was kept in the cache as an empty answer."""
    body = json.dumps(document).encode()
    with FakeEndpoint(fault=lambda number: (200, {}, body) if number == 0 else None) as server:
        assert connect(server).complete("x").text == "look" and len(server.requests) == 2
    with FakeEndpoint(fault=lambda number: (200, {}, body)) as server, pytest.raises(EndpointFault, match="host down"):
        connect(server, max_attempts=2).complete("x")


def test_an_answer_without_choices_is_not_kept(connect, tmp_path):
    """A gateway's fault: every later run, with a sound gateway, too, found the empty answer in the cache."""
    with FakeEndpoint(fault=lambda number: (200, {}, b'{"choices": []}') if number == 0 else None) as server:
        endpoint = connect(server, cache=AnswerCache(tmp_path / "answers.sqlite"))
        assert endpoint.complete("x") == Completion("") and endpoint.complete("x").text == "look"
        assert endpoint.complete("x").text == "look" and len(server.requests) == 2


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (400, b'{"detail": "max_tokens must be at most 64"}', "max_tokens must be at most 64"),
        (422, b'{"detail": [{"loc": ["body"], "msg": "no such field"}]}', "no such field"),
        (500, b"CUDA out of memory", "CUDA out of memory"),
        (502, b"<html>nginx</html>", r"Error code: 502\)$"),
    ],
)
def test_a_refusal_is_told_in_the_servers_words(connect, status, body, reason):
    """FastAPI's servers (`transformers serve`) do not write OpenAI's form, the only one that the library reads."""
    fake = FakeEndpoint(fault=lambda number: (status, {}, body))
    with fake as server, pytest.raises(EndpointFault, match=reason):
        connect(server, max_attempts=1).complete("x")


def test_a_prompt_that_is_too_long_is_known_by_the_servers_words(connect):
    body = b'{"detail": "This model\'s maximum context length is 512 tokens"}'
    with FakeEndpoint(fault=lambda number: (400, {}, body)) as server, pytest.raises(PromptTooLong):
        connect(server).complete("x")


@pytest.mark.parametrize("fault", ["filtered", "refusal"])
def test_filtered_answers_are_typed_and_not_tried_again(connect, fault):
    with FakeEndpoint(fault=lambda number: fault) as server:
        completion = connect(server).complete("x")
        assert completion.filtered and not completion.text and len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (401, error("bad key"), EndpointFault, "refuses the key \\(401\\): check OPENAI_API_KEY"),
        (404, error("no such model"), EndpointFault, "has no model 'm'.*expert.model, expert.base_url"),
        (400, error("too long", "context_length_exceeded"), PromptTooLong, "lower expert.context_tokens"),
        (429, error("pay first", "insufficient_quota"), EndpointFault, "quota is used up"),
        (422, b"what?", EndpointFault, "refuses the request \\(422\\)"),
    ],
)
def test_lasting_faults_end_at_once(connect, status, body, kind, message):
    with FakeEndpoint(fault=lambda number: (status, {}, body)) as server:
        with pytest.raises(kind, match=message):
            connect(server).complete("x")
        assert len(server.requests) == 1


def test_an_endpoint_that_stays_broken_ends_after_max_attempts(connect):
    with FakeEndpoint(fault=lambda number: "500") as server:
        with pytest.raises(EndpointFault, match="no answer in 20 attempts: status 500"):
            connect(server).complete("x")
        assert len(server.requests) == 20


def test_an_address_where_nobody_is_ends_soon(connect):
    endpoint = connect("http://127.0.0.1:9/v1")
    with pytest.raises(EndpointFault, match="no answer in 3 attempts: no connection"):
        endpoint.complete("x")
    assert len(endpoint._sleep) == 2


def test_parameters_that_a_model_refuses_are_left_out(connect):
    def fault(number):
        body = server.requests[number]
        for name in ("max_tokens", "temperature"):
            if name in body:
                return 400, {}, error(f"no {name}", "unsupported_parameter", name)
        return None

    with FakeEndpoint(fault=fault) as server:
        endpoint = connect(server)
        assert endpoint.complete("x").text == endpoint.complete("y").text == "look"
        assert len(server.requests) == 4 and server.requests[-1]["max_completion_tokens"] == 256


@pytest.mark.parametrize("api_version", ["", "2024-02-01"])
@pytest.mark.parametrize(
    "address",
    [
        "localhost:8000",
        "http://",
        "http://[::1",
        "http://host:80a/v1",
        "http://host:99999/v1",
        "http://host:-1/v1",
        "http://x\n",
    ],
)
def test_what_is_no_address_is_told(address, api_version):
    """A port that is no number ended in a traceback of the library's."""
    with pytest.raises(EndpointFault, match="expert.base_url '.*' is not an address that begins with http://"):
        Endpoint(model="m", base_url=address, api_version=api_version, environ={})


def test_the_key_comes_from_the_environment(connect):
    with FakeEndpoint() as server:
        connect(server, environ={"MINE": "secret"}, key_variable="MINE").complete("x")
        assert server.headers[0]["authorization"] == "Bearer secret"
    with pytest.raises(EndpointFault, match="set the environment variable OPENAI_API_KEY"):
        Endpoint(model="m", environ={})
    with pytest.raises(EndpointFault, match="set expert.model"):
        Endpoint(model="", environ={"OPENAI_API_KEY": "k"})


def test_azure_deployments(connect):
    with FakeEndpoint() as server:
        root = server.url.removesuffix("/v1")
        connect(root, api_version="2024-10-21", environ={"OPENAI_API_KEY": "k"}).complete("x")
        assert server.headers[0]["api-key"] == "k"


def test_the_same_request_is_paid_once_also_from_many_threads_and_by_the_next_process(connect, tmp_path):
    with FakeEndpoint(latency_s=0.05) as server:
        endpoint = connect(server, cache=AnswerCache(tmp_path / "answers.sqlite"))
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: endpoint.complete("x").text, range(8)))
        assert answers == ["look"] * 8 and len(server.requests) == 1
        assert endpoint.account.counts["cache_hits"] == 7
        endpoint.cache.close()
        again = connect(server, cache=AnswerCache(tmp_path / "answers.sqlite"))
        assert again.complete("x").text == "look" and len(server.requests) == 1
        again.complete("x", temperature=0.2)
        assert len(server.requests) == 2


FAULTS_THAT_COST = ("500", "cut", "malformed", "latin1", "slow", "filtered", "empty", "refusal", None)


def test_a_later_trial_draws_anew_unless_the_temperature_is_zero(connect):
    with FakeEndpoint() as server:
        endpoint = connect(server)
        for draw, temperature, calls in ((0, 0.0, 1), (1, 0.0, 1), (0, 0.5, 2), (1, 0.5, 3), (1, 0.5, 3)):
            endpoint.draw = draw
            endpoint.complete("x", temperature=temperature)
            assert len(server.requests) == calls


@pytest.mark.parametrize("damage", ["malformed", "cut", "latin1", "usage"])
def test_an_endpoint_that_bills_damaged_answers_does_not_get_more_than_the_limit(connect, damage):
    bad = b'{"choices": [{"message": {"content": "look"}}], "usage": {"prompt_tokens": -1000000}}'
    fault = (200, {}, bad) if damage == "usage" else damage
    with FakeEndpoint(fault=lambda number: fault if number else None) as server:
        endpoint = connect(server, account=Account(max_calls=7))
        endpoint.complete("the first is answered")
        with pytest.raises(BudgetSpent, match="7 calls"):
            endpoint.complete("x")
        assert len(server.requests) == endpoint.account.total.calls == 7
        assert endpoint.account.total.completion == 1 + 6 * 256


@pytest.mark.parametrize("limit", [{"max_calls": 50}, {"max_cost_usd": 0.02}])
def test_limits_hold_at_an_endpoint_that_bills_every_attempt(connect, tmp_path, limit):
    """30 % faults, 8 calls at the same time; the endpoint bills each request that it receives."""
    draw = random.Random(1)
    plan = [draw.choice(FAULTS_THAT_COST) if draw.random() < 0.3 else None for _ in range(5000)]
    prices = Prices(prompt=2.0, cached=2.0, completion=10.0)
    prompt = "go to " * 20
    with FakeEndpoint(fault=plan.__getitem__, slow_s=4.0) as server:
        account = Account(prices=prices, **limit)
        account.keep(tmp_path / "calls.jsonl")
        endpoint = connect(server, timeout_s=1.0, account=account)

        def call(number):
            try:
                return endpoint.complete(f"{prompt}{number}", max_tokens=20)
            except BudgetSpent:
                return None

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(call, range(200)))
        assert any(answers) and answers[-1] is None
        # On a busy machine an attempt can be given up before the endpoint has read it: it reads it all the same.
        deadline = time.monotonic() + 30
        while len(server.requests) < account.total.calls and time.monotonic() < deadline:
            time.sleep(0.01)
        served = len(server.requests)
        assert account.total.calls == served
        # What the endpoint can ask for: its own count of the prompt, and an answer of up to max_tokens where none came.
        owed = sum(len(body["messages"][-1]["content"]) // 4 for body in server.requests) * prices.prompt / 1e6
        assert owed <= account.prices.cost(account.total) <= (account.max_cost_usd or 1) and served <= (
            account.max_calls or served
        )
        assert account.max_calls in (0, served)  # all of the limit can be used
    again = Account()
    again.keep(tmp_path / "calls.jsonl")
    assert again.total == account.total


PROGRAM = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xrl_alignment.agents.experts.llm.accounting import Account, Prices, Usage
from xrl_alignment.agents.experts.llm.endpoint import Endpoint
account = Account(max_calls=30)
account.keep(Path(sys.argv[1]))
endpoint = Endpoint(model="m", base_url=sys.argv[2], environ={}, account=account)
with ThreadPoolExecutor(8) as pool:
    list(pool.map(lambda number: endpoint.complete(f"{number}"), range(8)))
"""


def test_what_was_sent_before_a_kill_is_booked(connect, tmp_path):
    together = threading.Barrier(9)  # 8 calls in progress, and this test
    record = tmp_path / "calls.jsonl"
    with FakeEndpoint(lambda prompt: (together.wait(60), time.sleep(60))[1]) as server:
        for _ in range(3):
            program = subprocess.Popen([sys.executable, "-c", PROGRAM, str(record), server.url])
            together.wait(60)
            program.kill()
            program.wait()
        account = Account(max_calls=30)
        account.keep(record)
        assert len(server.requests) == account.total.calls == 24
        assert account.total.completion == 24 * 256


def test_an_attempt_that_was_never_sent_costs_nothing(connect):
    endpoint = connect("http://127.0.0.1:9/v1", account=Account(max_calls=1))
    with pytest.raises(EndpointFault, match="no answer in 3 attempts: no connection"):
        endpoint.complete("x")
    assert endpoint.account.total == Usage()


def test_the_budget_stops_before_the_call(connect):
    with FakeEndpoint() as server:
        endpoint = connect(server, account=Account(max_calls=2))
        endpoint.complete("a"), endpoint.complete("b"), endpoint.complete("a")
        with pytest.raises(BudgetSpent, match="expert.max_calls=2; raise it"):
            endpoint.complete("c")
        assert len(server.requests) == 2


# --- endpoints that attack --------------------------------------------------------------------------------------------

MANY = {"wrong_types": len(wrong_documents()), "wrong_error": 12, "rate_limit": 5, "server_error": 5, "wrong_kind": 4}
MANY |= {"no_http": 3, "wrong_length": 5}  # modes that have several forms: so many requests show all of them
ATTEMPTS = 2


@pytest.mark.parametrize("mode", MODES)
def test_whatever_an_endpoint_sends_takes_little_time_and_memory_and_is_an_answer_or_one_error(connect, mode):
    with HostileEndpoint(mode) as server:
        slow = mode in SLOW
        endpoint = connect(server, timeout_s=0.4 if slow else 60.0, max_attempts=ATTEMPTS)
        asked, peak, began, answers = MANY.get(mode, 1), Peak(), time.monotonic(), []
        for number in range(asked):
            try:
                answers.append(endpoint.complete(f"x {number}").text)
            except EndpointFault as fault:
                text = str(fault)
                assert "\n" not in text and text.isprintable() and len(text) < 800
        # A busy machine may be slow; what drips or is silent would take half a minute, what is giant more.
        assert time.monotonic() - began < (20 if slow else 60)
        assert peak() < 160 << 20  # bytes; most of it where 600,000 lists are read
        calls = endpoint.account.total.calls
        assert asked <= server.received(calls) <= ATTEMPTS * asked
        assert server.requests == calls
        assert all(len(text) <= MAX_TEXT and text.encode() for text in answers if text)
        if mode in ANSWERED:
            assert len(answers) == asked and all(text.startswith("go to desk 1") for text in answers)
        else:
            assert not answers or mode == "wrong_types"


def test_a_redirect_takes_the_prompt_nowhere(connect):
    with HostileEndpoint("redirect_elsewhere") as server:
        with pytest.raises(
            EndpointFault, match=r"redirects to http://127.0.0.1:\d+/v1/chat/completions \(307\).*base_url"
        ):
            connect(server).complete("secret")
        assert server.requests == 1 and server.elsewhere.requests == 0


def test_the_deadline_is_for_all_of_an_attempt(connect):
    with HostileEndpoint("drip_headers") as server:  # ten bytes a second
        with pytest.raises(EndpointFault, match=r"no answer in 3 attempts: no answer within 0.3 s"):
            connect(server, timeout_s=0.3).complete("x")
        assert server.received(3) == 3


def test_no_cookie_is_kept(connect):
    with HostileEndpoint("cookies") as server:
        endpoint = connect(server)
        for number in range(3):
            endpoint.complete(f"x {number}")
        assert not endpoint._client._client.cookies


def test_half_a_surrogate_pair_hurts_neither_question_nor_answer(connect, tmp_path):
    with HostileEndpoint("surrogate") as server:
        endpoint = connect(server, cache=AnswerCache(tmp_path / "answers.sqlite"))
        for _ in range(2):  # the second time from the cache
            completion = endpoint.complete("go \ud800", system="\udc00")
            assert completion.text.startswith("go to desk 1? ")
        assert server.requests == 1


def test_what_ends_a_call_in_progress_is_an_error_too(connect):
    with HostileEndpoint("silent") as server, ThreadPoolExecutor(1) as pool:
        endpoint = connect(server)
        asking = pool.submit(endpoint.complete, "x")
        while not server.requests:
            time.sleep(0.01)
        endpoint.close()
        with pytest.raises(EndpointFault, match="closed"):
            asking.result(60)


@pytest.mark.parametrize("mode", ["html", "redirect_elsewhere", "giant_error", "wrong_error", "drip_body", "reset"])
def test_why_an_adapter_is_refused_is_one_line(connect, mode):
    with HostileEndpoint(mode) as server:
        refusal = connect(server, timeout_s=0.5).post("/load_lora_adapter", {"lora_name": "a"})
        assert refusal.isprintable() and len(refusal) < 400 and (refusal or mode == "html")


NOW = "Fri, 20 Nov 2026 10:00:00 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "86400"}, 120),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Fri, 20 Nov 2026 10:00:30 GMT", "date": NOW}, 30),
        ({"retry-after": "Mon, 01 Jan 2018 00:00:30 GMT", "date": "Mon, 01 Jan 2018 00:00:00 GMT"}, 30),  # clock skew
        ({"retry-after": "Fri, 20 Nov 2026 09:00:00 GMT", "date": NOW}, None),
        ({"retry-after": "Fri, 20 Nov 2026 10:00:30 GMT"}, None),
        ({"retry-after": "Fri, 20 Nov 2026 10:00:00 +99999999999999", "date": NOW}, None),  # an OverflowError once
        ({"retry-after": "1e999"}, 120),
        ({"retry-after": "9" * 5000, "retry-after-ms": "nan"}, None),
    ],
)
def test_retry_after(headers, seconds):
    assert retry_after(headers) == seconds
