"""A real browser for tests of pages: headless Chromium, driven through its DevTools protocol.

https://chromedevtools.github.io/devtools-protocol/ (domains Target, Page, Runtime, Log, Input, Emulation)
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
QUIET = ("--disable-background-networking", "--disable-component-update")
PATIENCE_S = 60.0  # far more than anything takes, also on a busy machine
_KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "ArrowUp": 38, "ArrowDown": 40, "Home": 36, "End": 35, " ": 32, "Tab": 9}


def chromium() -> str:
    """The browser's program; skips the test where none is installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("no Chromium is installed")
    return found


@contextlib.contextmanager
def running_browser(profile: Path) -> Iterator[Browser]:
    """Chromium with a fresh profile; ends with the block."""
    command = [chromium(), *FLAGS, *QUIET, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        place = profile / "DevToolsActivePort"
        deadline = time.monotonic() + PATIENCE_S
        while not (place.exists() and place.read_text().count("\n")):
            assert process.poll() is None and time.monotonic() < deadline, "Chromium does not start"
            time.sleep(0.02)
        port, path = place.read_text().split()
        address = f"ws://127.0.0.1:{port}{path}"
        with connect(address, max_size=None, proxy=None, open_timeout=PATIENCE_S, ping_interval=None) as socket:
            yield Browser(socket)
    finally:
        process.terminate()
        process.wait()


class Browser:
    """A running browser; `page` opens a page in a context of its own (storage, cookies)."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._events: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def page(self, *, width: int = 1200, height: int = 900, dark: bool = False) -> Iterator[Page]:
        """An empty page of that size, in the light or the dark scheme; closed with the block."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        page.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        page.call("Emulation.setEmulatedMedia", features=scheme)
        try:
            yield page
        finally:
            self.call("Target.disposeBrowserContext", browserContextId=context)

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its result; events that come meanwhile are kept."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv(timeout=PATIENCE_S))
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._events.append(answer)

    def events(self, session: str) -> list[dict[str, Any]]:
        """What a page has reported so far."""
        return [event for event in self._events if event.get("sessionId") == session]


class Page:
    """One page of a browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command to this page."""
        return self._browser.call(method, self._session, **parameters)

    def open(self, url: str) -> None:
        """Go to `url`."""
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; of a promise, what it resolves to."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, expression: str, seconds: float = PATIENCE_S) -> Any:
        """Wait until a JavaScript expression is true; returns its value. One that fails is not true yet."""
        deadline = time.monotonic() + seconds
        while not (
            value := self.evaluate(f"(() => {{ try {{ return ({expression}); }} catch {{ return null; }} }})()")
        ):
            assert time.monotonic() < deadline, f"never true: {expression}; the page says: {self.text()[:2000]}"
            time.sleep(0.03)
        return value

    def text(self, selector: str = "body") -> str:
        """The visible text of an element; empty where there is none."""
        return self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText || ''")

    def click(self, selector: str) -> None:
        """Click on the first element that fits."""
        self.wait(f"document.querySelector({json.dumps(selector)}) !== null")
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def press(self, key: str) -> None:
        """Press and release a key, as a keyboard does."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code="Space" if key == " " else key,
                windowsVirtualKeyCode=_KEYS[key],
                **(text if kind == "keyDown" else {}),
            )

    def errors(self) -> list[str]:
        """What the console shows of errors and warnings: exceptions, refused content, failed requests."""
        self.evaluate("1")  # whatever was reported before has then come
        found = []
        for event in self._browser.events(self._session):
            content = event["params"]
            match event["method"]:
                case "Runtime.exceptionThrown":
                    found.append(str(content["exceptionDetails"].get("exception", content["exceptionDetails"])))
                case "Runtime.consoleAPICalled" if content["type"] in ("error", "warning", "assert"):
                    found.append(str([argument.get("value") for argument in content["args"]]))
                case "Log.entryAdded" if content["entry"]["level"] in ("error", "warning"):
                    found.append(f"{content['entry']['text']} {content['entry'].get('url', '')}")
        return found


def axe_script(folder: Path) -> str:
    """The accessibility checker axe-core, as npm's registry has it; skips the test where that cannot be asked."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed: axe-core cannot be fetched")
    command = [npm, "pack", "axe-core@4", "--silent", "--pack-destination", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S, cwd=folder)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip("axe-core could not be fetched from npm's registry")
    with tarfile.open(next(folder.glob("axe-core-*.tgz"))) as archive:
        file = archive.extractfile("package/axe.min.js")
        assert file is not None
        return io.TextIOWrapper(file, encoding="utf-8").read()


def violations(page: Page, axe: str) -> list[str]:
    """What axe-core finds against WCAG 2.1 A and AA on the page as it is now."""
    page.call("Runtime.evaluate", expression=axe)  # by the debugger: the page's own policy allows no foreign script
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
    options = json.dumps({"runOnly": tags, "resultTypes": ["violations"]})
    found = page.evaluate(f"axe.run(document, {options}).then((result) => result.violations)")
    return [f"{item['id']}: {node['html']} {node['failureSummary']}" for item in found for node in item["nodes"]]
