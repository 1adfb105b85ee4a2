"""Memory settings that programs may choose at their start."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # <malloc.h>
KERNELS, PLACES = 256, 64  # compiled kernels that oneDNN's cache holds at most, and that PyTorch's does
_LARGEST_MMAP_THRESHOLD = 32 << 20  # glibc accepts no more


def keep_freed_memory() -> bool:
    """Ask glibc to keep freed memory instead of giving it back to the system; whether it agreed.

    Otherwise each large intermediate tensor on a CPU is mapped, zeroed and unmapped again: a fifth of the time of a
    batch of 32 prompts through the tiny model. The process then holds its peak memory, until `give_back_freed_memory`:
    that of two pools, as `share_pools` says. Does nothing without glibc.
    """
    wanted = ((_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD), (_M_TRIM_THRESHOLD, 2**31 - 1))
    return share_pools() and all(_glibc("mallopt")(*setting) for setting in wanted)


def share_pools() -> bool:
    """Let the threads of this process share two pools of memory (glibc's arenas); whether glibc agreed.

    Otherwise they get up to eight pools for each processor, and each pool keeps what is freed between two pieces that
    are in use. After 480 episodes the pools of a client with 32 sessions had 72 MB for 26 MB in use, and grew with
    every round; two had 42 MB in a client that played beside it (two cores, 2026-11-25).
    """
    mallopt = _glibc("mallopt")
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, 2))


def give_back_freed_memory() -> bool:
    """Give the system what glibc has kept so far; whether there was anything.

    A program that keeps freed memory holds the most that it has ever had in use at once, and what lies between pieces
    that are still in use. Both can only grow: now and then batches are larger, or meet in another order, than ever
    before. So programs that run for hours call this once a round. It takes 11 ms of processor time for 180 MB, and the
    system 90 ms to map them again (`malloc_trim` of glibc 2.36, measured on 2026-11-25).
    """
    trim = _glibc("malloc_trim")
    return trim is not None and bool(trim(0))


def _glibc(name: str) -> Any:
    """A function of glibc that other systems lack; None there."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None


def bound_kernel_cache() -> None:
    """Let oneDNN keep at most `KERNELS` compiled kernels; call it before the first tensor operation.

    Prompts and batches have ever new lengths, and oneDNN compiles a kernel for every shape that it meets. Two caches
    would keep 1,024 of them each: oneDNN's own, and one of PyTorch (`LRU_CACHE_CAPACITY`), which holds on to kernels
    that oneDNN has dropped, so bounding the first alone saves little. After 12 updates of the demo's model, mallinfo2
    counts 455 MiB with both caches as they come, 385 with oneDNN's off, 232 with `KERNELS` and `PLACES` as they are
    here, in the same time (5 s): what PyTorch's cache has dropped it finds in oneDNN's. A batch of 16 prompts of unlike
    length has about a hundred shapes; with fewer `KERNELS` than that every layer would compile them anew.
    A value that the user has set in the environment stays.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KERNELS))
    os.environ.setdefault("LRU_CACHE_CAPACITY", str(PLACES))
