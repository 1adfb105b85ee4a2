"""The program: watches, plays what is piped in, records; also without any extra."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import urllib.request

import pytest

from lavis.common.errors import ConfigError
from tests import warm
from tests.test_installation import run_light
from xrl_alignment.show.play.__main__ import main


@pytest.fixture
def games(household_data):
    return ["--env", "native", "--split", "household_heldout", "--data", str(household_data)]


def test_an_expert_plays_and_is_recorded(games, tmp_path, capsys):
    main([*games, "--player", "expert", "--game", "3", "--delay", "0", "--record", str(tmp_path / "episode.html")])
    text = capsys.readouterr().out
    assert "game 3 of 6 (--game 3), solved in " in text and "Solved in" in text
    assert text.rstrip().endswith("plays another game, --game 3 this one again, --web plays in a browser")
    assert f"recorded: {tmp_path / 'episode.html'}" in text and (tmp_path / "episode.html").stat().st_size > 10_000


def test_a_piped_game_ends_with_its_input(games, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("look\ne\n"))
    main([*games, "--seed", "0"])
    assert "left in 2 steps, 1 of 2 as the expert" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--player", "policy"], "--player policy: nobody is there to play; give --checkpoint"),
        (["--player", "expert", "--expert", "none"], "--player expert: nobody is there to play; give --expert"),
        (["--delay", "-1"], "--delay -1: give 0 to 3600 seconds"),
        (["--delay", "nan"], "--delay nan: give 0 to 3600 seconds"),
        (["--web", "--player", "expert"], "--player expert is for the terminal"),
        (["--game", "77"], "--game 77: there are 6 games"),
    ],
)
def test_mistakes_are_told(games, arguments, message):
    with pytest.raises(ConfigError, match=message):
        main([*games, *arguments])


@pytest.fixture
def hub(students):
    """A model of the hub as policy, by options alone."""
    options = [f"model.{key}={value}" for key, value in students("hub").items()]
    return ["--options", *options, "policy.num_beams=1", "policy.max_length=9"]


def test_a_model_of_the_hub_plays_in_the_terminal(games, hub, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("p\np\n"))
    main([*games, "--game", "1", *hub])
    text = capsys.readouterr().out
    suggested = re.findall(r"^policy: (.+?) *$", text, re.MULTILINE)
    assert len(suggested) == 3 and all(f"> {said}   (" in text for said in suggested[:2])
    assert "left in 2 steps, 0 of 2 as the expert" in text


def test_a_model_of_the_hub_plays_in_a_browser(games, hub):
    command = ["-m", "xrl_alignment.play", *games, "--game", "1", "--web", "--port", "0", *hub]
    process = warm.Program(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        page = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert page
        suggested = json.load(urllib.request.urlopen(f"{page[0]}/state", timeout=60))["now"]["suggestions"]["policy"]
        for step in range(2):
            body = json.dumps({"step": step, "player": "policy"}).encode()
            request = urllib.request.Request(f"{page[0]}/move", body, {"Content-Type": "application/json"})
            state = json.load(urllib.request.urlopen(request, timeout=60))
            assert state["steps"][step]["executed"] == suggested
            suggested = state["now"]["suggestions"]["policy"]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, errors


def test_it_needs_no_extra(games, tmp_path):
    code = f"""
from xrl_alignment.show.play.__main__ import main
import xrl_alignment.show.play.web, xrl_alignment.wire.http_server
main([*{games!r}, "--player", "expert", "--game", "1", "--delay", "0", "--record", "episode.gif"])
"""
    assert ", solved in" in run_light(code, tmp_path) and (tmp_path / "episode.gif").stat().st_size > 10_000


def test_its_own_games_are_generated(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("xrl_alignment.show.play.settings.GENERATED", 2)
    main(["--player", "expert", "--seed", "0", "--delay", "0"])
    assert "of 2 (--game " in capsys.readouterr().out and (tmp_path / "emac" / "household-2-2-0").is_dir()
