"""Training runs of the tiny model: what they write, that they learn, that they go on exactly where they stopped."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path

import pytest
import torch

from lavis.checkpoints import CheckpointError, write
from lavis.common.errors import ConfigError, DivergedError
from lavis.common.files import LockedError
from lavis.datasets.records import BadSampleError
from lavis.processors import BlipImageEvalProcessor
from lavis.runners.runner_base import RunnerBase, Stopped

STORAGE = "datasets.alfworld_cap.build_info.annotations.{}.storage"


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in (path / "log.txt").read_text().splitlines()]


def weights(path: Path) -> dict[str, torch.Tensor]:
    return torch.load(path, weights_only=True)["model"]


def test_a_whole_run(make_runner, tmp_path: Path) -> None:
    runner = make_runner("a", **{"run.valid_splits": "[val]", "run.test_splits": "[val]", "run.init_lr": 3e-3})
    before = {name: value.clone() for name, value in runner.replicas.model.state_dict().items()}
    runner.train()
    out = tmp_path / "a"
    written = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file() and "tfevents" not in path.name}
    results = {"result/val_epoch0.json", "result/val_epoch1.json", "result/val_epochbest.json"}
    checkpoints = {"checkpoint_0.pth", "checkpoint_1.pth", "checkpoint_best.pth"}
    assert written == {".lock", "log.txt", "evaluate.txt", *checkpoints, *results}
    assert len(list((out / "tensorboard").iterdir())) == 1
    log = lines(out)
    assert log[0]["config"]["run"]["job_id"] == "a"
    losses = [line["train_loss"] for line in log if "train_batches" in line]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    assert len(json.loads((out / "result/val_epoch1.json").read_text())) == 11
    for name, value in runner.replicas.model.state_dict().items():
        moved = not torch.equal(value, before[name])
        assert moved != name.startswith(("visual_encoder.", "ln_vision.")), name


def test_stopped_by_sigterm_and_resumed_equals_uninterrupted(make_runner, tmp_path: Path) -> None:
    make_runner("whole").train()
    runner = make_runner("cut", **{"run.accum_grad_iters": 1})
    update = runner.averages.update
    runner.averages.update = lambda **figures: (
        update(**figures),
        runner.batches == 1 and os.kill(os.getpid(), signal.SIGTERM),
    )
    with pytest.raises(Stopped, match="run.resume_ckpt_path=.*checkpoint_stopped.pth"):
        runner.train()
    assert torch.load(tmp_path / "cut/checkpoint_stopped.pth", weights_only=True)["batches"] == 2
    (tmp_path / "cut/.checkpoint_0.pth.4711.tmp").write_text("what a killed run has left")
    make_runner("cut", **{"run.resume_ckpt_path": "latest"}).train()
    assert [path.name for path in (tmp_path / "cut").glob(".*")] == [".lock"]
    whole, cut = weights(tmp_path / "whole/checkpoint_1.pth"), weights(tmp_path / "cut/checkpoint_1.pth")
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    means = [line["train_loss"] for line in lines(tmp_path / "cut") if "epoch" in line]
    assert means == [line["train_loss"] for line in lines(tmp_path / "whole") if "epoch" in line]


@pytest.mark.parametrize("when", ["validation", "test"])
def test_stopped_by_sigterm_while_it_evaluates(make_runner, tmp_path: Path, when: str) -> None:
    settings = {"run.valid_splits": "[val]", "run.test_splits": "[val]", "run.batch_size_eval": 4, "run.max_epoch": 1}
    make_runner("whole", **settings).train()
    runner = make_runner("cut", **settings)
    step, steps = runner.task.valid_step, []

    def stopped_in_the_middle(model, samples):
        steps.append(samples["instance_id"])
        if len(steps) == (2 if when == "validation" else 5):  # three batches are a split
            os.kill(os.getpid(), signal.SIGTERM)
        return step(model, samples)

    runner.task.valid_step = stopped_in_the_middle
    last = "checkpoint_stopped.pth" if when == "validation" else "checkpoint_0.pth"
    with pytest.raises(Stopped, match=f"after 2 batches; resume with run.resume_ckpt_path=.*{last}"):
        runner.train()
    assert len(steps) == (2 if when == "validation" else 5)
    make_runner("cut", **settings, **{"run.resume_ckpt_path": "latest"}).train()

    def results(folder: Path) -> tuple:
        figures = [line for line in lines(folder) if "epoch" in line]
        return figures, (folder / "evaluate.txt").read_text(), (folder / "result/val_epochbest.json").read_text()

    assert results(tmp_path / "cut") == results(tmp_path / "whole")


def test_an_error_in_validation_loses_no_epoch(make_runner, tmp_path: Path, monkeypatch) -> None:
    settings = {"run.valid_splits": "[val]", "run.batch_size_eval": 4, "run.max_epoch": 1}
    make_runner("whole", **settings).train()
    runner = make_runner("cut", **settings)
    monkeypatch.setattr(runner.task, "valid_step", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        runner.train()
    make_runner("cut", **settings, **{"run.resume_ckpt_path": tmp_path / "cut/checkpoint_stopped.pth"}).train()
    whole, cut = ([line for line in lines(tmp_path / name) if "epoch" in line] for name in ("whole", "cut"))
    assert whole == cut and len(whole) == 2  # the means of training, the figures of validation


def test_a_loop_without_figures_that_is_stopped_keeps_its_epochs_end(make_runner, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("lavis.runners.runner_base.has_own_loop", lambda task: True)
    settings = {"run.valid_splits": "[val]", "run.batch_size_eval": 4, "run.max_epoch": 2}
    calls: list[int] = []

    def loop(epoch, batches) -> None:
        calls.append(len(list(batches)))
        if len(calls) == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    for again in ({}, {"run.resume_ckpt_path": "latest"}):
        runner = make_runner("cut", **settings, **again)
        monkeypatch.setattr(runner, "own_loop", loop)
        with nullcontext() if again else pytest.raises(Stopped):
            runner.train()
    assert len(calls) == 2 and all(calls)  # none of them without a batch
    assert {line["epoch"] for line in lines(tmp_path / "cut") if "val_agg_metrics" in line} == {0, 1}
    assert (tmp_path / "cut/checkpoint_0.pth").is_file()


def test_float16_scales_its_gradients_and_resumes_exactly(make_runner, tmp_path: Path) -> None:
    half = {"run.amp": True, "model.amp": "float16", "run.init_lr": 3e-3}
    make_runner("full", **{"run.init_lr": 3e-3}).train()
    make_runner("half", **half).train()
    make_runner("again", **half, **{"run.resume_ckpt_path": tmp_path / "half/checkpoint_0.pth"}).train()
    scaler = torch.load(tmp_path / "half/checkpoint_0.pth", weights_only=True)["scaler"]
    assert scaler["scale"] >= 2.0**10 and scaler["_growth_tracker"] == 2  # two updates, none of them overflowed
    whole, again = weights(tmp_path / "half/checkpoint_1.pth"), weights(tmp_path / "again/checkpoint_1.pth")
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    losses = [
        [line["train_loss"] for line in lines(tmp_path / job) if "train_batches" in line] for job in ("full", "half")
    ]
    assert losses[1] == pytest.approx(losses[0], abs=0.02)


def test_latest_without_a_checkpoint_begins_anew(make_runner, tmp_path: Path) -> None:
    make_runner("new", **{"run.resume_ckpt_path": "latest", "run.max_epoch": 1}).train()
    assert (tmp_path / "new/checkpoint_0.pth").is_file()


def test_another_experiment_under_the_name_of_one_that_has_ended(make_runner, tmp_path: Path, capsys) -> None:
    """It would train nothing, and hand out the other's weights as its own."""
    make_runner("sweep", **{"run.max_epoch": 1, "run.init_lr": 1e-3}).train()
    latest = {"run.resume_ckpt_path": "latest", "run.init_lr": 1e-5}
    changed = "run.init_lr 0.001 → 1e-05"
    with pytest.raises(ConfigError, match=rf"has ended, with other settings \({changed}\): name another run.job_id"):
        make_runner("sweep", **latest, **{"run.max_epoch": 1, "run.log_freq": 7}).train()
    make_runner("sweep", **latest, **{"run.max_epoch": 2}).train()
    assert f"checkpoint_0.pth is of a run with other settings: {changed}" in capsys.readouterr().err
    make_runner("sweep", **latest, **{"run.max_epoch": 2, "run.log_freq": 7}).train()  # ended, and nothing was changed


def test_a_new_run_in_the_folder_of_another_is_refused(make_runner, tmp_path: Path) -> None:
    """Stopped and resumed by `latest`, it went on from the other's weights."""
    make_runner("sweep", **{"run.max_epoch": 1}).train()
    make_runner("b", **{"run.max_epoch": 1}).train()
    before = {path: path.read_bytes() for path in (tmp_path / "sweep").rglob("*") if path.is_file()}
    for begun in ({}, {"run.resume_ckpt_path": tmp_path / "b/checkpoint_0.pth"}):
        with pytest.raises(ConfigError, match="sweep/checkpoint_0.pth is of an earlier run: go on with it by"):
            make_runner("sweep", **{"run.max_epoch": 2}, **begun).train()
    # The refused run's config stood in the other's log, and its curves beside the other's.
    assert {path: path.read_bytes() for path in (tmp_path / "sweep").rglob("*") if path.is_file()} == before
    make_runner("sweep", **{"run.max_epoch": 2, "run.resume_ckpt_path": tmp_path / "sweep/checkpoint_0.pth"}).train()


def test_dpo(make_runner, tmp_path: Path) -> None:
    make_runner("bc", **{"run.max_epoch": 1}).train()
    path = tmp_path / "bc/checkpoint_0.pth"
    make_runner("dpo", **{"run.objective": "dpo", "model.pretrained": path, "model.ref_pretrained": path}).train()
    first = next(line for line in lines(tmp_path / "dpo") if "train_batches" in line)
    assert abs(first["train_chosen_reward"]) < 1e-5  # policy and reference are still the same
    log = [line for line in lines(tmp_path / "dpo") if "train_batches" in line]
    assert log[-1]["train_chosen_reward"] > 0.01
    assert log[-1]["train_loss"] < first["train_loss"]


def test_dpos_reference_is_asked_once_for_each_transition(
    make_runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    make_runner("bc", **{"run.max_epoch": 1}).train()
    path = tmp_path / "bc/checkpoint_0.pth"
    dpo = {"run.objective": "dpo", "model.pretrained": path, "model.ref_pretrained": path, "run.max_epoch": 3}
    asked: dict[str, list[int]] = {}

    def train(job: str, **settings: object) -> None:
        runner, counts = make_runner(job, **dpo, **settings), asked.setdefault(job, [])
        model = runner.replicas.model
        plain = model.answer_logps

        def counted(questions: list, answers: list, **options: object) -> torch.Tensor:
            counts.append(len(questions) if model._as_reference else 0)
            return plain(questions, answers, **options)

        model.answer_logps = counted
        runner.train()

    train("once")
    train("resumed", **{"run.resume_ckpt_path": tmp_path / "once/checkpoint_1.pth"})
    assert "computes the reference policy again" not in capsys.readouterr().err
    monkeypatch.setattr(BlipImageEvalProcessor, "deterministic", False)
    train("again")
    again = "computes the reference policy again at every batch"
    said = [line for line in capsys.readouterr().err.splitlines() if again in line]
    assert len(said) == 1 and "preprocess.vis_processor.train.name=blip_image_eval" in said[0]
    assert sum(asked["again"]) == 30 and 10 <= sum(asked["once"]) <= 11  # draws, transitions that were drawn
    whole, resumed = weights(tmp_path / "once/checkpoint_2.pth"), weights(tmp_path / "resumed/checkpoint_2.pth")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    losses = [
        [line["train_loss"] for line in lines(tmp_path / job) if "train_batches" in line] for job in ("once", "again")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and len(losses[0]) == 6


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(
    make_runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Noon(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 1, 12)

    monkeypatch.setattr("lavis.runners.runner_base.datetime", Noon)
    folders = [make_runner('""').output_dir for _ in range(2)]  # no name of its own
    assert [folder.relative_to(tmp_path).as_posix() for folder in folders] == ["20260101120000", "20260101120000-2"]


def test_a_second_run_in_the_same_folder_is_refused(make_runner, tmp_path: Path, monkeypatch) -> None:
    """It wrote checkpoints of the same names, and removed the first one's unfinished files."""
    first = make_runner("same", **{"run.max_epoch": 1})
    train_epoch = first.train_epoch

    def meanwhile(epoch: int) -> None:
        half_written = tmp_path / "same/.checkpoint_0.pth.1.tmp"
        half_written.touch()
        with pytest.raises(LockedError, match=rf"^process \d+ is writing to {tmp_path / 'same'}: wait"):
            make_runner("same", **{"run.max_epoch": 1}).train()
        assert half_written.exists()
        train_epoch(epoch)

    monkeypatch.setattr(first, "train_epoch", meanwhile)
    first.train()
    assert (tmp_path / "same/checkpoint_0.pth").is_file()
    make_runner("same", **{"run.max_epoch": 1, "run.resume_ckpt_path": "latest"}).train()


def test_a_resume_on_other_data_names_the_games_of_both(make_runner, annotation_folder: Path, tmp_path: Path) -> None:
    make_runner("a", **{"run.max_epoch": 1}).train()
    path, data = tmp_path / "a/checkpoint_0.pth", annotation_folder / "annotations.json"
    entries = json.loads(data.read_text())
    resumed = {"run.resume_ckpt_path": path, "datasets.alfworld_cap.build_info.annotations.train.storage": data}
    with pytest.raises(CheckpointError, match="has batches_per_epoch 2, this run 1: resume with the same"):
        make_runner("b", **resumed).train()
    data.write_text(json.dumps(entries * 2))
    make_runner("b", **resumed).train()
    both = (path, tmp_path / "b/checkpoint_1.pth")
    before, after = (set(torch.load(one, weights_only=True)["played"]["games"]) for one in both)
    assert after == before | {entry["game"] for entry in entries} != before
    older = torch.load(path, weights_only=True)
    del older["batches_per_epoch"], older["played"]
    write(tmp_path / "older.pth", older)
    make_runner("c", **{**resumed, "run.resume_ckpt_path": tmp_path / "older.pth"}).train()
    played = torch.load(tmp_path / "c/checkpoint_1.pth", weights_only=True)["played"]
    assert played["unknown"] == ["older.pth"]


def test_the_best_of_a_split_that_is_no_longer_validated_is_not_this_runs(make_runner, tmp_path: Path) -> None:
    """It was tested and recommended under the last epoch's name."""
    make_runner("a", **{"run.max_epoch": 1, "run.valid_splits": ["val"]}).train()
    assert (tmp_path / "a/checkpoint_best.pth").is_file()
    resumed = {"run.resume_ckpt_path": "latest", "run.max_epoch": 2}
    runner = make_runner("a", **resumed, **{"run.valid_splits": []})
    runner.train()
    assert runner.final_checkpoint == tmp_path / "a/checkpoint_1.pth"
    again = make_runner("a", **{**resumed, "run.max_epoch": 3, "run.valid_splits": ["val"]})
    again.train()
    assert again.final_checkpoint == tmp_path / "a/checkpoint_best.pth"
    assert torch.load(again.final_checkpoint, weights_only=True)["best"]["epoch"] == 2


def test_the_first_of_several_splits_says_which_checkpoint_is_the_best(
    make_runner, shard_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures of two splits cannot be compared: those of the second are higher here, and highest in epoch 1."""
    figures = {"val": [0.5, 0.25], "test": [0.75, 1.0]}
    splits = {"run.valid_splits": "[val,test]", STORAGE.format("test"): shard_folder}
    runner = make_runner("two", **splits)
    monkeypatch.setattr(runner, "eval_epoch", lambda split, epoch: {"agg_metrics": figures[split][epoch]})
    runner.train()
    best = torch.load(tmp_path / "two/checkpoint_best.pth", weights_only=True)
    assert best["best"]["epoch"] == 0 and best["best"]["agg_metrics"] == 0.5


def test_a_resumed_run_has_its_own_weight_decay(make_runner, tmp_path: Path) -> None:
    make_runner("a", **{"run.max_epoch": 1}).train()
    own = {"run.resume_ckpt_path": tmp_path / "a/checkpoint_0.pth", "run.weight_decay": 0.25, "run.beta2": 0.98}
    runner = make_runner("b", **own)
    runner._resume()
    groups = runner.optimizer.param_groups
    assert [group["weight_decay"] for group in groups] == [0.25, 0.0]
    assert all(group["betas"] == (0.9, 0.98) for group in groups)
    assert all(state["step"] > 0 for state in runner.optimizer.state.values())


def test_reference_logps_of_other_data_settings_are_computed_anew(make_runner, tmp_path: Path) -> None:
    make_runner("bc", **{"run.max_epoch": 1}).train()
    path = tmp_path / "bc/checkpoint_0.pth"
    dpo = {"run.objective": "dpo", "model.pretrained": path, "model.ref_pretrained": path}
    make_runner("dpo", **dpo, **{"run.max_epoch": 1}).train()
    kept = torch.load(tmp_path / "dpo/checkpoint_0.pth", weights_only=True)["references"]
    for name, settings in (("same", {}), ("other", {"datasets.alfworld_cap.blank_images": True})):
        runner = make_runner(name, **dpo, **settings)
        runner.references.restore(kept)
        assert len(runner.references) == len(kept["places"]) > 0
        runner.stream.stop = runner.all_batches
        samples = next(runner.data.train_batches(runner.stream, runner.device))
        runner.references.add_to(samples, runner.data.places(samples))
        assert (runner.references.state()["key"] == kept["key"]) == (name == "same")


def test_the_best_weights_of_an_earlier_run_in_the_folder_are_not_this_runs(make_runner, tmp_path: Path) -> None:
    """A run without validation loaded them before its test, and called them its result."""
    make_runner("same", **{"run.max_epoch": 1, "run.valid_splits": "[val]"}).train()
    stale = weights(tmp_path / "same/checkpoint_best.pth")
    (tmp_path / "same/checkpoint_0.pth").unlink()  # else the second run is refused
    runner = make_runner("same", **{"run.max_epoch": 1, "run.test_splits": "[val]", "run.init_lr": 3e-3})
    runner.train()
    assert runner.final_checkpoint == tmp_path / "same/checkpoint_0.pth"
    own, now = weights(tmp_path / "same/checkpoint_0.pth"), runner.replicas.trainable_state()
    assert all(torch.equal(now[name], value) for name, value in own.items())
    assert any(not torch.equal(stale[name], value) for name, value in own.items())


@pytest.mark.parametrize("lost", [False, True])
def test_a_run_that_goes_on_in_another_folder_has_the_best_weights_so_far(
    make_runner, tmp_path: Path, capsys, lost: bool
) -> None:
    """Its test measured the last weights, and called them the best: the best ones were in the earlier folder."""
    validated = {"run.valid_splits": "[val]", "run.test_splits": "[val]"}
    make_runner("first", **{"run.max_epoch": 1, **validated}).train()
    first = tmp_path / "first"
    content = torch.load(first / "checkpoint_0.pth", weights_only=True)
    best = {"agg_metrics": 1e9, "epoch": 0}  # no later epoch is better
    for name in ("checkpoint_0.pth", "checkpoint_best.pth"):
        write(first / name, {**content, "best": best})
    if lost:
        (first / "checkpoint_best.pth").unlink()
    resumed = {"run.max_epoch": 2, "run.resume_ckpt_path": first / "checkpoint_0.pth"}
    runner = make_runner("second", **resumed, **validated)
    runner.train()
    second = tmp_path / "second" / "checkpoint_best.pth"
    assert runner.final_checkpoint == second
    if lost:
        assert runner.best["epoch"] == 1
    else:
        assert second.read_bytes() == (first / "checkpoint_best.pth").read_bytes()
    assert ("lacks the best weights so far, those of epoch 0" in capsys.readouterr().err) is lost
    now = runner.replicas.trainable_state()
    assert all(torch.equal(now[name], value) for name, value in weights(second).items())


def test_checkpoints_that_do_not_fit(make_runner, tmp_path: Path) -> None:
    make_runner("a", **{"run.max_epoch": 1}).train()
    path = tmp_path / "a/checkpoint_0.pth"
    content = torch.load(path, weights_only=True)
    for change, message in (
        ({"arch": "blip2_emac vicuna7b"}, "has arch blip2_emac vicuna7b, this run blip2_emac tiny"),
        ({"base_hash": "0" * 64}, r"trained on the frozen base 0{12} .*this model's frozen base is \w{12}: load"),
        ({"global_batch": 7}, "has global_batch 7, this run 5"),
        ({"model": {"llm_proj.weight": torch.zeros(1)}}, "does not fit this model"),
    ):
        write(tmp_path / "other.pth", {**content, **change})
        with pytest.raises(CheckpointError, match=message):
            make_runner("b", **{"run.resume_ckpt_path": tmp_path / "other.pth"}).train()


@pytest.mark.parametrize("key", ["pretrained", "ref_pretrained"])
def test_weights_of_another_frozen_base_begin_no_run(make_runner, tmp_path: Path, key: str) -> None:
    make_runner("a", **{"run.max_epoch": 1}).train()
    with pytest.raises(CheckpointError, match="trained on the frozen base .*, this model's frozen base is"):
        make_runner("b", **{f"model.{key}": tmp_path / "a/checkpoint_0.pth", "model.init_seed": 7})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"run.valid_splits": "[valid]"}, "there is no split 'valid'; datasets have: train, val"),
        ({"run.world_size": 4}, "run.world_size is 4, but 1 process"),
        ({"run.max_epochs": 4}, "unknown key 'run.max_epochs': did you mean 'run.max_epoch'"),
        ({"run.objective": "dpo"}, "needs model.ref_pretrained"),
        ({"run.batch_size_train": 12}, "11 samples, fewer than one global batch of 12"),
        ({"run.fsdp": True}, "run.fsdp=True needs processes"),
        ({"run.device": "cuda"}, "sees no GPU"),
        ({"model.max_output_txt_len": 4, "run.batch_size_train": 8}, "step .: text_output has .* over the model's 3"),
    ],
)
def test_what_cannot_be_run(make_runner, settings: dict, message: str) -> None:
    if settings.get("run.device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(ValueError, match=message):
        make_runner("bad", **settings).train()


def test_an_evaluation_needs_no_training_data(make_runner, shard_folder: Path, tmp_path: Path) -> None:
    """The seeds' file with run.evaluate: `train` names a folder that is not there."""
    annotations = "datasets.alfworld_cap.build_info.annotations"
    settings = {"run.evaluate": True, f"{annotations}.train.storage": tmp_path / "absent"}
    settings |= {"run.test_splits": "[test]", f"{annotations}.test.storage": shard_folder}
    make_runner("a", **settings).train()  # LAVIS's train.py with run.evaluate evaluates only
    figures = json.loads((tmp_path / "a/evaluate.txt").read_text())["test"]
    assert figures["samples"] == 11 and not list((tmp_path / "a").glob("*.pth"))


def test_an_evaluation_without_test_splits_takes_the_validation_splits(make_runner) -> None:
    runner = make_runner("a", **{"run.evaluate": True, "run.valid_splits": "[val]"})
    assert list(runner.data.splits) == ["val"] and runner.evaluate("final")["val"]["samples"] == 11


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"run.test_splits is empty: an evaluation needs a split"),
        ({"run.test_splits": "[test]"}, "there is no split 'test'; datasets have: train, val. Set .*test.storage"),
        (
            {"run.test_splits": "[val]", "run.resume_ckpt_path": "a.pth"},
            "a.pth continues a training; .*model.pretrained",
        ),
    ],
)
def test_an_evaluation_that_would_tell_nothing(make_runner, tmp_path: Path, settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_runner("a", **{"run.evaluate": True, **settings})
    assert not (tmp_path / "a").exists()


def test_skipped_samples_are_counted(make_runner) -> None:
    settings = {"model.max_output_txt_len": 5, "run.max_epoch": 1}  # too short for three of the four commands
    make_runner("few", **settings, **{"run.skip_bad_samples": 11}).train()
    with pytest.raises(BadSampleError, match="run.skip_bad_samples allows 1"):
        make_runner("many", **settings, **{"run.skip_bad_samples": 1}).train()


def test_bad_samples_are_replaced_whatever_the_split_is_called_that_is_trained_on(
    make_runner, annotation_folder: Path, tmp_path: Path
) -> None:
    (annotation_folder / "4.png").write_bytes(b"no image")
    storage = "datasets.alfworld_cap.build_info.annotations"
    settings = {f"{storage}.{split}.storage": annotation_folder for split in ("mine", "val")}
    settings |= {"run.train_splits": "[mine]", "run.batch_size_train": 5, "run.max_epoch": 1, "run.skip_bad_samples": 1}
    settings["run.valid_splits"] = (
        "[val]"  # one bad sample is allowed in the training data, and one in each other split
    )
    runner = make_runner("a", **settings)
    stream = runner.data.train_stream()
    stream.stop = stream.batches_per_epoch
    (batch,) = runner.data.train_batches(stream, torch.device("cpu"))
    assert len(batch["instance_id"]) == 5 and len(batch["skipped"]) == 1
    runner.train()
    assert [len(line["val_skipped"]) for line in lines(tmp_path / "a") if "val_skipped" in line] == [1]


def test_the_samples_of_a_shard_that_was_cut_short_are_left_out(
    make_runner, shard_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(shard_folder, tmp_path / "data")
    cut = next((tmp_path / "data").glob("*_steps003.h5"))
    os.truncate(cut, 1000)
    storage = "datasets.alfworld_cap.build_info.annotations"
    settings = {f"{storage}.{split}.storage": tmp_path / "data" for split in ("train", "val")}
    settings |= {"run.batch_size_train": 2, "run.max_epoch": 1, "run.valid_splits": "[]"}
    with pytest.raises(BadSampleError, match=f"{cut.name} cannot be read: it has no index"):
        make_runner("none", **settings)
    make_runner("three", **settings, **{"run.skip_bad_samples": 3}).train()


def test_entries_left_out_at_opening_count_too(make_runner, annotation_folder: Path, tmp_path: Path) -> None:
    path = annotation_folder / "annotations.json"
    entries = json.loads(path.read_text())
    del entries[3]["text_output"]
    path.write_text(json.dumps(entries))
    (annotation_folder / "4.png").unlink()
    storage = "datasets.alfworld_cap.build_info.annotations"
    settings = {f"{storage}.{split}.storage": annotation_folder for split in ("train", "val")}
    settings |= {"run.batch_size_train": 2, "run.max_epoch": 1, "run.valid_splits": "[val]"}
    with pytest.raises(BadSampleError, match="entry 3: lacks text_output.*; .*entry 4: no image .*allows 1"):
        make_runner("one", **settings, **{"run.skip_bad_samples": 1}).train()
    make_runner("two", **settings, **{"run.skip_bad_samples": 2}).train()
    figures = next(line for line in lines(tmp_path / "two") if "val_samples" in line)
    assert figures["val_samples"] == 3
    assert [re.search(r"entry \d", message)[0] for message in figures["val_skipped"]] == ["entry 3", "entry 4"]


def test_a_loss_that_is_not_finite(make_runner) -> None:
    runner = make_runner("nan")
    with torch.no_grad():
        runner.replicas.model.llm_proj.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match=r"the loss is nan at batch 0 .*\.h5, step \d \(pick.+\); .* and 1 more"):
        runner.train()


def test_an_infinite_gradient_of_a_finite_loss_leaves_the_weights_as_they_were(make_runner) -> None:
    runner = make_runner("overflow", **{"run.clip_grad_norm": 1.0})
    before = {name: value.clone() for name, value in runner.replicas.trainable_state().items()}
    runner.replicas.model.llm_proj.weight.register_hook(lambda gradient: gradient / 0.0)
    with pytest.raises(DivergedError, match=r"the gradient's norm is .* at batch 0 of the run: .*\.h5, step \d"):
        runner.train()
    assert all(torch.equal(before[name], value) for name, value in runner.replicas.trainable_state().items())


def test_an_error_loses_no_curve(make_runner, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    runner = make_runner("curves")
    end_epoch = runner.end_epoch

    def fail(epoch: int) -> None:
        end_epoch(epoch)
        raise RuntimeError("after an epoch")

    runner.end_epoch = fail
    with pytest.raises(RuntimeError, match="after an epoch"):
        runner.train()
    events = EventAccumulator(str(tmp_path / "curves" / "tensorboard"))
    events.Reload()
    assert "train/loss" in events.Tags()["scalars"]


def test_weight_decay_spares_vectors(make_runner) -> None:
    decayed, spared = make_runner("groups").optimizer.param_groups
    assert {parameter.ndim for parameter in spared["params"]} == {1}
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.05, 0.0)


def test_dpos_temperature_reaches_the_model(make_runner: Callable[..., RunnerBase]) -> None:
    assert make_runner("default").replicas.model.dpo_beta == 0.1
    assert make_runner("other", **{"run.dpo_beta": 0.3}).replicas.model.dpo_beta == 0.3
    with pytest.raises(ValueError, match=r"run.dpo_beta: 0.0 is not a number above 0"):
        make_runner("zero", **{"run.dpo_beta": 0.0})
