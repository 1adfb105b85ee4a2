"""The beginning of a run: what a resume repeats, and what it leaves alone."""

import pytest

from xrl_alignment.dagger.recovery import recover
from xrl_alignment.runs.checkpoint import load_checkpoint


def begin(run) -> None:
    """Let `run` begin, and nothing more."""
    recover(run.rounds, run.training)
    run.server.stop()
    run.directory.close()


def test_a_resume_that_finds_everything_learned_leaves_the_saved_state_as_it_is(make_run, scripted):
    make_run(policy=scripted("look"), max_steps=2).play()
    again = make_run(policy=scripted("look"), max_steps=2, state_interval_s=0.0)  # it saves after every update
    before = again.directory.trainer.stat()
    begin(again)
    assert again.training.status()["training_step"] == again.training.episodes == 4
    assert again.directory.trainer.stat().st_mtime_ns == before.st_mtime_ns
    assert again.rounds.finished and again.rounds.episodes == 4


def test_the_progress_of_a_resume_says_what_comes_from_the_journal(make_run, scripted):
    """By that the bar does not take these episodes for a measure of the time left (`RoundProgress`)."""
    make_run(policy=scripted("look", die_at=5), max_steps=2).play()
    again, told = make_run(policy=scripted("look"), max_steps=2), []
    again.loop.on_progress = lambda status: told.append((status["episodes"], status.get("recovering", False)))
    again.play()
    assert told == [(1, True), (2, True), (3, False), (4, False), (4, False)]


def test_a_resume_repeats_the_updates_that_the_saved_state_lacks(make_run, scripted):
    killed = make_run(policy=scripted("look", die_at=5), max_steps=2, state_interval_s=1e9)
    assert killed.play() is None and len(killed.journal) == 2
    assert load_checkpoint(killed.directory.trainer)["episodes"] == 0  # the first state, saved at the beginning
    again = make_run(policy=scripted("look"), max_steps=2)
    begin(again)
    assert again.training.status()["training_step"] == 2 and "Resumed after 2 episodes, in round 1" in again.log
    assert load_checkpoint(again.directory.trainer)["episodes"] == 2


def test_a_resume_knows_games_environments_and_memories_of_the_run(make_run, scripted):
    run = make_run(policy=scripted("look"), max_steps=2)
    run.play(split="household_train")
    again = make_run(policy=scripted("look"), max_steps=2)
    begin(again)
    assert again.rounds.games == run.rounds.games
    assert again.rounds.environments == ["native household_train"]
    assert again.rounds.memories == run.rounds.memories != {}


@pytest.mark.parametrize("kills", [0, 1, 2])
def test_kills_before_the_journal_is_cut_do_not_count_a_lost_episode_again(make_run, scripted, games, kills):
    def new(**script):
        return make_run(policy=scripted("look", **script), games=games[:4], max_steps=3, state_interval_s=0.0)

    killed = new(die_at=11)
    killed.play()
    assert len(killed.journal) == load_checkpoint(killed.directory.trainer)["episodes"] == 3
    (killed.directory.buffer / killed.journal[0].shard).unlink()
    for _ in range(kills):
        again = new()

        def die(records):
            raise KeyboardInterrupt

        again.directory.rewrite_episodes = die
        with pytest.raises(KeyboardInterrupt):
            recover(again.rounds, again.training)
        again.server.stop()
        again.directory.close()
    again = new()
    begin(again)
    assert len(again.journal) == load_checkpoint(again.directory.trainer)["episodes"] == 2
    assert again.training.status()["training_step"] == 3  # nothing was learned twice
