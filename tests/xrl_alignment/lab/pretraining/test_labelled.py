"""Labelled games: who acts, and who labels."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace

import pytest

from alfworld_native.base import Game
from alfworld_native.drawing.frames import BLANK_FRAME
from alfworld_native.experts.explorer import Explorer
from alfworld_native.household.generator import make_game
from alfworld_native.household.levels import LEVELS
from xrl_alignment.lab.pretraining import labelled
from xrl_alignment.lab.pretraining.labelled import OFFICIAL, STUCK, Job, Pools, draw_jobs, mistake, played
from xrl_alignment.play.evaluation.actors import PolicyQuestion
from xrl_alignment.play.rollouts.play import without_questions


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A compound game, played by the explorer without a wrong step."""
    split = tmp_path_factory.mktemp("games") / "household_train"
    split.mkdir()
    game = make_game(split, 1, 3, LEVELS["compound"])
    records = (without_questions(played(Job(game, "compound", f"seed {n}", False))) for n in range(20))
    return next(r for r in records if r.won and not r.renamed and all(s.action == s.label for s in r.steps))


def test_a_record_has_the_explorers_notes(record):
    said = [step.action for step in record.steps]
    assert any(action.startswith("think: i see ") for action in said)
    lists = [action for action in said if action.startswith("think: task: ")]  # at the start, and after one is done
    assert len(lists) == 2 and lists[0] == said[0] and lists[0].count(";") == 1 and " done" not in lists[0]
    assert lists[1].count(" done") == 1
    assert sum(action.startswith("think: now: ") for action in said) >= 2
    assert all(step.feedback == "OK." for step in record.steps if step.action.startswith("think:"))


def test_a_pool_has_the_games_of_its_shares(tmp_path):
    official = [Game("pick_and_place_simple-Mug-None-Desk-301/trial_T1", tmp_path / "game.tw-pddl", "train")]
    mixture = {"standard": 0.5, "many": 0.5}
    pools = Pools(number=20, mixture=mixture, official=official, official_share=0.2, own_share=0.25)
    jobs = draw_jobs(tmp_path, pools, "seed")
    assert Counter(job.source for job in jobs) == {OFFICIAL: 4, "standard": 8, "many": 8}
    assert sum(job.own for job in jobs) == 5 and len({job.seed for job in jobs}) == 20
    assert all(job.game.path.is_file() for job in jobs if job.source != OFFICIAL)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_pool_may_say_how_many_games_have_invented_names(tmp_path, share):
    jobs = draw_jobs(tmp_path, Pools(number=6, mixture={"standard": 1.0}, renamed=share), "seed")
    assert [without_questions(played(job)).renamed for job in jobs] == [bool(share)] * 6


@pytest.mark.parametrize("order", ["", "likely", "listing"])
def test_a_pool_may_say_in_which_order_is_searched(tmp_path, monkeypatch, order):
    asked, explorer = [], labelled.Explorer
    monkeypatch.setattr(labelled, "Explorer", lambda **options: asked.append(options["order"]) or explorer(**options))
    for job in draw_jobs(tmp_path, Pools(number=2, mixture={"standard": 0.5, "many": 0.5}, order=order), "seed"):
        without_questions(played(job))
    assert sorted(asked) == ([order] * 2 if order else ["likely", "listing"])


def test_where_a_level_hides_what_is_wanted_some_training_games_do_not(tmp_path, monkeypatch):
    made, make = [], labelled.make_game
    monkeypatch.setattr(labelled, "make_game", lambda *asked: made.append(asked[3]) or make(*asked))
    draw_jobs(tmp_path, Pools(number=24, mixture={"hidden": 0.5, "standard": 0.5}), "seed")
    hidden = [level.hidden for level in made if level.max_steps == LEVELS["hidden"].max_steps]
    assert len(hidden) == 12 and set(hidden) == {True, False}
    assert not any(level.hidden for level in made if level.max_steps == LEVELS["standard"].max_steps)


def test_whoever_acts_the_explorer_labels(tmp_path):
    split = tmp_path / "household_train"
    split.mkdir()
    rollout = played(Job(make_game(split, 0, 1), "standard", "s", True))
    question = next(rollout)
    assert isinstance(question, PolicyQuestion) and "Your task is to" in question.opening
    said: str | None = "look"
    while True:  # a player that only looks is stuck after a few steps
        try:
            said = "look" if rollout.send(said) is not None else None
        except StopIteration as end:
            record = end.value
            break
    assert [step.action for step in record.steps] == ["look"] * STUCK and not record.won and record.own
    assert all(step.label.startswith(("go to", "open", "take")) for step in record.steps)


def test_in_some_of_its_own_games_the_student_is_not_told_what_lies_where_but_sees_it(tmp_path, monkeypatch):
    monkeypatch.setattr(labelled, "UNTOLD_OWN", 1.0)
    for name, value in (("RENAMED", 0.0), ("WITH_MEMORY", 0.0), ("NOISE", (0.0,))):
        monkeypatch.setattr(labelled, name, value)
    split = tmp_path / "household_train"
    split.mkdir()
    game = make_game(split, 0, 1)
    expert = without_questions(played(Job(game, "standard", "s", False)))
    rollout = played(Job(game, "standard", "s", True))
    asked, said = [next(rollout)], iter(expert.steps)
    with pytest.raises(StopIteration) as end:
        while True:  # between two questions a rollout may pause
            question = rollout.send(next(said).action if asked[-1] is not None else None)
            asked.append(question)
    record = end.value.value
    assert record.untold and record.won and not expert.untold
    assert any("you see a" in step.feedback for step in record.steps), "what it learns from is whole"
    questions = [question for question in asked if question is not None]
    assert len(questions) == len(record.steps)
    for question in questions:
        assert not any("you see a" in heard for _, heard in question.steps) and (question.image != BLANK_FRAME).any()
    question = next(played(Job(game, "standard", "s", True, may_be_untold=False)))
    assert question is not None and (question.image == BLANK_FRAME).all()  # of a student that reads no frames


def test_of_a_long_game_that_the_student_plays_the_explorer_may_play_the_first_steps(tmp_path):
    split = tmp_path / "household_train"
    split.mkdir()
    game = make_game(split, 0, 1, LEVELS["hardest"])
    before = set()
    for seed in range(6):
        rollout = played(Job(game, "hardest", f"s {seed}", True))
        question = next(rollout)
        while question is None:
            question = next(rollout)
        steps = question.steps if question else ()
        before.add(sum(not action.startswith("think:") for action, _ in steps))
    assert max(before) <= LEVELS["hardest"].max_steps - labelled.OWN_STEPS and len(before) > 2


@pytest.mark.parametrize(("source", "forgets"), [("compound", True), ("standard", False)])
def test_what_the_student_does_not_note_is_forgotten_in_long_games(tmp_path, monkeypatch, source, forgets):
    for name, value in (("RENAMED", 0.0), ("WITH_MEMORY", 0.0)):
        monkeypatch.setattr(labelled, name, value)
    advice, overlooked = list[str](), list[str]()

    class Overheard(Explorer):
        def act(self, information=None):
            label = super().act(information)
            advice.append(label.action)
            return label

        def overlook(self, action):
            super().overlook(action)
            overlooked.extend(self._overlooked)

    monkeypatch.setattr(labelled, "Explorer", Overheard)
    split = tmp_path / "household_train"
    split.mkdir()
    rollout = played(Job(make_game(split, 0, 1, LEVELS[source]), source, "s", True))
    question = next(rollout)
    with pytest.raises(StopIteration) as end:
        while True:  # a student that does what the explorer says, and writes no notes
            question = rollout.send(advice[-1] if question is not None else None)
    record = end.value.value
    assert record.won and any(step.label.startswith("think: i see ") for step in record.steps)
    assert not any(step.action.startswith("think:") for step in record.steps)
    assert bool(overlooked) == forgets


def test_mistakes_are_commands_and_differ_from_the_label_most_often():
    turn = SimpleNamespace(
        episode=SimpleNamespace(steps=[("look", "…")], text="You see a cd 1.\nYour task is to: put a mug in bed."),
        now=SimpleNamespace(admissible_commands=["go to desk 1", "look"]),
    )
    draws = Counter(mistake("take mug 7 from desk 1", turn, random.Random(seed)) for seed in range(200))
    assert draws["look"] > 60 and draws["go to desk 1"] > 30
    assert {f"take mug {n} from desk 1" for n in range(1, 5)} <= draws.keys()
    # What the task names is taken more often than other things, wanted still or not.
    turn.now.admissible_commands += ["take cd 1 from desk 1", "take mug 9 from desk 1"]
    draws = Counter(mistake("go to bed 1", turn, random.Random(seed)) for seed in range(200))
    assert draws["take mug 9 from desk 1"] > 70 and 0 < draws["take cd 1 from desk 1"] < 40
