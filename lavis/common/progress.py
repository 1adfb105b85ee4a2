"""The one progress bar: a bar with remaining time on a terminal, plain lines in a log."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TextIO, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
LINE_EVERY_S = 10.0
ENOUGH = 3  # items whose time tells of the others' time


class Bar:
    """Shows how many of `what` ("games") are done; a context manager.

    On a terminal it is a bar. Elsewhere it prints a plain line every ten seconds and at the end; with `quiet` nothing.
    The remaining time is estimated from the items after the first one: before that a model was loaded, or a client had
    yet to come, which does not happen again.
    """

    def __init__(self, what: str, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._what = what
        self._stream = stream or sys.stdout
        self._quiet = quiet
        self._bar: Progress | None = None
        self._line_at = self._began = time.monotonic()
        self._first: tuple[int, float] | None = None  # how many were done when the first was shown, and when

    def __enter__(self) -> Self:
        """Open the bar if this is a terminal."""
        if self._stream.isatty() and not self._quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            times = (TimeElapsedColumn(), TimeRemainingColumn())
            self._bar = Progress(
                *columns,
                *times,
                console=Console(file=self._stream),
                get_time=time.monotonic,
                speed_estimate_period=math.inf,  # not rich's 30 s: steps that take longer would have no estimate
            )
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the bar."""
        if self._bar:
            self._bar.stop()

    def show(self, done: int, total: int, text: str, *, counts: bool = True) -> None:
        """`done` of `total` are done; `text` says how it goes.

        Without `counts` these items tell nothing of the time that the rest will take: a resume reads them from a file.
        """
        if self._bar:
            if not self._bar.tasks:
                self._bar.add_task(text, total=total)
            show = self._bar.update if counts else self._bar.reset
            show(self._bar.tasks[0].id, completed=done, total=total, description=text)
            return
        now = time.monotonic()
        self._first = (self._first or (done, now)) if counts else None
        if not self._quiet and (now - self._line_at >= LINE_EVERY_S or done == total):
            self._line_at = now
            first, began = self._first or (done, now)
            counted, seconds, times = done - first, now - began, ""
            if done == total:
                times = f", {now - self._began:.0f} s in all"
            elif counted >= ENOUGH:  # too few items do not tell the time that the rest will take
                times = f", about {seconds / counted * (total - done):.0f} s left"
            print(f"{text}, {done} of {total} {self._what}{times}", file=self._stream, flush=True)

    def say(self, text: str) -> None:
        """Print one line of text, above the bar."""
        if self._bar:
            self._bar.console.print(text, markup=False, highlight=False)
        elif not self._quiet:
            print(text, file=self._stream, flush=True)


def progress(items: Iterable[T], text: str, total: int, *, what: str = "items", quiet: bool = False) -> Iterator[T]:
    """Iterate over `items`, showing progress under the heading `text`."""
    with Bar(what, quiet=quiet) as bar:
        for done, item in enumerate(items, 1):
            yield item
            bar.show(done, total, text)
