"""The page in a real browser: follows a run, replays episodes, works with keyboard, phone and dark scheme."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from alfworld_native import make_environment
from tests.browser import Browser, axe_script, running_browser, violations
from tests.xrl_alignment.show.dashboard.runs import ATTACK, GAMES, by_looks, make_run_directory
from xrl_alignment.show.dashboard.pages import Dashboard
from xrl_alignment.wire.http_server import PageServer

TOKEN = "sesame-sesame-sesame"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def serve(tmp_path: Path) -> Iterator:
    servers = []

    def start(run: Path, token: str = "", **live) -> str:
        server = PageServer("127.0.0.1", 0, token).start()
        server.mount(Dashboard(run, **live))
        servers.append(server)
        return f"http://127.0.0.1:{server.port}/"

    yield start
    for server in servers:
        server.stop()


class Gated:
    """A real environment whose steps wait until the test lets them pass."""

    def __init__(self, gate: threading.Semaphore) -> None:
        self._environment = make_environment("native")
        self._gate = gate

    def __getattr__(self, name: str):
        return getattr(self._environment, name)

    def step(self, action: str):
        assert self._gate.acquire(timeout=60)
        return self._environment.step(action)


def test_it_follows_a_real_run_to_its_end(browser: Browser, make_run):
    gate = threading.Semaphore(0)
    run = make_run("run", num_rounds=2, preferences=True)
    live = {"status": run.server.status, "in_progress": run.loop.front.in_progress}
    run.server.mount(Dashboard(run.directory.path, **live))
    playing = threading.Thread(target=lambda: run.play(factory=lambda: Gated(gate), num_workers=2))
    with browser.page() as page:
        playing.start()
        page.open(f"{run.url}")
        page.wait("document.querySelectorAll('.card').length === 2")
        assert page.text("#state") == "live"
        assert page.wait("[...document.querySelectorAll('.card img')].every((image) => image.naturalWidth > 100)")
        assert "step 1. Your task is to:" in page.text(".card")
        for _ in range(4):
            gate.release()
        page.wait("[...document.querySelectorAll('.card .quiet')].some((line) => /step [23]\\./.test(line.innerText))")
        verdict = page.text(".card .verdict")
        assert verdict in ("✓ same action", "✗ differs, the agent's is executed")
        for _ in range(100):
            gate.release()
        playing.join(60)
        run.wait()
        page.wait("document.getElementById('state').innerText === 'ended'")
        marks = page.evaluate("[...document.querySelectorAll('#grid button.mark')].map((mark) => mark.innerText)")
        assert len([mark for mark in marks if mark in "✓✗E"]) == len(run_records(run))
        titles = page.evaluate("[...document.querySelectorAll('figcaption')].map((title) => title.innerText)")
        assert titles[0].startswith("Success") and {"Loss", "Rewards (DPO)"} <= set(titles)
        assert page.errors() == []


def run_records(run) -> list[str]:
    return (run.directory.path / "state" / "episodes.jsonl").read_text().splitlines()


def test_an_episode_is_replayed_by_mouse_slider_and_keyboard(browser: Browser, serve, tmp_path: Path):
    url = serve(make_run_directory(tmp_path))
    with browser.page() as page:
        page.open(url)
        page.click("#grid tbody tr:nth-child(3) button.F")
        page.wait("document.getElementById('replay-frame').naturalWidth === 8")
        assert page.text("#replay-count") == "Step 1 of 4" and "failed · 4 actions" in page.text("#replay-facts")
        assert page.evaluate("document.activeElement.id") == "replay-step"
        assert page.text("#replay-verdict") == "✗ differs, the agent's is executed"
        assert page.text("#replay-said").split("\n") == [
            "agent", "look", "expert", "take mug 1 from desk 1", "executed", "look",
        ]  # fmt: skip
        first = page.evaluate("document.getElementById('replay-frame').src")
        page.press("ArrowRight")
        page.press("ArrowRight")
        page.wait(f"document.getElementById('replay-frame').src !== {first!r}")
        assert page.text("#replay-count") == "Step 3 of 4" and page.text("#replay-verdict") == "✓ same action"
        assert page.evaluate("getComputedStyle(document.getElementById('replay-verdict')).color") == "rgb(15, 97, 48)"
        page.press("End")
        assert page.text("#replay-count") == "Step 4 of 4" and page.text("#replay-heard") == "ok 2"
        page.press("Home")
        page.evaluate(
            "(s => { s.value = 2; s.dispatchEvent(new Event('input')); })(document.getElementById('replay-step'))"
        )
        assert page.text("#replay-count") == "Step 2 of 4"
        page.press(" ")
        assert page.text("#replay-play") == "Pause"
        page.wait("document.getElementById('replay-count').innerText === 'Step 4 of 4'")
        assert page.text("#replay-play") == "Play"
        assert page.evaluate("location.hash") == "#episode=0/2"
        page.click("#replay-close")
        assert page.evaluate("document.getElementById('replay').hidden")
        page.open(f"{url}#episode=0/1")  # a link to an episode, on the page that is open
        page.wait("document.getElementById('replay-count').innerText === 'Step 1 of 2'")
        assert "the agent was not asked" in page.text("#replay-verdict")
        assert page.errors() == []


def test_an_episode_that_comes_late_changes_nothing(browser: Browser, serve, tmp_path: Path):
    """Its answer comes when another one is open, or none: the address must name what is shown."""
    held = "/episodes/0/2"
    hold = f"""(f => {{ window.fetch = (url, ...rest) => {{
        const held = (answer) => new Promise((go) => {{ window.release = () => go(answer); }});
        return url.endsWith("{held}") ? f(url, ...rest).then(held) : f(url, ...rest);
    }}; }})(window.fetch)"""
    with browser.page() as page:
        page.open(serve(make_run_directory(tmp_path)))
        page.wait("document.querySelector('#grid button.F') !== null")
        page.evaluate(hold)
        for shown, then in (("#episode=0/1", "#grid tbody tr:nth-child(2) button"), ("", "#replay-close")):
            page.evaluate("delete window.release")
            page.click("#grid tbody tr:nth-child(3) button.F")
            page.wait("Boolean(window.release)")
            page.click(then)
            page.wait(f"location.hash === {shown!r}")
            page.evaluate("window.release(); new Promise((done) => setTimeout(done, 100))")
            assert page.evaluate("location.hash") == shown
        assert page.errors() == []


def test_an_episode_of_another_version_and_one_without_frames_are_shown_as_text(
    browser: Browser, serve, tmp_path: Path
):
    run = make_run_directory(tmp_path)
    with open(run / "state" / "episodes.jsonl", "a", encoding="utf-8") as journal:
        older = {"round": 2, "env": 0, "game": GAMES[0], "won": False, "steps": [["look", ATTACK]]}
        journal.write(json.dumps(older) + "\n" + '{"round": 2, "env": 1, "ga')  # and one that is half-written
    (run / "state" / "buffer" / "round000_env0002_steps004.h5").unlink()
    url = serve(run)
    with browser.page() as page:
        page.open(f"{url}#episode=2/0")
        page.wait("document.getElementById('replay-count').innerText === 'Step 1 of 1'")
        assert page.text("#replay-facts") == "failed" and "no frames, no labels" in page.text("#replay-notice")
        assert page.text("#replay-feedback") == f"→ {ATTACK}"
        page.open(f"{url}#episode=0/2")
        page.wait("document.getElementById('replay-count').innerText === 'Step 1 of 4'")
        assert "frames of this episode are missing" in page.text("#replay-notice")
        assert page.evaluate("document.getElementById('replay-frame').hidden")
        page.wait("document.getElementById('notices').innerText.includes('steps004.h5 is missing')")
        assert page.errors() == []


def test_a_replay_marks_what_the_agent_was_not_told(browser: Browser, serve, tmp_path: Path):
    url = serve(by_looks(make_run_directory(tmp_path)))
    with browser.page() as page:
        page.open(f"{url}#episode=2/0")
        page.wait("document.getElementById('replay-feedback').innerText.includes('You arrive')")
        assert page.text("#replay-feedback .untold") == "On the desk 1, you see a mug 1."
        assert "by looks: text without objects" in page.text("#facts") and page.errors() == []


def test_the_table_is_moved_in_by_arrow_keys_and_shows_memories(browser: Browser, serve, tmp_path: Path):
    with browser.page() as page:
        page.open(serve(make_run_directory(tmp_path)))
        page.wait("document.querySelectorAll('#grid button').length === 5")
        page.evaluate("document.querySelector('#grid button').focus()")
        focused = "document.activeElement.getAttribute('aria-label')"
        for key in ("ArrowDown", "ArrowRight", "ArrowDown"):  # below there is nothing to choose
            page.press(key)
        assert page.evaluate(focused) == "2. pick and place simple: Mug1, Desk, round 2: failed. Replay"
        for key in ("ArrowLeft", "ArrowDown"):
            page.press(key)
        assert page.evaluate(focused) == "3. pick and place simple: Mug2, Desk, round 1: failed. Replay"
        page.press("ArrowLeft")
        assert page.evaluate(focused) == "2 memories of game 3"
        assert page.evaluate("document.querySelectorAll('#grid [tabindex=\"0\"]').length") == 1
        page.evaluate("document.activeElement.click()")
        page.wait("document.activeElement.id === 'memories-title'")
        assert page.text("#memories-list").split("\n") == ["I looked too often.", ATTACK]
        assert page.text("#grid tbody tr:nth-child(1)").split()[-1] == "·", "solved before"


def test_hostile_texts_are_texts(browser: Browser, serve, tmp_path: Path):
    from tests.xrl_alignment.show.dashboard.test_live import episode

    run = make_run_directory(tmp_path)
    attacked = episode(0, (ATTACK, ATTACK))
    attacked.game = ATTACK
    live = {
        "status": lambda: {"round": 0, "expert": {"total": {"cost_usd": ATTACK}}},
        "in_progress": lambda: [("s", attacked)],
    }
    (run / "state" / "games.json").write_text(json.dumps([ATTACK, "b", "c"]))
    (run / "state" / "environment.json").write_text(json.dumps({"environments": [ATTACK]}))
    with browser.page() as page:
        page.open(serve(run, **live) + "#episode=0/2")
        page.wait("document.querySelectorAll('.card').length === 1 && document.querySelectorAll('#grid tr').length > 1")
        page.wait("document.getElementById('replay-heard').innerText !== ''")
        for place in (".card", "#grid", "#facts", "#replay-heard"):
            assert "<script>" in page.text(place), place
        assert page.evaluate("document.querySelectorAll('img[src=x], body script').length") == 0
        assert page.evaluate("document.title") == f"{run.name}: EMAC+ run"
        assert page.errors() == []


def test_a_token_is_asked_for_kept_in_the_tab_and_leaves_the_address(browser: Browser, serve, tmp_path: Path):
    url = serve(make_run_directory(tmp_path), TOKEN)
    with browser.page() as page:
        page.open(f"{url}#episode=0/2")
        page.wait("!document.getElementById('access').hidden")
        assert page.evaluate("document.activeElement.id") == "token" and page.text("#grid") == ""
        give = "document.getElementById('token').value = {!r}; document.querySelector('#access button').click()"
        page.evaluate(give.format("wrong"))
        page.wait("document.getElementById('denied').innerText.includes('does not accept')")
        page.evaluate(give.format(TOKEN))
        page.wait("document.getElementById('replay-count').innerText === 'Step 1 of 4'")
        page.wait("document.querySelectorAll('#grid button').length === 5")
        page.call("Page.reload")
        page.wait("document.querySelectorAll('#grid button').length === 5")
    with browser.page() as page:
        page.open(f"{url}#token={TOKEN}")
        page.wait("document.querySelectorAll('#grid button').length === 5")
        assert page.evaluate("location.href") == url and page.errors() == []


def test_it_says_what_is_missing_and_that_the_server_has_stopped(browser: Browser, tmp_path: Path):
    (tmp_path / "state").mkdir()
    server = PageServer("127.0.0.1", 0).start()
    server.mount(Dashboard(tmp_path))
    with browser.page() as page:
        page.open(f"http://127.0.0.1:{server.port}/")
        page.wait("document.querySelectorAll('#notices li').length === 3")
        assert "state/metrics.jsonl is missing" in page.text("#notices") and page.text("#curves-empty")
        server.stop()
        page.wait("document.getElementById('state').innerText.startsWith('the server has stopped')")


@pytest.mark.parametrize(("width", "dark"), [(360, True), (1200, False)], ids=["phone, dark", "desktop, light"])
def test_names_contrast_and_width(browser: Browser, serve, axe: str, tmp_path: Path, width: int, dark: bool):
    from tests.xrl_alignment.show.dashboard.test_live import episode

    said = [("look", "go to desk 1"), ("look", "look"), ("", "look")]
    playing = [(name, episode(env, *said[: env + 1])) for env, name in enumerate("abc")]
    live = {"status": lambda: {"round": 0, "num_rounds": 2, "solved": 1}, "in_progress": lambda: playing}
    run = make_run_directory(tmp_path)
    (run / "state" / "metrics.jsonl").open("a").write("{\n")
    with browser.page(width=width, dark=dark) as page:
        page.open(serve(run, **live) + "#episode=0/2")
        page.wait("document.querySelectorAll('.card').length === 3 && document.querySelectorAll('figure').length === 5")
        page.wait("document.getElementById('replay-frame').naturalWidth === 8")
        page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
        assert violations(page, axe) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(20, 22, 25)") == dark


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    return axe_script(tmp_path_factory.mktemp("axe"))
