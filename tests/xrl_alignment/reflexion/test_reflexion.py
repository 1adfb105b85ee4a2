"""The rule-based reflector names what the trace shows; memories are never lost or doubled."""

from contextlib import ExitStack

import pytest

from benchmarks._endpoint import FakeEndpoint
from generate_reflections import update_memory
from xrl_alignment.experts.llm.endpoint import Endpoint
from xrl_alignment.experts.llm.teacher import Teacher
from xrl_alignment.language.history import EpisodeTrace
from xrl_alignment.language.react import react_text
from xrl_alignment.reflexion.reflexion import (
    RULE_MARK,
    LLMReflector,
    RuleReflector,
    parse_trial_log,
    update_memories,
)

ROOM = (
    "You are in the middle of a room. Looking quickly around you, you see a cabinet 2, a cabinet 1, a countertop 1, "
    "a fridge 1, a garbagecan 1, a microwave 1, a sinkbasin 1, and a drawer 1."
)
COUNTER = ("go to countertop 1", "You arrive at countertop 1. On the countertop 1, you see a tomato 1, and a mug 2.")
EMPTY = ("go to garbagecan 1", "You arrive at garbagecan 1. On the garbagecan 1, you see nothing.")
SHUT = ("go to cabinet 1", "You arrive at cabinet 1. The cabinet 1 is closed.")
OPENED = ("open cabinet 1", "You open the cabinet 1. The cabinet 1 is open. In it, you see a mug 1.")
TAKE = ("take tomato 1 from countertop 1", "You pick up the tomato 1 from the countertop 1.")
FAILED = ("open countertop 1", "Nothing happens.")
LOOK = ("look", "You are in the middle of a room. Looking quickly around you, you see nothing.")
HEAT = "pick_heat_then_place_in_recep"


def trace(task, *steps, task_type=HEAT, game="g", won=False):
    return EpisodeTrace(game, task_type, f"{ROOM}\n\nYour task is to: {task}.", tuple(steps), won)


def reflect(task, *steps, **more):
    return RuleReflector().reflect(trace(task, *steps, **more), ())


def test_target_never_seen():
    text = reflect("put a hot tomato in garbagecan", EMPTY, SHUT, OPENED)
    assert text == (
        "(by rule) I searched garbagecan 1, cabinet 1 and saw no tomato. Next time I will look for a tomato in places "
        "that I never saw inside: cabinet 2, countertop 1, fridge 1, microwave 1 and 2 more."
    )


def test_nothing_searched():
    assert "I searched nothing and saw no tomato" in reflect("put a hot tomato in garbagecan", FAILED)


def test_target_seen_but_not_taken_and_a_command_that_failed():
    text = reflect("put a hot tomato in garbagecan", COUNTER, FAILED, FAILED, FAILED)
    assert text == (
        "(by rule) I saw tomato 1 at countertop 1 but did not take it. 'open countertop 1' failed 3 times, I will not "
        "repeat it. Next time I will go to countertop 1, take tomato 1 from countertop 1, go to microwave 1, heat "
        "tomato 1 with microwave 1, go to garbagecan 1, put tomato 1 in/on garbagecan 1."
    )


def test_taken_but_not_treated_then_treated_but_not_placed():
    heat = ("heat tomato 1 with microwave 1", "You heat the tomato 1 using the microwave 1.")
    assert "I took tomato 1 but did not heat it." in reflect("heat some tomato and put it in garbagecan", COUNTER, TAKE)
    text = reflect("heat some tomato and put it in garbagecan", COUNTER, TAKE, heat)
    assert "I did not put tomato 1 in/on a garbagecan." in text


def test_closed_places_are_opened_in_the_plan():
    task = "put two mug in cabinet"
    text = reflect(task, SHUT, OPENED, COUNTER, task_type="pick_two_obj_and_place")
    assert "go to countertop 1, take mug 2 from countertop 1, go to cabinet 1, open cabinet 1" in text
    assert "do the same with mug 1 from cabinet 1" in text


def test_no_step_of_the_plan_is_made_twice():
    inside = ("open fridge 1", "You open the fridge 1. The fridge 1 is open. In it, you see a tomato 1.")
    shut = ("go to fridge 1", "You arrive at fridge 1. The fridge 1 is closed.")
    text = reflect("put a cool tomato in fridge", shut, inside, task_type="pick_cool_then_place_in_recep")
    assert text.endswith(
        "I will go to fridge 1, open fridge 1, take tomato 1 from fridge 1, cool tomato 1 with fridge 1, "
        "put tomato 1 in/on fridge 1."
    )


def test_only_one_of_two_found():
    steps = (COUNTER, TAKE, ("move tomato 1 to garbagecan 1", "You move the tomato 1 to the garbagecan 1."))
    text = reflect("find two tomato and put them in garbagecan", *steps, task_type="pick_two_obj_and_place")
    assert "I found only one tomato." in text and "look for another tomato in places" in text


def test_lamp():
    lamp = ("go to drawer 1", "You arrive at drawer 1. On the drawer 1, you see a desklamp 1.")
    text = reflect("look at tomato under the desklamp", lamp, COUNTER, TAKE, task_type="look_at_obj_in_light")
    assert "did not use a desklamp while holding it" in text and text.endswith("go to drawer 1, use desklamp 1.")
    unseen = reflect("look at tomato under the desklamp", COUNTER, TAKE, task_type="look_at_obj_in_light")
    assert "look for a desklamp in places" in unseen


def test_a_sentence_that_no_rule_reads_still_gives_advice():
    text = reflect("make me happy", COUNTER)
    assert text.startswith("(by rule) I searched countertop 1. Next time I will look for what the task names in places")


@pytest.mark.parametrize("task", ["put a hot tomato in garbagecan", "put two mug in cabinet", "make me happy"])
def test_one_short_paragraph_that_says_it_is_rule_based(task):
    text = reflect(task, EMPTY, SHUT, OPENED, COUNTER, *[FAILED] * 30)
    assert text.startswith(RULE_MARK) and "\n" not in text and len(text.split()) <= 80


@pytest.fixture
def model():
    """`model(answer, …)`: an LLM reflector over a local endpoint, and that endpoint."""
    with ExitStack() as cleanup:

        def model(answer, fault=None, **options):
            server = cleanup.enter_context(FakeEndpoint(answer, lambda number: fault))
            endpoint = Endpoint(model="m", base_url=server.url, environ={}, sleep=lambda seconds: None)
            cleanup.callback(endpoint.close)
            return LLMReflector(
                Teacher(endpoint=endpoint, examples={}, **options), "EXAMPLE ONE\n\nEXAMPLE TWO"
            ), server

        yield model


def test_a_models_plan_is_one_clean_paragraph(model):
    reflector, server = model(lambda prompt: "<think>hm</think>\n\n**New plan:** I will go\nto fridge 1.\n\nGood luck!")
    failed = trace("put a hot tomato in garbagecan", COUNTER, FAILED)
    assert reflector.reflect(failed, ["one", "two", "three", "four"]) == "I will go to fridge 1."
    prompt = server.requests[0]["messages"][-1]["content"]
    assert (
        prompt.index("EXAMPLE TWO") < prompt.index(ROOM) < prompt.index("> open countertop 1\nNothing happens.\nSTATUS")
    )
    assert prompt.endswith("Plans from past attempts:\nTrial #1: two\nTrial #2: three\nTrial #3: four\n\nNew plan:")


def test_a_long_plan_ends_with_a_sentence(model):
    reflector, _ = model(lambda prompt: "I will open drawer 1. " * 60)
    words = reflector.reflect(trace("x", COUNTER), ()).split()
    assert 140 < len(words) <= 150 and words[-1] == "1."


@pytest.mark.parametrize(("answer", "fault"), [("", None), ("x", "filtered"), ("<think>on and on", None)])
def test_where_the_model_says_nothing_the_rules_do(model, answer, fault):
    reflector, _ = model(lambda prompt: answer, fault)
    assert reflector.reflect(trace("put a hot tomato in garbagecan", COUNTER), ()).startswith(RULE_MARK)
    assert reflector.teacher.endpoint.account.counts["reflections_by_rule"] == 1


def test_a_long_trial_loses_its_oldest_steps(model):
    reflector, server = model(lambda prompt: "I will look.", context_tokens=1500)
    reflector.reflect(trace("x", EMPTY, *[COUNTER] * 60), ())
    prompt = server.requests[0]["messages"][-1]["content"]
    assert "Your task is to: x.\n...\n> go to countertop 1" in prompt and EMPTY[0] not in prompt


def test_all_failed_trials_are_asked_about_at_once(model):
    reflector, server = model(lambda prompt: "I will look.")
    server.latency_s = 0.2
    traces = [trace(f"task {number}", game=f"game {number}") for number in range(8)]
    memories = update_memories(traces, {"game 3": ["old"]}, reflector)
    assert server.most_at_once > 4 and len(memories) == 8 and memories["game 3"] == ["old", "I will look."]


class Numbering:
    """A reflector whose texts tell how many memories it saw."""

    def reflect(self, trace, memories):
        return f"{trace.game_id} after {len(memories)}"


def test_memories_grow_by_one_for_each_failed_game_only():
    before = {"lost": ["old"], "won": ["kept"], "absent": ["also kept"]}
    traces = [trace("x", game="lost"), trace("x", game="won", won=True), trace("x", game="new")]
    after = update_memories(traces, before, Numbering())
    assert after == {
        "lost": ["old", "lost after 1"],
        "won": ["kept"],
        "absent": ["also kept"],
        "new": ["new after 0"],
    }
    assert before == {"lost": ["old"], "won": ["kept"], "absent": ["also kept"]}


def test_updating_twice_changes_nothing():
    traces = [
        trace("put a hot tomato in garbagecan", COUNTER),
        trace("put a hot tomato in garbagecan", EMPTY, game="h"),
    ]
    once = update_memories(traces, {}, RuleReflector())
    assert update_memories(traces, once, RuleReflector()) == once == update_memories(traces * 2, {}, RuleReflector())


def test_a_game_that_won_in_the_round_needs_no_memory():
    traces = [trace("x"), trace("x", won=True), trace("x")]
    assert update_memories(traces, {}, Numbering()) == {}


def test_update_memory_reads_the_trial_log(tmp_path):
    failed = trace("put a hot tomato in garbagecan", COUNTER, FAILED, ("", "Nothing happens."), LOOK)
    history = "Memory: You are in the middle of nowhere.\n" + react_text(failed.opening, failed.steps)
    log = "".join(
        f"\n#####\n\nEnvironment #{i}:\n{history}\n> \n\nSTATUS: {status}\n\n#####\n"
        for i, status in enumerate(("FAIL", "OK", "FAIL"))
    )
    path = tmp_path / "trial_0.log"
    path.write_text(log)
    parsed = parse_trial_log(log)
    assert [parsed[i].won for i in range(3)] == [False, True, False]
    assert parsed[0].steps == failed.steps
    configs = {f"env_{i}": {"memory": [], "is_success": i == 1, "type": HEAT, "path_length": 0} for i in range(4)}
    update_memory(path, configs)
    assert [len(configs[f"env_{i}"]["memory"]) for i in range(4)] == [1, 0, 1, 0]
    assert configs["env_0"]["memory"] == [reflect("put a hot tomato in garbagecan", COUNTER, FAILED)]
    with pytest.raises(FileNotFoundError, match="trial_9.log"):
        update_memory(tmp_path / "trial_9.log", configs)
