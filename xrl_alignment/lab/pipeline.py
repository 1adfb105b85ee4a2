"""Runs training phases one after the other, each with a server and a client process; DPO starts from BC's checkpoint.

    python -m xrl_alignment.pipeline --cfg-path configs/dagger/demo_bc.yaml configs/dagger/demo_dpo.yaml

Each file is one phase. A phase starts from the newest checkpoint of the phase before it, which is also its reference
policy (`model.pretrained`, `model.ref_pretrained`). A phase that fails ends the pipeline with the end of its log.
Before the first phase starts, the needs of all phases are compared with this machine; `--dry-run` prints them and
starts nothing. With `environment.name=thor` and no display the client runs under xvfb-run.
`--resume RUN_DIR` continues a killed pipeline, with the same files and options: RUN_DIR is the directory of the phase
that was running; the pipeline does not run the phases before it again.
A file with a section `planner` (`configs/emac_plus/`) runs EMAC+'s loop instead, in this process
(docs/emac_plus.md); `--resume` then names the loop's folder, whose settings need not be given again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from lavis.common.allocator import bound_kernel_cache
from lavis.common.config import as_option
from lavis.common.errors import ConfigError
from lavis.common.files import locked, make_folder, write_bytes, write_text
from lavis.common.paths import REPO_ROOT
from lavis.common.program import LIFELINE, lifeline, run_program
from xrl_alignment.builders.environments import client_arguments, games_of
from xrl_alignment.common.network import page_url
from xrl_alignment.lab.doctor.settings import check_settings
from xrl_alignment.lab.ending import ending
from xrl_alignment.runs.directory import forget_server, new_run_directory, newest_checkpoint
from xrl_alignment.runs.leftovers import VARIABLE as SCRATCH_VARIABLE
from xrl_alignment.runs.leftovers import make_scratch, remove_leftovers
from xrl_alignment.settings.loading import is_emac_plus, load_config
from xrl_alignment.settings.resume import changed_settings, saved_settings
from xrl_alignment.settings.schema import DaggerConfig
from xrl_alignment.settings.token import new_token, read_token

TAIL_LINES = 20
CLIENT_VARIABLE = "EMAC_TOKEN"  # where alfworld_client.py reads the token
VIRTUAL_DISPLAY = ("xvfb-run", "--auto-servernum", "--server-args=-screen 0 1024x768x24")
GOODBYE_S = 60.0  # a client ends when its server has no more work; the server must end within this time


class MissingNeedsError(ConfigError):
    """This machine lacks what a phase needs; the text lists it."""


class PhaseError(ConfigError):
    """A phase ended with an error; the text holds that error, or the end of its log."""


def run_phase(
    cfg_path: Path | str,
    options: Sequence[str] = (),
    *,
    resume: Path | None = None,
    begun: Callable[[Path], None] = lambda directory: None,
    phase: str = "",
) -> Path:
    """Run one training phase to its DONE file; returns its run directory, which `begun` gets before anything runs.

    `resume` continues that run directory instead of starting one; LockedError or RunDirectoryError if another pipeline
    or server is running it. The processes write `server.log` and `client.log` in the run directory, and share a token
    that is made for them if the settings give none. PhaseError holds the end of the log of the one that failed. If
    games are missing, or the server does not start, no directory stays behind.
    """
    config = load_config(DaggerConfig, cfg_path, options)
    if resume and (resume / "DONE").exists():
        return resume
    games_of(config.environment, config.run.num_envs)  # found, or generated, before anything starts
    directory = resume or new_run_directory(
        config.run.output_dir, enable_dpo=config.run.enable_dpo, enable_tc=config.run.enable_tc
    )
    make_folder(directory / "state")
    # The lock by which one pipeline runs a directory.
    with closing(locked(directory / "state" / "pipeline.lock", directory)):
        # Nothing may tell of an earlier server or its token: `_wait_for_port` would find a port that is not ours.
        forget_server(directory)
        _link_file(directory).unlink(missing_ok=True)
        if phase:  # for the head of the dashboard: `phase 3 of 4`
            write_text(directory / "state" / "phase", f"{phase}\n")
        begun(directory)
        _run_processes(config, cfg_path, options, directory, resume=resume is not None)
    return directory


def _run_processes(
    config: DaggerConfig, cfg_path: Path | str, options: Sequence[str], directory: Path, *, resume: bool
) -> None:
    """Start server and client, wait for both; whatever ends this stops them."""
    thor = config.environment.name == "thor"
    # The server makes (or continues) the run in its directory; it knows the options, the client their games.
    server_command = [sys.executable, str(REPO_ROOT / "dagger_server.py"), "--cfg-path", str(cfg_path)]
    server_command += ["--resume" if resume else "--run-dir", str(directory)]
    # The token travels in the environment: every user of this machine can read command lines.
    shown = [option for option in options if not option.startswith("server.token=")]
    server_command += ["--options", *shown] if shown else []
    token = read_token(config.server) or new_token()
    environment = {**os.environ, CLIENT_VARIABLE: token, config.server.token_variable: token}
    client = None
    with lifeline() as line:
        server = _start(server_command, directory / "server.log", environment, line)
        try:
            port = _wait_for_port(server, directory)  # the server has chosen it, or loads a model first
            if config.server.dashboard:
                url = page_url(config.server.host, port)
                tell_link(directory, url, "" if read_token(config.server) else token)
            if thor:
                for leftover in remove_leftovers(directory):  # of a pipeline that was killed: the server now is ours
                    print(f"removed what an earlier start of this run had left: {leftover}", flush=True)
                environment[SCRATCH_VARIABLE] = str(make_scratch(directory))
            # The client plays until the server says that there is no more work.
            client_line = [*client_command(config), "--port", str(port)]
            client = _start(client_line, directory / "client.log", environment, line)
            # Until the server ends. The client ends first if there is no more work; then the server has some time left.
            client_ended_at, done = None, directory / "DONE"
            while server.poll() is None:
                if client.poll() is not None:
                    client_ended_at = client_ended_at or time.monotonic()
                    late = time.monotonic() - client_ended_at > GOODBYE_S
                    if late and done.exists():
                        return  # all is written: a server that only ends slowly, or hangs in its end, is stopped
                    if client.returncode != 0 or late:
                        raise _failure("client", client, directory / "client.log")
                time.sleep(0.2)
            if server.returncode != 0 or not done.exists():
                raise _failure("server", server, directory / "server.log")
        finally:
            for process in (client, server):
                _stop(process)
            _link_file(directory).unlink(missing_ok=True)  # its token has ended with the server
            if thor and client is not None:
                remove_leftovers(directory)
            if client is None and not resume:  # the server did not start: nothing of the run is worth keeping
                shutil.rmtree(directory)


def tell_link(directory: Path, url: str, token: str) -> None:
    """Print where the run can be watched; `token` is one that was made for it, or empty.

    Only a terminal gets the link with the token: the output of a batch job is a file that others may read.
    """
    # Behind `#` the token stays in the browser, which does not send it as a part of the address.
    if not token or sys.stdout.isatty():
        print(f"watch it: {url}#token={token}" if token else f"watch it: {url}", flush=True)
        return
    file = _link_file(directory)
    with open(file, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as private:
        private.write(f"{url}#token={token}\n")
    print(f"watch it: {url} (it needs the token; the link with it is in {file}, for you alone)", flush=True)


def _link_file(directory: Path) -> Path:
    return directory / "state" / "dashboard_link"


def check_needs(cfg_paths: Sequence[str], options: Sequence[str], say: Callable[[str], None] | None = None) -> None:
    """Compare what all phases need with what this machine has; `say` gets every finding. Loads and starts nothing.

    Raises MissingNeedsError with all that is missing.
    """
    missing = []
    for cfg_path in cfg_paths:
        if say:
            say(f"{cfg_path}:")
        for finding in check_settings(load_config(DaggerConfig, cfg_path, options)):
            if say:
                say(f"  {finding}")
            if finding.level == "fail":
                missing.append(str(finding).removeprefix(finding.level).strip())
    if missing:
        lines = list(dict.fromkeys(missing))  # both phases usually lack the same
        between = " " if len(lines) == 1 else "\n  "
        raise MissingNeedsError(between.join(["nothing was started, for this machine lacks", *lines]))


def check_hand_offs(cfg_paths: Sequence[str], options: Sequence[str]) -> None:
    """ConfigError if a phase that another one starts from would write no checkpoint, or if the other one could not.

    Adapters and their reference, the checkpoint before them, cannot be sharded: `check_shardable` says so hours later.
    """
    for cfg_path in cfg_paths[:-1]:
        run = load_config(DaggerConfig, cfg_path, options).run
        for key in ("run_training", "save_ckpt"):
            if not getattr(run, key):
                raise ConfigError(
                    f"{cfg_path}: run.{key}=false leaves no checkpoint that the next phase could start from: set "
                    f"run.{key}=true, or run this phase alone"
                )
    for cfg_path in cfg_paths[1:]:
        config = load_config(DaggerConfig, cfg_path, options)
        model = config.model
        adapts = model.get("arch") == "hf_vlm" or bool(model.get("lora_rank")) or bool(model.get("adaptor_tuning"))
        if config.run.enable_dpo and config.run.learner_fsdp and adapts:
            raise ConfigError(
                f"{cfg_path}: run.learner_fsdp=true cannot shard adapters whose reference is the checkpoint of the "
                "phase before: leave it out, adapters need little memory"
            )


def client_command(config: DaggerConfig) -> list[str]:
    """The `alfworld_client.py` command line that plays what `config` asks for (its port apart)."""
    command = [sys.executable, str(REPO_ROOT / "alfworld_client.py"), "--host", config.server.host]
    if config.environment.name == "thor" and sys.platform.startswith("linux") and not os.environ.get("DISPLAY"):
        command = [*VIRTUAL_DISPLAY, *command]
    return command + client_arguments(config)


def hand_off(directory: Path) -> Path:
    """The checkpoint that the next phase starts from; PhaseError when the finished phase left none that loads."""
    checkpoint = newest_checkpoint(directory)
    if checkpoint is None:
        raise PhaseError(f"{directory} holds no emma_checkpoint_<round>.pth: set run.save_ckpt=true")
    from xrl_alignment.runs.checkpoint import load_checkpoint  # here: it needs torch, which takes seconds to import

    load_checkpoint(checkpoint)  # a damaged file stops here, not after the next phase has loaded its model
    return checkpoint


def _start(command: list[str], log: Path, environment: dict[str, str], line: int) -> subprocess.Popen:
    """Start a process in a session of its own: Ctrl-C reaches only the pipeline, which then stops both processes.

    By its lifeline the process also ends if the pipeline cannot stop it any more (SIGKILL).
    """
    with open(log, "ab") as output:
        return subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**environment, LIFELINE: str(line)},
            pass_fds=[line],
        )


def _stop(process: subprocess.Popen | None) -> None:
    if process is None or process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)  # the group: a simulator is a child of the client
    try:
        process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for_port(server: subprocess.Popen, directory: Path) -> int:
    """The port that the server says it listens on (it may load a model for minutes first)."""
    while True:
        if server.poll() is not None:
            raise _failure("server", server, directory / "server.log")
        try:
            announced = json.loads((directory / "state" / "server.json").read_text(encoding="utf-8"))
            if announced["pid"] == server.pid:  # no other server of this directory
                return announced["port"]
        except (FileNotFoundError, json.JSONDecodeError):  # not there yet, or half written
            pass
        time.sleep(0.1)


def _failure(program: str, process: subprocess.Popen, log: Path) -> PhaseError:
    """The error line that the process has printed, or the end of its log."""
    if not log.exists():
        return PhaseError(
            f"the {program} ended with code {process.returncode}, and its log {log} is gone: was the run's folder "
            "removed or renamed?"
        )
    lines = tail(log)
    last = lines.splitlines()[-1] if lines else ""
    if process.returncode == 2 and last.startswith("error: "):
        return PhaseError(f"{program}: {last.removeprefix('error: ')}")
    return PhaseError(f"the {program} ended with code {process.returncode}; the end of {log}:\n{lines}")


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def run_pipeline(
    cfg_paths: Sequence[str], options: Sequence[str], *, resume: Path | None = None, remember: Path | None = None
) -> list[Path]:
    """Run the phases in order, each starting from the one before; returns their run directories.

    `resume` is the run directory of one of the phases (see `find_phase`): that one is continued, those before it are
    not run and not in the result. `remember` is a file that gets the name of every directory, a line each; the last one
    that it holds when the pipeline starts is continued instead of `resume`. LockedError if another pipeline uses it.
    """

    running: list[Path] = []

    def begun(directory: Path) -> None:
        running.append(directory)
        if remember:
            earlier = remember.read_bytes() if remember.is_file() else b""
            write_bytes(remember, earlier + f"{directory.absolute()}\n".encode())

    with contextlib.ExitStack() as held:
        if remember:
            make_folder(remember.parent)
            held.enter_context(locked(remember.with_name(f".{remember.name}.lock"), remember))
        # Of all phases, before the first one: what the last one lacks would else be found out after hours.
        check_hand_offs(cfg_paths, options)
        check_needs(cfg_paths, options)
        resume = (remembered(remember) if remember else None) or resume
        first, handed = find_phase(cfg_paths, options, resume) if resume else (0, [])
        directories: list[Path] = []
        for number, cfg_path in enumerate(cfg_paths[first:], start=first + 1):
            name = f"phase {number} of {len(cfg_paths)}"
            print(f"{name}: {cfg_path}", flush=True)
            # Only the first phase here is continued; those after it start anew.
            resumed = None if directories else resume
            try:
                directories.append(run_phase(cfg_path, [*options, *handed], resume=resumed, begun=begun, phase=name))
            except KeyboardInterrupt as stop:
                # Without its settings there is nothing to continue: the server has not yet begun.
                if running and (running[-1] / "config.yaml").is_file():
                    raise KeyboardInterrupt(f"go on with the same command and --resume {running[-1]}") from stop
                raise
            print(f"phase {number} is done: {directories[-1]}", flush=True)
            told = ending(directories[-1])
            print("\n".join(told if number == len(cfg_paths) else told[:1]), flush=True)
            if number < len(cfg_paths):
                newest = hand_off(directories[-1])
                print(f"hand-off: the next phase starts from {newest}, which is its reference policy, too", flush=True)
                handed = handed_options(newest, newest)
        return directories


def remembered(path: Path) -> Path | None:
    """The last run directory in a file of `run_pipeline` that can be continued: its server has written its settings."""
    names = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return next((Path(name) for name in reversed(names) if (Path(name) / "config.yaml").is_file()), None)


def handed_options(pretrained: Path | str, reference: Path | str) -> list[str]:
    """The settings by which a phase starts from the checkpoint of the one before."""
    given = [as_option("model.pretrained", pretrained), as_option("model.ref_pretrained", reference)]
    return [*given, "model.load_pretrained=true"]


def find_phase(cfg_paths: Sequence[str], options: Sequence[str], run_dir: Path) -> tuple[int, list[str]]:
    """The number of the phase that wrote `run_dir` (from 0) and the settings handed to it; ConfigError if none did."""
    # The run's settings equal those of a phase, either as its file says (the first phase) or with what was handed over.
    saved = saved_settings(run_dir)
    handed = handed_options(saved.model.get("pretrained", ""), saved.model.get("ref_pretrained", ""))
    found = [
        (number, given)
        for number, cfg_path in enumerate(cfg_paths)
        for given in ([], handed)
        if not changed_settings(saved, load_config(DaggerConfig, cfg_path, [*options, *given]))
    ]
    if found:
        # Phases of one file (DPO again and again) differ in nothing but their number, which `run_phase` has noted.
        noted = run_dir / "state" / "phase"
        name = noted.read_text(encoding="utf-8").strip() if noted.is_file() else ""
        own = [(number, given) for number, given in found if name == f"phase {number + 1} of {len(cfg_paths)}"]
        numbers = sorted({number + 1 for number, _ in found})
        if not own and len(numbers) > 1:
            listed = ", ".join(map(str, numbers))
            raise ConfigError(
                f"{run_dir} may be each of the phases {listed}: give the files of the phases to run alone"
            )
        return (own or found)[0]
    # None: name what differs from the phase of the same kind, cloning or DPO.
    likely = [path for path in cfg_paths if load_config(DaggerConfig, path).run.enable_dpo == saved.run.enable_dpo]
    wanted = load_config(DaggerConfig, (likely or cfg_paths)[0], options)
    changes = "; ".join(change for change in changed_settings(saved, wanted) if "pretrained" not in change)
    raise ConfigError(f"{run_dir} cannot be resumed with other settings: {changes}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n    ")[0],
        epilog=" ".join((__doc__ or "").split("\n\n")[-1].split()),
    )
    parser.add_argument("--cfg-path", nargs="+", metavar="FILE", help="one settings file for each phase")
    parser.add_argument(
        "--options",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="settings that override every file",
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="RUN_DIR",
        help="continue the phase that wrote this directory, then run the phases after it",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only say what the phases need and what this machine lacks"
    )
    parser.add_argument(
        "--remember",
        type=Path,
        metavar="FILE",
        help="note the run directories in FILE, and continue the last one that it holds: for jobs that a queue may "
        "start again",
    )
    arguments = parser.parse_args()
    own = arguments.resume / "config.yaml" if arguments.resume else None
    if not arguments.cfg_path and own and own.is_file() and is_emac_plus(own):
        arguments.cfg_path = [str(own)]
    if not arguments.cfg_path:
        if own and not own.is_file():
            raise ConfigError(f"{arguments.resume} is not a run directory: it has no config.yaml")
        example = "--cfg-path configs/dagger/demo_bc.yaml configs/dagger/demo_dpo.yaml"
        parser.error(f"--cfg-path FILE … is required, for example {example}")
    if is_emac_plus(arguments.cfg_path[0]):
        if len(arguments.cfg_path) > 1:
            raise ConfigError(f"{arguments.cfg_path[0]} has a section `planner`: give it alone (docs/emac_plus.md)")
        if arguments.dry_run or arguments.remember:
            raise ConfigError("--dry-run and --remember are for the phases of DAgger, not for EMAC+'s loop")
        from xrl_alignment.planning.building import run_emac_plus  # here: the phases' parent process needs no model

        bound_kernel_cache()
        run_emac_plus(arguments.cfg_path[0], arguments.options, arguments.resume)
        return
    if arguments.dry_run:
        check_hand_offs(arguments.cfg_path, arguments.options)
        check_needs(arguments.cfg_path, arguments.options, print)
        print("nothing is missing; nothing was started")
        return
    run_pipeline(arguments.cfg_path, arguments.options, resume=arguments.resume, remember=arguments.remember)


if __name__ == "__main__":
    run_program(main)
