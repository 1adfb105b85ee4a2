from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.games.alfworld import FALLBACK, episode_text, model_prompt, parse
from policy_server.games.prompts import PromptError
from xrl_alignment.agents.language import answers
from xrl_alignment.agents.language.answers import MAX_COMPARED, MAX_NEAR
from xrl_alignment.agents.language.prompt import build_prompt
from xrl_alignment.agents.language.react import react_prompt

POSSIBLE = ("go to cabinet 1", "move mug 1 to cabinet 1", "look")


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("go to cabinet 1", "go to cabinet 1"),
        ("> Go to the cabinet 1.", "go to cabinet 1"),
        ("I should look there.\nAction: go to cabinet 1", "go to cabinet 1"),
        ("put mug 1 on cabinet 1", "move mug 1 to cabinet 1"),  # the game's own dialect comes back
        ("go to cabinte 1", "go to cabinet 1"),
        ("1. go to cabinet 1", "go to cabinet 1"),
        ("<think>I could look.</think>\ngo to cabinet 1", "go to cabinet 1"),
        ("<think>\nAction: move mug 1 to cabinet 1\n</think>\ngo to cabinet 1", "go to cabinet 1"),
        ("The next action is: go to cabinet 1", "go to cabinet 1"),
        ("I see a room.\nNext command: go to cabinet 1", "go to cabinet 1"),
        ("I will go there.\n\ngo to cabinet 1", "go to cabinet 1"),
        ("Command:\ngo to cabinet 1", "go to cabinet 1"),
        ("**Action:** go to cabinet 1, then open it", "go to cabinet 1"),
        ("Action: look\nNo, the mug is here.\nAction: move mug 1 to cabinet 1", "move mug 1 to cabinet 1"),
    ],
)
def test_the_command_that_was_meant(text, command):
    assert parse(text, POSSIBLE).action == {"command": command}


def test_what_is_not_possible_becomes_look_with_the_reason():
    reading = parse("heat apple 1 with microwave 1", POSSIBLE)
    assert reading.action == {"command": FALLBACK}
    assert "is not possible now: look" in reading.reasoning


def test_look_is_possible_even_if_it_is_not_listed():
    reading = parse("look", POSSIBLE)
    assert reading.action == {"command": FALLBACK} and "not possible" not in reading.reasoning


def test_commands_with_capitals():
    assert parse("go to cabinet 2", ["Go To Cabinet 2"]).action == {"command": "Go To Cabinet 2"}


@pytest.mark.parametrize("text", ["go to cabinet 9", "move mug 2 to cabinet 1", "take mug 1 from cabinet 1"])
def test_another_object_is_no_misspelling(text):
    assert parse(text, POSSIBLE).action == {"command": FALLBACK}


def test_the_nearest_is_looked_for_among_few_and_short_commands(monkeypatch):
    """Each comparison takes quadratic time in the length, and a request may name 1,000 commands of 200 characters."""
    compared = []

    class Counted(difflib.SequenceMatcher):
        def set_seq2(self, text):
            compared.append(text)
            super().set_seq2(text)

    monkeypatch.setattr(answers, "SequenceMatcher", Counted)
    commands = [f"go to {'x' * (number % 190)}{number}" for number in range(1000)]
    assert parse("go to " + "x" * 90, commands).action["command"] in (*commands, FALLBACK)
    texts = [text for text in compared if text]  # an empty one is the matcher's own beginning
    assert 0 < len(texts) <= MAX_COMPARED and max(map(len, texts)) <= MAX_NEAR
    assert parse("go to " + "x" * 200, commands).action["command"] == FALLBACK


def test_without_commands_the_text_is_only_cleaned():
    assert parse("> Put the mug 1 in cabinet 1", ()).action == {"command": "put mug 1 in/on cabinet 1"}


@given(st.text(max_size=200), st.booleans())
def test_any_text_gives_a_command(text, limited):
    command = parse(text, POSSIBLE if limited else ()).action["command"]
    assert command and (not limited or command in POSSIBLE)


def test_a_question_needs_the_episode():
    with pytest.raises(ValueError, match="needs the episode's text in `prompt`"):
        model_prompt("ALFWorld", " ", (), ())


def test_the_prompt_is_handed_on_unchanged():
    asked = model_prompt("ALFWorld", "a room\n> ", ("look",), ("old step",))
    assert asked.text == "a room\n> "
    assert "possible now: look." in asked.instructions and asked.commands == ("look",)


OPENING = "You see a cabinet 1.\nYour task is to: put a mug in cabinet."


def test_a_conversation_becomes_the_text_of_an_episode():
    turns = [
        ("system", "Answer with a command."),
        ("user", f"-= Welcome =-\n\n{OPENING}\n"),
        ("assistant", "think: hm"),
    ]
    turns += [
        ("user", "OK."),
        ("assistant", "Action: open the cabinet 1."),
        ("user", "You open it."),
        ("user", "Go on."),
    ]
    expected = f"{OPENING}\n> think: hm\nOK.\n> open cabinet 1\nYou open it. Go on.\n> "
    assert episode_text(turns, build_prompt).replace("it.\nGo", "it. Go") == expected


def test_an_experts_prompt_becomes_the_text_without_its_examples():
    steps = [("go to cabinet 1", "It is closed."), ("open cabinet 1", "You open it.\nYou see a mug 1.")]
    memories = ["Look into the cabinet.", "Take the mug\nwith you."]
    examples = ["You see a desk 1.\nHere is the task:\nlook\n> look\nA desk."] * 3
    asked = react_prompt(examples, memories, OPENING, steps)
    assert "Interact with a household" in asked
    assert episode_text([("system", "One line."), ("user", asked)], build_prompt) == build_prompt(
        OPENING, memories, steps
    )
    alone = react_prompt(examples, (), OPENING, ())
    assert episode_text([("user", alone)], build_prompt) == f"{OPENING}\n> "


def test_a_students_own_text_stays_as_it_is():
    text = build_prompt(OPENING, ["Remember."], [("look", "...")])
    assert episode_text([("system", "One line."), ("user", text)], build_prompt) is text
    for turns in ([], [("system", "x")], [("assistant", "look"), ("user", "x")]):
        with pytest.raises(PromptError, match="begins with a message of the user"):
            episode_text(turns, build_prompt)
