"""The `model:` section: keys, types and values that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lavis.common.config import load_yaml, plain
from lavis.common.errors import ConfigError, EmacError
from lavis.models import load_model
from lavis.models.base_model import LIBRARY_ROOT
from lavis.models.blip2_models import blip2, weights
from lavis.models.blip2_models.blip2_emac import Blip2Emac
from lavis.models.blip2_models.emac_config import CONFIG_DEFAULTS, PARTS, check_files, model_section
from lavis.models.sources import part_sources
from tests.tiny_checkpoints import write_llama

Build = Callable[..., Blip2Emac]


class TestRefused:
    @pytest.mark.parametrize(
        ("key", "value", "wanted"),
        [
            ("max_txt_len", "abc", "a whole number"),
            ("max_txt_len", -5, "a number of at least 1"),
            ("max_output_txt_len", 1, "a number of at least 2"),
            ("init_seed", 2**64, "a number from 0 to 4294967295"),
            ("lora_dropout", "x", "a number"),
            ("freeze_vit", "perhaps", "true or false"),
            ("freeze_ln_vision", 3, "true or false"),
            ("vit_config", "large", "a section"),
            ("lora_targets", "q_proj", "a list"),
            ("pretrained", 7, "text"),
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
            ValueError,
            match="unknown model type .huge.: choose one of demo, smollm2_135m, student, student_looks",
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
            "llm_expects",  # refuses other files, changes nothing
        }


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small files in the originals' formats: `llm/`, base.pth and eva.pth, which fit together."""
    folder = tmp_path_factory.mktemp("three")
    llm = write_llama(folder / "llm")
    section = {**model_section("tiny"), "llm_config": {}, "llm_model": str(llm)}
    state = Blip2Emac.from_config(section).policy_state_dict()
    lavis = weights.to_lavis({k: v.clone() for k, v in state.items() if not k.startswith("llm_model.")})
    torch.save({"model": {k: v for k, v in lavis.items() if not k.startswith("visual_")}}, folder / "base.pth")
    eva = {k.removeprefix("visual_encoder."): v.half() for k, v in lavis.items() if k.startswith("visual_")}
    torch.save(eva, folder / "eva.pth")
    return folder


def section_of(three: Path, **changes: object) -> dict[str, object]:
    """The `model:` section of those files."""
    files = {"llm_model": str(three / "llm"), "base_model": str(three / "base.pth"), "load_basemodel": True}
    frozen = {"freeze_vit": True, "freeze_qformer": True, "freeze_llm": True}
    files["vit_weights"] = str(three / "eva.pth")
    return {**model_section("tiny"), "llm_config": {}, **files, **frozen, **changes}


def said_of(section: dict[str, object]) -> str:
    """The one line that is said of a `model:` section that cannot be used."""
    with pytest.raises(EmacError) as caught:
        Blip2Emac.from_config(section)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestFiles:
    """Bad input is one line before anything is built: it names the key, the file and what to do."""

    @pytest.fixture
    def refused(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, object]], str]:
        """`said_of`; the test fails where anything is built before."""
        monkeypatch.setattr(blip2, "parts", lambda options: pytest.fail("built"))
        return said_of

    def test_a_language_model_of_another_size(self, refused: Callable, three: Path, tmp_path: Path) -> None:
        wider = write_llama(tmp_path / "wider", hidden_size=256, intermediate_size=64)
        for key in ("base_model", "pretrained"):
            others = {} if key == "base_model" else {"load_basemodel": False, "pretrained": str(three / "base.pth")}
            said = refused(section_of(three, llm_model=str(wider), **others))
            assert said.startswith(f"model.{key}: {three / 'base.pth'} projects to a language model of width 128, ")
            assert (
                f"model.llm_model={wider} has 256 (Vicuna-7B 4096, 13B 5120): name files that belong together" in said
            )

    def test_a_vision_side_without_its_projection(self, three: Path, tmp_path: Path) -> None:
        wider = write_llama(tmp_path / "wider", hidden_size=256, intermediate_size=64)
        section = section_of(three, llm_model=str(wider))
        assert said_of(section).endswith("or set model.load_proj_layer=False: a new projection trains")
        model = Blip2Emac.from_config({**section, "load_proj_layer": False})
        base = weights.to_native(weights.read_state(three / "base.pth"))
        assert torch.equal(model.state_dict()["query_tokens"], base["query_tokens"])
        assert model.llm_proj.out_features == 256 and "llm_proj" not in model.sources
        model.require_sources()
        frozen = Blip2Emac.from_config({**section, "load_proj_layer": False, "freeze_proj_layer": True})
        with pytest.raises(ConfigError, match="no file brought the weights of llm_proj"):
            frozen.require_sources()
        parts = {part.part: part for part in part_sources({**section, "load_proj_layer": False})}
        assert (parts["llm_proj"].state, parts["Qformer"].state) == ("random", "found")

    def test_a_vicuna_of_another_version(self, refused: Callable, three: Path) -> None:
        said = refused(section_of(three, llm_expects={"max_position_embeddings": 4096}))
        assert "has max_position_embeddings 2048, model.llm_expects says 4096: base_model was trained with" in said
        assert said.endswith("or set model.llm_expects={}")

    def test_its_advice_helps(self, three: Path) -> None:
        """`model.llm_expects={}` as every program lays it over the type's keys."""
        frozen = {"freeze_vit": True, "freeze_qformer": True, "allow_random": list(PARTS)}
        options = {**model_section("tiny"), **frozen, "llm_config": {}, "llm_model": str(three / "llm")}
        small = {key: options[key] for key in options if key.startswith(("vit_", "qformer_", "img_", "num_"))}
        files = {key: options[key] for key in ("llm_model", *frozen)} | {"load_basemodel": False, "vit_weights": ""}
        model = load_model("blip2_emac", "vicuna7b", options={**small, **files, "llm_expects": {}})
        assert model.llm_model.config.hidden_size == 128

    def test_a_folder_is_built_and_not_the_types_own_sizes(self, three: Path) -> None:
        options = {"llm_model": str(three / "llm"), "load_basemodel": False, "allow_random": list(PARTS)}
        model = load_model("blip2_emac", "demo", options=options)
        assert model.llm_model.config.hidden_size == 128 and model.sources["llm_model"] == options["llm_model"]

    def test_sizes_that_contradict_the_folder(self, refused: Callable, three: Path) -> None:
        said = refused({**model_section("demo"), "llm_model": str(three / "llm")})
        assert said.startswith(
            f"model.llm_config: hidden_size 192 describes another language model than model.llm_model={three}"
        )
        assert "(hidden_size 128): set model.llm_config={} model.llm_weights=''" in said

    def test_vicuna_presets_expect_version_one(self, refused: Callable, three: Path) -> None:
        for size, width in (("7b", 4096), ("13b", 5120)):
            said = refused({**model_section(f"vicuna{size}"), "llm_model": str(three / "llm")})
            assert f"model.llm_model: {three / 'llm'} has hidden_size 128, model.llm_expects says {width}" in said
            config = {"hidden_size": width, "max_position_embeddings": 4096}
            llm = three / f"v1.5-{size}"
            llm.mkdir(exist_ok=True)
            (llm / "config.json").write_text(json.dumps(config))
            said = refused({**model_section(f"vicuna{size}"), "llm_model": str(llm)})
            assert "max_position_embeddings 4096, model.llm_expects says 2048" in said and "v1.5 is Llama 2" in said

    def test_a_vicuna_without_its_sentencepiece_tokenizer(self, refused: Callable, three: Path) -> None:
        said = refused(section_of(three, llm_expects={"hidden_size": 128}))
        assert said.startswith(f"model.llm_tokenizer: {three / 'llm'} has no tokenizer.model: copy it from Vicuna")

    @pytest.mark.parametrize("key", ["base_model", "vit_weights", "pretrained", "ref_pretrained"])
    def test_a_download_that_is_cut_off(self, refused: Callable, three: Path, tmp_path: Path, key: str) -> None:
        whole = (three / ("eva.pth" if key == "vit_weights" else "base.pth")).read_bytes()
        cut = tmp_path / "cut.pth"
        cut.write_bytes(whole[: len(whole) * 2 // 3])
        said = refused(section_of(three, **{key: str(cut)}))
        assert said.startswith(f"model.{key}: {cut} is not a readable weight file: ")
        assert said.endswith("it is cut off or of another kind: download or copy it again")

    @pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
    def test_a_language_model_that_is_cut_off(self, refused: Callable, three: Path, tmp_path: Path, name: str) -> None:
        llm = write_llama(tmp_path / "llm")
        whole = (llm / name).read_bytes()
        (llm / name).write_bytes(whole[: len(whole) // 2])
        said = refused(section_of(three, llm_model=str(llm)))
        assert said.startswith("model.llm_model: ") and str(llm / name) in said and "copy it again" in said
        (llm / "config.json").write_text("[]")
        said = refused(section_of(three, llm_model=str(llm)))
        assert said.startswith(f"model.llm_model: {llm / 'config.json'} cannot be read (it holds no JSON object)")

    def test_a_folder_without_config_or_weights(self, refused: Callable, three: Path, tmp_path: Path) -> None:
        llm = write_llama(tmp_path / "llm")
        (llm / "model.safetensors").unlink()
        assert f"model.llm_model: no weight file in {llm}" in refused(section_of(three, llm_model=str(llm)))
        (llm / "config.json").unlink()
        said = refused(section_of(three, llm_model=str(llm)))
        assert said.startswith(f"model.llm_model: {llm / 'config.json'} is not there: name the folder with config, wei")

    def test_a_folder_that_is_not_there_is_told_before_anything_is_downloaded(self, refused: Callable) -> None:
        said = refused({**model_section("vicuna7b"), "llm_model": "/nowhere/vicuna"})
        assert said == "model.llm_model: there is no folder /nowhere/vicuna, and it is no hub id (owner/name)"

    def test_a_file_of_another_part(self, refused: Callable, three: Path) -> None:
        base, eva = str(three / "base.pth"), str(three / "eva.pth")
        said = refused(section_of(three, base_model=eva))
        assert f"model.base_model: {eva} has no Q-Former or projection, which this key should" in said
        assert said.endswith("it holds visual_encoder")
        said = refused(section_of(three, vit_weights=base))
        assert said.startswith(f"model.vit_weights: {base} has no vision encoder, which this key should bring")
        said = refused(section_of(three, base_model=str(three / "llm")))
        assert said.endswith("it holds none of the model's parts")

    def test_a_missing_vision_file_names_its_address(self, three: Path) -> None:
        missing = str(three / "nowhere.pth")
        section = {**model_section("vicuna7b"), **section_of(three, vit_weights=missing, model_type="vicuna7b")}
        with pytest.raises(FileNotFoundError) as caught:
            check_files({**CONFIG_DEFAULTS, **section, "llm_expects": {}})
        hint = f"leave model.vit_weights out, and {URL}/BLIP2/eva_vit_g.pth is downloaded once"
        assert str(caught.value) == f"model.vit_weights: no weight file {missing}; {hint}"

    def test_three_files_that_fit_make_the_model(self, three: Path) -> None:
        model = Blip2Emac.from_config(section_of(three))
        model.require_sources()
        assert set(model.sources) == set(PARTS)

    def test_a_language_model_that_lacks_weights(self, three: Path, tmp_path: Path) -> None:
        llm = write_llama(tmp_path / "llm")
        state = load_file(llm / "model.safetensors")
        del state["model.layers.1.mlp.up_proj.weight"]
        save_file(state, llm / "model.safetensors", {"format": "pt"})
        said = said_of(section_of(three, llm_model=str(llm)))
        assert f"model.llm_model: the files of {llm} lack 1 weights that its config.json asks for (model.la" in said

    def test_a_tokenizer_of_another_language_model(self, three: Path, tmp_path: Path) -> None:
        llm = write_llama(tmp_path / "llm", vocab_size=300)
        said = said_of(section_of(three, llm_model=str(llm)))
        assert said.endswith(f" tokens, the language model {llm} knows 300: take the tokenizer that belongs to it")

    @pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model"])
    def test_a_damaged_tokenizer(self, three: Path, tmp_path: Path, name: str) -> None:
        llm = write_llama(tmp_path / "llm")
        (llm / name).write_bytes((llm / "tokenizer.json").read_bytes()[:999])
        said = said_of(section_of(three, llm_model=str(llm)))
        assert said.startswith(f"model.llm_model: the tokenizer in '{llm}' cannot be read (")
