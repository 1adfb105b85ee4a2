"""A language model as expert, against a local endpoint; the last test is the one that injects every fault."""

import json
import random
import threading
import time
from collections import Counter

import pytest

from benchmarks._endpoint import FAULTS, FakeEndpoint
from lavis.common.errors import ConfigError
from lavis.common.paths import REPO_ROOT
from xrl_alignment.agents.experts import Label, act_all, make_expert
from xrl_alignment.agents.experts.llm.answer_cache import AnswerCache
from xrl_alignment.agents.experts.llm.endpoint import Endpoint
from xrl_alignment.agents.experts.llm.expert import LLMExpert
from xrl_alignment.agents.experts.llm.teacher import Teacher, is_filtered
from xrl_alignment.agents.language.react import load_prompts
from xrl_alignment.common.errors import EndpointFault, PromptTooLong

EXAMPLES = load_prompts(REPO_ROOT / "prompts" / "alfworld_3prompts.json")
INTRO = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see a "
    "desk 1, a drawer 1, and a fridge 1.\n\nYour task is to: put a cool mug in desk."
)


@pytest.fixture
def teach():
    """Teachers for a server, closed at the end."""
    endpoints = []

    def teach(server, *, api="chat", cache=None, timeout_s=60.0, **options):
        how = {"api": api, "cache": cache, "timeout_s": timeout_s, "sleep": lambda seconds: None}
        endpoints.append(Endpoint(model="m", base_url=server.url, environ={}, **how))
        return Teacher(endpoint=endpoints[-1], examples=EXAMPLES, **options)

    yield teach
    for endpoint in endpoints:
        endpoint.close()


def begin(teacher, **context):
    expert = LLMExpert(teacher)
    expert.begin(INTRO, **context)
    return expert


def prompt_of(body):
    return body["messages"][-1]["content"] if "messages" in body else body["prompt"]


def test_the_prompt_holds_examples_memories_and_what_happened(teach):
    with FakeEndpoint(lambda prompt: "open drawer 1") as server:
        expert = begin(teach(server), memories=["first plan", "second plan"])
        assert expert.act() == expert.act() == Label("open drawer 1")
        expert.observe("go to drawer 1", "You arrive at loc 3. The drawer 1 is closed.")
        expert.act()
        assert len(server.requests) == 2
        assert "one line" in server.requests[0]["messages"][0]["content"]
        prompt = prompt_of(server.requests[1])
        cool = EXAMPLES["pick_cool_then_place_in_recep"]  # found by the task sentence
        assert cool[0] in prompt and cool[1] in prompt and cool[2] not in prompt  # two, since there are memories
        assert "Trial 1:\nsecond plan" in prompt
        assert prompt.endswith("put a cool mug in desk.\n> go to drawer 1\nThe drawer 1 is closed.\n> ")


@pytest.mark.parametrize(
    ("sentence", "kind"),
    [
        ("find two mug and put them in desk", "pick_two_obj_and_place"),
        ("put three mug in desk", "pick_two_obj_and_place"),  # ALFWorld has no examples for more than two
        ("look at mug under the desklamp", "look_at_obj_in_light"),
        ("put a mug in desk", "pick_and_place_simple"),
        ("whistle", "pick_and_place_simple"),
    ],
)
def test_a_game_without_a_type_gets_the_examples_of_what_its_sentence_asks_for(teach, sentence, kind):
    with FakeEndpoint() as server:
        expert = LLMExpert(teach(server))
        expert.begin(INTRO.replace("put a cool mug in desk", sentence), task_type="my_game/trial_1")
        expert.act()
        assert EXAMPLES[kind][0] in prompt_of(server.requests[0])


def test_the_task_type_may_come_from_the_game(teach):
    with FakeEndpoint() as server:
        begin(teach(server), task_type="look_at_obj_in_light-Mug-None-DeskLamp-3/trial_x").act()
        assert EXAMPLES["look_at_obj_in_light"][2] in prompt_of(server.requests[0])


def test_legacy_completions_have_no_system_message_and_stop_at_the_line(teach):
    with FakeEndpoint(lambda prompt: " go to desk 1\n") as server:
        assert begin(teach(server, api="completion")).act().action == "go to desk 1"
        assert server.requests[0]["stop"] == ["\n"] and "messages" not in server.requests[0]
        # SmolLM2 answered a prompt that ends in a blank with nothing but a line's end.
        assert server.requests[0]["prompt"].endswith("\n>")


def test_a_chat_model_is_stopped_before_the_next_turn(teach):
    with FakeEndpoint(lambda prompt: "go to desk 1\nOn the desk 1, you see a mug 1.") as server:
        assert begin(teach(server)).act().action == "go to desk 1"
        assert server.requests[0]["stop"] == ["\n>"]  # not "\n": its answer may begin with an empty line


def test_thoughts_are_answered_and_remembered(teach):
    def answer(prompt):
        return "open fridge 1" if "think: it is cold" in prompt else "think: it is cold"

    with FakeEndpoint(answer) as server:
        expert = begin(teach(server, thinking=True))
        assert expert.act() == Label("open fridge 1", "it is cold")
        assert prompt_of(server.requests[1]).endswith("> think: it is cold\nOK.\n> ")
        expert.observe("look", "You see nothing.")
        expert.act()
        assert prompt_of(server.requests[2]).endswith("> think: it is cold\nOK.\n> look\nYou see nothing.\n> ")


def test_a_model_that_only_thinks_gives_no_label(teach):
    with FakeEndpoint(lambda prompt: f"think: thought {len(prompt)}") as server:
        label = begin(teach(server)).act()
        assert label.action is None and len(server.requests) == 3


@pytest.mark.parametrize(("text", "action"), [("", None), ("I cannot do that.", None), ("look", "look")])
def test_short_answers_are_asked_for_again_hotter(teach, text, action):
    with FakeEndpoint(lambda prompt: text) as server:
        teacher = teach(server)
        assert begin(teacher).act().action == action
        assert [body["temperature"] for body in server.requests] == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
        assert teacher.endpoint.account.counts["no_label"] == (action is None)


@pytest.mark.parametrize("fault", ["filtered", "refusal", "sentinel"])
def test_filtered_is_no_label(teach, fault):
    with FakeEndpoint(fault=lambda number: fault) as server:
        assert begin(teach(server)).act() == Label(None)
        assert len(server.requests) == 1


def test_grounding_is_off_by_default_and_counted(teach):
    near = {"admissible_commands": ["open fridge 1", "go to desk 1"]}
    with FakeEndpoint(lambda prompt: "open fridg 1") as server:
        assert begin(teach(server)).act(near).action == "open fridg 1"
        teacher = teach(server, grounding=True)
        assert begin(teacher).act(near).action == "open fridge 1"
        assert begin(teacher).act({}).action == "open fridg 1"
        assert teacher.endpoint.account.counts["grounded"] == 1


def test_with_a_list_to_choose_from_nothing_else_counts(teach):
    listed = {"admissible_commands": ["go to desk 1", "look", "open fridge 1"]}
    for text, action in (("open fridge 1", "open fridge 1"), ("open fridg 1", "open fridge 1"), ("open desk 1", None)):
        with FakeEndpoint(lambda prompt, text=text: text) as server:
            expert = begin(teach(server, admissible=True))
            assert expert.act(listed).action == action
            assert prompt_of(server.requests[0]).endswith(
                "put a cool mug in desk.\nAdmissible commands: go to desk 1 | look | open fridge 1\n> "
            )
            expert.observe("look", "You see nothing.")
            expert.act({"admissible_commands": ["help"]})
            prompt = prompt_of(server.requests[-1])
            assert prompt.endswith("> look\nYou see nothing.\nAdmissible commands: help\n> ") and "| look" not in prompt
            with pytest.raises(ConfigError, match=r"expert.decode=admissible: an observation came without"):
                begin(expert.teacher).act({})


def test_the_list_counts_towards_the_budget(teach):
    listed = {"admissible_commands": [f"go to cabinet {number}" for number in range(200)]}
    with FakeEndpoint() as server:
        teacher = teach(server, context_tokens=5000, admissible=True)
        expert = begin(teacher, memories=["a plan"])
        for number in range(50):
            expert.observe(f"go to cabinet {number}", f"You arrive at cabinet {number}. " + "It is closed. " * 12)
        expert.act(listed)
        assert teacher.budget - 120 <= teacher.endpoint.count(prompt_of(server.requests[0])) <= teacher.budget


def test_how_often_it_is_asked_can_be_set(teach):
    with FakeEndpoint(lambda prompt: "I cannot do that.") as server:
        assert begin(teach(server, tries=1)).act().action is None and len(server.requests) == 1


def test_the_budget_leaves_out_the_oldest_steps(teach):
    with FakeEndpoint() as server:
        teacher = teach(server, context_tokens=4000)
        expert = begin(teacher, memories=["a plan"])
        for number in range(50):
            expert.observe(f"go to cabinet {number}", f"You arrive at cabinet {number}. " + "It is closed. " * 12)
        expert.act()
        prompt = prompt_of(server.requests[0])
        assert teacher.budget - 120 <= teacher.endpoint.count(prompt) <= teacher.budget
        assert "put a cool mug in desk.\n...\n> go to cabinet" in prompt and "a plan" in prompt
        assert EXAMPLES["pick_cool_then_place_in_recep"][1] in prompt and "cabinet 49." in prompt
        assert len(server.requests) == 6 and "> go to cabinet 0\n" not in prompt


def test_what_cannot_fit_is_an_error(teach):
    with FakeEndpoint() as server:
        with pytest.raises(PromptTooLong, match="tokens over the prompt's budget"):
            begin(teach(server, context_tokens=700)).act()
        assert not server.requests


def test_prompt_assembly_takes_less_than_two_milliseconds(teach):
    with FakeEndpoint() as server:
        expert = begin(teach(server, context_tokens=4000), memories=["a plan"] * 3)
        for number in range(50):
            expert.observe(f"go to cabinet {number}", f"You arrive at cabinet {number}. " + "It is closed. " * 12)
        times = []
        for _ in range(20):
            start = time.thread_time()  # the processor's time, whatever else it does
            expert.prompt()
            times.append(time.thread_time() - start)
        assert min(times) < 0.002


def test_experts_of_many_episodes_are_asked_at_once(teach):
    together = threading.Barrier(16, timeout=60)  # nobody is answered before all have asked
    with FakeEndpoint(lambda prompt: (together.wait(), "go to desk 1")[1]) as server:
        teacher = teach(server)
        experts = [begin(teacher, memories=[str(number)]) for number in range(16)]
        labels = act_all([*experts, make_expert("client")], [None] * 16 + [{"expert_action": "look"}])
        assert labels == [Label("go to desk 1")] * 16 + [Label("look")]
        assert server.most_at_once == 16


def test_one_failure_does_not_lose_what_the_others_paid_for(teach):
    refused = (401, {}, b"{}")
    with FakeEndpoint(lambda prompt: "go to desk 1", lambda number: refused if number == 0 else None) as server:
        server.latency_s = 0.05
        teacher = teach(server)
        experts = [begin(teacher, memories=[str(number)]) for number in range(4)]
        with pytest.raises(EndpointFault, match="refuses the key"):
            act_all(experts, [None] * 4)
        act_all(experts, [None] * 4)
        assert len(server.requests) == 5


def test_a_thousand_calls_with_thirty_percent_faults(teach, tmp_path, monkeypatch):
    heard, pay = [], Endpoint._pay  # what arrived: a busy machine may miss an answer that was no slow one

    def note(endpoint, request):
        answer = pay(endpoint, request)
        heard.append(answer)
        return answer

    monkeypatch.setattr(Endpoint, "_pay", note)
    draw = random.Random(0)
    plan = [draw.choice(FAULTS) if draw.random() < 0.3 else None for _ in range(5000)]
    with FakeEndpoint(lambda prompt: "go to desk 1", lambda number: plan[number], slow_s=4.0) as server:
        cache = AnswerCache(tmp_path / "answers.sqlite")
        teacher = teach(server, cache=cache, timeout_s=1.5)
        experts = [begin(teacher, memories=[f"episode {number}"]) for number in range(1000)]
        labels = act_all(experts, [None] * 1000)
        kinds = Counter(label.action for label in labels)
        assert sum(kinds.values()) == 1000 and set(kinds) == {"go to desk 1", None}
        used = Counter(plan[: len(server.requests)])
        filtered, empty = sum(map(is_filtered, heard)), sum(not answer.filtered + answer.text for answer in heard)
        assert 0 < filtered <= used["filtered"] + used["refusal"] + used["sentinel"] and 0 < empty <= used["empty"]
        assert kinds[None] == filtered
        # Each request was answered once, whatever it took, and our book has every attempt that the server received.
        assert set(server.billed.values()) == {1} and len(server.billed) == len(cache) + empty
        assert teacher.endpoint.account.total.calls == len(server.requests)
        served = len(server.requests)
        assert len(server.billed) == 1000 + empty
        again = [begin(teacher, memories=[f"episode {number}"]) for number in range(1000)]
        changed = sum(now != before for now, before in zip(act_all(again, [None] * 1000), labels, strict=True))
        # From the file, but for what was empty: that is asked once more, and may get another answer now.
        asked = {json.dumps(body, sort_keys=True) for body in server.requests[served:]}
        assert 0 < len(asked) <= empty and changed <= empty
        assert len(server.billed) == 1000 + empty and teacher.endpoint.account.total.calls == len(server.requests)
