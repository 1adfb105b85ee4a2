"""Runs training phases one after the other: server and client as two processes, BC's checkpoint handed to DPO.

    python -m xrl_alignment.pipeline --cfg-path configs/dagger/demo_bc.yaml configs/dagger/demo_dpo.yaml

One file runs one phase. With two, the newest checkpoint of the first becomes the second's start and its reference
policy (`model.pretrained`, `model.ref_pretrained`). A phase that fails ends the pipeline with the tail of its log.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from xrl_alignment.checkpoint import load_checkpoint
from xrl_alignment.config import CLIENT_EXPERTS, ConfigError, DaggerConfig, load_config, run_program
from xrl_alignment.paths import REPO_ROOT
from xrl_alignment.run_directory import new_run_directory, newest_checkpoint

TAIL_LINES = 20
# glibc gives large buffers back to the system after every use; keeping them makes small-model training on a CPU up to
# twice as fast (measured: 24 rows of 256 tokens, forward and backward, 0.62 s -> 0.43 s).
KEEP_BUFFERS = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 31)}


class PhaseError(ConfigError):
    """A phase ended with an error; the text holds its log's tail."""


def run_phase(cfg_path: Path | str, options: Sequence[str] = (), *, resume: Path | None = None) -> Path:
    """Run one training phase to its DONE file; returns its run directory.

    `resume` continues that run directory instead of starting one. Both processes' output goes to `server.log` and
    `client.log` in the run directory; PhaseError carries the failing one's tail.
    """
    config = load_config(DaggerConfig, cfg_path, options)
    directory = resume or new_run_directory(
        config.run.output_dir, enable_dpo=config.run.enable_dpo, enable_tc=config.run.enable_tc
    )
    announcement = directory / "state" / "server.json"
    announcement.unlink(missing_ok=True)
    server_command = [sys.executable, str(REPO_ROOT / "dagger_server.py"), "--cfg-path", str(cfg_path)]
    server_command += ["--run-dir", str(directory), *(["--options", *options] if options else [])]
    server = _start(server_command, directory / "server.log", config.server.token)
    client = None
    try:
        port = _wait_for_port(server, announcement, directory / "server.log")
        client = _start([*client_command(config), "--port", str(port)], directory / "client.log", config.server.token)
        _wait_for_both(server, client, directory)
    finally:
        for process in (client, server):
            _stop(process)
    return directory


def client_command(config: DaggerConfig) -> list[str]:
    """The `alfworld_client.py` command line that plays what `config` asks for (its port apart)."""
    environment = config.environment
    command = [sys.executable, str(REPO_ROOT / "alfworld_client.py"), "--host", config.server.host]
    command += ["--env", environment.name, "--split", environment.split, "--num-envs", str(config.run.num_envs)]
    command += ["--num-workers", str(config.run.num_workers), "--max-steps", str(config.run.max_steps)]
    command += ["--seed", str(environment.seed)]
    if config.expert.name in CLIENT_EXPERTS:
        command += ["--expert", config.expert.name]
    if environment.data:
        command += ["--data", environment.data]
    if environment.name == "household":
        command += ["--num-train", str(environment.num_train), "--num-heldout", str(environment.num_heldout)]
    if not environment.show_ids:
        command.append("--no-show-ids")
    if environment.blank_frames:
        command.append("--blank-frames")
    return command


def hand_off(directory: Path) -> Path:
    """The checkpoint that the next phase starts from; PhaseError when the finished phase left none that loads."""
    checkpoint = newest_checkpoint(directory)
    if checkpoint is None:
        raise PhaseError(f"{directory} holds no emma_checkpoint_<round>.pth: set run.save_ckpt=true")
    load_checkpoint(checkpoint)  # a damaged file stops here, not after the next phase has loaded its model
    return checkpoint


def _start(command: list[str], log: Path, token: str) -> subprocess.Popen:
    """Start a process in a session of its own, so that Ctrl-C reaches only the pipeline, which then stops both."""
    environment = {**KEEP_BUFFERS, **os.environ, "EMAC_TOKEN": token}
    with open(log, "ab") as output:
        return subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=environment
        )


def _stop(process: subprocess.Popen | None) -> None:
    if process is None or process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for_port(server: subprocess.Popen, announcement: Path, log: Path) -> int:
    """The port that the server says it listens on (it may load a model for minutes first)."""
    while True:
        if server.poll() is not None:
            raise PhaseError(f"the server ended with code {server.returncode} before it listened:\n{tail(log)}")
        try:
            return json.loads(announcement.read_text(encoding="utf-8"))["port"]
        except (FileNotFoundError, json.JSONDecodeError):
            time.sleep(0.1)


def _wait_for_both(server: subprocess.Popen, client: subprocess.Popen, directory: Path) -> None:
    while server.poll() is None:
        if client.poll() not in (None, 0):
            raise PhaseError(f"the client ended with code {client.returncode}:\n{tail(directory / 'client.log')}")
        time.sleep(0.2)
    if server.returncode != 0 or not (directory / "DONE").exists():
        raise PhaseError(f"the server ended with code {server.returncode}:\n{tail(directory / 'server.log')}")


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def run_pipeline(cfg_paths: Sequence[str], options: Sequence[str], *, resume: Path | None = None) -> list[Path]:
    """Run the phases in order, each starting from the one before; returns their run directories."""
    directories: list[Path] = []
    for cfg_path in cfg_paths:
        handed = []
        if directories:
            checkpoint = hand_off(directories[-1])
            print(f"hand-off: {checkpoint} is where this phase starts and its reference policy", flush=True)
            handed = [
                f"model.pretrained={checkpoint}",
                f"model.ref_pretrained={checkpoint}",
                "model.load_pretrained=true",
            ]
        print(f"phase {len(directories) + 1} of {len(cfg_paths)}: {cfg_path}", flush=True)
        directories.append(run_phase(cfg_path, [*options, *handed], resume=resume if not directories else None))
        print(f"phase {len(directories)} is done: {directories[-1]}", flush=True)
    return directories


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cfg-path", nargs="+", required=True, metavar="FILE", help="one settings file for each phase")
    parser.add_argument("--options", nargs="+", default=[], metavar="KEY=VALUE", help="settings laid over every file")
    parser.add_argument("--resume", type=Path, metavar="RUN_DIR", help="continue this run directory as the first phase")
    arguments = parser.parse_args()
    # A scheduler's or `kill`'s SIGTERM unwinds like Ctrl-C does, so that no child is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run_pipeline(arguments.cfg_path, arguments.options, resume=arguments.resume)


if __name__ == "__main__":
    run_program(main)
