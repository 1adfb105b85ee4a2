"""Keys of the `model:` section that cannot be used are refused by name."""

from __future__ import annotations

import pytest

from lavis.common.errors import ConfigError
from lavis.models.hf_vlm.options import CONFIG_DEFAULTS, amp_of, checked_options


def test_defaults_are_filled_in() -> None:
    assert checked_options({"path": "a/b"}) == {**CONFIG_DEFAULTS, "path": "a/b"}


@pytest.mark.parametrize(
    ("given", "amp"),
    [
        ({}, ""),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float16"}, "float16"),
        ({"dtype": "float16", "amp": "float32"}, "float32"),
        ({"amp": "bfloat16"}, "bfloat16"),
    ],
)
def test_mixed_precision_follows_the_weights(given: dict, amp: str) -> None:
    assert amp_of(checked_options({"path": "x", **given})) == amp


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "model.path is empty"),
        ({"path": "x", "lora_rnak": 1}, "did you mean 'model.lora_rank'"),
        ({"path": "x", "images": 0}, "model.images: 0 is not a number of at least 1"),
        (
            {"path": "x", "init_seed": 2**64},
            "model.init_seed: 18446744073709551616 is not a number from 0 to 4294967295",
        ),
        ({"path": "x", "dtype": "int8"}, "model.dtype: 'int8' is not one of float32, bfloat16, float16"),
        ({"path": "x", "quantization": "3bit"}, "one of none, 8bit, 4bit"),
        ({"path": "x", "freeze": ["eyes"]}, "a list of vision, language"),
        ({"path": "x", "freeze": "vision"}, r"in brackets, \[vision\]"),
        ({"path": "x", "lora_targets": "q_proj"}, "all-linear, or a list of names"),
        ({"path": "x", "lora_targets": [1]}, "all-linear, or a list of names"),
        ({"path": "x", "low_memory": "yes"}, "true or false"),
        ({"path": "x", "quantization": "4bit", "lora_rank": 0}, "quantised weights do not train"),
        ({"path": "x", "lora_rank": 0, "freeze": ["vision", "language"]}, "nothing would train"),
    ],
)
def test_what_cannot_be_used(given: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked_options(given)
