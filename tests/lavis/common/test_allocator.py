"""The allocator setting is accepted where glibc is, and harmless elsewhere."""

from __future__ import annotations

import platform
import subprocess
import sys


def test_in_a_process_of_its_own() -> None:
    code = "from lavis.common.allocator import keep_freed_memory; print(keep_freed_memory()); bytearray(1 << 26)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == str(platform.libc_ver()[0] == "glibc")
