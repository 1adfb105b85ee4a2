"""Every regular expression of the project reads 20 kB of hostile text in less than a second.

All calls of `re` are found in the sources, and each pattern is taken from its module. Two checks follow:

- Exponential time needs a repetition inside a repetition that can share a text in two ways; the parse tree shows that.
- Quadratic time shows on texts that are made from the pattern itself: 20,000 characters of what it repeats, with and
  without what stands before, and without what must follow. Python's matcher takes seconds for these, or no time.
"""

from __future__ import annotations

import ast
import importlib
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from alfworld_native.language import sentences
from lavis.common.paths import REPO_ROOT
from lavis.models.blip2_models import weights
from tests.test_structure import PACKAGES, modules

if sys.version_info >= (3, 11):
    from re import _compiler as compiler  # type: ignore[attr-defined]
    from re import _constants as codes  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
else:
    import sre_compile as compiler
    import sre_constants as codes
    import sre_parse as parser

SIZE, SECONDS = 20_000, 1.0  # characters; of the processor, for one expression and one text
CALLS = ("compile", "search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer")
PROGRAMS = ("alfworld_client", "dagger_server", "evaluate", "generate_reflections", "post_processing", "train")
REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT)  # possessive ones need Python 3.11, and the project allows 3.10
MANY = 64  # a repetition of more than this counts as one without end
# Calls whose pattern only a running program knows, and what it is then.
MADE_LATER: dict[str, Callable[[], Iterable[str | re.Pattern]]] = {
    "lavis.models.blip2_models.weights:re.match(_pattern(old), name)": lambda: [
        weights._pattern(side) for pair in (*weights._LAVIS, *weights._HUB) for side in pair
    ],
    "lavis.models.convert:re.match(pattern, key)": lambda: [r"Qformer\.encoder\.layer\.(\d+)\."],
    "alfworld_native.renaming:re.compile(f\"\\\\b({'|'.join(map(re.escape, words))})\\\\b\")": lambda: [
        r"\b(mug|cup)\b"
    ],
    "alfworld_native.language.sentences:re.compile(pattern)": lambda: [form for form, *_ in sentences._TEMPLATES],
}


@dataclass(frozen=True)
class Expression:
    """A pattern with its flags, where it stands, and the ways in which it is used (`search`, `fullmatch`, …)."""

    where: str  # `package.module:NAME`, or `package.module:line` for a call
    pattern: re.Pattern
    uses: tuple[str, ...]


# --- finding them -----------------------------------------------------------------------------------------------------


def sources() -> Iterator[tuple[str, str]]:
    """The text of every module of the project, by name."""
    paths = [path for package in PACKAGES for path in modules(package)]
    for path in paths:
        name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        yield name, (REPO_ROOT / path).read_text(encoding="utf-8")
    for name in PROGRAMS:
        yield name, (REPO_ROOT / f"{name}.py").read_text(encoding="utf-8")


def is_call_of_re(node: ast.AST) -> bool:
    """`re.<function>(…)`."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr in CALLS
    )


def uses_of(texts: Iterable[str]) -> dict[str, set[str]]:
    """What is called on each name of the project: `_FORMS` -> {"fullmatch"}; a name alone may be used in any way."""
    found: dict[str, set[str]] = {}
    for text in texts:
        for name, use in re.findall(rf"\b(\w+)\.({'|'.join(CALLS)})\b", text):
            found.setdefault(name, set()).add(use)
    return found


def expressions() -> tuple[list[Expression], list[str]]:
    """All expressions, and the places of those that only a running program knows."""
    texts = dict(sources())
    uses, found, later = uses_of(texts.values()), [], []
    for name, text in texts.items():
        if not re.search(r"\bre\.", text):
            continue
        tree = ast.parse(text)
        calls = [node for node in ast.walk(tree) if is_call_of_re(node)]
        if not calls:
            continue
        namespace = vars(importlib.import_module(name))
        named = {id(node.value): node.targets[0].id for node in tree.body
                 if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)}  # fmt: skip
        for call in calls:
            where = f"{name}:{named.get(id(call), call.lineno)}"
            try:
                source = value(call.args[0], namespace)
                flags = sum(_flags(call, namespace))
            except NameError:
                later.append(f"{name}:{ast.unparse(call)}")
                continue
            how = uses.get(named.get(id(call), ""), {"search"}) if call.func.attr == "compile" else {call.func.attr}
            found.append(Expression(where, re.compile(source, flags), tuple(sorted(how))))
    return found, later


def value(node: ast.expr, namespace: dict[str, Any]) -> Any:
    """What an expression of our own sources is in its module; NameError if it needs a running function."""
    return eval(compile(ast.Expression(node), "sources", "eval"), dict(namespace))  # noqa: S307


def _flags(call: ast.Call, namespace: dict[str, Any]) -> list[int]:
    last = {"compile": 1, "search": 2, "match": 2, "fullmatch": 2, "findall": 2, "finditer": 2}.get(call.func.attr, 9)
    given = [*call.args[last : last + 1], *(word.value for word in call.keywords if word.arg == "flags")]
    return [int(value(node, namespace)) for node in given]


FOUND, LATER = expressions()


# --- exponential time -------------------------------------------------------------------------------------------------

ALPHABET = [chr(number) for number in range(128)] + ["é", "“", "•"]


def parsed(pattern: re.Pattern) -> tuple[Any, int]:
    """The parse tree and the flags; an expression for bytes is read as one for text."""
    if isinstance(pattern.pattern, bytes):
        return parser.parse(pattern.pattern.decode(), pattern.flags | re.UNICODE), pattern.flags | re.UNICODE
    return parser.parse(pattern.pattern, pattern.flags), pattern.flags


def first(tree: Any, flags: int) -> tuple[set[str], bool]:
    """The characters of `ALPHABET` that a match of the sequence `tree` can begin with, and whether it may be empty."""
    characters: set[str] = set()
    for code, value in tree:
        more, empty = _first_of(code, value, flags)
        characters |= more
        if not empty:
            return characters, False
    return characters, True


def _first_of(code: Any, value: Any, flags: int) -> tuple[set[str], bool]:
    if code in REPEATS:
        least, _, body = value
        characters, empty = first(body, flags)
        return characters, empty or least == 0
    if code is codes.SUBPATTERN:
        return first(value[3], flags)
    if code is codes.BRANCH:
        parts = [first(part, flags) for part in value[1]]
        return set().union(*(characters for characters, _ in parts)), any(empty for _, empty in parts)
    if code in (codes.AT, codes.ASSERT, codes.ASSERT_NOT):
        return set(), True
    if code is codes.GROUPREF:
        return set(ALPHABET), True
    return _characters(code, value, flags), False


def _characters(code: Any, value: Any, flags: int) -> set[str]:
    """Of ALPHABET, what a node of one character matches; found by matching."""
    pattern = parser.SubPattern(parser.State())
    pattern.state.flags = pattern.state.flags | flags
    pattern.state.str = ""
    pattern.append((code, value))
    compiled = compiler.compile(pattern, flags)
    return {character for character in ALPHABET if compiled.fullmatch(character)}


def endless(code: Any, value: Any) -> bool:
    """A repetition whose number nothing bounds, and which gives back what it has taken."""
    return code in REPEATS and value[1] > MANY


def ambiguous(pattern: re.Pattern) -> Iterator[str]:
    """What repetitions in repetitions of a pattern could take from each other."""
    yield from _ambiguous(*parsed(pattern))


def _ambiguous(tree: Any, flags: int, inside: set[str] | None = None) -> Iterator[str]:
    """Repetitions in a repetition that could take each other's characters; `inside`: what may follow `tree` then."""
    items = list(tree)
    for index, (code, value) in enumerate(items):
        after, empty = first(items[index + 1 :], flags)
        follows = None if inside is None else (after | inside if empty else after)
        if endless(code, value):
            body = value[2]
            begins, nothing = first(body, flags)
            if follows is not None and begins & follows:
                yield f"{sorted(begins & follows)[:5]} may belong to the inner repetition, or to what follows it"
            if nothing:
                yield "what is repeated without end may be empty"
            # What comes after the body is the body again, for an inner repetition it is the next turn.
            yield from _ambiguous(body, flags, begins | (follows or set()))
        elif code is codes.SUBPATTERN:
            yield from _ambiguous(value[3], flags, follows)
        elif code is codes.BRANCH:
            yield from (told for part in value[1] for told in _ambiguous(part, flags, follows))
        elif code in REPEATS:
            yield from _ambiguous(value[2], flags, follows)


# --- quadratic time ---------------------------------------------------------------------------------------------------


def example(tree: Any, flags: int) -> str:
    """A short text that the sequence matches, as far as that can be said without its assertions."""
    return "".join(_example_of(code, value, flags) for code, value in tree)


def _example_of(code: Any, value: Any, flags: int) -> str:
    if code in REPEATS:
        return example(value[2], flags) * value[0]
    if code is codes.SUBPATTERN:
        return example(value[3], flags)
    if code is codes.BRANCH:
        return example(value[1][0], flags)
    if code in (codes.AT, codes.ASSERT, codes.ASSERT_NOT, codes.GROUPREF):
        return ""
    return next(iter(_sample(code, value, flags)), "x")


def _sample(code: Any, value: Any, flags: int) -> list[str]:
    """A few unlike characters that a node matches."""
    characters = _characters(code, value, flags)
    wanted = [character for character in "a1 \n.,:-\"'([{<>#*_\\/" if character in characters]
    return wanted[:4] or sorted(characters)[:1]


def pumps(tree: Any, flags: int, before: str = "") -> Iterator[tuple[str, str]]:
    """(what stands before it, what is repeated) of each endless repetition."""
    for code, value in tree:
        if code in REPEATS:
            body = value[2]
            if endless(code, value):
                yield before, example(body, flags) or "x"
                if len(body) == 1:
                    yield from ((before, character) for character in _pumped(body[0], flags))
            yield from pumps(body, flags, before)
        elif code is codes.SUBPATTERN:
            yield from pumps(value[3], flags, before)
        elif code is codes.BRANCH:
            for part in value[1]:
                yield from pumps(part, flags, before)
        before += _example_of(code, value, flags)


def _pumped(node: Any, flags: int) -> list[str]:
    code, value = node
    if code in (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN):
        return _sample(code, value, flags)
    return []


def attacks(pattern: re.Pattern, size: int) -> Iterator[str | bytes]:
    """Texts of `size` characters that a matcher which tries again and again takes long for."""
    tree, flags = parsed(pattern)
    whole = example(tree, flags)
    made: dict[str, None] = {whole: None, whole * (size // max(1, len(whole))): None}
    for before, repeated in pumps(tree, flags):
        many = repeated * (size // len(repeated))
        made |= dict.fromkeys((before + many, before + many + "\x00", before + many + "\nx", many + "\x00"))
        unit = before + repeated
        made |= dict.fromkeys((unit * (size // len(unit)), unit * (size // len(unit)) + "\x00"))
        made[many[: size // 2] + before + many[: size // 2] + "\x00"] = None
    for one in made:
        yield one.encode() if isinstance(pattern.pattern, bytes) else one


def call(pattern: re.Pattern, use: str, text: str | bytes) -> None:
    """Use a pattern as the project does."""
    if use in ("sub", "subn"):
        getattr(pattern, use)(text[:0], text)
    elif use == "finditer":
        list(pattern.finditer(text))
    else:
        getattr(pattern, use if use in CALLS[1:] else "search")(text)


class TooLong(Exception):
    """The expression has not ended in time."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """TooLong after so many seconds of the processor: `re` looks for signals while it matches."""

    def stop(*_: object) -> None:
        raise TooLong

    old = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, old)


def slow(pattern: re.Pattern, uses: Iterable[str], size: int = SIZE) -> str:
    """The first attack that an expression does not end in time; empty if it ends all of them."""
    for text in attacks(pattern, size):
        for use in uses:
            try:
                with at_most(SECONDS):
                    call(pattern, use, text)
            except TooLong:
                return f"{use}({text[:30]!r} … {text[-5:]!r})"
    return ""


# --- tests ------------------------------------------------------------------------------------------------------------


def test_every_expression_is_found():
    assert len(FOUND) > 70
    assert set(LATER) == set(MADE_LATER), "name the expressions that are made while the program runs"


@pytest.mark.parametrize("expression", FOUND, ids=lambda expression: expression.where)
def test_an_expression_is_linear(expression: Expression):
    assert list(ambiguous(expression.pattern)) == []
    assert not slow(expression.pattern, expression.uses)


@pytest.mark.parametrize("call", MADE_LATER)
def test_an_expression_that_is_made_later_is_linear(call: str):
    made = [re.compile(source) for source in MADE_LATER[call]()]
    assert made and [pattern.pattern for pattern in made if list(ambiguous(pattern)) or slow(pattern, ("match",))] == []


@pytest.mark.parametrize("source", [r"(a+)+b", r"(?:a|b*c?)*d", r"(\s*x?)+;", r"(?:\w+\s?)*!"])
def test_what_takes_exponential_time_is_noticed(source):
    assert list(ambiguous(re.compile(source)))


@pytest.mark.parametrize("source", [r"\s*(?:[,;\n]|\bthen\b)\s*", r"\d+\d+x", r"(.+?) to (.+)\.", r"(?:a|aa)+b"])
def test_what_takes_long_is_noticed(source):
    assert slow(re.compile(source, re.DOTALL), ("search",))
