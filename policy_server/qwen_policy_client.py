"""Client of the policy server, for any environment whose `obs["pov"]` is an image.

    from qwen_policy_client import QwenPolicyClient

    client = QwenPolicyClient(server_url="http://localhost:8001")
    client.reset()
    action = client.get_action(obs, task_name="MineRLBasaltFindCave-v0")

As a program it plays one episode, in a small stand-in environment or, if it is installed, in MineRL.

    python policy_server/qwen_policy_client.py --steps 100
    python policy_server/qwen_policy_client.py --env minerl --task MineRLBasaltMakeWaterfall-v0

This file works alone: copy it anywhere. It needs httpx, NumPy and Pillow. Only the stand-in environment needs the rest
of this project.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import importlib
import io
import json
import os
import random
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

DEFAULT_URL = "http://localhost:8001"
DEFAULT_TASK = "MineRLBasaltFindCave-v0"
TIMEOUT_S = 30.0  # for one answer
RETRIES = 4  # after the first try
MIN_PAUSE_S = 0.2  # before the first retry; each one after it waits twice as long
MAX_PAUSE_S = 10.0  # also if the server asks for a longer one
# A proxy of the environment (HTTP_PROXY) cannot reach the servers of this machine: httpx asks these without one.
_DIRECT = dict.fromkeys(("all://localhost", "all://127.0.0.1", "all://[::1]"))
# Too slow, too often, busy or about to start: the next try can succeed. A 500 is a fault that would come again.
_RETRY_STATUSES = (408, 429, 502, 503, 504)


class PolicyServerError(OSError):
    """The server refused the request, or cannot be reached.

    `status` is the HTTP status (0: no response). `code` is the server's short reason, such as `queue_full`. This class
    is an OSError and not one of the project's own errors, because this file must work without the project.
    """

    def __init__(self, message: str, status: int = 0, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class UsageError(ValueError):
    """An argument or a key that cannot be used here; the text names it and says how to fix it."""


EnvId = str | int
_MIXED = (
    "several environments share this client: give each call the env_id of its environment. Until then these steps are "
    "no history for the model"
)


class _Episode:
    """The episode of one environment: its session at the server, and how far it is."""

    def __init__(self) -> None:
        self.session = uuid.uuid4().hex
        self.step = 0
        self.in_flight = 0  # actions that are being asked for
        self.mixed = False  # whether several environments share it


class _ClientBase:
    """What both clients share: settings, the step counter, making requests and reading responses."""

    def __init__(
        self,
        server_url: str = DEFAULT_URL,
        *,
        api_key: str = "",
        timeout: float = TIMEOUT_S,
        retries: int = RETRIES,
        model: str = "",
        image_format: str = "jpeg",
    ) -> None:
        """`timeout` is in seconds, for one try. `image_format` is jpeg or png; ValueError for any other.

        Without `api_key`, the environment variable EMAC_POLICY_KEY gives the key; UsageError if no header can carry it.
        """
        if image_format not in ("jpeg", "png"):
            raise ValueError(f"image_format={image_format!r}: choose jpeg (small) or png (lossless)")
        self.server_url = server_url.rstrip("/")
        self.timeout = timeout
        self.retries = retries
        self.model = model
        self.image_format = image_format
        self.last_reasoning = ""
        key = (api_key or os.environ.get("EMAC_POLICY_KEY", "")).strip()  # a file's last line end, for instance
        if not (key.isascii() and key.isprintable()):  # a header could not carry it; the key itself is not shown
            raise UsageError("the API key (api_key, EMAC_POLICY_KEY) has a character that is not printable ASCII")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._lock = threading.Lock()  # threads may share a client, each with its `env_id`
        self._episodes: dict[EnvId, _Episode] = {}

    @staticmethod
    def _open(kind: Callable[..., Any]) -> Any:
        try:
            return kind(mounts=_DIRECT)
        except (ImportError, ValueError) as error:  # socks5:// without the package socksio; a scheme such as socks://
            raise UsageError(f"the proxy of the environment (ALL_PROXY, HTTPS_PROXY, …): {error}") from error

    @property
    def session(self) -> str:
        """The name of the current session at the server, of the environment without an `env_id`."""
        return self._episode("").session

    @property
    def step(self) -> int:
        """The steps of the current episode, of the environment without an `env_id`."""
        return self._episode("").step

    def _episode(self, env_id: EnvId) -> _Episode:
        return self._episodes.setdefault(env_id, _Episode())

    def _forget_request(self, env_id: EnvId) -> dict[str, Any]:
        """The request that ends the session of `env_id`; its next action begins a new one."""
        with self._lock:
            last = self._episodes.pop(env_id, None) or _Episode()
        # One try is enough, with no pause if it fails: the session's name is never used again.
        url = f"{self.server_url}/sessions/{last.session}"
        return {"method": "DELETE", "url": url, "headers": self._headers, "timeout": self.timeout}

    @contextlib.contextmanager
    def _next_step(self, env_id: EnvId | None) -> Iterator[dict[str, Any]]:
        """The session and step to send for an action of `env_id`, until its answer has come.

        An environment waits for its action before it asks for the next one. So two calls at the same time come from two
        environments, and their steps must not become one history.
        """
        if env_id is None:
            yield {"step": 0, "session": ""}
            return
        with self._lock:
            episode = self._episode(env_id)
            episode.step += 1
            episode.in_flight += 1
            newly_mixed = episode.in_flight > 1 and not episode.mixed
            episode.mixed |= newly_mixed
            fields = {"step": episode.step, "session": "" if episode.mixed else episode.session}
        if newly_mixed:
            warnings.warn(_MIXED, stacklevel=4)  # `get_action`'s caller: contextlib lies between, too
        try:
            yield fields
        finally:
            with self._lock:
                episode.in_flight -= 1

    def _action_request(
        self,
        obs: Mapping[str, Any] | np.ndarray,
        task_name: str,
        temperature: float,
        max_tokens: int | None,
        text: Mapping[str, Any],
        step: Mapping[str, Any],
    ) -> dict[str, Any]:
        image = encode(obs, self.image_format)
        fields = {"task_name": task_name, **step, "temperature": temperature, "model": self.model}
        if max_tokens is not None:  # else the server's default, which is as much as its model gives
            fields["max_tokens"] = max_tokens
        request = {"method": "POST", "url": f"{self.server_url}/get_action", "headers": self._headers}
        # Texts may be longer than a URL may be: then all goes as JSON, with the image in base64. Else the image is the
        # body itself, a quarter smaller, and the fields are in the query string.
        if text:
            encoded = {"data": base64.b64encode(image).decode("ascii")}
            return {**request, "json": {**fields, **text, "image": encoded}}
        headers = {**self._headers, "Content-Type": f"image/{self.image_format}"}
        return {**request, "url": f"{request['url']}/image", "params": fields, "content": image, "headers": headers}

    def _action(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        try:
            self.last_reasoning = str(answer["reasoning"])
            action = dict(answer["action"])
            if "camera" in action:
                action["camera"] = np.array(action["camera"], np.float32)
        except (KeyError, TypeError, ValueError) as error:
            raise PolicyServerError(f"{self.server_url} is no policy server: it answers no action", 200) from error
        return action

    def _pause(self, attempt: int, retry_after: str = "") -> float:
        """Seconds before the next try: the server's Retry-After, else exponential backoff with random jitter."""
        try:
            return min(MAX_PAUSE_S, max(0.0, float(retry_after)))
        except ValueError:  # no header, or a date, as a proxy may send
            # The jitter spreads clients that were refused at the same moment, so that they do not come back together.
            return min(MAX_PAUSE_S, MIN_PAUSE_S * 2**attempt) * random.uniform(0.5, 1.0)

    def _read(self, response: httpx.Response, attempt: int) -> tuple[Any, float]:
        """(JSON object, 0) of a success, or (None, pause in seconds) before another try; else PolicyServerError."""
        body = response.content.decode("utf-8", "replace")  # a header may name a codec that is none for texts
        if response.status_code == 200:
            with contextlib.suppress(ValueError, RecursionError):
                if isinstance(content := json.loads(body), dict):
                    return content, 0.0
            raise PolicyServerError(f"{self.server_url} is no policy server: it answers {body[:80]!r}", 200)
        if response.status_code in _RETRY_STATUSES and attempt < self.retries:
            return None, self._pause(attempt, response.headers.get("retry-after", ""))
        # Our own errors are JSON; a proxy before the server answers in any form.
        try:
            reason = json.loads(body)
            text, code = str(reason["detail"]), str(reason["error"])
        except (ValueError, KeyError, TypeError, RecursionError):
            text, code = body[:200], ""
        raise PolicyServerError(f"{self.server_url} answers {response.status_code}: {text}", response.status_code, code)

    def _unreachable(self, error: Exception, attempt: int) -> float:
        """The pause in seconds before the next try; PolicyServerError after the last one."""
        if attempt < self.retries:
            return self._pause(attempt)
        what = f"no answer within {self.timeout:g} s" if isinstance(error, httpx.TimeoutException) else str(error)
        raise PolicyServerError(f"{self.server_url} cannot be reached: {what}; is the server running?") from error


class QwenPolicyClient(_ClientBase):
    """Asks a policy server for actions. Several environments, in threads, may share it: each gives its `env_id`.

    If the server is busy or unreachable, each call is retried up to `retries` times. Then it raises PolicyServerError.
    """

    def __init__(self, server_url: str = DEFAULT_URL, *, http: Any = None, **options: Any) -> None:
        """`options`: api_key, timeout, retries, model, image_format. `http` sends requests; None: an httpx.Client."""
        super().__init__(server_url, **options)
        self._http = self._open(httpx.Client) if http is None else http

    def __enter__(self) -> QwenPolicyClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def check_health(self) -> dict[str, Any]:
        """`{"status", "model", "device", "ready"}`."""
        return self._send({"method": "GET", "url": f"{self.server_url}/health"}, self.timeout)

    def reset(self, env_id: EnvId = "") -> None:
        """Begin a new episode of an environment: the server forgets the last one's history.

        This works even if the server is away.
        """
        with contextlib.suppress(httpx.HTTPError):  # the server forgets idle sessions
            self._http.request(**self._forget_request(env_id))

    def get_action(
        self,
        obs: Mapping[str, Any] | np.ndarray,
        task_name: str,
        temperature: float = 0.7,
        max_tokens: int | None = None,
        timeout: float | None = None,
        *,
        env_id: EnvId | None = "",
        **text: Any,
    ) -> dict[str, Any]:
        """The action for an observation, ready for `env.step` (`camera` is a float32 array).

        `env_id` names the environment where several share this client: each has a history of its own. None: the model
        sees no history. `text` may give `prompt` (ALFWorld: the episode's text) and `admissible_commands`. Afterwards
        `last_reasoning` holds the model's reasoning.
        """
        with self._next_step(env_id) as step:
            request = self._action_request(obs, task_name, temperature, max_tokens, text, step)
            return self._action(self._send(request, timeout or self.timeout))

    def _send(self, request: dict[str, Any], timeout: float) -> Any:
        attempt = 0
        while True:
            try:
                answer, pause = self._read(self._http.request(**request, timeout=timeout), attempt)
            except httpx.TransportError as error:
                answer, pause = None, self._unreachable(error, attempt)
            if answer is not None:
                return answer
            time.sleep(pause)
            attempt += 1


class AsyncQwenPolicyClient(_ClientBase):
    """`QwenPolicyClient` for asyncio: the same calls, awaited."""

    def __init__(self, server_url: str = DEFAULT_URL, **options: Any) -> None:
        """`options`: api_key, timeout, retries, model, image_format."""
        super().__init__(server_url, **options)
        self._http = self._open(httpx.AsyncClient)

    async def __aenter__(self) -> AsyncQwenPolicyClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def check_health(self) -> dict[str, Any]:
        """`{"status", "model", "device", "ready"}`."""
        return await self._send({"method": "GET", "url": f"{self.server_url}/health"}, self.timeout)

    async def reset(self, env_id: EnvId = "") -> None:
        """See `QwenPolicyClient.reset`."""
        with contextlib.suppress(httpx.HTTPError):  # the server forgets idle sessions
            await self._http.request(**self._forget_request(env_id))

    async def get_action(
        self,
        obs: Mapping[str, Any] | np.ndarray,
        task_name: str,
        temperature: float = 0.7,
        max_tokens: int | None = None,
        timeout: float | None = None,
        *,
        env_id: EnvId | None = "",
        **text: Any,
    ) -> dict[str, Any]:
        """See `QwenPolicyClient.get_action`."""
        with self._next_step(env_id) as step:
            request = self._action_request(obs, task_name, temperature, max_tokens, text, step)
            return self._action(await self._send(request, timeout or self.timeout))

    async def _send(self, request: dict[str, Any], timeout: float) -> Any:
        attempt = 0
        while True:
            try:
                answer, pause = self._read(await self._http.request(**request, timeout=timeout), attempt)
            except httpx.TransportError as error:
                answer, pause = None, self._unreachable(error, attempt)
            if answer is not None:
                return answer
            await asyncio.sleep(pause)
            attempt += 1


def encode(obs: Mapping[str, Any] | np.ndarray, image_format: str = "jpeg") -> bytes:
    """`obs["pov"]` (or the array itself), uint8 (H, W, 3), as an image file; ValueError for another shape or type."""
    pov = np.asarray(obs["pov"] if isinstance(obs, Mapping) else obs)
    if pov.ndim != 3 or pov.shape[2] != 3:
        raise ValueError(f"the observation has shape {pov.shape}; an image is (height, width, 3)")
    if pov.dtype != np.uint8:  # a frame of 0.0 to 1.0 would become black
        raise ValueError(f"the observation's type is {pov.dtype}; an image has whole numbers from 0 to 255 (uint8)")
    buffer = io.BytesIO()
    Image.fromarray(pov).save(buffer, image_format.upper(), quality=92)  # PNG, which loses nothing, reads no quality
    return buffer.getvalue()


def make_environment(kind: str, task_name: str) -> Any:
    """The environment of `kind`: `stand-in`, or `minerl` (through the competition's wrapper aicrowd_gym if installed).

    Raises UsageError if MineRL is missing, or the stand-in does not know the task.
    """
    if kind == "stand-in":
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
        from policy_server.basalt_stand_in import BasaltStandIn

        try:
            return BasaltStandIn(task_name)
        except ValueError as error:
            raise UsageError(f"--task: {error}") from error
    try:
        importlib.import_module("minerl")  # registers the environments
    except ImportError as error:
        raise UsageError(f"--env minerl needs MineRL (https://minerl.readthedocs.io): {error}") from error
    try:
        gym = importlib.import_module("aicrowd_gym")
    except ImportError:
        gym = importlib.import_module("gym")
    return gym.make(task_name)


def step_environment(env: Any, action: Mapping[str, Any]) -> tuple[Any, bool]:
    """The observation, and whether the episode is over. Keys that the action space does not have are left out."""
    known = getattr(env.action_space, "spaces", action)
    obs, *_, info = result = env.step({name: value for name, value in action.items() if name in known})
    return obs, any(result[2:-1])  # done, or terminated and truncated


def play(client: QwenPolicyClient, env: Any, task_name: str, steps: int, temperature: float = 0.7) -> int:
    """Play at most `steps` steps of an episode and print each action with its reasoning; returns their number."""
    obs = env.reset()
    if isinstance(obs, tuple):  # gymnasium's, with an info; MineRL's gym returns the observation alone
        obs = obs[0]
    client.reset()
    for number in range(1, steps + 1):
        action = client.get_action(obs, task_name, temperature)
        pressed = [name for name, value in action.items() if name != "camera" and value]
        camera = [round(float(angle), 1) for angle in action.get("camera", ())]
        print(f"{number:4} {' '.join(pressed) or '-'} camera {camera}: {client.last_reasoning[:100]!r}")
        obs, done = step_environment(env, action)
        if done:
            return number
    return steps


def main() -> int:
    """Play one episode and print it; the exit code is 2 after an error, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default=DEFAULT_URL)
    parser.add_argument("--env", choices=("stand-in", "minerl"), default="stand-in")
    parser.add_argument("--task", default=DEFAULT_TASK)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--model", default="", help="one of the server's models (empty: its default)")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"argument --steps: {arguments.steps} is less than 1")
    try:
        with QwenPolicyClient(arguments.server, model=arguments.model) as client:
            print(client.check_health())
            env = make_environment(arguments.env, arguments.task)
            steps = play(client, env, arguments.task, arguments.steps, arguments.temperature)
            print(f"episode over after {steps} steps")
            env.close()
    except (PolicyServerError, UsageError, httpx.InvalidURL, KeyboardInterrupt) as error:
        stopped = isinstance(error, KeyboardInterrupt)
        print("interrupted" if stopped else f"error: {error}", file=sys.stderr)
        return 130 if stopped else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
