"""The proof that the native engine equals TextWorld's to the letter: both play the same games, all is compared.

    python -m xrl_alignment.environments.prove --games 50 --steps 40 --data DIR     # a sample, exit code 0 or 1
    python -m xrl_alignment.environments.prove --all --out docs/equivalence.md      # every game (`make prove`)

It has two halves. The slow one records *transcripts*: what TextWorld answers to a script of commands (its text, the
admissible commands, won, and all facts, the long ones as hashes). They are kept in a cache folder, keyed by the game
file's content, so an interrupted proof goes on where it stopped. The fast half plays the native engine by each
transcript and compares every answer; it is repeated after every change of the engine, and takes seconds.

A script begins with the game's own walkthrough, or an episode of the explorer expert, and goes on with a random walk
that prefers commands which are rare or informative; some commands are garbage. It is chosen by TextWorld's answers
alone, from a seed made of the game's content.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from xrl_alignment.common.errors import EnvironmentFault
from xrl_alignment.environments.base import MAX_STEPS
from xrl_alignment.environments.games import cache_root, data_root
from xrl_alignment.environments.native.game import NativeGame
from xrl_alignment.environments.native.gamefile import read_json
from xrl_alignment.environments.oracle import Answer, Oracle, shortcuts
from xrl_alignment.experts.explorer import Explorer
from xrl_alignment.language.commands import to_dialect

DEFAULT_STEPS = 60
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
    """What TextWorld answered: `rows` of command, hash of the text, won, hash of the commands, hash of the facts."""

    game: str  # <task folder>/<trial folder>
    rows: list[list]


class Mismatch(NamedTuple):
    """The first place where the engines differ in a game; a game is not played further after it."""

    path: str
    step: int
    command: str
    what: str


def main(arguments: list[str] | None = None) -> int:
    """Run the proof; 0 without mismatches, 1 with, 2 where it cannot run."""
    options = _parse(arguments)
    try:
        paths = find_all(data_root(options.data), options.seed)
        return prove(paths if options.all else paths[: options.games], options, found=len(paths))
    except (EnvironmentFault, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser = argparse.ArgumentParser(
        prog="python -m xrl_alignment.environments.prove", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--data", help="folder with json_2.1.1 (default: $ALFWORLD_DATA, else ~/.cache/alfworld)")
    parser.add_argument("--games", type=int, default=50, help="number of games to draw (default: 50)")
    parser.add_argument("--all", action="store_true", help="every game under the folder")
    parser.add_argument("--steps", type=int, default=DEFAULT_STEPS, help="steps a game (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="for drawing games (default: 0)")
    parser.add_argument("--workers", type=int, default=cores, help="TextWorld processes (default: %(default)s)")
    parser.add_argument("--cache", type=Path, help="folder of transcripts (default: prove in the project's cache)")
    parser.add_argument("--no-cache", action="store_true", help="neither read nor keep transcripts")
    parser.add_argument(
        "--plain-oracle", action="store_true", help="TextWorld without any shortcut; implies --no-cache"
    )
    parser.add_argument("--out", type=Path, help="write the result as Markdown")
    return parser.parse_args(arguments)


def find_all(folder: Path, seed: int) -> list[Path]:
    """Game files below `folder` in an order drawn by `seed`, so that the first ones are a fair sample."""
    paths = sorted(folder.rglob("game.tw-pddl"))
    if not paths:
        raise EnvironmentFault(
            f"no game.tw-pddl below {folder}: get the official games with `alfworld-download`, or give --data DIR"
        )
    random.Random(seed).shuffle(paths)
    return paths


def prove(paths: list[Path], options: argparse.Namespace, found: int) -> int:
    """Record what is missing, compare all, print and write the result (of `found` games); the exit code."""
    cache = None
    if not options.no_cache and not options.plain_oracle:
        cache = transcripts_file(options.cache or cache_root() / "prove", options.steps)
    transcripts: dict[str, Transcript] = {}
    mismatches: list[Mismatch] = []
    verbs: Counter[str] = Counter()  # of admissible commands
    progress = Progress(len(paths))
    jobs = ((str(path), options.steps, options.plain_oracle) for path in paths)
    for path, transcript in recorded(jobs, cache, options.workers):
        transcripts[path] = transcript
        verbs.update(row[0].split()[0] for row in transcript.rows[1:] if row[5])
        mismatch = compare(path, transcript)
        if mismatch is not None:
            mismatches.append(mismatch)
            print(f"MISMATCH {describe(mismatch, transcript)}", flush=True)
        progress.show(len(transcripts), sum(len(t.rows) for t in transcripts.values()), len(mismatches))
    compared = sum(len(transcript.rows) for transcript in transcripts.values())
    print(f"{len(transcripts)} games, {compared} steps compared, {len(mismatches)} mismatches")
    if options.out:
        options.out.write_text(report(transcripts, mismatches, verbs, found), encoding="utf-8")
    return 1 if mismatches else 0


# ---- the slow half: TextWorld's transcripts ------------------------------------------------------------------------


def transcripts_file(folder: Path, steps: int) -> Path:
    """Where transcripts of `steps` steps by the installed TextWorld are kept."""
    version = f"{metadata.version('textworld')}-{metadata.version('alfworld')}-{SCRIPT_VERSION}"
    return folder / f"transcripts-{version}-{steps}.jsonl"


def recorded(
    jobs: Iterable[tuple[str, int, bool]], cache: Path | None, workers: int
) -> Iterator[tuple[str, Transcript]]:
    """Each job's path with its transcript, from the cache or from TextWorld; what is new is added to the cache."""
    known = _read_cache(cache) if cache else {}
    missing = []
    for job in jobs:
        key = _content_key(job[0])
        if key in known:
            yield job[0], known[key]
        else:
            missing.append((key, job))
    if not missing:
        return
    if cache:
        cache.parent.mkdir(parents=True, exist_ok=True)
        _end_last_line(cache)
    with cache.open("a", encoding="utf-8") if cache else nullcontext() as file, _pool(workers) as pool:
        done = pool.imap_unordered(_record, missing) if pool else map(_record, missing)
        for key, path, transcript in done:
            if file:
                file.write(json.dumps([key, transcript.game, transcript.rows]) + "\n")
                file.flush()
            yield path, transcript


def _pool(workers: int):
    if workers < 1:
        return nullcontext()
    context = multiprocessing.get_context("spawn")
    return context.Pool(workers, initializer=_fewer_collections, maxtasksperchild=GAMES_PER_PROCESS)


def _fewer_collections() -> None:
    """The translator makes millions of small objects; usual garbage collection takes a third of its time."""
    gc.set_threshold(500_000, 20, 100)


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


def _end_last_line(path: Path) -> None:
    """A crash may have cut the last line off: what comes next begins on its own line."""
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.write(b"\n")


def _content_key(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:24]


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
    rows = [_row("", answer, True)]
    script = opening(rng, path, answer)
    command = next(script)
    while len(rows) <= steps:
        admissible = command.strip() in answer.commands
        answer = oracle.step(command)
        rows.append(_row(command, answer, admissible))
        command = script.send(answer)
    parent = Path(path).parent
    return Transcript(f"{parent.parent.name}/{parent.name}", rows)


def opening(rng: random.Random, path: str, answer: Answer) -> Generator[str, Answer, None]:
    """A generator of commands without end; it is sent each answer."""
    data = read_json(path)
    if rng.random() < 0.5:
        for command in data.get("walkthrough") or ():
            answer = yield command
    else:
        dialect = "move" if "move {o} to {r}" in data["grammar"] else "put"
        answer = yield from _expert_episode(answer, dialect)
    while True:
        answer = yield _wander(rng, answer.commands)


def _expert_episode(answer: Answer, dialect: str) -> Generator[str, Answer, Answer]:
    """An episode of the explorer, which reads and writes the canonical dialect."""
    expert = Explorer()
    expert.begin(answer.text)
    for _ in range(MAX_STEPS):
        action = expert.act().action
        if answer.won or action is None:
            break
        answer = yield to_dialect(action, dialect)
        expert.observe(action, answer.text)
    return answer


def _wander(rng: random.Random, commands: list[str]) -> str:
    """A command of the random walk: a kind by weight, then any of that kind; now and then garbage."""
    if rng.random() < 0.04:
        return rng.choice(GARBAGE)
    kinds: dict[str, list[str]] = {}
    for command in commands:
        kinds.setdefault(command.split(" ", 1)[0], []).append(command)
    kind = rng.choices(list(kinds), [WEIGHTS.get(kind, 1.0) for kind in kinds])[0]
    return rng.choice(kinds[kind])


def _row(command: str, answer: Answer, admissible: bool) -> list:
    commands, facts = _digest(answer.commands), _digest(sorted(answer.facts))
    return [command, _digest(answer.text), answer.won, commands, facts, admissible]


def _digest(value) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]


# ---- the fast half: the native engine against a transcript ---------------------------------------------------------


def compare(path: str, transcript: Transcript) -> Mismatch | None:
    """Play the native engine by `transcript`; the first difference, or None."""
    try:
        game = NativeGame.load(path)
    except EnvironmentFault as error:
        return Mismatch(path, 0, "", f"the native engine refuses the game: {error}")
    for step, (command, *expected) in enumerate(transcript.rows):
        text = game.step(command) if step else game.reset()
        answer = Answer(text, game.admissible_commands(), game.won, game.facts())
        found = _row(command, answer, bool(expected[-1]))[1:]
        for what, ours, theirs in zip(("text", "won", "commands", "facts"), found, expected, strict=False):
            if ours != theirs:
                return Mismatch(path, step, command, what)
    return None


def describe(mismatch: Mismatch, transcript: Transcript) -> str:
    """The mismatch with both engines' answers; plays the game again in TextWorld up to that step."""
    head = f"{mismatch.path}, step {mismatch.step}, command {mismatch.command!r}: {mismatch.what}"
    if mismatch.what not in ("text", "won", "commands", "facts"):
        return head
    game, oracle = NativeGame.load(mismatch.path), Oracle()
    with shortcuts():
        answer, text = oracle.reset(mismatch.path), game.reset()
        for command, *_ in transcript.rows[1 : mismatch.step + 1]:
            answer, text = oracle.step(command), game.step(command)
    ours = {"text": text, "won": game.won, "commands": set(game.admissible_commands()), "facts": game.facts()}
    theirs = {"text": answer.text, "won": answer.won, "commands": set(answer.commands), "facts": answer.facts}
    a, b = ours[mismatch.what], theirs[mismatch.what]
    if mismatch.what in ("commands", "facts"):
        a, b = sorted(a - b), sorted(b - a)
    return f"{head}\n  native:    {a!r}\n  textworld: {b!r}"


# ---- telling -------------------------------------------------------------------------------------------------------


class Progress:
    """A line a second on a terminal, a line every half minute in a log, with the time left."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._start = self._last = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def show(self, games: int, steps: int, mismatches: int) -> None:
        """Tell how far it is."""
        now = time.monotonic()
        if now - self._last < (1 if self._terminal else 30) and games < self._total:
            return
        self._last = now
        left = (now - self._start) / games * (self._total - games)
        line = f"{games}/{self._total} games, {steps} steps, {mismatches} mismatches, {left / 60:.1f} min left"
        end = "\r" if self._terminal and games < self._total else "\n"
        print(f"{line:<78}", end=end, file=sys.stderr, flush=True)


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


PAGE = """# The native engine equals TextWorld

Made by `make prove` (`python -m xrl_alignment.environments.prove --all --out docs/equivalence.md`), which plays each
game in TextWorld ({versions}) and in `xrl_alignment/environments/native.py` and compares after
the reset and after every step, to the letter: the text, the list of admissible commands in its order, whether the game
is won, and every fact TextWorld keeps, `checked` and `not_…` included. A game's script is its walkthrough or an episode
of the explorer expert, then a random walk that prefers rare and informative commands, with garbage in between.

{games} at hand were played:

| split | task type | games | steps compared | games with a mismatch |
| --- | --- | ---: | ---: | ---: |
{table}
{total}

Admissible commands among these steps, by verb: {counts}. The rest was garbage or not admissible.

TextWorld runs with the shortcuts of `xrl_alignment/environments/oracle.py` (pure functions remember their results);
`--plain-oracle` plays a sample without them, and `tests/xrl_alignment/environments/test_oracle.py` compares the two.

These games share one version of `alfred.pddl` and of the grammar. The other versions that the native engine plays
(`DOMAINS` and `GRAMMARS` in `gamefile.py`: those of the alfworld packages 0.2.2 to 0.4.2) are proven the same way on
generated games by `tests/xrl_alignment/environments/test_prove.py`. Any other version is refused.
"""


if __name__ == "__main__":
    sys.exit(main())
