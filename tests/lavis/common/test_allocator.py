"""Allocator settings are accepted where glibc is, and harmless elsewhere; compiled kernels take bounded memory."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from lavis.common.paths import REPO_ROOT


def test_in_a_process_of_its_own() -> None:
    code = "from lavis.common.allocator import keep_freed_memory; print(keep_freed_memory()); bytearray(1 << 26)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == str(platform.libc_ver()[0] == "glibc")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_freed_memory_is_kept_until_it_is_given_back() -> None:
    """Also what lies between pieces in use: those would keep glibc from giving anything back by itself."""
    code = """
import psutil
from lavis.common.allocator import give_back_freed_memory, keep_freed_memory
keep_freed_memory()
resident = lambda: psutil.Process().memory_info().rss >> 20
pieces = [(b"1" * (2 << 20), b"2" * 1000) for _ in range(50)]
before, pieces = resident(), [small for _, small in pieces]
print(before - resident(), give_back_freed_memory(), before - resident())
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    kept, gave, left = result.stdout.split()
    assert abs(int(kept)) < 5 and gave == "True" and int(left) > 90


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_threads_of_a_client_share_their_pools() -> None:
    """One thread for each session: each used a pool of its own, as long as there were fewer than 8 per processor."""
    code = """
import ctypes, sys, tempfile, threading
from lavis.common.allocator import share_pools
assert sys.argv[1] == "as it comes" or share_pools()
libc, together = ctypes.CDLL(None), threading.Barrier(9)
def play():
    kept = bytes(5000)
    together.wait(), together.wait()
for _ in range(8):
    threading.Thread(target=play, daemon=True).start()
together.wait()
with tempfile.NamedTemporaryFile() as file:
    libc.fopen.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
    libc.malloc_info(0, stream), libc.fclose(stream)
    print(file.read().count(b"<heap nr="))
together.wait()
"""
    command = [sys.executable, "-c", code]
    pools = [
        int(subprocess.run([*command, how], capture_output=True, text=True, check=True).stdout)
        for how in ("as it comes", "shared")
    ]
    assert pools[0] > 2 >= pools[1]


def test_tensors_of_ever_new_shapes_take_bounded_memory() -> None:
    """Where the processor computes with bfloat16, 1,200 shapes took 330 MB without bounds, with AMX 730."""
    code = """
import psutil, torch
from lavis.common.allocator import bound_kernel_cache
bound_kernel_cache()
torch.set_num_threads(1)
weight = torch.randn(128, 64, dtype=torch.bfloat16)
for rows in range(1, 1201):
    if rows == 601:
        before = psutil.Process().memory_info().rss
    torch.nn.functional.linear(torch.randn(rows, 64, dtype=torch.bfloat16), weight)
print((psutil.Process().memory_info().rss - before) >> 20)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 40


@pytest.mark.parametrize(
    "program",
    [
        "dagger_server.py",
        "evaluate.py",
        "train.py",
        "xrl_alignment/lab/pipeline.py",
        "xrl_alignment/dagger/decoupled/learning.py",
    ],
)
def test_programs_that_train_or_play_for_hours_bound_it(program: str) -> None:
    assert "    bound_kernel_cache()\n" in (REPO_ROOT / program).read_text(encoding="utf-8")


def test_the_clients_threads_share_pools() -> None:
    assert "    share_pools()" in (REPO_ROOT / "alfworld_client.py").read_text(encoding="utf-8")
