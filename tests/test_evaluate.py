"""`evaluate.py` as a program: what it writes, and what it refuses."""

import json
import signal
import sys
from pathlib import Path

import pytest
import torch

import evaluate
from alfworld_native.experts.explorer import Explorer
from alfworld_native.games import find_games, games_hash
from benchmarks._endpoint import FakeEndpoint
from lavis.common.program import run_program
from lavis.common.registry import registry
from lavis.models.hf_vlm import tiny
from tests import warm
from tests.colour_student import ColourStudent
from tests.hostile_endpoint import HostileEndpoint
from xrl_alignment.builders.student import load_student
from xrl_alignment.play.evaluation.page import page
from xrl_alignment.play.evaluation.scores import read_table
from xrl_alignment.runs.checkpoint import save_checkpoint

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def program(monkeypatch, capsys, tmp_path, household_data):
    """Runs `evaluate.main` in this process on generated games; returns (exit code, stdout, stderr lines)."""

    def run(*options: str, cfg: str = "episodes", protocol: str = "") -> tuple[int, str, list[str]]:
        given = [
            "environment.name=native", "environment.split=household_heldout", f"environment.data={household_data}",
            "run.num_threads=1", "run.num_envs=2", f"run.output={tmp_path / 'result.json'}", *options,
        ]  # fmt: skip
        path = ROOT / "configs" / "evaluate" / f"{cfg}.yaml"
        named = ["--protocol", protocol] if protocol else []
        monkeypatch.setattr(sys, "argv", ["evaluate.py", "--cfg-path", str(path), *named, "--options", *given])
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        with pytest.raises(SystemExit) as end:
            run_program(evaluate.main)
        out, err = capsys.readouterr()
        return end.value.code, out, err.splitlines()

    return run


def result(tmp_path) -> dict:
    return json.loads((tmp_path / "result.json").read_text())


def test_a_policys_figures_and_what_they_depend_on(program, tmp_path, household_data):
    code, out, _ = program("run.max_steps=3", "policy.num_beams=1", "policy.max_length=8")
    got = result(tmp_path)
    assert code == 0 and "task type" in out
    assert (got["first_trial"]["games"], got["engine"], got["actor"]) == (2, "native", "policy, free decoding")
    assert got["games_hash"] == games_hash(find_games("household_heldout", household_data, num=2, seed=0))
    assert [episode["actions"] for episode in got["episodes"][0]] == [3, 3] and got["versions"]["torch"]


def test_admissible_decoding_and_blank_frames_are_told(program, tmp_path):
    code, _, _ = program("run.max_steps=2", "policy.decode=admissible", "environment.blank_frames=true")
    got = result(tmp_path)
    assert code == 0 and got["actor"] == "policy, admissible decoding" and got["blank_frames"] is True
    assert got["first_trial"]["rejected"] == 0


def test_by_looks_nothing_names_an_object_by_number(program, tmp_path):
    code, _, _ = program("run.actor=expert", "run.num_trials=2", cfg="looks")
    got = result(tmp_path)
    assert code == 0 and got["first_trial"]["success"] == 1.0
    options = ["run.max_steps=2", "run.enable_tc=false"]
    for option, sees in (
        ("environment.seed=0", "rendered state without labels from near"),
        ("environment.blank_frames=true", "black frames"),
        ("environment.other_frames=true", "rendered state without labels from near, of another game"),
    ):
        code, _, _ = program(*options, option, cfg="looks")
        assert code == 0 and result(tmp_path)["sees"] == f"by looks: text without objects and numbers, {sees}"
    code, _, err = program("environment.blank_frames=true", "environment.other_frames=true", cfg="looks")
    assert code == 2 and "environment.other_frames: True has no effect unless" in err[0]


def test_an_expert_alone_over_two_trials(program, tmp_path):
    code, out, _ = program("expert.name=explorer", "run.num_trials=2", cfg="expert")
    got = result(tmp_path)
    assert out.startswith("playing 2 games of native household_heldout, 2 trials: expert explorer\n")
    assert code == 0 and got["actor"] == "expert explorer" and got["first_trial"]["success"] == 1.0
    assert got["best_of"]["success"] == 1.0 and len(got["episodes"]) == 2 and "best of 2 trials" in out


def test_progress_of_a_later_trial_counts_the_games_that_it_plays(program, tmp_path):
    program("expert.name=explorer", cfg="expert")
    shortest = min(episode["actions"] for episode in result(tmp_path)["episodes"][0])
    code, out, _ = program("expert.name=explorer", f"run.max_steps={shortest}", "run.num_trials=2", cfg="expert")
    assert code == 0 and len(result(tmp_path)["episodes"][1]) == 1  # the other one was solved in the first trial
    assert "2 of 2 games of trial 1 of 2" in out and "0 solved, 1 of 1 games of trial 2 of 2" in out


def test_the_same_command_gives_the_same_figures(program, tmp_path):
    results = []
    for _ in range(2):
        assert program("run.max_steps=3", "policy.num_beams=1", "policy.max_length=8")[0] == 0
        results.append(result(tmp_path)["episodes"])
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["environment.split=nowhere"], "no games of split 'nowhere'"),
        (["run.num_envs=99"], "99 were asked for"),
        (["run.num_env=1"], "did you mean 'run.num_envs'?"),
        (["model.pretrained=nothing.pth"], "nothing.pth"),
        (["run.actor=expert", "expert.name=client"], "expert.name=client"),
        (
            [
                "run.actor=expert",
                "expert.name=planner",
                "environment.name=examples.custom_environment:OneRoomEnvironment",
            ],
            "use environment.name=native",
        ),
        (["run.output=/"], "run.output=/ cannot be written"),
        (["run.table=/"], "run.table=/ cannot be written"),
        ([f"run.output={__file__}/result.json"], "result.json cannot be written"),
    ],
)
def test_mistakes_end_in_one_line_and_code_2(program, tmp_path, options, reason):
    code, _, err = program(*options)
    assert code == 2 and len(err) == 1 and err[0].startswith("error: ") and reason in err[0]
    assert not (tmp_path / "result.json").exists()


# --- classes of one's own, and games that the weights know ------------------------------------------------------------


def test_the_examples_play_by_name(program, tmp_path):
    of_one_type = ["run.num_envs=6"]
    code, _, err = program("expert.name=examples.custom_expert:OrderlyExpert", *of_one_type, cfg="expert")
    got = result(tmp_path)
    assert code == 0 and got["actor"] == "expert examples.custom_expert:OrderlyExpert", err
    assert got["first_trial"]["per_task_type"]["pick_and_place_simple"]["success"] == 1.0
    policy = ["policy.name=examples.custom_policy:WordMatchPolicy", "run.max_steps=30"]
    code, _, err = program(*policy, *of_one_type)
    got = result(tmp_path)
    assert code == 0 and sum(episode["actions"] for episode in got["episodes"][0]) > 6, err


class TypelessStudent(ColourStudent):
    """A student of one's own, without named types."""

    @classmethod
    def from_config(cls, cfg):
        return cls(seed=cfg.get("seed", 0))


def test_a_student_without_named_types_is_scored_by_its_own_name(program, tmp_path, monkeypatch):
    monkeypatch.setitem(registry.mapping["model_name_mapping"], "typeless", TypelessStudent)
    code, _, err = program("model.arch=typeless", "model.model_type=", "run.num_envs=1", "run.max_steps=2")
    assert code == 0, err
    (row,) = read_table([tmp_path / "scores.jsonl"])
    assert row["who"] == "typeless" and row["kind"] == "model as it came"
    # It does not read `model.pretrained`: another's figures would be told of that file.
    trained = TypelessStudent()
    for weight in trained.head.parameters():
        weight.data += 1
    path = save_checkpoint(tmp_path / "emma_checkpoint_1.pth", model=trained)
    code, _, err = program("model.arch=typeless", "model.model_type=", f"model.pretrained={path}")
    assert code == 2 and "the weights of" in err[0] and "TypelessStudent.from_config must load that file" in err[0]


def test_an_environment_of_ones_own_plays_by_name(program, tmp_path, household_data):
    kinds = [game.task_type for game in find_games("household_heldout", household_data, seed=0)]
    one_room = ["environment.name=examples.custom_environment:OneRoomEnvironment", "expert.name=explorer"]
    number = kinds.index("pick_and_place_simple") + 1  # the others are none that this room has
    code, _, err = program(*one_room, f"run.num_envs={number}", "run.max_steps=20", cfg="expert")
    got = result(tmp_path)
    assert code == 0 and got["engine"] == "examples.custom_environment:OneRoomEnvironment", err
    assert got["first_trial"]["per_task_type"]["pick_and_place_simple"]["success"] == 1.0


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("expert.name=nowhere_at_all:X", "expert nowhere_at_all:X: there is no module nowhere_at_all"),
        ("expert.name=json:X", "module json has no class X"),
        ("environment.name=json:JSONDecoder", "the class lacks reset, step, render, close"),
        ("expert.name=expolrer", "module:Class"),
    ],
)
def test_a_class_that_cannot_be_used_is_one_line(program, option, reason):
    code, _, err = program(option, cfg="expert")
    assert code == 2 and len(err) == 1 and reason in err[0]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Writes a checkpoint of the tiny model that has trained on `games` (None: as an older version wrote it)."""
    model, _ = load_student({}, torch.device("cpu"))

    def write(games: list[str] | None) -> Path:
        played = None if games is None else {"games": games, "environments": ["native household_heldout"]}
        return save_checkpoint(tmp_path_factory.mktemp("weights") / "emma_checkpoint_0.pth", model=model, played=played)

    return write


def test_games_that_the_checkpoint_has_trained_on_are_told(program, tmp_path, household_data, weights):
    ids = [game.id for game in find_games("household_heldout", household_data, num=2, seed=0)]
    short = ["run.max_steps=2", "policy.num_beams=1", "policy.max_length=8"]
    for known, number, line in (
        (ids[:1], 1, "NOT HELD OUT: the checkpoint has trained on 1 of these 2 games (native household_heldout)"),
        (["other/1"], 0, ""),
        (["pick_and_place-env0"], None, "whether the weights have trained on these games is unknown"),  # by a v1 client
        (None, None, "whether the weights have trained on these games is unknown"),
    ):
        code, out, err = program(
            f"model.pretrained={weights(known)}", "model.load_pretrained=true", "model.model_type=tiny", *short
        )
        assert code == 0, err
        assert result(tmp_path)["trained_on"]["games"] == number and line in out
        assert number or "HELD OUT" not in out


def test_an_expert_plays_in_processes_of_their_own(household_data, tmp_path):
    """As a terminal starts it: workers do not import the program, so nothing of it may travel to them."""
    options = ["environment.name=native", "environment.split=household_heldout", f"environment.data={household_data}"]
    options += ["run.num_envs=2", "run.executor=local", "run.num_workers=2", "expert.name=explorer"]
    command = ["evaluate.py", "--cfg-path", "configs/evaluate/expert.yaml", "--options", *options]
    warm.run([*command, f"run.output={tmp_path / 'result.json'}"]).check_returncode()
    assert result(tmp_path)["first_trial"]["success"] == 1.0


def test_the_shipped_student_solves_games_in_rooms_that_it_never_saw(program, tmp_path):
    code, _, _ = program("run.num_envs=6", cfg="student")
    got = result(tmp_path)["first_trial"]
    assert code == 0 and got["games"] == 6
    assert got["solved"] >= 5
    # Its file names the splits that it has read; this one is not among them.
    assert result(tmp_path)["trained_on"] == {"games": 0, "environments": ["split household_train", "split train"]}
    assert result(tmp_path)["pretrained"] == "tiny/student.safetensors"


# --- protocols --------------------------------------------------------------------------------------------------------


def test_emma_12_counts_by_slot_and_by_game(program, tmp_path):
    """A student that never solves one game meets it in another slot, and every slot is solved in time."""
    code, out, err = program("run.num_envs=6", cfg="student", protocol="emma-12")
    got = result(tmp_path)
    assert code == 0, err
    assert "protocol: emma-12, 30 steps; its own games would be 134 of valid_unseen" in out
    assert (got["protocol"], got["max_steps"], got["trials"], got["protocol_games"]) == ("emma-12", 30, 12, False)
    assert got["by_slot"]["games"] == got["best_of"]["games"] == 6
    assert got["by_slot"]["solved"] >= got["best_of"]["solved"] >= got["first_trial"]["solved"] >= 5
    lines = [line.split("=")[0].split() for line in out.splitlines() if " of 6 = " in line]
    assert [line[-3:] for line in lines] == [
        [str(figures["solved"]), "of", "6"] for figures in (got["by_slot"], got["best_of"], got["first_trial"])
    ]
    (row,) = read_table([tmp_path / "scores.jsonl"])
    assert row["by_slot"] == got["by_slot"] and "Counted by slot" in (tmp_path / "result.card.md").read_text()


@pytest.mark.parametrize(
    ("protocol", "options", "reason"),
    [
        ("emma-12", ["run.num_trials=3"], "--options run.num_trials=3 contradicts --protocol emma-12"),
        ("emma-12", ["run.num_trials=1"], "--options run.num_trials=1 contradicts --protocol emma-12"),
        ("verl-agent", ["expert.decode=free"], "expert.decode=free contradicts --protocol verl-agent"),
        ("emma", [], "did you mean 'emma-12'?"),
    ],
)
def test_a_protocol_refuses_what_contradicts_it(program, tmp_path, protocol, options, reason):
    code, _, err = program(*options, cfg="expert", protocol=protocol)
    assert code == 2 and len(err) == 1 and reason in err[0]
    assert not (tmp_path / "result.json").exists()


@pytest.mark.parametrize(
    ("cfg", "options", "protocol", "own"),
    [
        ("episodes", ["policy.name=examples.custom_policy:WordMatchPolicy"], "emma-12", "free text"),
        ("expert", ["expert.name=examples.custom_expert:OrderlyExpert"], "verl-agent", "admissible commands"),
        ("expert", ["run.actor=random"], "react", "free text"),
    ],
)
def test_a_player_that_decodes_otherwise_than_the_protocol_is_told(program, tmp_path, cfg, options, protocol, own):
    """A class of somebody's own reads what it likes: no setting keeps it to the rule, so the card tells."""
    code, out, err = program(*options, "run.num_envs=1", cfg=cfg, protocol=protocol)
    assert code == 0 and f"; its own decoding would be {own}" in out, err
    assert f"; NOT its decoding, which is {own} |" in (tmp_path / "result.card.md").read_text()
    if cfg == "episodes":
        assert result(tmp_path)["actor"] == "policy examples.custom_policy:WordMatchPolicy"


def test_a_protocol_is_not_for_stored_data(monkeypatch, capsys):
    path = ROOT / "lavis" / "projects" / "instructblip" / "finetuning" / "alfworld_eval.yaml"
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "--cfg-path", str(path), "--protocol", "react"])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit):
        run_program(evaluate.main)
    assert "--protocol is for played games" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cfg", "options", "row_has"),
    [
        ("expert", ["run.actor=random"], ("random", "admissible", "admissible commands", 0)),
        ("expert", ["expert.name=handcoded"], ("expert", "free", "the state", 0)),
        (
            "expert",
            ["expert.name=examples.custom_expert:OrderlyExpert"],
            ("expert", "free", "text", None),
        ),
        (
            "expert",
            ["expert.name=examples.custom_expert:OrderlyExpert", "environment.text_noise=0.5"],
            ("expert", "free", "text with noise (0.5)", None),
        ),
        (
            "episodes",
            ["policy.name=examples.custom_policy:WordMatchPolicy", "environment.tell_objects=true"],
            ("class", "admissible", "text, admissible commands", None),
        ),
    ],
)
def test_a_card_says_what_the_player_was_given(program, tmp_path, cfg, options, row_has):
    """Whatever a class does: it declares what it reads, and is given nothing else. Held out is "yes" only if known."""
    assert program(*options, "run.num_envs=1", "run.max_steps=2", cfg=cfg)[0] == 0
    (row,) = read_table([tmp_path / "scores.jsonl"])
    assert (row["kind"], row["decode"], row["sees"], row["trained_on"]) == row_has
    assert row["protocol"] == "own settings"  # two steps are those of no protocol
    assert result(tmp_path)["pretrained"] == ""  # whatever the model's section names


# --- scoring others ---------------------------------------------------------------------------------------------------


def explorer_answers(prompt: str) -> str:
    """What the explorer would do: it reads the last episode of a ReAct prompt."""
    text = prompt[prompt.rindex("You are in the middle of a room") :].partition("Admissible commands: ")[0]
    opening, *turns = text.removesuffix("> ").rstrip("\n").split("\n> ")
    expert = Explorer()
    expert.begin(opening)
    for turn in turns:
        action, _, feedback = turn.partition("\n")
        expert.act()
        expert.observe(action, feedback)
    return expert.act().action


PRICES = ["expert.price_prompt=1.0", "expert.price_completion=2.0", "expert.cache="]


def test_a_model_behind_an_endpoint_is_scored(program, tmp_path, household_data):
    with FakeEndpoint(explorer_answers) as server:
        url = server.url.replace("http://", "http://user:secret@")
        code, _, err = program(f"expert.base_url={url}", "expert.model=m", *PRICES, cfg="endpoint")
        assert code == 0, err
        (row,) = read_table([tmp_path / "scores.jsonl"])
        assert row["protocol"] == "single-trial"
        assert (row["kind"], row["who"], row["decode"], row["sees"]) == (
            "endpoint",
            "m at 127.0.0.1",
            "free",
            "text, the task's type",
        )
        assert row["first_trial"]["success"] == 1.0 and row["best_of"] is None
        assert row["games_hash"] == games_hash(find_games("household_heldout", household_data, num=2, seed=0))
        steps = sum(episode["actions"] for episode in result(tmp_path)["episodes"][0])
        assert row["cost"]["total"]["calls"] == len(server.requests) == steps  # one answer a state
        tokens = row["cost"]["total"]
        assert tokens["cost_usd"] == pytest.approx(
            tokens["prompt_tokens"] / 1e6 + 2 * tokens["completion_tokens"] / 1e6
        )
        assert "Admissible commands" not in server.requests[0]["messages"][-1]["content"]
    card = (tmp_path / "result.card.md").read_text()
    assert "2 of 2 games" in card and row["games_hash"] in card and "held out | unknown" in card
    assert "secret" not in card + json.dumps(row) + (tmp_path / "result.json").read_text()


def test_free_and_admissible_single_and_best_are_kept_apart(program, tmp_path):
    for number, (answer, options) in enumerate(
        (
            (lambda prompt: "I would rather not.", []),
            (explorer_answers, ["expert.decode=admissible"]),
            (
                lambda prompt: "dance",
                ["expert.decode=admissible", "run.num_trials=2", "run.max_steps=3", "expert.temperature=0.7"],
            ),
        )
    ):
        with FakeEndpoint(answer) as server:
            given = [f"expert.base_url={server.url}", f"expert.model=m{number}", "expert.cache=", "run.max_steps=30"]
            code, _, err = program(*given, *options, cfg="endpoint")
            assert code == 0, err
            listed = server.requests[0]["messages"][-1]["content"].splitlines()[-2]
            assert listed.startswith("Admissible commands: ") is (number > 0)
    assert program("run.actor=random", "run.max_steps=30", cfg="expert")[0] == 0
    free, listed, twice, chance = read_table([tmp_path / "scores.jsonl"])
    assert free["first_trial"]["solved"] == 0 and free["calls"]["no_label"] == 60 == free["cost"]["total"]["calls"]
    assert listed["first_trial"]["success"] == 1.0 and listed["best_of"] is None
    assert twice["trials"] == 2 and twice["best_of"]["games"] == 2 and twice["calls"]["no_label"] == 12
    assert twice["cost"]["first_trial"]["calls"] == 6 and twice["cost"]["total"]["calls"] == 12
    assert (chance["who"], chance["decode"], chance["first_trial"]["rejected"]) == ("random commands", "admissible", 0)
    text = page([free, listed, twice, chance])
    assert text.count("Free text: ") == text.count("The best of several trials") == 1
    assert text.count("Admissible commands: ") == 2  # the third had another step limit
    assert text.index("| m1 at") < text.index("| random commands")


def test_an_evaluation_that_would_cost_too_much_stops_in_one_line(program, tmp_path):
    with FakeEndpoint() as server:
        code, _, err = program(
            f"expert.base_url={server.url}", "expert.model=m", "expert.cache=", "expert.max_calls=5", cfg="endpoint"
        )
    assert code == 2 and len(err) == 1 and "expert.max_calls=5" in err[0] and len(server.requests) == 5
    assert not (tmp_path / "scores.jsonl").exists()


def test_a_table_elsewhere_or_none(program, tmp_path):
    where = tmp_path / "tables" / "all.jsonl"
    for _ in range(2):
        assert program(f"run.table={where}", cfg="expert")[0] == 0
    first, second = read_table([where])
    assert first["first_trial"] == second["first_trial"]
    assert program("run.table=", cfg="expert")[0] == 0
    assert not (tmp_path / "scores.jsonl").exists() and len(read_table([where])) == 2


@pytest.mark.parametrize("name", ["result.json", "./result.json", "result.world.log", "result.card.md"])
def test_a_table_in_the_place_of_a_result_is_refused_and_keeps_its_rows(program, tmp_path, name):
    table = tmp_path / name
    table.write_text("rows of earlier results\n")
    code, _, err = program(f"run.table={tmp_path}/{name}", "run.actor=random")
    assert code == 2 and len(err) == 1 and "would be written to one file" in err[0]
    assert table.read_text() == "rows of earlier results\n"


def test_a_level_is_played_whole_and_within_its_own_horizon(program, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    level = ["environment.name=household", "environment.data=", "environment.split=household_many"]
    code, _, err = program(*level, "run.num_envs=0", "run.max_steps=0", cfg="expert")
    (row,) = read_table([tmp_path / "scores.jsonl"])
    assert code == 0 and (row["first_trial"]["games"], row["max_steps"]) == (60, 100), err
    assert row["first_trial"]["success"] == 1.0 and row["first_trial"]["mean_steps"] > 15


def test_a_level_without_weight_makes_no_episode_longer(program, tmp_path, monkeypatch):
    """The result and its row in the table said 200 steps, the horizon of a level of which no game was played."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mixed = ["environment.name=household", "environment.data=", "environment.levels={standard: 1, hardest: 0}"]
    code, _, err = program(*mixed, "environment.num_heldout=2", "run.max_steps=0", cfg="expert")
    (row,) = read_table([tmp_path / "scores.jsonl"])
    assert code == 0 and (row["first_trial"]["games"], row["max_steps"]) == (2, 50), err


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("drip_headers", "no answer within 0.3 s"),
        ("giant_chunks", "the answer is larger than 2,048 KiB"),
        ("gzip_bomb", "the answer is larger than 2,048 KiB"),
        ("redirect_elsewhere", "redirects to http://127.0.0.1:"),
        ("wrong_error", "refuses the request (400)"),
        ("reset", "no connection"),
        ("html", "the answer cannot be read"),
    ],
)
def test_an_endpoint_that_attacks_ends_the_evaluation_in_one_line(program, tmp_path, mode, reason):
    with HostileEndpoint(mode) as server:
        given = [f"expert.base_url={server.url}", "expert.model=m", "expert.cache=", "expert.max_attempts=2"]
        given += ["expert.timeout_s=0.3"] * (mode == "drip_headers")
        code, _, err = program(*given, "run.num_envs=1", cfg="endpoint")
        assert code == 2 and len(err) == 1 and err[0].startswith("error: ") and reason in err[0]
        assert server.requests <= 2
        assert server.elsewhere is None or not server.elsewhere.requests
    assert not (tmp_path / "result.json").exists()


@pytest.mark.parametrize("reflexion", [[], ["reflexion.enabled=true", "run.num_trials=2", "reflexion.reflector=llm"]])
def test_half_a_surrogate_pair_ends_no_evaluation(program, tmp_path, reflexion):
    with HostileEndpoint("surrogate", "go to \ud800 desk 1") as server:
        given = [f"expert.base_url={server.url}", "expert.model=m", f"expert.cache={tmp_path / 'answers'}"]
        for _ in range(2):  # the second time all answers come from the cache
            code, _, err = program(*given, "run.max_steps=3", *reflexion, cfg="endpoint")
            assert code == 0, err
        assert server.requests == result(tmp_path)["expert"]["cache_hits"]


@pytest.mark.parametrize("decode", ["free", "admissible"])
def test_a_model_of_the_hub_plays(program, tmp_path, decode):
    """`model.arch` alone takes Blip2Emac's keys of the file away."""
    pytest.importorskip("peft")
    path = tiny.make("qwen2_5_vl", tmp_path / "vlm")
    hub = ["model.lora_rank=8", "model.images=2", "model.arch=hf_vlm", f"model.path={path}"]
    code, _, errors = program(*hub, "run.max_steps=2", "policy.num_beams=2", f"policy.decode={decode}")
    assert code == 0, errors
    assert [episode["actions"] for episode in result(tmp_path)["episodes"][0]] == [2, 2]
    assert "labels, of the last 2 states" in result(tmp_path)["sees"], "with one frame it is another figure"
    assert "(model as it came) |" in (tmp_path / "result.card.md").read_text(), "was (checkpoint)"


def test_a_checkpoint_of_a_hub_model_that_read_its_frames_otherwise_is_said(program, tmp_path):
    pytest.importorskip("peft")
    hub = {"arch": "hf_vlm", "path": str(tiny.make("qwen2_5_vl", tmp_path / "vlm")), "lora_rank": 4}
    model, _ = load_student({**hub, "images": 2, "image_last": True}, torch.device("cpu"))
    config = {"model": {**hub, "images": 2, "image_last": True}}
    file = save_checkpoint(tmp_path / "emma_checkpoint_0.pth", model=model, config=config)
    given = [*(f"model.{key}={value}" for key, value in hub.items()), f"model.pretrained={file}", "run.max_steps=1"]
    code, out, errors = program(*given, "model.images=2")
    assert code == 0, errors
    assert "; trained with model.image_last=True, now False\n" in out
    code, out, errors = program(*given, "model.images=2", "model.image_last=true")
    assert code == 0 and "trained with" not in out, errors


def test_an_empty_path_of_the_hub_is_one_line(program):
    code, _, errors = program("model.arch=hf_vlm")
    assert code == 2 and "model.path is empty" in errors[-1]


def test_a_name_with_a_dot_keeps_its_card_and_its_log(tmp_path, monkeypatch):
    for name, stand_in in (("row_of", dict), ("card", str)):
        monkeypatch.setattr(evaluate, name, stand_in)
    for name in ("Qwen2.5", "Qwen2.7", "result.json"):
        evaluate.write(tmp_path / name, None, {}, "log")
    written = {path.name for path in tmp_path.iterdir()}
    assert written >= {"Qwen2.5.card.md", "Qwen2.7.card.md", "Qwen2.7.world.log", "result.card.md", "result.world.log"}
