"""Benchmark of the policy server: batching, the server's own overhead, and a minute at twice its capacity.

    python benchmarks/policy_server.py --json F [--seconds 60] [--model PATH --python PYTHON]

Starts `policy_server/qwen_policy_server.py` as a process and sends requests over sockets. The model is the tiny
`Blip2Emac`. For a Qwen2-VL use `--model FOLDER --python .venv-vllm/bin/python` (its processor needs torchvision).

- `batching_speedup`: actions a second for 16 clients, divided by those of the same server with `queue.max_batch=1`.
  Each client sends its next request as soon as it has an answer.
- `p99_over_p50`: the 99 % quantile of these clients' latencies divided by their median, with batching.
- `lost`: requests of the whole run without an answer. An action, a 429 and a 503 are answers.
- `overhead_ms`: median latency of a request with a 640×360 JPEG from one client, without the model's time.
- `chat_overhead_ms`: the same for a conversation with that image at /v1/chat/completions.
- `memory_growth`: the server's resident memory at the end of the overload, divided by that after its first quarter.
- `health_max_ms`: the slowest GET /health during the overload. A process of its own asks 10 times a second on one
  connection, as a load balancer does (the event loop of the 64 clients would add delays).
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import math
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
class LoadCounts:
    """What the clients measured."""

    latencies: list[float] = field(default_factory=list)  # seconds, of actions
    overheads: list[float] = field(default_factory=list)  # seconds, of actions: latency without the model's time
    statuses: Counter[int] = field(default_factory=Counter)  # 0: no answer

    @property
    def lost(self) -> int:
        """Requests without an answer."""
        return sum(count for status, count in self.statuses.items() if status not in ANSWERS)


def measure(seconds: float, model: str, python: str) -> Result:
    """Run three servers one after the other: without batching, with batching, and overloaded."""
    short = min(seconds, 15.0)
    with server(python, model, "queue.max_batch=1") as (url, _):
        alone, without = asyncio.run(_closed_loop(url, 1, short)), asyncio.run(_closed_loop(url, CLIENTS, short))
        chat_overheads = asyncio.run(_conversations(url, short))
    with server(python, model) as (url, _):
        batched = asyncio.run(_closed_loop(url, CLIENTS, short))
    capacity = len(batched.latencies) / short
    other_process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    with server(python, model) as (url, process), other_process as watcher:
        watcher.submit(os.getpid).result()  # the process has started
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
        "chat_overhead_ms": 1000 * statistics.median(chat_overheads),
        "memory_growth": quarter[-1] / quarter[0],
        "health_max_ms": 1000 * max(health),
        "health_p99_ms": 1000 * _percentile(health, 99),
    }
    targets = {"batching_speedup": 4, "p99_over_p50": 3, "lost": 0, "overhead_ms": 5, "memory_growth": 1.05}
    targets["chat_overhead_ms"] = 5
    return Result(rows, ratios, {**targets, "health_max_ms": 100})


@contextmanager
def server(python: str, model: str, *options: str) -> Iterator[tuple[str, subprocess.Popen]]:
    """A server process that is ready: its address and the process."""
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
        _discard_log(process)
        yield line.split("ready! ")[1].strip(), process
    finally:
        process.terminate()
        process.wait(60)


def _discard_log(process: subprocess.Popen) -> None:
    """Read the request log to its end, because a full pipe would block the server."""
    threading.Thread(target=lambda: [None for _ in process.stderr], daemon=True).start()


async def _closed_loop(url: str, clients: int, seconds: float) -> LoadCounts:
    """`clients` clients for `seconds` after a warm-up; each sends its next request as soon as it has an answer."""
    image = jpeg()
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=None)) as http:

        async def ask_until(counts: LoadCounts, end: float) -> None:
            while time.perf_counter() < end:
                await _ask(http, image, counts, end)

        async def phase(duration: float) -> LoadCounts:
            counts, end = LoadCounts(), time.perf_counter() + duration
            await asyncio.gather(*(ask_until(counts, end) for _ in range(clients)))
            return counts

        await phase(min(WARM_UP_S, seconds))
        return await phase(seconds)


async def _overload(url: str, rate: float, seconds: float) -> LoadCounts:
    """64 clients that together send `rate` requests a second, whatever the answers are."""
    image, counts = jpeg(), LoadCounts()
    pause = MANY_CLIENTS / rate
    end = time.perf_counter() + seconds
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=None)) as http:

        async def client(number: int) -> None:
            due = time.perf_counter() + pause * number / MANY_CLIENTS
            while due < end:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                await _ask(http, image, counts, end)
                due += pause

        await asyncio.gather(*(client(number) for number in range(MANY_CLIENTS)))
    return counts


def watch(url: str, pid: int, seconds: float) -> tuple[list[float], list[int]]:
    """GET /health ten times a second: the seconds of each answer, and the server's memory in bytes."""
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


async def _ask(http: httpx.AsyncClient, image: bytes, counts: LoadCounts, end: float = math.inf) -> None:
    """One request. An action that comes after `end` is not counted: rates divide by the time until then."""
    fields = {"task_name": TASK, "max_tokens": TOKENS, "temperature": 0.7}
    started = time.perf_counter()
    try:
        answer = await http.post(
            "/get_action/image", params=fields, content=image, headers={"Content-Type": "image/jpeg"}
        )
    except httpx.HTTPError:
        counts.statuses[0] += 1
        return
    now = time.perf_counter()
    if now >= end:
        return
    latency = now - started
    counts.statuses[answer.status_code] += 1
    if answer.status_code == 200:
        counts.latencies.append(latency)
        counts.overheads.append(latency - float(_stages(answer)["model"]) / 1000)


async def _conversations(url: str, seconds: float) -> list[float]:
    """One client at OpenAI's interface, after a warm-up: for each answer its latency without the model's time."""
    picture = {"url": f"data:image/jpeg;base64,{base64.b64encode(jpeg()).decode()}"}
    said = [{"type": "text", "text": "What now?\n> "}, {"type": "image_url", "image_url": picture}]
    overheads = []
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        (model, *_) = (await http.get("/v1/models")).json()["data"]
        body = {"model": model["id"], "messages": [{"role": "user", "content": said}], "max_tokens": TOKENS}
        start = time.perf_counter()
        while (now := time.perf_counter()) < start + min(WARM_UP_S, seconds) + seconds:
            answer = await http.post("/v1/chat/completions", json={**body, "temperature": 0.7})
            answer.raise_for_status()
            latency = time.perf_counter() - now
            if now > start + min(WARM_UP_S, seconds):
                overheads.append(latency - float(_stages(answer)["model"]) / 1000)
    return overheads


def _stages(answer: httpx.Response) -> dict[str, str]:
    """Milliseconds of each stage, from the header `Server-Timing`."""
    return dict(part.split(";dur=") for part in answer.headers["Server-Timing"].split(", "))


def jpeg() -> bytes:
    """A JPEG of MineRL's frame size, with slowly changing colours and a little noise."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (12, 20, 3), np.uint8)).resize((640, 360), Image.Resampling.BICUBIC)
    view = np.asarray(coarse, np.int16) + rng.integers(-8, 9, (360, 640, 3), np.int16)
    buffer = io.BytesIO()
    Image.fromarray(view.clip(0, 255).astype(np.uint8)).save(buffer, format="JPEG", quality=92)
    return buffer.getvalue()


def resident_bytes(pid: int) -> int:
    """Resident memory of a process in bytes (Linux)."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _row(name: str, counts: LoadCounts, seconds: float) -> dict[str, Any]:
    return {
        "load": name,
        "actions/s": len(counts.latencies) / seconds,
        "p50 ms": 1000 * _percentile(counts.latencies, 50),
        "p99 ms": 1000 * _percentile(counts.latencies, 99),
        "actions": counts.statuses[200],
        "429": counts.statuses[429],
        "503": counts.statuses[503],
        "lost": counts.lost,
    }


def _percentile(values: list[float], percent: float) -> float:
    return float(np.percentile(values, percent)) if values else float("nan")


def options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="length of the overload; the other parts take at most 15 s"
    )
    parser.add_argument("--model", default="blip2_emac:tiny", help="the server's model")
    parser.add_argument("--python", default=sys.executable, help="the server's Python interpreter")


if __name__ == "__main__":
    run("Policy server", measure, options)
