"""What the dashboard costs a run: throughput with five viewers against none, memory, time to the first paint.

    python benchmarks/dashboard.py --json dashboard.json            # about three minutes

A server and a client process play generated games as the demo's first phase does (24 sessions, its model, training),
with a learning rate so small that the run stays the same. Meanwhile five viewers come and go: segments of `--seconds`
in the order none, five, five, none. `viewers_cost` is the median over these blocks of the share of steps per second
that is lost; `cpu_cost` is the same for the server's processor time per step, which other processes disturb less. The
viewers read what a browser would, and throw it away.

`memory_grown_MiB` is what the server's resident memory grows by in `--steps` steps with viewers. The row without them
comes before: the run itself keeps more in memory as it goes on.

`first_paint_s` is the median over five loads in headless Chromium, and left out where none is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from _bench import Result, run

from lavis.common.files import whole_lines
from lavis.common.paths import REPO_ROOT
from xrl_alignment.lab.pipeline import client_command
from xrl_alignment.settings.loading import load_config
from xrl_alignment.settings.schema import DaggerConfig

CONFIG = REPO_ROOT / "configs" / "dagger" / "demo_bc.yaml"
VIEWERS = 5
LEAST_STEPS = 200  # of a segment, on a slow machine
SETTLE_S = 1.0  # after viewers have come or gone
OPTIONS = (
    "run.num_rounds=100000 run.num_envs=120 run.init_lr=1e-12 run.beta=[0.0] run.max_steps=20 run.repeat_limit=0 "
    "run.save_ckpt=false environment.num_train=120 environment.num_heldout=1 server.port=0"
)


class Viewers:
    """Some viewers of the dashboard, until `close`; what they get is counted in `bytes` and dropped."""

    def __init__(self, port: int, count: int) -> None:
        self.bytes = 0
        self._over = threading.Event()
        self._selector = selectors.DefaultSelector()
        for _ in range(count):
            viewer = socket.create_connection(("127.0.0.1", port))
            viewer.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self._selector.register(viewer, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def close(self) -> None:
        """Let them leave."""
        self._over.set()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _read(self) -> None:
        while not self._over.is_set():
            for key, _ in self._selector.select(0.2):
                piece = key.fileobj.recv(1 << 20)  # type: ignore[union-attr]
                if not piece:
                    raise RuntimeError("the server has dropped a viewer")
                self.bytes += len(piece)


class RunningServer:
    """A server that trains and a client that plays, as processes."""

    def __init__(self, folder: Path, server: subprocess.Popen, port: int) -> None:
        self.port = port
        self._log = folder / "run" / "running_nb01.log"
        self._process = psutil.Process(server.pid)
        self._read = self._steps = 0

    @property
    def steps(self) -> int:
        """Decisions so far: each is a line of the log."""
        with open(self._log, "rb") as log:
            log.seek(self._read)
            new = log.read()
        whole = whole_lines(new)
        self._read += len(whole)
        self._steps += whole.count(b"INFO:dagger_server_running:Task: [")
        return self._steps

    @property
    def cpu_s(self) -> float:
        """Processor time of the server so far."""
        times = self._process.cpu_times()
        return times.user + times.system

    @property
    def memory(self) -> int:
        """The server's resident memory in bytes."""
        return self._process.memory_info().rss

    def segment(self, seconds: float, viewers: int) -> dict[str, float]:
        """Play on for at least so long with so many viewers."""
        watching = Viewers(self.port, viewers)
        try:
            time.sleep(SETTLE_S)
            steps, cpu, began, received = self.steps, self.cpu_s, time.perf_counter(), watching.bytes
            while time.perf_counter() - began < seconds or self.steps - steps < LEAST_STEPS:
                time.sleep(0.05)
            steps, cpu, took = self.steps - steps, self.cpu_s - cpu, time.perf_counter() - began
            return {
                "steps_per_s": steps / took,
                "cpu_ms_per_step": 1000 * cpu / steps,
                "bytes_per_s": (watching.bytes - received) / took,
            }
        finally:
            watching.close()


@contextlib.contextmanager
def playing(folder: Path) -> Iterator[RunningServer]:
    """Start both, wait for the first steps, stop them at the end."""
    given = [*OPTIONS.split(), f"environment.data={folder / 'games'}"]
    command = [sys.executable, str(REPO_ROOT / "dagger_server.py"), "--cfg-path", str(CONFIG)]
    command += ["--run-dir", str(folder / "run"), "--options", *given]
    processes = []
    with open(folder / "log", "w") as log:
        try:
            processes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=REPO_ROOT))
            line = announced(folder / "log", processes[0])
            port = int(line.partition("port ")[2].partition(",")[0])
            client = [*client_command(load_config(DaggerConfig, CONFIG, given)), "--port", str(port)]
            processes.append(subprocess.Popen(client, stdout=log, stderr=log, cwd=REPO_ROOT))
            server = RunningServer(folder, processes[0], port)
            while server.steps < 500:
                check(processes, folder / "log")
                time.sleep(0.2)
            yield server
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait()


def announced(log: Path, server: subprocess.Popen) -> str:
    """The line in which the server names its port."""
    while True:
        check([server], log)
        for line in log.read_text().splitlines():
            if line.startswith("Server running on port "):
                return line
        time.sleep(0.1)


def check(processes: list[subprocess.Popen], log: Path) -> None:
    """RuntimeError with the end of their log where one has ended."""
    if any(process.poll() is not None for process in processes):
        raise RuntimeError("\n".join(log.read_text().splitlines()[-20:]))


def measure(seconds: float, blocks: int, steps: int) -> Result:
    """Segments with and without viewers, then memory, then the first paint."""
    rows: list[dict] = []
    with tempfile.TemporaryDirectory() as name, playing(Path(name)) as server:
        for block in range(blocks):
            for viewers in (0, VIEWERS, VIEWERS, 0):
                rows.append({"block": block, "viewers": viewers, **server.segment(seconds, viewers)})
        grown = {viewers: memory_grown(server, steps, viewers) for viewers in (0, VIEWERS)}
        paints = first_paints(server.port, Path(name) / "profile")
    ratios = {
        "viewers_cost": 1 - compared(rows, "steps_per_s"),
        "cpu_cost": compared(rows, "cpu_ms_per_step") - 1,
        "memory_grown_MiB": grown[VIEWERS],
    }
    if paints:
        ratios["first_paint_s"] = statistics.median(paints)
    memory = [{"viewers": f"{viewers}, {steps} steps", "memory_grown_MiB": mib} for viewers, mib in grown.items()]
    return Result([*summary(rows), *memory], ratios)


def memory_grown(server: RunningServer, steps: int, viewers: int) -> float:
    """MiB by which the server's resident memory grows in so many steps: last quarter against first, as medians."""
    watching, memory = Viewers(server.port, viewers), []
    try:
        until = server.steps + steps
        while server.steps < until:
            time.sleep(0.2)
            memory.append(server.memory)
    finally:
        watching.close()
    quarter = max(1, len(memory) // 4)
    return (statistics.median(memory[-quarter:]) - statistics.median(memory[:quarter])) / 2**20


def compared(rows: list[dict], column: str) -> float:
    """The median over the blocks of: with viewers over without."""
    found = []
    for block in {row["block"] for row in rows}:
        mean = {
            viewers: statistics.mean(r[column] for r in rows if (r["block"], r["viewers"]) == (block, viewers))
            for viewers in (0, VIEWERS)
        }
        found.append(mean[VIEWERS] / mean[0])
    return statistics.median(found)


def summary(rows: list[dict]) -> list[dict]:
    """Medians and the spread of the segments, without viewers and with them."""
    found = []
    for viewers in (0, VIEWERS):
        mine = [row for row in rows if row["viewers"] == viewers]
        rates = [row["steps_per_s"] for row in mine]
        columns = ("steps_per_s", "cpu_ms_per_step", "bytes_per_s")
        medians = {column: statistics.median(row[column] for row in mine) for column in columns}
        spread = statistics.stdev(rates)
        found.append({"viewers": str(viewers), "segments": len(mine), **medians, "rate_spread": spread})
    return found


def first_paints(port: int, profile: Path) -> list[float]:
    """Seconds from the start of a load to the first text or image on the screen; [] without Chromium."""
    if shutil.which("chromium") is None:
        return []
    from tests.browser import running_browser

    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    found = []
    with running_browser(profile) as browser:
        for _ in range(5):
            with browser.page() as page:
                page.open(f"http://127.0.0.1:{port}/")
                found.append(page.wait(paint) / 1000)
    return found


def options(parser: argparse.ArgumentParser) -> None:
    """How long it measures."""
    parser.add_argument("--seconds", type=float, default=5.0, help="of a segment")
    parser.add_argument("--blocks", type=int, default=6, help="of four segments each")
    parser.add_argument("--steps", type=int, default=10_000, help="over which memory is watched, twice")


if __name__ == "__main__":
    run("The dashboard with five viewers (cost at most 0.02, first paint within 0.5 s)", measure, options)
