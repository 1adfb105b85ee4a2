"""Config, processor and weights of a vision-language model's folder or hub id.

What cannot be a student is refused before its weights are read: a model that reads no images, a folder without
processor, a model that is larger than the memory.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from PIL import Image
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    BitsAndBytesConfig,
    Idefics3Processor,
    PretrainedConfig,
    PreTrainedModel,
    ProcessorMixin,
    SmolVLMProcessor,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING, processor_class_from_name
from transformers.utils import cached_file

from lavis.common.errors import ConfigError, EmacError, MissingExtraError, MissingFileError, described, first_sentence
from lavis.models.blip2_models import weights
from lavis.models.download import is_hub_id

MEMINFO = Path("/proc/meminfo")
_NO_IMAGES = ("video_processor", "feature_extractor")  # parts of processors for videos and for sounds
_BYTES = {"none": 1.0, "8bit": 0.25, "4bit": 0.125}  # of a float32 weight, once quantised


def load_config(path: str, *, download: bool = True) -> PretrainedConfig:
    """The model's config; ConfigError if it is none of a model that reads images and writes text.

    Without `download` a hub id must be in the hub's cache on this machine; else ConfigError, too.
    """
    folder = Path(path)
    if not folder.is_dir() and not is_hub_id(path):
        raise MissingFileError(f"model.path: there is no folder {path}, and it is no hub id (owner/name)")
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise MissingFileError(f"model.path: {path} has no config.json: name the folder that save_pretrained wrote")
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=not download)
    except (OSError, ValueError, KeyError, TypeError, StrictDataclassError) as error:
        if not download and not folder.is_dir():
            raise _not_here(path) from error
        reason = weights.why_unloadable(path, error) if isinstance(error, TypeError) else first_sentence(error)
        raise ConfigError(f"model.path: {path} cannot be read as a model ({reason})") from error
    if type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        raise ConfigError(
            f"model.path: {path} is a {config.model_type}, which does not read images: name a vision-language model "
            "(AutoModelForImageTextToText)"
        )
    if config.get_text_config().is_encoder_decoder or config.is_encoder_decoder:
        raise ConfigError(
            f"model.path: {path} has an encoder-decoder as language model, whose answers do not follow the prompt in "
            "one text: name a model with a decoder alone"
        )
    return config


def load_processor(path: str, config: PretrainedConfig, *, download: bool = True) -> ProcessorMixin:
    """The model's processor, without its processor of videos, which would need torchvision.

    MissingFileError if the folder has none, MissingExtraError if it needs a library that is not installed. ConfigError
    if it has no token that stands for an image, and without `download` also if a hub id's processor is not in the hub's
    cache on this machine.
    """
    if Path(path).is_dir() and not any(
        (Path(path) / name).is_file() for name in ("processor_config.json", "preprocessor_config.json")
    ):
        raise MissingFileError(
            f"model.path: {path} has no processor (processor_config.json or preprocessor_config.json): copy it from "
            "the model's page, or write it with processor.save_pretrained"
        )
    kind: Any = _processor_class(path, config, download=download)
    # `AutoProcessor` would fall back to a tokenizer alone for such a model.
    if kind is None:
        raise ConfigError(f"model.path: Transformers has no processor for a {config.model_type}")
    try:
        processor = without_videos(kind).from_pretrained(path, trust_remote_code=False, local_files_only=not download)
    except EmacError:
        raise
    except (OSError, ValueError, KeyError, TypeError, ImportError, AttributeError) as error:
        if not download and not Path(path).is_dir():
            raise _not_here(path) from error
        cannot = f"model.path: {path}'s processor cannot be loaded ({first_sentence(error)})"
        # Some families have processors of torchvision alone. Transformers says so of a processor, not of its part for
        # images: of that it says that there is no class.
        if isinstance(error, ImportError):
            raise MissingExtraError(f"{cannot}: install that library") from error
        copying = "copy all files of the model's page that are no weights"
        if "image processor class" in str(error) and importlib.util.find_spec("torchvision") is None:
            copying = f"install torchvision, which some of them need, or {copying}"
        raise MissingFileError(f"{cannot}: {copying}") from error
    token, number = image_token(processor), image_token_id(config)
    if number < 0:  # GIT puts the features before the text, for example
        raise ConfigError(
            f"model.path: {path}'s config.json names no image token (image_token_id), in whose places an image's "
            f"features go: a {config.model_type} without one is not supported"
        )
    # The model puts an image's features in the places of this token. If tokenizer and config mean different ones, it
    # finds none or too many.
    known = processor.tokenizer.convert_tokens_to_ids(token)
    if (
        known is None
        or known == processor.tokenizer.unk_token_id
        or len(processor.tokenizer.encode(token, add_special_tokens=False)) != 1
    ):
        raise ConfigError(
            f"model.path: {path}'s tokenizer lacks the image token {token!r}: copy its tokenizer files anew"
        )
    # Aya Vision's, Llama 4's and Ovis2's processors put other tokens in the place of the one that the template writes.
    if known != number and number not in _written_for(processor, token):
        raise ConfigError(
            f"model.path: {path}'s image token {token!r} is {known} for the tokenizer, {number} for config.json: these "
            "files do not belong together"
        )
    return processor


def _processor_class(path: str, config: PretrainedConfig, *, download: bool) -> Any:
    """The class that the folder's files name, as for `AutoProcessor`, else Transformers' own for the model, or None.

    The model's type is not enough: Pixtral is a LLaVA with a processor of its own.
    """
    for file in ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json"):
        # None for a file that is not there, and if the hub cannot be reached: that is for `from_pretrained` to say.
        found = cached_file(
            path,
            file,
            local_files_only=not download,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        try:
            named = json.loads(Path(found).read_text(encoding="utf-8")).get("processor_class") if found else None
        except (OSError, ValueError, AttributeError):
            continue
        if isinstance(named, str) and (kind := processor_class_from_name(named)) is not None:
            return kind
    return PROCESSOR_MAPPING.get(type(config), None)


def _written_for(processor: Any, token: str) -> list[int]:
    """The token ids that the processor writes for an image whose place in a text is `token`; none if it cannot."""
    try:
        made = processor(text=[token], images=[[Image.new("RGB", (64, 64))]], return_tensors="pt")
    except (ValueError, RuntimeError, IndexError, KeyError, TypeError):
        return []
    return [int(number) for number in made["input_ids"].flatten()]


def _not_here(path: str) -> ConfigError:
    """What to say of a hub id whose small files would have to be downloaded first."""
    return ConfigError(
        f"model.path: config and processor of {path} are not on this machine, and a prediction downloads nothing: get "
        f"them with `hf download {path} --exclude '*.safetensors' '*.bin' '*.pth'`"
    )


def without_videos(kind: type[ProcessorMixin]) -> type[ProcessorMixin]:
    """The processor class `kind` as one of images and texts alone.

    Qwen's and SmolVLM's processors load a video processor, too, which Transformers has for torchvision alone, and
    Gemma 4's one of sounds. Nothing of an image's way goes through these: a processor's parts are those that
    `get_attributes` names.
    """
    if kind is SmolVLMProcessor:
        kind = Idefics3Processor  # it reads images in the same way, and does not ask for num2words, which names times
    parts = kind.get_attributes()
    names = [name for name in parts if name not in _NO_IMAGES]
    absent = [name for name in parts if name in _NO_IMAGES]
    if not absent:
        return kind

    class Kept(ProcessorMixin):
        """Stands between `kind` and its base class: takes all parts in their order, and hands on those that stay."""

        def __init__(self, *given: Any, **more: Any) -> None:
            everything = {**dict(zip(parts, given, strict=False)), **more}
            super().__init__(**{name: part for name, part in everything.items() if name not in absent})

    class ImagesAndTexts(kind, Kept):  # type: ignore[valid-type, misc]
        """The processor without its video processor."""

        def __init__(self, *given: Any, **settings: Any) -> None:
            super().__init__(**dict(zip(names, given, strict=False)), **dict.fromkeys(absent), **settings)

        @classmethod
        def get_attributes(cls) -> list[str]:
            """The names of the parts."""
            return names

        @classmethod
        def validate_init_kwargs(cls, processor_config: dict, valid_kwargs: Any) -> Any:
            """Which settings the original class takes (this one's signature does not say)."""
            # Names of the original's arguments without `self`; Transformers would read them off this class's
            # `__init__`. A folder that was saved where torchvision is has the settings of the absent parts, too.
            arguments = kind.__init__.__code__
            known = set(arguments.co_varnames[1 : arguments.co_argcount]) - set(absent)
            return super().validate_init_kwargs(processor_config, known)

    # `save_pretrained` writes the settings that the signature names.
    functools.update_wrapper(ImagesAndTexts.__init__, kind.__init__)
    for name in absent:
        setattr(ImagesAndTexts, name, None)
    # `save_pretrained` writes the class's name, by which the folder is loaded again.
    ImagesAndTexts.__name__ = kind.__name__
    return ImagesAndTexts


def image_token(processor: Any) -> str:
    """The text of one image token. Gemma's processor has an image's first mark under this name, its tokenizer not."""
    owners = (processor.tokenizer, processor)
    return str(next((token for owner in owners if (token := getattr(owner, "image_token", None))), "<image>"))


def image_token_id(config: Any) -> int:
    """The id of the tokens whose embeddings are the image's features; -1 if the config names none."""
    # Families name it in one of two ways: Qwen's and Idefics's configs in the first, Gemma 3's in the second.
    for name in ("image_token_id", "image_token_index"):
        if getattr(config, name, None) is not None:
            return int(getattr(config, name))
    return -1


def load_model(
    path: str, config: PretrainedConfig, options: Mapping[str, Any]
) -> tuple[PreTrainedModel, dict[str, str]]:
    """The model, and where all weights of a part (`options.PARTS`) came from; parts with gaps are left out."""
    dtype = getattr(torch, options["dtype"])
    require_memory(path, config, dtype, options["quantization"])
    keywords: dict[str, Any] = {}
    if options["quantization"] != "none":
        keywords["quantization_config"] = _quantization(options["quantization"], dtype)
    try:
        loaded: Any = AutoModelForImageTextToText.from_pretrained(
            path, config=config, dtype=dtype, output_loading_info=True, trust_remote_code=False, **keywords
        )
    except (ImportError, *weights.UNLOADABLE) as error:
        reason = weights.why_unloadable(path, error)
        raise ConfigError(f"model.path: {path}'s weights cannot be loaded ({reason})") from error
    model, report = loaded
    if options["quantization"] == "4bit":
        # On a CPU with AVX512-BF16, bitsandbytes packs a 4-bit layer's weights anew at its first pass in evaluation
        # mode, for a faster product without gradients, and never undoes that. A base stays in that mode in training.
        for module in model.modules():
            if getattr(module, "support_avx512bf16_for_cpu", False):
                module.support_avx512bf16_for_cpu = False  # an attribute of `bnb.nn.Linear4bit`
    # Transformers warns of weights that are missing or of another shape, and leaves them random.
    lacking = {*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}
    gaps = {part_of(model, name) for name in lacking}
    return model, {part: path for part in ("vision", "language") if part not in gaps}


def part_of(model: PreTrainedModel, name: str) -> str:
    """Whether the weight `name` belongs to the "language" model or to the "vision" side."""
    # The language model's two ends are found as modules, because families give them different names.
    ends = {id(end) for end in (model.get_decoder(), model.get_output_embeddings()) if end is not None}
    prefixes = tuple(f"{owner}." for owner, module in model.named_modules() if owner and id(module) in ends)
    return "language" if name.startswith(prefixes) else "vision"


def linear_layers(model: PreTrainedModel, part: str) -> list[str]:
    """Names of the linear layers of a part, without the one that makes logits."""
    last = model.get_output_embeddings()

    def is_plain(module: nn.Module) -> bool:
        # A router of experts returns two tensors (Llama 4's), and peft adapts one.
        return isinstance(module, nn.Linear) and not type(module).__name__.endswith("Router")

    return [
        name
        for name, module in model.named_modules()
        if is_plain(module) and module is not last and part_of(model, f"{name}.weight") == part
    ]


def require_memory(path: str, config: PretrainedConfig, dtype: torch.dtype, quantization: str) -> None:
    """ConfigError if the weights alone need more than the machine's free memory; nothing if that is not known.

    Raises as `count_weights`.
    """
    # On a CPU the weights end in float32, whatever they are loaded in (`BaseModel.float`).
    gpu = torch.cuda.is_available()
    dtype = dtype if gpu else torch.float32
    # Counted before a byte is read: loading would otherwise end with the process killed.
    count, needed = count_weights(path, config, dtype, quantization)
    free = free_memory()
    if free is not None and needed > free:
        held = quantization if quantization != "none" else str(dtype).removeprefix("torch.")
        smaller = "model.dtype=bfloat16 or " if gpu else ""
        raise ConfigError(
            f"model.path: {path} has {count / 1e9:.1f} billion weights, {needed / 2**30:.1f} GiB as {held}; "
            f"{free / 2**30:.1f} GiB are free: set {smaller}model.quantization=4bit, or take a smaller model"
        )


def count_weights(path: str, config: PretrainedConfig, dtype: torch.dtype, quantization: str) -> tuple[int, int]:
    """The number of a model's weights, and their bytes once loaded. Reads none.

    MissingExtraError if the model needs a library that is not installed, ConfigError if its config makes no model.
    """
    try:
        with torch.device("meta"):
            count = sum(p.numel() for p in AutoModelForImageTextToText.from_config(config).parameters())
    except ImportError as error:  # FastVLM's and Gemma 3n's vision encoders are timm's
        raise MissingExtraError(
            f"model.path: {path} cannot be built ({first_sentence(error)}): install that library"
        ) from error
    except Exception as error:  # of any type: Transformers does not check whether the sizes fit
        raise ConfigError(f"model.path: {path}/config.json makes no model ({described(error)})") from error
    # `_BYTES` are shares of a float32 weight, which has 4 bytes.
    return count, int(count * (dtype.itemsize if quantization == "none" else 4 * _BYTES[quantization]))


def free_memory() -> int | None:
    """Bytes that Linux says are available; None on other systems."""
    if not MEMINFO.is_file():
        return None
    # MemAvailable counts what the kernel would give up, such as cached files; MemFree does not.
    lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines() if ":" in line)
    return int(lines["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in lines else None


def _quantization(kind: str, dtype: torch.dtype) -> BitsAndBytesConfig:
    """bitsandbytes' settings: 4 bits are NF4 with double quantisation (QLoRA, arXiv:2305.14314)."""
    for package in ("bitsandbytes", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(f"model.quantization={kind} needs {package}: pip install -e '.[quantization]'")
    if kind == "8bit":
        # bitsandbytes warns in each layer of each step that it multiplies in 16 bits. This is how 8 bits work there.
        logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
