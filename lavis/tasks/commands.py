"""Comparing commands: their parts (verb, object, receptacle), and their words without inflection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from lavis.common.errors import missing_extra

# ALFWorld's commands: verb, and the word that parts object and receptacle ("" if there is one argument only).
_SPLIT_BY = {"take": "from", "put": "in/on", "heat": "with", "cool": "with", "clean": "with", "slice": "with"}
_PLACES = ("go to", "open", "close")  # their argument is a receptacle
_IRREGULAR = {
    "took": "take", "taken": "take", "went": "go", "gone": "go", "goes": "go", "putting": "put", "knives": "knife",
    "shelves": "shelf", "loaves": "loaf",
}  # fmt: skip
_ARTICLES = frozenset(("a", "an", "the", "some"))


class Command(NamedTuple):
    """A command's parts; "" if it has none. What is no command at all has its first word as verb."""

    verb: str
    object: str = ""
    receptacle: str = ""


def parse(command: str) -> Command:
    """The parts of a normalised command: `put apple 1 in/on fridge 1` -> ("put", "apple 1", "fridge 1")."""
    verb, _, rest = command.partition(" ")
    # The only verb of two words.
    if verb == "go" and rest.startswith("to "):
        verb, rest = "go to", rest[3:]
    if verb in _PLACES:
        return Command(verb, "", rest)
    if verb in _SPLIT_BY:
        thing, _, place = rest.partition(f" {_SPLIT_BY[verb]} ")
        return Command(verb, thing, place)
    return Command(verb, rest)


class Lemmatizer:
    """Texts word by word in their base forms, without articles, with spaCy.

    With the model `en_core_web_sm` if it is installed. Else with spaCy's lookup lemmatizer over a table of the
    regular forms of `vocabulary` (the labels' words) and a few irregular ones: enough to see that `puts the plates …`
    means `put plate …`, and no more. `name` says which.
    """

    def __init__(self, vocabulary: Iterable[str]) -> None:
        try:
            import spacy  # takes half a second, and only evaluation needs it
        except ModuleNotFoundError as error:
            raise missing_extra("metrics", error) from None

        if spacy.util.is_package("en_core_web_sm"):
            self._pipeline = spacy.load("en_core_web_sm", disable=["parser", "ner"])
            self.name = "spaCy en_core_web_sm"
            return
        from spacy.lookups import Lookups

        # Regular English forms of a noun or verb: plural or third person, past, progressive, with a doubled last letter
        # ("putting") or without. Forms that no text has do no harm.
        table = {}
        for word in filter(str.isalpha, vocabulary):
            stem, double = word.removesuffix("e"), word + word[-1]
            forms = [f"{word}s", f"{word}es", f"{stem}ed", f"{stem}ing", f"{double}ing", f"{double}ed"]
            if word.endswith("y"):
                forms += [f"{word[:-1]}ies", f"{word[:-1]}ied"]
            table.update(dict.fromkeys(forms, word))
        # The last ones win: a word of the labels is its own base form, whatever else it might be a form of.
        lookups = Lookups()
        lookups.add_table("lemma_lookup", {**table, **_IRREGULAR, **{word: word for word in vocabulary}})
        self._pipeline = spacy.blank("en")
        lemmatizer: Any = self._pipeline.add_pipe("lemmatizer", config={"mode": "lookup"})
        lemmatizer.initialize(lookups=lookups)
        self.name = "spaCy lookup of the labels' words"

    def __call__(self, texts: Iterable[str]) -> list[str]:
        """The texts in base forms."""
        return [
            " ".join(word.lemma_.lower() for word in doc if word.lower_ not in _ARTICLES)
            for doc in self._pipeline.pipe(texts)
        ]
