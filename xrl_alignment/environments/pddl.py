"""ALFWorld's game files read in plain Python: the PDDL problem's facts and its goal.

A problem is a list of ground facts, `(inReceptacle Mug_bar_… Desk_bar_…)`, and a goal made of `and` and `exists` over
typed variables. Everything is lower case here, as in Fast Downward's translator, whose ids TextWorld shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from xrl_alignment.environments.base import EnvironmentFault

Fact = tuple[str, ...]  # predicate and ids, ("inreceptacle", "mug_bar_…", "desk_bar_…")

# Predicates of alfred.pddl with the types of their arguments. Those under STATIC never change during a game.
STATIC = {
    "receptacleatlocation": ("receptacle", "location"),
    "openable": ("receptacle",),
    "isreceptacleobject": ("object",),
    "inreceptacleobject": ("object", "object"),
    "receptacletype": ("receptacle", "rtype"),
    "cancontain": ("rtype", "otype"),
    "objecttype": ("object", "otype"),
    "cleanable": ("object",),
    "heatable": ("object",),
    "coolable": ("object",),
    "pickupable": ("object",),
    "toggleable": ("object",),
    "sliceable": ("object",),
}
INITIAL = {
    "atlocation": ("agent", "location"),
    "objectatlocation": ("object", "location"),
    "inreceptacle": ("object", "receptacle"),
    "opened": ("receptacle",),
    "isclean": ("object",),
    "ishot": ("object",),
    "iscool": ("object",),
    "issliced": ("object",),
    "ison": ("object",),
    "istoggled": ("object",),
}
GOAL_ONLY = {"holds": ("agent", "object"), "=": ("object", "object")}
_SIGNATURES = {**STATIC, **INITIAL}
_FACT = re.compile(r"\(([^()]*)\)")
_TOKEN = re.compile(r"[()]|[^\s()]+")


class Literal(NamedTuple):
    """One condition of a goal: `(not (= ?o1 ?o2))` is `Literal(False, "=", ("?o1", "?o2"))`."""

    positive: bool
    predicate: str
    arguments: tuple[str, ...]


class Exists(NamedTuple):
    """There are values of `variables` (name -> type) under which all `literals` hold."""

    variables: Mapping[str, str]
    literals: tuple[Literal, ...]


def sections(problem: str) -> tuple[str, str]:
    """The texts of the `(:init …)` and `(:goal …)` parts of a PDDL problem, in lower case."""
    text = problem.lower()
    start, end = text.find("(:init"), text.find("(:goal")
    if not 0 <= start < end:
        raise EnvironmentFault("its PDDL problem has no (:init …) followed by (:goal …)")
    return text[start + len("(:init") : end], text[end:]


def parse_facts(init: str) -> list[Fact]:
    """The distinct facts of an `:init` section, in the order in which they stand there.

    Raises EnvironmentFault for a predicate that alfred.pddl does not have or a wrong number of arguments.
    """
    facts = list(dict.fromkeys(tuple(fact.split()) for fact in _FACT.findall(init)))
    for fact in facts:
        types = _SIGNATURES.get(fact[0]) if fact else None
        if types is None:
            raise EnvironmentFault(f"predicate {' '.join(fact[:1])!r} in its PDDL problem is unknown")
        if len(fact) != len(types) + 1:
            raise EnvironmentFault(f"fact ({' '.join(fact)}) in its PDDL problem needs {len(types)} argument(s)")
    return facts


def parse_goal(text: str) -> tuple[Exists, ...]:
    """The goal as a conjunction of `Exists` blocks; nested `exists` are pulled to the front of their block.

    Raises EnvironmentFault for anything but `and`, `exists`, `not` and known predicates.
    """
    tree = _nested(text)
    if len(tree) != 2 or tree[0] != ":goal":
        raise EnvironmentFault("its PDDL goal is not of the form (:goal (…))")
    blocks: list[Exists] = []
    for part in _conjuncts(tree[1]):
        variables: dict[str, str] = {}
        literals: list[Literal] = []
        _collect(part, variables, literals)
        blocks.append(Exists(variables, tuple(literals)))
    return tuple(blocks)


def _nested(text: str) -> list:
    """The first S-expression in `text` as nested lists of words."""
    stack: list[list] = [[]]
    for token in _TOKEN.findall(text):
        if token == "(":
            stack.append([])
        elif token == ")":
            done = stack.pop()
            if not stack:
                break
            stack[-1].append(done)
            if len(stack) == 1:
                return done
        else:
            stack[-1].append(token)
    raise EnvironmentFault("the brackets of its PDDL goal do not match")


def _conjuncts(tree: list) -> list:
    return [part for child in tree[1:] for part in _conjuncts(child)] if tree[:1] == ["and"] else [tree]


def _collect(tree: list, variables: dict[str, str], literals: list[Literal]) -> None:
    """Add the variables and literals below `tree` to the block they belong to."""
    head = tree[0] if tree else ""
    if head == "and":
        for child in tree[1:]:
            _collect(child, variables, literals)
    elif head == "exists" and len(tree) == 3:
        variables.update(_typed(tree[1]))
        _collect(tree[2], variables, literals)
    elif head == "not" and len(tree) == 2:
        literals.append(_literal(tree[1], positive=False))
    else:
        literals.append(_literal(tree, positive=True))


def _typed(words: list[str]) -> dict[str, str]:
    """`?o - object ?r - receptacle` as {"?o": "object", "?r": "receptacle"}."""
    result: dict[str, str] = {}
    names: list[str] = []
    kinds = iter(words)
    for word in kinds:
        if word == "-":
            result.update(dict.fromkeys(names, next(kinds, "")))
            names = []
        else:
            names.append(word)
    if names:
        raise EnvironmentFault(f"variable {names[0]} of its PDDL goal has no type")
    return result


def _literal(tree: list, positive: bool) -> Literal:
    types = {**_SIGNATURES, **GOAL_ONLY}.get(tree[0]) if tree and isinstance(tree[0], str) else None
    if types is None or len(types) != len(tree) - 1 or not all(isinstance(word, str) for word in tree):
        raise EnvironmentFault(f"its PDDL goal contains {tree!r}, which is not understood")
    return Literal(positive, tree[0], tuple(tree[1:]))


class GoalTest:
    """A goal made ready to be tested often: static conditions are decided once, for each variable on its own.

    `holds(predicate, arguments) -> bool` answers for facts that change.
    """

    def __init__(self, goal: Iterable[Exists], domains: Mapping[str, Iterable[str]], static: frozenset[Fact]) -> None:
        self._blocks = [_ordered(block, domains, static) for block in goal]

    def satisfied(self, holds: Callable[[str, tuple[str, ...]], bool]) -> bool:
        """Whether every block of the goal has a solution now."""
        return all(_solve(levels, 0, {}, holds) for levels in self._blocks)


class _Level(NamedTuple):
    """A variable, its candidates, and the changing conditions that are decided once it is bound."""

    variable: str
    candidates: tuple[str, ...]
    literals: tuple[Literal, ...]


def _ordered(block: Exists, domains: Mapping[str, Iterable[str]], static: frozenset[Fact]) -> list[_Level]:
    """Fewest candidates first, every condition as early as its variables are bound."""
    candidates = {}
    for name, kind in block.variables.items():
        own = [x for x in block.literals if x.predicate in STATIC and _names(x) == {name}]
        candidates[name] = tuple(
            value for value in domains.get(kind, ()) if all(_static(x, {name: value}, static) for x in own)
        )
    order = sorted(candidates, key=lambda name: len(candidates[name]))
    rest = [x for x in block.literals if x.predicate not in STATIC or len(_names(x)) != 1]
    levels = []
    for i, name in enumerate(order):
        bound = set(order[: i + 1])
        ready = tuple(x for x in rest if name in _names(x) and _names(x) <= bound)
        levels.append(_Level(name, candidates[name], ready))
    return levels


def _names(literal: Literal) -> set[str]:
    return {word for word in literal.arguments if word.startswith("?")}


def _static(literal: Literal, values: Mapping[str, str], static: frozenset[Fact]) -> bool:
    fact = (literal.predicate, *(values.get(word, word) for word in literal.arguments))
    return (fact in static) is literal.positive


def _solve(levels: list[_Level], depth: int, values: dict[str, str], holds: Callable) -> bool:
    if depth == len(levels):
        return True
    name, candidates, literals = levels[depth]
    for value in candidates:
        values[name] = value
        for positive, predicate, arguments in literals:
            if holds(predicate, tuple(values.get(word, word) for word in arguments)) is not positive:
                break
        else:
            if _solve(levels, depth + 1, values, holds):
                return True
    return False
