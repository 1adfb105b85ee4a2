"""The errors that a user can fix, and the words in them."""

from __future__ import annotations

import pytest

from lavis.common.errors import (
    ConfigError,
    EmacError,
    FileError,
    MissingExtraError,
    MissingFileError,
    first_sentence,
    unknown,
)


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


def test_first_sentence() -> None:
    assert first_sentence(RuntimeError("\nfile is cut off. Try weights_only=False\nmore")) == "file is cut off"
    assert first_sentence(EOFError()) == "EOFError: it is empty or cut off"


def test_unknown_suggests_the_nearest_name_or_lists_all() -> None:
    names = ["run.seed", "run.num_rounds"]
    assert unknown("key", "run.sed", names) == "unknown key 'run.sed': did you mean 'run.seed'?"
    assert unknown("task", "x", ["captioning", "action"]) == "unknown task 'x': choose one of action, captioning"
    assert unknown("task", "x", []) == "unknown task 'x': choose one of none"
