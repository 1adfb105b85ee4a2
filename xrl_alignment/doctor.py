"""What is missing on this machine, one line each, with what to do about it.

    python -m xrl_alignment.doctor [--cfg-path FILE] [--data DIR] [--port N] [--model PATH …] [--thor]

`ok`: as it should be; `warn`: the default run works without it, something else does not; `fail`: a default run (tiny
model, generated games, drawn frames) cannot work. With `--thor` what AI2-THOR needs counts, too. Exit code 0 without a
`fail`, 1 with one. Looks only: nothing is installed, deleted or stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from xrl_alignment.environments.base import Game

OLDEST_PYTHON = (3, 10)
LIBRARIES = {
    "alfworld": "alfworld",
    "gymnasium": "gymnasium",
    "h5py": "h5py",
    "jinja2": "jinja2",
    "lz4": "lz4",
    "matplotlib": "matplotlib",
    "numpy": "numpy",
    "omegaconf": "omegaconf",
    "PIL": "pillow",
    "psutil": "psutil",
    "rich": "rich",
    "safetensors": "safetensors",
    "tensorboard": "tensorboard",
    "textworld": "textworld",
    "tokenizers": "tokenizers",
    "torch": "torch",
    "transformers": "transformers",
}
EXTRAS = {
    "ray": ("ray", "rollouts on many machines"),
    "vllm": ("vllm", "policy.name=vllm (best in an environment of its own: make vllm-env)"),
    "ai2thor": ("thor", "environment.name=thor"),
    "fastapi": ("policy-server", "the policy server"),
    "bitsandbytes": ("quantization", "the policy server's model.quantization"),
}
SIMULATOR = ("ai2thor", "cv2", "torchvision")
KEYS = ("OPENAI_API_KEY",)  # names only; values are never read beyond "is it empty"
SPACE_NEEDED = 2 * 1024**3  # bytes: a demo's run directories, generated games, checkpoints
LARGE_MODEL = 16 * 1024**3  # bytes of GPU memory that a 7B model takes in half precision, frozen
FRAME_TIMEOUT = 180.0  # seconds; the first start of AI2-THOR downloads its build
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_WEIGHT_FILES = (".safetensors", ".bin", ".pth", ".pt")
_FRAME_PROGRAM = """
from alfworld.env.thor_env import ThorEnv
environment = ThorEnv()
frame = environment.reset("FloorPlan1").frame
print("frame", *frame.shape, int(frame.max()) - int(frame.min()))
environment.stop()
"""


class Finding(NamedTuple):
    """One line of the report; `advice` says what to do where `level` is not ok."""

    level: str  # ok, warn, fail
    what: str
    detail: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.level:<5} {self.what}: {self.detail}" + (f"; {self.advice}" if self.advice else "")


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Python's version."""
    text = ".".join(map(str, version))
    if version >= OLDEST_PYTHON:
        return Finding("ok", "python", text)
    return Finding("fail", "python", text, f"install Python {'.'.join(map(str, OLDEST_PYTHON))} or newer")


def check_libraries(libraries: Mapping[str, str] = LIBRARIES) -> Iterator[Finding]:
    """The libraries every run needs, by module and distribution name: those missing, or one line of versions."""
    found = []
    for module, distribution in libraries.items():
        if importlib.util.find_spec(module) is None:
            yield Finding("fail", distribution, "not installed", "run `make` or `pip install -e . -c constraints.txt`")
        else:
            found.append(f"{distribution} {_version(distribution)}")
    if found:
        yield Finding("ok", "libraries", ", ".join(found))


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "(version unknown)"


def check_device() -> Finding:
    """The GPU that torch sees, and its memory."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return Finding("fail", "device", f"torch cannot be imported ({error})", "install torch again")
    if not torch.cuda.is_available():
        return Finding("ok", "device", "CPU only: enough for model tiny; a 7B model needs a GPU")
    free, total = torch.cuda.mem_get_info()
    text = f"{torch.cuda.get_device_name()}, {free / 1024**3:.0f} of {total / 1024**3:.0f} GiB free"
    if free < LARGE_MODEL:
        return Finding("warn", "device", text, "a 7B model needs 16 GiB; model tiny runs")
    return Finding("ok", "device", text)


def check_weights(path: str, what: str = "weights") -> Finding:
    """A model's weights: a checkpoint file, or a folder as Transformers writes it."""
    place = Path(os.path.expandvars(path)).expanduser()
    if place.is_file():
        size = place.stat().st_size
        if size == 0:
            return Finding("fail", what, f"{place} is empty", "copy the file again")
        return Finding("ok", what, f"{place}, {size / 1024**2:.0f} MiB")
    if not place.exists() and _HUB_ID.fullmatch(path) and place.suffix not in _WEIGHT_FILES:
        return _check_hub(path, what)
    if not place.is_dir():
        advice = "give the folder or file that holds the weights, or a Hugging Face id where the network allows it"
        return Finding("fail", what, f"{place} does not exist", advice)
    if not (place / "config.json").is_file():
        return Finding("fail", what, f"{place} has no config.json", "give the model's own folder, not the one above it")
    files = [f for f in place.iterdir() if f.suffix in _WEIGHT_FILES]
    if not files:
        return Finding("fail", what, f"{place} holds no weights", "download them again; Git LFS may have been off")
    return Finding(
        "ok", what, f"{place}, {sum(f.stat().st_size for f in files) / 1024**3:.1f} GiB in {len(files)} files"
    )


def _check_hub(name: str, what: str) -> Finding:
    """A Hugging Face id: whether its config is in the local cache."""
    from huggingface_hub import try_to_load_from_cache

    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return Finding("ok", what, f"{name}, in the Hugging Face cache")
    advice = "it is downloaded at the first start; without a network give a folder instead"
    return Finding("warn", what, f"{name} is no folder here and not in the Hugging Face cache", advice)


def check_config_weights(cfg_path: str) -> Iterator[Finding]:
    """Every weight path that a config names under `model:`; a wrong config is one `fail`."""
    from lavis.common.errors import ConfigError
    from xrl_alignment.config.loading import load_config
    from xrl_alignment.config.schema import DaggerConfig, EvaluateConfig

    config, faults = None, []
    for schema in (DaggerConfig, EvaluateConfig):
        try:
            config = config or load_config(schema, cfg_path)
        except ConfigError as error:
            faults.append(str(error))
    if config is None:
        yield Finding("fail", "config", faults[0], "correct the file")
        return
    for key in ("llm_model", "base_model", "pretrained", "ref_pretrained"):
        path = str(config.model.get(key) or "")
        if path and path != "tiny":
            yield check_weights(path, f"model.{key}")


def _games_by_split(data: str | None) -> dict[str, list[Game]]:
    """Splits under `data` that hold games; a folder that holds none is passed over."""
    from xrl_alignment.common.errors import EnvironmentFault
    from xrl_alignment.environments.games import find_games, find_splits

    found = {}
    for split in find_splits(data):
        with contextlib.suppress(EnvironmentFault, OSError):
            found[split] = find_games(split, data=data)
    return found


def check_games(data: str | None = None) -> Finding:
    """ALFWorld games under `data`, `$ALFWORLD_DATA` or ALFWorld's own cache; missing, they fail only if asked for."""
    from xrl_alignment.environments.games import data_root

    counts = [f"{split} {len(games)}" for split, games in _games_by_split(data).items()]
    if counts:
        return Finding("ok", "games", f"{data_root(data)}: {', '.join(counts)}")
    advice = "run `alfworld-download`, or set ALFWORLD_DATA or --data; generated games need none"
    return Finding("fail" if data else "warn", "games", f"no official games under {data_root(data)}", advice)


def check_disk(folder: Path = Path(), needed: int = SPACE_NEEDED) -> Finding:
    """Room for run directories in `folder`."""
    free = shutil.disk_usage(folder).free
    text = f"{free / 1024**3:.1f} GiB free in {folder.resolve()}"
    if free >= needed:
        return Finding("ok", "disk", text)
    return Finding("fail", "disk", text, f"free {needed / 1024**3:.0f} GiB, or set run.output_dir to a larger disk")


def check_port(port: int, host: str = "127.0.0.1") -> Finding:
    """Whether a server could listen on `port`, and who holds it if not."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: a closing port is free
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            fault = error
        else:
            return Finding("ok", f"port {port}", "free")
    from xrl_alignment.common.network import process_on_port

    holder = process_on_port(port)
    detail = f"held by {holder}" if holder else f"not free ({fault})"
    return Finding("fail", f"port {port}", detail, "stop that process, or choose another with server.port=…")


def check_keys(environ: Mapping[str, str], names: Iterable[str] = KEYS) -> Iterator[Finding]:
    """Whether API keys are set; never what they are."""
    for name in names:
        if environ.get(name):
            yield Finding("ok", name, "set")
        else:
            yield Finding("ok", name, "not set; only expert.name=openai against a paid endpoint needs it")


def check_extras(extras: Mapping[str, tuple[str, str]] = EXTRAS) -> Iterator[Finding]:
    """Optional packages: module -> (extra, what for)."""
    for module, (extra, purpose) in extras.items():
        if importlib.util.find_spec(module) is not None:
            yield Finding("ok", module, _version(module))
        else:
            yield Finding("ok", module, f"not installed; for {purpose}: pip install 'emac-plus[{extra}]'")


def check_simulator(modules: Iterable[str] = SIMULATOR) -> Finding:
    """The packages that drive AI2-THOR and that alfworld imports with it."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        return Finding("fail", "ai2thor", f"not installed: {', '.join(missing)}", "pip install 'emac-plus[thor]'")
    return Finding("ok", "ai2thor", _version("ai2thor"))


def check_poses(data: str | None = None) -> Finding:
    """Whether the games carry the object poses from which AI2-THOR builds a room (generated games do not)."""
    from xrl_alignment.environments.games import data_root

    for split, games in _games_by_split(data).items():
        trajectory = games[0].path.parent / "traj_data.json"
        if trajectory.is_file() and "object_poses" in json.loads(trajectory.read_text()).get("scene", {}):
            return Finding("ok", "object poses", f"{split} has them")
    advice = "get ALFWorld's own traj_data.json with `alfworld-download`"
    return Finding("fail", "object poses", f"no game under {data_root(data)} has them", advice)


def check_display(environ: Mapping[str, str], sockets: Path = Path("/tmp/.X11-unix")) -> Finding:
    """An X display to render on: `DISPLAY` and the socket of that server."""
    display = environ.get("DISPLAY", "")
    if not display:
        helper = "run under `xvfb-run -a`" if shutil.which("xvfb-run") else "install xvfb and run under `xvfb-run -a`"
        return Finding("fail", "display", "DISPLAY is not set", helper)
    host, _, screen = display.rpartition(":")
    number = screen.split(".")[0]
    if host not in ("", "unix") or not number.isdigit():
        return Finding("ok", "display", f"DISPLAY={display}")
    if not (sockets / f"X{number}").exists():
        return Finding("fail", "display", f"DISPLAY={display}, but no X server is there", "start Xvfb or an X server")
    return Finding("ok", "display", f"DISPLAY={display}, its server is running")


def unity_logs(home: Path) -> list[Path]:
    """Unity's log files below `home`, the newest first: ai2thor's own, then Unity's for Linux and macOS."""
    patterns = (".ai2thor/log/*.log", ".config/unity3d/Allen Institute*/*/Player.log", "Library/Logs/*/*/Player.log")
    logs = [path for pattern in patterns for path in home.glob(pattern)]
    return sorted(logs, key=lambda path: path.stat().st_mtime, reverse=True)


def check_unity_log(home: Path) -> Finding:
    """Where Unity's log is, and its last lines that speak of an error."""
    logs = unity_logs(home)
    if not logs:
        return Finding("ok", "unity log", f"none under {home}: the simulator has not run here")
    with logs[0].open("rb") as file:
        file.seek(max(logs[0].stat().st_size - 256 * 1024, 0))
        lines = file.read().decode(errors="replace").splitlines()
    words = ("error", "exception", "fail", "crash", "unable")
    faults = [line.strip()[:160] for line in lines if any(word in line.lower() for word in words)]
    if not faults:
        return Finding("ok", "unity log", f"{logs[0]}, no errors")
    return Finding("warn", "unity log", f"{logs[0]}: " + " | ".join(faults[-3:]), "read the lines around them")


def check_pipes(folder: Path = Path("/tmp/ai2thor-fifo")) -> Finding:
    """Pipes that crashed runs of AI2-THOR left behind (they may also belong to one that is running now)."""
    pipes = sorted(folder.glob("*")) if folder.is_dir() else []
    if not pipes:
        return Finding("ok", "ai2thor pipes", "none left over")
    advice = f"when no AI2-THOR is running, remove them: rm -rf {folder}"
    return Finding("warn", "ai2thor pipes", f"{len(pipes)} in {folder}", advice)


def check_frame(timeout_s: float = FRAME_TIMEOUT, program: str = _FRAME_PROGRAM) -> Finding:
    """One rendered frame, in a process of its own that is stopped after `timeout_s` seconds, with all it started."""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return Finding(
            "fail", "thor frame", f"none within {timeout_s:.0f} s", "see the display and the Unity log above"
        )
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    words = next((line.split() for line in reversed(lines) if line.startswith("frame ")), None)
    if process.returncode or words is None:
        last = lines[-1][:200] if lines else f"exit code {process.returncode}"
        return Finding("fail", "thor frame", last, "see the display and the Unity log above")
    if words[-1] == "0":
        return Finding("fail", "thor frame", "rendered, but of one colour", "the display has no working OpenGL")
    return Finding("ok", "thor frame", f"rendered, {words[1]} x {words[2]}")


def diagnose(arguments: argparse.Namespace) -> Iterator[Finding]:
    """All findings, as they are made."""
    yield check_python()
    missing = False
    for finding in check_libraries():
        missing = missing or finding.level == "fail"
        yield finding
    if not missing:
        yield check_device()
        yield check_games(arguments.data)
        if arguments.cfg_path:
            yield from check_config_weights(arguments.cfg_path)
    for path in arguments.model:
        yield check_weights(path)
    yield check_disk()
    yield check_port(arguments.port)
    yield from check_keys(os.environ)
    yield from check_extras()
    if arguments.thor:
        yield from _diagnose_thor(arguments.data, arguments.timeout)


def _diagnose_thor(data: str | None, timeout_s: float) -> Iterator[Finding]:
    needed = [check_simulator(), check_display(os.environ)]
    yield from [*needed, check_unity_log(Path.home()), check_pipes(), check_poses(data)]
    if any(finding.level == "fail" for finding in needed):
        yield Finding("warn", "thor frame", "not tried", "first correct what failed above")
    else:
        yield check_frame(timeout_s)


def main(argv: list[str] | None = None) -> int:
    """Print the findings; 0 if none is `fail`, else 1."""
    parser = argparse.ArgumentParser(prog="python -m xrl_alignment.doctor", description=__doc__.split("\n\n")[0])
    parser.add_argument("--cfg-path", metavar="FILE", help="also check the weights that this config names")
    parser.add_argument("--data", metavar="DIR", help="folder that holds json_2.1.1 (default: $ALFWORLD_DATA)")
    parser.add_argument("--port", type=int, default=7860, help="the server's port (default: %(default)s)")
    parser.add_argument(
        "--model", metavar="PATH", nargs="+", default=[], help="weights: a checkpoint or a model folder"
    )
    parser.add_argument("--thor", action="store_true", help="also check what AI2-THOR needs, and render one frame")
    parser.add_argument("--timeout", type=float, default=FRAME_TIMEOUT, help="seconds for that frame")
    levels = []
    for finding in diagnose(parser.parse_args(argv)):
        print(finding, flush=True)
        levels.append(finding.level)
    print(f"{levels.count('fail')} to correct, {levels.count('warn')} to know about")
    return 1 if "fail" in levels else 0


if __name__ == "__main__":
    sys.exit(main())
