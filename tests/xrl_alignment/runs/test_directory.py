"""The files of a run: names and forms fixed since the original, and what a kill leaves of them."""

import json
import logging.handlers
import os
import re
import resource
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from alfworld_native.games import ids_hash
from lavis.common.errors import FileError
from tests.xrl_alignment.runs.stored import store, transition
from xrl_alignment.runs.directory import (
    EpisodeRecord,
    RunDirectory,
    RunDirectoryError,
    RunPaths,
    cut_half_line,
    forget_server,
    new_run_directory,
    newest_checkpoint,
    round_block,
)
from xrl_alignment.runs.transitions import write_shard


def record(env: int = 3, *, won: bool = True, assisted: bool = False, round: int = 0) -> EpisodeRecord:
    steps = [["go to desk 1", "On the desk 1, you see nothing."], ["look", "You are facing the desk 1."]]
    opening = "You are in the middle of a room.\nYour task is to: look at a mug."
    game = f"look_at_obj_in_light-Mug-None-DeskLamp-308/trial_{env}"
    return EpisodeRecord(round, env, game, won, assisted, 2, opening, steps, f"round000_env000{env}_steps002.h5", 1.5)


@pytest.fixture
def directory(tmp_path):
    made = RunDirectory(tmp_path / "run")
    yield made
    made.close()


def test_a_new_directory_is_named_as_the_originals_and_never_twice_the_same(tmp_path):
    made = [new_run_directory(tmp_path, enable_dpo=True, enable_tc=False) for _ in range(3)]
    assert len(set(made)) == 3 and all(path.is_dir() for path in made)
    assert re.fullmatch(r"with_bc_dpo-True-tc-False-\d{8}-\d{6}", made[0].name)


def test_files_are_where_other_programs_look_for_them():
    paths = RunPaths("run")
    assert str(paths.checkpoint(3)) == "run/emma_checkpoint_3.pth" and str(paths.buffer) == "run/state/buffer"
    state = [paths.journal, paths.trainer, paths.expert_calls, paths.learner_settings, paths.learned, paths.published]
    names = "episodes.jsonl trainer.pth expert_calls.jsonl learner.yaml learned.jsonl published.safetensors"
    assert [str(path) for path in state] == [f"run/state/{name}" for name in names.split()]


def test_the_newest_checkpoint_is_that_of_the_latest_round(tmp_path):
    assert newest_checkpoint(tmp_path) is None
    for number in (2, 10, 9):
        (tmp_path / f"emma_checkpoint_{number}.pth").touch()
    (tmp_path / "emma_checkpoint_best.pth").touch()  # a user's own copy ended the server with a traceback
    assert newest_checkpoint(tmp_path).name == "emma_checkpoint_10.pth"


def test_only_an_unassisted_win_is_solved():
    assert record().solved and not record(assisted=True).solved and not record(won=False).solved


def test_a_reflector_reads_the_whole_episode():
    trace = record(won=False).trace()
    assert (trace.game_id, trace.task_type, trace.won) == (record().game, "look_at_obj_in_light", False)
    assert trace.opening == record().opening
    assert trace.steps == (("go to desk 1", "On the desk 1, you see nothing."), ("look", "You are facing the desk 1."))


def test_an_episode_is_on_disk_before_it_counts(directory, monkeypatch):
    synced, fsync = [], os.fsync

    def syncing(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append((path.name, path.read_bytes().count(b"\n") if path.is_file() else None))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", syncing)
    for env in range(2):
        directory.append_episode(record(env))
    assert synced == [("episodes.jsonl", 1), ("state", None), ("episodes.jsonl", 2)]
    synced.clear()
    directory.close()
    RunDirectory(directory.path).close()
    assert {name for name, _ in synced} == {directory.path.parent.name, "run", "state"}


def test_a_full_disk_names_the_file_that_cannot_grow(directory):
    """The system's error names none, and a machine has several disks."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))  # the system refuses to write on, as on a full disk
    try:
        with pytest.raises(FileError, match=f"{directory.journal} could not be written: "):
            directory.append_episode(record())
        with pytest.raises(FileError, match=r"trial_0.log could not be written: "):
            directory.write_trial(record(), [])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_journal_of_an_older_version_knows_no_states(directory):
    directory.append_episode(record())
    line = json.loads(directory.journal.read_text())
    directory.journal.write_text(
        json.dumps({k: v for k, v in line.items() if k not in ("states", "unlabelled")}) + "\n"
    )
    (read,) = directory.episodes()
    assert (read.states, read.unlabelled) == (0, 0)


def test_a_rewritten_journal_keeps_all_that_it_was(directory):
    for env in range(3):
        directory.append_episode(record(env))
    whole = directory.journal.read_bytes()
    for count in (2, 1):
        directory.rewrite_episodes([record(env) for env in range(count)])
    assert directory.episodes() == [record(0)]
    directory.append_episode(record(1))
    assert directory.episodes() == [record(0), record(1)]
    old = [directory.state / f"episodes.jsonl.{number}" for number in (1, 2)]
    assert old[0].read_bytes() == whole and old[1].read_bytes() == b"".join(whole.splitlines(keepends=True)[:2])
    assert not (directory.state / "episodes.jsonl.3").exists()


def test_the_journal_reads_back_and_loses_only_a_half_line(directory):
    for env in range(2):
        directory.append_episode(record(env))
    path = directory.state / "episodes.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 3])
    assert directory.episodes() == [record(0), record(1)] and path.read_bytes() == whole


def test_a_journal_that_somebody_wrote_into_is_named(directory):
    (directory.state / "episodes.jsonl").write_text('{"round": 0}\n')
    with pytest.raises(RunDirectoryError, match="episodes.jsonl is damaged"):
        directory.episodes()


@pytest.mark.parametrize(
    "change",
    [
        {"round": -1}, {"env": "3"}, {"won": 1}, {"game": 255}, {"opening": None}, {"seconds": "1"}, {"steps": 1},
        {"steps": [["look"]]}, {"steps": [["look", 1]]}, {"shard": "../../config.yaml"}, {"unknown": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_line_of_other_types_is_named(directory, change):
    directory.append_episode(record())
    path = directory.state / "episodes.jsonl"
    path.write_text(json.dumps(json.loads(path.read_text()) | change) + "\n")
    with pytest.raises(RunDirectoryError, match="episodes.jsonl is damaged"):
        directory.episodes()


def test_bytes_that_are_no_text_are_named(directory):
    for name, read in (("episodes.jsonl", directory.episodes), ("games.json", directory.games)):
        (directory.state / name).write_bytes(b'{"round": "\xe9\xb7"}\n')
        with pytest.raises(RunDirectoryError, match=f"{name} is damaged"):
            read()


@pytest.mark.parametrize(
    ("name", "read", "content"),
    [
        ("memories.json", "memories", None), ("memories.json", "memories", {"round": 1}),
        ("memories.json", "memories", {"round": "1", "memories": {}}),
        ("memories.json", "memories", {"round": 1, "memories": {"g": "m"}}),
        ("games.json", "games", {"g": 1}), ("games.json", "games", [1]),
        ("environment.json", "environments", False), ("environment.json", "environments", {"environments": 5}),
    ],
)  # fmt: skip
def test_state_of_other_types_is_named(directory, name, read, content):
    (directory.state / name).write_text(json.dumps(content))
    with pytest.raises(RunDirectoryError, match=f"{name} is damaged: it holds other things"):
        getattr(directory, read)()


def test_memories_that_an_older_version_stored_as_they_came_do_not_end_a_resumed_run(directory):
    directory.save_memories(1, {"g\ud800": ["look \ud800 behind it"]})
    assert "\\ud800" in (directory.state / "memories.json").read_text()
    round, memories = directory.memories()
    assert (round, memories) == (1, {"g?": ["look ? behind it"]})
    directory.write_trial(record(), memories["g?"])
    assert "look ? behind it" in (directory.results / "trial_0.log").read_text(encoding="utf-8")


def test_games_and_memories_read_back(directory):
    assert directory.games() == [] and directory.memories() == (0, {})
    directory.save_games(["pick/a", "pick/b"])
    directory.save_memories(1, {"pick/a": ["(by rule) é"]})
    assert directory.games() == ["pick/a", "pick/b"] and directory.memories() == (1, {"pick/a": ["(by rule) é"]})


def test_where_games_are_played_reads_back(directory):
    assert directory.environments() == []
    directory.save_games(["pick/a"], ["native train"])
    assert directory.environments() == ["native train"]
    content = json.loads((directory.state / "environment.json").read_text())
    assert content == {"environments": ["native train"], "games_hash": ids_hash(["pick/a"])}


def test_missing_and_damaged_shards_are_lost_and_none_is_none(directory):
    names = [store(directory.buffer, 0, env, [1, 2]) for env in range(2)]
    damaged = directory.buffer / names[1]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 4] ^= 1  # in an image, which its index does not know
    damaged.write_bytes(content)
    shards = ["nothing.h5", *names, ""]
    lost = directory.lost_shards([replace(record(), game="pick/0", shard=shard) for shard in shards])
    assert lost.keys() == {0, 2} and "nothing.h5" in lost[0] and "its checksum is not that" in lost[2]
    write_shard(damaged, [transition(1)], {"game": "", "won": True})  # collected without games
    assert directory.lost_shards([replace(record(), shard=names[1])]) == {}


def test_a_shard_of_another_game_is_lost(directory):
    names = [store(directory.buffer, 0, env, [1, 2]) for env in range(2)]
    records = [replace(record(env), game=f"pick/{env}", shard=name) for env, name in enumerate(names)]
    assert directory.lost_shards(records) == {}
    content = (directory.buffer / names[0]).read_bytes()
    (directory.buffer / names[1]).write_bytes(content)
    assert directory.lost_shards(records) == {1: f"shard {directory.buffer / names[1]} holds another game, pick/0"}


@pytest.mark.parametrize(("name", "read"), [("games.json", "games"), ("memories.json", "memories")])
def test_a_damaged_file_of_the_state_is_named(directory, name, read):
    (directory.state / name).write_text("{")
    with pytest.raises(RunDirectoryError, match=f"{name} is damaged"):
        getattr(directory, read)()


def test_a_file_where_a_folder_should_be_is_named(tmp_path):
    (tmp_path / "logging_results").touch()
    with pytest.raises(FileError, match="the folder .*logging_results could not be made: File exists"):
        RunDirectory(tmp_path)


def test_a_second_process_is_refused_and_told_who_writes(directory):
    with pytest.raises(RunDirectoryError, match=f"process {os.getpid()} is writing to {directory.path}"):
        RunDirectory(directory.path)
    assert (directory.path / "state/lock").read_text() == f"{os.getpid()}\n"
    directory.close()
    RunDirectory(directory.path).close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of TensorBoard's thread
@pytest.mark.parametrize("take_away", [shutil.rmtree, lambda path: path.rename(path.with_name("renamed"))])
def test_a_directory_that_was_taken_away_is_noticed_and_closed(tmp_path, take_away):
    made = RunDirectory(tmp_path / "run")
    made.check_place()
    take_away(made.path)
    with pytest.raises(RunDirectoryError, match="removed or renamed"):
        made.check_place()
    made.scalar("train/loss", 1.0, 1)  # TensorBoard's thread finds no folder when it writes
    made.close()


def test_closing_leaves_no_file_open_and_writes_no_more(directory):
    directory.scalar("train/loss", 0.5, 7)
    directory.close()
    files = [
        os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")
    ]
    assert not [name for name in files if name.startswith(str(directory.path))]
    directory.logger.info("late")
    assert (directory.path / "running_nb01.log").read_bytes() == b""
    (curves,) = (directory.path / "tensorboard").iterdir()
    assert b"train/loss" in curves.read_bytes()


def test_world_log_has_the_originals_form_and_each_round_once(directory):
    block = round_block(0, solved=26, newly_solved=26, total=134, seconds=45442.87)
    for _ in range(2):
        directory.end_round(0, results={}, block=block, scalars={}, memories={})
    assert (directory.results / "world.log").read_text() == (
        "\n-----\nROUND: 0\nSUCCESS: 26\nADDITIONAL SUCCESS: 26\nFAIL: 108\nTOTAL: 134\nACCURACY: 0.19\n"
        "TIME: 45442.87 s\n-----\n\n"
    )


def test_a_note_stands_after_its_round_and_round_1_is_not_round_10(directory):
    for round in (10, 1):
        block = round_block(round, solved=1, newly_solved=0, total=2, seconds=1) + f"of {round}\n"
        directory.end_round(round, results={}, block=block, scalars={}, memories={})
    text = (directory.results / "world.log").read_text()
    assert text.count("ROUND:") == 2 and "-----\n\nof 10\n\n-----\nROUND: 1\n" in text and text.endswith("\nof 1\n")


def test_trial_log_tells_episodes_in_words_and_begins_anew_once_it_is_removed(directory):
    directory.write_trial(record(0, won=False), ["I should look."])
    directory.write_trial(record(1), [])
    text = (directory.results / "trial_0.log").read_text()
    assert "Environment #0:" in text and "I should look." in text and "STATUS: FAIL" in text and "STATUS: OK" in text
    assert "> go to desk 1\nOn the desk 1, you see nothing.\n> look\n" in text
    directory.trial_log(0).unlink()
    directory.write_trial(record(1), [])
    assert (directory.results / "trial_0.log").read_text() == (
        "\n#####\n\nEnvironment #1:\nHere is the task:\nYou are in the middle of a room.\n"
        "Your task is to: look at a mug.\n> go to desk 1\nOn the desk 1, you see nothing.\n> look\n"
        "You are facing the desk 1.\n\nSTATUS: OK\n\n#####\n"
    )


def test_results_and_scalars_are_json(directory):
    results = {"env_0": {"game": "pick/a", "is_success": True, "path_length": 9, "memory": []}}
    directory.end_round(1, results=results, block="", scalars={}, memories={"pick/a": ["look"]})
    assert directory.memories() == (2, {"pick/a": ["look"]})
    assert json.loads((directory.results / "env_results_trial_1.json").read_text())["env_0"]["path_length"] == 9
    directory.scalar("train/loss", 0.5, 7)
    line = json.loads((directory.state / "metrics.jsonl").read_text())  # there before anything is closed
    assert (line["tag"], line["value"], line["step"]) == ("train/loss", 0.5, 7)
    assert 0 <= time.time() - line["time"] < 60  # seconds since 1970
    assert list((directory.path / "tensorboard").iterdir())


def test_curves_go_on_after_a_half_written_line(directory):
    directory.scalar("a", 1.0, 0)
    directory.close()
    path = directory.state / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 1, "ta')
    again = RunDirectory(directory.path)
    again.scalar("a", 2.0, 1)
    again.close()
    assert [json.loads(line)["value"] for line in path.read_text().splitlines()] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("before", "after"), [("a\nb\n", "a\nb\n"), ("a\nb", "a\n"), ("half", ""), ("", ""), ("ü\nü", "ü\n")]
)
def test_cutting_a_half_line(tmp_path, before, after):
    path = tmp_path / "log"
    path.write_text(before, encoding="utf-8")
    cut_half_line(path)
    assert path.read_text(encoding="utf-8") == after
    cut_half_line(tmp_path / "nothing")


def test_log_lines_have_the_originals_form_and_done_is_written(directory):
    directory.logger.info("Task: [0], Iter: [1]")
    text = (directory.path / "running_nb01.log").read_text()
    assert text == "INFO:dagger_server_running:Task: [0], Iter: [1]\n" and not directory.done
    directory.mark_done()
    assert directory.done and (directory.path / "DONE").exists()


def test_a_log_line_goes_to_no_other_logger(directory):
    heard = logging.handlers.BufferingHandler(10)
    logging.getLogger().addHandler(heard)
    directory.logger.info("Task: [0], Iter: [1]")
    logging.getLogger().removeHandler(heard)
    assert heard.buffer == []


def test_temporaries_of_killed_processes_are_removed(tmp_path):
    RunDirectory(tmp_path / "run").close()
    left = [tmp_path / "run" / name for name in ("state/.trainer.pth.1.tmp", "state/buffer/.a.h5.2.tmp", ".DONE.3.tmp")]
    for path in left:
        path.write_bytes(b"half")
    RunDirectory(tmp_path / "run").close()
    assert not any(path.exists() for path in left)


def test_the_port_of_a_server_that_has_ended_is_forgotten_and_that_of_another_is_not(directory):
    announcement = directory.state / "server.json"
    announcement.write_text("{}")
    with pytest.raises(RunDirectoryError, match=f"process {os.getpid()} is writing to {directory.path}"):
        forget_server(directory.path)
    assert announcement.exists()
    directory.close()
    for _ in range(2):
        forget_server(directory.path)
        assert not announcement.exists()
