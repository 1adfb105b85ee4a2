"""Transcripts: what TextWorld answers to a script of commands, recorded once and kept in a cache folder.

A transcript is keyed by the content of its game file, so an interrupted proof continues where it stopped. A script
begins with the game's own walkthrough, or an episode of the explorer expert, and goes on with a random walk that
prefers commands which are rare or informative; some commands are garbage. It is chosen by TextWorld's answers alone,
from a seed made of the game's content.
"""

from __future__ import annotations

import gc
import hashlib
import json
import multiprocessing
import os
import random
from collections.abc import Generator, Iterable, Iterator
from contextlib import nullcontext
from importlib import metadata
from multiprocessing.pool import Pool
from pathlib import Path
from typing import NamedTuple

from alfworld_native.base import MAX_STEPS
from alfworld_native.engine.gamefile import read_json
from alfworld_native.experts.explorer import Explorer
from alfworld_native.language.commands import to_dialect
from alfworld_native.prove.oracle import EngineAnswer, Oracle, shortcuts
from lavis.common.errors import FileError

GAMES_PER_PROCESS = 150  # then a fresh one: Fast Downward's library never frees a loaded problem
SCRIPT_VERSION = 1  # part of the cache key: another way to choose commands makes other transcripts
WEIGHTS = {  # of the kinds of commands in the random walk
    **dict.fromkeys(("clean", "heat", "cool", "slice", "use"), 6.0),
    **dict.fromkeys(("move", "put"), 8.0),
    **dict.fromkeys(("take", "open"), 5.0),
    **dict.fromkeys(("go", "look", "examine"), 4.0),
    **dict.fromkeys(("close", "inventory"), 1.5),
    "help": 0.2,
}
GARBAGE = (
    "", "   ", "look around", "LOOK", " look ", "go to", "go to nowhere 1", "take", "take apple 99 from fridge 9",
    "put apple 1 in/on table 1", "move apple 1 to table 1", "examine", "use desklamp", "think: where is the mug?",
    "inventory\n", "open  fridge 1", "Nothing happens.", "öffne kühlschrank 1", "#look.feedback#", "go to {r}", "0",
)  # fmt: skip


class Transcript(NamedTuple):
    """What TextWorld answered: a row (`row`) for the reset, and one for each step."""

    game: str  # <task folder>/<trial folder>
    rows: list[list]


def transcripts_file(folder: Path, steps: int) -> Path:
    """Where transcripts of `steps` steps by the installed TextWorld are kept."""
    version = f"{metadata.version('textworld')}-{metadata.version('alfworld')}-{SCRIPT_VERSION}"
    return folder / f"transcripts-{version}-{steps}.jsonl"


def recorded(
    jobs: Iterable[tuple[str, int, bool]], cache: Path | None, workers: int
) -> Iterator[tuple[str, Transcript]]:
    """Each job's path with its transcript, from the cache or from TextWorld; new ones are added to the cache.

    Raises FileError if the cache cannot be written."""
    known = _read_cache(cache) if cache else {}
    missing = []
    for job in jobs:
        key = hashlib.sha256(Path(job[0]).read_bytes()).hexdigest()[:24]
        if key in known:
            yield job[0], known[key]
        else:
            missing.append((key, job))
    if not missing:
        return
    pool: Pool | None = None
    if workers > 0:
        # The translator makes millions of small objects; usual garbage collection takes a third of its time.
        collect_rarely = (500_000, 20, 100)
        context = multiprocessing.get_context("spawn")
        pool = context.Pool(workers, gc.set_threshold, collect_rarely, maxtasksperchild=GAMES_PER_PROCESS)
    with pool or nullcontext():
        done = pool.imap_unordered(_record, missing) if pool else map(_record, missing)
        for key, path, transcript in done:
            if cache:
                _append(cache, json.dumps([key, transcript.game, transcript.rows]))
            yield path, transcript


def _read_cache(path: Path) -> dict[str, Transcript]:
    """Transcripts by content key; a last line that a crash cut off is left out."""
    known = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                key, game, rows = json.loads(line)
            except ValueError:
                continue  # the proof records that game again
            known[key] = Transcript(game, rows)
    return known


def _append(path: Path, line: str) -> None:
    """Add a line to the cache file. A crash may have cut its last line off: then the new one begins on its own line."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":
                    file.write(b"\n")
            file.write(f"{line}\n".encode())
    except OSError as error:
        raise FileError(f"transcripts {path} could not be written: {error.strerror or error}") from error


_oracle: Oracle | None = None  # one a process


def _record(job: tuple[str, tuple[str, int, bool]]) -> tuple[str, str, Transcript]:
    global _oracle
    key, (path, steps, plain) = job
    _oracle = _oracle or Oracle()
    with nullcontext() if plain else shortcuts():
        return key, path, record(_oracle, path, steps, seed=key)


def record(oracle: Oracle, path: str, steps: int, seed: str) -> Transcript:
    """Let TextWorld play `steps` steps of the game at `path`; the answer to the reset is the first row."""
    rng = random.Random(seed)
    answer = oracle.reset(path)
    rows = [row("", answer, True)]
    commands = script(rng, path, answer)
    command = next(commands)
    while len(rows) <= steps:
        admissible = command.strip() in answer.commands
        answer = oracle.step(command)
        rows.append(row(command, answer, admissible))
        command = commands.send(answer)
    parent = Path(path).parent
    return Transcript(f"{parent.parent.name}/{parent.name}", rows)


def script(rng: random.Random, path: str, answer: EngineAnswer) -> Generator[str, EngineAnswer, None]:
    """The script for a game: a generator of commands without end, which is sent each answer."""
    data = read_json(path)
    if rng.random() < 0.5:
        for command in data.get("walkthrough") or ():
            answer = yield command
    else:
        # An episode of the explorer, which reads and writes the canonical dialect.
        dialect = "move" if "move {o} to {r}" in data["grammar"] else "put"
        expert = Explorer()
        expert.begin(answer.text)
        for _ in range(MAX_STEPS):
            action = expert.act().action
            if answer.won or action is None:
                break
            answer = yield to_dialect(action, dialect)
            expert.observe(action, answer.text)
    # From there a random walk: it reaches states in which the goal is reached, lost, or far away.
    while True:
        answer = yield _wander(rng, answer.commands)


def _wander(rng: random.Random, commands: list[str]) -> str:
    """A command of the random walk: a kind by weight, then any of that kind; now and then garbage."""
    if rng.random() < 0.04:
        return rng.choice(GARBAGE)
    kinds: dict[str, list[str]] = {}
    for command in commands:
        kinds.setdefault(command.split(" ", 1)[0], []).append(command)
    kind = rng.choices(list(kinds), [WEIGHTS.get(kind, 1.0) for kind in kinds])[0]
    return rng.choice(kinds[kind])


def row(command: str, answer: EngineAnswer, admissible: bool) -> list:
    """Command, hash of the text, won, hash of the commands, hash of the facts, whether the command was admissible."""
    commands, facts = digest(answer.commands), digest(sorted(answer.facts))
    return [command, digest(answer.text), answer.won, commands, facts, admissible]


def digest(value: object) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of `value` as JSON."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]
