"""The model's text keeps task and newest step within any budget that holds them; the ReAct text is the original's."""

import os
import time
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from lavis.common.paths import REPO_ROOT
from xrl_alignment.agents.language.history import EnvironmentHistory
from xrl_alignment.agents.language.prompt import GAP, build_prompt, opening, token_counter

BANNER = "-= Welcome to TextWorld, ALFRED! =-"
ROOM = "You are in the middle of a room. Looking quickly around you, you see a desk 1, and a drawer 1."
TASK = "Your task is to: put a pen in drawer."
INTRO = f"{BANNER}\n\n{ROOM}\n\n{TASK}"
STEPS = [("go to desk 1", "You arrive at desk 1. On the desk 1, you see a pen 1."), ("open desk 1", "Nothing happens.")]

line = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=30)
step = st.tuples(line, st.lists(line, min_size=1, max_size=3).map("\n".join))


def test_opening_is_room_and_task_and_stays_so():
    assert opening(INTRO) == f"{ROOM}\n{TASK}"
    assert opening(opening(INTRO)) == opening(INTRO)


def test_prompt_in_full():
    memories = ["one", "two", "three", "fo\nur"]
    assert build_prompt(INTRO, memories, STEPS) == (
        "Memory: two\nMemory: three\nMemory: fo ur\n"
        f"{ROOM}\n{TASK}\n"
        "> go to desk 1\nYou arrive at desk 1. On the desk 1, you see a pen 1.\n"
        "> open desk 1\nNothing happens.\n> "
    )


@pytest.mark.parametrize(
    ("told", "left"),
    [
        ("You arrive at desk 1. On the desk 1, you see a cd 2, and a pen 1.", "You arrive at desk 1."),
        ("You arrive at safe 1. The safe 1 is closed.", "You arrive at safe 1. The safe 1 is closed."),
        (
            "You open the safe 1. The safe 1 is open. In it, you see nothing.",
            "You open the safe 1. The safe 1 is open.",
        ),
        ("You are facing the desk 1. Next to it, you see nothing.", "You are facing the desk 1."),
        ("On the desk 1, you see a pen 1.", ""),
        ("You are in the middle of a room. Looking quickly around you, you see a desk 1.", None),
        ("You are carrying: a pen 1.", None),
    ],
)
def test_steps_without_what_lies_where(told, left):
    left = told if left is None else left
    prompt = build_prompt(INTRO, [], [("look", told)], tell_objects=False)
    assert prompt == build_prompt(INTRO, [], [("look", left)])


def test_first_prompt_of_an_episode():
    assert build_prompt(INTRO, [], []) == f"{ROOM}\n{TASK}\n> "


def test_an_empty_answer_of_the_model_stays_a_step():
    assert build_prompt("room", [], [("", "Nothing happens."), ("look", "")]) == (
        "room\n> \nNothing happens.\n> look\n> "
    )


def test_prompt_is_the_same_whether_the_caller_stripped_the_banner_or_not():
    """Online training has the engine's text, offline data the stored one, evaluation either."""
    assert build_prompt(INTRO, ["m"], STEPS) == build_prompt(opening(INTRO), ["m"], STEPS)


@given(
    st.lists(line, max_size=5),
    st.lists(step, max_size=20),
    st.integers(0, 1500),
    st.sampled_from([len, lambda text: len(text.split())]),
)
def test_shortened_prompt(memories, steps, budget, count):
    whole = build_prompt(INTRO, memories, steps)
    text = build_prompt(INTRO, memories, steps, budget=budget, count=count)
    newest = steps[-1:]
    least = opening(INTRO) + "\n" + (GAP if len(steps) > 1 else "") + build_prompt("", [], newest).lstrip("\n")
    assert text.endswith("> ") and opening(INTRO) in text
    assert text.endswith(build_prompt("", [], newest).lstrip("\n"))
    assert set(text.splitlines()) <= set(whole.splitlines()) | {"..."}, "a line was cut or invented"
    assert count(text) <= max(budget, count(least))
    if count(whole) <= budget:
        assert text == whole
    assert text.count(GAP) <= 1


def test_oldest_steps_lose_their_feedback_first_and_notes_stay():
    steps = [(f"go to shelf {i}", f"On the shelf {i}, you see a mug {i}.") for i in range(1, 30)]
    steps.insert(1, ("think: i see mug 1 in/on shelf 1", "OK."))
    whole = build_prompt(INTRO, [], steps)
    text = build_prompt(INTRO, [], steps, budget=len(whole) - 1)
    shorter = whole.replace("On the shelf 1, you see a mug 1.\n", "", 1).replace("OK.\n", "", 1)
    assert (
        text.endswith(shorter[shorter.index("> go to shelf 9") :]) and "> go to shelf 1\n> think: i see mug 1" in text
    )
    room = len(whole) - len(f"{ROOM}\n{TASK}\n> ")
    assert 0 <= len(whole) - len(text) - room // 8 < 40, "an eighth of the room, in whole lines"
    text = build_prompt(INTRO, [], steps, budget=900)
    assert GAP not in text and "> go to shelf 1\n> think: i see mug 1 in/on shelf 1\n> go to shelf 2\n" in text
    assert "you see a mug 3." not in text and text.endswith("> go to shelf 29\nOn the shelf 29, you see a mug 29.\n> ")
    assert 780 < len(text) <= 900


def test_then_the_oldest_steps_go_and_then_memories():
    steps = [(f"go to shelf {i}", f"On the shelf {i}, you see nothing.") for i in range(30)]
    text = build_prompt(INTRO, ["old plan", "new plan"], steps, budget=600)
    assert "Memory: old plan" in text and f"{TASK}\n...\n> go to shelf" in text and "shelf 0" not in text
    assert "> go to shelf 25\n> go to shelf 26\nOn the shelf 26, you see nothing.\n" in text, "four keep their feedback"
    tight = build_prompt(INTRO, ["old plan " * 12, "new plan"], steps, budget=430)
    assert "old plan" not in tight and "new plan" in tight and tight.count("> go") >= 4
    tightest = build_prompt(INTRO, ["old plan", "new plan"], steps, budget=1)
    assert tightest == f"{ROOM}\n{TASK}\n...\n> go to shelf 29\nOn the shelf 29, you see nothing.\n> "


def test_the_prompts_of_the_next_steps_begin_as_this_one_does():
    """A model keeps the keys and values of a prompt: what the next one repeats from its beginning need not be read."""
    steps = [(f"go to shelf {i}", f"On the shelf {i}, you see a mug {i}, and a cd {i}.") for i in range(200)]
    prompts = [build_prompt(INTRO, [], steps[:n], budget=3000) for n in range(1, 201)]
    read = sum(len(after) - len(os.path.commonprefix([before, after])) for before, after in pairwise(prompts))
    assert sum(len(prompt) for prompt in prompts) > 8 * read, "an eighth is read anew at each change, and then nothing"
    assert min(map(len, prompts[60:])) > 3000 * 7 // 8 - 80


def test_tokens_are_counted_once():
    encoded = []

    def encode(text):
        encoded.append(text)
        return text.split()

    count = token_counter(encode)
    steps = [(f"go to shelf {i}", f"On the shelf {i}, you see nothing.") for i in range(50)]
    build_prompt(INTRO, ["m"], steps[:49], budget=200, count=count)
    before = len(encoded)
    text = build_prompt(INTRO, ["m"], steps, budget=200, count=count)
    assert len(encoded) <= before + 2, "the newest step, and one that now loses its feedback"
    assert 160 < len(text.split()) <= 200


@pytest.mark.parametrize(("texts", "characters"), [(300, 30_000), (30_000, 300)])
def test_counted_texts_are_not_kept_for_ever(texts, characters):
    """An endpoint's account counts every prompt that is sent; a long run counts ever new steps."""
    count = token_counter(lambda text: text[:1])
    tracemalloc.start()
    try:
        for number in range(texts):
            assert count(f"{number} ".ljust(characters, "x")) == 1
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 8 << 20, f"{kept:,} bytes for {texts} texts of {characters} characters"


@pytest.mark.parametrize("budget", [256, 512, 700])
def test_a_budget_in_tokens_holds_for_the_tiny_models_tokenizer(budget):
    """The parts are counted one by one: the whole must not have more tokens than they have together."""
    tokenizer = Tokenizer.from_file(str(REPO_ROOT / "lavis" / "models" / "tiny" / "tokenizer.json"))
    count = token_counter(lambda text: tokenizer.encode(text, add_special_tokens=False).ids)
    steps = [(f"go to shelf {i}", f"You arrive at shelf {i}. On the shelf {i}, you see a mug 1.") for i in range(50)]
    text = build_prompt(INTRO, ["I searched shelf 1 and saw no pen."], steps, budget=budget, count=count)
    assert 0.8 * budget < len(tokenizer.encode(text, add_special_tokens=False).ids) <= budget


def test_fifty_steps_take_less_than_two_milliseconds():
    steps = [("go to countertop 1", "You arrive at countertop 1. On it, you see " + "a mug 1, " * 10)] * 50
    best = min(_seconds(lambda: build_prompt(INTRO, ["m" * 400] * 3, steps, budget=3000)) for _ in range(20))
    assert best < 2e-3


def _seconds(call):
    start = time.thread_time()  # the processor's time, whatever else it does
    call()
    return time.thread_time() - start


def test_react_text():
    history = EnvironmentHistory("Examples.", INTRO, ["a", "b", "c", "d"])
    history.add("action", "think: hm")
    history.add("observation", "OK.")
    history.add("human_edit", "try the desk")
    assert str(history) == (
        "Examples.\n\nYour memory for the task below:\nTrial 1:\nb\nTrial 2:\nc\nTrial 3:\nd\n"
        f"Here is the task:\n{INTRO}\n> think: hm\nOK.\n[human edit]: try the desk\n"
    )
    history.reset()
    assert str(history).endswith(f"Here is the task:\n{INTRO}\n")


def test_a_repeated_action_exhausts_the_episode():
    history = EnvironmentHistory("", ROOM)
    for action in ("look", "go to desk 1", "look"):
        history.add("action", action)
        history.add("observation", "Nothing happens.")
        assert not history.check_is_exhausted()
    for action in ("look", "go to desk 1"):
        history.add("action", action)
        assert history.check_is_exhausted()
    history.reset()
    history.add("action", "go to desk 1")
    assert not history.check_is_exhausted()


def test_given_history_counts_too():
    actions = [{"label": "action", "value": "look"}] * 2
    assert EnvironmentHistory("", ROOM, [], actions).check_is_exhausted()


def test_an_unknown_label_is_named():
    with pytest.raises(ValueError, match="'deed'.*action, observation, human_edit"):
        EnvironmentHistory("", ROOM).add("deed", "look")
