"""Names for classes: one generic core, and LAVIS's method names on top of it.

`registry.register_model("blip2_emac")` decorates a class; `registry.get_model_class("blip2_emac")` finds it again. An
unknown name is an error that suggests another, and a name can be taken only once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from lavis.common.errors import EmacError, unknown

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
        self._items: dict[str, T] = {}

    def add(self, name: str, item: T) -> T:
        """Register `item`; DuplicateNameError for a taken name, unless the definition is the same (module reloaded)."""
        taken = self._items.get(name)
        if taken is not None and taken is not item and _definition(taken) != _definition(item):
            raise DuplicateNameError(f"{self.kind} {name!r} is already registered, as {taken}")
        self._items[name] = item
        return item

    def get(self, name: str) -> T:
        """The item called `name`; else UnknownNameError."""
        if name not in self._items:
            raise UnknownNameError(unknown(self.kind, name, self._items))
        return self._items[name]

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._items)

    def __iter__(self) -> Iterator[tuple[str, T]]:
        return iter(sorted(self._items.items()))


def _definition(item: object) -> object:
    """Where a class was defined; any other item itself."""
    if isinstance(item, type):
        return (item.__module__, item.__qualname__)
    return item


class Registry:
    """LAVIS's registry: classes by kind and name, paths, and a tree of values under dotted names."""

    def __init__(self) -> None:
        self._builders: Names[type[Any]] = Names("dataset builder")
        self._tasks: Names[type[Any]] = Names("task")
        self._processors: Names[type[Any]] = Names("processor")
        self._models: Names[type[Any]] = Names("model")
        self._lr_schedulers: Names[type[Any]] = Names("learning rate scheduler")
        self._runners: Names[type[Any]] = Names("runner")
        self._paths: Names[str] = Names("path")
        self._state: dict[str, Any] = {}

    @staticmethod
    def _decorator(table: Names[type[Any]], name: str) -> Callable[[TypeT], TypeT]:
        def register(cls: TypeT) -> TypeT:
            table.add(name, cls)
            return cls

        return register

    def register_builder(self, name: str) -> Callable[[TypeT], TypeT]:
        """Decorator: register a dataset builder class."""
        return self._decorator(self._builders, name)

    def register_task(self, name: str) -> Callable[[TypeT], TypeT]:
        """Decorator: register a task class."""
        return self._decorator(self._tasks, name)

    def register_processor(self, name: str) -> Callable[[TypeT], TypeT]:
        """Decorator: register a processor class."""
        return self._decorator(self._processors, name)

    def register_model(self, name: str) -> Callable[[TypeT], TypeT]:
        """Decorator: register a model class."""
        return self._decorator(self._models, name)

    def register_lr_scheduler(self, name: str) -> Callable[[TypeT], TypeT]:
        """Decorator: register a learning rate scheduler class."""
        return self._decorator(self._lr_schedulers, name)

    def register_runner(self, name: str) -> Callable[[TypeT], TypeT]:
        """Decorator: register a runner class."""
        return self._decorator(self._runners, name)

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
        """Take a top-level value out of the tree and return it (`None` where there is none)."""
        return self._state.pop(name, None)

    def get_builder_class(self, name: str) -> type[Any]:
        """The dataset builder called `name`."""
        return self._builders.get(name)

    def get_task_class(self, name: str) -> type[Any]:
        """The task called `name`."""
        return self._tasks.get(name)

    def get_processor_class(self, name: str) -> type[Any]:
        """The processor called `name`."""
        return self._processors.get(name)

    def get_model_class(self, name: str) -> type[Any]:
        """The model class called `name`."""
        return self._models.get(name)

    def get_lr_scheduler_class(self, name: str) -> type[Any]:
        """The learning rate scheduler called `name`."""
        return self._lr_schedulers.get(name)

    def get_runner_class(self, name: str) -> type[Any]:
        """The runner called `name`."""
        return self._runners.get(name)

    def get_path(self, name: str) -> str:
        """The path called `name`."""
        return self._paths.get(name)

    def list_models(self) -> list[str]:
        """Names of all models."""
        return self._models.names()

    def list_tasks(self) -> list[str]:
        """Names of all tasks."""
        return self._tasks.names()

    def list_processors(self) -> list[str]:
        """Names of all processors."""
        return self._processors.names()

    def list_lr_schedulers(self) -> list[str]:
        """Names of all learning rate schedulers."""
        return self._lr_schedulers.names()

    def list_runners(self) -> list[str]:
        """Names of all runners."""
        return self._runners.names()

    def list_datasets(self) -> list[str]:
        """Names of all dataset builders (LAVIS's name for it)."""
        return self._builders.names()


registry = Registry()
