"""Runs a program of the project, and writes down how many bytes of it are allocated; for `soak.py`.

    python -m tests.reliability.allocated FILE dagger_server.py --cfg-path settings.yaml

The programs keep memory that is freed (`lavis.common.allocator`), so what the system counts for them is the peak of a
round. A leak is what is allocated and never freed: glibc's `mallinfo2` counts it, in all arenas and mappings. But
Python has its objects of up to 512 bytes in mappings of its own, of which glibc knows nothing: these are counted by
their number. FILE holds the least bytes and objects of each PERIOD_S, a line each: between two batches.
"""

from __future__ import annotations

import ctypes
import runpy
import sys
import threading
import time
from pathlib import Path

PERIOD_S, PAUSE_S = 10.0, 0.25
FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Figures(ctypes.Structure):
    """glibc's `struct mallinfo2` (<malloc.h>)."""

    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


def watch(path: Path) -> None:
    """Write to `path` until the program ends."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Figures
    with open(path, "w", encoding="utf-8") as file:
        while True:
            until, least, objects = time.monotonic() + PERIOD_S, sys.maxsize, sys.maxsize
            while time.monotonic() < until:
                figures = mallinfo2()
                least = min(least, figures.uordblks + figures.hblkhd)
                objects = min(objects, sys.getallocatedblocks())
                time.sleep(PAUSE_S)
            print(least, objects, file=file, flush=True)


if __name__ == "__main__":
    target, *sys.argv = sys.argv[1:]
    threading.Thread(target=watch, args=(Path(target),), daemon=True).start()
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")
