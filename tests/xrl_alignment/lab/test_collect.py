"""Collecting on generated games: what is stored, that workers and interruptions change nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from alfworld_native.base import Game, information_of
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.games import find_games
from alfworld_native.reuse import ReusedEnvironments
from benchmarks._endpoint import FakeEndpoint
from lavis.common.errors import ConfigError, EmacError, FileError, MissingFileError
from lavis.datasets.annotations import AnnotationFile
from lavis.datasets.shards import ShardError, ShardFolder, open_shard
from xrl_alignment.agents.experts import Label
from xrl_alignment.agents.language.prompt import build_prompt
from xrl_alignment.lab import collect as module
from xrl_alignment.lab.collect import Plan, collect, main
from xrl_alignment.play.client.player import ClientPlayer
from xrl_alignment.play.collection.player import CollectingPlayer
from xrl_alignment.play.evaluation.actors import ExpertActor
from xrl_alignment.play.evaluation.trials import play_games
from xrl_alignment.play.rollouts.make import make_executor
from xrl_alignment.play.rollouts.sequential import SequentialExecutor
from xrl_alignment.runs.transitions import FIELDS


@pytest.fixture(scope="module")
def games(household_data: Path) -> list[Game]:
    return find_games("household_train", data=household_data, num=4, seed=0)


def played(game: Game, plan: Plan):
    """The transitions of a game, and whether it was won."""
    player = CollectingPlayer(plan, Path())
    (outcome,) = SequentialExecutor().run(lambda job: player.play(NativeEnvironment(), job), [game])
    by_turn, won = outcome.value
    return [*by_turn.values()], won


def content(folder: Path) -> dict[str, object]:
    """Everything in the data files (HDF5 files with the same content may differ in unused bytes)."""
    found: dict[str, object] = {}
    for path in folder.rglob("*"):
        if path.suffix == ".h5":
            shard = open_shard(path)
            rows = [shard.read(step, FIELDS) for step in range(shard.steps)]
            with h5py.File(path) as file:
                found[path.name] = [{**row, "image": row["image"].tobytes()} for row in rows], dict(file.attrs)
        elif path.suffix in (".json", ".jpg") and path.name != "collection.json":
            found[path.name] = path.read_bytes()
    return found


def test_transitions_are_what_the_model_would_see(games: list[Game]) -> None:
    plan = Plan(negatives=True)
    transitions, won = played(games[0], plan)
    assert won
    environment = NativeEnvironment()
    now = environment.reset(games[0])
    opening, steps = now.text, []
    for item in transitions:
        assert item.text_input == build_prompt(opening, (), steps)
        assert np.array_equal(item.image, environment.render())
        assert item.text_output in now.admissible_commands
        assert item.text_output_neg in set(now.admissible_commands) - {item.text_output}
        now = environment.step(item.executed)
        assert item.feedback == now.text
        steps.append((item.executed, item.feedback))
    assert now.won


def test_by_type_nothing_that_is_stored_numbers_an_object(games: list[Game], tmp_path: Path) -> None:
    shown = {"name_by": "type", "tell_objects": False, "show_ids": False}
    numbered = re.compile(
        r"\b(?:take|put|heat|cool|clean|use) [a-z]+ \d|\b(?:up|using|move|the) [a-z]+ \d+ (?:from|to|in/on)"
    )
    for eyes, camera in (("none", "close"), ("around", "around")):
        plan = Plan(**shown, memories=True, thoughts=True, negatives=True, eyes=eyes, camera=camera)
        player = CollectingPlayer(plan, tmp_path)
        with player._environments.lend() as environment:
            (outcome,) = SequentialExecutor().run(lambda job, by=player, at=environment: by.play(at, job), games[:1])
        transitions, won = outcome.value
        assert won and len(transitions) > 3
        for item in transitions.values():
            memory = item.text_input.partition("\n")[0]
            assert memory.startswith("Memory: (by rule) ") and "you see" not in item.text_input.partition("> ")[2]
            for text in (item.text_input, item.text_output, item.text_output_neg, item.executed, item.feedback):
                assert not numbered.search(text), text
        player.close()


def test_an_agent_that_must_look_writes_down_what_it_saw(games: list[Game]) -> None:
    plan = Plan(tell_objects=False, thoughts=True)
    transitions, won = played(games[0], plan)
    assert won
    full, _ = played(games[0], Plan())
    actions = [item for item in transitions if not item.text_output.startswith("think: ")]
    assert [item.text_output for item in actions] == [item.text_output for item in full]
    notes = [item for item in transitions if item.text_output.startswith("think: i see ")]
    assert notes and all(item.feedback == "OK." and item.executed == item.text_output for item in notes)
    last = transitions[-1].text_input
    assert ", you see " not in last.partition("Your task")[2] and notes[0].text_output in last


def test_memories_shorten_the_way(games: list[Game]) -> None:
    lengths = []
    for plan in (Plan(), Plan(memories=True)):
        found = [played(game, plan) for game in games]
        assert all(won for _, won in found)
        lengths.append(sum(len(transitions) for transitions, _ in found))
        said = [transitions[0].text_input.startswith("Memory: (by rule) ") for transitions, _ in found]
        assert all(said) if plan.memories else not any(said)
    assert lengths[1] < lengths[0]


def test_memories_know_what_the_agent_was_told(games: list[Game]) -> None:
    """Whoever is not told what lies where cannot remember it from an attempt that failed."""
    told, untold = (
        [
            played(game, Plan(memories=True, tell_objects=tell, seed=seed))[0][0].text_input.partition("\n")[0]
            for game in games
            for seed in range(4)
        ]
        for tell in (True, False)
    )
    assert told != untold


def test_an_attempt_is_over_when_the_steps_are(games: list[Game], tmp_path: Path) -> None:
    """An attempt may take more steps than a game has: the environment then refuses the next one."""
    plan = Plan(memories=True, keep_failed=True, max_steps=4)
    episodes = collect(plan, games, tmp_path)
    assert [episode.steps for episode in episodes] == [4] * len(games)
    memories = [open_shard(path).read(0, ("text_input",))["text_input"] for path in tmp_path.glob("*.h5")]
    assert len(memories) == len(games) and all(text.startswith("Memory: ") for text in memories)


def test_frames_without_numbers_black_ones_and_those_of_all_directions(games: list[Game], tmp_path: Path) -> None:
    plans = {
        "shown": Plan(),
        "plain": Plan(show_ids=False),
        "black": Plan(blank_frames=True),
        "around": Plan(camera="around"),
    }
    images = {}
    for name, plan in plans.items():
        collect(plan, games[:1], tmp_path / name)
        images[name] = np.asarray(ShardFolder(tmp_path / name).read(1).image)
    assert not np.array_equal(images["shown"], images["plain"])
    assert images["plain"].any() and not images["black"].any()
    assert images["around"].shape == (4 * 224, 224, 3)


def test_a_collection_of_an_older_version_goes_on(games: list[Game], tmp_path: Path) -> None:
    collect(Plan(), games[:1], tmp_path)
    settings = json.loads((tmp_path / "collection.json").read_text())
    for name in ("thoughts", "tell_objects", "show_ids", "blank_frames"):  # keys that did not exist
        del settings[name]
    (tmp_path / "collection.json").write_text(json.dumps(settings))
    assert len(collect(Plan(), games[:1], tmp_path)) == 1


def test_noise_executes_other_commands_and_labels_stay_the_experts(games: list[Game]) -> None:
    transitions, _ = played(games[0], Plan(noise=0.5, frames=False, format="lavis"))
    assert any(item.executed != item.text_output for item in transitions)


def test_an_explorer_that_sees_goes_straight_to_what_it_sees(games: list[Game], tmp_path: Path) -> None:
    plans = [Plan(order="listing"), Plan(order="listing", eyes="labels"), Plan(order="listing", eyes="everything")]
    blind, labels, whole = (collect(plan, games, tmp_path / plan.eyes) for plan in plans)
    assert all(episode.won for episode in (*blind, *labels, *whole))
    steps = [sum(episode.steps for episode in episodes) for episodes in (blind, labels, whole)]
    assert steps[0] >= steps[1] > steps[2]


def test_only_the_states_in_which_something_is_taken(games: list[Game], tmp_path: Path) -> None:
    (whole,) = collect(Plan(), games[:1], tmp_path / "all")
    (taken,) = collect(Plan(only="take"), games[:1], tmp_path / "taken")
    (shard,) = (open_shard(path) for path in (tmp_path / "taken").rglob("*.h5"))
    labels = [shard.read(step, ("text_output",))["text_output"] for step in range(shard.steps)]
    assert labels and all(label.startswith("take ") for label in labels) and taken.stored == len(labels)
    assert taken.steps == whole.steps > taken.stored  # the game was played to its end


def test_shards_with_any_number_of_workers_and_a_card(games: list[Game], tmp_path: Path) -> None:
    one = collect(Plan(), games, tmp_path / "1")
    with make_executor("local", workers=2) as executor:
        two = collect(Plan(), games, tmp_path / "2", executor)
    assert content(tmp_path / "1") == content(tmp_path / "2")
    assert [(e.env, e.game, e.won) for e in one] == [(e.env, e.game, e.won) for e in two]
    source = ShardFolder(tmp_path / "1")
    assert len(source) == sum(episode.stored for episode in one)
    assert source.read(0).game == games[0].id
    card = (tmp_path / "1/README.md").read_text()
    assert f"| all | 4 | {sum(episode.won for episode in one)} |" in card


def test_goes_on_after_an_interruption(games: list[Game], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(format="lavis", image_format="jpg")
    collect(plan, games, tmp_path / "whole")
    played = []

    def interrupted(self: CollectingPlayer, job: tuple[int, Game]):
        if len(played) == 2:
            raise KeyboardInterrupt
        played.append(job[0])
        return (yield from original(self, job))

    original = CollectingPlayer.__call__
    monkeypatch.setattr(CollectingPlayer, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        collect(plan, games, tmp_path / "cut")
    monkeypatch.setattr(CollectingPlayer, "__call__", original)
    for name in ("episodes.jsonl", ".annotations.jsonl"):  # a crash in the middle of a write
        with open(tmp_path / "cut" / name, "a") as file:
            file.write('{"half')
    (tmp_path / "cut" / ".collection.json.4711.tmp").write_text("half")
    assert len(collect(plan, games, tmp_path / "cut")) == 4 and not list((tmp_path / "cut").glob(".*.tmp"))
    assert content(tmp_path / "cut") == content(tmp_path / "whole")
    monkeypatch.setattr(module, "CollectingPlayer", None)  # all is done: nothing is played again
    assert len(collect(plan, games, tmp_path / "cut")) == 4


def test_lost_and_damaged_shards_are_collected_again(
    games: list[Game], tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan()
    whole = collect(plan, games, tmp_path)
    shards = sorted(tmp_path.glob("*.h5"))
    before, card_before = [path.read_bytes() for path in shards], (tmp_path / "README.md").read_text()
    shards[0].unlink()
    os.truncate(shards[2], 5000)
    again = collect(plan, games, tmp_path)
    assert (
        f"2 shards are gone or cut short ({shards[0].name}, …): their games are played again" in capsys.readouterr().out
    )
    assert [path.read_bytes() for path in shards] == before
    assert [(one.env, one.stored) for one in again] == [(one.env, one.stored) for one in whole]
    assert (tmp_path / "README.md").read_text() == card_before
    assert len((tmp_path / "episodes.jsonl").read_text().splitlines()) == len(games)
    with monkeypatch.context() as newer:
        newer.setattr("lavis.datasets.shards.VERSION", 99)
        os.utime(shards[0])
        with pytest.raises(ShardError, match="cannot be read, only 99"):
            collect(plan, games, tmp_path)
    assert [path.read_bytes() for path in shards] == before


def test_annotations_survive_an_end_before_the_card_is_written(games: list[Game], tmp_path: Path) -> None:
    plan = Plan(format="lavis", frames=False)
    (tmp_path / "README.md" / "no card").mkdir(parents=True)
    with pytest.raises(FileError, match="README.md could not be written"):
        collect(plan, games[:1], tmp_path)
    made = (tmp_path / "annotations.json").read_bytes()
    shutil.rmtree(tmp_path / "README.md")
    collect(plan, games[:1], tmp_path)
    assert (tmp_path / "annotations.json").read_bytes() == made
    # A finished collection without its card, or a copy without hidden files: what is there stays as it is.
    (tmp_path / "README.md").unlink()
    with pytest.raises(FileError, match=r"annotations.jsonl lacks data that episodes.jsonl names .*: collect into"):
        collect(plan, games[:1], tmp_path)
    assert (tmp_path / "annotations.json").read_bytes() == made


def test_labels_and_texts_only(household_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = ["--split", "household_train", "--data", str(household_data), "--num-games", "2", "--no-frames"]
    main([*arguments, "--out", str(tmp_path)])
    assert "of 2 games" in capsys.readouterr().out
    entries = json.loads((tmp_path / "annotations.json").read_text())
    assert "image" not in entries[0]
    assert len(AnnotationFile(tmp_path / "annotations.json", tmp_path, blank_images=True)) == len(entries)
    assert not (tmp_path / "images").exists()


def test_pictures_are_exact_as_png_and_on_disk_before_the_journal_names_them(
    games: list[Game], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def syncing(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", syncing)
    collect(Plan(format="lavis"), games[:1], tmp_path)
    images = sorted(path.name for path in (tmp_path / "images").iterdir())
    before = synced[: synced.index("episodes.jsonl")]
    assert images and [name for name in before if name in images] == images and before.index("images") > 0
    environment = NativeEnvironment()
    environment.reset(games[0])
    with Image.open(tmp_path / "images/env0000_step000.png") as picture:
        assert np.array_equal(np.asarray(picture), environment.render())


def test_a_finished_collection_whose_list_is_gone_or_cut_short_is_collected_again(games, tmp_path):
    done = collect(Plan(), games[:2], tmp_path)
    path, before = tmp_path / "episodes.jsonl", content(tmp_path)
    first = path.read_bytes().splitlines(keepends=True)[0]
    for left in (first, b"", None):
        path.unlink()
        if left is not None:
            path.write_bytes(left)
        assert [(e.env, e.stored) for e in collect(Plan(), games[:2], tmp_path)] == [(e.env, e.stored) for e in done]
        assert content(tmp_path) == before and len(path.read_bytes().splitlines()) == 2


def test_a_card_of_somebodys_own_stays(games: list[Game], tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(ConfigError, match=r"no collection has written .README\.md.: use another --out"):
        collect(Plan(), games[:1], tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine" and not (tmp_path / "collection.json").is_file()


def test_other_settings_need_another_folder(games: list[Game], tmp_path: Path) -> None:
    collect(Plan(), games[:1], tmp_path)
    with pytest.raises(ConfigError, match=r"begun with other settings \(seed: 0 there, 1 now\): use another --out"):
        collect(Plan(seed=1), games[:1], tmp_path)


def test_data_of_another_origin_needs_another_folder(games: list[Game], tmp_path: Path) -> None:
    foreign = tmp_path / "round000_env0000_steps001.h5"
    foreign.write_bytes(b"not of a collection")
    with pytest.raises(ConfigError, match=f"data that no collection has written .{foreign.name}.: use another --out"):
        collect(Plan(), games[:1], tmp_path)
    assert foreign.read_bytes() == b"not of a collection"


@pytest.mark.parametrize("name", ["collection.json", "episodes.jsonl"])
@pytest.mark.parametrize("content", ["{", "[]", "5", '{"env": 1}\n'])
def test_a_damaged_collection_is_named(games: list[Game], tmp_path: Path, name: str, content: str) -> None:
    collect(Plan(), games[:1], tmp_path)
    (tmp_path / name).write_text(content + "\n")
    with pytest.raises(EmacError, match=f"{name} is damaged|begun with other settings"):
        collect(Plan(), games[:1], tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"frames": False}, "--no-frames writes texts only"),
        ({"expert": "planner", "env": "my.games:Env"}, "--expert planner reads the state of ALFWorld's games"),
        ({"noise": 2.0}, "--noise 2.0 is no probability"),
        ({"expert": "handcoded", "eyes": "frame"}, "--order and --eyes are the explorer's"),
        ({"env": "thor", "eyes": "frame"}, "--eyes reads the state of ALFWorld's games"),
        (
            {"camera": "close", "eyes": "frame"},
            "--eyes frame sees what frames of --camera front show, not --camera close",
        ),
        ({"eyes": "labels-around"}, "--eyes labels-around sees what frames of --camera around show"),
        ({"blank_frames": True, "eyes": "frame"}, "--eyes frame sees what frames show: leave out --blank-frames"),
        ({"show_ids": False, "eyes": "labels"}, "--eyes labels reads the labels of frames"),
        ({"image_format": "jpg"}, "--image-format jpg is for --format lavis"),
        ({"expert": "handcoded", "notes": True, "thoughts": True}, "--notes are the explorer's thoughts"),
        ({"notes": True}, "use it with --expert explorer --thoughts"),
        ({"only": "tke"}, "--only: unknown first word of a label 'tke': did you mean 'take'"),
    ],
)
def test_impossible_settings(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Plan(**settings)


def test_a_language_model_is_asked_for_several_episodes_at_once(
    household_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    command = ["--split", "household_train", "--data", str(household_data), "--num-games", "3", "--max-steps", "2"]
    command += ["--expert", "openai", "--keep-failed", "--expert-options", "model=m", "cache="]
    together = threading.Barrier(3, timeout=100)  # nobody is answered before three have asked
    for workers, wait in (("1", lambda: None), ("3", together.wait)):
        with FakeEndpoint(lambda prompt, wait=wait: (wait(), "inventory")[1]) as server:
            out = ["--workers", workers, "--out", str(tmp_path / workers)]
            main([*command, f"base_url={server.url}", f"concurrency={workers}", *out])
            assert f"EXPERT: calls {len(server.requests)}, " in capsys.readouterr().out
    assert content(tmp_path / "1") == content(tmp_path / "3")
    source = ShardFolder(tmp_path / "3")
    assert [source.read(index).text_output for index in range(len(source))] == ["inventory"] * 6
    settings = json.loads((tmp_path / "3/collection.json").read_text())["expert_options"]
    assert settings == {"model": "m", "base_url": server.url}


def test_an_option_of_an_expert_in_quotes_is_taken_as_it_is(
    household_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Yaml reads `answers #2` as `answers`, once the quotes are gone."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.chdir(tmp_path)
    with FakeEndpoint(lambda prompt: "inventory") as server:
        command = ["--split", "household_train", "--data", str(household_data), "--num-games", "1", "--max-steps", "1"]
        options = ["model=m", f"base_url={server.url}", "cache='answers #2'"]
        main([*command, "--out", "out", "--keep-failed", "--expert", "openai", "--expert-options", *options])
    assert (tmp_path / "answers #2").exists() and not (tmp_path / "answers").exists()


def test_options_of_an_expert_that_do_not_serve(household_data: Path, tmp_path: Path) -> None:
    command = ["--split", "household_train", "--data", str(household_data), "--out", str(tmp_path / "other")]
    with pytest.raises(ConfigError, match="--expert-options: .*'modl'"):
        main([*command, "--expert", "openai", "--expert-options", "modl=m"])
    with pytest.raises(ConfigError, match="--expert-options: max_calls: 'many' has the wrong type: it must be a whole"):
        main([*command, "--expert", "openai", "--expert-options", "model=m", "max_calls=many"])
    with pytest.raises(ConfigError, match="are for --expert openai, not for explorer"):
        main([*command, "--expert-options", "model=m"])
    with pytest.raises(ConfigError, match="model=@cf/meta/llama"):
        main([*command, "--expert", "openai", "--expert-options", "model=@cf/meta/llama"])
    with pytest.raises(ConfigError, match="--workers 0: use at least 1"):
        main([*command, "--workers", "0"])
    with pytest.raises(ConfigError, match="--executor and --ray-address are not for --expert openai"):
        main([*command, "--expert", "openai", "--expert-options", "model=m", "--executor", "ray"])


def test_a_file_where_the_folder_should_be(household_data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    command = ["--split", "household_train", "--data", str(household_data), "--num-games", "1"]
    with pytest.raises(FileError, match="the folder .*file could not be made: File exists"):
        main([*command, "--out", str(tmp_path / "file")])


# --- classes of one's own, and what an expert is told -----------------------------------------------------------------


def test_examples_collect_by_name(household_data: Path, tmp_path: Path) -> None:
    kinds = [game.task_type for game in find_games("household_heldout", household_data, seed=0)]
    number = str(kinds.index("pick_and_place_simple") + 1)
    common = ["--data", str(household_data), "--split", "household_heldout", "--num-games", number]
    common += ["--no-frames", "--expert", "examples.custom_expert:OrderlyExpert", "--keep-failed", "--max-steps", "40"]
    main([*common, "--out", str(tmp_path / "native")])
    environment = ["--env", "examples.custom_environment:OneRoomEnvironment", "--max-steps", "15"]
    main([*common, *environment, "--out", str(tmp_path / "one-room")])
    for folder in ("native", "one-room"):
        episodes = [json.loads(line) for line in (tmp_path / folder / "episodes.jsonl").read_text().splitlines()]
        assert [e["won"] for e in episodes if e["task_type"] == "pick_and_place_simple"] == [True]


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--expert", "expolrer", "--expert: unknown name 'expolrer': did you mean 'explorer'"),
        ("--env", "minecraft", "--env: unknown name 'minecraft'"),
        ("--expert", "nowhere_at_all:X", "there is no module nowhere_at_all"),
    ],
)
def test_names_that_cannot_be_used(household_data: Path, tmp_path: Path, option: str, value: str, reason: str) -> None:
    common = ["--data", str(household_data), "--split", "household_heldout", "--num-games", "1", "--no-frames"]
    with pytest.raises(ConfigError, match=reason):
        main([*common, option, value, "--out", str(tmp_path / "out")])


def test_a_tokenizer_that_is_not_there_claims_no_folder(household_data: Path, tmp_path: Path) -> None:
    asked = ["--split", "household_train", "--data", str(household_data), "--num-games", "1"]
    out = tmp_path / "out"
    with pytest.raises(MissingFileError, match="--tokenizer: no tokenizer in"):
        main([*asked, "--no-frames", "--tokenizer", str(tmp_path / "modle"), "--out", str(out)])
    main([*asked, "--no-frames", "--out", str(out)])
    assert (out / "README.md").is_file()


class Listening:
    """An expert that keeps what it is told."""

    name = "listening"

    def __init__(self) -> None:
        self.told: list[object] = []

    def begin(self, intro: str, **context: object) -> None:
        pass

    def observe(self, action: str, feedback: str) -> None:
        pass

    def act(self, information: object = None) -> Label:
        self.told.append(information)
        return Label("look")


def test_an_expert_is_told_the_same_everywhere(games: list[Game], monkeypatch: pytest.MonkeyPatch) -> None:
    collecting, evaluating, beside = Listening(), Listening(), Listening()
    monkeypatch.setattr("xrl_alignment.play.collection.player.make_expert", lambda name, **options: collecting)
    played(games[0], Plan(max_steps=2, keep_failed=True))
    play_games(ExpertActor(lambda environment: evaluating), games[:1], NativeEnvironment, max_steps=2)
    client = ClientPlayer(ReusedEnvironments(NativeEnvironment), lambda environment: beside)
    answers = iter(["look", None])
    SequentialExecutor().run_one(client, games[0], answer=lambda observations: [next(answers) for _ in observations])
    environment = NativeEnvironment()
    first = information_of(environment, environment.reset(games[0]))
    second = information_of(environment, environment.step("look"))
    assert collecting.told == evaluating.told == beside.told == [first, second]


def test_a_mixture_of_levels_is_collected_each_game_to_its_own_horizon(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked = ["--env", "household", "--split", "household_train", "--no-frames", "--num-games", "4", "--levels"]
    asked += ["standard=1", "compound=1", "--out", str(tmp_path / "out")]
    with pytest.raises(ConfigError, match="--max-steps 50 is less than the longest horizon of --levels: 100"):
        main([*asked, "--max-steps", "50"])
    main(asked)
    lines = [json.loads(line) for line in (tmp_path / "out" / "episodes.jsonl").read_text().splitlines()]
    assert sorted(line["game"].split("_")[-2] for line in lines) == ["compound100"] * 2 + ["standard50"] * 2
    assert all(line["won"] for line in lines)
    with pytest.raises(ConfigError, match="use --env household"):
        main([*asked[2:], "--max-steps", "100"])
    # With notes, a student of these data writes down what is left.
    out = tmp_path / "notes"
    main([*asked[:-1], str(out), "--max-steps", "100", "--thoughts", "--notes"])
    labels = [entry["text_output"] for entry in json.loads((out / "annotations.json").read_text())]
    assert sum(label.startswith("think: task: ") and " done" not in label for label in labels) >= 2
    assert sum(label.startswith("think: task: ") and " done; " in label for label in labels) >= 2
    assert not any("likeliest place left" in label for label in labels)
