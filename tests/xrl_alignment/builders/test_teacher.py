"""A run with a language model as teacher: real server, client and engine, a local endpoint."""

import json
from functools import partial
from pathlib import Path

import pytest

from benchmarks._endpoint import FakeEndpoint
from lavis.common.errors import ConfigError
from xrl_alignment.agents.experts import make_expert
from xrl_alignment.agents.reflexion.base import update_memories
from xrl_alignment.agents.reflexion.llm import LLMReflector
from xrl_alignment.agents.reflexion.rule import RuleReflector
from xrl_alignment.builders.teacher import TeacherParts, answers_file, build_teacher, expert_options
from xrl_alignment.common.errors import BudgetSpent, EndpointFault
from xrl_alignment.dagger.training import NoTraining
from xrl_alignment.settings.loading import load_config
from xrl_alignment.settings.schema import EvaluateConfig, ExpertConfig, ReflexionConfig


def test_answers_are_kept_in_the_cache_folder_and_not_beside_the_checkout(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    assert answers_file(ExpertConfig().cache) == tmp_path / "cache" / "emac" / "expert_answers.sqlite"
    assert answers_file("") is None and answers_file("mine.sqlite") == Path("mine.sqlite")
    Path("output").mkdir()
    Path("output/expert_answers.sqlite").touch()  # an older version's: its answers are paid for
    assert answers_file("auto") == Path("output/expert_answers.sqlite")


def test_what_is_wrong_is_told_before_how_tokens_are_counted(caplog):
    with pytest.raises(EndpointFault, match="ftp://x"):
        build_teacher(ExpertConfig(name="openai", model="m", base_url="ftp://x", cache=""), ReflexionConfig())
    assert not caplog.records


def answer(prompt):
    if prompt.endswith("New plan:"):
        return "**New plan:** I will open every drawer.\n\nGood luck!"
    return "inventory" if prompt.endswith("nothing.\n> ") else "open drawer 1"


@pytest.fixture
def endpoint():
    with FakeEndpoint(answer) as server:
        yield server


def settings(server, tmp_path, **more):
    more = {"cache": str(tmp_path / "answers.sqlite"), **more}
    return ExpertConfig(name="openai", base_url=server.url, model="m", **more)


@pytest.fixture
def teach(endpoint, tmp_path):
    """`teach(run, …)`: the run's expert and reflector become the language model."""
    opened = []

    def teach(run, **more):
        teacher = build_teacher(settings(endpoint, tmp_path, price_prompt=1.0, **more), ReflexionConfig())
        opened.append(teacher)
        teacher.account.keep(run.directory.expert_calls)
        run.rounds.account = teacher.account
        run.rounds.reflect = partial(update_memories, reflector=teacher.reflector, skip_unreadable=True)
        run.loop.front.make_expert = lambda: make_expert("openai", **teacher.expert_options)
        return teacher

    yield teach
    for teacher in opened:
        teacher.close()


def labelling(run) -> NoTraining:
    """Learns nothing, and keeps nothing on disk, but wants labels."""
    training = NoTraining()
    training.keeps_transitions = True
    return training


@pytest.mark.parametrize(
    ("name", "reflexion", "reflector", "options"),
    [
        ("explorer", ReflexionConfig(), RuleReflector, []),
        ("explorer", ReflexionConfig(enabled=False, reflector="llm"), type(None), []),
        ("explorer", ReflexionConfig(reflector="llm"), LLMReflector, []),
        ("openai", ReflexionConfig(), LLMReflector, ["teacher"]),
        ("openai", ReflexionConfig(reflector="rule"), RuleReflector, ["teacher"]),
        ("openai", ReflexionConfig(enabled=False), type(None), ["teacher"]),
    ],
)
def test_who_labels_and_who_reflects(name, reflexion, reflector, options):
    expert = ExpertConfig(name=name, model="m", base_url="http://127.0.0.1:9/v1", cache="")
    teacher = build_teacher(expert, reflexion)
    assert type(teacher.reflector) is reflector and list(teacher.expert_options) == options
    teacher.close()


def test_a_run_with_labels_memories_and_costs(make_run, scripted, teach, endpoint):
    run = make_run(policy=scripted("look"), train=False, trainer=labelling, num_rounds=2, max_steps=2)
    teacher = teach(run)
    run.play()
    assert run.error is None
    assert run.log.count("LLM Action: open drawer 1") == 4  # two games, two rounds: the first of two steps each
    assert set(map(tuple, run.rounds.memories.values())) == {("I will open every drawer.",)}
    world = (run.directory.results / "world.log").read_text()
    first, second = world.split("\n-----\nROUND: ")[1:]
    assert "TIME: " in first.partition("-----\n\n")[0] and "EXPERT: calls" in first.partition("-----\n\n")[2]
    assert teacher.account.line(1) in second
    assert run.loop.status()["expert"]["total"] == teacher.account.figures()
    assert teacher.account.total.calls == len(endpoint.requests)
    curves = [json.loads(line) for line in (run.directory.state / "metrics.jsonl").read_text().splitlines()]
    costs = [point["value"] for point in curves if point["tag"] == "expert/cost_usd"]
    assert len(costs) == 2 and sum(costs) == pytest.approx(teacher.account.prices.cost(teacher.account.total), abs=1e-5)


def test_half_a_surrogate_pair_ends_no_run_and_no_resume(make_run, scripted, teach, endpoint):
    """In labels, thoughts and memories; and in the memories with which an older version paused."""
    endpoint.answer = lambda prompt: "I will \ud800 look." if "New plan:" in prompt else "open \ud800 drawer 1"
    run = make_run("one", policy=scripted("look"), train=False, trainer=labelling, num_rounds=3, max_steps=2)
    teach(run)
    played, end_round = [], run.directory.end_round

    def stop(round, **content):
        end_round(round, **content)
        played.append(round)
        if round == 1:
            raise EndpointFault("paused")

    run.directory.end_round = stop
    run.play()
    assert played == [0, 1] and set(map(tuple, run.rounds.memories.values())) == {("I will ? look.",)}
    path = run.directory.state / "memories.json"
    path.write_text(path.read_text().replace("I will ? look.", "I will \\ud800 look."))
    again = make_run("one", policy=scripted("look"), train=False, trainer=labelling, num_rounds=3, max_steps=2)
    teach(again)
    again.play()
    assert again.error is None and again.directory.done
    logs = [(again.directory.results / f"trial_{round}.log").read_text(encoding="utf-8") for round in range(3)]
    assert "I will ? look." in logs[1] and "I will ? look." in logs[2]


def test_a_spent_budget_pauses_and_a_resume_pays_only_for_what_is_new(make_run, scripted, teach, endpoint):
    whole = make_run("whole", policy=scripted("look"), train=False, trainer=labelling, num_rounds=2, max_steps=3)
    calls = teach(whole, cache="").account
    whole.play()
    asked = len(endpoint.requests)
    paused = make_run("paused", policy=scripted("look"), train=False, trainer=labelling, num_rounds=2, max_steps=3)
    teach(paused, max_calls=3)
    assert paused.play() is None
    assert isinstance(paused.error, BudgetSpent) and "--resume" in str(paused.error)
    assert "the expert's budget is spent: 3 calls" in paused.log
    again = make_run("paused", policy=scripted("look"), train=False, trainer=labelling, num_rounds=2, max_steps=3)
    account = teach(again, max_calls=100).account
    again.play()
    assert again.error is None and again.directory.done
    assert account.total == calls.total  # not one call more than without the pause
    assert len(endpoint.requests) == 2 * asked
    assert again.rounds.memories == whole.rounds.memories


def test_a_wrong_key_ends_the_run_at_once(make_run, scripted, teach, endpoint):
    endpoint.fault = lambda number: (401, {}, b"{}")
    run = make_run(policy=scripted("look"), train=False, trainer=labelling, max_steps=2)
    teach(run)
    run.play()
    assert isinstance(run.error, EndpointFault) and "refuses the key (401): check OPENAI_API_KEY" in str(run.error)
    assert len(endpoint.requests) <= 2 and not run.journal


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["expert.max_cost_usd=3"], "expert.max_cost_usd: 3.0 has no effect unless expert.price_prompt"),
        (["expert.api=socket"], "expert.api: 'socket' is not one of chat, completion"),
        (["expert.concurency=3"], "did you mean 'expert.concurrency'"),
        (["expert.timeout_s=0"], "expert.timeout_s: 0.0 is not a number of seconds above 0"),
        (["reflexion.reflector=me"], "reflexion.reflector: 'me' is not one of auto, rule, llm"),
    ],
)
def test_settings_that_cannot_be(options, message):
    with pytest.raises(ConfigError) as error:
        load_config(EvaluateConfig, None, options)
    assert message in str(error.value)


def test_no_key_no_model_no_prompts(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    for more, message in (
        ({"model": "m"}, "set the environment variable OPENAI_API_KEY"),
        ({"base_url": "http://127.0.0.1:9/v1"}, "set expert.model"),
        ({"model": "m", "base_url": "http://x", "prompts": str(tmp_path / "no.json")}, "no.json does not exist"),
    ):
        with pytest.raises((EndpointFault, FileNotFoundError), match=message):
            build_teacher(ExpertConfig(name="openai", cache="", **more), ReflexionConfig())


def test_the_explorers_thoughts_are_notes_where_they_are_asked_for_or_needed():
    parts = TeacherParts(None, {})
    assert expert_options("explorer", parts, tell_objects=True) == {}
    assert expert_options("explorer", parts, tell_objects=True, notes=True) == {"notes": True}
    assert expert_options("explorer", parts, tell_objects=False) == {"notes": True}
    assert expert_options("client", parts, tell_objects=True, notes=True) == {}, "only the explorer has them"
