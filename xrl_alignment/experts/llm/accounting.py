"""What calls to a language model cost: tokens, money, limits, and how fast they may follow each other.

The book is one JSON line for every answer that was paid for, so a resumed run knows what it has spent.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from xrl_alignment.common.errors import BudgetSpent

MILLION = 1_000_000


@dataclass(frozen=True)
class Usage:
    """Tokens of one answer or of many, as the endpoint counts them; `cached` are among `prompt`."""

    calls: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.calls + other.calls,
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.completion + other.completion,
        )


@dataclass(frozen=True)
class Prices:
    """US dollars for a million tokens; `cached` is the price of prompt tokens that the endpoint had in its cache."""

    prompt: float = 0.0
    cached: float = 0.0
    completion: float = 0.0

    def cost(self, usage: Usage) -> float:
        """US dollars."""
        fresh = usage.prompt - usage.cached
        return (fresh * self.prompt + usage.cached * self.cached + usage.completion * self.completion) / MILLION


class Account:
    """Counts what was paid for, in total and by round, and refuses what would go over a limit (0: none).

    A call reserves the most that it can cost before it is made, so a limit holds also while many calls are on their
    way. The book is kept in memory, or in a file (`keep`). Safe to use from many threads.
    """

    def __init__(self, *, prices: Prices | None = None, max_calls: int = 0, max_cost_usd: float = 0.0) -> None:
        self.prices = prices or Prices()
        self.max_calls = max_calls
        self.max_cost_usd = max_cost_usd
        self.round = 0
        self.counts: Counter[str] = Counter()  # of this process: cache hits, retries, answers without a label, …
        self._by_round: dict[int, Usage] = {}
        self._reserved = Usage()
        self._changed = threading.Condition()
        self._file: TextIO | None = None

    def keep(self, path: Path) -> None:
        """Keep the book in `path` from now on; what stands in it counts as spent."""
        self._read(path)
        self._file = open(path, "a", encoding="utf-8")

    @property
    def total(self) -> Usage:
        """All rounds together."""
        with self._changed:
            return sum(self._by_round.values(), Usage())

    @property
    def cost_usd(self) -> float:
        """What all calls so far cost."""
        return self.prices.cost(self.total)

    def count(self, name: str) -> None:
        """Note one event of this process."""
        with self._changed:
            self.counts[name] += 1

    @contextmanager
    def paying(self, *, prompt: int, completion: int) -> Iterator[Callable[[Usage], None]]:
        """Around one call that may take up to so many tokens; gives the function to be told the real usage.

        Waits while only calls on their way stand between this one and a limit. Raises BudgetSpent where a limit is
        reached.
        """
        most = Usage(1, prompt, 0, completion)
        with self._changed:
            while not self._affordable(self._reserved + most):
                if not self._reserved.calls:
                    raise BudgetSpent(self._spent())
                self._changed.wait()
            self._reserved += most
        try:
            yield self._book
        finally:
            with self._changed:
                self._reserved += Usage(-1, -prompt, 0, -completion)
                self._changed.notify_all()

    def start_round(self, round: int) -> None:
        """Calls from now on count for this round."""
        with self._changed:
            self.round = round

    def figures(self, round: int | None = None) -> dict[str, float]:
        """Calls, tokens and US dollars of a round, or of all."""
        usage = self.total if round is None else self._by_round.get(round, Usage())
        tokens = {f"{name}_tokens": value for name, value in asdict(usage).items() if name != "calls"}
        return {"calls": usage.calls, **tokens, "cost_usd": round_cents(self.prices.cost(usage))}

    def line(self, round: int) -> str:
        """A round's figures and the total in one line of a log."""
        here, total = self.figures(round), self.figures()
        return (
            f"EXPERT: calls {here['calls']}, prompt tokens {here['prompt_tokens']} (cached {here['cached_tokens']}), "
            f"completion tokens {here['completion_tokens']}, {here['cost_usd']:.4f} USD; "
            f"in total {total['calls']} calls, {total['cost_usd']:.4f} USD"
        )

    def status(self) -> dict[str, object]:
        """Total, this round, and the events of this process, for `/status`."""
        return {"total": self.figures(), "round": self.figures(self.round), **self.counts}

    def close(self) -> None:
        """Close the book."""
        if self._file:
            self._file.close()
            self._file = None

    def _book(self, usage: Usage) -> None:
        with self._changed:
            self._by_round[self.round] = self._by_round.get(self.round, Usage()) + usage
            if self._file:
                self._file.write(json.dumps({"round": self.round, **asdict(usage)}) + "\n")
                self._file.flush()

    def _affordable(self, further: Usage) -> bool:
        sum_of = sum(self._by_round.values(), Usage()) + further
        too_many = self.max_calls and sum_of.calls > self.max_calls
        too_dear = self.max_cost_usd and self.prices.cost(sum_of) > self.max_cost_usd
        return not (too_many or too_dear)

    def _spent(self) -> str:
        total = sum(self._by_round.values(), Usage())
        limits = [f"expert.max_calls={self.max_calls}"] if self.max_calls else []
        limits += [f"expert.max_cost_usd={self.max_cost_usd:g}"] if self.max_cost_usd else []
        return (
            f"the expert's budget is spent: {total.calls} calls, {self.prices.cost(total):.4f} USD, and the next call "
            f"could go over {' or '.join(limits)}; raise it to go on"
        )

    def _read(self, path: Path) -> None:
        """Add up the book; a line cut in half (killed while writing) is cut off on disk as well."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            return
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            with open(path, "r+b") as file:
                file.truncate(len(whole))
        for line in whole.splitlines():
            entry = json.loads(line)
            round = entry.pop("round")
            self._by_round[round] = self._by_round.get(round, Usage()) + Usage(**entry)


def round_cents(usd: float) -> float:
    """US dollars without the noise of floating point (a millionth is kept: single calls are cheap)."""
    return round(usd, 6)


class Pace:
    """Lets calls through at most `per_minute` times a minute (0: as fast as they come), evenly spread."""

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
        """Return when the next call may be made."""
        if not self._gap:
            return
        with self._lock:
            now = self._clock()
            at = max(now, self._next)
            self._next = at + self._gap
        if at > now:
            self._sleep(at - now)
