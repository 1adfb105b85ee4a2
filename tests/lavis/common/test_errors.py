"""The errors that a user can fix, and the words in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch._utils import ExceptionWrapper

from lavis.common.errors import (
    ConfigError,
    EmacError,
    FileError,
    MissingExtraError,
    MissingFileError,
    described,
    first_sentence,
    unknown,
    why_unreadable,
)
from lavis.datasets.records import BadSampleError


@pytest.mark.parametrize(
    ("kind", "built_in"),
    [
        (ConfigError, ValueError),
        (MissingFileError, FileNotFoundError),
        (FileError, OSError),
        (MissingExtraError, ImportError),
    ],
)
def test_each_is_an_emac_error_and_the_built_in_one(kind: type[Exception], built_in: type[Exception]) -> None:
    for caught in (EmacError, built_in):
        with pytest.raises(caught, match="^run.seed: 'x' is no number$"):
            raise kind("run.seed: 'x' is no number")


def test_the_text_is_printed_without_quotes() -> None:
    class Lookup(EmacError, KeyError):
        pass

    assert str(Lookup("no such name")) == "no such name"
    assert str(EmacError()) == "EmacError"


def test_from_a_loaders_worker_process_the_text_arrives_without_a_traceback() -> None:
    for kind in (ConfigError, FileError, BadSampleError):
        try:
            raise kind("a.png, entry 3: it is cut off") from ValueError("bytes")
        except EmacError:
            wrapped = ExceptionWrapper(where="in DataLoader worker process 0")
        with pytest.raises(kind) as caught:
            wrapped.reraise()
        assert "Traceback" in caught.value.args[0] and str(caught.value) == "a.png, entry 3: it is cut off"


def test_first_sentence() -> None:
    assert first_sentence(RuntimeError("\nfile is cut off. Try weights_only=False\nmore")) == "file is cut off"
    assert first_sentence(EOFError()) == "EOFError: it is empty or cut off"


def test_described_names_the_type_and_is_short() -> None:
    assert described(KeyError("x")) == "KeyError: 'x'"
    assert described(ValueError("a" * 1000)) == "ValueError: " + "a" * 488


def test_unknown_suggests_the_nearest_name_or_lists_all() -> None:
    names = ["run.seed", "run.num_rounds"]
    assert unknown("key", "run.sed", names) == "unknown key 'run.sed': did you mean 'run.seed'?"
    assert (
        unknown("task", "x", ["captioning", "action", "action"]) == "unknown task 'x': choose one of action, captioning"
    )
    assert unknown("task", "x", []) == "unknown task 'x': choose one of none"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty: download or copy it again"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "it is Git LFS's note of the file, not the file"),
        (b"<!DOCTYPE html><html>404</html>", "it is a web page: download the file itself"),
        ("# Lies mich: öäü\n".encode() * 40, "it is a text: name a file of weights (.safetensors, .pth, .pt or .bin)"),
        (b"PK\x03\x04\x00\x00 and so on", "bad archive; it is cut off or of another kind: download or copy it again"),
    ],
)
def test_a_file_that_is_no_weights_is_told_by_its_first_bytes(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "weights.pth").write_bytes(content)
    assert why_unreadable(tmp_path / "weights.pth", ValueError("bad archive. Re-running with …")).startswith(reason)
