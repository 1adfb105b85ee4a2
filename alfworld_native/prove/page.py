"""The result of the proof as a Markdown page, `docs/equivalence.md`."""

from __future__ import annotations

import datetime
import hashlib
from collections import Counter
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from alfworld_native import engine as native
from alfworld_native.prove.transcripts import Transcript
from alfworld_native.prove.versions import dialect_of, known_texts
from lavis.common.paths import REPO_ROOT

PAGE = """# The native engine equals TextWorld

Made by `make prove` (`python -m alfworld_native.prove --all --out docs/equivalence.md`), which plays each
game in TextWorld ({packages}) and in `alfworld_native/engine/` and compares after
the reset and after every step, to the letter: the text, the list of admissible commands in its order, whether the game
is won, and every fact TextWorld keeps, `checked` and `not_…` included. A game's script is its walkthrough or an episode
of the explorer expert, then a random walk that prefers rare and informative commands, with garbage in between.
`make prove GAMES=DIR` does the same for the games below any folder.

Finished on {date}. The engine's sources had the fingerprint `{engine}`; as long as they have not changed,
`sha256sum alfworld_native/engine/*.py | sort | sha256sum` begins with it.

{played}

| split | task type | games | steps compared | games with a mismatch |
| --- | --- | ---: | ---: | ---: |
{table}
{total}

Admissible commands among these steps, by verb: {verbs}. The rest was garbage or not admissible.

## Versions and dialects

A game file holds its own version of `alfred.pddl` and of the grammar, whichever alfworld is installed. `put` says
`put X in/on Y`, `move` says `move X to Y`. {others}

| texts of ALFWorld | dialect | games | steps compared | games with a mismatch |
| --- | --- | ---: | ---: | ---: |
{versions}

Nothing is proven of a version without games here. The native engine refuses texts other than these.

TextWorld runs with the shortcuts of `alfworld_native/prove/oracle.py` (pure functions cache their results);
`--plain-oracle` plays a sample without them, and `tests/alfworld_native/prove/test_oracle.py` compares the
two.
"""


class Proof:
    """What was played and found."""

    def __init__(self) -> None:
        self.found = 0  # game files
        self.refused: Counter[str] = Counter()  # reason -> game files that the native engine does not play
        self.verbs: Counter[str] = Counter()  # of admissible commands
        self.splits: dict[tuple[str, ...], Counter[str]] = {}  # split, task type -> games, steps, mismatches
        self.versions: dict[tuple[str, ...], Counter[str]] = {}  # version -> the same

    def add(self, path: Path, version: str, transcript: Transcript, wrong: bool, told: bool) -> None:
        """One game has been compared; `told`: in other texts than its file's."""
        self.verbs.update(row[0].split()[0] for row in transcript.rows[1:] if row[5])
        rows = [self.versions.setdefault((version, dialect_of(version)), Counter())]
        if not told:
            key = "/".join(path.parts[-4:-3]), transcript.game.split("-", 1)[0]
            rows.append(self.splits.setdefault(key, Counter()))
        for row in rows:
            row.update(games=1, steps=len(transcript.rows), mismatches=int(wrong))

    def total(self) -> Counter[str]:
        """Of all versions: `games` that were compared, `steps` (answers) in them, `mismatches` (games with one)."""
        return sum(self.versions.values(), Counter())


def report(proof: Proof) -> str:
    """The result as a Markdown page."""
    versions = {(name, dialect_of(name)): Counter[str]() for name in known_texts()} | proof.versions
    own: Counter[str] = sum(proof.splits.values(), Counter())
    others = "Each game was played in the texts of its file."
    if again := proof.total()["games"] - own["games"]:
        others = f"Beside the games above, {again:,} were played that are some of these in another version's texts."
    # What the page's command gives for the native engine's files: the SHA-256 of their sorted lines of `sha256sum`.
    lines = []
    for path in Path(native.__path__[0]).glob("*.py"):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        lines.append(f"{digest}  {path.relative_to(REPO_ROOT).as_posix()}\n")
    fingerprint = hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()[:12]
    return PAGE.format(
        date=datetime.date.today().isoformat(),
        engine=fingerprint,
        packages=", ".join(f"{name} {metadata.version(name)}" for name in ("textworld", "alfworld")),
        played=_played(own["games"], proof),
        table=_rows(sorted(proof.splits.items())),
        total=f"| **all** | | **{own['games']:,}** | **{own['steps']:,}** | **{own['mismatches']}** |",
        verbs=", ".join(f"`{verb}` {number:,}" for verb, number in proof.verbs.most_common()),
        others=others,
        versions=_rows(versions.items()),
    )


def _played(games: int, proof: Proof) -> str:
    refused = sum(proof.refused.values())
    reasons = "".join(f"\n- {number:,} not played: {reason}" for reason, number in proof.refused.items())
    if games + refused == proof.found:
        all_ = f"All {games:,} games" if not refused else f"{games:,} of {proof.found:,} games"
        return f"{all_} at hand were played:{reasons}"
    return f"So far {games:,} of the {proof.found:,} games (drawn at random) at hand were played:{reasons}"


def _rows(rows: Iterable[tuple[tuple[str, ...], Counter[str]]]) -> str:
    return "\n".join(
        f"| {' | '.join(key)} | {row['games']:,} | {row['steps']:,} | {row['mismatches']} |" for key, row in rows
    )
