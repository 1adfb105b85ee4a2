"""The `model:` section: keys, types and values that are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lavis.models import load_model
from lavis.models.blip2_models.blip2_emac import Blip2Emac

Build = Callable[..., Blip2Emac]


class TestRefused:
    @pytest.mark.parametrize(
        ("key", "value", "wanted"),
        [
            ("max_txt_len", "abc", "a whole number of at least 1"),
            ("max_txt_len", -5, "a whole number of at least 1"),
            ("lora_dropout", "x", "a number of at least 0"),
            ("freeze_vit", "perhaps", "true or false"),
            ("freeze_ln_vision", 3, "true or false"),
            ("vit_config", "large", "a section"),
            ("lora_targets", "q_proj", "a list"),
            ("pretrained", 7, "a text"),
        ],
    )
    def test_a_value_of_another_type_is_refused(self, key: str, value: object, wanted: str) -> None:
        with pytest.raises(ValueError, match=f"model.{key}: {value!r} is not {wanted}"):
            load_model("blip2_emac", "tiny", options={key: value})

    def test_unknown_key_names_the_nearest(self) -> None:
        with pytest.raises(ValueError, match="unknown key 'model.frezze_vit': did you mean 'model.freeze_vit'"):
            load_model("blip2_emac", "tiny", options={"frezze_vit": True})

    def test_unknown_type_lists_what_exists(self) -> None:
        with pytest.raises(ValueError, match="unknown model type 'tiny2': did you mean 'tiny'"):
            load_model("blip2_emac", "tiny2")
        with pytest.raises(
            ValueError, match="unknown model type 'huge': choose one of demo, tiny, vicuna13b, vicuna7b"
        ):
            load_model("blip2_emac", "huge")

    def test_missing_base_weights(self) -> None:
        with pytest.raises(ValueError, match="model.base_model is empty"):
            load_model("blip2_emac", "vicuna7b")
