"""The server's side: what it counts, when it swaps weights in, when it waits."""

import json
import threading
import time

import pytest
import torch

from lavis.common.errors import FileError
from lavis.datasets.shards import open_shard
from xrl_alignment.builders.student import load_student
from xrl_alignment.dagger.decoupled.directory import LearnerDirectory
from xrl_alignment.dagger.decoupled.process import LearnerProcess
from xrl_alignment.dagger.decoupled.published import PublishedError, Version, publish
from xrl_alignment.dagger.decoupled.trainer import DecoupledTraining
from xrl_alignment.dagger.training import Turns
from xrl_alignment.runs.checkpoint import load_checkpoint, save_checkpoint
from xrl_alignment.runs.directory import EpisodeRecord, RunDirectory


def episode(shard: str = "round000_env0000_steps001.h5") -> EpisodeRecord:
    return EpisodeRecord(0, 0, "g/1", False, False, 1, "", [], shard, 1.0)


@pytest.fixture
def side(tmp_path):
    """`side(...)`: the server's side of a run whose learner is played by the test."""
    opened = []

    def make(**options) -> DecoupledTraining:
        directory = RunDirectory(tmp_path / "run")
        process = LearnerProcess(directory.path)
        opened.extend((directory.close, process.stop))
        model, _ = load_student({}, torch.device("cpu"))
        said: list[str] = []
        training = DecoupledTraining(model, directory, process, say=said.append, **({"updates": 5} | options))
        training.said = said
        return training

    yield make
    for close in opened:
        close()


def publish_zeros(training: DecoupledTraining, episodes: int, step: int) -> None:
    zeros = {name: torch.zeros_like(value) for name, value in training.model.trainable_state_dict().items()}
    publish(training.directory.published, zeros, Version(episodes, step))


def log(training: DecoupledTraining) -> str:
    return (training.directory.path / "running_nb01.log").read_text()


def test_with_no_staleness_allowed_a_run_equals_an_inline_one(make_run, decoupled):
    runs = [make_run("inline", max_steps=3), make_run("decoupled", max_steps=3, trainer=decoupled(0))]
    for run in runs:
        run.play()
        assert run.error is None and run.directory.done
    inline, beside = ([(r.game, r.steps, r.shard) for r in run.journal] for run in runs)
    assert inline == beside and len(beside) == 4
    ends = [load_checkpoint(run.directory.checkpoint(1)) for run in runs]
    assert all(torch.equal(ends[0]["model"][name], value) for name, value in ends[1]["model"].items())
    assert ends[0]["training_step"] == ends[1]["training_step"] == 4 and runs[1].log.count("Loss: [") == 4
    shard = open_shard(runs[1].directory.buffer / runs[1].journal[3].shard)
    assert [int(shard.read(step, ("staleness",))["staleness"]) for step in range(shard.steps)] == [0, 0, 0]
    assert "STALENESS: 0.0 updates on average, at most 0" in (runs[1].directory.results / "world.log").read_text()
    assert runs[1].loop.status()["learner"]["episodes"] == 4


def test_staleness_is_stored_with_every_transition(make_run, decoupled, scripted):
    run = make_run(policy=scripted("look"), max_steps=2, trainer=decoupled(1000))
    run.training.process.start = lambda: None  # the learner comes late: nothing is learned before the second round
    begin = run.rounds.begin_next

    def after_a_round() -> None:
        begin()
        if run.loop.rounds.round == 1:
            type(run.training.process).start(run.training.process)

    run.rounds.begin_next = after_a_round
    run.play()
    assert run.error is None and run.directory.done
    stored = [open_shard(run.directory.buffer / record.shard) for record in run.journal]
    first, second = ([int(s.read(i, ("staleness",))["staleness"]) for i in range(2)] for s in stored[:2])
    assert first == [0, 0] and second == [1, 1]
    world = (run.directory.results / "world.log").read_text()
    assert "STALENESS: 0.5 updates on average, at most 1 (run.max_staleness=1000)" in world
    assert load_checkpoint(run.directory.trainer)["episodes"] == 4


def test_staleness_counts_the_updates_of_every_turn(side):
    training = side(train_every=2)
    for shard in ("a", "a", "a", "", "a", "a"):  # a turn that brings no transition is none
        training.learn(episode(shard))
    assert training.staleness == 2 * 5
    training.version = Version(2, 40)
    assert training.staleness == 5
    training.version = Version(6, 80)
    assert training.staleness == 0


def test_a_lost_episode_takes_no_turn_from_the_stored_ones(side):
    """With a lost one as every third, nothing was ever learned."""
    training = side(train_every=3)
    for shard in ("a", "a", "", "a"):
        assert training.staleness == 0
        training.learn(episode(shard))
    assert training.staleness == 5
    turns = Turns(10)
    assert not any(turns.add(episode(shard)) for shard in ["a"] * 9 + [""]) and turns.rest


def test_weights_that_could_not_be_read_are_read_at_the_next_look(side, monkeypatch):
    training = side(max_staleness=100)
    publish_zeros(training, 1, 5)
    with monkeypatch.context() as broken:
        broken.setattr("xrl_alignment.dagger.decoupled.trainer.read_published", failing_disk)
        training.before_batch(1, lambda: False)
        training.before_batch(1, lambda: False)
    assert training.version == Version()
    assert log(training).count("the policy keeps its weights, the file is read again") == 1
    training.before_batch(1, lambda: False)
    assert training.version == Version(1, 5)


def failing_disk(path):
    raise FileError(f"{path}: Input/output error")


def test_newer_weights_are_swapped_in_and_older_ones_are_not(side):
    training = side(max_staleness=100)
    before = training.model.llm_proj.weight.clone()
    training.version = Version(3, 15)
    publish_zeros(training, 2, 10)
    training.before_batch(1, lambda: False)
    assert torch.equal(training.model.llm_proj.weight, before) and training.version == Version(3, 15)
    publish_zeros(training, 4, 20)
    training.before_batch(1, lambda: False)
    assert not training.model.llm_proj.weight.any() and training.version == Version(4, 20)


def test_the_policy_waits_at_the_bound_and_says_so(side):
    training = side(max_staleness=5)
    for _ in range(2):
        training.learn(episode())
    seen: list[dict] = []

    def publish_once_it_is_said() -> None:
        while not training.said:
            time.sleep(0.01)
        seen.append(training.status()["learner"])
        publish_zeros(training, 1, 5)

    threading.Thread(target=publish_once_it_is_said, daemon=True).start()
    training.before_batch(3, lambda: False)
    assert seen[0]["waiting"] and seen[0]["staleness"] == 10 and not training.status()["learner"]["waiting"]
    assert training.said == ["the policy waits for the learner: 10 updates behind, run.max_staleness=5"]
    assert training.said[0] in log(training)
    training.before_batch(1, lambda: False)
    taken = training.end_round(0, last=False)
    assert taken.lines == ("STALENESS: 5.0 updates on average, at most 5 (run.max_staleness=5)",)
    assert taken.standstill_s > 1 and taken.scalars["max_staleness"] == 5
    assert training.end_round(1, last=False).standstill_s == 0


def test_the_server_gives_freed_memory_back_after_each_round(side, monkeypatch):
    given: list[bool] = []
    monkeypatch.setattr("xrl_alignment.dagger.decoupled.trainer.give_back_freed_memory", lambda: given.append(True))
    training = side()
    monkeypatch.setattr(training.process, "start", lambda: None)
    for round in range(2):
        training.end_round(round, last=False)
    assert given == [True, True]


def test_a_learner_that_is_always_behind_is_told_of_once_a_round(side, monkeypatch):
    monkeypatch.setattr("xrl_alignment.dagger.decoupled.trainer.SAY_S", 0.1)
    training = side(max_staleness=0)
    for number in range(3):
        training.learn(episode())
        threading.Timer(0.3, publish_zeros, (training, number + 1, number + 1)).start()
        training.before_batch(1, lambda: False)
        assert len(training.said) == (1 if number < 2 else 2)
        if number == 1:
            training.end_round(0, last=False)


def test_a_stopped_server_waits_no_longer(side):
    training = side(max_staleness=0)
    training.learn(episode())
    training.before_batch(1, lambda: True)
    assert training.staleness == 5


def test_damaged_weights_are_refused_and_asked_for_again(side):
    training = side(max_staleness=100)
    before = training.model.llm_proj.weight.clone()
    path = training.directory.published
    for number in range(3):
        publish_zeros(training, number + 1, number + 1)
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        if number < 2:
            training.before_batch(1, lambda: False)
            assert not path.exists() and torch.equal(training.model.llm_proj.weight, before)
    assert "is damaged: its hash is not that of what was written; the policy keeps its weights" in log(training)
    with pytest.raises(PublishedError, match="3 times in a row: look at the disk"):
        training.before_batch(1, lambda: False)


def test_what_a_restarted_learner_repeats_is_logged_once(side):
    training = side()
    line = '{"log": "Loss %s", "level": "INFO"}\n{"tag": "train/loss", "value": 1.0, "step": %s}\n'
    done = '{"episodes": %s, "training_step": %s, "seconds": 2.0}\n'
    training.directory.learned.write_text(
        done % (0, 0) + line % ("one", 0) + done % (1, 5) + line % ("half", 5)
        + done % (0, 0) + line % ("one", 0) + done % (1, 5) + line % ("two", 5) + done % (2, 10)
    )  # fmt: skip
    training.before_batch(1, lambda: False)
    assert [text in log(training) for text in ("Loss one", "Loss two", "Loss half")] == [True, True, False]
    assert log(training).count("Loss one") == 1 and training.status()["training_step"] == 10
    assert training.end_round(0, last=False).seconds == 4.0
    assert (training.directory.state / "metrics.jsonl").read_text().count("train/loss") == 2


def started(training: DecoupledTraining) -> list[bool]:
    """Lets nothing be started; the list gets an entry when it would be."""
    starts: list[bool] = []
    training.process.start = lambda: starts.append(True)
    return starts


def test_a_resume_takes_the_newer_of_saved_and_published_weights(side):
    training = side()
    starts = started(training)
    training.restore(0)
    assert training.version == Version() and starts == [True]  # a new run: nothing is saved
    save_checkpoint(training.directory.trainer, model=training.model, round=1, episodes=2, training_step=10)
    publish_zeros(training, 3, 15)
    training.restore(4)
    assert training.version == Version(3, 15) and not training.model.llm_proj.weight.any()
    assert training.status()["training_step"] == 10


def test_episodes_that_are_cut_off_the_journal_count_no_more_in_the_saved_state(side):
    training = side()
    started(training)
    save_checkpoint(training.directory.trainer, model=training.model, round=1, episodes=2, training_step=10)
    training.restore(4, {1, 3})  # the state has learned from number 1, not from number 3
    content = load_checkpoint(training.directory.trainer)
    assert (content["round"], content["episodes"], content["training_step"]) == (1, 1, 10) and content["model"]
    assert training.version.episodes == 1


def test_the_learner_of_a_resumed_run_starts_after_the_journal_may_have_been_cut(side):
    for begin in (lambda training: training.learn(episode()), lambda training: training.before_batch(1, lambda: False)):
        training = side(max_staleness=100)
        starts = started(training)
        training.restore(4, {3})
        assert starts == []
        begin(training)
        begin(training)
        assert starts == [True]
        training.directory.close()


def test_a_resume_waits_for_the_learner_of_a_killed_server(side):
    """Else the old learner saves after the count is corrected, and its file counts episodes that were cut off."""
    training = side()
    started(training)
    save_checkpoint(training.directory.trainer, model=training.model, round=0, episodes=2, training_step=10)
    old = LearnerDirectory(training.directory.path)

    def save_and_end() -> None:
        save_checkpoint(old.trainer, model=training.model, round=0, episodes=3, training_step=15)
        old.close()

    threading.Timer(0.5, save_and_end).start()
    training.restore(4, {2})
    assert training.learned == Version(2, 15) and load_checkpoint(training.directory.trainer)["episodes"] == 2


def test_published_weights_do_not_count_episodes_that_are_played_again(side):
    """Else the policy would not wait for the replay of an episode that was cut off the journal."""
    training = side()
    started(training)
    save_checkpoint(training.directory.trainer, model=training.model, round=0, episodes=2, training_step=10)
    publish_zeros(training, 4, 20)
    training.restore(4, {2})  # one of 4 was lost
    for _ in range(4):
        training.learn(episode())
    assert training.staleness == 2 * 5


def test_a_second_resume_does_not_count_episodes_that_the_first_one_has_cut_off(side):
    """If a kill comes before the learner has published again, the published file is still that of the whole journal."""
    training = side()
    started(training)
    save_checkpoint(training.directory.trainer, model=training.model, round=0, episodes=2, training_step=10)
    publish_zeros(training, 4, 20)
    training.restore(4, {2})
    training.directory.close()
    again = side()
    started(again)
    again.restore(3)  # the journal was cut
    for _ in range(4):
        again.learn(episode())
    assert again.staleness == 2 * 5


def test_what_the_learner_has_said_and_saved_is_noted_by_the_next_server(side):
    def says(learner: LearnerDirectory, number: int) -> None:
        learner.logger.info("Epoch of episode %d", number)
        learner.scalar("train/loss", 1.0 / number, number)
        learner.tell(episodes=number, training_step=number, seconds=1.0)

    def saves(number: int) -> None:
        counts = {"round": 0, "episodes": number, "training_step": number}
        save_checkpoint(training.directory.trainer, model=training.model, **counts)

    training = side()
    started(training)
    saves(0)
    training.restore(0)
    learner = LearnerDirectory(training.directory.path)
    says(learner, 1)
    training._listen()
    says(learner, 2)  # the server is killed before it has read this
    saves(2)
    says(learner, 3)  # and the learner before it has saved this: it learns it, and says so, once more
    learner.close()
    training.directory.close()

    again = side()
    started(again)
    again.restore(3)
    says(LearnerDirectory(training.directory.path), 3)
    again._listen()
    curve = [json.loads(line)["step"] for line in (again.directory.state / "metrics.jsonl").read_text().splitlines()]
    assert curve == [1, 2, 3]
    assert [log(again).count(f"Epoch of episode {number}") for number in (1, 2, 3)] == [1, 1, 1]


def test_lines_that_a_power_failure_has_damaged_do_not_keep_a_run_from_going_on(side):
    """Curves and log lines alone: the weights do not depend on them."""
    training = side()
    started(training)
    state = training.directory.state
    save_checkpoint(training.directory.trainer, model=training.model, round=0, episodes=2, training_step=10)
    damage = b'{"step": 7, "ta\n\0\0\0\n\xff\n[]\n'
    (state / "metrics.jsonl").write_bytes(damage + b'{"tag": "train/loss", "value": 1.0, "step": 5}\n')
    said = [{"tag": "train/loss", "value": 0.5, "step": step} for step in (5, 10)]
    learned = [{"episodes": number, "training_step": 5 * number, "seconds": 1.0} for number in (1, 2)]
    lines = [json.dumps(line).encode() + b"\n" for pair in zip(said, learned, strict=True) for line in pair]
    training.directory.learned.write_bytes(damage + b"".join(lines))
    training.restore(2)
    assert (state / "metrics.jsonl").read_text("utf-8", "replace").count("train/loss") == 2  # step 10 is new, 5 is not
    assert log(training).count("line that cannot be read") == 8 and "metrics.jsonl" in log(training)
