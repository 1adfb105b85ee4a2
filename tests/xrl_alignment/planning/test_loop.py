"""The loop: rounds of both learners, killed at any stage and continued, a planner that goes away."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch

from alfworld_native import make_environment
from alfworld_native.base import WrappedEnvironment
from benchmarks._endpoint import FakeEndpoint
from lavis.datasets.shards import open_shard
from lavis.models.played import PlayedGames, played_by_file
from xrl_alignment.agents.experts.llm.endpoint import Endpoint
from xrl_alignment.builders.student import load_student, make_policy, prompt_writer
from xrl_alignment.common.errors import EndpointFault
from xrl_alignment.planning import loop as loop_module
from xrl_alignment.planning.agent import LearningAgent
from xrl_alignment.planning.loop import Loop
from xrl_alignment.planning.planners.base import PlanAnswer
from xrl_alignment.planning.planners.endpoint import EndpointPlanner
from xrl_alignment.planning.planners.explorer import ExplorerPlanner
from xrl_alignment.planning.player import PlanSettings
from xrl_alignment.settings.planning import (
    EmacPlusConfig,
    LoopRunConfig,
    PlannedEnvironmentConfig,
    PlannerConfig,
    PlanRules,
)
from xrl_alignment.settings.policy import PolicyConfig


class Killed(BaseException):
    """Ends a loop as SIGKILL would."""


CONFIG = EmacPlusConfig(
    run=LoopRunConfig(
        num_rounds=2, bc_rounds=1, updates=2, batch_size=2, init_lr=1e-3, num_envs=2, beta=[1.0, 0.0], max_steps=3,
        max_batch=1,
    ),
    planner=PlannerConfig(max_replans=2, epochs=1, dpo_epochs=1),
)  # fmt: skip


@pytest.fixture
def make_loop(tmp_path, local_planner):
    def make(name: str, config: EmacPlusConfig = CONFIG, student: dict[str, Any] | None = None) -> Loop:
        torch.manual_seed(0)
        model, vis_processor = load_student(student or {}, torch.device("cpu"))
        policy = make_policy(PolicyConfig(num_beams=1, max_length=8), model, vis_processor, 4)
        agent = LearningAgent(
            model, policy, vis_processor=vis_processor, write_prompt=prompt_writer(model), earlier_games=PlayedGames()
        )
        # A random language model has no plan to label with: the explorer plans, and the other learns from it.
        return Loop(
            tmp_path / name, config, planner=ExplorerPlanner(), trainer=local_planner(), agent=agent,
            make_environment=lambda: make_environment("native"),
        )  # fmt: skip

    return make


def weights(loop: Loop) -> dict:
    return loop.agent.model.trainable_state_dict()


@pytest.mark.parametrize("name", ["own", "hub"])
def test_both_learn_in_rounds_and_a_killed_loop_ends_in_the_same_place(
    make_loop, students, games, monkeypatch, tmp_path, name
) -> None:
    student = students(name)
    whole = make_loop("whole", student=student)
    assert whole.trainer
    before, first = whole.trainer.identity, {name: value.clone() for name, value in weights(whole).items()}
    figures = whole.evaluate("before", games[:1], agent=True)
    assert set(figures) >= {"success", "interval", "games", "planner_calls", "planner_tokens"} and figures["games"] == 1
    assert whole.evaluate("before", (), agent=True) == figures  # from its file
    whole.run(games[:3])
    assert whole.trainer.identity != before
    assert any(not torch.equal(value, first[name]) for name, value in weights(whole).items())
    played = played_by_file(whole.folder / "agent_001.pth")
    assert played is not None and set(played.games) == {game.id for game in games[:3]} and played.all_named
    record = json.loads((whole.folder / "round_000" / "game_0000.json").read_text())
    assert {call["planner"] for call in record["calls"]} == {"explorer"}
    records = [json.loads(path.read_text()) for path in whole.folder.glob("round_*/game_*.json")]
    cost, actions = whole.training_cost(), [record["result"]["actions"] for record in records]
    assert cost.calls == sum(len(record["calls"]) for record in records) and cost.calls_each_step == sum(actions)
    assert 3 < cost.calls_each_step <= 4 * CONFIG.run.max_steps, "four games, of which one alone may be won at once"

    for stage in ("play", "agent", "planner"):  # killed three times, each time further on
        loop = make_loop("killed", student=student)
        with monkeypatch.context() as patched:
            if stage == "play":
                patched.setattr(loop_module, "write_episode", dying(loop_module.write_episode, 3))
            elif stage == "agent":
                patched.setattr(loop.agent, "learn", dying(loop.agent.learn, 1))
            else:
                patched.setattr(loop_module, "train_planner", dying(loop_module.train_planner, 1))
            with pytest.raises(Killed):
                loop.run(games[:3])
    (tmp_path / "killed" / "buffer" / ".round001_env0000_steps003.h5.4711.tmp").write_bytes(b"half")
    (tmp_path / "killed" / "round_001" / ".game_0000.json.4711.tmp").write_bytes(b"half")
    again = make_loop("killed", student=student)
    assert not list((tmp_path / "killed").glob("*/.*.tmp"))
    again.run(games[:3])
    assert again.trainer and again.trainer.identity == whole.trainer.identity
    assert all(torch.equal(value, weights(whole)[name]) for name, value in weights(again).items())


def test_without_cloning_dpos_reference_is_the_agent_of_the_beginning(make_loop, games, monkeypatch) -> None:
    config = replace(CONFIG, run=replace(CONFIG.run, bc_rounds=0, num_envs=1))
    loop = make_loop("dpo", config)
    first = {name: value.clone() for name, value in weights(loop).items()}
    references = []
    set_reference = loop.agent.model.set_reference
    monkeypatch.setattr(
        loop.agent.model, "set_reference", lambda given: references.append(given) or set_reference(given)
    )
    loop.run(games[:1])
    assert len(references) == 2 and any(not torch.equal(value, first[name]) for name, value in weights(loop).items())
    for given in references:  # also in the second round, when the agent has learned
        assert given.keys() == first.keys() and all(torch.equal(value, first[name]) for name, value in given.items())


def dying(original: Callable[..., Any], at: int) -> Callable[..., Any]:
    """`original`, which ends the loop at its `at`-th call."""
    calls = []

    def die(*given: Any, **options: Any) -> Any:
        calls.append(given)
        if len(calls) == at:
            raise Killed
        return original(*given, **options)

    return die


def test_a_planner_that_goes_away_loses_no_finished_game(make_loop, games, monkeypatch) -> None:
    loop = make_loop("gone")
    ask, calls = loop.planner.plan_all, []

    def gone(questions):
        calls.append(questions)
        if loop._record(0, 0).exists():
            raise EndpointFault("no answer in 20 attempts")
        return ask(questions)

    monkeypatch.setattr(loop.planner, "plan_all", gone)
    with pytest.raises(EndpointFault):
        loop.run(games[:2])
    kept = loop._record(0, 0).read_bytes()
    again = make_loop("gone")
    again.run(games[:2])
    assert loop._record(0, 0).read_bytes() == kept and len(list(again.folder.glob("round_*/game_*.json"))) == 4
    (shard,) = again.folder.glob("buffer/round001_env0000_*.h5")
    assert open_shard(shard).game == games[0].id


def test_games_are_played_as_the_settings_say(make_loop, games, monkeypatch) -> None:
    run = replace(CONFIG.run, num_rounds=3, bc_rounds=2, beta=[0.9, 0.2], max_steps=7, repeat_limit=4, seed=11)
    environment = PlannedEnvironmentConfig(report_severity=2, blank_frames=True, tell_objects=False, name_by="type")
    loop = make_loop("settings", replace(CONFIG, run=run, environment=environment))
    made: list[tuple] = []

    def make(*given: Any, **options: Any) -> None:
        made.append((*given, options))
        raise Killed

    monkeypatch.setattr(loop_module, "PlanningPlayer", make)
    for round in range(3):
        with pytest.raises(Killed):
            loop._collect(round, games[:1])
    plans = PlanSettings(CONFIG.planner, 2, 7, blank_frames=True, tell_objects=False, by_type=True, repeat_limit=4)
    assert [settings for _, settings, _ in made] == [replace(plans, seed=seed) for seed in (11, 12, 13)]
    assert [options["beta"] for *_, options in made] == [0.9, 0.2, 0.2]
    assert [options["preferences"] for *_, options in made] == [False, False, True]
    assert all(options["agent"] and options["store"] for *_, options in made)

    rules = PlanRules(report="none")
    for given in ({}, {"make_environment": print, "rules": rules, "report_severity": 4}):
        with pytest.raises(Killed):
            loop.evaluate("some", games[:1], agent=False, **given)
    seen = [(make, settings, options["agent"]) for make, settings, options in made[3:]]
    changed = replace(plans, seed=11, rules=rules, report_severity=4)
    assert seen == [(loop.make_environment, replace(plans, seed=11), False), (print, changed, False)]
    assert not any({"beta", "store", "preferences"} & options.keys() for *_, options in made[3:])


@pytest.mark.parametrize("learns", [True, False])
def test_the_planner_learns_as_the_settings_say(make_loop, games, monkeypatch, learns) -> None:
    planner = replace(CONFIG.planner, learn=learns, targets="hindsight", feedback="questions", learn_feedback=True)
    loop = make_loop("settings", replace(CONFIG, planner=planner, run=replace(CONFIG.run, seed=11, dpo_beta=0.7)))
    assert (loop.trainer is None) != learns
    if not loop.trainer:
        return
    for round in range(3):
        (loop.folder / f"round_{round:03d}").mkdir()
        loop._record(round, 0).write_text(json.dumps(round))
    read: list[tuple] = []
    monkeypatch.setattr(loop_module, "examples_of", lambda record, **given: read.append((record, given)) or [record])
    made: list[tuple] = []
    monkeypatch.setattr(
        loop_module, "train_planner", lambda *given, report, **options: made.append((given, options)) or {}
    )
    for round in range(2):
        loop._train_planner(round, loop.trainer)
    assert [given[1:] for given, _ in made] == [([0], planner), ([0, 1], planner)], "not of later rounds"
    assert [options for _, options in made] == [{"beta": 0.7, "seed": 11}, {"beta": 0.7, "seed": 12}]
    assert all(given == {"targets": "hindsight", "learn_feedback": True} for _, given in read)


@pytest.mark.parametrize(("temperature", "asked"), [(0.0, 3), (0.7, 6)])
def test_a_game_that_comes_again_draws_other_plans_at_a_temperature(make_loop, games, temperature, asked) -> None:
    """Those of the first round came from the cache, so its games were planned alike in all rounds."""
    loop = make_loop("drawn", replace(CONFIG, run=replace(CONFIG.run, num_envs=1, beta=[1.0])))
    loop.trainer = None
    with FakeEndpoint(lambda prompt: "sing") as server, closing(Endpoint(model="m", base_url=server.url)) as endpoint:
        loop.planner = EndpointPlanner(endpoint, temperature=temperature)
        loop.evaluate("before", games[1:2], agent=False)
        before = len(server.requests)
        loop.run(games[:1])  # in each of two rounds, with a plan and two replans
        assert len(server.requests) - before == asked
        loop.evaluate("after", games[1:2], agent=False)
        assert len(server.requests) - before == asked, "evaluations compare planners by the same answers"


def test_an_agent_that_gets_no_plan_to_follow_is_told(make_loop, games, monkeypatch, capsys) -> None:
    """Before, only the table's valid plans (0.000) told that nothing was stored, and so nothing learned."""
    loop = make_loop("nonsense", replace(CONFIG, run=replace(CONFIG.run, num_rounds=1, num_envs=1)))
    monkeypatch.setattr(
        loop.planner, "plan_all", lambda asked: [PlanAnswer("as an assistant I", "explorer")] * len(asked)
    )
    loop.run(games[:1])
    said = capsys.readouterr()
    assert "the agent has nothing to learn from: no game so far had a plan" in said.out + said.err
    assert not list(loop.folder.glob("buffer/*.h5"))


def test_a_game_that_ends_before_an_earlier_one_is_kept_at_once(make_loop, games, monkeypatch) -> None:
    loop = make_loop("behind", replace(CONFIG, run=replace(CONFIG.run, max_batch=2, beta=[0.0])))
    make, act = loop.make_environment, loop.agent.policy.act

    class SecondGameEndsAtOnce(WrappedEnvironment):
        def reset(self, game):
            self.second = game.id == games[1].id
            return super().reset(game)

        def step(self, action):
            now = super().step(action)
            return now._replace(done=True) if self.second else now

    def gone(questions):
        if loop._record(0, 1).exists():
            raise EndpointFault("no answer in 20 attempts")
        return act(questions)

    loop.make_environment = lambda: SecondGameEndsAtOnce(make())
    monkeypatch.setattr(loop.agent.policy, "act", gone)
    with pytest.raises(EndpointFault):
        loop.run(games[:2])
    assert not loop._record(0, 0).exists(), "the first game is still played"


def test_a_game_that_the_agent_has_won_is_not_played_again(make_loop, games, monkeypatch) -> None:
    loop = make_loop("skip", replace(CONFIG, run=replace(CONFIG.run, skip_solved=True, num_rounds=2)))
    monkeypatch.setattr(loop, "_train_agent", lambda round: None)
    loop.trainer = None
    played: list[list[str]] = []
    collect = loop._collect

    def note(round: int, chosen: list) -> None:
        played.append([game.id for game in chosen])
        collect(round, chosen)
        for number, won in enumerate((True, False, True)[: len(chosen)] if round == 0 else ()):
            path = loop._record(round, number)  # as if the first and the last game had been won, the last with help
            record = json.loads(path.read_text())
            record["result"]["won"], record["assisted"] = won, number == 2
            path.write_text(json.dumps(record))

    monkeypatch.setattr(loop, "_collect", note)
    loop.config = replace(loop.config, run=replace(loop.config.run, num_envs=3))
    loop.run(games[:3])
    assert played == [[game.id for game in games[:3]], [game.id for game in games[1:3]]]
