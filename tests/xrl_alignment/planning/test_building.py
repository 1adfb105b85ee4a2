"""EMAC+'s loop as its command runs it: a settings file, the summary, a resume, and settings that cannot be used."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace

import pytest
import torch
import yaml
from omegaconf import OmegaConf
from transformers import LlamaConfig, LlamaForCausalLM, RwkvConfig, RwkvForCausalLM

from alfworld_native.errors import EnvironmentFault
from alfworld_native.household.generator import generate
from benchmarks._endpoint import FakeEndpoint
from lavis.common.errors import ConfigError, EmacError, MissingFileError
from lavis.common.paths import REPO_ROOT
from lavis.models.base_model import LIBRARY_ROOT
from lavis.models.played import PlayedGames
from tests.hostile_endpoint import HostileEndpoint
from xrl_alignment.agents.experts.llm.accounting import Prices, read_calls
from xrl_alignment.common.errors import BudgetSpent, EndpointFault
from xrl_alignment.lab import pipeline
from xrl_alignment.planning import building
from xrl_alignment.planning.building import _CHANGES, ablated, build_loop, language_model, run_emac_plus
from xrl_alignment.planning.follower import PlanFollower
from xrl_alignment.planning.loop import TrainingCost
from xrl_alignment.planning.planners.base import PlanAnswer
from xrl_alignment.runs.checkpoint import load_checkpoint
from xrl_alignment.settings.loading import is_emac_plus, load_config
from xrl_alignment.settings.planning import ABLATIONS, FEEDBACKS, EmacPlusConfig, PlannerConfig

DEMO = REPO_ROOT / "configs" / "emac_plus" / "demo.yaml"
SMALL = (
    "run.num_rounds=1 run.bc_rounds=1 run.num_envs=1 run.num_eval=1 run.updates=1 run.batch_size=2 run.max_steps=2 "
    "planner.max_replans=1 planner.max_answer_tokens=8 planner.epochs=1 environment.num_train=12 "
    "environment.num_heldout=6 run.num_threads=1"
).split()


@pytest.fixture
def options(tmp_path, household_data) -> list[str]:
    return [*SMALL, f"environment.data={household_data}", f"run.output_dir={tmp_path / 'loop'}"]


def test_the_command_writes_a_summary_and_a_resume_ends_at_once(options, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["pipeline", "--cfg-path", str(DEMO), "--options", *options])
    pipeline.main()
    summary = json.loads((tmp_path / "loop" / "summary.json").read_text())
    for name in ("planner_before", "planner_after", "agent_before", "agent_after"):
        assert set(summary[name]) >= {"success", "interval", "games", "planner_calls", "planner_tokens"}
        assert summary[name]["games"] == 1 and summary[name]["planner_tokens"] > 0
    assert "planner_after" in capsys.readouterr().out and (tmp_path / "loop" / "adapters" / "round_000").is_dir()

    more = ["run.ablations=[no_planner_learning]", "run.switches=[no_reports]"]  # may be asked for later
    run_emac_plus(DEMO, [*options, *more], tmp_path / "loop")
    again = json.loads((tmp_path / "loop" / "summary.json").read_text())
    assert again["agent_after"] == summary["agent_after"] and again["no_planner_learning"]["games"] == 1
    assert again["agent_no_reports"]["games"] == 1 and "planner_success" in again["agent_no_reports"]
    assert not (tmp_path / "loop" / "ablations" / "no_planner_learning" / "adapters").exists()

    run_emac_plus(DEMO, options, tmp_path / "loop")  # what is not asked for any more stays
    last = json.loads((tmp_path / "loop" / "summary.json").read_text())
    assert last["no_planner_learning"] == again["no_planner_learning"] and "agent_no_reports" in last

    with pytest.raises(ConfigError, match="cannot be resumed with other settings: run.seed: 42 → 1"):
        run_emac_plus(DEMO, [*options, "run.seed=1"], tmp_path / "loop")


def test_the_command_takes_a_model_of_the_hub_as_agent(options, students, tmp_path, monkeypatch) -> None:
    """`model.arch` alone takes Blip2Emac's keys of the file away."""
    hub = [f"model.{key}={value}" for key, value in {**students("hub"), "images": 1}.items()]
    given = [*options, "run.num_rounds=2", "run.updates=3", *hub]  # cloning, then DPO
    monkeypatch.setattr(sys, "argv", ["pipeline", "--cfg-path", str(DEMO), "--options", *given])
    pipeline.main()
    summary = json.loads((tmp_path / "loop" / "summary.json").read_text())
    assert summary["agent_after"]["games"] == 1 and summary["settings"]["model"]["arch"] == "hf_vlm"
    first, second = (load_checkpoint(path)["model"] for path in sorted((tmp_path / "loop").glob("agent_*.pth")))
    assert all(".lora_" in name for name in first)
    assert any(not torch.equal(value, second[name]) for name, value in first.items())


def test_a_student_that_reads_earlier_frames_is_refused(options, students, tmp_path) -> None:
    hub = students("hub") | {"images": 2}
    with pytest.raises(ConfigError, match="the student reads 2 frames, .* set model.images=1"):
        run_emac_plus(DEMO, [*options, *(f"model.{key}={value}" for key, value in hub.items())])
    assert not (tmp_path / "loop").exists()
    with pytest.raises(ConfigError, match="set model.images=1"):  # whatever it is called in a model's own settings
        build_loop(EmacPlusConfig(model=hub), tmp_path / "loop")


def test_an_agent_with_nothing_to_train_is_refused_before_anything_is_played(options, tmp_path) -> None:
    with pytest.raises(ConfigError, match="every part of the agent's model is frozen"):
        run_emac_plus(DEMO, [*options, "model.lora_rank=0", "model.freeze_proj_layer=true"])
    assert not list((tmp_path / "loop").glob("evaluations/*"))


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), EndpointFault("no answer in 3 attempts")])
def test_a_loop_that_stops_says_how_it_goes_on_and_its_folder_is_enough(options, tmp_path, monkeypatch, stop) -> None:
    played = building.run_all

    def stopped(*_, **__):
        raise stop

    monkeypatch.setattr(building, "run_all", stopped)
    with pytest.raises(type(stop), match=f"continue with --resume {tmp_path / 'loop'}"):
        run_emac_plus(DEMO, options)
    monkeypatch.setattr(building, "run_all", played)
    monkeypatch.setattr(sys, "argv", ["pipeline", "--resume", str(tmp_path / "loop")])
    pipeline.main()
    assert (tmp_path / "loop" / "summary.json").is_file()


def test_answers_to_questions_are_learned_and_the_loop_ends_with_a_summary(options, tmp_path) -> None:
    """`no_replanning`, which has no questions, refused `learn_feedback`: when the loop had been trained."""
    asked = ["planner.feedback=questions", "planner.learn_feedback=true", "run.switches=[no_replanning]"]
    summary = json.loads((run_emac_plus(DEMO, [*options, *asked]) / "summary.json").read_text())
    assert summary["agent_no_replanning"]["games"] == 1


def test_a_teacher_that_is_asked_each_step_is_asked_as_often_as_the_whole_loops_planner() -> None:
    config = load_config(EmacPlusConfig, DEMO)
    changed = ablated(config, "step_teacher", TrainingCost(tokens=0, calls=40, calls_each_step=100))
    assert changed.run.num_envs == round(0.4 * config.run.num_envs) and changed.planner.replan_every == 1
    assert ablated(config, "step_teacher", TrainingCost(0, 0, 100)).run.num_envs == 1


def test_a_folder_that_is_no_loop_is_not_resumed(options, tmp_path) -> None:
    with pytest.raises(ConfigError, match="has no config.yaml"):
        run_emac_plus(DEMO, options, tmp_path)


@pytest.mark.parametrize("engine", ["household", "native"])
def test_official_games_that_are_not_there_are_missed_before_the_loop(engine, options, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    monkeypatch.setattr(building, "build_loop", lambda *_, **options: pytest.fail("the loop began"))
    wanted = [f"environment.name={engine}", "environment.split=household_train", "run.valid_seen=true"]
    with pytest.raises(EnvironmentFault, match="no games of split 'valid_seen'") as error:
        run_emac_plus(DEMO, [*options, *wanted])
    looked = tmp_path if engine == "household" else [each for each in options if "environment.data=" in each][0][17:]
    assert f"{looked}/json_2.1.1/valid_seen" in str(error.value)


def test_evaluated_games_that_are_trained_on_are_told(options, monkeypatch, capsys) -> None:
    monkeypatch.setattr(building, "build_loop", lambda *_, **options: 1 / 0)
    for split, told in (("household_train", True), ("household_heldout", False)):
        with pytest.raises(ZeroDivisionError):
            run_emac_plus(DEMO, [*options, f"run.eval_split={split}", "run.num_envs=12", "run.num_eval=2"])
        said = "NOT HELD OUT: 2 of 2 games of household_train are trained on" in capsys.readouterr().out
        assert said is told


def test_games_that_the_weights_or_the_official_evaluation_share_with_training_are_told(
    options, monkeypatch, tmp_path, capsys
) -> None:
    """Only the loop's own training games were compared, and only with those of `run.eval_split`."""
    monkeypatch.setattr(building, "build_loop", lambda *_, **options: 1 / 0)

    def said(*more: str) -> str:
        with pytest.raises(ZeroDivisionError):
            run_emac_plus(DEMO, [*options, "run.num_envs=12", "run.num_eval=2", *more])
        return capsys.readouterr().out

    generate(tmp_path, 2, 2, seed=0)  # these stand for official games
    (tmp_path / "json_2.1.1" / "household_train").rename(tmp_path / "json_2.1.1" / "valid_seen")
    own = ["environment.name=native", "environment.split=valid_seen", f"environment.data={tmp_path}"]
    shared = said(*own, "run.valid_seen=true", "run.num_train_games=2", "run.num_envs=2")
    assert "NOT HELD OUT: 2 of 2 games of valid_seen are trained on" in shared
    # What a model behind an endpoint has read nobody knows.
    assert "household_heldout: whether its games" in said(
        "planner.name=endpoint", "planner.model=someones", "planner.base_url=http://x"
    )
    assert "household_heldout" not in said()
    monkeypatch.setattr(building, "games_of_weights", lambda _: PlayedGames(splits=("household_heldout",)))
    assert "NOT HELD OUT: 2 of 2 games of household_heldout are trained on" in said()
    monkeypatch.setattr(building, "games_of_weights", lambda _: PlayedGames(unknown=("some.pth",)))
    assert "household_heldout: whether its games were trained on is unknown" in said()


def test_too_few_games_are_told_before_a_folder_is_made(options, tmp_path) -> None:
    """Each try left a folder behind whose settings could not be changed."""
    with pytest.raises(EnvironmentFault, match=r"9999 were asked for: ask for fewer or generate more \(num_train"):
        run_emac_plus(DEMO, [*options, "run.num_eval=9999"])
    assert not (tmp_path / "loop").exists()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("base_url=http://127.0.0.1:1/v1", "planner.base_url: .* has no effect unless planner.name=endpoint"),
        ("temperature=0.7", "planner.temperature: 0.7 has no effect unless planner.name=endpoint"),
        ("price_prompt=1", "planner.price_prompt: 1.0 has no effect unless planner.name=endpoint"),
        ("{name: endpoint, handover: vllm}", "planner.handover: 'vllm' has no effect unless planner.trainer is set"),
        ("{name: explorer, report: none}", "planner.report=none: the explorer reads the engine's words"),
    ],
)
def test_planner_settings_without_effect_are_refused(given, text) -> None:
    """A planner's address without `name=endpoint` was accepted, and the model loaded in this process."""
    with pytest.raises(ConfigError, match=text):
        load_config(EmacPlusConfig, DEMO, [f"planner={given}" if given.startswith("{") else f"planner.{given}"])


def test_a_switch_that_changes_nothing_is_refused(options) -> None:
    with pytest.raises(ConfigError, match="run.switches=report_text changes none of these settings"):
        run_emac_plus(DEMO, [*options, "run.switches=[report_text]"])


def test_the_kind_of_a_settings_file() -> None:
    assert is_emac_plus(DEMO) and not is_emac_plus(REPO_ROOT / "configs" / "dagger" / "demo_bc.yaml")


@pytest.mark.parametrize("arguments", [["--dry-run"], ["--remember", "file"], None])
def test_the_loop_takes_one_file_and_no_options_of_phases(arguments, monkeypatch) -> None:
    files = [str(DEMO)] if arguments else [str(DEMO), "configs/dagger/demo_dpo.yaml"]
    monkeypatch.setattr(sys, "argv", ["pipeline", "--cfg-path", *files, *(arguments or [])])
    with pytest.raises(ConfigError, match="give it alone|are for the phases"):
        pipeline.main()


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (
            "policy={name: http, base_urls: ['http://x'], skip_rejected: false, skip_visited: false}",
            "policy.name=http asks another machine's model",
        ),
        ("model.ref_pretrained=x", "model.ref_pretrained: the loop's reference is its own agent"),
        ("run.eval_split=household_held", "household_held"),
        ("model.modeltype=x", "modeltype"),
        ("planner.examples=nowhere.txt", "planner.examples: nowhere.txt does not exist"),
        ("planner.examples=tests", "planner.examples: tests cannot be read: Is a directory"),
        ("planner.examples=lavis/models/tiny/planner.safetensors", "planner.examples: .*safetensors is no text"),
        ("planner.model=tests", "planner.model=tests is no language model: it has no config.json"),
        ("planner.name=endpoint planner.learn=false", "no key: set the environment variable OPENAI_API_KEY"),
        (
            "run.num_envs=3 run.num_train_games=2",
            "run.num_train_games: 2 is not run.num_train_games=0 or at least run.num_envs=",
        ),
        ("run.skip_solved=true", "run.skip_solved: True has no effect unless run.num_train_games is set"),
        ("planner.report=none environment.report_severity=4", "environment.report_severity: 4 has no effect unless"),
        ("run.robustness=true environment.blank_frames=true", "run.robustness: True has no effect unless environment"),
        ("planner.memory=1", "planner.memory: 1 has no effect unless planner.feedback=questions"),
        ("run.eval_split=household_house", "run.max_steps: 2 is less than the 150 that games of household_house"),
        ("run.ablations=[cross_entropy]", "run.ablations=cross_entropy changes none of these settings"),
        (
            "planner.name=explorer planner.model='' run.ablations=[no_planner_learning]",
            "run.ablations=no_planner_learning changes none of these settings",
        ),
        ("planner.learn=false run.ablations=[no_dpo]", "run.ablations=no_dpo changes none of these settings"),
        (
            "policy={name: 'my_policy:Policy', skip_rejected: false, skip_visited: false}",
            "policy.name=my_policy:Policy answers instead of the model that this loop",
        ),
    ],
)
def test_a_mistake_is_told_before_there_is_a_folder(option: str, text: str, options, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(EmacError, match=text):
        run_emac_plus(DEMO, [*options, *([option] if option.startswith("policy=") else option.split())])
    assert not [path for path in tmp_path.iterdir() if "loop" in path.name]


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("run.ablations=[no_brain]", "run.ablations.*is not a list of names among no_replanning, "),
        ("environment.levels={house: 1}", "run.max_steps: 50 is less than .* set run.max_steps=150"),
        ("run.bc_rounds=9", "run.bc_rounds: 9 is not at most run.num_rounds"),
        ("run.switches=[no_dpo]", "run.switches.*is not a list of switches"),
        ("planner.trainer=x", "planner.trainer: 'x' has no effect unless planner.name=endpoint"),
        (
            "planner.max_answer_tokens=1024",
            r"planner.max_answer_tokens: 1024 is not less than planner.context_tokens \(1024\)",
        ),
        ("planner.report=smell", "planner.report: 'smell' is not one of text, image, both, none"),
        ("environment.report_severity=5", "environment.report_severity: 5 is not a number from 0 to 4"),
        ("planner={name: explorer, feedback: questions, report: none}", "the explorer reads the engine"),
        ("planner.learn_feedback=true", "planner.learn_feedback: True has no effect unless planner.feedback=questions"),
        (
            "planner={feedback: questions, replan_seen: false}",
            "planner.replan_seen: False has no effect unless planner.fe",
        ),
        ("run.repeat_limit=1", "run.repeat_limit: 1 is not 0 .off. or at least 2"),
        ("planner.handover=vllm", "planner.handover: 'vllm' has no effect unless planner.name=endpoint"),
        ("planner.reprt=text", "did you mean 'planner.report'"),
        ("planner.max_cost_usd=1", "planner.max_cost_usd: 1.0 has no effect unless planner.price_prompt or planner"),
    ],
)
def test_settings_that_cannot_be_used_are_named(option: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load_config(EmacPlusConfig, DEMO, [option])


def test_every_ablation_changes_a_setting_that_exists() -> None:
    assert set(_CHANGES) == set(ABLATIONS)
    config = load_config(EmacPlusConfig, DEMO)
    assert all(hasattr(config.planner, key) for changes in _CHANGES.values() for key in changes)


@pytest.mark.parametrize("feedback", FEEDBACKS)
def test_without_replanning_the_planner_is_asked_once(feedback: str) -> None:
    """With `feedback=questions` the planner's own "no" asked for new plans."""
    rules = replace(PlannerConfig(feedback=feedback), **_CHANGES["no_replanning"])
    room = "You are in the middle of a room. you see a desk 1, and a bed 1.\nYour task is to: put a mug in bed."
    follower = PlanFollower(room, rules)
    follower.take(PlanAnswer("take mug, go to bed 1, go to desk 1"))
    for _ in range(10):
        while follower.due:
            follower.take(PlanAnswer("no, no: the mug is elsewhere"))
        if follower.command is not None:
            follower.observe(follower.command, "Nothing happens.")
    assert len(follower.calls) == 1 and not follower.feedbacks and follower.command is None


@pytest.mark.parametrize(
    "given",
    [
        ["planner.examples=none.txt"],
        ["planner.model=no/such/model"],
        ["planner.trainer=no/such/model", "planner.name=endpoint", "planner.base_url=http://127.0.0.1:9/v1"],
        ["planner.base_url=nowhere", "planner.name=endpoint"],
        ["planner.tokenizer=no/such", "planner.name=endpoint", "planner.base_url=http://127.0.0.1:9/v1"],
    ],
)
def test_a_planner_that_is_not_there_is_named(given: list[str], options, tmp_path) -> None:
    """Its new folder stayed, and the next try got `loop-2`."""
    with pytest.raises((ConfigError, MissingFileError, EndpointFault), match=given[0].partition("=")[0]):
        run_emac_plus(DEMO, [*options, *given])
    assert not (tmp_path / "loop").exists()


def test_a_planner_behind_an_endpoint_has_the_limits_of_a_teacher(options, tmp_path) -> None:
    """Prices, limits and their file as for `expert`; a resume with a raised limit continues."""
    with FakeEndpoint(lambda prompt: "go to desk 1") as server:
        given = [*options, "planner.name=endpoint", "planner.learn=false", f"planner.base_url={server.url}"]
        given += ["planner.price_prompt=1", "planner.max_cost_usd=3", "planner.max_calls=1"]
        given += ["model.model_type=tiny", "model.lora_rank=0"]
        with pytest.raises(BudgetSpent, match=r"the planner's budget is spent: 1 calls.* planner.max_calls=1"):
            run_emac_plus(DEMO, given)
        assert len(server.requests) == 1
        folder = run_emac_plus(DEMO, [*given, "planner.max_calls=50", "run.ablations=[no_reports]"], tmp_path / "loop")
        assert json.loads((folder / "summary.json").read_text())["no_reports"]["games"] == 1
        by_round, prices = read_calls(folder / "planner_calls.jsonl")
        assert by_round[0].calls == len(server.requests) and prices == Prices(1.0, 1.0, 0.0)


@pytest.mark.parametrize("file", sorted(DEMO.parent.glob("*.yaml")), ids=lambda path: path.name)
def test_every_settings_file_of_the_loop_can_be_used(file) -> None:
    assert load_config(EmacPlusConfig, file).run.output_dir == f"output/emac_plus/{file.stem}"


def test_half_a_surrogate_pair_in_a_plan_ends_no_loop(options, tmp_path) -> None:
    with HostileEndpoint("surrogate", "go to \ud800 desk 1") as server:
        given = [*options, "planner.name=endpoint", "planner.learn=false", f"planner.base_url={server.url}"]
        folder = run_emac_plus(DEMO, [*given, "model.model_type=tiny", "model.lora_rank=0", "planner.max_replans=2"])
        assert server.requests > 1 and json.loads((folder / "summary.json").read_text())["agent_after"]["games"] == 1


def test_code_in_a_language_models_folder_does_not_run_and_nobody_is_asked(tmp_path, monkeypatch) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w')")
    names = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": names}))
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question="": asked.append(question) or "y")
    with pytest.raises(ConfigError, match="is no language model"):
        language_model(str(tmp_path))
    assert not asked and not (tmp_path / "was_run").exists()


def test_a_language_models_folder_that_is_not_there_is_told_as_such(tmp_path) -> None:
    """Before, Transformers said how the hub's ids are spelt."""
    with pytest.raises(ConfigError, match="is no language model: there is no such folder, and it is no hub id"):
        language_model(str(tmp_path / "nowhere"))


def test_a_language_models_weights_that_are_cut_off_are_one_line(tmp_path) -> None:
    """Before, it ended in the traceback of the library that reads them."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    LlamaForCausalLM(LlamaConfig(vocab_size=16, **sizes)).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ConfigError, match="is no language model: .*model.safetensors is not a readable weight file"):
        language_model(str(tmp_path))


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("hidden_size", "wide", "TypeError: Field 'hidden_size' expected int, got str"),
        ("hidden_act", "nosuch", "KeyError: 'nosuch'"),
        ("num_attention_heads", 0, "by zero"),
    ],
)
def test_a_language_models_config_that_does_not_fit_is_one_line(tmp_path, key, value, says) -> None:
    """Before, each ended in Transformers' traceback."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    LlamaForCausalLM(LlamaConfig(vocab_size=16, **sizes)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(ConfigError, match=f"is no language model: .*{says}"):
        language_model(str(tmp_path))


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_language_models_settings_file_that_holds_no_object_is_one_line(tmp_path, name) -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    LlamaForCausalLM(LlamaConfig(vocab_size=16, **sizes)).save_pretrained(tmp_path)
    (tmp_path / name).write_text("null")
    with pytest.raises(ConfigError, match=f"is no language model: .*{name} holds no JSON object"):
        language_model(str(tmp_path))


def test_a_model_without_a_cache_is_told_by_the_setting_that_names_it(tmp_path) -> None:
    """Of a `planner.trainer` it said `planner.model`."""
    sizes = {"vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 2}
    RwkvForCausalLM(RwkvConfig(**sizes)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="^planner.trainer: a RwkvForCausalLM takes no cache"):
        language_model(str(tmp_path), "planner.trainer")


def test_an_adapters_folder_does_not_name_another_model(tmp_path, monkeypatch) -> None:
    elsewhere = {"peft_type": "LORA", "base_model_name_or_path": "stranger/model"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(elsewhere))
    loaded: list[object] = []
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", lambda *given, **_: loaded.append(given))
    with pytest.raises(ConfigError, match="is no language model: it has no config.json"):
        language_model(str(tmp_path))
    assert not loaded


def test_the_papers_values_are_those_of_the_page() -> None:
    page = (REPO_ROOT / "docs" / "emac_plus.md").read_text().partition("## The paper's values")[2]
    rows = re.findall(r"^\| (\S+\.yaml) `(\S+)` \| (.*?) \|(.*?)\|(.*?)\|$", page, re.MULTILINE)
    assert len(rows) > 25
    for file, key, paper, here, reason in rows:
        loop = file == "paper.yaml"
        path = (DEMO.parent if loop else LIBRARY_ROOT / "projects" / "instructblip" / "finetuning") / file
        config = OmegaConf.structured(load_config(EmacPlusConfig, path)) if loop else OmegaConf.load(path)
        value = OmegaConf.select(config, key)
        assert value == yaml.safe_load(here) or float(value) == float(here), key
        assert reason.strip() or paper == here.strip(), f"{key} differs from the paper's {paper} without a reason"


@pytest.mark.parametrize(("instructions", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_a_cpu_that_only_emulates_bfloat16_computes_in_float32(tmp_path, monkeypatch, instructions, expected) -> None:
    """An update of SmolLM2's planner took eight minutes with AVX2 alone."""
    monkeypatch.setattr("lavis.common.devices.cpu_multiplies_bfloat16", lambda: instructions)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    LlamaForCausalLM(LlamaConfig(vocab_size=16, **sizes)).bfloat16().save_pretrained(tmp_path)
    assert language_model(str(tmp_path)).dtype == expected
    assert language_model(str(tmp_path), device=torch.device("cuda")).dtype == torch.bfloat16
