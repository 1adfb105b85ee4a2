"""What cannot be a student is refused in one line, before its weights are read; processors work without torchvision."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

from lavis.common.errors import ConfigError, EmacError, MissingExtraError, MissingFileError
from lavis.common.paths import REPO_ROOT
from lavis.models import HfVlm
from lavis.models.hf_vlm import loading, tiny
from lavis.models.student import Question
from tests.lavis.models.hf_vlm.conftest import frame

pytest.importorskip("peft")
Build = Callable[..., HfVlm]


@pytest.fixture
def copy(folder: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """A copy of a family's folder, without the files in `lacking`."""

    def copied(family: str = "qwen2_5_vl", *lacking: str) -> Path:
        target = tmp_path / "copy"
        shutil.copytree(folder(family), target)
        for name in lacking:
            (target / name).unlink()
        return target

    return copied


def refused(build: Build, path: Path | str, kind: type[EmacError], **options: object) -> str:
    with pytest.raises(kind) as error:
        build(path=str(path), **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_no_folder_and_no_hub_id(build: Build, tmp_path: Path) -> None:
    assert "there is no folder" in refused(build, tmp_path / "nowhere", MissingFileError)
    assert "has no config.json" in refused(build, tmp_path, MissingFileError)
    (tmp_path / "config.json").write_text('{"model_type": "no_such_model"}')
    assert "cannot be read as a model" in refused(build, tmp_path, ConfigError)


def test_a_text_only_model(build: Build, tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    LlamaForCausalLM(LlamaConfig(vocab_size=16, **sizes)).save_pretrained(tmp_path)
    assert "is a llama, which does not read images" in refused(build, tmp_path, ConfigError)


def test_an_encoder_decoder(build: Build, tmp_path: Path) -> None:
    transformers.InstructBlipConfig(text_config={"model_type": "t5"}).save_pretrained(tmp_path)
    assert "encoder-decoder" in refused(build, tmp_path, ConfigError)


def test_a_folder_without_processor_or_tokenizer(build: Build, copy: Callable[..., Path]) -> None:
    path = copy("qwen2_5_vl", "processor_config.json")
    assert "has no processor" in refused(build, path, MissingFileError)
    shutil.rmtree(path)
    path = copy("qwen2_5_vl", "tokenizer.json")
    assert "processor cannot be loaded" in refused(build, path, MissingFileError)


def test_a_chat_template_without_image(build: Build, copy: Callable[..., Path]) -> None:
    path = copy()
    (path / "chat_template.jinja").write_text("{% for m in messages %}{{ m['role'] }}: hello\n{% endfor %}")
    assert "chat template has no place for an image" in refused(build, path, ConfigError)
    (path / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] + 'x' }}{% endfor %}")
    assert "chat template cannot write an image and a text" in refused(build, path, ConfigError)


def test_an_image_token_that_the_tokenizer_lacks(build: Build, copy: Callable[..., Path]) -> None:
    path = copy()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (path / name).read_text().replace("<|image_pad|>", "<|other_pad|>")
        (path / name).write_text(text)
    assert "tokenizer lacks the image token '<|image_pad|>'" in refused(build, path, ConfigError)


def test_an_image_token_with_another_id(build: Build, copy: Callable[..., Path]) -> None:
    path = copy()
    config = json.loads((path / "config.json").read_text())
    config["image_token_id"] -= 1
    (path / "config.json").write_text(json.dumps(config))
    assert "do not belong together" in refused(build, path, ConfigError)


def test_a_model_without_an_image_token(build: Build, copy: Callable[..., Path]) -> None:
    path = copy("blip2")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if not k.startswith("image_token")}))
    assert "names no image token" in refused(build, path, ConfigError)


def test_image_tokens_that_do_not_fit_the_vision_side(build: Build, copy: Callable[..., Path]) -> None:
    path = copy("smolvlm")
    settings = json.loads((path / "processor_config.json").read_text())
    settings["image_seq_len"] = 5
    (path / "processor_config.json").write_text(json.dumps(settings))
    assert "do not match: 4 features of the vision side for 5 tokens" in refused(build, path, ConfigError)


def test_a_processor_that_lacks_a_setting(build: Build, copy: Callable[..., Path]) -> None:
    path = copy("llava")
    settings = json.loads((path / "processor_config.json").read_text())
    del settings["patch_size"]
    (path / "processor_config.json").write_text(json.dumps(settings))
    assert "its processor lacks a setting to read the images" in refused(build, path, ConfigError)


def test_more_images_than_the_model_takes(build: Build, folder: Callable[[str], Path]) -> None:
    text = refused(build, folder("instructblip"), ConfigError, images=2)
    assert "model.images=2: the model's vision side cannot read the images" in text
    # Before, BLIP-2 read the oldest of two frames, and nothing said so.
    text = refused(build, folder("blip2"), ConfigError, images=2)
    assert "as many image tokens as with one image" in text and "set model.images=1" in text


def test_a_processor_that_needs_torchvision(build: Build, copy: Callable[..., Path]) -> None:
    """Before, the advice was to copy files, whatever was missing."""
    if importlib.util.find_spec("torchvision"):
        pytest.skip("torchvision is installed")
    path = copy("llava_next")
    transformers.Mistral3Config().save_pretrained(path)
    settings = json.loads((path / "processor_config.json").read_text())
    settings["processor_class"] = "PixtralProcessor"
    (path / "processor_config.json").write_text(json.dumps(settings))
    text = refused(build, path, MissingExtraError)
    assert "PixtralProcessor requires the Torchvision library" in text and text.endswith("install that library")
    transformers.Lfm2VlConfig(vision_config={"model_type": "siglip2_vision_model"}).save_pretrained(path)
    settings["processor_class"] = "Lfm2VlProcessor"
    settings["image_processor"]["image_processor_type"] = "Lfm2VlImageProcessor"
    (path / "processor_config.json").write_text(json.dumps(settings))
    assert "install torchvision, which some of them need, or copy" in refused(build, path, MissingFileError)


def test_a_model_that_needs_a_library(build: Build, copy: Callable[..., Path]) -> None:
    """FastVLM's encoder is timm's. Before, this was a traceback."""
    if importlib.util.find_spec("timm"):
        pytest.skip("timm is installed")
    path = copy("llava")
    token = json.loads((path / "config.json").read_text())["image_token_index"]
    transformers.FastVlmConfig(image_token_index=token).save_pretrained(path)
    text = refused(build, path, MissingExtraError)
    assert "cannot be built (TimmWrapperModel requires the timm library" in text and text.endswith("that library")


def test_a_folder_names_its_processor(build: Build, copy: Callable[..., Path]) -> None:
    """Before, it was the one of the model's type: Pixtral, a LLaVA, got LLaVA's, and GLM-OCR none."""
    path = copy("glm_ocr")
    assert type(build(path=str(path)).chat.processor).__name__ == "Glm46VProcessor"
    for name in ("processor_config.json", "tokenizer_config.json"):
        settings = json.loads((path / name).read_text())
        (path / name).write_text(json.dumps({**settings, "processor_class": "NoSuchProcessor"}))
    assert "Transformers has no processor for a glm_ocr" in refused(build, path, ConfigError)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma4", "llava_next_video", "llava_onevision"])
def test_a_folder_that_was_saved_where_torchvision_is(family: str, build: Build, copy: Callable[..., Path]) -> None:
    """Before, its video processor's settings ended in "multiple values for argument 'video_processor'"."""
    path = copy(family)
    settings = json.loads((path / "processor_config.json").read_text())
    assert not {"video_processor", "feature_extractor"} & settings.keys()
    settings |= {"video_processor": {"fps": 2}, "feature_extractor": {"sampling_rate": 16000}}
    (path / "processor_config.json").write_text(json.dumps(settings))
    processor = build(path=str(path)).chat.processor
    assert processor.video_processor is None
    # Settings of the processor itself are kept; before, `save_pretrained` left them out.
    _, made = tiny.parts(family)
    for name in ("image_seq_length", "num_image_tokens", "vision_feature_select_strategy", "patch_size"):
        assert getattr(processor, name, None) == getattr(made, name, None)


def test_a_template_may_write_another_token_than_the_images(build: Build, copy: Callable[..., Path]) -> None:
    """Ovis2's `<image>` becomes the tokens that config.json names: before, these files "did not belong together"."""
    path = copy("ovis2")
    chat = build(path=str(path)).chat
    assert chat.image_tokens(chat.read(Question("x", (frame(0),)))) > 0
    config = json.loads((path / "config.json").read_text())
    config["image_token_id"] = 5
    (path / "config.json").write_text(json.dumps(config))
    assert "do not belong together" in refused(build, path, ConfigError)


def test_a_router_of_experts_gets_no_adapter() -> None:
    """Llama 4's router returns two tensors: with an adapter its first step ended in peft's AttributeError."""
    text: dict = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 16}
    text |= {"num_local_experts": 2, "interleave_moe_layer_step": 1}
    with torch.device("meta"):
        model = transformers.Llama4ForConditionalGeneration(transformers.Llama4Config(text_config=text))
    names = {name.rsplit(".", 1)[-1] for name in loading.linear_layers(model, "language")}
    assert "q_proj" in names and "router" not in names
    assert any(name.endswith(".router") for name, _ in model.named_modules())


def test_a_mismatch_that_the_family_does_not_word(build: Build, copy: Callable[..., Path]) -> None:
    """InstructBLIP raises a shape error ("Number of elements of source < number of ones in mask")."""
    path = copy("instructblip")
    settings = json.loads((path / "processor_config.json").read_text())
    settings["num_query_tokens"] = 6
    (path / "processor_config.json").write_text(json.dumps(settings))
    assert "do not match: 4 features of the vision side for 6 tokens" in refused(build, path, ConfigError)


def test_an_error_that_has_nothing_to_do_with_images_is_shown_as_it_is(build: Build, copy: Callable[..., Path]) -> None:
    """Before, any RuntimeError of the forward pass was reported as images that do not match their tokens."""
    path = copy()
    config = json.loads((path / "config.json").read_text())
    config["text_config"]["rope_parameters"]["mrope_section"] = [2, 2, 1]  # 5 of the 4 frequencies there are
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(RuntimeError, match="split_sizes to sum exactly to 4") as raised:
        build(path=str(path))
    assert not isinstance(raised.value, EmacError)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "memory is not enough for one prompt"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), "is not enough"),
        (
            RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'"),
            "model.dtype=float32 cannot be computed in on cpu",
        ),
    ],
)
def test_settings_that_the_machine_cannot_compute(
    error: Exception,
    message: str,
    build: Build,
    folder: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(transformers.Qwen2_5_VLForConditionalGeneration, "forward", failing)
    text = refused(build, folder("qwen2_5_vl"), ConfigError)
    assert message in text and "do not match" not in text


@pytest.mark.parametrize(
    ("gpu", "held", "smaller"), [(False, "float32", ""), (True, "bfloat16", "model.dtype=bfloat16 or ")]
)
def test_too_little_memory(
    build: Build, copy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, gpu: bool, held: str, smaller: str
) -> None:
    """The sizes are those of config.json alone: no weight of a model that does not fit is read.

    On a CPU weights end in float32, also those that are loaded in bfloat16.
    """
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    path = copy("qwen2_5_vl", "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    config["text_config"]["intermediate_size"] = 10**11
    (path / "config.json").write_text(json.dumps(config))
    text = refused(build, path, ConfigError, dtype="bfloat16")
    assert "billion weights" in text and f"GiB as {held};" in text
    assert f"are free: set {smaller}model.quantization=4bit" in text


@pytest.mark.parametrize(("key", "value"), [("num_attention_heads", 0), ("hidden_act", "none"), ("vocab_size", -1)])
def test_a_config_that_makes_no_model(build: Build, copy: Callable[..., Path], key: str, value: object) -> None:
    """Before, Transformers' traceback."""
    path = copy()
    config = json.loads((path / "config.json").read_text())
    config["text_config"][key] = value
    (path / "config.json").write_text(json.dumps(config))
    assert "config.json makes no model (" in refused(build, path, ConfigError)


def test_a_config_with_a_value_of_another_type(build: Build, copy: Callable[..., Path]) -> None:
    """Before, Transformers' traceback, also in a dry run."""
    path = copy()
    config = json.loads((path / "config.json").read_text())
    config["text_config"]["hidden_size"] = "wide"
    (path / "config.json").write_text(json.dumps(config))
    assert "cannot be read as a model (Validation error for field 'hidden_size': TypeError: " in refused(
        build, path, ConfigError
    )


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_settings_file_that_holds_no_object(build: Build, copy: Callable[..., Path], name: str) -> None:
    path = copy()
    (path / name).write_text("null")
    assert f"{name} holds no JSON object" in refused(build, path, ConfigError)


def test_damaged_weights(build: Build, copy: Callable[..., Path]) -> None:
    path = copy()
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[: len(data) // 2])
    text = refused(build, path, ConfigError)
    assert "weights cannot be loaded" in text and "model.safetensors is not a readable weight file" in text
    # Before, these ended in torch's traceback.
    (path / "model.safetensors").unlink()
    for content, says in (
        (b"version https://git-lfs.github.com/spec/v1\n", "run `git lfs pull`"),
        (b"", "it is empty"),
    ):
        (path / "pytorch_model.bin").write_bytes(content)
        assert says in refused(build, path, ConfigError)


@pytest.mark.parametrize("package", ["bitsandbytes", "accelerate"])
def test_quantisation_names_its_extra(
    package: str, build: Build, folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, `pip install bitsandbytes` was advised, which leaves out accelerate."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: {"bitsandbytes": "there", package: None}.get(name, found(name, *more)),
    )
    text = refused(build, folder("qwen2_5_vl"), MissingExtraError, quantization="4bit")
    assert f"model.quantization=4bit needs {package}: pip install -e '.[quantization]'" in text
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    extras = tomllib.loads((REPO_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(line.startswith(package) for line in extras["quantization"])


@pytest.mark.parametrize(("quantization", "layer"), [("8bit", "Linear8bitLt"), ("4bit", "Linear4bit")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_train_on_a_quantised_base(
    quantization: str, layer: str, dtype: str, build: Build, tmp_path: Path, samples: dict
) -> None:
    """Also after the model has acted: bitsandbytes packed 4-bit weights then, in a layout without gradients."""
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("accelerate")
    config, processor = tiny.parts("qwen2_5_vl")
    text, vision = config.text_config, config.vision_config  # 64 wide: bitsandbytes has a scale for 64 weights
    text.hidden_size, text.num_attention_heads, text.num_key_value_heads = 64, 8, 4
    vision.hidden_size, vision.out_hidden_size = 64, 64
    network = transformers.AutoModelForImageTextToText.from_config(config)
    for parameter in network.parameters():
        parameter.data = parameter.data.normal_(std=0.1) if parameter.dim() > 1 else parameter.data
    network.save_pretrained(tmp_path / "vlm")
    tiny.save_processor(processor, tmp_path / "vlm")
    model = build(path=str(tmp_path / "vlm"), quantization=quantization, dtype=dtype)
    assert sum(type(module).__name__ == layer for module in model.base.modules()) > 14
    before, adapters = model.frozen_hash(), {n: v.clone() for n, v in model.trainable_state_dict().items()}
    model.generate(samples, num_beams=1, max_length=4)
    model.set_reference()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for objective in ["bc"] * 4 + ["dpo"] * 2:
        loss = model.train().losses(samples, objective).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[3] < losses[0] and losses[5] < losses[4]
    assert all(not torch.equal(value, adapters[name]) for name, value in model.trainable_state_dict().items())
    assert model.frozen_hash() == before
    model.save_adapter(tmp_path / "adapter")
    again = build(path=str(tmp_path / "vlm"), quantization=quantization, dtype=dtype, pretrained=tmp_path / "adapter")
    assert again.generate(samples, num_beams=2, max_length=4) == model.eval().generate(
        samples, num_beams=2, max_length=4
    )
    with pytest.raises(ConfigError, match="policy.replica_devices: a model with model.quantization"):
        model.replica(torch.device("cpu"))


@pytest.mark.parametrize("family", ["qwen2_5_vl", "smolvlm"])
def test_a_processor_without_videos_reads_images_as_the_whole_one(
    family: str, folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole one is built from the same parts; its video processor, which needs torchvision, is left empty."""
    path = str(folder(family))
    config = loading.load_config(path)
    ours = loading.load_processor(path, config)
    module = transformers.models.smolvlm.processing_smolvlm
    monkeypatch.setattr(module, "num2words", object())
    whole = transformers.SmolVLMProcessor if family == "smolvlm" else transformers.Qwen2_5_VLProcessor
    monkeypatch.setattr(whole, "check_argument_for_proper_class", lambda *_: None)
    more = {"image_seq_len": ours.image_seq_len} if family == "smolvlm" else {}
    theirs = whole(ours.image_processor, ours.tokenizer, None, **more)
    given = {"text": [f"a {ours.image_token} b"], "images": [[frame(0)]], "return_tensors": "pt"}
    one, other = ours(**given), theirs(**given)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_parts_of_a_model(build: Build) -> None:
    model = build("llava").base
    assert loading.part_of(model, "model.vision_tower.x") == "vision"
    assert loading.part_of(model, "model.multi_modal_projector.linear_1.weight") == "vision"
    assert loading.part_of(model, "model.language_model.layers.0.x") == "language"
    assert loading.part_of(model, "lm_head.weight") == "language"
    assert not any("lm_head" in name for name in loading.linear_layers(model, "language"))


def test_free_memory_is_what_linux_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:  7 kB\n")
    monkeypatch.setattr(loading, "MEMINFO", tmp_path / "meminfo")
    assert loading.free_memory() == 7 * 1024
    monkeypatch.setattr(loading, "MEMINFO", tmp_path / "nothing")
    assert loading.free_memory() is None
