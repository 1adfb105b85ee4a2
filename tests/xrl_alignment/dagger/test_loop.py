"""The loop over real sockets: who acts, what is labelled, when an episode ends, who gets which game."""

import threading
import time
from functools import partial
from http.client import HTTPConnection

import numpy as np
import pytest
import torch

from alfworld_native import make_environment
from alfworld_native.experts.base import Label
from lavis.datasets.shards import open_shard
from lavis.models.student import Question
from tests.xrl_alignment.dagger.original_client import OriginalClient
from xrl_alignment.dagger.recovery import recover
from xrl_alignment.runs.checkpoint import load_checkpoint
from xrl_alignment.runs.transitions import read_transition
from xrl_alignment.wire import v2
from xrl_alignment.wire.admission import PendingRequest
from xrl_alignment.wire.messages import Bye, Hello, Next, Observation, md5_hex

HALF = b"~half~"  # becomes half of a surrogate pair on the wire: no UTF-8 file can hold it
PIXEL = np.zeros((224, 224, 3), np.uint8)


def transitions(run, number: int = 0):
    path = run.directory.buffer / run.journal[number].shard
    return [read_transition(path, i) for i in range(open_shard(path).steps)]


class FixedExpert:
    """Says the same at every step."""

    name = "fixed"

    def __init__(self, action: str | None, thought: str = "") -> None:
        self.label = Label(action, thought)

    def begin(self, intro: str, **context) -> None:
        pass

    def observe(self, action: str, feedback: str) -> None:
        pass

    def act(self, information=None) -> Label:
        return self.label


class Session:
    """A v2 client's session, message by message."""

    def __init__(self, run, name: str) -> None:
        self.http = HTTPConnection("127.0.0.1", run.server.port, timeout=60)
        self.name, self.seq = name, 0

    def send(self, make, **fields):
        self.seq += 1
        body = v2.encode(make(session=self.name, seq=self.seq, **fields))
        body = body.replace(HALF, rb"\ud800")
        headers = {"MD5": md5_hex(body), "Content-Type": v2.CONTENT_TYPE}
        self.http.request("POST", "/", body, headers)
        response = self.http.getresponse()
        reply = response.read()
        return v2.decode_reply(reply) if response.status == 200 else response.status

    def observe(self, text="You see a desk 1.", game="", done=False, **information):
        return self.send(Observation, text=text, task_type=game, done=done, image=PIXEL, information=information)


def opening(game: str) -> str:
    return f"You are in the middle of a room. You see a desk 1.\n\nYour task is to: put a mug in desk 1 ({game})."


# --- who acts, and what is stored -------------------------------------------------------------------------------------


def test_the_policys_action_is_executed_and_the_experts_is_the_label(make_run, scripted):
    run = make_run(policy=scripted("inventory"), num_rounds=1)
    summary = run.play()
    first = transitions(run)
    assert [t.executed for t in first] == ["inventory"] * 6 == [t.text_output_neg for t in first]
    assert first[0].text_output.startswith("go to ") and first[0].feedback == "You are not carrying anything."
    assert first[0].text_input.startswith("You are in the middle of a room.") and first[0].text_input.endswith("\n> ")
    assert first[1].text_input.endswith("> inventory\nYou are not carrying anything.\n> ")
    assert first[0].image.shape == (224, 224, 3) and first[0].image.any()
    assert summary["episodes"] == 2 and [r.solved for r in run.journal] == [False, False]


def test_a_run_that_is_done_has_no_file_of_an_episode_in_progress(make_run, scripted):
    """A kill after DONE, while clients are told so, left the last episode's file for good."""
    run = make_run(policy=scripted("look"), num_rounds=1, max_steps=2)
    mark_done, left = run.directory.mark_done, []
    run.directory.mark_done = lambda: (left.extend(run.directory.buffer.glob(".unfinished*")), mark_done())
    run.play()
    assert run.directory.done and left == [] and len(transitions(run)) == 2


def test_with_beta_one_the_expert_drives_and_its_wins_solve_nothing(make_run, scripted):
    policy = scripted("inventory")
    run = make_run(policy=policy, num_rounds=1, beta=[1.0], max_steps=50)
    summary = run.play()
    assert summary["won"] == 2 and policy.inputs == []
    assert all(r.won and r.assisted and not r.solved for r in run.journal)
    assert all(t.executed == t.text_output and t.text_output_neg == "" for t in transitions(run))
    assert "SUCCESS: 0\n" in (run.directory.results / "world.log").read_text()


def test_beta_follows_the_rounds_and_its_last_value_repeats(make_run, scripted):
    run = make_run(policy=scripted("inventory"), num_rounds=3, beta=[1.0, 0.0], max_steps=3)
    run.play()
    assert [(r.round, r.assisted) for r in run.journal] == [
        (0, True), (0, True), (1, False), (1, False), (2, False), (2, False),
    ]  # fmt: skip


def test_with_preferences_the_policy_is_asked_while_the_expert_drives(make_run, scripted):
    run = make_run(policy=scripted("inventory"), num_rounds=1, beta=[1.0], preferences=True, max_steps=3)
    run.play()
    assert [t.text_output_neg for t in transitions(run)] == ["inventory"] * 3
    assert all(t.text_output == t.executed != "inventory" for t in transitions(run))


def test_a_filtered_expert_answer_makes_the_policys_action_the_label(make_run, scripted):
    run = make_run(policy=scripted("inventory"), num_rounds=1, beta=[1.0], max_steps=3)
    run.loop.front.make_expert = lambda: FixedExpert(None)
    run.play()
    assert [(t.executed, t.text_output) for t in transitions(run)] == [("inventory", "inventory")] * 3
    assert not run.journal[0].assisted


def test_an_evaluation_shows_the_policy_alone_and_stores_nothing(make_run, scripted, monkeypatch):
    run = make_run(policy=scripted("look"), train=False, beta=[1.0])
    # Its labels are of no use, and a language model's cost.
    monkeypatch.setattr("xrl_alignment.dagger.loop.act_all", lambda *_: pytest.fail("the expert was asked"))
    run.play()
    assert len(run.journal) == 4 and not any(r.assisted or r.shard for r in run.journal)
    assert list(run.directory.buffer.iterdir()) == [] and not list(run.directory.path.glob("*.pth"))
    assert run.directory.done and "ROUND: 1\n" in (run.directory.results / "world.log").read_text()


def test_images_reach_model_and_shard_as_the_environment_drew_them(make_run, scripted, games):
    policy = scripted("inventory")
    run = make_run(policy=policy, num_rounds=1, max_steps=2)
    run.play()
    environment = make_environment("native")
    environment.reset(games[0])
    assert (policy.inputs[0].image == environment.render()).all()
    assert (transitions(run)[0].image == environment.render()).all()


# --- thoughts ---------------------------------------------------------------------------------------------------------


def test_thoughts_are_answered_ok_without_the_environment(make_run, scripted):
    policy = scripted("think: first I look.", "look")
    run = make_run(policy=policy, num_rounds=1, enable_tc=True, max_steps=2)
    summary = run.play()
    assert summary["steps"] == 4  # two games, two actions each: the thought is none
    assert run.journal[0].steps[0] == ["think: first I look.", "OK."] and run.journal[0].actions == 2
    assert policy.inputs[1].prompt.endswith("> think: first I look.\nOK.\n> ")


def test_an_expert_who_drives_thinks_once_then_acts(make_run, scripted):
    run = make_run(policy=scripted("look"), num_rounds=1, enable_tc=True, beta=[1.0], max_steps=2)
    run.loop.front.make_expert = lambda: FixedExpert("inventory", "I need a Mug.")
    run.play()
    assert [t.text_output for t in transitions(run)] == ["think: i need a mug", "inventory", "inventory"]


def test_endless_thinking_ends_after_three(make_run, scripted):
    run = make_run(policy=scripted("think: hm"), num_rounds=1, enable_tc=True, max_steps=1)
    run.play()
    assert [feedback for _, feedback in run.journal[0].steps] == ["OK."] * 3 + ["Nothing happens."]


def test_a_thought_that_comes_again_and_again_ends_the_episode(make_run, scripted):
    policy = scripted("think: hm", "think: hm", "look")
    run = make_run(policy=policy, num_rounds=1, num_envs=1, enable_tc=True, max_steps=5, repeat_limit=2)
    run.play()
    assert run.directory.done and run.journal[0].steps == [["think: hm", "OK."]] * 2


def test_without_thought_chains_a_thought_is_an_action_like_any(make_run, scripted):
    run = make_run(policy=scripted("think: hm"), num_rounds=1, max_steps=2)
    run.play()
    assert run.journal[0].steps == [["think: hm", "Nothing happens."]] * 2


def test_a_hub_model_that_has_learned_to_think_thinks_then_acts(make_run, students, watched):
    run = make_run(student=students("hub"), watch=watched, train=False, num_rounds=1, enable_tc=True, max_steps=2)
    learn_to_say(run.model, "think: so")
    run.play()
    policy = run.loop.policy
    assert run.journal[0].steps[0] == ["think: so", "OK."] and run.journal[0].actions == 2
    assert "> think: so\nOK.\n>" in read_by(run.model, policy.inputs[1])


def test_a_hub_model_learns_the_experts_thoughts(make_run, students):
    run = make_run(student=students("hub"), num_rounds=1, enable_tc=True, beta=[1.0], max_steps=2)
    run.loop.front.make_expert = lambda: FixedExpert("inventory", "I need a Mug.")
    before = {name: value.clone() for name, value in run.model.trainable_state_dict().items()}
    run.play()
    assert [t.text_output for t in transitions(run)] == ["think: i need a mug", "inventory", "inventory"]
    assert any(not torch.equal(value, before[name]) for name, value in run.model.trainable_state_dict().items())


def learn_to_say(model, answer: str) -> None:
    """Train `model` until this is its answer to every opening."""
    batch = {"image": [PIXEL], "text_input": [f"{opening('x')}\n> "], "text_output": [answer]}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-2)
    for _ in range(60):
        model.losses(batch, "bc").loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def read_by(model, item) -> str:
    """The text that a hub model reads of a policy's input, as its tokenizer has it."""
    inputs = model.chat.read(Question(item.prompt, (*item.earlier, item.image)))
    return model.chat.tokenizer.decode(inputs["input_ids"][0])


# --- the end of an episode --------------------------------------------------------------------------------------------


def test_a_stuck_episode_ends(make_run, scripted):
    run = make_run(policy=scripted("inventory", "look"), num_rounds=1, repeat_limit=3)
    summary = run.play()
    assert [r.actions for r in run.journal] == [4, 4] and summary["steps"] == 8
    assert run.journal[0].steps[-1][0] == "look"


def test_a_game_solved_by_the_policy_is_not_played_again(make_run, scripted, games):
    solution = solve(games[0])
    run = make_run(policy=scripted(*solution), num_rounds=2, max_steps=40)
    run.play()
    played = [(r.round, r.game) for r in run.journal]
    assert played == [(0, games[0].id), (0, games[1].id), (1, games[1].id)] and run.journal[0].solved
    blocks = (run.directory.results / "world.log").read_text()
    assert "ROUND: 0\nSUCCESS: 1\nADDITIONAL SUCCESS: 1\nFAIL: 1\nTOTAL: 2\nACCURACY: 0.50\n" in blocks
    assert "ROUND: 1\nSUCCESS: 1\nADDITIONAL SUCCESS: 0\n" in blocks


def test_rounds_pass_when_every_game_is_solved(make_run, scripted, games):
    run = make_run(policy=scripted(*solve(games[0])), games=games[:1], num_rounds=3, max_steps=40)
    run.play()
    assert len(run.journal) == 1 and run.directory.done
    assert sorted(p.name for p in run.directory.path.glob("*.pth")) == [f"emma_checkpoint_{i}.pth" for i in range(3)]


def solve(game) -> list[str]:
    """What the explorer does in `game`."""
    from xrl_alignment.agents.experts import make_expert

    environment, expert = make_environment("native"), make_expert("explorer")
    step, actions = environment.reset(game), []
    expert.begin(step.text)
    while not step.done:
        actions.append(expert.act().action)
        step = environment.step(actions[-1])
        expert.observe(actions[-1], step.text)
    assert step.won
    return actions


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_several_sessions_share_the_games_of_every_round(make_run, scripted, games):
    run = make_run(policy=scripted("look"), games=games, max_steps=2)
    assert run.play(num_workers=3)["episodes"] == 8
    assert sorted((r.round, r.env, r.game) for r in run.journal) == sorted(
        (number, env, game.id) for number in range(2) for env, game in enumerate(games)
    )


class Arrivals:
    """Stands for the server's queue: what is taken is written down before."""

    def __init__(self, *batches) -> None:
        self.batches = list(batches)

    def take(self, most: int, timeout_s: float, **window):
        return self.batches.pop(0) if self.batches else []


def answer(loop, pending) -> None:
    """Let the loop answer `pending`, and what else stands in its queue if it asks for it."""
    loop.front.server.batches.insert(0, pending)
    asking, ended = loop.front.collect()
    while asking:
        asking, given_up = loop.answer(asking, loop.decide_each([episode for _, episode in asking]), None)
        ended += given_up
    for episode in ended:
        loop.store(episode)


def ask(kind, session: str, seq: int, **fields) -> PendingRequest:
    return PendingRequest(kind(session=session, seq=seq, **fields), "v2")


def see(session: str, seq: int, game: str = "", done: bool = False) -> PendingRequest:
    return ask(Observation, session, seq, text=opening(game), task_type=game, done=done, image=PIXEL, information={})


def said(pending: PendingRequest):
    return v2.decode_reply(pending.wait().body)


@pytest.fixture
def scripted_loop(make_run, scripted, games):
    """A loop, its policy, and two games that sessions a and b have been given."""
    run = make_run(policy=scripted("look"), games=games[:2], num_rounds=1, max_steps=5)
    recover(run.rounds, run.training)
    names = [game.id for game in games[:2]]
    run.loop.front.server = Arrivals()
    for session in "ab":
        answer(run.loop, [ask(Hello, session, 1, games=tuple(names))])
        answer(run.loop, [ask(Next, session, 2)])
    yield run.loop, names
    run.server.stop()
    run.directory.close()


def test_the_first_observation_of_who_has_just_come_is_waited_for(scripted_loop):
    loop, names = scripted_loop
    first, second = see("a", 3, names[0]), see("b", 3, names[1])
    loop.front.server.batches = [[second]]
    answer(loop, [first, ask(Hello, "c", 1, games=tuple(names))])
    assert loop.front.server.batches == [] and len(loop.policy.inputs) == 2
    assert said(first)["action"] == said(second)["action"] == "look"


def test_who_has_ended_a_game_is_not_given_it_again_before_it_is_committed(scripted_loop):
    loop, names = scripted_loop
    answer(loop, [see("a", 3, names[0])])
    another = ask(Next, "a", 5)
    loop.front.server.batches = [[another]]
    answer(loop, [see("a", 4, done=True), see("b", 3, names[1]), ask(Hello, "c", 1, games=tuple(names))])
    if loop.front.server.batches:
        answer(loop, loop.front.server.batches.pop())
    assert said(another)["kind"] == "wait"  # for b's game


def test_who_leaves_behind_its_last_observation_has_played(scripted_loop):
    """Ctrl-C at the client while the policy computes: both messages are read together."""
    loop, names = scripted_loop
    answer(loop, [see("a", 3, names[0]), ask(Bye, "b", 3)])
    farewell = ask(Bye, "a", 5)
    answer(loop, [see("a", 4, done=True), farewell])
    answer(loop, [])
    assert said(farewell)["kind"] == "bye" and not loop.front.greeted
    assert loop.directory.games() == names and [r.game for r in loop.directory.episodes()] == names[:1]
    answer(loop, [ask(Hello, "c", 1, games=tuple(names))])
    work = ask(Next, "c", 2)
    answer(loop, [work])
    assert said(work)["game"] == names[1]


def test_a_lost_game_is_given_to_nobody_before_it_is_committed(scripted_loop):
    loop, names = scripted_loop

    class Failing(FixedExpert):
        def begin(self, intro, **context):
            raise IndexError("x")

    loop.front.make_expert = lambda: Failing("look")
    answer(loop, [see("a", 3, names[0])])
    answer(loop, [ask(Next, "a", 4)])
    answer(loop, [see("a", 5, names[0])])
    answer(loop, [ask(Next, "a", 6)])
    answer(loop, [ask(Hello, "c", 1, games=tuple(names))])
    another = ask(Next, "c", 2)
    answer(loop, [see("a", 7, names[0]), another])
    answer(loop, [])
    assert said(another)["kind"] == "wait"  # for b's game
    assert [record.game for record in loop.directory.episodes()] == [names[0]]


def test_hello_tells_rounds_games_and_expert(make_run, scripted):
    run = make_run(policy=scripted("look"), client_expert="planner", num_rounds=3).start()
    welcome = Session(run, "a").send(Hello, games=("g/1", "g/2", "g/3"))
    assert welcome == {"kind": "welcome", "num_rounds": 3, "num_envs": 2, "expert": "planner"}
    assert run.directory.games() == ["g/1", "g/2"]
    refusal = Session(run, "b").send(Hello, games=("g/2", "g/1"))
    assert refusal["kind"] == "error" and "other games" in refusal["reason"]
    refusal = Session(run, "c").send(Hello, games=("g/1",))
    assert refusal["kind"] == "error" and "offers 1 different games, the run has 2" in refusal["reason"]


def test_a_session_that_was_refused_gets_no_game(make_run, scripted):
    """One that ignored the refusal of its hello was handed games of this run."""
    run = make_run(policy=scripted("look"), num_envs=1, num_rounds=1).start()
    assert Session(run, "a").send(Hello, games=("g/1",))["kind"] == "welcome"
    assert (refused := Session(run, "b")).send(Hello, games=("g/2",))["kind"] == "error"
    assert "say hello first" in refused.send(Next)["reason"]
    assert "say hello first" in refused.observe(opening("g/1"), "g/1")["reason"]
    assert Session(run, "c").send(Next) == 410, "of a session that never said hello"
    assert not run.loop.front.episodes and not run.directory.episodes()


def test_a_silent_sessions_game_goes_to_another(make_run, scripted):
    run = make_run(policy=scripted("look"), num_envs=1, num_rounds=1, session_timeout_s=1000).start()
    silent, other = Session(run, "silent"), Session(run, "other")
    for session in (silent, other):
        session.send(Hello, games=("g/1",))
    assert silent.send(Next)["game"] == "g/1"
    assert silent.observe(opening("g/1"), "g/1") == {"kind": "action", "action": "look"}
    assert other.send(Next)["kind"] == "wait"
    known = run.server._admission._sessions["silent"]
    known.heard_at = known.pending.answered_at = time.monotonic() - 1001
    deadline = time.monotonic() + 60
    while (work := other.send(Next))["kind"] == "wait":
        assert time.monotonic() < deadline
        time.sleep(work["seconds"])
    assert work["game"] == "g/1" and silent.observe() == 410
    assert other.observe(opening("g/1"), "g/1")["action"] == "look"
    assert other.observe("Done.", done=True, won=True)["action"] is None
    assert other.send(Next) == {"kind": "finished", "solved": 1, "games": 1}
    other.send(Bye)
    assert [(r.won, r.actions) for r in run.wait().journal] == [(True, 1)]


def test_work_is_given_back_by_bye_and_by_asking_again(make_run, scripted):
    run = make_run(policy=scripted("look"), num_envs=1, num_rounds=1).start()
    one, two = Session(run, "one"), Session(run, "two")
    for session in (one, two):
        session.send(Hello, games=("g/1",))
    assert one.send(Next)["kind"] == "work" and two.send(Next)["kind"] == "wait"
    one.observe(opening("g/1"), "g/1")
    assert two.observe(opening("g/1"), "g/1")["action"] is None  # it is in the other's hands
    assert one.send(Next)["kind"] == "work"  # began anew
    one.send(Bye)
    assert two.send(Next)["kind"] == "work" and run.journal == []
    assert "given back: its client asked for new work" in run.log


def test_strange_text_does_not_end_the_server(make_run, scripted):
    run = make_run(policy=scripted("look"), num_envs=1, num_rounds=1).start()
    session = Session(run, "a")
    session.send(Hello, games=("\U0001f600~half~",))
    assert session.observe("", "\U0001f600~half~", expert_action=7, admissible_commands=None) == {
        "kind": "action",
        "action": "look",
    }
    assert (
        session.observe("\x00 ~half~ Your task is to: ", expert_action="~half~", admissible_commands=["~half~"])[
            "action"
        ]
        == "look"
    )
    assert session.observe("…", done=True)["action"] is None
    assert run.wait().error is None and run.journal[0].won  # done, and nobody says that it was lost


def test_a_strange_command_that_a_policy_hands_on_does_not_end_the_server(make_run):
    class Echo:
        def act(self, batch):
            return [(*item.admissible_commands, "look")[0] for item in batch]

        def close(self):
            pass

    run = make_run(policy=Echo(), num_envs=1, num_rounds=1).start()
    session = Session(run, "a")
    session.send(Hello, games=("g/1",))
    assert session.send(Next)["kind"] == "work"
    assert session.observe(opening("g/1"), "g/1", admissible_commands=["~half~"])["action"] == "?"
    assert session.observe("Done.", done=True, won=True)["action"] is None
    session.send(Bye, reason="left\nERROR: not true ~half~")
    assert run.wait().error is None and run.journal[0].won


def test_the_reason_of_a_client_that_leaves_is_one_line_of_the_log(make_run, scripted):
    run = make_run(policy=scripted("look"), num_envs=1, num_rounds=1).start()
    one, two = Session(run, "one"), Session(run, "two")
    for session in (one, two):
        session.send(Hello, games=("g/1",))
    one.send(Next)
    one.observe(opening("g/1"), "g/1")
    one.send(Bye, reason="left\nERROR: not true ~half~")
    assert two.send(Next)["kind"] == "work"
    assert "given back: its client left ERROR: not true ?" in run.log and "\nERROR: not true" not in run.log


def test_status_tells_how_far_the_run_is(make_run, scripted):
    run = make_run(policy=scripted("look"), max_steps=2)
    run.play()
    status = run.loop.status()
    assert (status["episodes"], status["solved"], status["finished"], status["playing"]) == (4, 0, True, 0)
    assert status["played_in_round"] == 2 and status["training_step"] == 4


# --- wire v1 ----------------------------------------------------------------------------------------------------------


def test_v1_plays_two_rounds_and_skips_what_is_solved(make_run, scripted, games):
    run = make_run(policy=scripted(*solve(games[0])), max_steps=40).start()
    client = OriginalClient(run, games[:2])
    client.environment = make_environment("native", max_steps=40)
    client.play(2)
    run.wait()
    one, two = (game.id for game in games[:2])
    assert client.log[0][::2] == (one, []) and client.log[2] == (one, 0, ["SKIP"])
    assert [(r.round, r.game, r.solved) for r in run.journal] == [(0, one, True), (0, two, False), (1, two, False)]


def test_v1_a_new_game_ends_the_one_before_unsolved(make_run, scripted, games):
    run = make_run(policy=scripted("look"), max_steps=40, num_rounds=1).start()
    client = OriginalClient(run, [*games[:2], games[0]])
    client.play(1, says_done=False)
    run.wait()
    assert [(r.game, r.won, r.actions) for r in run.journal] == [(g.id, False, 4) for g in games[:2]]
    assert len(transitions(run)) == 4 and transitions(run)[3].feedback == ""


def test_v1_the_servers_step_limit_ends_an_episode_with_skip(make_run, scripted, games):
    run = make_run(policy=scripted("look"), max_steps=2, num_rounds=1).start()
    client = OriginalClient(run, games[:2])
    client.play(1)
    assert client.log == [(game.id, 2, ["SKIP"]) for game in games[:2]]
    assert [r.actions for r in run.wait().journal] == [2, 2]


def test_v1_games_beyond_the_runs_are_skipped_and_too_few_are_told(make_run, scripted, games, caplog):
    run = make_run(policy=scripted("look"), num_envs=2, num_rounds=1, max_steps=2).start()
    client = OriginalClient(run, games[:1])
    client.play(2)
    assert client.log[1] == (games[0].id, 0, ["SKIP"]) and "begins again after 1 games, the run has 2" in caplog.text
    client.games = games[1:3]
    threading.Thread(target=client.play, args=(1,), daemon=True).start()
    assert [r.game for r in run.wait().journal] == [game.id for game in games[:2]]


# --- what a run is a function of --------------------------------------------------------------------------------------


def test_one_session_makes_a_run_a_function_of_config_and_seed(make_run):
    runs = [make_run(name, max_steps=4, beta=[0.5], seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    for run in runs:
        run.play()
    a, b, c = (run.log for run in runs)
    assert a == b != c and "Loss: [" in a
    states = [run.model.trainable_state_dict() for run in runs[:2]]
    assert all((states[0][name] == states[1][name]).all() for name in states[0])


@pytest.mark.parametrize(("die_at", "train_every"), [(3, 1), (7, 1), (7, 3)])
def test_a_killed_run_resumes_to_the_very_same_end(make_run, scripted, die_at, train_every):
    options = {"max_steps": 4, "beta": [0.5], "state_interval_s": 0.0 if die_at == 3 else 1e9}
    options["train_every"] = train_every
    whole = make_run("whole", policy=scripted("look", "inventory"), **options)
    whole.play()
    killed = make_run("killed", policy=scripted("look", "inventory", die_at=die_at), **options)
    assert killed.play() is None and not killed.directory.done
    finished = len(killed.journal)
    (killed.directory.buffer / "round000_env0001_steps009.h5").write_bytes(b"orphan")
    again = make_run("killed", policy=scripted("look", "inventory"), **options)
    again.play()
    assert finished < 4 and len(again.journal) == 4 and again.directory.done
    assert [(r.round, r.env, r.game, r.steps) for r in again.journal] == [
        (r.round, r.env, r.game, r.steps) for r in whole.journal
    ]
    ends = [run.model.trainable_state_dict() for run in (whole, again)]
    assert all((ends[0][name] == ends[1][name]).all() for name in ends[0])
    assert again.directory.memories() == whole.directory.memories()
    for name in ("trial_0.log", "trial_1.log", "env_results_trial_1.json"):
        texts = [(run.directory.results / name).read_text() for run in (whole, again)]
        assert texts[0] == texts[1]


def test_a_killed_run_of_a_hub_model_resumes_to_the_very_same_end(make_run, students, watched):
    """It acts itself, reads two frames, memories and thoughts, and learns from preferences."""
    options = {"student": students("hub"), "preferences": True, "enable_tc": True, "beta": [0.5], "max_steps": 3}
    whole = make_run("whole", **options)
    first = {name: value.clone() for name, value in whole.model.trainable_state_dict().items()}
    whole.play()
    killed = make_run("killed", watch=partial(watched, die_at=8), state_interval_s=1e9, **options)
    assert killed.play() is None and 0 < len(killed.journal) < 4 and not killed.directory.done
    again = make_run("killed", watch=watched, **options)
    again.play()
    assert again.directory.done and [(r.round, r.env, r.game, r.steps) for r in again.journal] == [
        (r.round, r.env, r.game, r.steps) for r in whole.journal
    ]
    ends = [run.model.trainable_state_dict() for run in (whole, again)]
    assert all(torch.equal(ends[0][name], value) for name, value in ends[1].items())
    assert any(not torch.equal(first[name], value) for name, value in ends[1].items())
    read = read_by(again.model, again.loop.policy.inputs[-1])
    assert again.directory.memories() == whole.directory.memories() and "Memory: (by rule)" in read
    assert read.count("<|vision_start|>") == 2


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
@pytest.mark.parametrize("interval", [0.0, 1e9])
def test_an_episode_whose_shard_a_power_loss_took_is_played_again(make_run, scripted, damage, interval):
    killed = make_run(policy=scripted("look", die_at=4), max_steps=3, state_interval_s=interval)
    assert killed.play() is None and len(killed.journal) == 1
    shard = killed.directory.buffer / killed.journal[0].shard
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.unlink() if damage == "missing" else shard.write_bytes(content if damage == "flipped" else content[:2000])
    again = make_run(policy=scripted("look"), max_steps=3, state_interval_s=interval)
    again.play()
    assert again.error is None and again.directory.done
    assert [(r.round, r.env) for r in again.journal] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert "Task: [0] of round 0 is lost, it is played again: " in again.log and shard.name in again.log
    assert (again.directory.state / "episodes.jsonl.1").exists()
    assert (again.directory.results / "trial_0.log").read_text().count("STATUS") == 2


def test_a_lost_shard_of_a_round_that_has_ended_is_learned_from_no_more(make_run, scripted):
    killed = make_run(policy=scripted("look", die_at=8), max_steps=3)
    assert killed.play() is None and [r.round for r in killed.journal] == [0, 0]
    (killed.directory.buffer / killed.journal[1].shard).unlink()
    again = make_run(policy=scripted("look"), max_steps=3)
    again.training.restore(2)
    assert len(again.training.games.games) == 2, "the weights have learned from both games"
    again.play()
    assert again.error is None and [(r.round, r.env) for r in again.journal] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert "Task: [1] of round 0 is lost, nothing more is learned from it" in again.log


@pytest.mark.parametrize("train_every", [1, 3])
def test_the_last_state_is_saved_also_by_a_resume_that_plays_nothing(make_run, scripted, train_every):
    run = make_run(policy=scripted("look"), max_steps=3, train_every=train_every)
    old = []
    begin_next = run.rounds.begin_next

    def killed_after():
        begin_next()
        if run.loop.rounds.finished:
            old.append(run.directory.trainer.read_bytes())
            raise KeyboardInterrupt

    run.rounds.begin_next = killed_after
    assert run.play() is None
    run.directory.trainer.write_bytes(old[0])
    again = make_run(policy=scripted("look"), max_steps=3, train_every=train_every, state_interval_s=1e9)
    again.start().wait()
    assert again.error is None and again.directory.done and not list(again.directory.state.glob(".*.tmp"))
    ends = [load_checkpoint(path) for path in (again.directory.trainer, again.directory.checkpoint(1))]
    assert ends[0]["round"] == 2 and all((ends[0]["model"][n] == w).all() for n, w in ends[1]["model"].items())


def test_a_resume_with_several_sessions_keeps_every_games_place(make_run, scripted, games):
    killed = make_run(policy=scripted("look", die_at=7), games=games, max_steps=2)
    killed.play(num_workers=3)
    again = make_run(policy=scripted("look"), games=games, max_steps=2)
    again.play(num_workers=2)
    places = {(r.env, r.game) for r in again.journal}
    assert places == {(i, game.id) for i, game in enumerate(games)} and len(again.journal) == 8


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_batch(make_run, scripted):
    run = make_run(policy=scripted("look"), max_steps=2)
    learn = run.training.learn
    run.training.learn = lambda record: (run.model.llm_proj.weight.data.fill_(float("nan")), learn(record))
    assert run.play() is None
    assert "the loss is nan in round 0, training step 0" in str(run.error)
    assert "round000_env0000_steps002.h5 step" in str(run.error) and "ERROR:" in run.log


@pytest.mark.parametrize("says_done", [True, False])
def test_v1_the_bare_task_type_plays_whole_rounds(make_run, scripted, games, says_done):
    """The original's example sends `pick_and_place` for every game: their order says which one it is."""
    run = make_run(policy=scripted("look"), max_steps=3, num_rounds=2).start()
    bare = [type("Bare", (), {"id": "pick_and_place", "path": game.path, "horizon": 0})() for game in games[:2]]
    client = OriginalClient(run, [*bare, *bare, bare[0]] if not says_done else bare)
    client.play(2 if says_done else 1, says_done=says_done)
    run.wait()
    assert run.directory.done and run.directory.games() == ["pick_and_place-env0", "pick_and_place-env1"]
    assert [(r.round, r.env) for r in run.journal] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert run.journal[0].trace().task_type == "pick_and_place"


def test_v1_skips_a_solved_game_of_bare_type_and_plays_the_other(make_run, scripted, games):
    run = make_run(policy=scripted(*solve(games[0])), max_steps=40).start()
    client = OriginalClient(
        run, [type("Bare", (), {"id": "pick", "path": game.path, "horizon": 0})() for game in games[:2]]
    )
    client.environment = make_environment("native", max_steps=40)
    client.play(2)
    run.wait()
    assert [(r.round, r.env, r.solved) for r in run.journal] == [(0, 0, True), (0, 1, False), (1, 1, False)]
    assert client.log[2] == ("pick", 0, ["SKIP"])


def test_v1_an_expert_that_fails_at_the_first_observation_gives_up_that_game(make_run, scripted, games):
    run = make_run(policy=scripted("look"), max_steps=3, num_rounds=1)
    run.loop.front.labels_required = True
    make_expert, asked = run.loop.front.make_expert, []

    def failing():
        asked.append(1)
        if len(asked) == 3:  # the first two are the first game's
            raise ValueError("this label cannot be read")
        return make_expert()

    run.loop.front.make_expert = failing
    bare = [type("Bare", (), {"id": "pick_and_place", "path": game.path, "horizon": 0})() for game in games[:2]]
    OriginalClient(run.start(), bare).play(1)
    run.wait()
    assert [(r.env, len(r.steps)) for r in run.journal] == [(0, 3), (1, 0)]


def test_v1_without_labels_is_refused_with_the_reason(make_run, scripted, games):
    run = make_run(policy=scripted("look"), expert="client", client_expert="client", max_steps=2, num_rounds=1)
    run.loop.front.labels_required = True
    client = OriginalClient(run.start(), games[:2])
    with pytest.raises(ConnectionError, match="400"):
        client.play_game(games[0], True)
    assert run.directory.games() == [] and run.journal == [] and "has no label (expert_action)" in run.log
    run.server.stop()
    assert run.wait().error is None and not run.directory.done  # a stopped server ends the loop


# --- decisions --------------------------------------------------------------------------------------------------------


def test_a_decision_changes_no_episode_until_it_is_committed(make_run, scripted):
    run = make_run(policy=scripted("look"), games=[], num_envs=1, num_rounds=1, expert="client", beta=[1.0])
    seen = ask(Observation, "a", 1, text=opening("g/1"), task_type="g/1", image=PIXEL, information={"note": "x"})
    run.loop.front.server = Arrivals([seen])
    run.loop.front.greeted["a"] = Hello("a", 0, ())
    ((request, episode),), ended = run.loop.front.collect()
    before = (list(episode.steps), len(episode.transitions), episode.unlabelled, episode.assisted, episode.observation)
    first, second = (run.loop.decide([episode]) for _ in range(2))
    assert first == second and first[0].executed == first[0].label == first[0].own == "look"
    assert not first[0].expert_drives and not first[0].labelled  # the client has sent no label
    after = (list(episode.steps), len(episode.transitions), episode.unlabelled, episode.assisted, episode.observation)
    assert before == after and (request, ended) == (seen, [])
    assert run.loop.answer([(request, episode)], first, None) == ([], [])
    assert (len(episode.transitions), episode.unlabelled, episode.transitions[0].executed) == (1, 1, "look")
    assert said(seen)["action"] == "look"
    run.server.stop()
    run.directory.close()
