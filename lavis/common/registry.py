"""Names for classes: one generic core, and LAVIS's method names on top of it.

`registry.register_model("blip2_emac")` decorates a class; `registry.get_model_class("blip2_emac")` finds it again. An
unknown name is an error that suggests another, and a name can be taken only once. A class that nobody registered can
be named `module:Class`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from lavis.common.errors import ConfigError, EmacError, unknown
from lavis.common.named_class import is_class_name, load_class

T = TypeVar("T")
TypeT = TypeVar("TypeT", bound="type[Any]")


class UnknownNameError(EmacError, KeyError, ValueError):
    """A name that nothing is registered under; the text suggests the nearest, or lists all names."""


class DuplicateNameError(EmacError, KeyError, ValueError):
    """A name that is taken already."""


class Names(Generic[T]):
    """A table of names of one kind ("model", "task", …)."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.table: dict[str, T] = {}
        self.fill: Callable[[], object] | None = None  # called once, before the first look: it adds this project's own

    def add(self, name: str, item: T) -> T:
        """Register `item`; DuplicateNameError for a taken name, unless the definition is the same (module reloaded)."""
        taken = self.table.get(name)
        if taken is not None and taken is not item and _definition(taken) != _definition(item):
            raise DuplicateNameError(f"{self.kind} {name!r} is already registered, as {taken}")
        self.table[name] = item
        return item

    def get(self, name: str) -> T:
        """The item called `name`; else UnknownNameError."""
        if name not in self.table:
            self._fill()
        if name not in self.table:
            raise UnknownNameError(unknown(self.kind, name, self.table))
        return self.table[name]

    def names(self) -> list[str]:
        """All names, sorted."""
        self._fill()
        return sorted(self.table)

    def __iter__(self) -> Iterator[tuple[str, T]]:
        self._fill()
        return iter(sorted(self.table.items()))

    def _fill(self) -> None:
        # Cleared first: what `fill` imports looks up names itself.
        fill, self.fill = self.fill, None
        if fill is not None:
            fill()


def _definition(item: object) -> object:
    """Where a class was defined; any other item itself."""
    if isinstance(item, type):
        return (item.__module__, item.__qualname__)
    return item


class Classes(Names[type[Any]]):
    """A table of classes of one kind, with LAVIS's decorator; `methods` are those that such a class needs."""

    def __init__(self, kind: str, *methods: str) -> None:
        super().__init__(kind)
        self.methods = methods

    def get(self, name: str) -> type[Any]:
        """The class called `name`, or the class `module:Class`; else UnknownNameError or ConfigError."""
        # A program that is started by another one knows a class by this name, too; one that was registered by a script
        # is known to the script's own process alone.
        if name in self.table or not is_class_name(name):
            return super().get(name)
        found = load_class(name, self.kind, self.methods)
        if not isinstance(found, type):
            raise ConfigError(f"{self.kind} {name}: that is no class")
        return found

    def register(self, name: str) -> Callable[[TypeT], TypeT]:
        """Decorator: register a class as `name`."""

        def decorate(cls: TypeT) -> TypeT:
            self.add(name, cls)
            return cls

        return decorate


class Registry:
    """LAVIS's registry: classes by kind and name, paths, and a tree of values under dotted names.

    For each kind of class there are three methods with LAVIS's names: `@registry.register_task(name)`,
    `registry.get_task_class(name)` and `registry.list_tasks()`. `mapping` has the tables by LAVIS's names of them.
    """

    def __init__(self) -> None:
        builders = Classes("dataset builder", "default_config_path", "build_datasets")
        tasks, processors = Classes("task", "setup_task"), Classes("processor", "from_config")
        models, runners = Classes("model", "from_config", "default_config_path"), Classes("runner", "train")
        schedulers = Classes("learning rate scheduler", "step")
        # LAVIS calls the list of builders that of datasets.
        self.register_builder, self.get_builder_class = builders.register, builders.get
        self.list_datasets = builders.names
        self.register_task, self.get_task_class, self.list_tasks = tasks.register, tasks.get, tasks.names
        self.register_processor, self.get_processor_class = processors.register, processors.get
        self.list_processors = processors.names
        self.register_model, self.get_model_class, self.list_models = models.register, models.get, models.names
        self.models = models
        self.register_lr_scheduler, self.get_lr_scheduler_class = schedulers.register, schedulers.get
        self.list_lr_schedulers = schedulers.names
        self.register_runner, self.get_runner_class, self.list_runners = runners.register, runners.get, runners.names
        self._paths: Names[str] = Names("path")
        self.get_path = self._paths.get
        self._state: dict[str, Any] = {}
        # LAVIS's tables under LAVIS's names: the tables themselves, so that what is written into one is found.
        self._mapping: dict[str, dict[str, Any]] = {
            "builder_name_mapping": builders.table,
            "task_name_mapping": tasks.table,
            "processor_name_mapping": processors.table,
            "model_name_mapping": models.table,
            "lr_scheduler_name_mapping": schedulers.table,
            "runner_name_mapping": runners.table,
            "state": self._state,
            "paths": self._paths.table,
        }

    @property
    def mapping(self) -> dict[str, dict[str, Any]]:
        """LAVIS's tables by LAVIS's names; a name that is written into one is registered."""
        self.models.names()  # this project's own models are imported with the first look
        return self._mapping

    def register_path(self, name: str, path: str) -> None:
        """Register a path (a string)."""
        if not isinstance(path, str):
            raise TypeError(f"path {name!r}: expected a string, got {type(path).__name__}")
        self._paths.add(name, path)

    def register(self, name: str, obj: Any) -> None:
        """Keep any value under a dotted name ("a.b.c"); an existing value is replaced, as in LAVIS."""
        *parents, last = name.split(".")
        node = self._state
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = obj

    def get(self, name: str, default: Any = None, no_warning: bool = False) -> Any:
        """The value under a dotted name, or `default`. `no_warning` is LAVIS's; there is no warning to silence."""
        node: Any = self._state
        for part in name.split("."):
            if not isinstance(node, dict) or part not in node:
                return default
            node = node[part]
        return node

    def unregister(self, name: str) -> Any:
        """Take a top-level value out of the tree and return it (`None` if there is none)."""
        return self._state.pop(name, None)


registry = Registry()
