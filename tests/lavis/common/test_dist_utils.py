"""Processes of one run: they find one another wherever the settings say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lavis.common.paths import REPO_ROOT
from tests.ports import free_port

PROGRAM = """
import sys, torch
from lavis.common.dist_utils import end_distributed_mode, get_rank, init_distributed_mode, summed
init_distributed_mode(device="cpu", dist_url=sys.argv[1])
print(get_rank(), summed([get_rank() + 1.0], torch.device("cpu")))
end_distributed_mode()
"""


@pytest.mark.parametrize("kind", ["tcp", "file"])
def test_processes_meet_where_the_settings_say(tmp_path: Path, kind: str) -> None:
    """The variables are those that torch.distributed.run sets, whose own meeting point is another one."""
    url = f"tcp://127.0.0.1:{free_port()}" if kind == "tcp" else f"file://{tmp_path / 'meeting'}"
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, url],
            cwd=REPO_ROOT,
            env={**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    try:
        assert [process.communicate(timeout=100)[0] for process in started] == ["0 [3.0]\n", "1 [3.0]\n"]
    finally:
        for process in started:
            process.kill()
