"""No program waits for torch or matplotlib before it answers `--help`, or refuses a wrong setting."""

from __future__ import annotations

import importlib
import json
import socket
import subprocess
import sys
from types import ModuleType

import pytest

from lavis.common.paths import REPO_ROOT

# Starts each command line in a child of a process that has the light packages loaded, which takes 0.1 s instead of 0.7.
ANSWERS = """
import contextlib, io, json, os, runpy, sys
import alfworld_native, lavis.common.config  # noqa: the children have these

class Heavy:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "transformers", "matplotlib"):
            os._exit(99)  # an ImportError might be caught

def answer(program, arguments):
    sys.meta_path.insert(0, Heavy())
    sys.argv = [program, *arguments]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if program.endswith(".py"):
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)

def code_of(program, arguments):
    child = os.fork()
    if not child:
        try:
            answer(program, arguments)
            os._exit(0)
        except SystemExit as end:
            os._exit(end.code or 0)
        except BaseException:
            os._exit(98)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

sys.path.insert(0, os.getcwd())
print(json.dumps([code_of(*line) for line in json.load(sys.stdin)]))
"""


@pytest.fixture
def start_up(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark, which knows all programs."""
    monkeypatch.syspath_prepend(REPO_ROOT / "benchmarks")
    return importlib.import_module("start_up")


def exit_codes(lines: list[tuple[str, list[str]]]) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", ANSWERS], input=json.dumps(lines), capture_output=True, text=True, cwd=REPO_ROOT
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_help_needs_nothing_heavy(start_up: ModuleType) -> None:
    programs = start_up.programs()
    assert len(programs) > 40
    codes = exit_codes([(program, ["--help"]) for program in programs])
    assert [program for program, code in zip(programs, codes, strict=True) if code] == []


def test_a_wrong_setting_is_refused_before_anything_heavy(start_up: ModuleType) -> None:
    wrong = ["--options", "run.no_such_key=1"]
    lines = [(name, [*(["--cfg-path", file] if file else []), *wrong]) for name, file in start_up.CONFIGS.items()]
    assert exit_codes(lines) == [2] * len(lines)


def test_a_busy_port_is_told_before_anything_heavy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = f"server.port={holder.getsockname()[1]}"
        given = ["--cfg-path", "configs/dagger/demo_bc.yaml", "--options", port]
        assert exit_codes([("dagger_server.py", given)]) == [2]


def test_make_student_looks_at_all_that_it_is_told() -> None:
    wrong = ("--model-type absent", "--levels easy=1", "--options lora=3", "--official 2", "--tokens 0")
    name = "xrl_alignment.lab.pretraining.student"
    assert exit_codes([(name, ["--out", "absent", *text.split()]) for text in wrong]) == [2] * len(wrong)
