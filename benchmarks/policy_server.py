"""The policy server under load: batching against none, its own overhead, and a minute at twice its capacity.

    python benchmarks/policy_server.py --json F [--seconds 60] [--model PATH --python PYTHON]

Starts `policy_server/qwen_policy_server.py` as a process and asks it over sockets from this one. It serves the tiny
`Blip2Emac`; a Qwen2-VL with `--model FOLDER --python .venv-vllm/bin/python` (its processor needs torchvision).

- `batching_speedup`: requests a second of 16 clients, each asking again as soon as it is answered, against the same
  server with `queue.max_batch=1`.
- `p99_over_p50`: of these clients' latencies, with batching.
- `lost`: requests of the whole run without an answer (an action, 429 or 503 is one).
- `overhead_ms`: p50 for a 640×360 JPEG of the time from sending to receiving, less the model's.
- `memory_growth`: resident memory of the server after the overload against a quarter into it, as a factor.
- `health_max_ms`: the slowest answer of GET /health during the overload, asked 10 times a second as a load balancer
  does: from a process of its own, on one connection (the 64 clients' event loop has waits of its own).
"""

from __future__ import annotations

import argparse
import asyncio
import io
import multiprocessing
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
from _bench import Result, run
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
TASK = "MineRLBasaltFindCave-v0"
TOKENS = 32
CLIENTS, MANY_CLIENTS = 16, 64
WARM_UP_S = 3.0
ANSWERS = (200, 429, 503)


@dataclass
class Tally:
    """What clients saw."""

    latencies: list[float] = field(default_factory=list)  # seconds, of actions
    overheads: list[float] = field(default_factory=list)  # seconds, of actions: latency without the model
    statuses: Counter[int] = field(default_factory=Counter)  # 0: no answer

    @property
    def lost(self) -> int:
        """Requests without an answer."""
        return sum(count for status, count in self.statuses.items() if status not in ANSWERS)


def measure(seconds: float, model: str, python: str) -> Result:
    """Three servers one after the other: without batching, with it, and overloaded."""
    short = min(seconds, 15.0)
    with server(python, model, "queue.max_batch=1") as (url, _):
        alone, without = asyncio.run(_closed_loop(url, 1, short)), asyncio.run(_closed_loop(url, CLIENTS, short))
    with server(python, model) as (url, _):
        batched = asyncio.run(_closed_loop(url, CLIENTS, short))
    capacity = len(batched.latencies) / short
    other_process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    with server(python, model) as (url, process), other_process as watcher:
        watcher.submit(os.getpid).result()  # from here on it is there
        watched = watcher.submit(watch, url, process.pid, seconds)
        crowd = asyncio.run(_overload(url, 2 * capacity, seconds))
        health, memory = watched.result()
    rows = [
        _row(f"{model}, 1 client, no batching", alone, short),
        _row(f"{CLIENTS} clients, no batching", without, short),
        _row(f"{CLIENTS} clients, batching", batched, short),
        _row(f"{MANY_CLIENTS} clients at twice that", crowd, seconds),
    ]
    quarter = memory[len(memory) // 4 :]
    ratios = {
        "batching_speedup": len(batched.latencies) / len(without.latencies),
        "p99_over_p50": _percentile(batched.latencies, 99) / _percentile(batched.latencies, 50),
        "lost": alone.lost + without.lost + batched.lost + crowd.lost,
        "overhead_ms": 1000 * statistics.median(alone.overheads),
        "memory_growth": quarter[-1] / quarter[0],
        "health_max_ms": 1000 * max(health),
        "health_p99_ms": 1000 * _percentile(health, 99),
    }
    targets = {"batching_speedup": 4, "p99_over_p50": 3, "lost": 0, "overhead_ms": 5, "memory_growth": 1.05}
    return Result(rows, ratios, {**targets, "health_max_ms": 100})


@contextmanager
def server(python: str, model: str, *options: str) -> Iterator[tuple[str, subprocess.Popen]]:
    """A server process that is ready, by its address."""
    program = str(ROOT / "policy_server" / "qwen_policy_server.py")
    command = [python, program, "--model", model, "--port", "0", "--options", "queue.limit=32", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        log = ""
        for line in process.stderr:
            log += line
            if "ready! " in line:
                break
        else:
            raise RuntimeError(f"the server did not start:\n{log}")
        _read_away(process)
        yield line.split("ready! ")[1].strip(), process
    finally:
        process.terminate()
        process.wait(60)


def _read_away(process: subprocess.Popen) -> None:
    """Its request log must not fill the pipe."""
    threading.Thread(target=lambda: [None for _ in process.stderr], daemon=True).start()


async def _closed_loop(url: str, clients: int, seconds: float) -> Tally:
    """`clients` that ask again as soon as they are answered, for `seconds` after a warm-up."""
    picture = jpeg()
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=None)) as http:

        async def ask_until(tally: Tally, end: float) -> None:
            while time.perf_counter() < end:
                await _ask(http, picture, tally)

        async def phase(duration: float) -> Tally:
            tally, end = Tally(), time.perf_counter() + duration
            await asyncio.gather(*(ask_until(tally, end) for _ in range(clients)))
            return tally

        await phase(min(WARM_UP_S, seconds))
        return await phase(seconds)


async def _overload(url: str, rate: float, seconds: float) -> Tally:
    """64 clients that together ask `rate` times a second, whatever the answers are."""
    picture, tally = jpeg(), Tally()
    pause = MANY_CLIENTS / rate
    end = time.perf_counter() + seconds
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=None)) as http:

        async def client(number: int) -> None:
            due = time.perf_counter() + pause * number / MANY_CLIENTS
            while due < end:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                await _ask(http, picture, tally)
                due += pause

        await asyncio.gather(*(client(number) for number in range(MANY_CLIENTS)))
    return tally


def watch(url: str, pid: int, seconds: float) -> tuple[list[float], list[int]]:
    """Ask for /health ten times a second: how long each answer took (seconds), and the server's memory (bytes)."""
    health, memory = [], []
    connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
    end = time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
        health.append(time.perf_counter() - started)
        assert answer.status == 200
        memory.append(resident_bytes(pid))
        time.sleep(0.1)
    connection.close()
    return health, memory


async def _ask(http: httpx.AsyncClient, picture: bytes, tally: Tally) -> None:
    fields = {"task_name": TASK, "max_tokens": TOKENS, "temperature": 0.7}
    started = time.perf_counter()
    try:
        answer = await http.post(
            "/get_action/image", params=fields, content=picture, headers={"Content-Type": "image/jpeg"}
        )
    except httpx.HTTPError:
        tally.statuses[0] += 1
        return
    latency = time.perf_counter() - started
    tally.statuses[answer.status_code] += 1
    if answer.status_code == 200:
        stages = dict(part.split(";dur=") for part in answer.headers["Server-Timing"].split(", "))
        tally.latencies.append(latency)
        tally.overheads.append(latency - float(stages["model"]) / 1000)


def jpeg() -> bytes:
    """A view of MineRL's size with something to compress: colours that change slowly, and a little noise."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (12, 20, 3), np.uint8)).resize((640, 360), Image.Resampling.BICUBIC)
    view = np.asarray(coarse, np.int16) + rng.integers(-8, 9, (360, 640, 3), np.int16)
    buffer = io.BytesIO()
    Image.fromarray(view.clip(0, 255).astype(np.uint8)).save(buffer, format="JPEG", quality=92)
    return buffer.getvalue()


def resident_bytes(pid: int) -> int:
    """Memory that a process holds (Linux)."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _row(name: str, tally: Tally, seconds: float) -> dict[str, Any]:
    return {
        "load": name,
        "actions/s": len(tally.latencies) / seconds,
        "p50 ms": 1000 * _percentile(tally.latencies, 50),
        "p99 ms": 1000 * _percentile(tally.latencies, 99),
        "actions": tally.statuses[200],
        "429": tally.statuses[429],
        "503": tally.statuses[503],
        "lost": tally.lost,
    }


def _percentile(values: list[float], percent: float) -> float:
    return float(np.percentile(values, percent)) if values else float("nan")


def options(parser: argparse.ArgumentParser) -> None:
    """What is served, and for how long."""
    parser.add_argument("--seconds", type=float, default=60.0, help="of the overload; the other parts: at most 15")
    parser.add_argument("--model", default="blip2_emac:tiny", help="what the server serves")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that the server runs under")


if __name__ == "__main__":
    run("Policy server", measure, options)
