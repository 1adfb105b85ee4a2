"""Which games a round has, where its time goes, and what a run keeps of its episodes, wherever it is killed."""

import json
import re
import time

import pytest

from xrl_alignment.agents.experts import make_expert
from xrl_alignment.agents.reflexion.rule import RuleReflector
from xrl_alignment.dagger.front import Front
from xrl_alignment.dagger.loop import DaggerLoop
from xrl_alignment.dagger.rounds import PARTS, Rounds, Schedule, ScheduleError, TimeSplit
from xrl_alignment.runs.checkpoint import CheckpointError, load_checkpoint
from xrl_alignment.runs.directory import RunDirectory

GAMES = ["pick/a", "pick/b", "pick/c"]
FILES = ("trial_0.log", "env_results_trial_0.json")


@pytest.fixture
def played(make_run, scripted):
    """A run of two rounds in which nothing was solved."""
    run = make_run(policy=scripted("look"), max_steps=2)
    run.play()
    return run


class Nobody:
    """Stands for a server that nobody asks."""

    stopped = True

    def take(self, most: int, timeout_s: float, **window):
        return []


def reopened(path, num_rounds: int = 2, num_envs: int = 2, **options) -> Rounds:
    """The rounds of a run directory after a resume that plays nothing and has no learner."""
    rounds = Rounds(RunDirectory(path), Schedule(num_rounds=num_rounds, num_envs=num_envs), **options)
    front = Front(Nobody(), rounds, make_expert=lambda: make_expert("explorer"))
    DaggerLoop(front=front, rounds=rounds, policy=None).serve()
    rounds.directory.close()
    return rounds


def test_a_rounds_end_leaves_its_files(played, games):
    results = json.loads((played.directory.results / "env_results_trial_1.json").read_text())
    assert [results[f"env_{i}"]["game"] for i in range(2)] == [game.id for game in games[:2]]
    assert results["env_0"]["path_length"] == 2 and results["env_0"]["is_success"] is False
    assert results["env_0"]["type"] == games[0].task_type and len(results["env_0"]["memory"]) >= 1
    assert (played.directory.results / "world.log").read_text().count("ROUND: ") == 2
    content = load_checkpoint(played.directory.checkpoint(1))
    assert (content["round"], content["episodes"], content["training_step"]) == (1, 4, 4)


def test_freed_memory_is_given_back_after_each_round(make_run, scripted, monkeypatch):
    """Memory of a soak grew by 5 kB an episode, for the process held the most that any of its batches had needed."""
    rounds: list[int] = []
    run = make_run(policy=scripted("look"), max_steps=1)
    give_back = "xrl_alignment.dagger.loop.give_back_freed_memory"
    monkeypatch.setattr(give_back, lambda: rounds.append(run.directory.memories()[0]))
    run.play()
    assert rounds == [1, 2]


def test_a_rounds_time_is_told_apart(played):
    metrics = [json.loads(line) for line in (played.directory.state / "metrics.jsonl").read_text().splitlines()]
    for round in range(2):
        seconds = {m["tag"]: m["value"] for m in metrics if m["tag"].endswith("seconds") and m["step"] == round}
        assert seconds["round/training_seconds"] > 0 and seconds["round/rollout_seconds"] > 0
        parts = seconds["round/training_seconds"] + seconds["round/rollout_seconds"]
        assert parts <= seconds["round/seconds"]
    world = (played.directory.results / "world.log").read_text()
    assert re.findall(r"^(ROLLOUT|TRAINING): \d+\.\d\d s$", world, re.MULTILINE) == ["ROLLOUT", "TRAINING"] * 2


def test_a_rounds_time_is_split_into_what_the_loop_did(make_run, scripted):
    policy = scripted("look")
    answer = policy.act
    policy.act = lambda batch: (time.sleep(0.1), answer(batch))[1]
    run = make_run(policy=policy, max_steps=2)
    run.play()
    world = (run.directory.results / "world.log").read_text()
    totals = [float(seconds) for seconds in re.findall(r"^TIME: ([\d.]+) s$", world, re.MULTILINE)]
    lines = re.findall(r"^TIME SPLIT: (.*)$", world, re.MULTILINE)
    assert len(lines) == len(totals) == 2
    for line, total in zip(lines, totals, strict=True):
        parts = {name: float(seconds) for name, seconds in re.findall(r"(\w+) ([\d.]+) s", line)}
        assert list(parts) == ["environment", "policy", "expert", "training", "waiting", "other"]
        assert abs(sum(parts.values()) - total) < 0.1 and parts["waiting"] < 0.1
        assert parts["policy"] >= 0.4 and parts["training"] > 0 and parts["environment"] > 0  # 4 calls a round
    metrics = [json.loads(line) for line in (run.directory.state / "metrics.jsonl").read_text().splitlines()]
    assert [m["step"] for m in metrics if m["tag"] == "round/seconds_policy"] == [0, 1]


def test_a_failed_game_gets_a_memory_that_the_next_round_shows(make_run, scripted):
    policy = scripted("look")
    run = make_run(policy=policy, max_steps=2)
    run.play()
    assert not policy.inputs[0].prompt.startswith("Memory:")
    assert policy.inputs[-1].prompt.startswith("Memory: (by rule)")


def test_without_reflexion_there_are_no_memories(make_run, scripted):
    run = make_run(policy=scripted("look"), max_steps=1, reflect=False)
    run.play()
    assert run.directory.memories() == (2, {})


def test_the_length_of_a_solved_game_is_remembered(make_run, scripted, games):
    run = make_run(policy=scripted("look"), games=games[:1], num_rounds=1, beta=[1.0], max_steps=50)
    run.play()
    path = run.directory.state / "episodes.jsonl"
    path.write_text(path.read_text().replace('"assisted": true', '"assisted": false'))  # solved, then
    reopened(run.directory.path, num_rounds=3, num_envs=1)  # rounds 1 and 2 pass: nothing is left to play
    results = json.loads((run.directory.results / "env_results_trial_2.json").read_text())
    assert results["env_0"]["is_success"] and results["env_0"]["path_length"] == run.journal[0].actions > 2


def test_training_waits_for_every_so_many_episodes(make_run, scripted):
    run = make_run(policy=scripted("look"), max_steps=1, train_every=2)
    run.play()
    assert run.training.learner.training_step == 2 and len(run.training.learner.buffer) == 4


def test_what_comes_after_the_last_turn_is_learned_from_at_the_end_of_the_run(make_run, scripted):
    run = make_run(policy=scripted("look"), max_steps=1, train_every=3)
    run.play()
    assert run.training.learner.training_step == 2 and "Epoch: [1], Iter: [1]" in run.log
    steps = [load_checkpoint(run.directory.checkpoint(round))["training_step"] for round in (0, 1)]
    assert steps == [0, 2] and load_checkpoint(run.directory.trainer)["training_step"] == 2
    again = make_run(policy=scripted("look"), max_steps=1, train_every=3)
    again.start().wait()
    assert again.error is None and load_checkpoint(run.directory.trainer)["training_step"] == 2


def test_a_finished_run_that_is_opened_again_changes_nothing(played):
    before = {name: (played.directory.results / name).read_bytes() for name in (*FILES, "world.log")}
    rounds = reopened(played.directory.path)
    assert rounds.schedule.finished and rounds.episodes == 4
    assert before == {name: (played.directory.results / name).read_bytes() for name in before}


def test_killed_between_journal_and_round_end_the_round_is_ended_once(played):
    memories = (played.directory.state / "memories.json").read_text()
    world = (played.directory.results / "world.log").read_text()
    lines = (played.directory.state / "episodes.jsonl").read_text().splitlines(keepends=True)
    (played.directory.state / "episodes.jsonl").write_text("".join(lines[:2]))
    (played.directory.state / "memories.json").unlink()
    (played.directory.results / "world.log").write_text(world[: world.index("ROUND: 1") - 7])
    rounds = reopened(played.directory.path, reflector=RuleReflector())
    assert rounds.schedule.round == 1 and not rounds.schedule.finished
    number, after = rounds.directory.memories()
    assert number == 1 and len(after) == 2 and all(len(texts) == 1 for texts in after.values())
    assert (played.directory.results / "world.log").read_text().count("ROUND: 0\n") == 1
    assert set(after) == set(json.loads(memories)["memories"])


def test_the_trainers_state_is_there_before_the_first_episode(make_run, scripted):
    run = make_run(policy=scripted("look", die_at=1))
    run.play()
    content = load_checkpoint(run.directory.trainer)
    assert content["episodes"] == 0 and run.journal == []


def test_a_state_that_is_ahead_of_its_journal_is_refused(make_run, scripted):
    run = make_run(policy=scripted("look"), max_steps=1)
    run.play()
    path = run.directory.state / "episodes.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    (run.directory.state / "memories.json").unlink()  # else these are ahead, too
    again = make_run(policy=scripted("look"), max_steps=1)
    assert again.play() is None
    assert isinstance(again.error, CheckpointError)
    assert "has learned from 4 episodes, the journal beside it holds 1" in str(again.error)


def test_a_damaged_state_is_refused(make_run, scripted):
    run = make_run(policy=scripted("look", die_at=2), max_steps=1)
    run.play()
    run.directory.trainer.write_bytes(run.directory.trainer.read_bytes()[:1000])
    again = make_run(policy=scripted("look"), max_steps=1)
    assert again.play() is None
    assert isinstance(again.error, CheckpointError) and "trainer.pth cannot be read" in str(again.error)


# --- rounds over games keyed by id ------------------------------------------------------------------------------------


def schedule(num_rounds: int = 2, num_envs: int = 3) -> Schedule:
    made = Schedule(num_rounds=num_rounds, num_envs=num_envs)
    made.offer(GAMES)
    return made


def test_each_game_is_handed_out_once_a_round_in_order():
    rounds = schedule()
    assert [rounds.next_game(session) for session in "wxyz"] == [*GAMES, None]
    for game in GAMES:
        rounds.finish(game, solved=False)
    assert rounds.round_over and not rounds.finished
    rounds.advance()
    assert rounds.next_game("w") == "pick/a" and not rounds.round_over


def test_a_solved_game_is_not_played_in_later_rounds_and_counts_once():
    rounds = schedule()
    rounds.finish("pick/b", solved=True)
    rounds.finish("pick/b", solved=True)
    assert (rounds.newly_solved, rounds.played_in_round) == (1, 1)
    rounds.advance()
    assert rounds.newly_solved == 0 and rounds.played_in_round == 1 and not rounds.hold("pick/b", "w")
    assert [rounds.next_game("w"), rounds.next_game("w")] == ["pick/a", "pick/c"]


def test_a_released_game_goes_to_the_next_who_asks():
    rounds = schedule()
    assert rounds.next_game("silent") == "pick/a" and rounds.next_game("other") == "pick/b"
    rounds.release("silent")
    assert rounds.next_game("other") == "pick/a"


def test_a_game_is_in_one_sessions_hands():
    rounds = schedule()
    assert rounds.hold("pick/c", "one") and rounds.hold("pick/c", "one") and not rounds.hold("pick/c", "two")
    rounds.finish("pick/c", solved=False)
    assert not rounds.hold("pick/c", "one"), "it has been played in this round"
    rounds.advance()
    assert rounds.hold("pick/c", "two")


def test_games_become_known_one_by_one_until_all_places_are_taken():
    rounds = Schedule(num_rounds=1, num_envs=2)
    assert [rounds.env_of(game) for game in ("pick/x", "pick/y", "pick/x", "pick/z")] == [0, 1, 0, -1]
    rounds.finish("pick/x", solved=True)
    assert not rounds.round_over
    rounds.finish("pick/y", solved=False)
    assert rounds.round_over


def test_a_round_is_not_over_while_games_are_unknown():
    rounds = Schedule(num_rounds=1, num_envs=2)
    rounds.env_of("pick/x")
    rounds.finish("pick/x", solved=False)
    assert not rounds.round_over


def test_nothing_is_open_after_the_last_round():
    rounds = schedule(num_rounds=1)
    rounds.advance()
    assert (
        rounds.finished and not rounds.hold("pick/a", "w") and rounds.next_game("w") is None and not rounds.round_over
    )


@pytest.mark.parametrize(
    ("games", "reason"),
    [
        (["pick/a", "pick/b"], "offers 2 different games, the run has 3 .run.num_envs."),
        (["pick/a"] * 5, "offers 1 different games"),
        (["pick/a", "pick/c", "pick/b"], "other games than this run"),
    ],
)
def test_a_list_that_does_not_fit_is_refused_and_changes_nothing(games, reason):
    rounds = schedule()
    with pytest.raises(ScheduleError, match=reason):
        rounds.offer(games)
    assert rounds.games == GAMES


def test_a_longer_list_with_the_same_beginning_fits():
    rounds = schedule()
    rounds.offer([*GAMES, "pick/d"])
    assert rounds.games == GAMES


# --- seconds by part --------------------------------------------------------------------------------------------------


def test_parts_add_up_and_the_rest_is_other():
    times = TimeSplit()
    for _ in range(2):
        with times.part("policy"):
            time.sleep(0.02)
    with pytest.raises(ZeroDivisionError), times.part("expert"):
        raise ZeroDivisionError
    taken = times.take(1.0)
    assert list(taken) == [*PARTS, "other"] and sum(taken.values()) == pytest.approx(1.0)
    assert 0.04 <= taken["policy"] < 1 and taken["environment"] == 0 < taken["expert"]
    assert times.take(0.5) == dict.fromkeys(PARTS, 0.0) | {"other": 0.5}
