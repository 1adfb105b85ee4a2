"""What calls to a language model cost: tokens, US dollars, limits on both, and the rate of calls.

An attempt is booked at its worst case before it is sent, and corrected when its real cost is known. So whatever happens
in between (no answer, a damaged one, a killed program), no more was spent than is booked. The account's file is synced
before an attempt is sent: a resumed run knows what may have been spent.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from operator import index
from pathlib import Path

from lavis.common.errors import FileError
from lavis.common.files import whole_lines
from xrl_alignment.common.errors import BudgetSpent

MILLION = 1_000_000
_NO_RECORD = (ValueError, KeyError, TypeError, AttributeError)  # what a file of another kind raises
_EVENTS = {  # what a log line says of them
    "cache_hits": "answers from expert.cache",
    "retries": "retries",
    "no_label": "states without a label",
    "cut": "answers that max_answer_tokens ended too early",
    "grounded": "grounded labels",
    "reflections_by_rule": "memories by rule",
}


@dataclass(frozen=True)
class Usage:
    """Attempts that may have been paid for, and their tokens; `prompt` includes `cached`."""

    calls: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def __sub__(self, other: Usage) -> Usage:
        return self + Usage(-other.calls, -other.prompt, -other.cached, -other.completion)

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.calls + other.calls,
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.completion + other.completion,
        )


@dataclass(frozen=True)
class Prices:
    """US dollars per million tokens; `cached` is the price of prompt tokens that were in the endpoint's cache."""

    prompt: float = 0.0
    cached: float = 0.0
    completion: float = 0.0

    def __bool__(self) -> bool:
        """Whether any price is known."""
        return bool(self.prompt or self.completion)

    def cost(self, usage: Usage) -> float:
        """The cost of `usage` in US dollars."""
        fresh = usage.prompt - usage.cached  # endpoints report cached tokens as a part of the prompt's
        return (fresh * self.prompt + usage.cached * self.cached + usage.completion * self.completion) / MILLION


class Account:
    """Counts what may have been paid for, in total and by round, and refuses an attempt that could exceed a limit.

    A limit of 0 is none. Attempts are kept in memory, and in a file after `keep`. Safe to use from many threads.
    `section` is that of the settings which hold the limits, for messages.
    """

    def __init__(
        self, *, prices: Prices | None = None, max_calls: int = 0, max_cost_usd: float = 0.0, section: str = "expert"
    ) -> None:
        self.section = section
        self.prices = prices or Prices()
        self.max_calls = max_calls
        self.max_cost_usd = max_cost_usd
        self.round = 0
        self.counts: Counter[str] = Counter()  # events of this process: cache hits, retries, …
        self._counts_by_round: dict[int, Counter[str]] = {}
        self._by_round: dict[int, Usage] = {}
        self._total = Usage()
        self._in_progress = 0
        self._changed = threading.Condition()  # the lock of all these numbers, too
        self._file: _SyncedLines | None = None

    def keep(self, path: Path) -> None:
        """Write what is booked to `path` from now on; what it already has counts as spent.

        A line is an amount: the worst case of an attempt, or a correction, in which numbers may be negative; or the
        prices that count from now on for all of them.

        Raises FileError for a file that cannot be read, or holds anything else.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            content = path.read_bytes() if path.exists() else b""
            whole = whole_lines(content)
            if whole != content:  # the writer was killed within a line: the next line must not continue this one
                os.truncate(path, len(whole))
            entries, prices = _parse(whole)
            for round, usage in entries:
                self._book(round, usage)
            self._file = _SyncedLines(path)
            if self.prices and self.prices != prices:
                self._file.append(_line({"prices": asdict(self.prices)}), sync=True)
        except OSError as error:
            raise FileError(f"{path} cannot be used: {error.strerror or error}") from error
        except _NO_RECORD as error:
            raise FileError(f"{path} is no record of expert calls ({error})") from error

    @property
    def total(self) -> Usage:
        """All rounds together."""
        with self._changed:
            return self._total

    def count(self, name: str) -> int:
        """Count one event of this process; returns how many of its name there were, this one included."""
        with self._changed:
            self.counts[name] += 1
            self._counts_by_round.setdefault(self.round, Counter())[name] += 1
            return self.counts[name]

    @contextlib.contextmanager
    def attempt(self, *, prompt: int, completion: int) -> Iterator[Callable[[Usage], None]]:
        """Surround one attempt of at most so many tokens, which are booked before the block begins.

        Gives the function that corrects this to the real usage; an attempt that does not call it stays booked at its
        worst case. Waits while the attempt could exceed a limit only because of attempts in progress, which may cost
        less than booked. Raises BudgetSpent if a limit is reached, FileError if the file cannot be written.
        """
        most = Usage(1, prompt, 0, completion)
        with self._changed:
            while True:
                # The total holds the worst case of every attempt in progress, so no limit can be exceeded.
                after = self._total + most
                too_many = self.max_calls and after.calls > self.max_calls
                too_dear = self.max_cost_usd and self.prices.cost(after) > self.max_cost_usd
                if not (too_many or too_dear):
                    break
                if not self._in_progress:
                    total = self.figures()
                    limits = [f"{self.section}.max_calls={self.max_calls}"] if self.max_calls else []
                    limits += [f"{self.section}.max_cost_usd={self.max_cost_usd:g}"] if self.max_cost_usd else []
                    raise BudgetSpent(
                        f"the {self.section}'s budget is spent: {total['calls']} calls, {_money(total)}, and the next "
                        f"call could go over {' or '.join(limits)}; raise it to go on"
                    )
                self._changed.wait()  # an attempt in progress may be corrected to less
            round = self.round
            # The file comes first: a program that is killed after it has sent the attempt finds the attempt booked.
            if self._file:
                self._file.append(_line({"round": round, **asdict(most)}), sync=True)
            self._book(round, most)
            self._in_progress += 1

        def settle(usage: Usage) -> None:
            correction = usage - most  # negative: the worst case was too much
            with self._changed:
                self._book(round, correction)
                if self._file:
                    # An answer that was paid for must not be lost because its correction cannot be written: then the
                    # file keeps the worst case, and the next attempt fails.
                    with contextlib.suppress(FileError):
                        self._file.append(_line({"round": round, **asdict(correction)}), sync=False)

        try:
            yield settle
        finally:
            with self._changed:
                self._in_progress -= 1
                self._changed.notify_all()

    def start_round(self, round: int) -> None:
        """Book calls to this round from now on."""
        with self._changed:
            self.round = round

    def figures(self, round: int | None = None) -> dict[str, float | None]:
        """Calls, tokens and US dollars of a round, or of all rounds; the dollars are None if no price is known."""
        usage = self.total if round is None else self._by_round.get(round, Usage())
        tokens = {f"{name}_tokens": value for name, value in asdict(usage).items() if name != "calls"}
        cost = _rounded(self.prices.cost(usage)) if self.prices else None
        return {"calls": usage.calls, **tokens, "cost_usd": cost}

    def events(self, round: int) -> dict[str, int]:
        """The events of a round that this process has counted: `cache_hits`, `retries`, `no_label`, …"""
        with self._changed:
            return dict(self._counts_by_round.get(round, {}))

    def line(self, round: int) -> str:
        """One log line with the figures of a round and the total."""
        here, total, events = self.figures(round), self.figures(), self.events(round)
        unpaid = ", ".join(f"{text} {events[name]}" for name, text in _EVENTS.items() if name in events)
        return (
            f"EXPERT: calls {here['calls']}, prompt tokens {here['prompt_tokens']} "
            f"({here['cached_tokens']} cached by the endpoint), completion tokens {here['completion_tokens']}, "
            f"{_money(here)}; {unpaid + '; ' if unpaid else ''}in total {total['calls']} calls, {_money(total)}"
        )

    def report(self, round: int) -> tuple[str, dict[str, float]]:
        """The `line` of a round, and its figures and events as far as they are known: what a run writes at its end."""
        known = {**self.figures(round), **self.events(round)}
        return self.line(round), {name: value for name, value in known.items() if value is not None}

    def status(self) -> dict[str, object]:
        """Figures in total and of this round, the limits, and the events of this process, for `/status`."""
        limits = {"max_calls": self.max_calls, "max_cost_usd": self.max_cost_usd}
        limits = {name: limit for name, limit in limits.items() if limit}
        return {"total": self.figures(), "round": self.figures(self.round), "limits": limits, **self.counts}

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()
            self._file = None

    def _book(self, round: int, usage: Usage) -> None:
        self._by_round[round] = self._by_round.get(round, Usage()) + usage
        self._total += usage


def read_calls(path: Path) -> tuple[dict[int, Usage], Prices | None]:
    """What an account's file has booked, by round, and the prices that it names last.

    A file that is not there is empty; a half-written last line does not count. Raises FileError as `Account.keep`.
    """
    by_round: dict[int, Usage] = {}
    try:
        content = path.read_bytes() if path.exists() else b""
        entries, prices = _parse(whole_lines(content))
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
    except _NO_RECORD as error:
        raise FileError(f"{path} is no record of expert calls ({error})") from error
    for round, usage in entries:
        by_round[round] = by_round.get(round, Usage()) + usage
    return by_round, prices


def _parse(lines: bytes) -> tuple[list[tuple[int, Usage]], Prices | None]:
    """The amounts of an account's file with their rounds, and its last prices."""
    entries, prices = [], None
    for line in lines.splitlines():
        entry = json.loads(line)
        if "prices" in entry:
            prices = Prices(**entry["prices"])  # they count for all amounts of the file
        else:
            numbers = {name: index(number) for name, number in entry.items()}  # JSON has infinities, too
            entries.append((numbers.pop("round"), Usage(**numbers)))
    return entries, prices


class _SyncedLines:
    """Appends lines to a file, each of them whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open(path, "ab", buffering=0)  # without a buffer `write` says how much the disk has taken
        folder = os.open(path.parent, os.O_RDONLY)  # else a power cut may take the new file's name
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def append(self, line: bytes, *, sync: bool) -> None:
        """Add `line`; with `sync` it is on disk before this returns. After a FileError the file is as it was before."""
        # A full disk may take a part of the line; what was written is cut off again, so the file stays readable.
        size = self._file.seek(0, os.SEEK_END)
        try:
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if sync:
                os.fsync(self._file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(size)
            raise FileError(f"{self._path} could not be written: {error.strerror or error}") from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _line(content: dict[str, object]) -> bytes:
    return json.dumps(content).encode() + b"\n"


def _money(figures: dict[str, float | None]) -> str:
    cost = figures["cost_usd"]
    return "cost unknown (no prices are set)" if cost is None else f"{cost:.4f} USD"


# A function of its own because `round` is a round's number in `Account`.
def _rounded(usd: float) -> float:
    """US dollars, rounded to a millionth: no floating-point noise, and a single call still shows."""
    return round(usd, 6)


class Pace:
    """Limits the rate of calls to `per_minute`, evenly spread (0: no limit)."""

    def __init__(
        self,
        per_minute: float = 0.0,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._gap = 60.0 / per_minute if per_minute else 0.0
        self._clock = clock
        self._sleep = sleep
        self._next = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Block until the next call may be made."""
        if not self._gap:
            return
        # Each call takes the next free time under the lock, and waits for it outside: others may take theirs meanwhile.
        with self._lock:
            now = self._clock()
            at = max(now, self._next)
            self._next = at + self._gap
        if at > now:
            self._sleep(at - now)
