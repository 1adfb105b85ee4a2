"""The registry: finding, refusing duplicates, errors that list what exists."""

from __future__ import annotations

import pytest

from lavis.common.errors import ConfigError, EmacError
from lavis.common.registry import DuplicateNameError, Registry, UnknownNameError

KINDS = ["builder", "task", "processor", "model", "lr_scheduler", "runner"]
LISTS = {"builder": "list_datasets"}


@pytest.mark.parametrize("kind", KINDS)
def test_register_find_list(kind: str) -> None:
    registry = Registry()

    @getattr(registry, f"register_{kind}")("one")
    class One:
        pass

    assert getattr(registry, f"get_{kind}_class")("one") is One
    assert getattr(registry, LISTS.get(kind, f"list_{kind}s"))() == ["one"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_taken_name_is_refused(kind: str) -> None:
    registry = Registry()
    register = getattr(registry, f"register_{kind}")
    register("one")(type("First", (), {}))
    with pytest.raises(DuplicateNameError, match="'one' is already registered"):
        register("one")(type("Second", (), {}))


def test_the_same_class_may_come_again() -> None:
    registry = Registry()
    for _ in range(2):  # a module that is run twice, as by python -m
        registry.register_model("one")(type("Same", (), {}))
    assert registry.list_models() == ["one"]


def test_unknown_name_lists_and_suggests() -> None:
    registry = Registry()
    registry.register_model("blip2_emac")(type("A", (), {}))
    registry.register_model("other")(type("B", (), {}))
    with pytest.raises(UnknownNameError) as error:
        registry.get_model_class("blip2_emca")
    assert str(error.value) == "unknown model 'blip2_emca': did you mean 'blip2_emac'?"
    assert all(isinstance(error.value, kind) for kind in (EmacError, ValueError, KeyError))
    with pytest.raises(UnknownNameError, match="unknown model 'gpt': choose one of blip2_emac, other"):
        registry.get_model_class("gpt")


MODULE = """
class Task:
    @classmethod
    def setup_task(cls, cfg): return cls()
class Bare: pass
def setup(cfg): pass
setup.setup_task = setup
"""


def test_a_class_that_nobody_registered(tmp_path, monkeypatch) -> None:
    (tmp_path / "registry_sample.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry()
    assert registry.get_task_class("registry_sample:Task").__name__ == "Task" and registry.list_tasks() == []
    for name, reason in (
        ("registry_sample:Bare", "task registry_sample:Bare: the class lacks setup_task"),
        ("registry_sample:setup", "task registry_sample:setup: that is no class"),
        ("registry_nowhere:Task", "there is no module registry_nowhere"),
    ):
        with pytest.raises(ConfigError, match=reason):
            registry.get_task_class(name)


def test_this_projects_own_come_with_the_first_look() -> None:
    registry = Registry()
    registry.models.fill = lambda: registry.register_model("own")(type("Own", (), {}))
    registry.register_model("mine")(type("Mine", (), {}))
    assert registry.get_model_class("mine").__name__ == "Mine"
    assert registry.models.fill is not None, "a name that is there needs no look"
    assert registry.get_model_class("own").__name__ == "Own"
    assert registry.list_models() == ["mine", "own"]


def test_values_under_dotted_names() -> None:
    registry = Registry()
    registry.register("run.seed", 7)
    registry.register("run.name", "x")
    assert registry.get("run.seed") == 7
    assert registry.get("run.steps", default=3) == 3
    assert registry.get("run.seed.deeper") is None
    assert registry.unregister("run") == {"seed": 7, "name": "x"}
    assert registry.get("run.seed") is None


def test_paths() -> None:
    registry = Registry()
    registry.register_path("cache_root", "/tmp/x")
    assert registry.get_path("cache_root") == "/tmp/x"
    with pytest.raises(TypeError, match="expected a string"):
        registry.register_path("other", 3)


def test_lavis_tables_are_the_registrys_own() -> None:
    own = Registry()
    own.register_model("a")(int)
    own.register("b.c", 1)
    own.register_path("here", "/x")
    assert own.mapping["model_name_mapping"] == {"a": int} and own.mapping["state"] == {"b": {"c": 1}}
    own.mapping["paths"]["here"] = "/y"  # as LAVIS's programs set the folder of a second run
    own.mapping["task_name_mapping"]["t"] = str
    assert own.get_path("here") == "/y" and own.get_task_class("t") is str
    assert {name for name in own.mapping if name.endswith("_name_mapping")} == {
        f"{kind}_name_mapping" for kind in ("builder", "task", "processor", "model", "lr_scheduler", "runner")
    }
