"""The result of the proof as a Markdown page, `docs/equivalence.md`."""

from __future__ import annotations

from collections import Counter
from importlib import metadata
from pathlib import Path

from xrl_alignment.environments.prove.comparison import Mismatch
from xrl_alignment.environments.prove.transcripts import Transcript

PAGE = """# The native engine equals TextWorld

Made by `make prove` (`python -m xrl_alignment.environments.prove --all --out docs/equivalence.md`), which plays each
game in TextWorld ({versions}) and in `xrl_alignment/environments/native/` and compares after
the reset and after every step, to the letter: the text, the list of admissible commands in its order, whether the game
is won, and every fact TextWorld keeps, `checked` and `not_…` included. A game's script is its walkthrough or an episode
of the explorer expert, then a random walk that prefers rare and informative commands, with garbage in between.

{games} at hand were played:

| split | task type | games | steps compared | games with a mismatch |
| --- | --- | ---: | ---: | ---: |
{table}
{total}

Admissible commands among these steps, by verb: {counts}. The rest was garbage or not admissible.

TextWorld runs with the shortcuts of `xrl_alignment/environments/prove/oracle.py` (pure functions cache their results);
`--plain-oracle` plays a sample without them, and `tests/xrl_alignment/environments/prove/test_oracle.py` compares the
two.

These games share one version of `alfred.pddl` and of the grammar. The other versions that the native engine plays
(`DOMAINS` and `GRAMMARS` in `native/gamefile.py`: those of the alfworld packages 0.2.2 to 0.4.2) are proven the same
way on generated games by `tests/xrl_alignment/environments/prove/test___main__.py`. Any other version is refused.
"""


def report(transcripts: dict[str, Transcript], mismatches: list[Mismatch], verbs: Counter[str], found: int) -> str:
    """The result as a Markdown page."""
    rows: dict[tuple[str, str], list[int]] = {}
    wrong = {mismatch.path for mismatch in mismatches}
    for path, transcript in transcripts.items():
        split = Path(path).parents[2].name
        row = rows.setdefault((split, transcript.game.split("-", 1)[0]), [0, 0, 0])
        row[0] += 1
        row[1] += len(transcript.rows)
        row[2] += path in wrong
    total = [sum(row[i] for row in rows.values()) for i in range(3)]
    table = [f"| {split} | {task} | {a:,} | {b:,} | {c} |" for (split, task), (a, b, c) in sorted(rows.items())]
    counts = ", ".join(f"`{verb}` {number:,}" for verb, number in verbs.most_common())
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("textworld", "alfworld"))
    return PAGE.format(
        versions=versions,
        table="\n".join(table),
        games=f"All {found:,} games"
        if total[0] == found
        else f"So far {total[0]:,} of the {found:,} games (drawn at random)",
        total=f"| **all** | | **{total[0]:,}** | **{total[1]:,}** | **{total[2]}** |",
        counts=counts,
    )
