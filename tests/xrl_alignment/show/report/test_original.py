"""The original's logs: the count by slot beside the count by game; what is missing or damaged is said."""

from __future__ import annotations

import json
from pathlib import Path

from tests.xrl_alignment.show.report.runs import WORLD_LOG
from xrl_alignment.show.report.original import is_logs, read_logs, recount

EPISODE = """
#####

Environment #{slot}:
You are in the middle of a room. Looking quickly around you, you see a desk 1.
Your task is to: put a mug in desk.
> look
You see nothing.

STATUS: {status}

#####
"""


def make_logs(folder: Path, trials: int = 3, games: int = 4) -> Path:
    """In trial t game (slot + t) % games is in a slot; slot t is solved in trial t: always the same game, then."""
    folder.mkdir(parents=True, exist_ok=True)
    blocks = [WORLD_LOG.format(round=t, solved=t + 1, failed=3 - t, accuracy=(t + 1) / 4) for t in range(trials)]
    (folder / "world.log").write_text("".join(blocks))
    for t in range(trials):
        results = {
            f"env_{slot}": {"is_success": slot <= t, "type": f"pick/trial_{(slot - t) % games}", "memory": []}
            for slot in range(games)
        }
        (folder / f"env_results_trial_{t}.json").write_text(json.dumps(results))
        episodes = [EPISODE.format(slot=slot, status="OK" if slot == t else "FAIL") for slot in range(t, games)]
        (folder / f"trial_{t}.log").write_text("".join(episodes))
    return folder


def test_slots_and_games_are_counted_apart(tmp_path: Path):
    logs = read_logs(make_logs(tmp_path))
    counts = recount(logs.trials)
    assert [(c.logged, c.slots, c.games, c.met, c.total) for c in counts] == [
        (1, 1, 1, 4, 4), (2, 2, 1, 4, 4), (3, 3, 1, 4, 4),
    ]  # fmt: skip
    assert logs.notices == [] and counts[0].seconds == 12.5 and is_logs(tmp_path)
    assert len(logs.trials[1].episodes) == 3 and logs.trials[1].episodes[1].won


def test_without_game_ids_a_game_is_its_room_and_task(tmp_path: Path):
    make_logs(tmp_path, trials=1)
    path = tmp_path / "env_results_trial_0.json"
    results = {name: {**entry, "type": "pick_and_place"} for name, entry in json.loads(path.read_text()).items()}
    path.write_text(json.dumps(results))
    (count,) = recount(read_logs(tmp_path).trials)
    assert (count.slots, count.games, count.met) == (1, 1, 1), "the four episodes show one room and one task"


def test_a_round_that_is_no_number_of_a_round_is_said(tmp_path: Path):
    make_logs(tmp_path)
    for line in ("ROUND: " + "9" * 400, "SUCCESS: " + "9" * 400, "TIME: " + "1" * 5000 + ".5"):
        (tmp_path / "world.log").write_text(f"ROUND: 0\nTOTAL: 3\n{line}\n")
        logs = read_logs(tmp_path)
        (said,) = (notice for notice in logs.notices if "world.log is damaged" in notice)
        assert "is too large" in said and len(said) < 300
        assert [count.logged for count in recount(logs.trials)] == [None] * 3  # what the results say is still counted


def test_results_nested_too_deep_are_said(tmp_path: Path):
    make_logs(tmp_path)
    (tmp_path / "env_results_trial_1.json").write_text("[" * 100_000)
    assert any("env_results_trial_1.json cannot be read" in notice for notice in read_logs(tmp_path).notices)


def test_without_world_log_the_results_are_counted(tmp_path: Path):
    make_logs(tmp_path)
    (tmp_path / "world.log").unlink()
    logs = read_logs(tmp_path)
    assert logs.notices == ["world.log is missing: no times, and no count of its own"]
    assert [(c.logged, c.slots, c.seconds) for c in recount(logs.trials)] == [(None, n, None) for n in (1, 2, 3)]


def test_what_is_missing_or_damaged_is_said(tmp_path: Path):
    make_logs(tmp_path)
    (tmp_path / "world.log").write_text("another version\n")
    (tmp_path / "env_results_trial_1.json").write_text('{"env_0": {"is_succ')
    (tmp_path / "trial_2.log").unlink()
    (tmp_path / "env_results_trial_7.json").write_text("[1]")
    logs = read_logs(tmp_path)
    text = "\n".join(logs.notices)
    for said in ("world.log holds no block", "env_results_trial_1.json cannot be read: JSONDecodeError",
                 "env_results_trial_7.json cannot be read: ValueError: it holds a list", "no results of trial 1, 7",
                 "no episodes of trial 2, 7"):  # fmt: skip
        assert said in text
    assert [c.slots for c in recount(logs.trials)] == [1, None, 3, None]
    assert not is_logs(tmp_path / "nowhere")
