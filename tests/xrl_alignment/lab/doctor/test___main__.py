"""The command: its lines and exit codes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lavis.common.paths import REPO_ROOT
from tests.ports import free_port
from xrl_alignment.lab.doctor.__main__ import main


def test_main_exit_code_and_lines(capsys, household_data):
    port = str(free_port())
    assert main(["--data", str(household_data), "--port", port]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.split()[0] in ("ok", "warn", "fail") for line in lines[:-1])
    assert lines[-1].startswith("0 to correct")
    assert main(["--data", str(household_data), "--port", port, "--model", "/no/such/folder"]) == 1
    assert "fail  weights: /no/such/folder does not exist" in capsys.readouterr().out


def test_unknown_argument_is_refused():
    with pytest.raises(SystemExit) as stop:
        main(["--bogus"])
    assert stop.value.code == 2


def test_options_of_no_model_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--options", "model.arch=hf_vlm"])
    assert "name it with --model, or a config with --cfg-path" in capsys.readouterr().err


def test_it_runs_without_any_library():
    command = [sys.executable, "-S", "-m", "xrl_alignment.doctor", "--port", "0", "--thor"]  # -S: no site-packages
    done = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "fail  torch: not installed; run `make install`" in done.stdout and not done.stderr
