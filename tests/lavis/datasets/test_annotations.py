"""Annotation files: both forms, read lazily, indexed once; what is wrong is named by file and entry."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lavis.common.paths import REPO_ROOT
from lavis.datasets import annotations
from lavis.datasets.annotations import AnnotationError, AnnotationFile, scan
from lavis.datasets.records import BadSampleError

ENTRY = {"image": "a.png", "text_input": "> ", "text_output": "look"}


def write(path: Path, *entries: object, lines: bool = False) -> Path:
    path.write_text("\n".join(map(json.dumps, entries)) if lines else json.dumps(entries))
    return path


def test_reads_entries_and_images(annotation_folder: Path) -> None:
    source = AnnotationFile(annotation_folder / "annotations.json", annotation_folder)
    record = source.read(3)
    assert len(source) == 5
    assert np.asarray(record.image)[0, 0].tolist() == [3, 3, 3]
    assert (record.text_output, record.task_type) == ("heat apple 1 with microwave 1", "pick_heat_then_place_in_recep")


@pytest.mark.parametrize("lines", [False, True])
def test_both_forms_and_any_text(tmp_path: Path, lines: bool) -> None:
    entries = [{**ENTRY, "text_input": text} for text in ("é\u2028", 'a "quoted" [list], {x}', "日本" * 1000)]
    source = AnnotationFile(write(tmp_path / "a.json", *entries, lines=lines), tmp_path)
    assert [source.entry(i) for i in range(3)] == entries


def test_a_tab_in_a_text_and_bytes_that_are_not_utf_8(tmp_path: Path) -> None:
    head = b'{"image": "a.png", "text_output": "look", "text_input": "'
    (tmp_path / "a.json").write_bytes(head + b"a\tb" + b'"}\n' + head + b"caf\xe9" + b'"}')
    source = AnnotationFile(tmp_path / "a.json", tmp_path)
    assert source.entry(0)["text_input"] == "a\tb"
    with pytest.raises(BadSampleError, match=r"a.json, entry 1 cannot be read: 'utf-8' codec can't decode byte 0xe9"):
        source.entry(1)


def test_entries_longer_than_what_is_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotations, "_CHUNK", 7)
    path = write(tmp_path / "a.json", *[{**ENTRY, "text_input": "x" * n} for n in range(40)])
    assert [len(value["text_input"]) for _, _, value in scan(path)] == list(range(40))


def test_is_scanned_once_and_again_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scans = []
    monkeypatch.setattr(annotations, "scan", lambda path: scans.append(path) or scan(path))
    path = write(tmp_path / "a.json", ENTRY)
    assert len(AnnotationFile(path, tmp_path)) == len(AnnotationFile(path, tmp_path)) == 1
    assert len(scans) == 1
    write(path, ENTRY, ENTRY)
    assert len(AnnotationFile(path, tmp_path)) == 2
    (index,) = annotations.cache_folder().iterdir()
    for damaged in (b"", index.read_bytes()[:100]):  # a full disk, a power failure
        index.write_bytes(damaged)
        assert len(AnnotationFile(path, tmp_path)) == 2


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"image": "a.png", "text_input": "x"}, "lacks text_output (it has image, text_input)"),
        ({"text_input": "x", "text_output": "look"}, "lacks image"),
        ({**ENTRY, "text_output": 5}, "text_output is a int, not a string"),
        ({**ENTRY, "text_output": "  "}, "text_output is empty"),
        (["x"], "is a list"),
    ],
)
def test_bad_entries_are_named(tmp_path: Path, entry: object, reason: str) -> None:
    path = write(tmp_path / "train.json", ENTRY, entry)
    with pytest.raises(BadSampleError) as error:
        AnnotationFile(path, tmp_path)
    assert str(error.value).startswith(f"{path}, entry 1: {reason}")
    tolerant = AnnotationFile(path, tmp_path, skip_bad=1)
    assert (len(tolerant), len(tolerant.skipped)) == (1, 1)


def test_without_images(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", {"text_input": "x", "text_output": "look"})
    assert not np.asarray(AnnotationFile(path, tmp_path, blank_images=True).read(0).image).any()


def test_several_frames_are_those_of_the_steps_right_before(tmp_path: Path) -> None:
    plays = [("a", 0), ("a", 1), ("a", 3), ("a", 0), ("b", 1)]
    entries = []
    for number, (game, step) in enumerate(plays):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / f"{number}.png")
        entry = {"image": f"{number}.png", "text_input": "> ", "text_output": "look", "game": game, "step": step}
        entries.append(entry)
    source = AnnotationFile(write(tmp_path / "a.json", *entries), tmp_path, frames=3)
    found = [[np.asarray(image)[0, 0, 0] for image in source.read(n).earlier] for n in range(len(plays))]
    assert found == [[], [0], [1], [], []]
    del entries[1]["step"]
    source = AnnotationFile(write(tmp_path / "b.json", *entries), tmp_path, frames=3)
    with pytest.raises(BadSampleError, match=r"entry 1 has no `step`.*set model.images=1"):
        source.read(1)


def test_missing_and_broken_images(tmp_path: Path) -> None:
    (tmp_path / "b.jpg").write_bytes(b"\xff\xd8\xff not an image")
    Image.new("RGB", (4, 4)).save(tmp_path / "c.bmp")
    huge = bytearray((tmp_path / "c.bmp").read_bytes())
    huge[18:26] = (400_000).to_bytes(4, "little") * 2  # width and height: Pillow takes it for a decompression bomb
    (tmp_path / "c.bmp").write_bytes(huge)
    path = write(tmp_path / "a.json", ENTRY, {**ENTRY, "image": "b.jpg"}, {**ENTRY, "image": "c.bmp"})
    source = AnnotationFile(path, tmp_path)
    with pytest.raises(BadSampleError, match=r"a.json, entry 2: image .*c.bmp cannot be read: .*decompression bomb"):
        source.read(2)
    with pytest.raises(BadSampleError, match=r"a.json, entry 0: no image .*a.png"):
        source.read(0)
    with pytest.raises(BadSampleError, match=r"a.json, entry 1: image .*b.jpg cannot be read"):
        source.read(1)


@pytest.mark.parametrize("text", ['[{"a": 1}, {"b"', '[{"a": 1}', "nonsense", '[{"a": 1} {"b": }]', "1" * 5000])
def test_files_that_are_not_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match="a.json is not a JSON list or JSON lines: at byte"):
        AnnotationFile(tmp_path / "a.json", tmp_path)


@pytest.mark.parametrize("chunk", [7, 1 << 20])
def test_entries_after_the_end_of_the_list_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """`cat a.json b.json` gave the entries of the first file alone."""
    monkeypatch.setattr(annotations, "_CHUNK", chunk)
    path = write(tmp_path / "a.json", ENTRY)
    first = path.read_text() + " \n\t" * 9
    path.write_text(first)
    assert len(AnnotationFile(path, tmp_path)) == 1
    path.write_text(first + json.dumps([ENTRY, ENTRY]))
    with pytest.raises(AnnotationError, match=f"at byte {len(first)}: more follows the end of the list"):
        AnnotationFile(path, tmp_path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no annotation file"):
        AnnotationFile(tmp_path / "a.json", tmp_path)


_OPENS = """
import resource, sys, time
from lavis.datasets import annotations
annotations.cache_folder = lambda: annotations.Path(sys.argv[2])
before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
source = annotations.AnnotationFile(sys.argv[1], ".", blank_images=True)
seconds, after = time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(len(source), source.entry(len(source) - 1)["text_output"], after - before, after, seconds)
"""


@pytest.mark.slow
def test_a_million_entries_are_indexed_once_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    with open(path, "w") as file:
        for number in range(1_000_000):
            head = "[\n" if not number else ",\n"
            file.write(f'{head}{{"image": "{number}.png", "text_input": "> ", "text_output": "go to {number}"}}')
        file.write("\n]\n")
    opened = []
    for _ in range(2):
        command = [sys.executable, "-c", _OPENS, str(path), str(tmp_path / "cache")]
        done = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True, timeout=300, check=True)
        opened.append(done.stdout.split())
    for *_, name, grown, memory, _ in opened:
        assert name == "999999"
        assert (
            int(grown) < 100 << 10 and int(memory) < 1 << 20
        )  # in KiB: 100 MiB for the file, 1 GiB with the libraries
    scanned, known = (float(seconds) for *_, seconds in opened)
    assert known < scanned / 5
