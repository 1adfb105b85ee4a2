"""What the clients of a run play: compared with the settings, written down, and known to the checkpoint."""

import json

import pytest

from xrl_alignment.client.connection import ClientError
from xrl_alignment.client.play import play
from xrl_alignment.dagger.expected_games import ExpectedGames
from xrl_alignment.environments import make_environment
from xrl_alignment.environments.games import games_hash, ids_hash
from xrl_alignment.runs.checkpoint import load_checkpoint
from xrl_alignment.runs.played import PlayedGames, played_by_file
from xrl_alignment.wire.messages import Hello


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


def test_without_the_games_only_engine_and_split_are_compared():
    there = ExpectedGames("native", "train")
    assert there.difference(hello(games=("x", "y"))) == "" and there.difference(hello(split="valid_seen"))


def test_a_refused_client_pins_no_game_list_and_the_right_one_plays(make_run, scripted, games):
    run = make_run(policy=scripted("look"), num_rounds=1, max_steps=2).start()
    run.loop.sessions.expected = ExpectedGames("native", "household_train", lambda: [g.id for g in games[:2]])
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
    played["environments"] = ["native household_train", "textworld train"]
    for path in (run.directory.checkpoint(0), run.directory.trainer):
        assert load_checkpoint(path)["played"] == played
    known = played_by_file(run.directory.checkpoint(0))
    assert known is not None and known.among([games[0].id, games[3].id]) == [games[0].id]


def test_a_resumed_run_knows_the_games_of_its_journal(make_run, scripted, games):
    from xrl_alignment.runs.directory import RunDirectory

    run = make_run(policy=scripted("look"), num_rounds=1, max_steps=2)
    run.play()
    (run.directory.path / "DONE").unlink()
    again = make_run(policy=scripted("look"), num_rounds=1, max_steps=2).start().wait()
    assert again.training.games.games == tuple(sorted(g.id for g in games[:2]))
    assert isinstance(again.directory, RunDirectory) and again.directory.environments() == ["native unknown"]
