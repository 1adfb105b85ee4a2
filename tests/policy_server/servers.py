"""Servers for the tests: on a real socket in a thread of this process, or as a process of their own.

The model is the project's tiny `Blip2Emac`, loaded once. `HeldModel` is the same model, but it waits until the test
releases it. So a test can fill the queue without depending on time.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import queue
import re
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import uvicorn
from PIL import Image
from websockets.sync.client import ClientConnection, connect

from lavis.common.paths import REPO_ROOT
from policy_server.admission.control import AdmissionControl
from policy_server.metrics import Metrics
from policy_server.models.pool import ModelPool
from policy_server.models.vision_model import ChatAnswer, ChatJob, ModelJob, VisionModel
from policy_server.settings import PolicyServerSettings
from policy_server.web.api_keys import ApiKeys
from policy_server.web.app import create_app
from policy_server.web.server import open_port, uvicorn_config
from tests import warm
from xrl_alignment.settings.loading import load_config

TINY = "blip2_emac:tiny"
CAVE = "MineRLBasaltFindCave-v0"
ROOM = (
    "You are in the middle of a room. You see a cabinet 1, and a fridge 1.\nYour task is to: put a mug in cabinet.\n> "
)

TEXT = {"task_name": "ALFWorld", "prompt": ROOM, "temperature": 0, "max_tokens": 16}


def encoded_image(kind: str = "PNG", size: tuple[int, int] = (64, 36), shade: int = 90) -> bytes:
    """An image file of one colour."""
    buffer = io.BytesIO()
    Image.new("RGB", size, (shade, 120, 40)).save(buffer, format=kind)
    return buffer.getvalue()


def action_body(**fields: object) -> dict:
    """A request like the published examples."""
    image = {"data": base64.b64encode(encoded_image()).decode()}
    return {"task_name": CAVE, "image": image, "step": 1, "temperature": 0.7, "max_tokens": 512, **fields}


def raw_request(fields: dict) -> bytes:
    """A request for an action, as the bytes of a whole HTTP request."""
    data = json.dumps(fields).encode()
    head = (
        f"POST /get_action HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    )
    return head.encode() + b"\r\n\r\n" + data


def noise(size: tuple[int, int] = (640, 360)) -> np.ndarray:
    """A view as MineRL gives it, uint8 (height, width, 3)."""
    return np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)


class HeldModel:
    """The real model, whose calls wait for `release`; `entered` counts the calls that have begun."""

    def __init__(self, model: VisionModel) -> None:
        self._model = model
        self.device, self.bytes = model.device, model.bytes
        self.release = threading.Event()
        self.entered = threading.Semaphore(0)
        self.batches: list[int] = []

    def answer(self, jobs: Sequence[ModelJob]) -> list[str]:
        self.batches.append(len(jobs))
        self.entered.release()
        assert self.release.wait(60), "no test released the model"
        return list(self._model.answer(jobs))

    def chat(self, jobs: Sequence[ChatJob]) -> list[ChatAnswer]:
        self.batches.append(len(jobs))
        self.entered.release()
        assert self.release.wait(60), "no test released the model"
        return self._model.chat(jobs)

    def wait_until_called(self) -> None:
        assert self.entered.acquire(timeout=60), "the model was not called"


@dataclass
class Running:
    """A server in a thread of this process."""

    url: str
    admission: AdmissionControl
    http: httpx.Client
    stop: Callable[[], None]


def start_in_thread(options: Sequence[str], keys: dict[str, str], model: VisionModel) -> Running:
    settings = load_config(PolicyServerSettings, None, [f"model.path={TINY}", *options])
    metrics = Metrics()
    pool = ModelPool(settings.model_table(), 0, metrics, load=lambda settings: model)
    pool.get(pool.default)
    admission = AdmissionControl(settings, pool, metrics)
    app = create_app(admission, ApiKeys(keys))
    listener = open_port("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn_config(app, settings.server))
    ready = threading.Event()

    async def run() -> None:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        admission.loop = asyncio.get_running_loop()
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        ready.set()
        await serving

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert ready.wait(60) and server.started

    def stop() -> None:
        server.should_exit = True
        thread.join(60)

    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    headers = {"X-API-Key": next(iter(keys.values()))} if keys else {}
    http = httpx.Client(base_url=url, timeout=60, headers=headers)
    return Running(url, admission, http, stop)


def wait_until_queued(server: Running, number: int = 1, none: bool = False) -> None:
    """Return when `number` requests wait for the model; with `none`, when no request waits."""
    reached = threading.Event()

    def look() -> None:
        waiting = len(server.admission.queue)
        if waiting == 0 if none else waiting >= number:
            reached.set()
        else:
            server.admission.loop.call_later(0.01, look)

    server.admission.loop.call_soon_threadsafe(look)
    assert reached.wait(60)


def open_socket(url: str, path: str = "/ws") -> ClientConnection:
    """A WebSocket to the server at `url`, with the patience of the other clients here: `connect` has but 10 s."""
    return connect(url.replace("http", "ws") + path, open_timeout=60, ping_interval=None)


class ServerProcess:
    """`qwen_policy_server.py` as users start it, on a free port; a thread reads its log line by line."""

    def __init__(self, *arguments: str, python: str = "") -> None:
        command = [str(REPO_ROOT / "policy_server" / "qwen_policy_server.py"), "--port", "0", *arguments]
        self.process: subprocess.Popen | warm.Program
        if python:
            self.process = subprocess.Popen([python, *command], stderr=subprocess.PIPE, text=True, cwd="/")
        else:
            self.process = warm.Program(command, stderr=subprocess.PIPE, cwd=Path("/"))
        self.lines: list[str] = []
        self._news: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.url = re.search(r"http://\S+", self.wait_for("ready!")).group()

    def _read(self) -> None:
        for line in self.process.stderr:
            self._news.put(line)
        self._news.put(None)

    def wait_for(self, text: str) -> str:
        """The next line of the log that contains `text`."""
        while (line := self._news.get(timeout=240)) is not None:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"{text!r} did not come:\n{''.join(self.lines)}")

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """End it with SIGTERM; returns the exit code."""
        self.process.terminate()
        code = self.process.wait(120)
        with contextlib.suppress(AssertionError):
            self.wait_for("\0")  # the rest of the log
        return code
