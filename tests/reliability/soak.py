"""Trains for hours with many sessions, and fails where throughput falls, memory grows, or anything is left behind.

    python -m tests.reliability.soak --minutes 120 --sessions 32
    python -m tests.reliability.soak --minutes 120 --teacher    # labels and memories come from an endpoint

Server and client are the real programs, played with the tiny model. The warm-up takes a tenth of the time, or what
`--warm-up` says, and at least two rounds: in the first one every game is new to the client, which keeps what it has
read and drawn of it. Its own figures are printed, too. The rest is cut into five windows; the last is compared with the
first. A window must hold a whole round: if the time is too short for that on this machine, the soak says after its
warm-up how many minutes it needs, and ends with code 2. Throughput is counted in steps for each second of processor
time that both programs took, because the machine may have other work; steps for each second are printed beside it. With
`--teacher` throughput is printed but not judged: memories make prompts longer for the first rounds.

Updates are real, but so small that the policy stays what it is: what it learns changes the load. At a rate of 1e-3
its answers grew from 7.1 to 12.2 characters in two hours, so every prompt of 20 steps grew by 100, and the memory of
the server in a round by 3.6 % (2026-11-26). With this rate (the same day, two hours, `--teacher`, 9,792 episodes) what
the system counts grew from 765.2 to 779.2 MB from the first window to the last (1.018), in the same phase of whole
rounds it was 0.991, and small objects 1.009; but what is allocated grew from 192.4 to 198.0 MB (1.028), and so that run
failed. What that is was not proved. Without compiled kernels that stay
(`ONEDNN_PRIMITIVE_CACHE_CAPACITY=0 LRU_CACHE_CAPACITY=1`) a run of 24 minutes hardly grew after 2,000 episodes
(docs/security.md).

On a machine three times as fast (2026-11-27, `--teacher`) two hours with 30,208 episodes failed: allocated 1.020,
objects 1.029 (about 3 for each episode, evenly), memory 1.022. Two of the three, 125 bytes together, were the replay
buffer's, whose index forgot nothing. After that was mended, two hours with 31,264 episodes passed: 1.013, 1.012 and
1.011. The count of turns to train kept one object an episode, too; it is an array since.

Memory is judged three times: bytes that are allocated, Python's small objects, which are not among these bytes
(`allocated.py`), and what the system counts. The latter is a saw's tooth for each round, because the programs keep
freed memory until a round ends. So whole rounds are compared, and of these the same phase: the first quarter of the
rounds' episodes with the first quarter, and so on. Now and then a round has more and longer prompts at once than any
before, so in half an hour memory may still grow by more than in the two hours that this is meant for. Sockets are
counted apart from files: an endpoint's connections stay open for seconds after a call, so their number depends on how
busy the machine is, up to `expert.concurrency`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

from alfworld_native.household.generator import generate
from benchmarks._endpoint import FakeEndpoint
from lavis.common.paths import REPO_ROOT
from lavis.models.blip2_models.emac_config import PARTS

GAMES, STEPS, WINDOWS, SAMPLES, WARM_UP = 64, 20, 5, 300, 0.1  # samples in all; the warm-up is a share of the time
WARM_ROUNDS = 2  # also belong to it
PHASES = 4  # of a round, by the episodes that it has ended
SLOWER, LARGER = 0.95, 1.02  # what the last window may be of the first
CONCURRENCY = 32  # calls of the teacher at once
OTHER_SOCKETS = 16  # that listen, wake a thread, or answer the soak itself
CLOSED_S = 120.0  # for the programs to end
RUN = {
    "num_rounds": 1_000_000,
    "num_envs": GAMES,
    "batch_size": 2,
    "accum_grad_steps": 1,
    "train_iters_per_epoch": 1,
    "warmup_steps": 1,
    "init_lr": 1e-8,  # the policy stays what it is: see the docstring
    "max_steps": STEPS,
    "num_threads": 1,
    "device": "cpu",
    "save_ckpt": False,
}


@dataclass(frozen=True)
class Sample:
    """What was seen of both programs together at one moment.

    `live` are allocated bytes, `objects` Python's small ones beside these; `files` are no sockets.
    """

    at: float
    steps: int
    episodes: int
    updates: int
    processor_s: float
    bytes: int
    live: int
    objects: int
    threads: int
    files: int
    sockets: int
    processes: int

    @property
    def round(self) -> int:
        """How many rounds had ended."""
        return self.episodes // GAMES

    @property
    def phase(self) -> int:
        """Which part of its round this was, from 0 to `PHASES` - 1."""
        return PHASES * (self.episodes % GAMES) // GAMES


class TooShortError(Exception):
    """The time is too short for windows of whole rounds; the text says how long it must be."""


def settings(folder: Path, teacher: FakeEndpoint | None) -> Path:
    """The settings of a run that does not end by itself, and its games; a `teacher` labels states and reflects."""
    generate(folder / "data", num_train=GAMES, num_heldout=1, seed=0)
    frozen = {"freeze_vit": True, "freeze_qformer": True, "freeze_llm": True, "allow_random": list(PARTS)}
    content = {
        "run": {**RUN, "output_dir": str(folder / "out")},
        "model": frozen,
        "environment": {"name": "native", "split": "household_train", "data": str(folder / "data")},
        "policy": {"num_beams": 1, "max_length": 6},
        "reflexion": {"enabled": False},  # memories make prompts longer with each round: more work, not slower work
        "server": {"port": 0},
    }
    if teacher:
        # A cache of its own: the user's would answer for the endpoint, and would keep what this one says.
        cache = {"cache": str(folder / "answers.sqlite")}
        content["expert"] = {"name": "openai", "base_url": teacher.url, "model": "teacher", **cache}
        content["expert"] |= {"max_calls": 0, "concurrency": CONCURRENCY}
        content["reflexion"] = {"enabled": True, "reflector": "llm"}
    path = folder / "settings.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def start(folder: Path, program: str, *arguments: object) -> psutil.Popen:
    """A program of the project, its output in a file, its temporary files in `folder/tmp`."""
    (folder / "tmp").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.reliability.allocated", str(folder / f"{program}.live")]
    command += [str(REPO_ROOT / program), *map(str, arguments)]
    environment = {"OPENAI_API_KEY": "soak", **os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp")}
    with open(folder / f"{program}.log", "ab") as log:
        return psutil.Popen(command, cwd=REPO_ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)


def port_of(folder: Path, server: psutil.Popen) -> int:
    """The server's port, once it listens."""
    while not (said := list(folder.glob("out/*/state/server.json"))):
        assert server.poll() is None, (folder / "dagger_server.py.log").read_text()
        time.sleep(0.2)
    return json.loads(said[0].read_text())["port"]


def open_files(process: psutil.Process) -> list[bool]:
    """For each file that a process has open, whether it is a socket."""
    found = []
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            found.append(os.readlink(entry).startswith("socket:"))
    return found


def sample(folder: Path, port: int, programs: list[psutil.Popen], log: Path) -> Sample:
    """Ask the server, and the system about both programs and what they started."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=60) as answer:
        status = json.load(answer)
    everyone = family(programs)
    times = [process.cpu_times() for process in everyone]
    sockets = [is_socket for process in everyone for is_socket in open_files(process)]
    allocated = [last_line(path) for path in folder.glob("*.live")]
    with open(log, "rb") as lines:
        steps = sum(1 for _ in lines)
    return Sample(
        at=time.monotonic(),
        steps=steps,
        episodes=status["episodes"],
        updates=status["training_step"],
        processor_s=sum(spent.user + spent.system for spent in times),
        bytes=sum(process.memory_info().rss for process in everyone),
        live=sum(live for live, _ in allocated),
        objects=sum(objects for _, objects in allocated),
        threads=sum(process.num_threads() for process in everyone),
        files=len(sockets) - sum(sockets),
        sockets=sum(sockets),
        processes=len(everyone),
    )


def last_line(path: Path) -> tuple[int, int]:
    """The newest bytes and objects that `allocated.py` has written; none before its first line."""
    lines = path.read_text().splitlines()
    live, objects = map(int, lines[-1].split()) if lines else (0, 0)
    return live, objects


def family(programs: list[psutil.Popen]) -> list[psutil.Process]:
    """The programs and what they started."""
    return [process for program in programs for process in (program, *program.children(recursive=True))]


def soak(folder: Path, minutes: float, warm_up: float, sessions: int, teacher: FakeEndpoint | None) -> list[str]:
    """Train for so long, of which `warm_up` is the share that is not judged; returns what is wrong."""
    programs = [start(folder, "dagger_server.py", "--cfg-path", settings(folder, teacher))]
    try:
        port = port_of(folder, programs[0])
        games = ["--env", "native", "--data", folder / "data", "--split", "household_train", "--num-envs", GAMES]
        play = ["--port", port, "--num-workers", sessions, "--max-steps", STEPS]
        programs.append(start(folder, "alfworld_client.py", *games, *play))
        (log,) = folder.glob("out/*/running_nb01.log")
        windows = watch(folder, port, programs, log, 60 * minutes, warm_up, teacher)
        most = 2 * sessions + CONCURRENCY + OTHER_SOCKETS
        return [*compared(windows, SLOWER if teacher is None else 0.0, most), *end(folder, programs)]
    finally:
        for process in programs:
            if process.poll() is None:
                process.kill()


def watch(
    folder: Path,
    port: int,
    programs: list[psutil.Popen],
    log: Path,
    seconds: float,
    warm_up: float,
    teacher: FakeEndpoint | None,
) -> list[list[Sample]]:
    """Samples of `WINDOWS` windows, after a warm-up; TooShortError right after it if windows would hold no round."""
    began = time.monotonic()
    windows: list[list[Sample]] = [[] for _ in range(WINDOWS)]
    early: list[Sample] = []  # of the warm-up, after its first rounds
    warm: float | None = None  # the share of the time that had passed when the first window began
    while (passed := (time.monotonic() - began) / seconds) < 1:
        for program in programs:
            assert program.poll() is None, f"{program} ended with code {program.poll()}"
        if passed >= min(WARM_UP, warm_up):
            seen = sample(folder, port, programs, log)
            if warm is None and seen.episodes >= WARM_ROUNDS * GAMES:
                if passed >= warm_up:
                    warm = passed
                    require_rounds(seconds, warm * seconds, seen.episodes / GAMES)
                else:
                    early.append(seen)
            if warm is not None:
                windows[int(WINDOWS * (passed - warm) / (1 - warm))].append(seen)
        if teacher:  # it keeps what it was asked and billed, for other tests
            teacher.requests.clear(), teacher.headers.clear(), teacher.billed.clear()
        time.sleep(seconds / SAMPLES)
    for name, window in (("warm-up", early), *((f"window {n}", window) for n, window in enumerate(windows, 1))):
        if len(window) > 1:
            print(f"{name}: {figures(window)}", flush=True)
    return windows


def require_rounds(seconds: float, warm_s: float, rounds: float) -> None:
    """TooShortError if a window may hold no whole round, as the `rounds` of a warm-up of `warm_s` took.

    Two rounds' time always holds a whole one, wherever it begins.
    """
    round_s = warm_s / rounds
    window_s = (seconds - warm_s) / WINDOWS
    if window_s < 2 * round_s:
        least = max(warm_s + 2 * WINDOWS * round_s, 2 * WINDOWS * round_s / (1 - WARM_UP))
        raise TooShortError(
            f"a round takes {round_s:.0f} s on this machine, so windows of {window_s:.0f} s may hold no whole one, and "
            f"memory within a round says nothing: run it with --minutes {math.ceil(least / 60)} or more"
        )


def whole_rounds(window: list[Sample]) -> list[Sample]:
    """The samples of those rounds that began and ended in the window, and the first one after these; [] if none did."""
    first, last = window[0].round, window[-1].round
    within = [number for number, seen in enumerate(window) if first < seen.round < last]
    return window[within[0] : within[-1] + 2] if within else []


def rate(window: list[Sample]) -> tuple[float, float]:
    """Steps for each second of processor time, and for each second."""
    first, last = window[0], window[-1]
    steps = last.steps - first.steps
    return steps / (last.processor_s - first.processor_s), steps / (last.at - first.at)


def mean(window: list[Sample], name: str) -> float:
    """Mean of one figure, such as "bytes": without what a batch or an episode takes for a moment."""
    return sum(getattr(seen, name) for seen in window) / len(window)


def growth(first: list[Sample], last: list[Sample], name: str) -> float:
    """The mean of one figure in the last window as a share of the first's, of those phases that both have seen."""
    phases = {seen.phase for seen in first} & {seen.phase for seen in last}
    before, after = (
        sum(mean([seen for seen in window if seen.phase == phase], name) for phase in sorted(phases))
        for window in (first, last)
    )
    return after / before


def figures(window: list[Sample]) -> str:
    """A window in words."""
    (paid, passed), last = rate(window), window[-1]
    return (
        f"{passed:.1f} steps/s, {paid:.1f} for each second of processor time, {mean(window, 'bytes') / 2**20:.1f} MB, "
        f"{mean(window, 'live') / 2**20:.1f} of them allocated, {mean(window, 'objects'):,.0f} objects, "
        f"{last.episodes} episodes, {last.updates} updates, "
        f"{last.threads} threads, {last.files} files, {last.sockets} sockets, {last.processes} processes"
    )


def compared(windows: list[list[Sample]], slower: float, sockets: int) -> list[str]:
    """What the last window has less, or more, than the first.

    `slower` is the least allowed share of the first one's throughput, `sockets` how many there may be at any moment.
    """
    if min(map(len, windows)) < 2:
        return ["too few steps were played in the windows: the time is too short for this machine"]
    first, last = whole_rounds(windows[0]), whole_rounds(windows[-1])
    if not (first and last and {seen.phase for seen in first} & {seen.phase for seen in last}):
        return ["the first or the last window holds no whole round: run it with more --minutes"]
    speed = rate(last)[0] / rate(first)[0]
    peak, kept, more = (growth(first, last, name) for name in ("bytes", "live", "objects"))
    print(
        f"last window to first: throughput {speed:.3f}, allocated {kept:.3f}, objects {more:.3f}, memory {peak:.3f}",
        flush=True,
    )
    wrong = [f"throughput fell to {speed:.3f}"] if speed < slower else []
    wrong += [f"what is allocated grew to {kept:.3f}"] if kept > LARGER else []
    wrong += [f"Python's small objects grew to {more:.3f}"] if more > LARGER else []
    wrong += [f"memory grew to {peak:.3f}"] if peak > LARGER else []
    most = max(seen.sockets for window in windows for seen in window)
    wrong += [f"{most} sockets are more than {sockets}"] if most > sockets else []
    for name in ("threads", "files", "processes"):
        # The least of a window: a request that is answered while the system is asked takes a thread and a file.
        before, after = (min(getattr(seen, name) for seen in window) for window in (windows[0], windows[-1]))
        wrong += [f"{name}: {before} became {after}"] if after > before else []
    return wrong


def end(folder: Path, programs: list[psutil.Popen]) -> list[str]:
    """Stop both programs; returns what they leave behind, and what their logs say of errors."""
    everyone = family(programs)
    for program in reversed(programs):
        program.send_signal(signal.SIGTERM)
        program.wait(CLOSED_S)
    left = [process for process in everyone if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    files = [path for path in (folder / "tmp").rglob("*") if path.is_file()]
    wrong = [f"{what} was left behind" for what in (*left, *files, *folder.glob("out/**/.*.tmp"))]
    logs = {path.name: path.read_text(errors="replace") for path in folder.glob("*.log")}
    return wrong + [f"{name}: {text[-2000:]}" for name, text in logs.items() if "Traceback" in text]


def main() -> int:
    """The exit code: 1 if anything is wrong, 2 if the time is too short to say so."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--warm-up", type=float, default=WARM_UP, help="the share of the time that is not judged")
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--teacher", action="store_true", help="an endpoint labels states and writes the memories")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # its programs end with it
    endpoint = FakeEndpoint() if arguments.teacher else nullcontext()
    with endpoint as teacher, tempfile.TemporaryDirectory(prefix="emac-soak-") as folder:
        try:
            wrong = soak(Path(folder), arguments.minutes, arguments.warm_up, arguments.sessions, teacher)
        except TooShortError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    print("\n".join(wrong) or "nothing is wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
