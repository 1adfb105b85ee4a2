"""Checks of what AI2-THOR needs: packages, a display, object poses; its log, its pipes, and one rendered frame."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path

from xrl_alignment.lab.doctor.files import games_by_split
from xrl_alignment.lab.doctor.finding import Finding
from xrl_alignment.lab.doctor.machine import version_of

SIMULATOR = ("ai2thor", "cv2", "torchvision")
BUILD_TIMEOUT = 10.0  # seconds
FRAME_TIMEOUT = 180.0  # seconds; AI2-THOR downloads its build at its first start
_FRAME_PROGRAM = """
from alfworld.env.thor_env import ThorEnv
environment = ThorEnv()
frame = environment.reset("FloorPlan1").frame
print("frame", *frame.shape, int(frame.max()) - int(frame.min()))
environment.stop()
"""


def check_simulator(modules: Iterable[str] = SIMULATOR) -> Finding:
    """The packages that drive AI2-THOR and that alfworld imports with it."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        return Finding("fail", "ai2thor", f"not installed: {', '.join(missing)}", "pip install -e '.[thor]'")
    return Finding("ok", "ai2thor", version_of("ai2thor"))


def check_build(home: Path) -> Finding:
    """AI2-THOR's build for this system below `home`, or whether the address that ai2thor loads it from answers."""
    try:
        from ai2thor._builds import BUILDS

        address = BUILDS[platform.system()]["url"]
    except (ImportError, KeyError):
        return Finding("fail", "thor build", f"ai2thor names none for {platform.system()}", "play it on Linux or macOS")
    folder = home / ".ai2thor" / "releases" / Path(address).stem
    if folder.is_dir():
        return Finding("ok", "thor build", str(folder))
    advice = f"unpack {address} into {folder}"
    # HEAD asks whether the build is there, without its bytes.
    head = urllib.request.Request(address, method="HEAD")
    try:
        with urllib.request.urlopen(head, timeout=BUILD_TIMEOUT):  # nosec B310  (ai2thor's own address)
            return Finding("warn", "thor build", f"{folder} does not exist", "it is downloaded at the first start")
    except (OSError, ValueError) as error:
        return Finding("fail", "thor build", f"{folder} does not exist, and {address} gives none ({error})", advice)


def check_poses(data: str | None = None, only: str = "") -> Finding:
    """Whether games carry the object poses from which AI2-THOR builds a room (generated games do not).

    It looks at the first game of every split, or of the split `only`.
    """
    from alfworld_native.games import data_root

    for split, games in games_by_split(data, only).items():
        with contextlib.suppress(OSError, ValueError):  # without that file, or with a damaged one
            trajectory = json.loads((games[0].path.parent / "traj_data.json").read_text())
            if "object_poses" in trajectory.get("scene", {}):
                return Finding("ok", "object poses", f"{split} has them")
    advice = "get ALFWorld's own traj_data.json with `alfworld-download`"
    return Finding("fail", "object poses", f"no game under {data_root(data)} has them", advice)


def check_display(environ: Mapping[str, str], sockets: Path | None = None, *, started: bool = False) -> Finding:
    """An X display to render on, which only Linux needs: `DISPLAY` and the socket of that server.

    With `started` the program starts a display with xvfb-run if there is none.
    """
    from alfworld_native.thor import X_SOCKETS, display_fault

    if not sys.platform.startswith("linux"):
        return Finding("ok", "display", f"{sys.platform} needs none")
    display = environ.get("DISPLAY", "")
    helper = shutil.which("xvfb-run")
    if not display and started and helper:
        return Finding("ok", "display", "DISPLAY is not set: xvfb-run starts one")
    if fault := display_fault(display, sockets or X_SOCKETS):
        advice = "run under `xvfb-run -a`" if helper else "install xvfb and run under `xvfb-run -a`"
        return Finding("fail", "display", fault, advice)
    return Finding("ok", "display", f"DISPLAY={display}")


def check_unity_log(home: Path) -> Finding:
    """Where Unity's log is, and its last lines that mention an error."""
    # ai2thor's own logs, then Unity's for Linux and macOS; the newest one is that of the last run.
    patterns = (".ai2thor/log/*.log", ".config/unity3d/Allen Institute*/*/Player.log", "Library/Logs/*/*/Player.log")
    logs = [path for pattern in patterns for path in home.glob(pattern)]
    if not logs:
        return Finding("ok", "unity log", f"none under {home}: the simulator has not run here")
    log = max(logs, key=lambda path: path.stat().st_mtime)
    with log.open("rb") as file:
        # The end of the log: a crash stands in its last lines, and the file may be large.
        file.seek(max(log.stat().st_size - 256 * 1024, 0))
        lines = file.read().decode(errors="replace").splitlines()
    words = ("error", "exception", "fail", "crash", "unable")
    faults = [line.strip()[:160] for line in lines if any(word in line.lower() for word in words)]
    if not faults:
        return Finding("ok", "unity log", f"{log}, no errors")
    return Finding("warn", "unity log", f"{log}: " + " | ".join(faults[-3:]), "read the lines around them")


# AI2-THOR's own folder, which is only read.
def check_pipes(folder: Path = Path("/tmp/ai2thor-fifo")) -> Finding:  # nosec B108
    """Pipes that crashed runs of AI2-THOR left behind (or that a run uses now)."""
    pipes = sorted(folder.glob("*")) if folder.is_dir() else []
    if not pipes:
        return Finding("ok", "ai2thor pipes", "none left over")
    advice = f"when no AI2-THOR is running, remove them: rm -rf {folder}"
    return Finding("warn", "ai2thor pipes", f"{len(pipes)} in {folder}", advice)


def check_frame(timeout_s: float = FRAME_TIMEOUT, program: str = _FRAME_PROGRAM) -> Finding:
    """Render one frame in a process of its own; it and its children are killed after `timeout_s` seconds, or Ctrl-C."""
    # In a group of its own: Unity is a child of that process, and would go on when it is killed alone.
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
        return Finding(
            "fail", "thor frame", f"none within {timeout_s:.0f} s", "see the display and the Unity log above"
        )
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    words = next((line.split() for line in reversed(lines) if line.startswith("frame ")), None)
    if process.returncode or words is None:
        last = lines[-1][:200] if lines else f"exit code {process.returncode}"
        return Finding("fail", "thor frame", last, "see the display and the Unity log above")
    if words[-1] == "0":
        return Finding("fail", "thor frame", "rendered, but of one colour", "the display has no working OpenGL")
    return Finding("ok", "thor frame", f"rendered, {words[1]} x {words[2]}")
