"""Merging results of processes, and refusing labels."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from lavis.common.errors import MissingExtraError
from lavis.common.run_settings import RunSettings
from lavis.datasets.datasets.alfworld_dataset import AlfworldDataset
from lavis.datasets.records import BadSampleError, Record, SourceChain
from lavis.datasets.shards import ShardFolder
from lavis.processors import BaseProcessor
from lavis.tasks import student_task
from lavis.tasks.alfworld_action import AlfworldActionTask
from lavis.tasks.captioning import CaptionTask
from lavis.tasks.student_task import LabelCheck
from tests.colour_student import ColourStudent
from xrl_alignment.runs.transitions import Transition, shard_name, write_shard


def result(number: int) -> dict:
    return {"instance_id": number, "caption": "look", "label": "look", "nll": 0.0, "task_type": "", "game": ""}


def test_results_of_all_processes_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [[result(0), result(2)], [result(1), result(0)]]  # the last one is padding
    monkeypatch.setattr(student_task, "gathered", lambda part: parts)
    figures = CaptionTask(settings=RunSettings()).after_evaluation(parts[0], "val", 3, tmp_path)
    assert figures["samples"] == 3
    assert [row["instance_id"] for row in json.loads((tmp_path / "val_epoch3.json").read_text())] == [0, 1, 2]


def test_any_student_is_evaluated_and_gets_the_frames_that_it_reads(tmp_path: Path) -> None:
    task, student = CaptionTask(settings=RunSettings()), ColourStudent()
    student.frames = 3
    frame = np.zeros((8, 8, 3), np.uint8)
    items = [Transition(frame, f"{i}\n> ", "look", "", "look", "") for i in range(4)]
    write_shard(tmp_path / shard_name(0, 0, 4), items, {"game": "look_at_obj_in_light-CD/t"})
    chain = SourceChain([ShardFolder(tmp_path), ShardFolder(tmp_path)])
    dataset = AlfworldDataset(source=chain, vis_processor=BaseProcessor(), text_processor=BaseProcessor())
    task.prepare(student, {"val": dataset})
    samples = dataset.collater([dataset[number] for number in range(8)])
    # A sample with one image is that image.
    assert [len(image) if isinstance(image, tuple) else 1 for image in samples["image"]] == [1, 2, 3, 3] * 2
    rows = task.valid_step(student, samples)
    assert [row["label"] for row in rows] == ["look"] * 8 and all(row["nll"] > 0 for row in rows)


@pytest.mark.parametrize(("task", "package"), [(CaptionTask, "sacrebleu"), (AlfworldActionTask, "spacy")])
def test_a_missing_package_is_told_before_the_training_it_is_to_judge(monkeypatch, tmp_path, task, package) -> None:
    items = [Transition(np.zeros((8, 8, 3), np.uint8), "> ", "look", "", "look", "")]
    write_shard(tmp_path / shard_name(0, 0, 1), items, {"game": "look_at_obj_in_light-CD/t"})
    chain = SourceChain([ShardFolder(tmp_path)])
    data = AlfworldDataset(source=chain, vis_processor=BaseProcessor(), text_processor=BaseProcessor())
    monkeypatch.setitem(sys.modules, package, None)
    evaluated = task(settings=RunSettings(valid_splits=["val"]))
    evaluated.prepare(ColourStudent(), {"train": data})  # nothing is evaluated
    with pytest.raises(MissingExtraError, match=rf"package {package} is not installed: .*\[metrics\]"):
        evaluated.prepare(ColourStudent(), {"train": data, "val": data})


def test_skipped_samples_are_listed_and_limited(tmp_path: Path) -> None:
    results = [result(0), {"skipped": "b.jpg is broken"}]
    figures = CaptionTask(settings=RunSettings(skip_bad_samples=1)).after_evaluation(results, "val", 0, tmp_path)
    assert figures["skipped"] == ["b.jpg is broken"]
    with pytest.raises(BadSampleError, match="b.jpg is broken; run.skip_bad_samples=N"):
        CaptionTask(settings=RunSettings()).after_evaluation(results, "val", 0, tmp_path)


def test_labels_that_would_be_cut() -> None:
    check = LabelCheck(str.split, limit=4, preferences=False)
    image = np.zeros((2, 2, 3), np.uint8)
    assert check(Record(image, "", "go to desk")) == ""
    assert check(Record(image, "", "go to desk 1")) == (
        "text_output has 5 tokens with its end, over the model's 4 (by model.max_output_txt_len): 'go to desk 1'…"
    )
    # The rejected answer is not read by cloning.
    assert check(Record(image, "", "look", "go to desk 1")) == ""
    assert "text_output_neg has 5" in LabelCheck(str.split, 4, preferences=True)(
        Record(image, "", "look", "go to desk 1")
    )
    by_bytes = LabelCheck(lambda text: list(text.encode()), limit=4, preferences=False)
    assert "has 7 tokens" in by_bytes(Record(image, "", "日本"))  # two characters, six bytes


def test_preferences_need_a_rejected_answer() -> None:
    check = LabelCheck(str.split, limit=9, preferences=True)
    record = Record(np.zeros((2, 2, 3), np.uint8), "", "look")
    assert check(record) == "text_output_neg is missing or empty, and run.objective=dpo needs it"
