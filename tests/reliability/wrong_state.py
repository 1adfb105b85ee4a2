"""Ways in which a run's state can be wrong although every file can be read, each a function of the run's directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Damage = Callable[[Path], object]


def edit(name: str, change: Callable[[Any], Any]) -> Damage:
    """Change what a file in `state` holds; the lines of a `.jsonl` file are a list."""

    def damage(run: Path) -> None:
        path, lines = run / "state" / name, name.endswith("l")
        text = path.read_text()
        content = change([json.loads(line) for line in text.splitlines()] if lines else json.loads(text))
        path.write_text("".join(json.dumps(line) + "\n" for line in content) if lines else json.dumps(content))

    return damage


def edit_last(**fields: object) -> Damage:
    """Change fields of the journal's last line."""
    return edit("episodes.jsonl", lambda lines: [*lines[:-1], {**lines[-1], **fields}])


def taken_from_first(field: str) -> Callable[[list], list]:
    """The last line gets the first one's value of a field."""
    return lambda lines: [*lines[:-1], {**lines[-1], field: lines[0][field]}]


def edit_text(name: str, old: str, new: str) -> Damage:
    """Replace a text in a file."""
    return lambda run: (run / name).write_text((run / name).read_text().replace(old, new))


def swap_shards(run: Path) -> None:
    """The first two shards change their names."""
    one, other, *_ = sorted((run / "state/buffer").glob("*.h5"))
    spare = one.with_suffix(".x")
    one.rename(spare)
    other.rename(one)
    spare.rename(other)


WRONG_STATE: dict[str, Damage] = {
    "a line twice": edit("episodes.jsonl", lambda lines: [*lines, lines[-1]]),
    "a line lost": edit("episodes.jsonl", lambda lines: lines[1:]),
    "lines in another order": edit("episodes.jsonl", lambda lines: lines[::-1]),
    "a round that is not": edit_last(round=7),
    "a negative round": edit_last(round=-1),
    "an env that is not": edit_last(env=99),
    "another game's env": edit("episodes.jsonl", taken_from_first("env")),
    "a game that is not": edit_last(game="x/y"),
    "a shard elsewhere": edit_last(shard="../../config.yaml"),
    "another line's shard": edit("episodes.jsonl", taken_from_first("shard")),
    "texts that are none": edit_last(opening=5),
    "steps that are none": edit_last(steps=[1]),
    "a round of memories that is not": edit("memories.json", lambda content: {**content, "round": 9}),
    "an earlier round of memories": edit("memories.json", lambda content: {**content, "round": 0}),
    "memories that are none": edit("memories.json", lambda content: {**content, "memories": []}),
    "a memory that is none": edit("memories.json", lambda content: {**content, "memories": {"g": [1]}}),
    "no memories": edit("memories.json", lambda content: []),
    "games in another order": edit("games.json", lambda games: games[::-1]),
    "a game twice": edit("games.json", lambda games: [games[0], *games[:-1]]),
    "no games": edit("games.json", lambda games: []),
    "games that are none": edit("games.json", lambda games: {"a": 1}),
    "environments that are none": edit("environment.json", lambda content: {"environments": 5}),
    "shards exchanged": swap_shards,
    "no trainer": lambda run: (run / "state/trainer.pth").unlink(),
    "no journal": lambda run: (run / "state/episodes.jsonl").unlink(),
    "metrics that are none": lambda run: (run / "state/metrics.jsonl").write_text("[]\nnot json\n"),
    "another seed": edit_text("config.yaml", "seed: 42", "seed: 43"),
    "settings that are none": lambda run: (run / "config.yaml").write_text("run: 5\n"),
}
