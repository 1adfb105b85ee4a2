"""LAVIS's layered configuration: a model type's and a dataset's default yaml < the user's yaml < `--options`.

cfg = Config(parse_args())          # needs .cfg_path and .options
cfg.run_cfg, cfg.model_cfg, cfg.datasets_cfg
"""

from __future__ import annotations

import copy
import json
import logging
import re
from argparse import Namespace
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from yaml import YAMLError

from lavis.common.errors import ConfigError, FileError, MissingFileError, first_sentence, missing_extra, unknown
from lavis.common.registry import registry

try:
    from omegaconf import DictConfig, OmegaConf, read_write
    from omegaconf.errors import OmegaConfBaseException
except ModuleNotFoundError as error:
    raise missing_extra("train", error) from None

logger = logging.getLogger(__name__)

SECTIONS = ("run", "model", "datasets", "preprocess")


class Config:
    """The merged configuration of one run, registered as "configuration".

    `args.cfg_path` is the user's yaml with `model:` (`arch`, `model_type`), `run:` and `datasets:`; `args.options` is
    a list of `key=value`, or of `key value key value …`, as LAVIS takes both. Options named in `texts` are not read
    as numbers (`read_option`).
    """

    def __init__(self, args: Namespace, *, texts: Collection[str] = ()) -> None:
        self.args = args
        user, options = load_yaml(args.cfg_path), OmegaConf.create({})
        # One option at a time, so that an error names the one that cannot be read.
        for option in to_dot_list(args.options):
            layer = read_option(option, texts)
            empty_replaced_levels(user, option)
            empty_replaced_levels(options, option)
            options = merged(options, layer)
        check_sections(user, options, args.cfg_path)
        # The last layer wins. The model's layer looks at the options only to see which architecture and type they
        # choose, so the options come on top of it as well.
        self.config: DictConfig = merged(
            self.build_runner_config(user),
            self.build_model_config(user, options),
            self.build_dataset_config(user),
            options,
        )
        registry.register("configuration", self)

    @staticmethod
    def build_runner_config(config: DictConfig) -> DictConfig:
        """The `run:` section as the user wrote it."""
        return OmegaConf.create({"run": _section(config, "run")})

    @staticmethod
    def build_model_config(config: DictConfig, options: DictConfig | None = None) -> DictConfig:
        """The model type's own yaml with the user's `model:` and `preprocess:` on top; an option may choose the type.

        An option that chooses another architecture (`model.arch`) replaces both of the user's sections.
        """
        model = _section(config, "model")
        preprocess = _section(config, "preprocess") if config.get("preprocess") is not None else OmegaConf.create({})
        option = options.get("model") if options is not None else None
        if option and option.get("arch") not in (None, model.get("arch")):
            model = preprocess = OmegaConf.create({})  # the file's keys are those of another architecture
        chosen = merged(model, option or {})
        if not chosen.get("arch"):
            raise ConfigError("the config has no model.arch")
        kind = registry.get_model_class(chosen.arch)
        if not kind.PRETRAINED_MODEL_CONFIG_DICT:  # it has no types: the user's section is all
            return OmegaConf.create({"model": model, "preprocess": preprocess})
        if not chosen.get("model_type"):
            if len(kind.PRETRAINED_MODEL_CONFIG_DICT) != 1:
                raise ConfigError("the config has no model.model_type")
            model = merged(model, {"model_type": next(iter(kind.PRETRAINED_MODEL_CONFIG_DICT))})
            chosen = merged(model, chosen)
        # `chosen`, with the option's type, says which yaml is read; the option itself is not merged in here but on top
        # of all sections, in `__init__`.
        path = kind.default_config_path(chosen.model_type)
        return merged(load_yaml(path), {"model": model, "preprocess": preprocess})

    @staticmethod
    def build_dataset_config(config: DictConfig) -> DictConfig:
        """Each dataset's own yaml (its `type`, by default "default") with the user's section on top."""
        given = _section(config, "datasets")
        config = OmegaConf.create({"datasets": {}})
        for name in given:
            # A section without keys asks for the yaml as it is.
            settings = _section(given, str(name)) if given[name] else {}
            path = registry.get_builder_class(str(name)).default_config_path(type=settings.get("type", "default"))
            config = merged(config, load_yaml(path), {"datasets": {name: settings}})
        return config

    def get_config(self) -> DictConfig:
        """Everything."""
        return self.config

    @property
    def run_cfg(self) -> DictConfig:
        """The `run:` section."""
        return self.config.run

    @property
    def datasets_cfg(self) -> DictConfig:
        """The `datasets:` section."""
        return self.config.datasets

    @property
    def model_cfg(self) -> DictConfig:
        """The `model:` section."""
        return self.config.model

    def pretty_print(self) -> None:
        """Log all sections as JSON."""
        for title, section in (
            ("run", self.run_cfg),
            ("datasets", self.config.get("datasets")),
            ("model", self.model_cfg),
        ):
            content = plain(section) if section is not None else {}
            logger.info("%s: %s", title, json.dumps(content, indent=4, sort_keys=True))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain containers, interpolations as they were written."""
        return plain(self.config, resolve=False)


def is_lavis_config(cfg_path: str) -> bool:
    """Whether a yaml is a LAVIS config: its `run:` section has the key `task`.

    Raises MissingFileError or ConfigError for a file that cannot be read.
    """
    config = load_yaml(cfg_path)
    require_sections(config, "run")
    return "task" in (config.get("run") or {})


def check_sections(user: DictConfig, options: DictConfig, source: str) -> None:
    """ConfigError for sections of a file (`source`) or of options that are unknown, missing or without effect."""
    # A misspelt section would otherwise be ignored in silence.
    for section in {**user, **options}:
        if section not in SECTIONS:
            raise ConfigError(f"{source}: {unknown('section', str(section), SECTIONS)}")
    for section in ("run", "model", "datasets"):
        if user.get(section) is None:
            raise ConfigError(f"{source}: the config has no {section!r} section (docs/offline.md)")
    for given in (user, options):
        require_sections(given, *SECTIONS)
        # Prompts online are what they are, so a model's type may name one for `load_model_and_preprocess` alone.
        if (given.get("preprocess") or {}).get("text_processor"):
            raise ConfigError(
                "preprocess.text_processor changes no text of stored data: leave it out, or name it for the data, as "
                "datasets.alfworld_cap.text_processor"
            )


def require_sections(config: Mapping[Any, Any], *names: str) -> None:
    """ConfigError if one of these is there and is no section."""
    for name in names:
        if not isinstance(config.get(name), DictConfig | None):
            raise ConfigError(f"{name}: {config[name]!r} is no section: put its keys below it, `key: value`")


def require_section(key: str, section: object, example: str) -> None:
    """ConfigError if the value of `key` is there and has no keys of its own, such as `example`."""
    if section is not None and not isinstance(section, Mapping):
        raise ConfigError(f"{key}: {section!r} is no section with keys of its own, such as {key}.{example}")


class ConfigValidator:
    """LAVIS's check of a section: `add_argument("max_len", type=int, choices=…, help=…)`, then `validate(section)`."""

    def __init__(self, description: str = "") -> None:
        self.description = description
        self.arguments: dict[str, dict[str, Any]] = {}

    def add_argument(
        self, name: str, choices: Collection[Any] | None = None, type: Any = None, help: str | None = None
    ) -> None:
        """A key that the section may have: its `choices`, and a `type` that makes a value of what is given."""
        self.arguments[name] = {"choices": choices, "type": type, "help": help}

    def validate(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The section as it is; ConfigError names the first key that is unknown, or whose value cannot be used."""
        for key, value in config.items():
            if key not in self.arguments:
                raise ConfigError(unknown("key", key, self.arguments))
            rules = self.arguments[key]
            # The type is called for its error alone; the section keeps the value as it was written.
            try:
                if rules["type"] is not None:
                    rules["type"](value)
            except (TypeError, ValueError) as error:
                raise ConfigError(f"{key}: {value!r} is no {getattr(rules['type'], '__name__', 'value')}") from error
            if rules["choices"] is not None and value not in rules["choices"]:
                raise ConfigError(f"{key}: {value!r} is not one of {', '.join(map(str, rules['choices']))}")
        return config

    def format_arguments(self) -> str:
        """The keys, sorted."""
        return str(sorted(self.arguments))

    def format_help(self) -> str:
        """The description and the keys."""
        return f"{self.description}, available arguments: {self.format_arguments()}"

    def print_help(self) -> None:
        """Print `format_help`."""
        print(self.format_help())

    def __str__(self) -> str:
        return self.format_help()


def node_to_dict(node: DictConfig) -> dict[str, Any]:
    """A section as plain containers (LAVIS's name of `plain`)."""
    return plain(node)


def merged(*layers: Mapping[str, Any] | DictConfig) -> DictConfig:
    """The layers over one another, the last on top; ConfigError if a section meets a single value.

    What a layer replaces in `model:` below it is taken away first, see `beneath`.
    """
    config: Any = OmegaConf.create({})
    try:
        for layer in layers:
            # A layer at a time: what it replaces depends on all that lies below it.
            config = OmegaConf.merge(beneath(config, layer), layer)
    except OmegaConfBaseException as error:
        raise ConfigError(f"the settings do not fit together: {first_sentence(error)}") from error
    except TypeError as error:
        raise ConfigError(clash(config, layer) or str(error)) from error
    assert isinstance(config, DictConfig)
    return config


def clash(below: DictConfig, above: Mapping[str, Any] | DictConfig) -> str:
    """Where `above` has a list and `below` a section, or the other way round: OmegaConf's TypeError does not say it."""

    def first(old: Any, new: Any, path: str) -> str:
        if isinstance(old, dict) and isinstance(new, dict):
            return next(filter(None, (first(old.get(key), new[key], f"{path}.{key}") for key in new)), "")
        if {type(old), type(new)} != {dict, list}:
            return ""
        wanted = "a list" if isinstance(old, list) else "a section with keys of its own"
        return f"{path[1:]}: {new!r} has the wrong type: it must be {wanted}"

    return first(OmegaConf.to_container(below), OmegaConf.to_container(OmegaConf.create(dict(above))), "")


def beneath(config: DictConfig, layer: Mapping[str, Any] | DictConfig) -> DictConfig:
    """`config` without those settings of its `model:` that `layer`, which comes on top, replaces as a whole.

    - What the layer gives as an empty section: OmegaConf merges `llm_expects: {}` into the section below by keeping all
      of that section's keys, and who writes it wants none of them.
    - The sizes and weights (`llm_config`, `llm_weights`) of another language model than the layer names (`llm_model`),
      if the layer says nothing of these. A model type's own would beat the folder that a user names.
    """
    # Unresolved: an interpolation may refer to a key that only a later layer brings.
    raw = plain(layer, resolve=False).get("model")
    below = plain(config, resolve=False).get("model")
    if not isinstance(raw, dict) or not isinstance(below, dict):
        return config
    replaced = {key for key, value in raw.items() if value == {}}
    if raw.get("llm_model") and below.get("llm_model") not in (None, "", raw["llm_model"]):
        replaced |= {"llm_config", "llm_weights"} - raw.keys()
    config = copy.deepcopy(config)  # the caller's layer stays as it is
    for key in replaced & below.keys():
        config.model.pop(key)
    return config


def empty_replaced_levels(config: DictConfig, option: str) -> None:
    """Empty the mixture of levels in `config` if `option` gives another one as a whole: `environment.levels={many: 1}`.

    A mixture is one value, and OmegaConf's merge would play the levels of both.
    """
    section, _, name = option.partition("=")[0].rpartition(".")
    below = OmegaConf.select(config, section, throw_on_resolution_failure=False)
    if name == "levels" and section.endswith("environment") and isinstance(below, DictConfig):
        with read_write(below):  # that of a frozen section may not be written
            below.levels = {}


def plain(section: Mapping[str, Any] | DictConfig, *, resolve: bool = True) -> dict[str, Any]:
    """A section as plain containers; ConfigError if it refers to a setting that does not exist."""
    config = section if isinstance(section, DictConfig) else OmegaConf.create(dict(section))
    try:
        content = OmegaConf.to_container(config, resolve=resolve)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key or error.key}: {first_sentence(error)}") from error
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def to_dot_list(options: Sequence[str] | None) -> list[str]:
    """`["a.b=1"]` from `["a.b=1"]` or `["a.b", "1"]`; ConfigError if the last key of the pairs has no value."""
    options = list(options or ())
    # LAVIS tells the two forms apart by the first option alone.
    if not options or "=" in options[0]:
        return options
    if len(options) % 2:
        raise ConfigError(f"--options: {options[-1]!r} has no value (write key=value)")
    return [f"{key}={value}" for key, value in zip(options[::2], options[1::2], strict=True)]


def read_option(option: str, texts: Collection[str] = ()) -> DictConfig:
    """`a.b=c` as a configuration; a key in `texts` keeps what was typed, where yaml makes `007` 7 and `on` True.

    ConfigError for an option that cannot be read, or that has no key or no `=`.
    """
    key, equals, text = option.partition("=")
    # The message goes to a terminal, which control characters in an option must not steer.
    shown = option if option.isprintable() else ascii(option)
    # OmegaConf makes an option without `=` null (`model.pretrained`: no weights), and fails at a bracket that is never
    # closed.
    if not key or not equals or key.startswith("["):
        raise ConfigError(f"--options {shown}: write it as section.key=value")
    try:
        layer = OmegaConf.from_dotlist([option])
    except (YAMLError, OmegaConfBaseException, UnicodeEncodeError) as error:
        raise ConfigError(f"--options {shown} cannot be read: {first_sentence(error)}") from error
    except RecursionError as error:
        raise ConfigError(f"--options {ascii(option):.80}: its lists are nested too deep") from error
    # On a command line nobody writes a comment, which yaml makes of the end of `/runs #2`. In quotes, or in brackets,
    # `#` is yaml's to read.
    commented = text[:1] not in tuple("'\"[{") and re.search(r"(^|\s)#", text)
    if commented or (key in texts and is_no_text(OmegaConf.select(layer, key, throw_on_resolution_failure=False))):
        OmegaConf.update(layer, key, text)
    return layer


def as_option(key: str, text: str | Path) -> str:
    """`a.b=c` for a text or a path, as `read_option` reads it back: without quotes yaml cuts `/runs #2` to `/runs`."""
    return f"{key}={json.dumps(str(text), ensure_ascii=False)}"


def is_no_text(value: object) -> bool:
    """Whether yaml read as a number or a truth value what may have been a name."""
    return isinstance(value, bool | int | float)


def not_a_list(key: str, value: object) -> str:
    """What to say of the setting `key`, which is a list, if its `value` is none."""
    shown = value if isinstance(value, str | int | float) and value != "" else "…"
    return f"{key}: {value!r} is not a list: put it in brackets, [{shown}]"


def load_yaml(path: str | Path) -> DictConfig:
    """A yaml file of sections; MissingFileError, or ConfigError for a file that holds none."""
    if not Path(path).is_file():
        raise MissingFileError(f"config file not found: {path} (looked in {Path.cwd()})")
    try:
        config = OmegaConf.load(path)
    except OSError as error:
        raise FileError(f"{path} could not be read: {error.strerror or error}") from error
    except (YAMLError, UnicodeDecodeError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path}: not a yaml file: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: its lists or sections are nested too deep") from error
    except AssertionError:  # OmegaConf's, where the file holds one number in quotes
        config = None
    if not isinstance(config, DictConfig):
        raise ConfigError(f"{path}: a config file holds sections such as `run:`, not a list or a single value")
    return config


def _section(config: DictConfig, name: str) -> DictConfig:
    if config.get(name) is None:
        raise ConfigError(f"the config has no {name!r} section")
    require_sections(config, name)
    return config[name]
