"""Reads settings: a yaml file, then `--options key=value …`, checked before anything starts."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from lavis.common.errors import ConfigError, missing_extra, unknown
from xrl_alignment.settings.fields import KINDS

try:
    from omegaconf import DictConfig, ListConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from omegaconf.grammar_parser import OmegaConfGrammarParser, parse

    from lavis.common.config import (
        beneath,
        clash,
        empty_replaced_levels,
        is_no_text,
        load_yaml,
        not_a_list,
        read_option,
    )
    from xrl_alignment.settings.schema import PROGRAMS, DaggerConfig, EvaluateConfig
except ModuleNotFoundError as error:
    raise missing_extra("train", error) from None

SchemaT = TypeVar("SchemaT")
_WRITTEN = "_written"  # attribute of a loaded config: its settings before references were resolved


def load_config(schema: type[SchemaT], cfg_path: str | Path | None, options: Iterable[str] = ()) -> SchemaT:
    """Read `cfg_path` (yaml; None: the schema's defaults), lay `options` (`a.b=c`) over it, and check the whole.

    Returns an instance of `schema`. Raises ConfigError for a missing, unreadable or empty file, an unknown key, a wrong
    type or a value out of range.
    """
    # The schema's defaults, then the file, then the options, each checked by itself so that an error names its source.
    layers = [(str(cfg_path), _read_yaml(Path(cfg_path)), "")] if cfg_path else []
    # An architecture has keys of its own: the option that chooses one comes before those that set its keys.
    for option in sorted(options or (), key=lambda option: not option.startswith("model.arch=")):
        key, equals, text = option.partition("=")
        if not equals or not key:
            raise ConfigError(f"--options {option}: write it as section.key=value")
        # `key=` is an empty text; for yaml it would be null, which no setting can be.
        written = option if text else f"{key}=''"
        layers.append(("--options", read_option(written, [key] if _type_of(schema, key) is str else []), option))
    merged = OmegaConf.structured(schema)
    for source, layer, option in layers:
        _refuse_unknown_keys(schema, layer, source)
        _refuse_wrong_kinds(schema, layer, source)
        # A layer that names another `model.arch` drops the keys of the one before, which mean nothing to the new one.
        # What is still a reference (`${…}`) names none: it is resolved only in the end.
        section = layer.get("model") if "model" in merged and not OmegaConf.is_interpolation(layer, "model") else None
        if isinstance(section, DictConfig) and not OmegaConf.is_interpolation(section, "arch"):
            named = section.get("arch")
            if named is not None and named != merged.model.get("arch"):
                merged.model = {}
        empty_replaced_levels(merged, option)
        try:
            merged = OmegaConf.merge(beneath(merged, layer), layer)
        except OmegaConfBaseException as error:
            raise ConfigError(_type_error_text(schema, error, layer, source)) from error
        except TypeError as error:
            raise ConfigError(f"{source}: {clash(merged, layer) or error}") from error
    try:
        # References (`${run.seed}`) are resolved here, and each section checks itself when it is made.
        config = typing.cast(SchemaT, OmegaConf.to_object(merged))
        # Kept for `shareable`. An attribute of the instance and no field: a field would be a setting.
        setattr(config, _WRITTEN, OmegaConf.to_container(merged, resolve=False))
    except (ConfigError, OmegaConfBaseException) as error:
        where = " and ".join(dict.fromkeys(source for source, *_ in layers)) or "the defaults"
        key = getattr(error, "full_key", "")  # of a reference that leads nowhere, or to another type
        raise ConfigError(f"{key and f'{key}: '}{_first_line(error)} (in {where})") from error
    if cfg_path and not layers[0][1]:  # the wrong file, or one that was not written whole: defaults may play for hours
        raise ConfigError(f"{cfg_path} is empty, so it does not say what to run: begin with a file of configs/")
    return config


def to_yaml(config: object) -> str:
    """Return the yaml text of a config instance (see `shareable`); `load_config` reads it back."""
    return OmegaConf.to_yaml(OmegaConf.create(shareable(config)))


def shareable(config: object) -> dict[str, typing.Any]:
    """The settings as plain containers without secrets, because people share run directories and checkpoints.

    The server's token is left out. If a value calls a resolver, such as `${oc.env:NAME}`, which reads the environment,
    all values that refer to something stay as they were written: any of them may refer to that one.
    """
    settings = dataclasses.asdict(typing.cast(typing.Any, config))
    written = getattr(config, _WRITTEN, {})
    settings = _with_references(settings, written, keep=_calls_a_resolver(written))
    if "token" in settings.get("server", {}):
        settings["server"]["token"] = ""
    return settings


def _calls_a_resolver(written: typing.Any) -> bool:
    """Whether a text in `written` has an interpolation with a resolver, as OmegaConf itself reads it.

    OmegaConf's own parser, because its grammar allows blanks in many places, nesting, and a resolver's name that is
    itself an interpolation: `${ oc.env:NAME}`, `${a.${oc.env:NAME}}`, `${oc.${b}:NAME}`.
    """
    if isinstance(written, dict):
        return any(map(_calls_a_resolver, written.values()))
    if isinstance(written, list):
        return any(map(_calls_a_resolver, written))
    return isinstance(written, str) and "${" in written and _has_resolver(parse(written))


def _has_resolver(node: typing.Any) -> bool:
    """Whether a tree of OmegaConf's parser has a call of a resolver; its leaves are tokens, which have no children."""
    if isinstance(node, OmegaConfGrammarParser.InterpolationResolverContext):
        return True
    return any(map(_has_resolver, getattr(node, "children", None) or ()))


def _with_references(value: typing.Any, written: typing.Any, *, keep: bool) -> typing.Any:
    """`value` with texts as they were written if these refer to something and references are kept.

    A text that has `${` when everything is resolved was escaped (`\\${`). It stays escaped: else the next program
    that reads the settings would resolve it.
    """
    if isinstance(written, str) and "${" in written and (keep or "${" in str(value)):
        return written
    if isinstance(value, dict) and isinstance(written, dict):
        return {key: _with_references(item, written.get(key), keep=keep) for key, item in value.items()}
    if isinstance(value, list) and isinstance(written, list) and len(value) == len(written):
        return [_with_references(*pair, keep=keep) for pair in zip(value, written, strict=True)]
    return value


def is_emac_plus(cfg_path: str | Path) -> bool:
    """Whether a settings file is one of EMAC+'s loop (`config.planning`): it has a section `planner`."""
    return "planner" in _read_yaml(Path(cfg_path))


def program_of(cfg_path: str | Path, options: Iterable[str] = ()) -> type[DaggerConfig] | type[EvaluateConfig]:
    """The schema of the program that a settings file is for: of `PROGRAMS` the one that has most of its keys.

    Of a file whose keys both have it is the first. Keys that `options` set count, too.
    """
    content = typing.cast(dict[str, typing.Any], OmegaConf.to_container(_read_yaml(Path(cfg_path))))
    given = {(section, name) for section, keys in content.items() if isinstance(keys, dict) for name in keys}
    given |= {tuple(option.partition("=")[0].split(".")[:2]) for option in options}  # type: ignore[misc]

    def number_known(schema: type) -> int:
        return sum((section, name) in given for section, names in _keys(schema).items() for name in names or ())

    return max(PROGRAMS, key=number_known)


def _read_yaml(path: Path) -> DictConfig:
    try:
        return load_yaml(path)
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(str(error)) from error


def _keys(schema: type) -> dict[str, list[str] | None]:
    """The names of every section's keys; None for a free section (`model:`), which may hold any key."""
    hints = typing.get_type_hints(schema)
    return {
        section: [field.name for field in dataclasses.fields(hint)] if dataclasses.is_dataclass(hint) else None
        for section, hint in hints.items()
    }


def _refuse_unknown_keys(schema: type, layer: DictConfig, source: str) -> None:
    """Raise for the first key that the schema lacks."""
    known = _keys(schema)
    for section in map(str, layer):
        if section not in known:
            raise ConfigError(f"{source}: {unknown('key', section, known)}")
        keys = known[section]
        if OmegaConf.is_interpolation(layer, section):
            continue
        if keys is None:  # a free section; OmegaConf has an error of its own kind only for lists
            if isinstance(layer[section], ListConfig):
                wrong = f"{source}: {section}: {list(layer[section])!r} has the wrong type"
                raise ConfigError(f"{wrong}: it must be a section with keys of its own")
            continue
        if not isinstance(layer[section], DictConfig):
            raise ConfigError(f"{source}: {section}: {layer[section]!r} is not a section with keys of its own")
        for key in map(str, layer[section]):
            if key not in keys:
                # What was meant: this very key of another section, else the nearest key of the same section; and if it
                # is a key of another program, the wrong file was given.
                sections = [other for other, names in known.items() if key in (names or ())]
                if sections:
                    text = f"unknown key '{section}.{key}': did you mean '{sections[0]}.{key}'?"
                else:
                    text = unknown("key", key, keys, prefix=f"{section}.")
                owners = [
                    other for other in PROGRAMS if other is not schema and key in (_keys(other).get(section) or ())
                ]
                if schema in PROGRAMS and owners:
                    text += f" ({section}.{key} is a setting of {PROGRAMS[owners[0]]}, not of {PROGRAMS[schema]})"
                raise ConfigError(f"{source}: {text}")


def _refuse_wrong_kinds(schema: type, layer: DictConfig, source: str) -> None:
    """Raise for a list that is none, and for a text of which yaml has made something else: an unquoted 007 is 7."""
    container = typing.cast(dict[str, typing.Any], OmegaConf.to_container(layer))  # of a DictConfig it is a dict
    for section, settings in container.items():
        for name, value in settings.items() if isinstance(settings, dict) else ():
            key = f"{section}.{name}"
            # A reference may lead to a list; and None is OmegaConf's to refuse, which names the type.
            referring = value is None or (isinstance(value, str) and "${" in value)
            if typing.get_origin(_type_of(schema, key)) is list and not isinstance(value, list) and not referring:
                raise ConfigError(f"{source}: {not_a_list(key, value)}")
            if _type_of(schema, key) is str and (is_no_text(value) or isinstance(value, dict)):
                shell = f""", in a shell '{key}="…"'""" if source == "--options" else ""
                raise ConfigError(f"{source}: {key}: yaml reads {value!r} here; put the text in quotes{shell}")


def _type_of(schema: type, key: str) -> typing.Any:
    """The type of the setting `section.name`; None if there is no such setting."""
    section, _, name = key.partition(".")
    hint = typing.get_type_hints(schema).get(section)
    return typing.get_type_hints(hint).get(name) if dataclasses.is_dataclass(hint) else None


def _type_error_text(schema: type, error: OmegaConfBaseException, layer: DictConfig, source: str) -> str:
    # An item of a list has a key such as `environment.games[2]`, and the type of the list's items.
    key = error.full_key or str(error.key or "")
    name, item, _ = key.partition("[")
    value = OmegaConf.select(layer, name, throw_on_resolution_failure=False)
    kind = _type_of(schema, name)
    kind = typing.get_args(kind)[0] if item else kind
    wanted = f"it must be {KINDS[kind]}" if kind in KINDS else _first_line(error)
    if kind is None:
        wanted = "it must be a section with keys of its own"
    return f"{source}: {key}: {value!r} has the wrong type: {wanted}"


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
