"""What of a checkpoint's stored configuration is believed: a list of harmless values, and nothing else.

A checkpoint may come from a stranger, and its `config` is whatever that stranger wrote. A name can import a module, a
path can be read or run, an address can be asked, an argument can change a program, and an interpolation
(`${oc.env:OPENAI_API_KEY}`) puts a secret into any of these. So no free text is taken at all: only truth values,
numbers within bounds (a beam search of 10^9 beams would take all memory), and words of fixed lists. What is left out is
told, and whoever wants it gives it with `--options`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lavis.common.settings import DTYPES
from lavis.models.blip2_models.emac_config import CONFIG_DEFAULTS, MODEL_TYPES, PARTS
from lavis.models.hf_vlm import options as hf_vlm
from xrl_alignment.common.choices import CAMERAS, IMAGE_NOISE_NAMES, NAMES_BY
from xrl_alignment.settings.checks import Rule, between, list_of, one_of
from xrl_alignment.settings.policy import DECODE_MODES, PolicyConfig
from xrl_alignment.settings.schema import EnvironmentConfig

_SWITCH = (bool, Rule("true or false", lambda value: True))
_SEED = (int, between(0, 2**63 - 1))
_TOKENS = (int, between(1, 1 << 17))  # the longest context of today's language models
_DTYPE = (str, one_of(*DTYPES))
_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")  # of a Llama, for adapters

# The allow-list, the only one: a new setting is not on it unless someone has thought about it. It has what the weights
# of a file need to be loaded and to act as in their run. It must never get a setting that is a name of a class, file,
# folder, address, variable or device, a section or list of free content, or a text that is not one of fixed words.
TAKEN: dict[str, dict[str, tuple[type, Rule]]] = {
    "model": {
        "arch": (str, one_of("blip2_emac", "hf_vlm")),
        # Where a type finds its weights is written in this package; the path of a model of the hub is not taken.
        "model_type": (str, one_of(*MODEL_TYPES, "default")),
        "img_size": (int, between(1, 1024)),
        "num_query_token": (int, between(1, 1024)),
        "qformer_text_input": _SWITCH,
        "max_txt_len": _TOKENS,
        "max_output_txt_len": _TOKENS,
        "cut_prompts": _SWITCH,
        # Which parts train: what the file holds, and the hash of the frozen base that it belongs to.
        **dict.fromkeys(("freeze_vit", "freeze_ln_vision", "freeze_qformer", "freeze_proj_layer"), _SWITCH),
        **dict.fromkeys(("freeze_llm", "adaptor_tuning"), _SWITCH),
        "init_seed": _SEED,
        "allow_random": (list, list_of("parts of the model", lambda part: part in PARTS)),
        "images": (int, between(1, 64)),
        "image_last": _SWITCH,
        "freeze": (list, list_of("parts of the model", lambda part: part in hf_vlm.PARTS)),
        "quantization": (str, one_of(*hf_vlm.QUANTIZATIONS)),
        "dtype": _DTYPE,
        "lora_rank": (int, between(0, 256)),
        "lora_alpha": (int, between(0, 1 << 16)),
        "lora_targets": (list, list_of(f"names among {', '.join(_LINEAR)}", lambda name: name in _LINEAR)),
        "vit_precision": _DTYPE,
        "llm_dtype": _DTYPE,
        "amp": (str, one_of("", "float32", "float16", "bfloat16")),
    },
    "policy": {
        "decode": (str, one_of(*DECODE_MODES)),
        "num_beams": (int, between(1, 64)),
        "max_length": (int, between(1, 4096)),
        "min_length": (int, between(0, 4096)),
        "skip_rejected": _SWITCH,
        "skip_visited": _SWITCH,
    },
    "environment": {  # what the policy was shown of its games, not which games
        "name_by": (str, one_of(*NAMES_BY)),
        "show_ids": _SWITCH,
        "camera": (str, one_of(*CAMERAS)),
        "image_noise": (str, one_of(*IMAGE_NOISE_NAMES)),
        "image_severity": (int, between(0, 4)),
        "text_noise": (float, between(0, 1)),
        "seed": _SEED,
        "blank_frames": _SWITCH,
        "other_frames": _SWITCH,
        "tell_objects": _SWITCH,
    },
}
# Left out without a word: the weights are those of the file itself, and where a policy's games came from is another
# question than how it acts.
_SILENT = {
    "model": frozenset(("pretrained", "ref_pretrained", "load_pretrained")),
    "environment": frozenset(("name", "split", "data", "num_train", "num_heldout", "levels", "allow_other_games")),
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "model": {**hf_vlm.CONFIG_DEFAULTS, **CONFIG_DEFAULTS, "lora_targets": "all-linear"},
    "policy": vars(PolicyConfig()),
    "environment": vars(EnvironmentConfig()),
}
_SHOWN, _LONGEST = 8, 160  # settings that are named when they are left out; characters of each


class StoredSettings(NamedTuple):
    """The harmless settings by section, and the others, in printable words, as `policy.name='vllm'`."""

    taken: dict[str, dict[str, Any]]
    left_out: list[str]


def stored_settings(config: object) -> StoredSettings:
    """What may be taken from `config`, which is anything: a file said so. Never raises, never returns a free text."""
    taken: dict[str, dict[str, Any]] = {section: {} for section in TAKEN}
    left_out: list[str] = []
    for section, rules in TAKEN.items():
        given = config.get(section) if isinstance(config, Mapping) else None
        for key, value in given.items() if isinstance(given, Mapping) else ():
            if not isinstance(key, str) or key in _SILENT.get(section, ()):
                continue
            if key in rules and _is_harmless(value, *rules[key]):
                taken[section][key] = list(value) if isinstance(value, list) else value
            elif not _is_default(value, _DEFAULTS[section].get(key)):
                left_out.append(f"{section}.{key if key.isidentifier() else '…'}={_printable(value)}"[:_LONGEST])
    return StoredSettings(taken, left_out)


def run_of(checkpoint: Path) -> tuple[dict[str, Any], str]:
    """The `model:` settings that a checkpoint's run names, and what it showed the model ("" if the file does not say).

    A file of weights alone names none, and a checkpoint of `train.py` knows not what its data showed.
    """
    from lavis.runners import checkpoint as offline  # here: torch takes seconds to import
    from xrl_alignment.runs.checkpoint import CheckpointError, load_checkpoint

    try:
        taken = stored_settings(load_checkpoint(checkpoint).get("config")).taken
        return taken["model"], EnvironmentConfig(**taken["environment"]).shows
    except CheckpointError:
        pass
    try:
        return stored_settings(offline.load(checkpoint)["config"]).taken["model"], ""
    except CheckpointError:
        return {}, ""


def told(settings: StoredSettings) -> str:
    """What to tell the user of the settings that were left out; empty if there are none."""
    if not settings.left_out:
        return ""
    more = f" and {len(settings.left_out) - _SHOWN} more" if len(settings.left_out) > _SHOWN else ""
    return (
        "names, paths, addresses and unusual values of a checkpoint are not taken from it; give those that you want "
        f"with --options: {', '.join(settings.left_out[:_SHOWN])}{more}"
    )


def as_options(taken: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Settings by section as options, `model.max_txt_len=200`, whose values are JSON: a text stays one, and a list."""
    return [f"{section}.{key}={json.dumps(value)}" for section, its in taken.items() for key, value in its.items()]


def _is_harmless(value: object, kind: type, rule: Rule) -> bool:
    """Whether `value` is exactly of the type (True is no number, a subclass may do anything) and within the rule."""
    if type(value) is not kind:
        return False
    if isinstance(value, list) and (len(value) > 64 or any(type(item) is not str for item in value)):
        return False
    return rule.holds(value)


def _is_default(value: object, default: object) -> bool:
    """Whether leaving `value` out changes nothing; anything that is nested counts only if it is empty."""
    if value is None or (isinstance(value, str | list | dict) and not value):
        return True
    return type(value) is type(default) and isinstance(value, bool | int | float | str) and value == default


def _printable(value: object) -> str:
    """A text in ASCII; of anything that is nested only its type, for printing it could take for ever."""
    if isinstance(value, str):
        return ascii(value[:60])
    if isinstance(value, bool | float) or (isinstance(value, int) and value.bit_length() < 256):
        return repr(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value[:3]):
        return f"[{', '.join(ascii(item[:60]) for item in value[:3])}{', …' if len(value) > 3 else ''}]"
    return f"a {type(value).__name__}"
