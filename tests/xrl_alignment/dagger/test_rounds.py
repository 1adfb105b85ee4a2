"""Which games a round has, where its time goes, and what a run keeps of its episodes, wherever it is killed."""

import json
import re
import time
from functools import partial

import pytest

from xrl_alignment.agents.experts import make_expert
from xrl_alignment.agents.reflexion.base import update_memories
from xrl_alignment.agents.reflexion.rule import RuleReflector
from xrl_alignment.dagger.front import Front
from xrl_alignment.dagger.loop import DaggerLoop
from xrl_alignment.dagger.rounds import PARTS, GamesError, Rounds, TimeSplit
from xrl_alignment.runs.checkpoint import CheckpointError, load_checkpoint
from xrl_alignment.runs.directory import EpisodeRecord, RunDirectory

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
    rounds = Rounds(RunDirectory(path), num_rounds=num_rounds, num_envs=num_envs, **options)
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


@pytest.mark.parametrize("train", [True, False])
def test_freed_memory_is_given_back_after_each_round(make_run, scripted, monkeypatch, train):
    """Memory of a soak grew by 5 kB an episode, for the process held the most that any of its batches had needed."""
    rounds: list[int] = []
    run = make_run(policy=scripted("look"), max_steps=1, train=train)
    give_back = "xrl_alignment.dagger.training.give_back_freed_memory"
    monkeypatch.setattr(give_back, lambda: rounds.append(run.rounds.round))
    run.play()
    assert rounds == [0, 1]


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
        assert abs(sum(parts.values()) - total) < 0.1 and parts["waiting"] < 0.4
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
    assert rounds.finished and rounds.episodes == 4
    assert before == {name: (played.directory.results / name).read_bytes() for name in before}


def test_killed_between_journal_and_round_end_the_round_is_ended_once(played):
    memories = (played.directory.state / "memories.json").read_text()
    world = (played.directory.results / "world.log").read_text()
    lines = (played.directory.state / "episodes.jsonl").read_text().splitlines(keepends=True)
    (played.directory.state / "episodes.jsonl").write_text("".join(lines[:2]))
    (played.directory.state / "memories.json").unlink()
    (played.directory.results / "world.log").write_text(world[: world.index("ROUND: 1") - 7])
    rounds = reopened(played.directory.path, reflect=partial(update_memories, reflector=RuleReflector()))
    assert rounds.round == 1 and not rounds.finished
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


@pytest.fixture
def rounds(directory):
    made = Rounds(directory, num_rounds=2, num_envs=3)
    made.offer(GAMES)
    return made


def next_game(rounds: Rounds, session: str) -> str | None:
    env = rounds.hand_out(session)
    return rounds.games[env] if env >= 0 else None


def finish(rounds: Rounds, game: str, *, solved: bool = False) -> None:
    steps = [("look", "Nothing happens.")]
    env = rounds.games.index(game)
    rounds.count(EpisodeRecord(rounds.round, env, game, solved, False, 1, "A room.", steps, "", 0.1))


def test_each_game_is_handed_out_once_a_round_in_order(rounds):
    assert [next_game(rounds, session) for session in "wxyz"] == [*GAMES, None]
    for game in GAMES:
        finish(rounds, game)
    assert rounds.round_over and not rounds.finished
    rounds.begin_next()
    assert next_game(rounds, "w") == "pick/a" and not rounds.round_over


def test_a_solved_game_is_not_played_in_later_rounds_and_counts_once(rounds):
    finish(rounds, "pick/b", solved=True)
    finish(rounds, "pick/b", solved=True)
    assert (rounds.newly_solved, rounds.status()["played_in_round"]) == (1, 1)
    rounds.begin_next()
    assert rounds.newly_solved == 0 and rounds.status()["played_in_round"] == 1
    assert rounds.hand_out("w", "pick/b") == -1
    assert [next_game(rounds, "w"), next_game(rounds, "w")] == ["pick/a", "pick/c"]


def test_a_game_that_is_given_back_goes_to_the_next_who_asks(rounds):
    assert next_game(rounds, "silent") == "pick/a" and next_game(rounds, "other") == "pick/b"
    rounds.give_back("silent")
    assert next_game(rounds, "other") == "pick/a"


def test_a_game_is_in_one_sessions_hands(rounds):
    assert [rounds.hand_out(session, "pick/c") for session in ("one", "one", "two")] == [2, 2, -1]
    finish(rounds, "pick/c")
    assert rounds.hand_out("one", "pick/c") == -1, "it has been played in this round"
    rounds.begin_next()
    assert rounds.hand_out("two", "pick/c") == 2


def test_games_become_known_one_by_one_until_all_places_are_taken(directory):
    rounds = Rounds(directory, num_rounds=1, num_envs=2)
    assert [rounds.hand_out("v1", game) for game in ("pick/x", "pick/y", "pick/x", "pick/z")] == [0, 1, 0, -1]
    finish(rounds, "pick/x", solved=True)
    assert not rounds.round_over
    finish(rounds, "pick/y")
    assert rounds.round_over


def test_a_round_is_not_over_while_games_are_unknown(directory):
    rounds = Rounds(directory, num_rounds=1, num_envs=2)
    rounds.hand_out("v1", "pick/x")
    finish(rounds, "pick/x")
    assert not rounds.round_over


def test_nothing_is_open_after_the_last_round(directory):
    rounds = Rounds(directory, num_rounds=1, num_envs=3)
    rounds.offer(GAMES)
    rounds.begin_next()
    assert rounds.finished and not rounds.round_over
    assert rounds.hand_out("w") == rounds.hand_out("w", "pick/a") == -1


@pytest.mark.parametrize(
    ("games", "reason"),
    [
        (["pick/a", "pick/b"], "offers 2 different games, the run has 3 .run.num_envs."),
        (["pick/a"] * 5, "offers 1 different games"),
        (["pick/a", "pick/c", "pick/b"], "other games than this run"),
    ],
)
def test_a_list_that_does_not_fit_is_refused_and_changes_nothing(rounds, games, reason):
    with pytest.raises(GamesError, match=reason):
        rounds.offer(games)
    assert rounds.games == GAMES


def test_a_longer_list_with_the_same_beginning_fits(rounds):
    rounds.offer([*GAMES, "pick/d"])
    assert rounds.games == GAMES


def test_a_list_is_withdrawn_only_if_nothing_was_played(rounds):
    rounds.hand_out("w", "pick/b")
    rounds.withdraw()
    assert rounds.games == GAMES, "a session plays"
    rounds.give_back("w")
    rounds.environments.append("native train")  # noted when the game began
    rounds.withdraw()
    assert rounds.environments == []
    rounds.offer(["x", "y", "z"])
    assert next_game(rounds, "w") == "x"
    finish(rounds, "x")
    rounds.withdraw()
    assert rounds.games == ["x", "y", "z"]


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
