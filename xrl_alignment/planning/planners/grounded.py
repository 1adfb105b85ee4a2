"""Plans that can be carried out: decoding under a grammar of high-level actions, the room's places and things seen.

A language model that is small, or new to a room, writes `go to cabinet 4` although the room has no cabinet, and
searches a place a second time. Under the grammar it cannot: at each step it writes the likeliest of those tokens with
which the text is still the beginning of a plan. What to do, where to search and in which order stays the model's
choice. The grammar is ours, not EMAC+'s; PICARD (Scholak et al. 2021, arXiv:2109.05093) decodes SQL so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import regex
import torch
from torch import Tensor

from alfworld_native.language.sentences import parse_opening, type_of
from lavis.models.blip2_models.text import LlmTokenizer
from xrl_alignment.planning.planners.base import PlanQuestion
from xrl_alignment.planning.plans import MAX_ACTIONS, TREATMENTS

_NUMBERED = regex.compile(r"\b[a-z]+ \d+\b")
_WORD = "[a-z]{2,24}"  # a type: what is searched for may be any
_NO_THING = regex.compile(r"\b(?:a|an|the|then|and)(?: in/on .*)?$")  # `read_plan` drops these words
_TRIED = 64  # likeliest tokens, before all others are looked at
_NEVER = 15.0  # a token that is less likely than another one by so many nats wins no search


class PlanGrammar:
    """The plans for one state, of at most `MAX_ACTIONS` actions.

    A plan searches (`go to`) places of the room that were not searched yet, each at most once; if all were searched in
    vain, all may be searched again. Things with a number are those that a report has named; a type may be any word.
    What is put may be put in or on every place of the room, which a number or a type names.
    """

    def __init__(self, question: PlanQuestion) -> None:
        places, _ = parse_opening(question.goal)
        left = [name for name in places if name not in question.searched] or places
        self._searches = [f"go to {name}" for name in left]
        told = set(_NUMBERED.findall(" ".join(report for _, report in question.history)))
        search, place = _any_of(self._searches), _any_of({*places, *map(type_of, places)})
        thing = _any_of(told - set(places), _WORD)
        forms = [
            *([search] if search else []),
            f"(?:take|use|{'|'.join(TREATMENTS)}) {thing}",
            *([f"put {thing} in/on {place}"] if place else []),
        ]
        action = f"(?:{'|'.join(forms)})"
        self._plan = regex.compile(f"{action}(?:, {action}){{0,{MAX_ACTIONS - 1}}}")

    def begins(self, text: str) -> bool:
        """Whether `text` is a plan or the beginning of one."""
        *done, newest = text.split(", ")
        if newest.endswith(","):  # half of what stands between two actions
            done, newest = [*done, newest[:-1]], ""
        searches = [one for one in done if one.startswith("go to ")]
        # Of the searches that are not in the plan yet the text must begin one, or it could not go on.
        left = [one for one in self._searches if one not in searches]
        fresh = not newest.startswith("g") or any(one.startswith(newest) for one in left)
        once = len(set(searches)) == len(searches)
        readable = not any(map(_NO_THING.search, done))
        return once and fresh and readable and self._plan.fullmatch(text, partial=True) is not None

    def ends(self, text: str) -> bool:
        """Whether `text` is a whole plan."""
        *done, newest = text.split(", ")
        again = newest.startswith("go to ") and newest in done
        known = not again and not _NO_THING.search(newest)
        return known and self.begins(text) and self._plan.fullmatch(text) is not None

    def whole(self, text: str, *, cut: bool) -> str:
        """`text`, which begins a plan, without what stands behind its last whole action; `cut`: it was to go on.

        The last action of a text that was cut goes, too, unless it is the only one: it may be half of another one.
        """
        text = text.rstrip()
        if text.endswith(","):
            return text[:-1]
        shorter = text.rpartition(", ")[0]
        return text if self.ends(text) and not (cut and shorter) else shorter


class Grounded:
    """A rule of decoding (`fast_llm.Rule`): the likeliest tokens with which a text is still the beginning of a plan.

    Each text keeps `beams` of them, by its prompt's grammar (None: all tokens). A text that no token continues ends.
    """

    def __init__(self, grammars: Sequence[PlanGrammar | None], tokenizer: LlmTokenizer, beams: int = 1) -> None:
        self._grammars = grammars
        self._tokenizer = tokenizer
        self._beams = beams

    def __call__(self, prompts: Tensor, written: Tensor, scores: Tensor) -> Tensor:
        """`scores` (n, vocabulary) with -inf where a token is not left; `prompts` (n,) numbers, `written` (n, L)."""
        left = torch.full_like(scores, -torch.inf)
        for row, (prompt, ids) in enumerate(zip(prompts.tolist(), written.tolist(), strict=True)):
            grammar = self._grammars[prompt]
            tokens = slice(None) if grammar is None else self._next(grammar, ids, scores[row])
            left[row, tokens] = scores[row, tokens]
        return left

    def _next(self, grammar: PlanGrammar, written: list[int], scores: Tensor) -> list[int]:
        eos, decode = self._tokenizer.eos_id, self._tokenizer.decode
        if eos in written:  # a row that has ended, while others go on
            return [eos]
        text = decode(written).lstrip()
        found: list[int] = []
        best = 0.0  # the score of the first token in `found`
        for count, wanted in ((min(_TRIED, len(scores)), self._beams), (len(scores), 1)):
            likeliest = scores.topk(count)
            for token, score in zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True):
                if found and score < best - _NEVER:
                    return found
                longer = text if token == eos else decode([*written, token]).lstrip()
                if grammar.ends(text) if token == eos else longer != text and grammar.begins(longer):
                    best = best if found else score
                    found.append(token)
                    if len(found) == wanted:
                        return found
            if found:
                return found
        return [eos]


def _any_of(names: Collection[str], *others: str) -> str:
    """An expression for one of `names`, or of the expressions `others`; "" for none."""
    # Longer ones first, or `desk` would be found in `desk 1` and the rest be no action.
    choices = [*map(regex.escape, sorted(names, key=lambda name: (-len(name), name))), *others]
    return f"(?:{'|'.join(choices)})" if choices else ""
