"""What a client sends may end its episode, never the run: poison over real sockets, through the real parts."""

import threading
import time
from http.client import HTTPConnection

import numpy as np
import pytest
import torch

from xrl_alignment.builders.student import make_policy
from xrl_alignment.common.errors import BudgetSpent, EndpointFault, PromptTooLong
from xrl_alignment.dagger.episode import may_be_the_datas
from xrl_alignment.dagger.rounds import LabelGuard
from xrl_alignment.runs.directory import RunDirectoryError
from xrl_alignment.settings.policy import PolicyConfig
from xrl_alignment.wire import v2
from xrl_alignment.wire.messages import Bye, Hello, Next, Observation, md5_hex

PIXEL = np.zeros((224, 224, 3), np.uint8)
ROOM = "You are in the middle of a room. Looking quickly around you, you see a desk 1, and a shelf 1.\n\n"
OPENING = f"{ROOM}Your task is to: put a mug in desk 1."


class Client:
    """A v2 session, message by message."""

    def __init__(self, run, name: str) -> None:
        self.http = HTTPConnection("127.0.0.1", run.server.port, timeout=60)
        self.name, self.seq = name, 0

    def send(self, make, **fields):
        self.seq += 1
        body = v2.encode(make(session=self.name, seq=self.seq, **fields))
        self.http.request("POST", "/", body, {"MD5": md5_hex(body), "Content-Type": v2.CONTENT_TYPE})
        response = self.http.getresponse()
        reply = response.read()
        return v2.decode_reply(reply) if response.status == 200 else (response.status, reply.decode())

    def see(self, text="Nothing happens.", game="", done=False, image=PIXEL, **information):
        return self.send(Observation, text=text, task_type=game, done=done, image=image, information=information)


@pytest.fixture
def begin(make_run, scripted):
    """`begin(name, …)`: a run with one game `g/1`, and a client that has been given it."""

    def make(name: str = "run", **options):
        options = {"policy": scripted("look"), "num_envs": 1, "num_rounds": 1} | options
        run = make_run(name, **options).start()
        client = Client(run, "a")
        client.send(Hello, games=("g/1",))
        assert client.send(Next)["game"] == "g/1"
        return run, client

    return make


def finish(run, client) -> None:
    """Play the game to its end with harmless messages."""
    while (work := client.send(Next))["kind"] != "finished":
        assert work["kind"] == "work", work
        assert client.see(OPENING, "g/1", admissible_commands=["look"])["action"]
        assert client.see(done=True, won=True)["action"] is None
    client.send(Bye)
    assert run.wait().error is None and run.directory.done


def given_up(reply: dict) -> str:
    """The reason that a session was told when its episode was given up."""
    assert (reply["kind"], reply["action"]) == ("action", None), reply
    return reply["reason"]


@pytest.mark.parametrize("commands", [5, {"x": 1}, "look", [3], [["look"], ["go"]], [{}]])
def test_commands_that_are_no_texts_are_refused_at_the_door(begin, commands):
    run, client = begin()
    status, reason = client.see(OPENING, "g/1", admissible_commands=commands)
    assert status == 400 and "information.admissible_commands must be a list of texts" in reason
    finish(run, client)


def test_a_text_at_which_the_expert_fails_ends_that_episode_alone(begin):
    run, client = begin()
    client.see(OPENING, "g/1")
    reply = client.see("You are carrying: nothing.")
    if reply["action"] is None:  # until the belief reads this sentence
        assert "IndexError" in given_up(reply)
        assert "ERROR:dagger_server_running:Task: [0] given up: IndexError" in run.log
    finish(run, client)
    assert [(r.won, r.actions) for r in run.journal] == [(True, 1)]


class FailsAt:
    """A part that fails at one text, whenever it is shown it."""

    name = "fails"

    def __init__(self, inner, place: str, error: Exception) -> None:
        self.inner, self.place, self.error = inner, place, error

    def __getattr__(self, name):
        method = getattr(self.inner, name)
        if name != self.place:
            return method

        def failing(*arguments, **context):
            if "poison" in repr((arguments, context)):
                raise self.error
            return method(*arguments, **context)

        return failing


@pytest.mark.parametrize("error", [IndexError("x"), RecursionError("x"), PromptTooLong("x")])
@pytest.mark.parametrize("place", ["begin", "observe", "act"])
def test_an_expert_that_fails_at_a_text_gives_the_episode_up(begin, place, error):
    run, client = begin()
    make = run.loop.front.make_expert
    run.loop.front.make_expert = lambda: FailsAt(make(), place, error)
    information = {"note": "poison"} if place == "act" else {}
    text = "poison" if place == "begin" else OPENING
    reply = client.see(text, "g/1", **information)
    if place == "observe":
        reply = client.see("poison")
    assert given_up(reply) == f"{type(error).__name__}: x"
    finish(run, client)


@pytest.mark.parametrize("place", ["prompt", "policy"])
def test_prompt_writer_and_policy_that_fail_at_a_text(begin, scripted, place):
    policy = scripted("look")
    run, client = begin(policy=FailsAt(policy, "act", ValueError("bad")) if place == "policy" else policy)
    if place == "prompt":
        write = run.loop.write_prompt

        def failing(task, memories, steps):
            if any("poison" in feedback for _, feedback in steps):
                raise ValueError("bad")
            return write(task, memories, steps)

        run.loop.write_prompt = failing
    client.see(OPENING, "g/1")
    assert given_up(client.see("poison")) == "ValueError: bad"
    finish(run, client)


def test_in_a_batch_only_the_poisoned_episode_ends(make_run, scripted, games):
    run = make_run(policy=FailsAt(scripted("look"), "act", ValueError("bad")), num_envs=2, num_rounds=1).start()
    names, clients = ("g/1", "g/2"), [Client(run, name) for name in "ab"]
    run.loop.front.window_s = 1.0
    for client, name in zip(clients, names, strict=True):
        client.send(Hello, games=names)
        assert client.send(Next)["game"] == name
    replies: dict[str, dict] = {}
    texts = {"g/1": OPENING, "g/2": OPENING.replace("mug", "poison")}
    threads = [
        threading.Thread(target=lambda c=c, n=n: replies.update({n: c.see(texts[n], n)}))
        for c, n in zip(clients, names, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    run.loop.front.window_s = 0.02
    assert replies["g/1"]["action"] == "look" and given_up(replies["g/2"]) == "ValueError: bad"
    for client, name in zip(clients, names, strict=True):
        if name == "g/2":
            assert client.send(Next)["game"] == name
            assert client.see(OPENING, name)["action"] == "look"
        assert client.see(done=True, won=True)["action"] is None
    for client in clients:
        client.send(Bye)
    assert run.wait().error is None and [len(r.steps) for r in run.journal] == [1, 1]


class UnusableAt:
    """A policy whose answer to a text is no text: it cannot be stored."""

    def act(self, batch):
        return [b"look" if "poison" in item.prompt else "look" for item in batch]


def test_a_missing_label_counts_once_if_another_episode_of_the_batch_is_given_up(make_run):
    run = make_run(policy=UnusableAt(), num_envs=2, num_rounds=1, expert="client").start()
    run.loop.front.window_s = 1.0  # both observations come within it
    names, clients = ("g/1", "g/2"), [Client(run, name) for name in "ab"]
    for client, name in zip(clients, names, strict=True):
        client.send(Hello, games=names)
        assert client.send(Next)["game"] == name
    sound, poisoned = clients
    replies: list[dict] = []
    waiting = threading.Thread(target=lambda: replies.append(sound.see(OPENING, "g/1")))
    waiting.start()
    time.sleep(0.3)  # the sound episode is the first of the batch
    assert "TypeError" in given_up(poisoned.see(OPENING.replace("mug", "poison"), "g/2"))
    waiting.join(60)
    run.loop.front.window_s = 0.02
    assert replies[0]["action"] == "look"
    assert poisoned.send(Next)["game"] == "g/2" and poisoned.see(OPENING, "g/2")["action"] == "look"
    for client in clients:
        assert client.see(done=True, won=True)["action"] is None
    for client in clients:
        client.send(Bye)
    assert run.wait().error is None and [(r.states, r.unlabelled) for r in run.journal] == [(1, 1), (1, 1)]


def test_an_image_of_another_size_ends_the_episode(begin):
    run, client = begin()
    client.see(OPENING, "g/1")
    reason = given_up(client.see(image=np.zeros((8, 8, 3), np.uint8)))
    assert reason.endswith("size changed within the episode, from 224 × 224 × 3 to 8 × 8 × 3")
    finish(run, client)


def test_missing_commands_with_admissible_decoding_end_the_episode(begin):
    run, client = begin()
    settings = PolicyConfig(decode="admissible", num_beams=1)
    run.loop.policy = make_policy(settings, run.model, run.training.learner.vis_processor, 32)
    assert "an observation came without admissible_commands" in given_up(client.see(OPENING, "g/1"))
    finish(run, client)


@pytest.mark.parametrize("limit", ["max_held", "max_stored"])
def test_the_largest_unfinished_episode_makes_room(make_run, scripted, limit):
    """The one that grows is given up at once; one that has grown before is told when it comes again."""
    noise = np.random.default_rng(0).integers(0, 256, (224, 224, 3), np.uint8)
    run = make_run(policy=scripted("look"), num_envs=3, num_rounds=1, max_steps=50).start()
    names = ("g/1", "g/2", "g/3")
    small, large, late = clients = [Client(run, name) for name in "abc"]
    for client, name in zip(clients, names, strict=True):
        client.send(Hello, games=names)
        assert client.send(Next)["game"] == name
        assert client.see(OPENING, name)["action"] == "look"
    for _ in range(3):
        assert large.see("x" * 4000, image=noise)["action"] == "look"
    episodes = run.loop.front.episodes
    sizes = [episode.held if limit == "max_held" else episode.transitions.size for episode in episodes.values()]
    setattr(run.loop.front, limit, sum(sizes) - 1)
    assert small.see()["action"] == "look"
    reason = given_up(large.see("x" * 4000, image=noise))
    assert "of all unfinished episodes, which need more than" in reason
    setattr(run.loop.front, limit, sizes[0] * 9)
    given_up(late.see("x" * 16_000, image=noise) if limit == "max_held" else feed(late, noise))
    assert small.see()["action"] == "look" and len(list(run.directory.buffer.iterdir())) == 1


def feed(client, image):
    """The first answer that is no action."""
    while (reply := client.see(image=image))["action"]:
        pass
    return reply


def test_after_three_attempts_the_game_counts_as_lost_and_a_resume_stays_harmless(make_run, begin, scripted):
    policy = FailsAt(scripted("look"), "act", ValueError("bad"))
    run, client = begin(policy=policy, num_rounds=2)
    poison = OPENING.replace("mug", "poison")
    for attempt in range(3):
        if attempt:
            assert client.send(Next)["round"] == 0
        given_up(client.see(poison, "g/1"))
    work = client.send(Next)
    assert work["kind"] == "work" and work["round"] == 1  # the round has ended
    (lost,) = run.journal
    assert (lost.won, lost.actions, lost.steps, lost.opening, lost.shard) == (False, 0, [], "", "")
    run.server.stop()  # ends the loop: a resume follows
    run.wait()
    again = make_run(policy=scripted("look"), num_envs=1, num_rounds=2).start()
    client = Client(again, "c")
    client.send(Hello, games=("g/1",))
    finish(again, client)
    assert [(r.round, r.won) for r in again.journal] == [(0, False), (1, True)]


def test_a_resumed_round_of_which_a_game_was_played_goes_on_if_its_last_one_is_lost(make_run, scripted):
    """What stops a run is a round without any state; what was played before the resume counts, too."""

    def begin(*games):
        run = make_run(policy=scripted("look"), num_rounds=2, label_guard=LabelGuard(0.5)).start()
        client = Client(run, "a")
        client.send(Hello, games=("g/1", "g/2"))
        for game in games:
            assert client.send(Next)["game"] == game
        return run, client

    run, client = begin("g/1")
    assert client.see(OPENING, "g/1")["action"] == "look"
    assert client.see(done=True)["action"] is None
    run.server.stop()
    run.wait()
    again, client = begin()
    again.loop.policy = FailsAt(scripted("look"), "act", ValueError("bad"))
    for _ in range(3):
        assert client.send(Next)["game"] == "g/2"
        given_up(client.see(OPENING.replace("mug", "poison"), "g/2"))
    assert client.send(Next)["round"] == 1, again.error
    assert [(r.game, bool(r.steps)) for r in again.journal] == [("g/1", True), ("g/2", False)]
    again.server.stop()
    again.wait()


def test_a_policy_that_fails_at_everything_ends_the_run(begin):
    class Broken:
        def act(self, batch):
            raise ValueError("the weights are gone")

    run, client = begin(policy=Broken())
    with pytest.raises(Exception):  # noqa: B017  (the server stops: how the client notices is not the point)
        given_up(client.see(OPENING, "g/1"))
    assert "the weights are gone" in str(run.wait().error)


def test_a_shard_that_breaks_while_the_run_goes_on_is_learned_from_no_more(make_run, scripted, games):
    run = make_run(policy=scripted("look"), num_rounds=3, max_steps=3)
    store, stored = run.loop.store, []

    def storing(episode):
        record = store(episode)
        stored.append(record.shard)
        if len(stored) == 2:
            (run.directory.buffer / stored[0]).write_bytes(b"torn")
        return record

    run.loop.store = storing
    run.play()
    assert run.error is None and len(run.journal) == 6 and run.training.learner.buffer.refused == {stored[0]}
    state = torch.load(run.directory.trainer, weights_only=True)
    assert state["random"]["refused"] == [stored[0]]


def test_what_is_never_an_episodes_fault():
    assert not any(map(may_be_the_datas, (OSError("disk"), MemoryError(), BudgetSpent("x"), EndpointFault("x"))))
    assert may_be_the_datas(PromptTooLong("x")) and may_be_the_datas(KeyError("x"))


def test_a_game_is_not_lost_by_a_session_that_does_not_play_it(begin):
    """Another session's data is given up for it as often as it likes: whoever plays the game goes on."""
    run, client = begin()
    make = run.loop.front.make_expert
    run.loop.front.make_expert = lambda: FailsAt(make(), "act", IndexError("x"))
    run.loop.front.labels_required = True
    assert client.see(OPENING, "g/1", admissible_commands=["look"])["action"] == "look"
    other = Client(run, "b")
    other.send(Hello, games=("g/1",))
    for _ in range(4):
        assert given_up(other.see(OPENING, "g/1", note="poison")) == "IndexError: x"
    assert run.journal == []
    assert client.see("Nothing happens.", admissible_commands=["look"])["action"] == "look"
    other.send(Bye)
    assert client.see(done=True, won=True)["action"] is None
    client.send(Bye)
    assert run.wait().error is None and [(r.won, r.actions) for r in run.journal] == [(True, 2)]


def two_playing(make_run, policy, window_s):
    """A run with two clients, each of which has begun a game; what they send within the window is collected at once."""
    run = make_run(policy=policy, num_envs=2, num_rounds=1).start()
    names = ("g/1", "g/2")
    clients = [Client(run, name) for name in "ab"]
    for client, name in zip(clients, names, strict=True):
        client.send(Hello, games=names)
        assert client.send(Next)["game"] == name and client.see(OPENING, name)["action"] == "look"
    take, begun = run.server.take, threading.Event()

    def noticed(*arguments, **options):
        if options["window_s"] == window_s:  # the wait that has begun has the old window
            begun.set()
        return take(*arguments, **options)

    run.server.take, run.loop.front.window_s = noticed, window_s
    assert begun.wait(60)
    return run, clients


def test_an_episode_that_ended_is_kept_if_the_run_ends_before_the_others_are_answered(make_run, scripted):
    policy = scripted("look")
    run, (ending, asking) = two_playing(make_run, policy, 60.0)  # it ends when both have come

    def spent(inputs):
        raise BudgetSpent("nothing is left")

    policy.act = spent
    threads = [
        threading.Thread(target=ending.see, kwargs={"done": True, "won": True}),
        threading.Thread(target=asking.see),
    ]
    for thread in threads:
        thread.start()
    assert isinstance(run.wait().error, EndpointFault)
    for thread in threads:
        thread.join(60)
    assert [(record.game, record.won) for record in run.journal] == [("g/1", True)]


def test_a_renamed_run_begins_no_second_journal_under_its_old_name(begin):
    """The shard's folder was made anew there, and the journal: the run went on with half of its episodes in each."""
    run, client = begin()
    assert client.see(OPENING, "g/1")["action"] == "look"
    old, new = run.directory.path, run.directory.path.with_name("renamed")
    old.rename(new)
    client.see(done=True, won=True)
    assert isinstance(error := run.wait().error, RunDirectoryError) and "was removed or renamed" in str(error)
    assert not old.exists() and (new / "state" / "games.json").exists()


def test_a_client_that_leaves_with_its_observation_unanswered_ends_nothing_else(make_run, scripted):
    policy = scripted("look")
    run, (leaving, staying) = two_playing(make_run, policy, 4.0)
    asked = len(policy.inputs)
    left = Client(run, "a")
    left.seq = leaving.seq + 1  # its farewell does not wait for the answer to its observation
    threads = [threading.Thread(target=leaving.see), threading.Thread(target=lambda: left.send(Bye))]
    for thread in threads:
        thread.start()
        time.sleep(0.2)
    for thread in threads:
        thread.join(60)
    assert "a" not in run.loop.front.episodes and len(policy.inputs) == asked, "nobody is left to act"
    run.loop.front.window_s = 0.02
    assert staying.see(done=True, won=True)["action"] is None
    assert staying.send(Next)["game"] == "g/1", "the other's game comes to whoever asks"
    assert staying.see(OPENING, "g/1")["action"] == "look" and staying.see(done=True, won=True)["action"] is None
    staying.send(Bye)
    assert run.wait().error is None and [record.game for record in run.journal] == ["g/2", "g/1"]
