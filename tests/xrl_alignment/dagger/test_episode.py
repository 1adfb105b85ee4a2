"""One game being played."""

import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lavis.common.errors import FileError
from lavis.common.files import remove_temporaries
from tests.xrl_alignment.runs.stored import transition
from xrl_alignment.agents.experts import Label, make_expert
from xrl_alignment.agents.language.plain import plain
from xrl_alignment.dagger.episode import LabelledEpisode, UnfinishedTransitions, may_be_the_datas
from xrl_alignment.runs.transitions import Transition, write_shard
from xrl_alignment.wire.messages import Observation


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where the episodes' transitions are."""
    monkeypatch.chdir(tmp_path)


def episode(repeat_limit: int = 0, game: str = "pick/a", beta: float = 0.0, **information) -> LabelledEpisode:
    expert = make_expert("client")
    expert.begin("")
    return LabelledEpisode(
        game=game,
        text="A room.\nYour task is to: look.",
        repeat_limit=repeat_limit,
        env=0,
        round=1,
        beta=beta,
        expert=expert,
        observation=Observation("A room.", information=information),
        transitions=UnfinishedTransitions(Path()),
    )


def decide(e: LabelledEpisode, action: str) -> None:
    e.transitions.append(Transition(np.zeros((1, 1, 3), np.uint8), "p", action, "", action, ""))


def step(e: LabelledEpisode, action: str, feedback: str = "Nothing happens.", **fields) -> None:
    decide(e, action)
    e.act(action)
    e.receive(Observation(feedback, **fields))


def test_an_answer_joins_the_action_it_answers():
    e = episode()
    step(e, "look", "You see\na desk.")
    assert e.steps == [("look", "You see\na desk.")] and e.transitions[0].executed == "look"
    assert e.actions == 1 and e.newest_text == "You see\na desk."


def test_a_thought_is_a_step_of_its_own_with_a_transition_of_its_own():
    e = episode()
    decide(e, "think: hm")
    e.think("think: hm")
    assert e.steps == [("think: hm", "OK.")] and len(e.transitions) == 1 and e.actions == 0


@pytest.mark.parametrize(
    ("information", "done", "won"),
    [({}, True, True), ({}, False, False), ({"won": False}, True, False), ({"won": [True]}, False, True)],
)
def test_without_a_verdict_done_means_won(information, done, won):
    e = episode()
    step(e, "look", information=information, done=done)
    assert e.won is won and e.over(50) is (won or done)


def test_the_label_is_a_new_thought_then_the_action_in_canonical_words():
    e = episode(expert_action="Move the Mug 1 to desk 1.", expert_thought="I have it.")
    advice = e.expert.act(e.observation.information)
    assert e.label(advice, thoughts=False) == "put mug 1 in/on desk 1"
    assert e.label(advice, thoughts=True) == "think: i have it"
    decide(e, "think: i have it")
    e.think("think: i have it")
    assert e.label(advice, thoughts=True) == "put mug 1 in/on desk 1"
    assert episode().label(Label(None), thoughts=True) is None


def test_who_drives_depends_on_seed_round_game_and_step_alone():
    def drives(seed=1, game="pick/a", steps=0, beta=0.5, round=1) -> list[bool]:
        e, found = episode(game=game, beta=beta), []
        e.round = round
        for _ in range(steps + 40):
            found.append(e.expert_drives(seed))
            step(e, "look")
        return found[steps:]

    assert drives() == drives()
    others = [drives(seed=2), drives(game="pick/b"), drives(steps=1), drives(round=2)]
    assert len(set(map(tuple, [drives(), *others]))) == 5
    assert all(drives(beta=1.0)) and not any(drives(beta=0.0))


def test_text_that_no_file_can_hold_becomes_plain():
    assert plain("a\0b\ud800c ü\n") == "a b?c ü\n"


def same(one: Transition, other: Transition) -> bool:
    return (one.image == other.image).all() and replace(one, image=None) == replace(other, image=None)


def test_an_unfinished_episode_is_in_a_file_and_its_shard_is_the_same(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (32, 24, 3), np.uint8)
    given = [replace(transition(n), image=noise if n == 1 else np.zeros_like(noise)) for n in range(4)]
    given[3] = replace(given[3], text_input="half \ud800", feedback="")
    kept = UnfinishedTransitions(tmp_path)
    unheard = [replace(one, feedback="") for one in given]
    for one in given:
        kept.append(one)
    assert len(kept) == 4 and all(map(same, kept, unheard)) and same(kept[-1], unheard[-1])
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [kept.size] != [0]
    with pytest.raises(IndexError):
        kept[4]
    kept.remove()
    kept, given[2] = UnfinishedTransitions(tmp_path), replace(given[2], feedback="")
    for one in given[:3]:
        kept.append(one)
    # The last transition has no answer: a v1 client has begun another game.
    write_shard(tmp_path / "a.h5", kept, {"game": "g"}, steps=[(one.executed, one.feedback) for one in given[:2]])
    write_shard(tmp_path / "b.h5", given[:3], {"game": "g"})
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()
    del kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.h5", "b.h5"]


def test_a_full_disk_is_one_line_that_names_the_file(tmp_path):
    kept = UnfinishedTransitions(tmp_path)
    kept.append(transition(0))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (kept.size + 10, before[1]))  # as on a full disk, nothing more is taken
    try:
        with pytest.raises(
            FileError, match=f"{tmp_path}/.unfinished-.* could not be written: File too large"
        ) as caught:
            kept.append(transition(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not may_be_the_datas(caught.value)  # the run ends, not only the episode
    kept.append(transition(2))
    assert [each.executed for each in kept] == [transition(number).executed for number in (0, 2)]


def test_what_a_killed_process_left_of_an_episode_goes(tmp_path):
    kept = UnfinishedTransitions(tmp_path)
    kept.append(transition(1))
    remove_temporaries(tmp_path)
    assert not list(tmp_path.iterdir())
