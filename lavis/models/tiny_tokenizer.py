"""Builds the tokenizer of the `tiny` model from ALFWorld's own vocabulary, offline.

    python -m lavis.models.tiny_tokenizer                 # rewrites lavis/models/tiny/tokenizer.json
    python -m lavis.models.tiny_tokenizer --out FILE

A small student of ALFWorld has to copy names and numbers from its prompt, so the tokenizer makes copying easy:
every object and receptacle type (" cabinet") and every number (" 3") is one token, the same token wherever it occurs,
and never part of a longer one. The sentences of ALFWorld's grammar are single tokens (", you see a", ". On the"), so a
prompt is short. All other text is byte-pair encoded over bytes (Sennrich et al. 2016, arXiv:1508.07909), so any text
survives the round trip.

How: a regular expression cuts the text into pieces (phrase | name | number | word | rest), and a byte-level BPE with
`ignore_merges` looks each piece up as a whole before it falls back to merges.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from lavis.common.program import read_first, run_program

DEFAULT_OUT = Path(__file__).parent / "tiny" / "tokenizer.json"


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Build the tiny model's tokenizer from ALFWorld's vocabulary.")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="file to write (default: the package's own)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes are answered at once.
    read_first(parse_arguments)

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from lavis.common.files import write_atomically

SPECIAL_TOKENS = ("<unk>", "<s>", "</s>", "[PAD]")  # ids 0 to 3; <unk>, <s> and </s> stand where Llama has them
LARGEST_NUMBER = 40
MERGED_VOCABULARY = 640  # size before names, numbers and phrases are added: bytes, and merges learnt from WORDS

# Sentences of ALFWorld's grammar (alfworld/data/alfred.twl2) and of the task templates
# (alfworld/gen/goal_library.py), cut where a name or a number stands.
PHRASES = (
    ".\n> ",
    "\n> ",
    ".\n...\n> ",  # the line that stands for left-out steps
    "\n...\n> ",
    "-= Welcome to TextWorld, ALFRED! =-\n\n",
    "You are in the middle of a room. Looking quickly around you, you see a",
    ".\n\nYour task is to:",
    ".\nYour task is to:",
    "Your task is to:",
    "\n\nYour task is to:",
    "\nYour task is to:",
    ", and a",
    ", a",
    ", you see a",
    ", you see nothing",
    "\nYou arrive at",
    ". On the",
    "\nOn the",
    ". The",
    "\nThe",
    " is closed",
    " is open. In it, you see a",
    " is open. In it, you see nothing",
    ". In it, you see a",
    ". In it, you see nothing",
    "\nYou open the",
    "\nYou close the",
    "\nYou pick up the",
    "\nYou put the",
    "\nYou move the",
    "\nYou heat the",
    "\nYou cool the",
    "\nYou clean the",
    "\nYou turn on the",
    "\nYou turn off the",
    "\nYou are carrying: a",
    "\nYou are not carrying anything",
    "\nYou are facing the",
    ". Next to it, you see nothing",
    ". Next to it, you see a",
    "\nThere's nothing special about",
    "\nThis is a",
    "\nNothing happens",
    "\nOK",
    " using the",
    " from the",
    " in/on the",
    " to the",
    "go to",
    "think:",
    "Memory:",
    " (by rule)",
    " Next time I will",
    " I need a",
    " I need another",
    " I need my hand for",
    " and have not seen one, so I look in/on",
    ", the likeliest place left",
    " is in/on",
    ", so I take it",
    ", so I put it in/on",
    ", so I leave it in/on",
    ", so I leave",
    ", so I use",
    ", so I",
    " I hold",
    " it with",
    " I do not need",
    " I searched",
    " but did not",
    " in places that I never saw inside:",
    " while holding it",
    ", I will not repeat it",
    ", go to",
    ", open",
    ", take",
    ", put",
    ", use",
    ", look for",
    " in/on",
    " and put it in",
    " and put it on",
    " and put them in",
    " under the",
    " with the",
    " look at",
    " examine the",
    " find two",
    " put two",
    " put some",
    " put a",
    " clean some",
    " heat some",
    " cool some",
)

# Words of actions, tasks, thoughts and memories; " word" and "word" both become tokens for the first group.
VERBS = "take open close put move clean heat cool use slice examine look inventory find".split()
WORDS = (
    "a an the and or of in on to from with under it them some two hot cool cold clean sliced is are was be not no "
    "nothing I you my You your I'm The This That Now Next Then Since First In Of At On To For need find first "
    "then next now here there where last time more most likely can could should will would have has had found see "
    "seen look looked looking locations location place places room receptacle receptacles object objects task "
    "step steps try tried trial plan action actions went going get got put take took taken open opened closed "
    "check checked search searched carry carrying holding hand already still again before after instead because "
    "so but than that this these those what which when while did do does done never always only also all any each "
    "every one three other another same finished failed success fail solve order appear start end stuck repeat "
    "repeating loop until remaining memory memories reflection turn switch lamp light sink heated cooled cleaned "
    "empty inside at by for as if into up stop wrong right directly go heat use using sure able keep avoid "
    "remember carried number numbers kind visited contains contain left possible think thought must may want were "
    "been its they me we OK Looking around rule saw complete everywhere goes names named times"
).split()


def type_names() -> list[str]:
    """Names of object and receptacle types as the games print them: lower case, in alphabetical order."""
    from alfworld.gen import constants  # only the builder needs alfworld; the tokenizer file stands alone

    names = {name.lower() for name in (*constants.OBJECTS, *constants.RECEPTACLES, "Faucet", "PaintingHanger")}
    return sorted(names)


def any_of(texts: list[str]) -> str:
    """A regular expression of the longest of `texts` that matches: a tree of letters, for they share beginnings.

    As a plain list of alternatives it takes twice as long: each would be tried at every place.
    """
    tree: dict[str, dict] = {}
    for text in texts:
        node = tree
        for letter in text:
            node = node.setdefault(letter, {})
        node[""] = {}  # a text ends here
    return _pattern(tree)


def _pattern(node: dict[str, dict]) -> str:
    branches = "|".join(re.escape(letter) + _pattern(below) for letter, below in node.items() if letter)
    return f"(?:{branches}){'?' if '' in node else ''}" if branches else ""


def build_tokenizer() -> Tokenizer:
    """Make the tokenizer; always the same one for the same alfworld version and source text."""
    names = type_names()
    words = [f" {word}" for word in WORDS]
    whole = [*PHRASES, *(f" {name}" for name in names), *(f" {n}" for n in range(LARGEST_NUMBER + 1))]
    whole += [*VERBS, *(f" {verb}" for verb in VERBS), *words]

    # 1. The regular expression whose matches are the pieces: phrase | name | number | word | blanks | other signs. A
    # phrase or name that ends in a letter must not be the beginning of a longer word (" pan" in " panel").
    after_word = [phrase for phrase in PHRASES if phrase[-1].isalpha()]
    others = [phrase for phrase in PHRASES if not phrase[-1].isalpha()]
    pieces = (
        rf"{any_of(others)}|{any_of(after_word)}(?![A-Za-z])| {any_of(names)}(?![A-Za-z])"
        r"| ?\d+| ?[^\W\d_]+(?:'[a-z]+)?|[ \t]+|\n+| ?[^\s\w]+|\w|\s"
    )
    cut = pre_tokenizers.Split(Regex(pieces), behavior="isolated")
    # Bytes as printable characters, in GPT-2's way: with these 256 any text can be written.
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    # 2. Merges for what is no whole piece, learnt from the lists by byte-pair encoding (Sennrich et al. 2016).
    merger = Tokenizer(models.BPE())
    merger.pre_tokenizer = pre_tokenizers.Sequence([cut, byte_level])
    trainer = trainers.BpeTrainer(
        vocab_size=MERGED_VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    merger.train_from_iterator([" ".join(WORDS), *words, *VERBS], trainer)

    learnt = json.loads(merger.to_str())["model"]  # the section with the vocabulary and merges
    vocabulary: dict[str, int] = dict(sorted(learnt["vocab"].items(), key=lambda item: item[1]))
    # 3. Each whole piece is a token, whether merges lead to it or not (`ignore_merges` below looks pieces up first).
    for text in whole:
        piece = byte_level.pre_tokenize_str(text)[0][0]
        vocabulary.setdefault(piece, len(vocabulary))
    merges = [tuple(pair) for pair in learnt["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", ignore_merges=True))
    tokenizer.pre_tokenizer = merger.pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def main() -> None:
    """Write the tokenizer file and print its size."""
    arguments = parse_arguments()
    tokenizer = build_tokenizer()
    write_atomically(arguments.out, lambda file: file.write(tokenizer.to_str(pretty=False).encode()))
    print(f"{arguments.out}: {tokenizer.get_vocab_size()} tokens, {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    run_program(main)
