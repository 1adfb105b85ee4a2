"""TextWorld's own engine as the reference: what it answers is right by definition.

TextWorld spends its 30 to 45 ms a step and up to 1.5 s a load on doing the same pure work again: parsing the same
templates, translating the same problem four times, deep-copying what nobody changes. `shortcuts()` replaces exactly
these functions while it is active; `--plain-oracle` shows that nothing observable depends on them.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from alfworld_native.engine.pddl import Fact
from lavis.common.errors import MissingExtraError

if TYPE_CHECKING:
    import textworld


class EngineAnswer(NamedTuple):
    """All that is observable after a reset or a step."""

    text: str
    commands: list[str]
    won: bool
    facts: frozenset[Fact]


class Oracle:
    """TextWorld's PDDL engine with ALFWorld's names. Reused from game to game: each new one loads a C library."""

    def __init__(self) -> None:
        try:
            import textworld
            from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

            from alfworld_native.textworld import KnownGamesEnv
        except ImportError as error:
            raise MissingExtraError(f"the proof needs alfworld and textworld[pddl]: {error}") from None
        # `KnownGamesEnv` also here: TextWorld runs expressions of the grammar as Python code (`gamefile`).
        self._env = AlfredDemangler(KnownGamesEnv(textworld.EnvInfos(won=True, admissible_commands=True)))

    def reset(self, path: Path | str) -> EngineAnswer:
        """Load the game at `path` and begin it."""
        self._env.load(str(path))
        return self._answer(self._env.reset())

    def step(self, command: str) -> EngineAnswer:
        """Carry out `command`."""
        return self._answer(self._env.step(command)[0])

    @staticmethod
    def _answer(state: textworld.GameState) -> EngineAnswer:
        # `new-axiom@…` are Fast Downward's own helpers for the goal; ALFWorld filters them out as well.
        known = (fact for fact in state["_facts"] if not fact.name.startswith("new-axiom@"))
        facts = frozenset((fact.name, *(word.name for word in fact.arguments)) for fact in known)
        return EngineAnswer(state["feedback"], state["admissible_commands"], bool(state["won"]), facts)


@contextmanager
def shortcuts() -> Iterator[None]:
    """While active, TextWorld's pure functions cache their results.

    - The grammar's templates and queries are parsed once each.
    - A problem is translated once instead of four times. The optimised translation is not made at all: it serves
      `policy_commands` (the planner) only, which is neither asked for nor compared.
    - A command's text is derived once per action: it reads names and `receptacleAtLocation`, which never change.
    - The derivation's context is copied one level deep: nothing in it is changed below that.
    """
    import fast_downward
    from textworld.envs.pddl import textgen
    from textworld.logic import Rule

    parse, derive, translate = (
        textgen._parse_and_convert,
        textgen.ContextSensitiveGrammar.derive,
        fast_downward.pddl2sas,
    )
    remembered_parse = functools.lru_cache(maxsize=4096)(lambda text: parse(text, rule_name="symbols"))
    remembered_query = functools.lru_cache(maxsize=4096)(Rule.parse_conjunctive_query)
    remembered_translation = functools.lru_cache(maxsize=1)(translate)
    texts: dict[tuple, str] = {}

    def remembered_derive(self: Any, start: str, context: Any = None) -> str:
        if "#" in start or not context["mapping"]:
            return derive(self, start, context)
        entities = context["entity_infos"]
        key = (start, *((ph.name, entities[var.name].name) for ph, var in context["mapping"].items()))
        if key not in texts:
            texts[key] = derive(self, start, context)
        return texts[key]

    def load_translation(domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> Any:
        texts.clear()  # a new game
        return remembered_translation(domain, problem)

    def shallow(context: dict[str, Any]) -> dict[str, Any]:
        copies = {"variables": dict(context["variables"]), "mapping": dict(context["mapping"])}
        return {**context, **copies}

    replacements = (
        # A copy for each caller: `derive` writes the context into the symbols that it gets.
        (textgen, "_parse_and_convert", lambda text, **_: copy.deepcopy(remembered_parse(text))),
        (textgen.ContextSensitiveGrammar, "derive", remembered_derive),
        (textgen, "copy_context", shallow),
        (Rule, "parse_conjunctive_query", remembered_query),
        (fast_downward, "pddl2sas", load_translation),
    )
    # From `__dict__`: `getattr` would bind the classmethod `parse_conjunctive_query`, and that would be put back.
    originals = [(target, name, target.__dict__[name]) for target, name, _ in replacements]
    try:
        for target, name, value in replacements:
            setattr(target, name, value)
        yield
    finally:
        for target, name, value in originals:
            setattr(target, name, value)
