"""Games whose objects have names that nobody has read before: whoever plays them has to copy names.

    environment = RenamedEnvironment(NativeEnvironment(), invented_names(random.Random(7)))

An invented word takes the place of an object type's name, in everything that is said and in every command. Engine, game
file and frames know nothing of it. Lamps and knives keep their names, as in the level `renamed`
(`household/new_names.py`); no invented word is one of that level's names, so a player may learn from invented ones and
be tested there.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from alfworld_native.base import Environment, Game, TimeStep, WrappedEnvironment
from alfworld_native.experts.statistics import load_statistics
from alfworld_native.household.new_names import NEW_NAMES
from alfworld_native.language.sentences import NUMBERS

# Letters with which a syllable may begin, be spoken, and end; drawn with equal chance.
_BEGIN = "b bl br c ch cl cr d dr f fl fr g gl gr h j k l m n p pl pr qu r s sc sh sl sm sn sp st sw t th tr v w z"
_SPOKEN = "a a a e e e i i i o o o u u ai au ay ea ee ie oa oo ou oi y"
_END = " b ck d ft g l ll m mp n nd ng nk nt p r rd rk rm rn rt s sk ss st t tch x"
_LETTERS = "eeeeeaaaaoooiiitttnnnsssrrrhhlllddccuummppggbbffkkwvyjqxz"
_LENGTHS = (3, 12)  # letters of a word
# Words of commands and answers, which are no names.
_TAKEN = "a an and arrive at clean close cool examine find from go heat hot in it look of on open pick put see some "
_TAKEN += "take that the them think this to turn under up use with you left more done"


def invented_names(draw: random.Random) -> dict[str, str]:
    """A new word for each object type that `renamed` renames (lower case): no two alike, none of them known."""
    known = load_statistics()
    words = sorted({*_TAKEN.split(), *filter(None, NUMBERS), *known.object_types, *known.receptacle_types})
    taken = {*words, *(name.lower() for name in (*NEW_NAMES, *NEW_NAMES.values()))}
    # In alphabetical order: the draw then depends on the seed alone, not on the order of the table.
    names = {}
    for kind in sorted(name.lower() for name in NEW_NAMES):
        while (word := _word(draw, words)) in taken:
            pass
        taken.add(word)
        names[kind] = word
    return names


def _word(draw: random.Random, words: Sequence[str]) -> str:
    """One to three syllables; letters in any order; or the beginning of one of `words` and pieces of others.

    A tokenizer that was made of the game's texts cuts the third kind where it cuts "onion": the word begins with a
    token that means something else in every command ("on").
    """
    least, most = _LENGTHS
    while True:
        kind = draw.random()
        if kind < 0.35:
            syllables = range(draw.choice((1, 2, 2, 3)))
            word = "".join(draw.choice(_BEGIN.split()) + draw.choice(_SPOKEN.split()) for _ in syllables)
            word += draw.choice(_END.split(" "))
        elif kind < 0.65:
            word = "".join(draw.choices(_LETTERS, k=draw.randint(least, 9)))
        else:
            word = draw.choice(words)[: draw.randint(1, 5)]
            for _ in range(draw.choice((1, 1, 2))):
                start = draw.randrange(len(other := draw.choice(words)))
                word += other[start : start + draw.randint(1, 5)]
        if least <= len(word) <= most and word.isalpha():
            return word


class RenamedEnvironment(WrappedEnvironment):
    """`environment`, in whose texts and commands each type in `names` has another name; an `Environment`."""

    def __init__(self, environment: Environment, names: Mapping[str, str]) -> None:
        super().__init__(environment)
        self._new, self._old = dict(names), {new: old for old, new in names.items()}
        self._any_new, self._any_old = (
            re.compile(rf"\b({'|'.join(map(re.escape, words))})\b") for words in (self._old, self._new)
        )

    def reset(self, game: Game) -> TimeStep:
        """See `Environment`."""
        return self._renamed(self._environment.reset(game))

    def step(self, action: str) -> TimeStep:
        """Carry out `action`, whose names are the new ones; an old one names nothing in this game."""
        if isinstance(action, str):
            # First the old names go: else one that a player happens to know would work in spite of the new ones.
            action = self._any_old.sub("nothing", action)
            action = self._any_new.sub(lambda match: self._old[match[1]], action)
        return self._renamed(self._environment.step(action))

    def restore(self, state: Any) -> TimeStep:
        """See `NativeEnvironment`."""
        return self._renamed(self._environment.restore(state))  # type: ignore[attr-defined]

    def expert_action(self) -> str | None:
        """What the expert would do now, with the new names."""
        action = self._environment.expert_action()  # type: ignore[attr-defined]
        return self._said(action) if action else None

    def _renamed(self, now: TimeStep) -> TimeStep:
        return now._replace(
            text=self._said(now.text), admissible_commands=[self._said(command) for command in now.admissible_commands]
        )

    def _said(self, text: str) -> str:
        return self._any_old.sub(lambda match: self._new[match[1]], text)
