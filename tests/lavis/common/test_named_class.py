"""`module:Class`: found, checked, and wrong in one line."""

from typing import Protocol

import pytest

from alfworld_native import engine_name, make_environment
from lavis.common.errors import ConfigError
from lavis.common.named_class import check_choice_or_class, is_class_name, make_named
from xrl_alignment.agents.experts import make_expert

MODULE = """
class Good:
    def act(self): return 1
class Asking:
    def __init__(self, what): pass
    def act(self): pass
number = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder holds modules, one of them broken."""
    (tmp_path / "named_class_sample.py").write_text(MODULE)
    (tmp_path / "named_class_broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"] + __import__("sys").path)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("named_class_nowhere:A", "there is no module named_class_nowhere (it is looked for on PYTHONPATH and in /"),
        ("json.nowhere:A", "there is no module json.nowhere"),
        ("named_class_broken:A", "importing named_class_broken fails: ZeroDivisionError: division by zero"),
        ("named_class_sample:Bad", "module named_class_sample has no class Bad"),
        ("named_class_sample:Goood", "module named_class_sample has no class Goood: did you mean Good?"),
        ("named_class_sample:number", "module named_class_sample has no class number"),
        ("named_class_sample:Asking", "cannot be made without arguments: TypeError"),
    ],
)
def test_mistakes_are_one_line(folder, name, reason):
    with pytest.raises(ConfigError) as error:
        make_named(name, "expert", ("act",))
    assert reason in str(error.value) and str(error.value).startswith(f"expert {name}: ")
    assert "\n" not in str(error.value)


def test_a_class_of_the_current_folder_is_made(folder):
    assert make_named("named_class_sample:Good", "policy", ("act",)).act() == 1
    with pytest.raises(ConfigError, match="the class lacks close"):
        make_named("named_class_sample:Good", "policy", ("act", "close"))


class Answering(Protocol):
    def begin(self, intro: str, *, memories: tuple = ()) -> None: ...

    def act(self, information: dict | None = None) -> str: ...


def test_a_method_with_other_arguments_is_refused_before_it_is_called(folder, tmp_path):
    module = """
class Named:
    def begin(self, text, memories=None): pass
    def act(self, *anything): pass
class Bare(Named):
    def begin(self): pass
class Blind(Named):
    def act(self): pass
"""
    (tmp_path / "named_class_arguments.py").write_text(module)
    methods = ("begin", "act")
    assert make_named("named_class_arguments:Named", "expert", methods, Answering)
    how = r"write def begin\(self, intro, \*, memories=\(\)\)$"
    with pytest.raises(ConfigError, match=rf"Bare: begin takes other .*: {how}"):
        make_named("named_class_arguments:Bare", "expert", methods, Answering)
    with pytest.raises(ConfigError, match=r"Blind: act takes other .*: write def act\(self, information=None\)$"):
        make_named("named_class_arguments:Blind", "expert", methods, Answering)


def test_names_that_are_no_classes():
    assert is_class_name("a.b:C") and not any(map(is_class_name, ("explorer", "a:", ":C", "a/b:C", "a b:C", "a:b:C")))
    check_choice_or_class("--env", "native", ("native",))
    check_choice_or_class("--env", "x:Y", ("native",))
    with pytest.raises(ConfigError, match="--env: unknown name 'nativ': did you mean 'native'"):
        check_choice_or_class("--env", "nativ", ("native",))


def test_the_examples_are_found_by_name():
    assert make_expert("examples.custom_expert:OrderlyExpert").name == "orderly"
    environment = make_environment("examples.custom_environment:OneRoomEnvironment", max_steps=3)
    assert environment.name == engine_name("examples.custom_environment:OneRoomEnvironment") == "one-room"
    assert (engine_name("household"), engine_name("textworld")) == ("native", "textworld")
