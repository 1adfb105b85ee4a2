"""What the clients of a run play: compared with the settings, written down, and known to the checkpoint."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from alfworld_native import make_environment
from alfworld_native.games import games_hash, ids_hash
from lavis.models.played import PlayedGames, played_by_file
from tests.xrl_alignment.dagger.original_client import OriginalClient
from xrl_alignment.agents.experts import make_expert
from xrl_alignment.dagger.front import Front
from xrl_alignment.dagger.loop import DaggerLoop
from xrl_alignment.dagger.rounds import Rounds
from xrl_alignment.play.client.connection import ClientError
from xrl_alignment.play.client.play import play
from xrl_alignment.runs.checkpoint import load_checkpoint
from xrl_alignment.runs.directory import RunDirectory
from xrl_alignment.settings.schema import EnvironmentConfig
from xrl_alignment.wire import v2
from xrl_alignment.wire.admission import PendingRequest
from xrl_alignment.wire.expected import ExpectedGames, view_of
from xrl_alignment.wire.messages import Hello, Observation


def hello(environment="native", split="train", games=("g/1", "g/2", "g/3")) -> Hello:
    return Hello("s", 1, tuple(games), environment, split)


def expected(**options) -> ExpectedGames:
    return ExpectedGames("native", "train", lambda: ["g/1", "g/2"], **options)


@pytest.mark.parametrize(
    ("client", "reason"),
    [
        (hello(), ""),
        (hello(environment="", split="", games=("x",)), ""),  # an older client does not say
        (hello(environment="textworld"), "the client plays textworld train, this run's settings say native train"),
        (hello(split="valid_unseen"), "the client plays native valid_unseen, this run's settings say native train"),
        (hello(games=("g/2", "g/1")), f"({ids_hash(['g/2', 'g/1'])}) are not those"),
    ],
)
def test_a_difference_is_named(client, reason):
    said = expected(client_command="python alfworld_client.py --seed 0").difference(client)
    assert reason in said and bool(said) == bool(reason)
    assert not reason or ("start it as: python alfworld_client.py" in said and "allow_other_games=true" in said)
    assert expected(allow_other=True).difference(client) == ""


def test_a_client_that_shows_its_games_otherwise_is_refused():
    ours = view_of(EnvironmentConfig())
    theirs = view_of(EnvironmentConfig(camera="close", show_ids=False, name_by="type", tell_objects=False))
    run = expected(view=ours)
    assert run.difference(replace(hello(), view=ours)) == run.difference(hello()) == ""  # an older client does not say
    said = run.difference(replace(hello(), view=theirs))
    assert "with name_by=type show_ids=False camera=close, this run's settings say name_by=number show_ids=True" in said
    noisy = [view_of(EnvironmentConfig(image_noise=kind, image_severity=2)) for kind in ("gaussian", "dropped")]
    said = expected(view=noisy[0]).difference(replace(hello(), view=noisy[1]))
    assert "with image_noise=dropped, this run's settings say image_noise=gaussian" in said
    assert "image_noise" not in ours
    before = noisy[0].replace("image_noise=gaussian ", "")  # a client of before, which does not tell the kind
    assert before != noisy[0] and expected(view=noisy[0]).difference(replace(hello(), view=before)) == ""
    said = expected(view=noisy[0]).difference(replace(hello(), view=before.replace("severity=2", "severity=3")))
    assert "with image_severity=3, this run's settings say image_severity=2 (" in said
    assert v2.decode(v2.encode(replace(hello(), view=theirs))).view == theirs and not v2.decode(v2.encode(hello())).view


def test_a_client_with_too_few_games_is_told_the_number():
    assert "the client offers 1 games, this run plays 2 (run.num_envs)" in expected().difference(hello(games=("g/1",)))


def test_without_the_games_only_engine_and_split_are_compared():
    there = ExpectedGames("native", "train")
    assert there.difference(hello(games=("x", "y"))) == "" and there.difference(hello(split="valid_seen"))


def test_a_refused_client_pins_no_game_list_and_the_right_one_plays(make_run, scripted, games):
    run = make_run(policy=scripted("look"), num_rounds=1, max_steps=2).start()
    run.loop.front.expected = ExpectedGames("native", "household_train", lambda: [g.id for g in games[:2]])
    for wrong, split in ((games[:2], "household_heldout"), (games[2:], "household_train")):
        with pytest.raises(ClientError, match="environment.allow_other_games=true"):
            play(run.url, lambda: make_environment("native"), wrong, split=split, patience_s=5)
    assert run.directory.games() == [] and "Refused a client" in run.log
    assert run.play(split="household_train")["episodes"] == 2 and run.directory.done


def test_what_was_played_is_in_run_directory_and_checkpoint(make_run, scripted, games):
    run = make_run(policy=scripted("look"), num_rounds=1, max_steps=2)
    run.training.games = PlayedGames(("earlier/1",), ("textworld train",))
    run.play(split="household_train")
    content = json.loads((run.directory.state / "environment.json").read_text())
    assert content == {"environments": ["native household_train"], "games_hash": games_hash(games[:2])}
    played = {"games": sorted(["earlier/1", *(g.id for g in games[:2])])}
    played |= {"environments": ["native household_train", "textworld train"], "splits": [], "unknown": []}
    for path in (run.directory.checkpoint(0), run.directory.trainer):
        assert load_checkpoint(path)["played"] == played
    known = played_by_file(run.directory.checkpoint(0))
    assert known is not None and known.among([games[0].id, games[3].id], "household_train") == [games[0].id]


def test_a_resumed_run_knows_the_games_of_its_journal(make_run, scripted, games):
    from xrl_alignment.runs.directory import RunDirectory

    run = make_run(policy=scripted("look"), num_rounds=1, max_steps=2)
    run.training.games = PlayedGames(splits=("train",))
    run.play()
    (run.directory.path / "DONE").unlink()
    again = make_run(policy=scripted("look"), num_rounds=1, max_steps=2).start().wait()
    assert again.training.games.games == tuple(sorted(g.id for g in games[:2]))
    assert again.training.games.splits == ("train",)  # of the weights that the run began with
    assert isinstance(again.directory, RunDirectory) and again.directory.environments() == ["native unknown"]


# --- wire v1: no split, and seldom an engine --------------------------------------------------------------------------


def begins(game: str, engine: str = "") -> Hello:
    """What a v1 client's first observation says: a game, and perhaps an engine."""
    return hello(engine, "", (game,))


def split_known(**options) -> ExpectedGames:
    return ExpectedGames("native", "train", find_split=lambda: ["pick-1/a", "pick-2/b"], **options)


@pytest.mark.parametrize(
    ("game", "engine", "reason", "known"),
    [
        ("pick-1/a", "", "", True),
        ("pick-2/b", "native", "", True),
        ("pick_and_place", "", "", None),  # the bare type: it may be any game
        ("pick-9/z", "", "the client plays pick-9/z, which is none of the 2 games of native train", False),
        ("pick-1/a", "thor", "the client plays thor ?, this run's settings say native train", True),
    ],
)
def test_a_v1_game_is_compared_by_its_id(game, engine, reason, known):
    said = split_known().difference(begins(game, engine))
    assert reason in said and bool(said) == bool(reason)
    assert not reason or "allow_other_games=true" in said
    assert split_known(allow_other=True).difference(begins(game, engine)) == "" and split_known().has(game) is known


def test_without_the_splits_games_no_v1_game_is_foreign():
    there = ExpectedGames("native", "train")
    assert there.difference(begins("pick-9/z")) == "" and there.has("pick-9/z") is None


def test_a_v2_client_that_names_no_split_must_play_games_of_the_runs_split():
    assert split_known().difference(hello(split="", games=("pick-2/b", "pick-1/a"))) == ""
    said = split_known().difference(hello(split="", games=("pick-1/a", "pick-9/z")))
    assert said.startswith("the client plays pick-9/z, which is none of the 2 games of native train")


def v1_run(make_run, scripted, split_games, **options):
    run = make_run(policy=scripted("look"), num_rounds=1, max_steps=2)
    ids = [game.id for game in split_games]
    run.loop.front.expected = ExpectedGames("native", "household_train", find_split=lambda: ids, **options)
    return run.start()


def played_in_checkpoint(run):
    return load_checkpoint(run.wait().directory.checkpoint(0))["played"]


def test_a_v1_client_in_its_own_order_is_of_the_split(make_run, scripted, games):
    run = v1_run(make_run, scripted, games)
    OriginalClient(run, games[2:4]).play(1)
    assert played_in_checkpoint(run)["environments"] == ["unknown household_train"]


def test_a_v1_client_with_other_games_is_refused_and_the_right_one_plays(make_run, scripted, games):
    run = v1_run(make_run, scripted, games[:2])
    with pytest.raises(ConnectionError, match="none of the 2 games of native household_train"):
        OriginalClient(run, games[2:4]).play_game(games[2], True)
    assert run.directory.games() == [] and "Refused a client" in run.log
    OriginalClient(run, games[:2]).play(1)
    assert played_in_checkpoint(run)["games"] == sorted(game.id for game in games[:2])


@pytest.mark.parametrize("bare", [True, False])
def test_what_a_v1_client_plays_is_unknown_where_nothing_tells(make_run, scripted, games, bare):
    """A game without an id, or one that the switch lets in."""
    run = v1_run(make_run, scripted, games[2:4], allow_other=not bare)
    named = [type("Bare", (), {"id": "pick_and_place", "path": game.path, "horizon": 0})() for game in games[:2]]
    OriginalClient(run, named if bare else games[:2]).play(1)
    assert played_in_checkpoint(run)["environments"] == ["unknown unknown"]
    assert run.directory.environments() == ["unknown unknown"]
    known = played_by_file(run.directory.checkpoint(0))
    assert known is not None and known.all_named is not bare


class Queue:
    """A server without sockets: the loop takes what a test has put into `waiting`."""

    stopped = False

    def __init__(self) -> None:
        self.waiting: list[PendingRequest] = []

    def take(self, *_, **__) -> list[PendingRequest]:
        taken, self.waiting = self.waiting, []
        return taken


@pytest.fixture
def v1_client(tmp_path, scripted):
    """Makes a loop over `num_envs` games, and `play(game, steps)`: what a v1 client is answered to so many messages."""

    def make(num_envs: int, **options):
        rounds = Rounds(RunDirectory(tmp_path / "run"), num_rounds=2, num_envs=num_envs)
        front = Front(Queue(), rounds, make_expert=lambda: make_expert("explorer"), max_steps=2, **options)
        loop = DaggerLoop(front=front, rounds=rounds, policy=scripted("look"))

        def play(game: str, steps: int = 3) -> list[bytes]:
            said: list[bytes] = []
            for name in (game, *[""] * (steps - 1)):
                request = PendingRequest(Observation("You see a desk 1.", task_type=name), "v1")
                front.server.waiting.append(request)
                while front.server.waiting or front._postponed:
                    while rounds.round_over:
                        loop.end_round()
                    asking, ended = front.collect(timeout_s=0)
                    _, over = loop.answer(asking, loop.decide_each([episode for _, episode in asking]), None)
                    for episode in (*ended, *over):
                        loop.store(episode)
                    while rounds.round_over:
                        loop.end_round()
                said.append(request._response.body)
                if said[-1] == b"['SKIP']":
                    break
            return said

        return rounds, play

    return make


def test_a_v1_client_repeats_its_game_after_a_broken_connection(v1_client):
    """The game counted as lost, and its repetition was skipped."""
    rounds, play = v1_client(2)
    assert play("pick/a", steps=1) == [b"['look']"]
    assert play("pick/a") == [b"['look']", b"['look']", b"['SKIP']"]
    assert [(record.game, record.actions) for record in rounds.records] == [("pick/a", 2)]
    play("pick/b", steps=1)
    play("pick/a")  # round 0 goes on with the next game: that one has ended
    assert rounds.round == 1 and [(record.game, record.actions) for record in rounds.records] == [("pick/a", 2)]


def test_a_v1_client_with_other_games_than_those_that_are_left_is_told(v1_client):
    told: list[str] = []
    rounds, play = v1_client(2, say=told.append)
    play("pick/a", steps=1)  # then the client is replaced by one with other games of the split
    for _ in range(4):
        play("pick/b"), play("pick/c")
    assert rounds.round == 1 and list(rounds.left) == ["pick/a"]
    assert told == ["the client plays no game that is left in this round, such as pick/a: start it with these"]


def test_a_reason_is_told_once_and_a_refused_v1_client_has_begun_no_game(v1_client):
    told: list[str] = []
    reasons = ["other games", "other games", "another engine"]
    expecting = SimpleNamespace(difference=lambda hello: reasons.pop(0) if reasons else "", has=lambda game: False)
    rounds, play = v1_client(2, say=told.append, expected=expecting)
    for _ in range(3):
        assert b"SKIP" not in play("pick", steps=1)[0]
    assert told == ["refused a client: other games", "refused a client: another engine"]
    play("pick")
    assert [record.game for record in rounds.records] == ["pick-env0"]
