"""The `model:` section: keys, types and values that are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lavis.common.config import load_yaml, plain
from lavis.models import load_model
from lavis.models.base_model import LIBRARY_ROOT
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
            load_model("blip2_emac", "vicuna7b", options={"base_model": ""})

    def test_a_part_that_does_not_exist_is_refused(self) -> None:
        with pytest.raises(ValueError, match="part in model.allow_random: 'vision_encoder': did you mean 'visual_enc"):
            load_model("blip2_emac", "tiny", options={"allow_random": ["vision_encoder"]})


URL = "https://storage.googleapis.com/sfr-vision-language-research/LAVIS/models"
# The original's published lavis/configs/models/blip2/blip2_emma.yaml, every key. Of the 7B model; there is no 13B file.
ORIGINAL = {
    "model": {
        "arch": "blip2_emma",
        "model_type": "vicuna7b",
        "load_basemodel": True,
        "load_finetuned": False,
        "load_pretrained": True,
        "base_model": f"{URL}/InstructBLIP/instruct_blip_vicuna7b_trimmed.pth",
        "ref_pretrained": "its author's own checkpoint",
        "pretrained": "its author's own checkpoint",
        "low_memory": True,
        "freeze_vit": True,
        "image_size": 224,
        "drop_path_rate": 0,
        "use_grad_checkpoint": False,
        "vit_precision": "fp16",
        "num_query_token": 32,
        "qformer_text_input": False,
        "adaptor_tuning": False,
        "freeze_qformer": True,
        "freeze_proj_layer": False,
        "llm_model": "its author's own folder of vicuna-7b-v1.1",
        "max_txt_len": 1024,
        "max_output_txt_len": 128,
        "avg_log_probs": True,
        "mix_ratio": 0.5,
        "apply_lemmatizer": False,
    },
    "preprocess": {
        "vis_processor": {
            "train": {"name": "blip2_image_train", "image_size": 224},
            "eval": {"name": "blip_image_eval", "image_size": 224},
        },
        "text_processor": {
            phase: {"name": "blip_alfworld", "prompt": "", "max_words": 1024} for phase in ("train", "eval")
        },
    },
}
# What differs; docs/model.md gives the reason of each. None: the preset has no such key.
DIFFERENT = {
    "arch": "blip2_emac",
    "load_finetuned": None,
    "ref_pretrained": "",
    "pretrained": "",
    "image_size": None,
    "drop_path_rate": None,
    "use_grad_checkpoint": None,
    "vit_precision": "float16",
    "llm_model": "lmsys/vicuna-7b-v1.1",
    "apply_lemmatizer": None,
}


class TestPresets:
    """`vicuna7b` and `vicuna13b` carry the original's published values."""

    @pytest.mark.parametrize("size", ["7b", "13b"])
    def test_every_value_is_the_originals_or_listed(self, size: str) -> None:
        preset = load_yaml(Blip2Emac.default_config_path(f"vicuna{size}"))
        section = plain(preset.model)
        for key, value in (ORIGINAL["model"] | DIFFERENT).items():
            want = value.replace("7b", size) if isinstance(value, str) else value
            assert section.get(key) == want, key
        assert plain(preset.preprocess) == ORIGINAL["preprocess"]
        assert section["img_size"] == ORIGINAL["model"]["image_size"]
        assert section["vit_weights"] == f"{URL}/BLIP2/eva_vit_g.pth"  # the URL in LAVIS's own code

    def test_every_difference_is_explained(self) -> None:
        page = (LIBRARY_ROOT.parent / "docs" / "model.md").read_text(encoding="utf-8")
        assert [key for key in DIFFERENT if f"`{key}`" not in page] == []

    def test_keys_that_the_original_lacks_change_nothing_of_it(self) -> None:
        ours = plain(load_yaml(Blip2Emac.default_config_path("vicuna7b")).model).keys() - ORIGINAL["model"].keys()
        assert ours == {
            *("img_size", "vit_model", "prompt"),  # under this name in the original's code, with this default
            *("vit_weights", "llm_dtype", "freeze_llm", "amp"),  # fixed in the original's code, at these values
            *("lora_rank", "lora_alpha", "lora_dropout", "lora_targets"),  # rank 0: off
            "cut_prompts",  # listed
        }
