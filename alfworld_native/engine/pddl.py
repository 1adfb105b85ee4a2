"""ALFWorld's PDDL problems in plain Python: parsing facts and goals, and testing a goal in microseconds.

A problem is a list of ground facts, `(inReceptacle Mug_bar_… Desk_bar_…)`, and a goal made of `and` and `exists` over
typed variables. Everything is lower case here, as in Fast Downward's translator, whose ids TextWorld shows.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from alfworld_native.errors import EnvironmentFault

Fact = tuple[str, ...]  # predicate and ids, ("inreceptacle", "mug_bar_…", "desk_bar_…")
Facts = Mapping[str, Sequence[str]]  # predicate -> the ids of all its facts, one fact after the other, sorted

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
CHANGING = {
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
SIGNATURES = {**STATIC, **CHANGING}
# `isOn` is left out: after a `use`, TextWorld's facts say less about it than Fast Downward's state knows.
# `=` belongs to PDDL itself. `holds` is in no `:init`, because every game begins with an empty hand.
IN_GOALS = {**SIGNATURES, "holds": ("agent", "object"), "=": ("object", "object")}
del IN_GOALS["ison"]
_FACT = re.compile(r"\(([^()]*)\)")
_TOKEN = re.compile(r"[()]|[^\s()]+")
_TYPES = ("agent", "object", "receptacle", "location")  # of a goal's variables
_DEEPEST = 100  # brackets in a goal; it is read by recursion, and ALFWorld's have about 10


class Literal(NamedTuple):
    """One condition of a goal: `(not (= ?o1 ?o2))` is `Literal(False, "=", ("?o1", "?o2"))`."""

    positive: bool
    predicate: str
    arguments: tuple[str, ...]

    @property
    def variables(self) -> frozenset[str]:
        """The variables among its arguments."""
        return frozenset(word for word in self.arguments if word.startswith("?"))


class Exists(NamedTuple):
    """There are values of `variables` (name -> type) under which all `literals` hold."""

    variables: Mapping[str, str]
    literals: tuple[Literal, ...]


class Level(NamedTuple):
    """A variable of a goal, its candidates, and the conditions that can be decided once it is bound."""

    variable: str
    candidates: tuple[str, ...]
    literals: tuple[Literal, ...]


Goal = tuple[tuple[Level, ...], ...]  # one search per `exists`


def sections(problem: str) -> tuple[str, str]:
    """The texts of the `(:init …)` and `(:goal …)` parts of a PDDL problem, in lower case."""
    text = problem.lower()
    # `find` gives -1 for a part that is not there, which the comparison refuses, too.
    start, end = text.find("(:init"), text.find("(:goal")
    if not 0 <= start < end:
        raise EnvironmentFault("its PDDL problem has no (:init …) followed by (:goal …)")
    return text[start + len("(:init") : end], text[end:]


def parse_facts(init: str) -> dict[str, tuple[str, ...]]:
    """The distinct facts of an `:init` section.

    Raises EnvironmentFault for a predicate that alfred.pddl does not have or a wrong number of arguments.
    """
    found: dict[str, set[Fact]] = defaultdict(set)
    # `_FACT` matches brackets without brackets inside: exactly the facts.
    for text in set(_FACT.findall(init)):
        predicate, *ids = text.split() or [""]
        types = SIGNATURES.get(predicate)
        if types is None:
            raise EnvironmentFault(f"predicate {predicate!r} in its PDDL problem is unknown")
        if len(ids) != len(types):
            raise EnvironmentFault(f"fact ({text}) in its PDDL problem needs {len(types)} argument(s)")
        found[predicate].add(tuple(ids))
    return {name: tuple(word for fact in sorted(facts) for word in fact) for name, facts in sorted(found.items())}


def pairs(facts: Facts, predicate: str) -> list[tuple[str, str]]:
    """The facts of a predicate with two arguments."""
    ids = facts.get(predicate, ())
    return list(zip(ids[::2], ids[1::2], strict=True))


def rows(facts: Facts) -> Iterable[Fact]:
    """All facts, one by one."""
    for predicate, ids in facts.items():
        if len(SIGNATURES[predicate]) == 1:
            yield from ((predicate, name) for name in ids)
        else:
            yield from ((predicate, *pair) for pair in pairs(facts, predicate))


@lru_cache(maxsize=4096)
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
        # `prepare_goal` decides a condition when its last variable is bound: one without any would never be decided.
        if any(not literal.variables or literal.variables - variables.keys() for literal in literals):
            raise EnvironmentFault("its PDDL goal has a condition outside the (exists …) of its variables")
        blocks.append(Exists(variables, tuple(literals)))
    return tuple(blocks)


def _nested(text: str) -> list:
    """The first S-expression in `text` as nested lists of words."""
    stack: list[list] = [[]]
    for token in _TOKEN.findall(text):
        if token == "(":
            if len(stack) > _DEEPEST:
                raise EnvironmentFault(f"its PDDL goal has more than {_DEEPEST} brackets within each other")
            stack.append([])
        elif token != ")":
            stack[-1].append(token)
        elif len(stack) > 1:
            done = stack.pop()
            stack[-1].append(done)
            if len(stack) == 1:  # the outermost bracket is closed: what follows belongs to the problem, not to the goal
                return done
    raise EnvironmentFault("the brackets of its PDDL goal do not match")


def _conjuncts(tree: list) -> list:
    # Nested `and`s are one conjunction.
    return [part for child in tree[1:] for part in _conjuncts(child)] if tree[:1] == ["and"] else [tree]


def _collect(tree: list, variables: dict[str, str], literals: list[Literal]) -> None:
    """Add the variables and literals below `tree` to the block they belong to."""
    head = tree[0] if tree else ""
    if head == "and":
        for child in tree[1:]:
            _collect(child, variables, literals)
    elif head == "exists" and len(tree) == 3 and isinstance(tree[1], list):
        variables.update(_typed(tree[1]))
        _collect(tree[2], variables, literals)
    elif head == "not" and len(tree) == 2:
        literals.append(_literal(tree[1], positive=False))
    else:
        literals.append(_literal(tree, positive=True))


def _typed(words: list) -> dict[str, str]:
    """`?o - object ?r - receptacle` as {"?o": "object", "?r": "receptacle"}."""
    result: dict[str, str] = {}
    names: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word == "-":
            # In PDDL a type holds for all names since the last one: `?a ?b - object`.
            if (kind := next(remaining, "")) not in _TYPES:
                raise EnvironmentFault(f"the type {kind!r} in its PDDL goal is not understood")
            result.update(dict.fromkeys(names, kind))
            names = []
        elif not isinstance(word, str):
            raise EnvironmentFault(f"the variable {word!r} in its PDDL goal is not understood")
        else:
            names.append(word)
    if names:
        raise EnvironmentFault(f"variable {names[0]} of its PDDL goal has no type")
    return result


def _literal(tree: list, positive: bool) -> Literal:
    types = IN_GOALS.get(tree[0]) if tree and isinstance(tree[0], str) else None
    if types is None or len(types) != len(tree) - 1 or not all(isinstance(word, str) for word in tree):
        raise EnvironmentFault(f"its PDDL goal contains {tree!r}, which is not understood")
    return Literal(positive, tree[0], tuple(tree[1:]))


def prepare_goal(goal: Iterable[Exists], domains: Mapping[str, Iterable[str]], facts: Facts) -> Goal:
    """Make a goal ready to be tested often. `domains` holds the ids of each type.

    The test is a backtracking search. Conditions that never change and have one variable filter its candidates now.
    The variable with the fewest candidates is bound first (the "minimum remaining values" heuristic for constraint
    satisfaction), and every other condition is tested as soon as its variables are bound.
    """
    searches = []
    for block in goal:
        candidates = {name: tuple(domains.get(kind, ())) for name, kind in block.variables.items()}
        later = []
        for literal in block.literals:
            if literal.predicate in STATIC and len(literal.variables) == 1:
                (name,) = literal.variables
                having = _having(literal, facts)
                candidates[name] = tuple(x for x in candidates[name] if (x in having) is literal.positive)
            else:
                later.append(literal)
        # Minimum remaining values: the variable with the fewest candidates is bound first.
        order = sorted(candidates, key=lambda name: len(candidates[name]))
        levels = []
        for i, name in enumerate(order):
            # A condition is tested at the level that binds the last of its variables.
            ready = (x for x in later if name in x.variables and x.variables.issubset(order[: i + 1]))
            levels.append(Level(name, candidates[name], tuple(ready)))
        searches.append(tuple(levels))
    return tuple(searches)


def _having(literal: Literal, facts: Facts) -> frozenset[str]:
    """The ids that can stand for the one variable of a literal that never changes, its sign left aside."""
    if len(literal.arguments) == 1:
        return frozenset(facts.get(literal.predicate, ()))
    # Of two arguments one is the variable, or both are the same one.
    first, second = literal.arguments
    found = pairs(facts, literal.predicate)
    if not first.startswith("?"):
        return frozenset(b for a, b in found if a == first)
    if not second.startswith("?"):
        return frozenset(a for a, b in found if b == second)
    return frozenset(a for a, b in found if a == b)


def satisfied(goal: Goal, true: Callable[[str, tuple[str, ...]], bool]) -> bool:
    """Whether every part of the goal has a solution; `true(predicate, ids)` answers for single facts."""
    return all(_solve(levels, 0, {}, true) for levels in goal)


def _solve(levels: tuple[Level, ...], depth: int, values: dict[str, str], true: Callable) -> bool:
    if depth == len(levels):
        return True
    name, candidates, literals = levels[depth]
    for value in candidates:
        # Overwritten, never removed: no condition of this level has a variable of a later one (`prepare_goal`).
        values[name] = value
        for positive, predicate, arguments in literals:
            # A list inside: CPython builds a tuple faster from a list than from a generator.
            if true(predicate, tuple([values.get(word, word) for word in arguments])) is not positive:
                break
        else:
            if _solve(levels, depth + 1, values, true):
                return True
    return False
