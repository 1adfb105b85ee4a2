"""Command lines, and how a program ends: one line for a user's mistake, a traceback for a bug."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file

from alfworld_native.errors import EnvironmentFault
from lavis.common.errors import ConfigError, EmacError, FileError, MissingExtraError, MissingFileError
from lavis.common.paths import REPO_ROOT
from lavis.common.program import LIFELINE, lifeline, parse_args, read_first, run_program
from xrl_alignment.common.errors import RolloutError

FINE_TUNING = "lavis/projects/instructblip/finetuning/alfworld_ft.yaml"


def test_parse_args_gathers_options_and_own_arguments() -> None:
    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--resume", default=None)

    line = ["--cfg-path", "a.yaml", "--options", "a.b=1", "c.d=2", "--resume", "run", "--options", "e.f=3"]
    args = parse_args("test", add, line)
    assert (args.cfg_path, args.options, args.resume) == ("a.yaml", ["a.b=1", "c.d=2", "e.f=3"], "run")
    assert parse_args("test", argv=[], cfg_required=False).options == []
    with pytest.raises(SystemExit) as caught:
        parse_args("test", argv=[])
    assert caught.value.code == 2


def test_a_missing_settings_file_is_named_with_an_example(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        parse_args("test", argv=["--options", "a.b=1"], example="configs/x.yaml")
    assert "--cfg-path FILE is required, for example --cfg-path configs/x.yaml\n" in capsys.readouterr().err


def test_what_is_read_first_ends_a_program_as_the_program_would(capsys: pytest.CaptureFixture) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert read_first(lambda: 7) == 7
    signal.signal(signal.SIGINT, before)
    with pytest.raises(SystemExit) as caught:
        read_first(fail_with(ConfigError("bad thing")))
    assert (caught.value.code, capsys.readouterr().err) == (2, "error: bad thing\n")
    with pytest.raises(ValueError, match="^a bug$"):
        read_first(fail_with(ValueError("a bug")))


STARTING = """
import time
from lavis.common.program import read_first, run_program
def work():
    try:
        print("started", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("closing", flush=True)
        raise
read_first(dict)
{how}
"""


@pytest.mark.parametrize(("how", "out"), [("work()  # as an import", ""), ("run_program(work)", "closing\n")])
def test_ctrl_c_ends_the_imports_at_once_and_lets_main_close(how: str, out: str) -> None:
    command = [sys.executable, "-c", STARTING.format(how=how)]
    with subprocess.Popen(command, cwd=REPO_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == (out, "interrupted\n")
    assert process.returncode == 130


NO_SUCH_KEY = ["--options", "model.no_such_key=1"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["dagger_server.py"], "python alfworld_client.py --cfg-path configs/dagger/demo_bc.yaml"),
        (["dagger_server.py", "--cfg-path", "configs/dagger/demo_bc.yaml", *NO_SUCH_KEY], "model.no_such_key"),
        (["evaluate.py", "--cfg-path", "configs/evaluate/student.yaml", *NO_SUCH_KEY], "model.no_such_key"),
        (["train.py", "--cfg-path", FINE_TUNING, *NO_SUCH_KEY], "model.no_such_key"),
        (["generate_reflections.py", "absent"], "absent is not a run directory"),
        (["-m", "xrl_alignment.pipeline"], "for example --cfg-path configs/dagger/demo_bc.yaml configs/dagger/demo_"),
        (["-m", "xrl_alignment.demo", *NO_SUCH_KEY], "model.no_such_key"),
        (["-m", "lavis.models.convert"], "the following arguments are required: source, target, --to"),
        (["policy_server/qwen_policy_server.py", "--port", "x"], "argument --port: invalid int value: 'x'"),
    ],
)
def test_mistakes_are_answered_before_torch_is_imported(words: list[str], says: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    path = os.pathsep.join([str(tmp_path), str(REPO_ROOT)])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=REPO_ROOT, env=environment)
    assert says in done.stderr
    assert done.returncode == 2


def test_help_names_the_page_that_lists_the_settings(capsys: pytest.CaptureFixture) -> None:
    for options, page in (({}, "docs/settings.md"), ({"settings": "docs/offline.md"}, "docs/offline.md")):
        with pytest.raises(SystemExit):
            parse_args("Trains.", argv=["--help"], **options)
        assert f"{page} lists all" in " ".join(capsys.readouterr().out.split())


def fail_with(error: BaseException):
    def main() -> int:
        raise error

    return main


@pytest.mark.parametrize(
    "error",
    [
        EmacError("bad thing"),
        ConfigError("bad thing"),
        MissingFileError("bad thing"),
        FileError("bad thing"),
        MissingExtraError("bad thing"),
        EnvironmentFault("bad thing"),
        RolloutError("bad thing"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(error: Exception, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        run_program(fail_with(error))
    assert caught.value.code == 2
    assert capsys.readouterr().err == "error: bad thing\n"


@pytest.mark.parametrize(
    "bug", [ValueError("bad"), FileNotFoundError("bad"), ImportError("bad"), OSError(errno.EBADF, "bad")]
)
def test_a_bug_keeps_its_traceback(bug: Exception) -> None:
    with pytest.raises(type(bug)):
        run_program(fail_with(bug))


def test_a_full_disk_is_one_line(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        run_program(fail_with(OSError(errno.ENOSPC, "No space left on device", "run/world.log")))
    assert caught.value.code == 2
    assert capsys.readouterr().err == "error: [Errno 28] No space left on device: 'run/world.log'\n"
    with pytest.raises(SystemExit) as caught:  # Transformers and peft write with safetensors
        run_program(fail_with(SafetensorError("I/O error: No space left on device (os error 28)")))
    assert caught.value.code == 2
    assert capsys.readouterr().err == "error: I/O error: No space left on device (os error 28)\n"
    with pytest.raises(SafetensorError):  # no folder (os error 2): a bug of ours
        run_program(lambda: save_file({"weight": np.zeros(8)}, "/no/such/folder/weights"))


def in_a_thread(main: Callable[[], object]) -> Callable[[], None]:
    def start() -> None:
        thread = threading.Thread(target=main)
        thread.start()
        thread.join()

    return start


def test_a_path_that_the_system_refuses_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    long = tmp_path / ("x" * 300)
    with pytest.raises(SystemExit) as ended:
        run_program(lambda: long.stat())
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and "File name too long" in line and str(long) in line
    with pytest.raises(SystemExit):
        run_program(fail_with(PermissionError(errno.EACCES, "Permission denied", "forbidden/run")))
    assert capsys.readouterr().err == "error: [Errno 13] Permission denied: 'forbidden/run'\n"
    with pytest.raises(PermissionError):  # not about a path
        run_program(fail_with(PermissionError("no")))


def test_a_thread_that_meets_a_full_disk_says_so_in_one_line(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        run_program(in_a_thread(fail_with(OSError(errno.EROFS, "Read-only file system", "events"))))
    assert caught.value.code == 0
    assert capsys.readouterr().err == "warning: [Errno 30] Read-only file system: 'events'\n"
    with pytest.raises(SystemExit):  # the folder was removed
        run_program(in_a_thread(fail_with(FileNotFoundError(errno.ENOENT, "No such file or directory", "events"))))
    assert capsys.readouterr().err == "warning: [Errno 2] No such file or directory: 'events'\n"
    for bug in (ValueError("a bug"), FileNotFoundError(errno.ENOENT, "No such file or directory", "/events")):
        with pytest.raises(SystemExit):  # the second one's folder is there
            run_program(in_a_thread(fail_with(bug)))
        assert "Traceback" in capsys.readouterr().err


def test_a_logs_tail_keeps_its_lines(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        run_program(fail_with(ConfigError("the server ended:\nline 1\nline 2")))
    assert capsys.readouterr().err == "error: the server ended:\nline 1\nline 2\n"


def test_traceback_on_request(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMAC_TRACEBACK", "1")
    with pytest.raises(SystemExit):
        run_program(fail_with(ConfigError("bad thing")))
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(("main", "code"), [(lambda: None, 0), (lambda: 3, 3), (fail_with(KeyboardInterrupt()), 130)])
def test_exit_codes(main, code: int) -> None:
    with pytest.raises(SystemExit) as caught:
        run_program(main)
    assert caught.value.code == code


def test_sigterm_unwinds_like_ctrl_c_and_says_so(capsys: pytest.CaptureFixture) -> None:
    closed = []
    before = signal.getsignal(signal.SIGTERM)

    def main() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # `timeout` and queues send it twice
            closed.append(True)

    with pytest.raises(SystemExit) as caught:
        run_program(main)
    assert (caught.value.code, closed) == (130, [True])
    assert capsys.readouterr().err == "interrupted\n"
    assert signal.getsignal(signal.SIGTERM) is before


TIED = """
import threading
import time
from xrl_alignment.common import program
program._GRACE_S = {grace_s}
def main():
    try:
        print("started", flush=True)
        time.sleep(60)
    finally:
        print("closing", flush=True)
        time.sleep({closing_s})
program.run_program(main)
"""


# What closes in time is given a minute for it; what does not, long enough to say on a busy machine that it has begun.
@pytest.mark.parametrize(("closing_s", "grace_s", "code"), [(0, 60, 130), (60, 3, -signal.SIGKILL)])
def test_a_program_ends_with_the_one_that_started_it(closing_s: float, grace_s: float, code: int) -> None:
    with lifeline() as line:  # what SIGKILL does to this process's end of the pipe, its closing does, too
        process = subprocess.Popen(
            [sys.executable, "-c", TIED.format(closing_s=closing_s, grace_s=grace_s)],
            cwd=REPO_ROOT,
            env={**os.environ, LIFELINE: str(line)},
            pass_fds=[line],
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout.readline() == "started\n"
        assert process.poll() is None
    out, errors = process.communicate(timeout=30)
    assert (process.returncode, out, errors) == (code, "closing\n", "interrupted\n" if code == 130 else "")


def test_help_keeps_the_lines_of_its_examples(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        parse_args("Trains.\n\n    python a.py --x\n    python b.py", argv=["--help"])
    assert "\n    python a.py --x\n    python b.py\n" in capsys.readouterr().out
