"""The `model:` section of a config for `blip2_emac`: every key, the model types, and the checks.

Importing this module loads no torch, so that programs can refuse a wrong key before they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from lavis.common.config import plain
from lavis.common.errors import ConfigError, unknown
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
    one_of,
    setting,
)

MODEL_TYPES = {
    "tiny": "configs/models/blip2/blip2_emac_tiny.yaml",
    "demo": "configs/models/blip2/blip2_emac_demo.yaml",
    "student": "configs/models/blip2/blip2_emac_student.yaml",
    "student_official": "configs/models/blip2/blip2_emac_student_official.yaml",
    "student_looks": "configs/models/blip2/blip2_emac_student_looks.yaml",
    "smollm2_135m": "configs/models/blip2/blip2_emac_smollm2_135m.yaml",
    "vicuna7b": "configs/models/blip2/blip2_emac_vicuna7b.yaml",
    "vicuna13b": "configs/models/blip2/blip2_emac_vicuna13b.yaml",
}
VISION = ("visual_encoder", "ln_vision", "Qformer", "query_tokens")
PARTS = (*VISION, "llm_proj", "llm_model")
NO_LLM = "model.llm_model: there is no folder {}, and it is no hub id (owner/name)"


@dataclass(frozen=True)
class Blip2EmacKeys(Section, section="model"):
    """Most are set by the model type. The names down to `freeze_llm` are the original's."""

    # Which model, and its vision side. A size that nobody sets is EVA-CLIP-g's or BERT base's.
    arch: str = setting("blip2_emac", "the architecture's registered name, or module:Class")
    model_type: str = setting("", f"whose file is read first: {', '.join(MODEL_TYPES)}; empty: tiny")
    vit_model: str = setting(
        "eva_clip_g",
        "vision encoder: `eva_clip_g`, `custom` (sizes from `vit_config`), or `conv`, which recognises objects",
        one_of("eva_clip_g", "custom", "conv"),
    )
    img_size: int = setting(224, "pixels of an image's side", at_least(1))
    vit_precision: str = setting("float32", "number format of the vision encoder", one_of(*DTYPES))
    freeze_vit: bool = setting(True, "the vision encoder does not train")
    freeze_qformer: bool = setting(True, "the Q-Former and its queries do not train")
    adaptor_tuning: bool = setting(
        False, "of the Q-Former, dense layers and layer norms alone train (LAVIS); needs `freeze_qformer: false`"
    )
    freeze_proj_layer: bool = setting(False, "the projection does not train")
    qformer_text_input: bool = setting(False, "the Q-Former reads the instruction, too")
    num_query_token: int = setting(32, "queries of the Q-Former: image tokens in the prompt", at_least(1))
    # Where weights come from, in the order in which they are loaded (`Blip2Emac.from_config`).
    llm_model: str = setting("", "language model: a folder or a hub id")
    load_basemodel: bool = setting(False, "read the vision side from `base_model`")
    base_model: str = setting("", "InstructBLIP's weight file")
    load_proj_layer: bool = setting(
        True, "take `base_model`'s projection, too; false if it was made for another language model"
    )
    load_pretrained: bool = setting(True, "read `pretrained`")
    pretrained: str = setting("", "checkpoint of what trains")
    ref_pretrained: str = setting("", "checkpoint of DPO's reference: phase 1's")
    # What training computes (docs/method.md).
    low_memory: bool = setting(False, "recompute activations in the backward pass")
    avg_log_probs: bool = setting(True, "DPO: mean of an answer's log-probabilities instead of their sum")
    mix_ratio: float = setting(0.5, "weight of the cloning loss beside DPO's (method.md)", at_least(0))
    prompt: str = setting("", "prompt of samples that bring none")
    max_txt_len: int = setting(128, "tokens of a prompt, at most", at_least(1))
    max_output_txt_len: int = setting(
        256, "tokens of an answer that is learned, and its end, at most; a BOS before it counts as one", at_least(2)
    )
    freeze_llm: bool = setting(True, "the language model does not train")
    freeze_ln_vision: bool | None = setting(
        None,
        "the layer norm behind the vision encoder does not train; null: as `freeze_vit`, false: as the original",
        Rule("true or false", lambda value: value is None or isinstance(value, bool)),
    )
    # From here on ours: models of other sizes than InstructBLIP's, and their files.
    vit_config: dict[str, Any] = setting({}, "sizes of the vision encoder, in place of a file's")
    qformer_config: dict[str, Any] = setting({}, "sizes of the Q-Former")
    llm_config: dict[str, Any] = setting({}, "sizes of a language model without a folder")
    vit_weights: str = setting("", "the vision encoder's own file, for a `base_model` without one")
    llm_weights: str = setting("", "the language model's own file, for one made from `llm_config`")
    llm_tokenizer: str = setting("", "tokenizer, if it is not in `llm_model`")
    llm_expects: dict[str, Any] = setting({}, "what config.json of `llm_model` must say; {}: nothing is compared")
    llm_dtype: str = setting("float32", "number format of the language model's frozen weights", one_of(*DTYPES))
    # LoRA (Hu et al. 2021, arXiv:2106.09685) on queries and values alone, as in most of the paper's experiments.
    lora_rank: int = setting(0, "rank of adapters on the language model (LoRA); 0: none", at_least(0))
    lora_alpha: int = setting(16, "adapters count `lora_alpha / lora_rank`", at_least(1))
    lora_dropout: float = setting(0.0, "dropout before the adapters", BELOW_ONE)
    lora_targets: list[str] = setting(["q_proj", "v_proj"], "ends of the names of the layers that get adapters")
    bert_tokenizer: str = setting("bert-base-uncased", "tokenizer of the Q-Former's instructions")
    amp: str = setting(
        "",
        "number format of autocast in training; empty: none. A CPU that only emulates bfloat16 computes in float32",
        AMP,
    )
    init_seed: int = setting(0, "seed of random weights", SEED)
    allow_random: list[str] = setting([], "parts that may keep random weights where others must come from a file")
    kept_prompts_mib: int = setting(
        0,
        "memory for keys and values of prompts, so that acting reads only a prompt's new part (MiB; 0: none). It pays "
        "if the image stays the same (`environment.blank_frames`)",
        at_least(0),
    )
    cut_prompts: bool = setting(False, "`generate` cuts prompts as training does; false: never, as the original")

    def check_combinations(self) -> None:
        """ConfigError for keys that contradict one another."""
        if self.load_basemodel and not self.base_model:
            raise ConfigError(
                "model.base_model is empty: name InstructBLIP's weight file, or set model.load_basemodel=False"
            )
        if self.adaptor_tuning and self.freeze_qformer:
            raise ConfigError(
                "model.adaptor_tuning trains layers of the Q-Former: set model.freeze_qformer=False, or leave it out"
            )
        if self.lora_rank and not self.freeze_llm:
            raise ConfigError("model.lora_rank trains adapters of a frozen language model: set model.freeze_llm=True")
        if self.lora_rank and not self.lora_targets:
            raise ConfigError(
                "model.lora_targets is empty: name the layers that get adapters, [q_proj, v_proj], or set "
                "model.lora_rank=0"
            )
        for part in self.allow_random or ():
            if part not in PARTS:
                raise ConfigError(unknown("part in model.allow_random:", part, PARTS))


CONFIG_DEFAULTS = defaults_of(Blip2EmacKeys)


def checked_options(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The config with defaults filled in.

    Raises ConfigError for an unknown key, a value of another type, and keys that contradict one another.
    """
    return checked_keys(Blip2EmacKeys, plain(cfg) if isinstance(cfg, DictConfig) else cfg)
