"""Feeds hostile inputs to everything that reads what comes from elsewhere (surfaces), a process for each of them.

    python -m tests.reliability.fuzz --inputs 1000000                          # a fresh seed, printed
    python -m tests.reliability.fuzz --surface Texts --seed 17 --first 4711 --inputs 1     # one input again

Only the documented errors may escape. An input may take a second of processor time, and write nothing outside the
surface's folder; all of them together may not make the process grow. Input `n` of a seed is always the same. Exit code
1 where something was found; every finding is printed once, with the number of its first input.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import random
import secrets
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from tests.reliability.surface import Surface
from tests.reliability.watched import GROWTH, HANG_S, Watch, memory
from xrl_alignment.environments.household.generator import generate

_SHOWN = 400
SHARES = {  # of all inputs, in thousandths
    "message_surfaces": {
        "WireV1": 200,
        "WireV2": 200,
        "Texts": 150,
        "Answers": 150,
        "PolicyRequests": 80,
        "SplitInference": 80,
    },
    "file_surfaces": {"Shards": 40, "Annotations": 40, "Games": 20, "State": 20, "Configs": 12, "Checkpoints": 8},
}
NAMES = {name: module for module, shares in SHARES.items() for name in shares}


class Findings:
    """What was found, each kind once: by the error's type and the place where it was raised."""

    def __init__(self, surface: str, seed: int) -> None:
        self.surface, self.seed = surface, seed
        self.count: Counter[str] = Counter()

    def add(self, kind: str, number: int, given: Any, text: str) -> None:
        self.count[kind] += 1
        if self.count[kind] == 1:
            again = f"--surface {self.surface} --seed {self.seed} --first {number} --inputs 1"
            print(f"FOUND {kind}\n  again: {again}\n  input: {given!r:.{_SHOWN}}\n{text}", flush=True)


def place(error: BaseException) -> str:
    """Type and innermost place of an error in the project's code."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/tests/" not in frame.filename]
    inner = [frame for frame in frames if "site-packages" not in frame.filename and "/lib/python" not in frame.filename]
    last = (inner or frames or traceback.extract_tb(error.__traceback__))[-1]
    return f"{type(error).__name__} in {Path(last.filename).name}:{last.name}"


def feed(surface: Surface, number: int, seed: int, watch: Watch, findings: Findings) -> None:
    """Make input `number` and feed it."""
    given = surface.make(random.Random(f"{seed} {findings.surface} {number}"))
    began = time.process_time()
    try:
        with watch.input():
            surface.feed(given)
    except surface.errors:
        pass
    except Exception as error:
        findings.add(place(error), number, given, "".join(traceback.format_exception(error)[-4:]))
    if (taken := time.process_time() - began) > HANG_S:
        findings.add("slow", number, given, f"  {taken:.1f} s")
    if watch.seen:
        findings.add(f"outside: {watch.seen[0][:60]}", number, given, f"  {watch.seen}")
        watch.seen.clear()


def prepared(name: str, folder: Path) -> Surface:
    """The surface called `name`, with a folder of its own and a few games in it."""
    own = folder / name
    own.mkdir()
    os.environ |= {"XDG_CACHE_HOME": str(own / "cache"), "TMPDIR": str(own)}
    generate(own / "games", num_train=3, num_heldout=1, seed=0)
    return getattr(importlib.import_module(f"tests.reliability.{NAMES[name]}"), name)(own)


def fuzz(name: str, seed: int, first: int, inputs: int, folder: Path) -> int:
    """Feed `inputs` inputs to one surface; returns the number of findings."""
    surface, findings = prepared(name, folder), Findings(name, seed)
    watch, began, before = Watch(folder), time.monotonic(), 0
    for number in range(first, first + inputs):
        feed(surface, number, seed, watch, findings)
        if number - first == inputs // 10:
            before = memory()
    growth = memory() - before
    if growth > GROWTH:
        findings.add("growth", first, b"", f"  {growth >> 20} MB in {inputs} inputs")
    found = dict(findings.count)
    seconds = time.monotonic() - began
    print(f"{name}: {inputs} inputs in {seconds:.0f} s, {max(growth, 0) >> 20} MB more, found {found}", flush=True)
    return len(found)


def _in_process(name: str, seed: int, first: int, inputs: int, folder: Path) -> None:
    sys.exit(min(fuzz(name, seed, first, inputs, folder), 99))


def main() -> int:
    """Every surface its share, one after the other; a surface that dies is a finding, too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="inputs in all")
    parser.add_argument("--surface", choices=NAMES, nargs="+", default=list(NAMES))
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    arguments = parser.parse_args()
    seed = secrets.randbelow(1 << 31) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    shares = {name: SHARES[NAMES[name]][name] for name in arguments.surface}
    bad = []
    with tempfile.TemporaryDirectory(prefix="emac-fuzz-") as folder:
        for name, share in shares.items():
            inputs = -(-arguments.inputs * share // sum(shares.values()))
            task = (name, seed, arguments.first, inputs, Path(folder))
            process = multiprocessing.get_context("fork").Process(target=_in_process, args=task)
            process.start()
            process.join()
            if process.exitcode:
                bad.append(name)
                print(f"{name}: exit code {process.exitcode}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
