"""A learner beside its run: the weights are a function of the journal, wherever it is killed."""

import json

import pytest
import torch

from xrl_alignment.dagger.decoupled.published import Version, read_published
from xrl_alignment.runs.checkpoint import load_checkpoint


def same(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def said(follower) -> list[dict]:
    return [json.loads(line) for line in follower.directory.learned.read_text().splitlines()]


@pytest.mark.parametrize("train_every", [1, 3])
def test_it_comes_to_the_weights_of_an_inline_run(make_run, scripted, finished_run, follow, train_every):
    run = finished_run
    if train_every > 1:
        run = make_run(policy=scripted("look", "inventory"), max_steps=3, train_every=train_every)
        run.play()
    follower = follow(run, train_every=train_every)
    follower.run()
    for round in range(2):
        ours, theirs = (load_checkpoint(d.checkpoint(round)) for d in (follower.directory, run.directory))
        assert same(ours["model"], theirs["model"]) and ours["episodes"] == theirs["episodes"] == 2 * round + 2
        assert ours["played"] == theirs["played"] and torch.equal(ours["random"]["torch"], theirs["random"]["torch"])
    end, inline = load_checkpoint(follower.directory.trainer), load_checkpoint(run.directory.trainer)
    assert (end["round"], end["episodes"], end["training_step"]) == (2, 4, inline["training_step"])
    assert same(end["model"], inline["model"])
    version, weights = read_published(follower.directory.published)
    assert version == Version(4, inline["training_step"]) and same(weights, end["model"])


@pytest.mark.parametrize("preferences", [False, True])
def test_a_hub_model_comes_to_the_weights_of_an_inline_run(make_run, scripted, students, follow, preferences):
    run = make_run(student=students("hub"), policy=scripted("look"), max_steps=3, preferences=preferences)
    run.play()
    follower = follow(run)
    follower.run()
    _, weights = read_published(follower.directory.published)
    assert same(weights, run.model.trainable_state_dict())
    assert same(load_checkpoint(follower.directory.trainer)["model"], weights)


@pytest.mark.parametrize(("interval_s", "after"), [(0.0, 3), (1e9, 3)])
def test_a_killed_learner_goes_on_to_the_same_weights(finished_run, follow, interval_s, after):
    run = finished_run
    killed = follow(run, interval_s=interval_s)
    killed.begin()
    while killed.training.episodes < after:
        assert killed.advance()
    again = follow(run, interval_s=interval_s)
    assert again.training.episodes == 0  # a new process
    again.run()
    assert same(load_checkpoint(again.directory.trainer)["model"], load_checkpoint(run.directory.trainer)["model"])
    assert load_checkpoint(again.directory.trainer)["training_step"] == 4


def test_it_tells_the_server_every_episode_and_every_figure(finished_run, follow):
    follower = follow(finished_run)
    follower.run()
    lines = said(follower)
    assert [line["episodes"] for line in lines if "episodes" in line] == [0, 1, 2, 3, 4]
    assert [line["step"] for line in lines if line.get("tag") == "train/loss"] == [0, 1, 2, 3]
    assert sum("Loss: [" in line.get("log", "") for line in lines) == 4


def test_a_round_ends_only_when_the_server_has_ended_it(finished_run, follow):
    follower = follow(finished_run)
    memories = follower.directory.state / "memories.json"
    ended = memories.read_text()
    memories.write_text(json.dumps({"round": 0, "memories": {}}))
    follower.begin()
    assert [follower.advance() for _ in range(3)] == [True, True, False]
    assert (follower.training.episodes, follower.training.round) == (2, 0)
    assert not follower.directory.checkpoint(0).exists()
    memories.write_text(ended)
    assert follower.advance() and follower.directory.checkpoint(0).exists()


def test_freed_memory_is_given_back_after_each_round(finished_run, follow, monkeypatch):
    follower, rounds = follow(finished_run), []
    give_back = "xrl_alignment.dagger.training.give_back_freed_memory"
    monkeypatch.setattr(give_back, lambda: rounds.append(follower.training.round))
    follower.run()
    assert rounds == [1, 2]


def test_an_episode_that_teaches_nothing_is_published_too(finished_run, follow):
    follower = follow(finished_run, train_every=10)
    (follower.directory.state / "memories.json").unlink()
    follower.begin()
    while follower.advance():
        pass
    assert read_published(follower.directory.published)[0] == Version(2, 0)


def test_weights_for_which_the_policy_waits_are_published_at_once(finished_run, follow, monkeypatch):
    monkeypatch.setattr("xrl_alignment.dagger.decoupled.follower.PUBLISH_S", 1e9)
    follower = follow(finished_run)
    follower.updates, follower.max_staleness = 5, 10  # of 4 episodes, the policy's weights must know 2
    follower.begin()
    published = []
    while follower.training.round < 2:
        follower.advance()
        published.append(read_published(follower.directory.published)[0].episodes)
    assert published == [0, 2, 2, 2, 2, 2]  # the third and the sixth turn end a round


def test_weights_that_the_server_found_damaged_are_published_again(finished_run, follow):
    follower = follow(finished_run)
    (follower.directory.state / "memories.json").unlink()
    follower.begin()
    while follower.advance():
        pass
    follower.directory.published.unlink()
    assert not follower.advance() and read_published(follower.directory.published)[0] == Version(2, 2)
