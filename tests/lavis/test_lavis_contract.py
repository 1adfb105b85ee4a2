"""Models, datasets and tasks written to LAVIS's contract train, evaluate and resume under both runners.

`dialogue_plugin` is what LAVIS's tutorials have users write. docs/lavis.md is this project's own tutorial.
"""

from __future__ import annotations

import json
import logging
import os
import re
import runpy
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import yaml

from lavis.common.config import Config
from lavis.common.errors import ConfigError, MissingFileError
from lavis.common.paths import REPO_ROOT
from lavis.common.registry import DuplicateNameError, registry
from lavis.models import BaseModel, load_model, load_model_and_preprocess
from lavis.runners.launch import build_runner
from lavis.runners.runner_base import RunnerBase, Stopped
from lavis.tasks import BaseTask
from xrl_alignment.builders.student import load_student

PLUGIN = Path(__file__).with_name("dialogue_plugin.py")
PATIENCE_S = 280


@pytest.fixture(autouse=True)
def _own_names() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = {kind: dict(table) for kind, table in registry.mapping.items()}
    yield
    for kind, table in registry.mapping.items():
        table.clear()
        table.update(before[kind])


def write_data(folder: Path) -> None:
    """Two dialogues for each split and the features of two videos, as the tutorial's dataset has them."""
    turns = [
        {"question": "what is it", "answer": "a mug"},
        {"question": "where is it", "answer": "here"},
        {"question": "what is it", "answer": "an apple"},
    ]
    for split in ("train", "val"):
        dialogs = [{"image_id": f"video{number}", "dialog": turns[number:]} for number in range(2)]
        (folder / f"{split}.json").write_text(json.dumps({"dialogs": dialogs}))
    for number in range(2):
        (folder / f"video{number}.json").write_text(json.dumps([[1.0 + number, 0, 0, 1], [0, number, 1, 0]]))


def write_configs(folder: Path) -> Path:
    """The yaml files of model, dataset and run, in the tutorial's form."""
    processors = {
        "vis_processor": {phase: {"name": "gpt_video_ft"} for phase in ("train", "eval")},
        "text_processor": {phase: {"name": "gpt_dialogue", "max_turns": 3} for phase in ("train", "eval")},
    }
    section = {
        "dataset_card": "dataset_card/avsd_dialogue.md",
        "data_type": "features",
        "build_info": {
            "annotations": {split: {"storage": str(folder / f"{split}.json")} for split in ("train", "val")},
            "features": {"storage": str(folder)},
        },
        "vis_processor": None,
        "text_processor": None,
    }
    model = {"arch": "gpt_dialogue", "len_tokenizer": 11, "len_video_ft": 4}
    run = {
        "task": "dialogue",
        "lr_sched": "linear_warmup_cosine_lr",
        "init_lr": 1e-2,
        "min_lr": 0,
        "warmup_lr": 1e-8,
        "warmup_steps": 2,
        "weight_decay": 0.05,
        "max_epoch": 2,
        "batch_size_train": 2,
        "batch_size_eval": 2,
        "num_workers": 0,
        "accum_grad_iters": 1,
        "max_len": 20,
        "min_len": 5,
        "num_beams": 3,
        "report_metric": True,
        "seed": 42,
        "output_dir": str(folder / "out"),
        "amp": False,
        "evaluate": False,
        "train_splits": ["train"],
        "valid_splits": ["val"],
        "test_splits": ["val"],
        "device": "cpu",
        "dist_url": "env://",
        "distributed": True,
        "log_freq": 1,
    }
    for name, content in {
        "model.yaml": {"model": model},
        "data.yaml": {"datasets": {"avsd_dialogue": section}},
        "run.yaml": {
            "model": {"arch": "gpt_dialogue", "model_type": "base"},
            "datasets": {"avsd_dialogue": processors},
            "run": run,
        },
    }.items():
        (folder / name).write_text(yaml.safe_dump(content))
    return folder / "run.yaml"


@pytest.fixture
def plugin(tmp_path: Path) -> dict:
    """The plug-in's names; its data and yaml files are in `tmp_path`."""
    write_data(tmp_path)
    write_configs(tmp_path)
    names = runpy.run_path(str(PLUGIN))
    names["GPTDialogue"].PRETRAINED_MODEL_CONFIG_DICT = {"base": str(tmp_path / "model.yaml")}
    names["AVSDDialBuilder"].DATASET_CONFIG_DICT = {"default": str(tmp_path / "data.yaml")}
    return names


Make = Callable[..., RunnerBase]


@pytest.fixture
def make(plugin: dict, tmp_path: Path) -> Make:
    """`make("job", **{"run.key": value})`: a runner of the plug-in."""

    def make(job: str, **settings: object) -> RunnerBase:
        options = [f"{key}={value}" for key, value in {"run.job_id": job, **settings}.items()]
        return build_runner(Namespace(cfg_path=str(tmp_path / "run.yaml"), options=options))

    return make


def weights(runner: RunnerBase, name: str) -> dict[str, torch.Tensor]:
    return torch.load(runner.output_dir / f"checkpoint_{name}.pth", weights_only=True)["model"]


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


ITERATIONS = {"run.runner": "runner_iter", "run.max_iters": 4, "run.iters_per_inner_epoch": 2}


class TestTheTutorials:
    @pytest.mark.parametrize("settings", [{}, ITERATIONS], ids=["runner_base", "runner_iter"])
    def test_train_evaluate_stop_and_resume(self, make: Make, settings: dict) -> None:
        whole = make("whole", **settings)
        before = {name: value.clone() for name, value in whole.replicas.model.state_dict().items()}
        whole.train()
        last = "4" if settings else "1"
        found = weights(whole, last)
        assert found.keys() == before.keys() and not torch.equal(found["video_ff.weight"], before["video_ff.weight"])
        lines = [json.loads(line) for line in (whole.output_dir / "log.txt").read_text().splitlines()]
        losses = [line["train_loss"] for line in lines if "train_batches" in line]
        assert len(losses) == 4 and losses[-1] < losses[0]
        assert all("train_loss_lm" in line for line in lines if "train_batches" in line)
        evaluated = json.loads((whole.output_dir / "evaluate.txt").read_text())["val"]
        assert evaluated["agg_metrics"] == -evaluated["loss"]
        rows = json.loads((whole.output_dir / f"result/val_epoch{last}.json").read_text())
        assert [row["ids"] for row in rows] == [["0", "1"], ["2", "3"], ["4"]]
        # Cut after the third batch, in the middle of an epoch, and resumed: dropout and all, the weights are the same.
        cut = make("cut", **settings)
        step, asked = cut.task.train_step, []

        def train_step(model: object, samples: dict) -> object:
            asked.append(samples["iters"])
            if len(asked) == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            return step(model=model, samples=samples)

        cut.task.train_step = train_step
        with pytest.raises(Stopped):
            cut.train()
        assert asked == [0, 1, 0]
        again = make("cut", **settings, **{"run.resume_ckpt_path": "latest"})
        again.train()
        assert equal(weights(again, last), found)

    def test_keys_of_the_tasks_own_and_a_task_without_figures(
        self, make: Make, caplog: pytest.LogCaptureFixture, tmp_path: Path
    ) -> None:
        caplog.set_level(logging.INFO)
        runner = make("quiet", **{"run.report_metric": False, "run.max_epoch": 1})
        assert (runner.task.max_len, runner.task.report_metric) == (20, False)
        runner.train()
        assert (
            not (runner.output_dir / "checkpoint_best.pth").exists()
            and (runner.result_dir / "val_epoch0.json").exists()
        )
        with pytest.raises(
            ConfigError, match="unknown key 'run.report_metric'"
        ):  # the project's own tasks have no such
            build_runner(Namespace(cfg_path=str(tmp_path / "run.yaml"), options=["run.task=captioning"]))

    def test_a_key_of_lavis_runners_that_would_change_what_is_learned(self, make: Make) -> None:
        """It was ignored, with a line in the log; `save_freq`, which changes no weight, still is."""
        make("often", **{"run.save_freq": 2})
        with pytest.raises(ConfigError, match="^run.train_dataset_ratios: training sets are joined"):
            make("ratios", **{"run.train_dataset_ratios": "[1,2]"})

    def test_model_and_datasets_by_name(self, plugin: dict) -> None:
        model = load_model("gpt_dialogue", "base")
        assert model.device == torch.device("cpu") and model.show_n_params() == "4.6K"
        again, vis_processors, _ = load_model_and_preprocess("gpt_dialogue", "base", is_eval=True)
        assert not again.training and vis_processors["eval"]("item") == "item"
        builder = registry.get_builder_class("avsd_dialogue")()
        builder.text_processors["train"] = plugin["GPTDialogueProcessor"].from_config()
        assert builder.data_type == "features" and {split: len(data) for split, data in builder.build().items()} == {
            "train": 5,
            "val": 5,
        }

    def test_an_evaluation_alone(self, make: Make) -> None:
        trained = make("trained", **{"run.max_epoch": 1})
        trained.train()
        runner = make("alone", **{"run.evaluate": True})
        assert runner.evaluate()["val"]["loss"] > 0
        assert trained.replicas.model.load_checkpoint(str(trained.output_dir / "checkpoint_0.pth")).missing_keys == []


# ---- what a task and a model may override ---------------------------------------------------------------------------


class Minimal(BaseModel):
    """Nothing but `from_config` and `forward`; half of it is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = torch.nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.norm = torch.nn.BatchNorm1d(4)  # its running means are buffers, which a checkpoint must hold
        self.head = torch.nn.Linear(4, 1)

    @classmethod
    def from_config(cls, cfg: object) -> Minimal:
        torch.manual_seed(0)
        return cls()

    def forward(self, samples: dict) -> dict:
        return {"loss": self.head(self.norm(self.frozen(samples["video_fts"][:, 0]))).square().mean()}


class Losses(BaseTask):
    """A task whose figures are the losses of its batches, and which sees what it is given."""

    def valid_step(self, model: object, samples: dict) -> list:
        return [self.inference_step(model, samples)]

    def inference_step(self, model: object, samples: dict) -> float:
        return model(samples)["loss"].item()

    def after_evaluation(self, val_result: list, **kwargs: object) -> dict:
        return {"agg_metrics": -sum(val_result), **kwargs}


@pytest.fixture
def minimal(make: Make) -> Callable[..., RunnerBase]:
    """A runner of `Minimal` with a task of this class: `minimal(Task, **settings)`."""
    registry.register_model("minimal")(Minimal)

    def minimal(kind: type[BaseTask] = Losses, job: str = "minimal", **settings: object) -> RunnerBase:
        registry.mapping["task_name_mapping"]["losses"] = kind
        return make(job, **{"run.task": "losses", "model.arch": "minimal", "run.max_epoch": 1, **settings})

    return minimal


class TestOverrides:
    def test_a_model_with_two_methods(self, minimal: Make) -> None:
        runner = minimal(**{"run.max_epoch": 2})
        runner.train()
        found = weights(runner, "1")
        assert set(found) == {
            *("head.weight", "head.bias", "norm.weight", "norm.bias"),
            *("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"),
        }
        assert found["norm.num_batches_tracked"] == 4
        figures = json.loads((runner.output_dir / "evaluate.txt").read_text())["val"]
        assert (figures["split_name"], figures["epoch"]) == ("val", "best") and figures["agg_metrics"] < 0

    @pytest.mark.parametrize("returned", ["loss", "pair"])
    def test_train_step_returns_a_loss_or_a_pair(self, minimal: Make, returned: str) -> None:
        class Own(Losses):
            def train_step(self, model: object, samples: dict) -> object:
                assert model.module.head is model.head and model.training
                loss = 2 * model(samples)["loss"]
                return loss if returned == "loss" else (loss, {"loss_twice": loss.detach(), "loss_number": 1.5})

        runner = minimal(Own)
        runner.train()
        (epoch,) = [
            json.loads(line)
            for line in (runner.output_dir / "log.txt").read_text().splitlines()
            if '"train_lr"' in line
        ][-1:]
        assert epoch["train_loss"] > 0
        if returned == "pair":
            assert epoch["train_loss_twice"] == pytest.approx(epoch["train_loss"]) and epoch["train_loss_number"] == 1.5

    @pytest.mark.parametrize("settings", [{}, ITERATIONS], ids=["runner_base", "runner_iter"])
    def test_a_loop_of_the_tasks_own(self, minimal: Make, settings: dict) -> None:
        seen = []

        class Own(Losses):
            def train_epoch(self, epoch, model, data_loader, optimizer, lr_scheduler, scaler=None, cuda_enabled=False,
                            log_freq=50, accum_grad_iters=1):  # fmt: skip
                seen.append((epoch, len(data_loader), scaler, cuda_enabled, log_freq, accum_grad_iters))
                for number, samples in enumerate(data_loader):
                    lr_scheduler.step(cur_epoch=epoch, cur_step=number)
                    model(samples)["loss"].backward()
                    optimizer.step()
                    optimizer.zero_grad()
                return {"loss": "0.125"}

            def train_iters(self, epoch, start_iters, iters_per_inner_epoch, model, data_loader, **loop):
                seen.append((start_iters, iters_per_inner_epoch))
                return self.train_epoch(epoch, model, data_loader, **loop)

        settings = {**settings, "run.max_epoch": 2}
        runner = minimal(Own, **settings)
        runner.train()
        epochs = [(0, 2, None, False, 1, 1), (1, 2, None, False, 1, 1)]
        assert [row for row in seen if len(row) == 6] == epochs and runner.batches == 4
        assert [row for row in seen if len(row) == 2] == ([(0, 2), (2, 2)] if settings.get("run.max_iters") else [])
        assert '"train_loss": 0.125' in (runner.output_dir / "log.txt").read_text()
        # The same loop, cut after an epoch and resumed, gives the same weights.
        half = {"run.max_epoch": 1} if "run.runner" not in settings else {"run.max_iters": 2}
        constant = {"run.lr_sched": "constant_lr"}
        whole = minimal(Own, "whole", **settings, **constant)
        whole.train()
        minimal(Own, "cut", **{**settings, **half}, **constant).train()
        resumed = minimal(Own, "cut", **settings, **constant, **{"run.resume_ckpt_path": "latest"})
        resumed.train()
        name = "4" if "run.runner" in settings else "1"
        assert equal(weights(resumed, name), weights(whole, name))

    def test_a_loop_around_the_inherited_one_is_the_runners(self, minimal: Make) -> None:
        class Around(Losses):
            def train_epoch(self, **loop: object) -> dict:
                return {**super().train_epoch(**loop), "around": 1}

        plain, around = minimal(Losses, "plain"), minimal(Around, "around")
        plain.train()
        around.train()
        assert equal(weights(plain, "0"), weights(around, "0"))
        assert '"train_around": 1' in (around.output_dir / "log.txt").read_text()

    def test_an_update_of_fewer_batches_has_their_mean(self, minimal: Make) -> None:
        class Around(Losses):
            def train_epoch(self, **loop: object) -> dict:
                return super().train_epoch(**loop)

        # Two batches, so that the only update has fewer than three: as without a loop of the task's own.
        plain, around = (minimal(kind, kind.__name__, **{"run.accum_grad_iters": 3}) for kind in (Losses, Around))
        gradients = []
        for runner in (plain, around):
            step = runner.optimizer.step
            runner.optimizer.step = lambda model=runner.replicas.model, step=step: (
                gradients.append(model.head.weight.grad.clone()),
                step(),
            )
            runner.train()
        assert len(gradients) == 2 and torch.allclose(*gradients)
        with pytest.raises(ConfigError, match="run.clip_grad_norm=1.0: Around goes over the batches in a loop of its"):
            minimal(Around, "clipped", **{"run.clip_grad_norm": 1.0})

    def test_hooks_and_the_progress_in_samples(self, minimal: Make) -> None:
        told = []

        class Told(Losses):
            def before_training(self, model: object, dataset: object, **kwargs: object) -> None:
                told.append(("training", len(dataset)))

            def before_evaluation(self, model: object, dataset: object, **kwargs: object) -> None:
                told.append(("evaluation", len(dataset)))

            def train_step(self, model: object, samples: dict) -> object:
                told.append(tuple(samples[key] for key in ("epoch", "iters", "num_iters_per_epoch")))
                return super().train_step(model, samples)

        minimal(Told, **{"run.test_splits": "[]"}).train()
        assert told == [("training", 5), (0, 0, 2), (0, 1, 2), ("evaluation", 5)]

    def test_two_datasets_are_joined_for_training(self, minimal: Make, plugin: dict, tmp_path: Path) -> None:
        registry.register_builder("second")(plugin["AVSDDialBuilder"])
        config = yaml.safe_load((tmp_path / "run.yaml").read_text())
        config["datasets"]["second"] = {
            **config["datasets"]["avsd_dialogue"],
            "build_info": {"annotations": {"val": {"storage": ""}}},
        }
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
        data = yaml.safe_load((tmp_path / "data.yaml").read_text())
        (tmp_path / "second.yaml").write_text(
            yaml.safe_dump({"datasets": {"second": data["datasets"]["avsd_dialogue"]}})
        )

        class Second(plugin["AVSDDialBuilder"]):
            DATASET_CONFIG_DICT = {"default": str(tmp_path / "second.yaml")}

        registry.mapping["builder_name_mapping"]["second"] = Second
        runner = minimal()
        assert len(runner.data.train_set) == 10 and len(runner.data.splits["val"]) == 5
        runner.train()
        assert runner.batches == 5


class TestBadInput:
    def test_a_name_twice(self, plugin: dict) -> None:
        with pytest.raises(DuplicateNameError, match="'gpt_dialogue' is already registered") as error:
            registry.register_model("gpt_dialogue")(Minimal)
        assert isinstance(error.value, KeyError)  # LAVIS's

    def test_a_builder_without_annotation_files(self, make: Make, tmp_path: Path) -> None:
        (tmp_path / "train.json").unlink()

        class Plain(registry.get_builder_class("avsd_dialogue")):
            from lavis.datasets.datasets.base_dataset import BaseDataset as train_dataset_cls

        registry.mapping["builder_name_mapping"]["avsd_dialogue"] = Plain
        with pytest.raises(MissingFileError, match=r"no annotation file .*train.json: set build_info.annotations"):
            make("none")

    def test_a_builder_without_a_class(self, make: Make) -> None:
        registry.get_builder_class("avsd_dialogue").eval_dataset_cls = None
        with pytest.raises(ConfigError, match="AVSDDialBuilder has no eval_dataset_cls, which the split val needs"):
            make("none")

    @pytest.mark.parametrize(
        ("returned", "message"),
        [
            ({"logits": 1}, "forward of Lossless must return a dictionary with 'loss'; it returned the keys logits"),
            (None, "forward of Lossless must return a dictionary with 'loss'; it returned NoneType"),
            ({"loss": 1.0}, "train_step must return a loss .*: float"),
            ({"loss": torch.zeros(2)}, r"train_step must return a loss .*: a tensor of shape \(2,\)"),
        ],
    )
    def test_a_model_without_loss(self, minimal: Make, returned: object, message: str) -> None:
        class Lossless(Minimal):
            def forward(self, samples: dict) -> object:
                return returned

        runner = minimal()
        runner.replicas.model.__class__ = Lossless
        with pytest.raises(ConfigError, match=message):
            runner.train()

    def test_figures_without_the_one_that_counts(self, minimal: Make) -> None:
        class Nameless(Losses):
            def after_evaluation(self, val_result: list, **kwargs: object) -> dict:
                return {"accuracy": 1}

        with pytest.raises(ConfigError, match="after_evaluation of Nameless gave accuracy, but no 'agg_metrics'"):
            minimal(Nameless).train()

    def test_a_model_that_does_not_act(self, minimal: Make, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="run.objective=dpo: Minimal has no reference policy"):
            minimal(**{"run.objective": "dpo"})
        with pytest.raises(ConfigError, match="run.fsdp=True shards .*StudentModel, and Minimal is none"):
            minimal(**{"run.fsdp": True})
        options = [f"{key}={value}" for key, value in {"run.task": "captioning", "model.arch": "minimal"}.items()]
        config = yaml.safe_load((tmp_path / "run.yaml").read_text())
        config["run"].pop("report_metric")
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
        with pytest.raises(ConfigError, match="model.arch=minimal is none: choose another task"):
            build_runner(Namespace(cfg_path=str(tmp_path / "run.yaml"), options=options))

        with pytest.raises(ConfigError, match="model.arch=minimal does not act: Minimal is no .*StudentModel"):
            load_student({"arch": "minimal", "model_type": "base"}, "cpu")

    @pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
    def test_a_gpu_that_is_not_there(self, make: Make) -> None:
        with pytest.raises(ConfigError, match="run.device is cuda, but torch .* sees no GPU: use run.device=cpu"):
            make("gpu", **{"run.device": "cuda"})

    def test_a_stream_without_numbered_samples(self, plugin: dict, make: Make) -> None:
        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self) -> Iterator[dict]:
                yield {}

        plugin["AVSDDialBuilder"].build = lambda self: {"train": Stream(), "val": Stream()}
        with pytest.raises(ConfigError, match="split train: a Stream is a stream"):
            make("stream")

    def test_an_unknown_model_is_refused_by_the_config(self, plugin: dict, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="unknown model 'gpt_dialog': did you mean 'gpt_dialogue'"):
            Config(Namespace(cfg_path=str(tmp_path / "run.yaml"), options=["model.arch=gpt_dialog"]))


# ---- the page -------------------------------------------------------------------------------------------------------


def write_page(folder: Path) -> list[str]:
    """Write the files of docs/lavis.md into `folder`; the commands that it prints."""
    page = (REPO_ROOT / "docs/lavis.md").read_text(encoding="utf-8")
    for name, text in re.findall(r'^```\w+ title="([\w.]+)"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL):
        (folder / name).write_text(text)
    return re.search(r"^```bash\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1].splitlines()


def run(script: str, *arguments: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [script, *arguments])
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            assert not end.code, end.code


def test_the_page_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    data, trained, resumed, processes = write_page(tmp_path)
    assert "torch.distributed.run" in processes  # runs in the slow test below
    for command in (data, trained, resumed):
        program, *words = command.split()
        assert program == "python"
        run(*words)
    sys.modules.pop("shades")
    out = tmp_path / "output/shades"
    lines = [json.loads(line) for line in (out / "log.txt").read_text().splitlines()]
    accuracy = [line["val_agg_metrics"] for line in lines if "val_agg_metrics" in line]
    losses = [line["train_loss"] for line in lines if "train_lr" in line]
    assert len(accuracy) == len(losses) == 12 and accuracy[-1] == 1.0 and losses[-1] < 0.5 * losses[0]
    rows = json.loads((out / "result/val_epoch11.json").read_text())
    assert [row["instance_id"] for row in rows] == [str(number) for number in range(7)]


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["runner_base", "runner_iter"])
def test_the_page_in_two_processes_and_resumed(tmp_path: Path, runner: str) -> None:
    """Half the batch in each of two processes: the same weights as one process with the whole, also when resumed."""
    data, trained, _, processes = (
        [sys.executable if word == "python" else word for word in command.split()] for command in write_page(tmp_path)
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPO_ROOT)}
    iterations = [
        "run.runner=runner_iter",
        "run.max_iters={}",
        "run.iters_per_inner_epoch=4",
        "run.lr_sched=constant_lr",
    ]

    def start(words: list[str], epochs: int, *options: str) -> None:
        if "--options" not in words:
            words = [*words, "--options"]
        counted = [f"run.max_epoch={epochs}", "run.lr_sched=constant_lr"]
        if runner == "runner_iter":
            counted = [word.format(4 * epochs) for word in iterations]
        command = [*words, *counted, *options]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stderr[-3000:]

    subprocess.run(data, cwd=tmp_path, env=environment, check=True, timeout=PATIENCE_S)
    start(trained, 3)
    start(processes, 2, "run.batch_size_train=4")
    start(processes, 3, "run.batch_size_train=4", "run.resume_ckpt_path=latest")
    jobs = ["shades", "two"]
    name = "checkpoint_12.pth" if runner == "runner_iter" else "checkpoint_2.pth"
    one, *others = (torch.load(tmp_path / "output" / job / name, weights_only=True)["model"] for job in jobs)
    for two in others:
        assert one.keys() == two.keys() and all(torch.allclose(one[key], two[key], atol=1e-5) for key in one)
    results = [tmp_path / "output" / job / "result" / f"val_epoch{name[11:-4]}.json" for job in jobs]
    rows = [sorted(json.loads(path.read_text()), key=lambda row: int(row["instance_id"])) for path in results]
    assert all(found == rows[0] for found in rows) and len(rows[0]) == 7
