"""LAVIS's layered configuration: defaults < user < options."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import lavis.models  # noqa: F401  (registers the models)
from lavis.common.config import (
    Config,
    ConfigValidator,
    as_option,
    is_lavis_config,
    node_to_dict,
    read_option,
    to_dot_list,
)
from lavis.common.errors import ConfigError
from lavis.common.paths import REPO_ROOT
from lavis.common.registry import registry
from lavis.common.run_settings import TEXTS, foreign_keys, read_settings
from lavis.tasks import task_class

YAML = """
model: {arch: blip2_emac, model_type: tiny, max_txt_len: 77, mix_ratio: 0.25}
run: {seed: 1, max_epoch: 3}
datasets: {}
"""


@pytest.fixture(autouse=True)
def _unregister() -> Iterator[None]:
    yield
    registry.unregister("configuration")


def make(folder: Path, *options: str, yaml: str = YAML) -> Config:
    """The configuration of a yaml with options."""
    path = folder / "user.yaml"
    path.write_text(yaml, encoding="utf-8")
    return Config(Namespace(cfg_path=str(path), options=list(options) or None))


def test_options_over_user_over_defaults(tmp_path: Path) -> None:
    cfg = make(tmp_path, "model.mix_ratio=0.05", "run.seed=9")
    assert cfg.model_cfg.mix_ratio == 0.05
    assert cfg.model_cfg.max_txt_len == 77
    assert cfg.model_cfg.num_query_token == 8  # the type's own yaml
    assert cfg.run_cfg == {"seed": 9, "max_epoch": 3}
    assert cfg.datasets_cfg == {}
    assert cfg.get_config().preprocess.vis_processor.eval.name == "blip_image_eval"
    assert registry.get("configuration") is cfg


def test_an_option_may_choose_the_model_type(tmp_path: Path) -> None:
    cfg = make(tmp_path, "model.model_type=vicuna7b")
    assert cfg.model_cfg.num_query_token == 32
    assert cfg.model_cfg.model_type == "vicuna7b"


def test_processors_of_the_file(tmp_path: Path) -> None:
    """Before, only options set them: a file's `preprocess:` was taken and had no effect."""
    yaml = YAML + "preprocess: {vis_processor: {train: {name: blip2_image_train}}}\n"
    found = make(tmp_path, yaml=yaml).config.preprocess.vis_processor
    assert (found.train.name, found.eval.name, found.train.image_size) == ("blip2_image_train", "blip_image_eval", 112)
    option = "preprocess.vis_processor.train.name=blip_image_train"
    assert make(tmp_path, option, yaml=yaml).config.preprocess.vis_processor.train.name == "blip_image_train"
    # Of another architecture they are the images of another model.
    other = make(tmp_path, "model.arch=hf_vlm", "model.path=folder", yaml=yaml)
    assert not other.config.get("preprocess")


def test_a_text_processor_that_changes_no_text_is_refused(tmp_path: Path) -> None:
    text = "preprocess.text_processor changes no text of stored data"
    with pytest.raises(ConfigError, match=text):
        make(tmp_path, "preprocess.text_processor.train.name=blip_question")
    with pytest.raises(ConfigError, match=text):
        make(tmp_path, yaml=YAML + "preprocess: {text_processor: {train: {name: blip_question}}}\n")


def test_an_empty_section_empties_a_setting_of_the_model(tmp_path: Path) -> None:
    """OmegaConf's merge would keep all keys of the type's `llm_expects`; the error message advises `={}`."""
    vicuna = "model.model_type=vicuna7b"
    assert make(tmp_path, vicuna).model_cfg.llm_expects == {"hidden_size": 4096, "max_position_embeddings": 2048}
    assert make(tmp_path, vicuna, "model.llm_expects={}").model_cfg.llm_expects == {}
    yaml = "model: {arch: blip2_emac, model_type: vicuna7b, llm_expects: {}}\nrun: {}\ndatasets: {}"
    assert make(tmp_path, yaml=yaml).model_cfg.llm_expects == {}
    again = make(tmp_path, vicuna, "model.llm_expects={}", "model.llm_expects.hidden_size=64")
    assert again.model_cfg.llm_expects.hidden_size == 64


def test_a_mixture_of_levels_replaces_the_files(tmp_path: Path) -> None:
    """The levels of file and option were merged, so that levels were played that nobody had asked for."""
    yaml = YAML.replace("max_epoch: 3", "environment: {levels: {many: 0.5, standard: 0.5}, seed: 1}")
    options = ["run.environment.levels={compound: 1}"]
    assert make(tmp_path, *options, yaml=yaml).run_cfg.environment == {"levels": {"compound": 1}, "seed": 1}
    options += ["run.environment.levels={many: 1}", "run.environment.levels.hardest=2"]
    assert make(tmp_path, *options, yaml=yaml).run_cfg.environment.levels == {"many": 1, "hardest": 2}
    assert make(tmp_path, "run.environment.levels.many=2", yaml=yaml).run_cfg.environment.levels.standard == 0.5


def test_another_language_model_comes_without_the_types_sizes_and_weights(tmp_path: Path) -> None:
    demo = "model.model_type=demo"
    assert make(tmp_path, demo).model_cfg.llm_weights == "tiny/backbone.safetensors"
    model = make(tmp_path, demo, "model.llm_model=somewhere").model_cfg
    assert model.llm_model == "somewhere" and "llm_config" not in model and "llm_weights" not in model
    model = make(tmp_path, demo, "model.llm_model=somewhere", "model.llm_weights=mine.pth").model_cfg
    assert model.llm_weights == "mine.pth" and "llm_config" not in model
    model = make(tmp_path, demo, "model.llm_model=tiny", "model.llm_config.hidden_size=96").model_cfg
    assert (model.llm_config.hidden_size, model.llm_config.vocab_size) == (96, 1024)  # the same: its sizes stay


@pytest.mark.parametrize("name", ["on", "007", "1e5", "2026_11_20", "plain", "a=b"])
def test_an_option_that_is_a_text_stays_as_it_was_typed(name: str) -> None:
    assert read_option(f"run.job_id={name}", TEXTS).run.job_id == name
    assert read_option("run.amp=on", TEXTS).run.amp is True


@pytest.mark.parametrize("text", ["/runs #2/a.pth", "#1", "a\t#b", "/a #'1'"])
def test_an_option_has_no_comment(text: str) -> None:
    """yaml made `/runs` of `/runs #2/a.pth`, and null of `#1`, so a run went to another folder than was typed."""
    assert read_option(f"run.output_dir={text}").run.output_dir == text
    assert read_option('run.test_splits=["a #1", b]').run.test_splits == ["a #1", "b"]


@pytest.mark.parametrize("text", ["/runs #2/a.pth", "/a: b", "/[x", "/\N{GRINNING FACE}/é", 'a"b\\c', "007", "~", ""])
def test_a_path_is_read_back_from_the_option_that_a_program_makes(text: str) -> None:
    """A demo with `--output "demo #2"` wrote its runs to `demo`."""
    assert read_option(as_option("run.output_dir", text)).run.output_dir == text
    assert read_option(as_option("run.output_dir", Path("/a #2"))).run.output_dir == "/a #2"


def test_a_number_where_a_files_text_should_be_is_refused() -> None:
    with pytest.raises(ValueError, match="run.job_id: yaml reads 7 here; put the text in quotes"):
        read_settings(OmegaConf.create("job_id: 007"))


def test_a_split_where_a_list_of_splits_should_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^run.valid_splits: 'val' is not a list: put it in brackets, \[val\]$"):
        read_settings(OmegaConf.create("valid_splits: val"))


def test_an_empty_text_on_the_command_line_is_the_default_of_texts() -> None:
    assert read_settings(OmegaConf.from_dotlist(["run.job_id=", "run.wandb_project="]).run).job_id == ""


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"warmup_lr": float("nan")}, "run.warmup_lr: nan is not a finite number"),
        ({"lr_decay_rate": -2.0}, "run.lr_decay_rate: -2.0 is not a number above 0"),
        (
            {"dist_url": "nonsense"},
            "run.dist_url: 'nonsense' is not one of env://, tcp://<host>:<port>, file:///<path>",
        ),
        ({"dist_url": "tcp://host"}, "run.dist_url: 'tcp://host' is not one of"),
        ({"min_len": 50, "max_len": 10}, "run.min_len=50 is more than run.max_len=10"),
    ],
)
def test_numbers_with_which_nothing_is_learned_or_written_are_refused(run: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_settings(OmegaConf.create(run))


@pytest.mark.parametrize("key", ["task", "device", "job_id", "valid_splits", "environment"])
def test_a_reference_that_leads_nowhere_is_told_with_its_key(tmp_path: Path, key: str) -> None:
    cfg = make(tmp_path, f"run.{key}=${{nope}}")
    with pytest.raises(ConfigError, match=f"^run.{key}: .*'nope' not found"):
        read_settings(cfg.run_cfg)
    if key == "task":
        with pytest.raises(ConfigError, match="^run.task: .*'nope' not found"):
            task_class(cfg)


@pytest.mark.parametrize("key", ["environment", "policy"])
def test_a_list_where_a_section_should_be_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^run.{key}: \[1\] is not a section with keys of its own$"):
        read_settings(OmegaConf.create({key: [1]}))


@pytest.mark.parametrize("beta2", [1.0, -0.1])
def test_a_second_moment_that_adamw_does_not_take_is_refused(beta2: float) -> None:
    with pytest.raises(ValueError, match=f"run.beta2: {beta2} is not a number of at least 0 and below 1"):
        read_settings(OmegaConf.create({"beta2": beta2}))


def test_pairs_without_equal_signs(tmp_path: Path) -> None:
    assert to_dot_list(["run.seed", "9", "run.x", "y"]) == ["run.seed=9", "run.x=y"]
    assert make(tmp_path, "run.seed", "9").run_cfg.seed == 9
    with pytest.raises(ValueError, match="'run.x' has no value"):
        to_dot_list(["run.seed", "9", "run.x"])


@pytest.mark.parametrize("option", ["model.pretrained", "=9"])
def test_an_option_without_key_or_equal_sign_sets_nothing_to_null(tmp_path: Path, option: str) -> None:
    with pytest.raises(ConfigError, match=f"^--options {option}: write it as section.key=value$"):
        make(tmp_path, "run.seed=9", option)


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("run: {}\ndatasets: {}", "no 'model' section"),
        ("model: {arch: blip2_emac, model_type: tiny}\ndatasets: {}", "no 'run' section"),
        ("model: {arch: blip2_emac}\nrun: {}\ndatasets: {}", "no model.model_type"),
        ("model: {arch: blip3, model_type: tiny}\nrun: {}\ndatasets: {}", "unknown model 'blip3'"),
        ("model: tiny\nrun: {}\ndatasets: {}", "^model: 'tiny' is no section"),
        ("model: {arch: blip2_emac, model_type: tiny}\nrun: {}\ndatasets: [a]", r"^datasets: \['a'\] is no section"),
        ("model: {arch: blip2_emac, model_type: tiny}\nrun: {}\ndatasets: {alfworld_cap: a}", "alfworld_cap: 'a' is"),
        ("model: {arch: blip2_emac}\nrun: {}\ndatasets: {}\ndatset: {}", "unknown section 'datset': did you mean"),
        ("model: {arch: blip2_emac}\nrun: {}\ndatasets: {}\npreprocess: 5", "preprocess: 5 is no section"),
        ("run:\n\tseed: 1", "user.yaml: not a yaml file: while scanning"),
        ("- a", "user.yaml: a config file holds sections"),
        ("'111'", "user.yaml: a config file holds sections"),
        (
            "model: {arch: blip2_emac, model_type: tiny}\nrun: {}\ndatasets: {none_such: {}}",
            "unknown dataset builder",
        ),
    ],
)
def test_bad_configs(tmp_path: Path, yaml: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(tmp_path, yaml=yaml)


def test_missing_file() -> None:
    with pytest.raises(FileNotFoundError, match="config file not found: nowhere.yaml"):
        Config(Namespace(cfg_path="nowhere.yaml", options=None))


def test_which_files_are_lavis_configs() -> None:
    assert is_lavis_config(str(REPO_ROOT / "lavis/projects/instructblip/finetuning/alfworld_eval.yaml"))
    assert not is_lavis_config(str(REPO_ROOT / "configs/evaluate/episodes.yaml"))
    with pytest.raises(FileNotFoundError, match="config file not found: absent.yaml"):
        is_lavis_config("absent.yaml")


def test_lavis_validator(capsys: pytest.CaptureFixture) -> None:
    validator = ConfigValidator(description="Runner configurations")
    validator.add_argument("runner", type=str, choices=["runner_base", "runner_iter"], help="which one")
    validator.add_argument("max_iters", type=float)
    validator.add_argument("num_workers", help="any")
    section = OmegaConf.create({"runner": "runner_iter", "max_iters": "1e3", "num_workers": None})
    assert validator.validate(section) is section
    validator.print_help()
    assert capsys.readouterr().out.strip() == str(validator)
    assert str(validator) == "Runner configurations, available arguments: ['max_iters', 'num_workers', 'runner']"
    for wrong, message in (
        ({"max_iter": 1}, "unknown key 'max_iter': did you mean 'max_iters'"),
        ({"max_iters": "many"}, "max_iters: 'many' is no float"),
        ({"runner": "base"}, "runner: 'base' is not one of runner_base, runner_iter"),
    ):
        with pytest.raises(ValueError, match=message):
            validator.validate(wrong)
    assert node_to_dict(section) == {"runner": "runner_iter", "max_iters": "1e3", "num_workers": None}


def test_keys_of_a_tasks_own() -> None:
    run = OmegaConf.create({"task": "mine", "max_len": 9, "k_test": 3})
    assert read_settings(run, own_keys=True).max_len == 9 and foreign_keys(run) == ["k_test"]
    with pytest.raises(ValueError, match="unknown key 'run.k_test'"):
        read_settings(run)
