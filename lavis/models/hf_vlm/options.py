"""The `model:` section of a config for `hf_vlm`: every key, and the checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from lavis.common.config import plain
from lavis.common.errors import ConfigError
from lavis.common.settings import (
    AMP,
    BELOW_ONE,
    DTYPES,
    SEED,
    Rule,
    Section,
    at_least,
    checked_keys,
    defaults_of,
    list_of,
    one_of,
    setting,
)

MODEL_TYPES = {"default": "configs/models/hf_vlm/hf_vlm.yaml"}
PARTS = ("vision", "language")  # `vision` is all that is not the language model: encoder, connector, Q-Former
QUANTIZATIONS = ("none", "8bit", "4bit")
_ARE_PARTS = list_of(", ".join(PARTS), PARTS.__contains__)
_ARE_NAMES = list_of("names", lambda item: isinstance(item, str), empty=False)


@dataclass(frozen=True)
class HfVlmKeys(Section, section="model"):
    """The architecture for any vision-language model of Transformers."""

    arch: str = setting("hf_vlm", "the architecture's registered name, or module:Class")
    model_type: str = setting("default", "there is only one")
    # The frozen model, and the formats of its numbers.
    path: str = setting("", "the model: a folder, or a hub id")
    images: int = setting(1, "frames in a prompt: the current one, and earlier ones if there are", at_least(1))
    image_last: bool = setting(
        False,
        "frames stand behind the text, so that a prompt begins as the one of the step before: a server that keeps what "
        "prompts begin with (vLLM) reads only what is new",
    )
    dtype: str = setting(
        "float32",
        "number format of the frozen weights; adapters train in float32. On a CPU all weights are float32, except "
        "quantised ones, and `amp` says what is computed in",
        one_of(*DTYPES),
    )
    quantization: str = setting("none", "of the frozen weights, by bitsandbytes", one_of(*QUANTIZATIONS))
    amp: str = setting(
        "",
        "number format of autocast in training; empty: `dtype` if that is bfloat16, or on a GPU float16. A CPU that "
        "only emulates bfloat16 computes in float32",
        AMP,
    )
    # What trains (LoRA, arXiv:2106.09685).
    lora_rank: int = setting(
        16, "rank of the adapters (LoRA); 0: none, and what `freeze` does not name trains whole", at_least(0)
    )
    lora_alpha: int = setting(32, "adapters count `lora_alpha / lora_rank`", at_least(1))
    lora_dropout: float = setting(0.0, "dropout before the adapters", BELOW_ONE)
    lora_targets: Any = setting(
        "all-linear",
        "layers that get adapters: all linear ones, or those whose names end so; an error lists the names there are",
        Rule(
            "all-linear, or a list of names: [q_proj, v_proj]",
            lambda value: value == "all-linear" or (isinstance(value, list | tuple) and _ARE_NAMES.holds(value)),
        ),
    )
    freeze: list[str] = setting(
        ["vision"],
        "parts that get no adapters and do not train; `vision` is all that is not the language model",
        _ARE_PARTS,
    )
    low_memory: bool = setting(
        False, "recompute activations in the backward pass; prompts are then computed once for each answer"
    )
    # What it begins with, how long texts may be, and DPO's loss; the names are those of `blip2_emac`.
    pretrained: str = setting("", "a run's checkpoint, or a folder that peft wrote")
    ref_pretrained: str = setting("", "the same, of DPO's reference: phase 1's")
    load_pretrained: bool = setting(True, "read `pretrained`")
    max_txt_len: int = setting(1024, "tokens of a prompt, image tokens counted, at most", at_least(1))
    cut_prompts: bool = setting(
        True, "a prompt over `max_txt_len` loses the beginning of its text; false: it is refused"
    )
    max_output_txt_len: int = setting(64, "tokens of an answer and its end, at most", at_least(2))
    avg_log_probs: bool = setting(True, "DPO: mean of an answer's log-probabilities instead of their sum")
    mix_ratio: float = setting(0.5, "weight of the cloning loss beside DPO's (method.md)", at_least(0))
    init_seed: int = setting(0, "seed of random weights", SEED)
    allow_random: list[str] = setting(
        [],
        "parts that may keep random weights if the folder lacks some; else the model does not act or train",
        _ARE_PARTS,
    )

    def check_combinations(self) -> None:
        """ConfigError for keys that contradict one another, and without a model's path."""
        if not self.path:
            raise ConfigError(
                "model.path is empty: name the model's folder or hub id (HuggingFaceTB/SmolVLM-500M-Instruct)"
            )
        # Numbers of 4 or 8 bits have no gradients. QLoRA (arXiv:2305.14314) trains adapters beside them.
        if self.quantization != "none" and not self.lora_rank:
            raise ConfigError("model.quantization: quantised weights do not train; set model.lora_rank above 0")
        if not self.lora_rank and set(self.freeze) >= set(PARTS):
            raise ConfigError("model.freeze: with lora_rank=0 and every part frozen nothing would train")


CONFIG_DEFAULTS = defaults_of(HfVlmKeys)


def amp_of(options: Mapping[str, Any]) -> str:
    """Name of the number format of autocast; empty: none."""
    # float16 must follow, too: its small gradients become 0 unless the loss is scaled, which runners do by `amp`.
    return options["amp"] or (options["dtype"] if options["dtype"] != "float32" else "")


def checked_options(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The config with defaults filled in; ConfigError for an unknown key or a value that cannot be used."""
    return checked_keys(HfVlmKeys, plain(cfg) if isinstance(cfg, DictConfig) else cfg)
