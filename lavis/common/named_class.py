"""Classes of one's own as `module:Class`, which may stand wherever an expert, environment or policy is named."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from typing import Any

from lavis.common.errors import ConfigError, described, unknown


def is_class_name(name: str) -> bool:
    """Whether `name` has the form `module:Class` (`examples.custom_expert:OrderlyExpert`)."""
    module, colon, attribute = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), attribute))


def check_choice_or_class(what: str, name: str, choices: tuple[str, ...]) -> None:
    """ConfigError unless `name` is one of `choices` or has the form `module:Class`; `what` is the option's name."""
    if name not in choices and not is_class_name(name):
        raise ConfigError(f"{what}: {unknown('name', name, choices)}, or give module:Class")


def load_class(name: str, kind: str, methods: tuple[str, ...], protocol: type | None = None) -> Any:
    """The class `module:Class`; the module is looked for where Python looks, and in the current folder.

    It is called without arguments. Raises ConfigError, one line, if the module or the class is missing or cannot be
    imported, or if the class lacks one of `methods`, those of the protocol of this `kind`, or one of them does not
    take the arguments that it has in the class `protocol`.
    """
    module, _, attribute = name.partition(":")
    # A program that is started as a script has its own folder on the path, not the current one. At the end: a file of
    # the user must not hide a module that is installed.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{kind} {name}: there is no module {error.name or module} "
            f"(it is looked for on PYTHONPATH and in {os.getcwd()})"
        ) from error
    except Exception as error:  # the module is the user's: whatever breaks in it is told in one line
        raise ConfigError(f"{kind} {name}: importing {module} fails: {described(error)}") from error
    made = getattr(loaded, attribute, None)
    if not callable(made):
        near = difflib.get_close_matches(attribute, [each for each, its in vars(loaded).items() if callable(its)], n=1)
        hint = f": did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{kind} {name}: module {module} has no class {attribute}{hint}")
    lacking = [method for method in methods if not callable(getattr(made, method, None))]
    if lacking:
        raise ConfigError(f"{kind} {name}: the class lacks {', '.join(lacking)} (docs/architecture.md, Interfaces)")
    for method in methods if protocol else ():
        try:
            own = inspect.signature(getattr(made, method))
        except (TypeError, ValueError):  # written in C, and says nothing of its arguments
            continue
        # Would the call that this project makes fit? It passes by name those arguments that only have one.
        wanted = inspect.signature(getattr(protocol, method))
        parameters = wanted.parameters.values()
        by_name = {each.name: None for each in parameters if each.kind is each.KEYWORD_ONLY}
        by_place = [None for each in parameters if each.kind is not each.KEYWORD_ONLY]
        try:
            own.bind(*by_place, **by_name)
        except TypeError:
            # Shown without types, whose names the user's module may not have imported.
            bare = [each.replace(annotation=each.empty) for each in parameters]
            how = f"write def {method}{wanted.replace(parameters=bare, return_annotation=wanted.empty)}"
            raise ConfigError(f"{kind} {name}: {method} takes other arguments than it is called with: {how}") from None
    return made


def make_named(name: str, kind: str, methods: tuple[str, ...], protocol: type | None = None) -> Any:
    """An instance of `load_class`; ConfigError if it cannot be made without arguments."""
    made = load_class(name, kind, methods, protocol)
    try:
        return made()
    except TypeError as error:
        raise ConfigError(f"{kind} {name}: cannot be made without arguments: {described(error)}") from error
