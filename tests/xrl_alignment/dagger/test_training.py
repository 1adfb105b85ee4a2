"""What a trainer keeps of a finished episode."""

from types import SimpleNamespace

import pytest

from lavis.datasets.shards import open_shard
from tests.xrl_alignment.runs.stored import transition
from xrl_alignment.agents.experts import make_expert
from xrl_alignment.dagger.episode import LabelledEpisode, UnfinishedTransitions
from xrl_alignment.dagger.training import NoTraining, Turns, store_shard, uncut
from xrl_alignment.runs.directory import RunDirectory
from xrl_alignment.wire.messages import Observation


@pytest.fixture
def episode(directory):
    """An episode that has visited no state."""
    return LabelledEpisode(
        game="pick/a",
        text="A room.\nYour task is to: look.",
        env=2,
        round=1,
        beta=0.0,
        expert=make_expert("client"),
        observation=Observation("A room."),
        transitions=UnfinishedTransitions(directory.buffer),
    )


def shards(directory: RunDirectory) -> list[str]:
    return [path.name for path in directory.buffer.glob("*.h5")]


def test_an_episode_is_one_shard_that_names_round_and_environment(directory, episode):
    episode.transitions.append(transition(3))
    episode.hear("You see nothing.", won=True)
    name = store_shard(directory, episode)
    assert [name] == shards(directory) == ["round001_env0002_steps001.h5"]
    shard = open_shard(directory.buffer / name)
    assert (shard.game, shard.steps) == ("pick/a", 1)
    assert shard.read(0, ("feedback",))["feedback"] == "You see nothing."


def test_an_episode_without_a_state_and_an_evaluations_leave_nothing(directory, episode):
    assert store_shard(directory, episode) == ""
    episode.transitions.append(transition(3))
    assert NoTraining().keep(episode) == "" and shards(directory) == []


def test_of_the_episodes_that_are_cut_only_the_learned_ones_count(tmp_path):
    """Numbers begin with 0: of three learned episodes the last one has number 2."""
    journal = tmp_path / "episodes.jsonl"
    journal.write_text("five lines\n")
    counts = [uncut({"episodes": 3}, journal, cut)[0] for cut in ([], [0, 2], [3, 4], [2, 3])]
    assert counts == [3, 1, 3, 2]


def test_a_turn_comes_with_every_third_stored_episode():
    turns, shards = Turns(3), [True, False, True, True, True]
    assert [turns.add(SimpleNamespace(shard="a.h5" * stored)) for stored in shards] == [False] * 3 + [True, False]
    assert (turns.since(0), turns.since(3), turns.since(4), turns.rest) == (1, 1, 0, True)


def test_what_no_shard_can_hold_is_logged_and_ends_no_run(directory, episode):
    episode.transitions.append(transition(3))
    episode.transitions.append(transition(4, side=9))
    assert store_shard(directory, episode) == "" and shards(directory) == []
    log = (directory.path / "running_nb01.log").read_text()
    assert "ERROR:dagger_server_running:Task: [2] nothing is learned from it: " in log and "one shape" in log
