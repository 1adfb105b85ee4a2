"""The page in a real browser, and nothing from elsewhere on it."""

from __future__ import annotations

import html
import re
import subprocess
from pathlib import Path

import pytest

from policy_server.games.prompts import ParsedAction
from tests.browser import FLAGS, QUIET, chromium
from tests.policy_server.servers import CAVE, encoded_image


def page_in_browser(url: str, profile: Path) -> str:
    """The page's elements after its script has run, as Chromium writes them."""
    command = [chromium(), *FLAGS, *QUIET, "--virtual-time-budget=3000", "--dump-dom"]
    command += [f"--user-data-dir={profile}", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout


def text_of(page: str, selector: str) -> list[str]:
    """The texts of elements `<tag …>` or of those with a class (`.name`)."""
    pattern = rf'<\w+ class="{selector[1:]}">(.*?)</' if selector.startswith(".") else rf"<{selector}>(.*?)</"
    main = page.split("<main", 1)[1].split("</main>", 1)[0]
    return [html.unescape(text) for text in re.findall(pattern, main, re.DOTALL)]


@pytest.mark.timeout(280)
def test_the_page_shows_the_last_steps(serve, tmp_path):
    server = serve("server.recent=2")
    for step in (1, 2, 3):
        fields = {"task_name": CAVE, "step": step, "max_tokens": 4, "session": "first"}
        sent = {"content": encoded_image("JPEG"), "headers": {"Content-Type": "image/jpeg"}}
        assert server.http.post("/get_action/image", params=fields, **sent).status_code == 200
    attack = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>"
    newest = server.admission.recent["anonymous 127.0.0.1"][-1]
    newest.result.parsed = ParsedAction({**newest.result.parsed.action, "jump": 1, "camera": [5, 0]}, attack, "")
    page = page_in_browser(f"{server.url}/ui", tmp_path)
    assert text_of(page, "h2") == [f"{CAVE}, step 3", f"{CAVE}, step 2"]
    assert text_of(page, ".action") == ["jump + camera 5°, 0°", "nothing"]
    assert text_of(page, ".reasoning")[0] == attack and "<title>Policy server</title>" in page
    assert page.count('src="data:image/jpeg;base64,/9j/') == 2
    assert "healthy · blip2_emac:tiny on cpu" in page and "session first" in page


def test_nothing_on_the_page_comes_from_elsewhere(serve):
    server = serve()
    files = {"": "text/html", "/app.js": "text/javascript", "/style.css": "text/css", "/base.css": "text/css"}
    for path, kind in ((f"/ui{name}", kind) for name, kind in files.items()):
        answer = server.http.get(path)
        assert answer.headers["content-type"].startswith(kind)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "://" not in answer.text


@pytest.mark.timeout(280)
def test_with_keys_the_page_asks_for_one(serve, tmp_path):
    page = page_in_browser(f"{serve(keys={'lab': 'k' * 20}).url}/ui", tmp_path)
    assert re.search(r'<form id="access">', page) and text_of(page, "h2") == []
